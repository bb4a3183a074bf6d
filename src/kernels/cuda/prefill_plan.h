/* Schedulers of prefill, on the device: cut query rows into tiles and assign tiles to CTAs. */
#ifndef KVD_KERNELS_CUDA_PREFILL_PLAN_H
#define KVD_KERNELS_CUDA_PREFILL_PLAN_H

#include "kernels/cuda/prefill.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    /* CTA c computes the tiles c, c + n_ctas, and so on. Tiles are ordered by request, then by
     * head, then by row. */
    KVD_SCHEDULE_NONE,
    KVD_SCHEDULE_PAPERS, /* schedule of the ZACK (section 5) and FDC (section 4.3) papers */
    /* Each free CTA takes the next tile. Tiles are sorted for reuse of K and V in L2, then by
     * falling cost. */
    KVD_SCHEDULE_OURS
} kvd_schedule;

/* Cost model of a prefill kernel, in SM clocks. A tile with n blocks of 128 keys costs per_tile +
 * n * (per_block + per_dim * (d_qk + d_v)). `rows`: number of query rows of a tile. */
typedef struct {
    int32_t rows;
    float per_block, per_dim, per_tile;
} kvd_prefill_cost;

extern const kvd_prefill_cost kvd_prefill_cost_sm90, kvd_prefill_cost_mma;

/* Returns the largest number of tiles into which the attention of this batch can be divided. */
size_t kvd_prefill_max_tiles(const kvd_attn_map *map, const kvd_attn_batch *batch);
/* Returns the bytes of `scratch` that kvd_prefill_plan needs per layer. */
size_t kvd_prefill_plan_bytes(const kvd_attn_map *map, const kvd_attn_batch *batch, int n_ctas);

/* Divides query rows into tiles and writes them to tile [max_tiles]. first [n_ctas + 1] receives
 * the index of each CTA's first tile. With KVD_SCHEDULE_OURS, CTAs take tiles from a common list
 * instead: sets *next, the tile to take next, to 0.
 *
 * `batch` has the lengths of the requests in host memory. */
cudaError_t kvd_prefill_plan(kvd_prefill_args *args, const kvd_attn_batch *batch,
                             kvd_schedule schedule, const kvd_prefill_cost *cost,
                             kvd_prefill_tile *tile, int32_t *first, int32_t *next, void *scratch,
                             cudaStream_t stream);

/* Returns the size in bytes of a packed copy of kvd_prefill_plan's arguments. */
size_t kvd_prefill_plan_layer_bytes(void);
/* Packs the arguments of kvd_prefill_plan into `layer`, in host memory. Sets args->work. */
cudaError_t kvd_prefill_plan_describe(kvd_prefill_args *args, const kvd_attn_batch *batch,
                                      kvd_schedule schedule, const kvd_prefill_cost *cost,
                                      kvd_prefill_tile *tile, int32_t *first, int32_t *next,
                                      void *scratch, void *layer);
/* Divides query rows into tiles, as kvd_prefill_plan does, but for several layers in one launch.
 * `layers`: packed arguments of n_layers layers, in device memory. */
cudaError_t kvd_prefill_plan_layers(const void *layers, int n_layers, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
