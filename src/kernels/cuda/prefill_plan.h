/*
 * Schedulers of prefill: they cut the query rows of every head and request into tiles and assign
 * the tiles to CTAs. They run on the device, in one launch on the caller's stream.
 */
#ifndef KVD_KERNELS_CUDA_PREFILL_PLAN_H
#define KVD_KERNELS_CUDA_PREFILL_PLAN_H

#include "kernels/cuda/prefill.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    /* CTA c computes the tiles c, c + n_ctas, ... in the order request, head, row. */
    KVD_SCHEDULE_NONE,
    KVD_SCHEDULE_PAPERS, /* schedule of the papers ZACK (section 5) and FDC (section 4.3) */
    /*
     * A CTA takes the next tile when it is free. Tiles are sorted by decreasing cost, within each
     * section of KV heads whose K and V fit in L2 together.
     */
    KVD_SCHEDULE_OURS
} kvd_schedule;

/*
 * Cost model of a prefill kernel, whose tiles have `rows` rows (a multiple of 64, at most
 * KVD_PREFILL_ROWS). In a layer with a head wider than KVD_WIDTH_NARROW, tiles have at most
 * KVD_PREFILL_WIDE_ROWS rows. A tile that reads `blocks` blocks of keys costs blocks * (per_block +
 * per_dim * (d_qk + d_v)) + per_tile SM clocks.
 */
typedef struct {
    int32_t rows;
    float per_block, per_dim, per_tile;
} kvd_prefill_cost;

extern const kvd_prefill_cost kvd_prefill_cost_sm90, kvd_prefill_cost_mma;

/* Returns the largest number of tiles that any schedule creates for this batch. */
size_t kvd_prefill_max_tiles(const kvd_attn_map *map, const kvd_attn_batch *batch);
/* Returns the bytes of the device memory `scratch` of kvd_prefill_plan, per layer. */
size_t kvd_prefill_plan_bytes(const kvd_attn_map *map, const kvd_attn_batch *batch, int n_ctas);

/*
 * Reads map, lengths and n_ctas from *args. Fills tile [max_tiles], sets *next to zero, and fills
 * first [n_ctas + 1] unless the schedule is KVD_SCHEDULE_OURS. Fills args->work with the pointers
 * tile, next and first, and with n_tiles. The lengths in `batch` must equal those on the device.
 */
cudaError_t kvd_prefill_plan(kvd_prefill_args *args, const kvd_attn_batch *batch,
                             kvd_schedule schedule, const kvd_prefill_cost *cost,
                             kvd_prefill_tile *tile, int32_t *first, int32_t *next, void *scratch,
                             cudaStream_t stream);

/*
 * These three functions assign the tiles of many layers in one launch. The caller calls
 * kvd_prefill_plan_describe once per layer: `layer` is host memory of
 * kvd_prefill_plan_layer_bytes() bytes. The caller copies these descriptions to the device, one
 * after another, and then calls kvd_prefill_plan_layers before every iteration. n_tiles stays valid
 * as long as the lengths do not change.
 */
size_t kvd_prefill_plan_layer_bytes(void);
cudaError_t kvd_prefill_plan_describe(kvd_prefill_args *args, const kvd_attn_batch *batch,
                                      kvd_schedule schedule, const kvd_prefill_cost *cost,
                                      kvd_prefill_tile *tile, int32_t *first, int32_t *next,
                                      void *scratch, void *layer);
cudaError_t kvd_prefill_plan_layers(const void *layers, int n_layers, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
