/*
 * Schedulers of prefill: they cut the query rows of every (request, head) into tiles and say who does them. All run on
 * the device, in one launch, on the caller's stream, so that their cost can be timed beside the kernel's.
 */
#ifndef KVD_KERNELS_CUDA_PREFILL_PLAN_H
#define KVD_KERNELS_CUDA_PREFILL_PLAN_H

#include "kernels/cuda/prefill.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    KVD_SCHEDULE_NONE, /* tiles in the order request, head, row; CTA c takes tiles c, c + n_ctas, ...           */
    KVD_SCHEDULE_PAPERS, /* ZACK section 5 / FDC 4.3: see prefill_plan.cu                                        */
    KVD_SCHEDULE_OURS /* by falling modelled cost, in sections of heads whose K and V fit L2; taken dynamically */
} kvd_schedule;

/* What a scheduler knows of a kernel: the rows of its tiles (a multiple of 64, at most KVD_PREFILL_ROWS), and the cost in SM
 * clocks of a tile that meets `blocks` key blocks: blocks * (per_block + per_dim * (d_qk + d_v)) + per_tile. */
typedef struct {
    int32_t rows;
    float per_block, per_dim, per_tile;
} kvd_prefill_cost;

extern const kvd_prefill_cost kvd_prefill_cost_sm90, kvd_prefill_cost_mma; /* of the two kernels */

/* Most tiles that any of the schedulers makes for this batch; the caller allocates `tile` of that size. */
size_t kvd_prefill_max_tiles(const kvd_attn_map *map, const kvd_attn_batch *batch);
/* Bytes of device scratch that kvd_prefill_plan needs (prefix sums, pieces of the last round), per layer. */
size_t kvd_prefill_plan_bytes(const kvd_attn_map *map, const kvd_attn_batch *batch, int n_ctas);

/*
 * Fills tile [max_tiles] and, for static schedulers, first [n_ctas + 1]; zeroes next. args gives map, lengths and
 * n_ctas (args->work is what is filled: its pointers are the caller's, n_tiles is computed on the host from
 * batch, which must equal the device copies).
 */
cudaError_t kvd_prefill_plan(kvd_prefill_args *args, const kvd_attn_batch *batch, kvd_schedule schedule,
                             const kvd_prefill_cost *cost, kvd_prefill_tile *tile, int32_t *first,
                             int32_t *next, void *scratch, cudaStream_t stream);

/*
 * The plans of many layers in one launch, since widths differ from layer to layer and lengths do not: describe every layer once
 * (same arguments; `layer` is kvd_prefill_plan_layer_bytes of host memory), copy the descriptions to the device one
 * after another, and launch with each step. n_tiles holds as long as the lengths do.
 */
size_t kvd_prefill_plan_layer_bytes(void);
cudaError_t kvd_prefill_plan_describe(kvd_prefill_args *args, const kvd_attn_batch *batch,
                                      kvd_schedule schedule, const kvd_prefill_cost *cost,
                                      kvd_prefill_tile *tile, int32_t *first, int32_t *next, void *scratch,
                                      void *layer);
cudaError_t kvd_prefill_plan_layers(const void *layers, int n_layers, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
