/*
 * Decode attention on heads of unequal width, CUDA, sm_80 and later (bulk copies where the chip has them). Paged KV cache,
 * layout BLOCKED of kernels/layout.h, bf16 or fp16. The query heads of a KV head are packed; the KV length is split;
 * partial results are merged in a fixed order, so the same plan gives the same bits.
 */
#ifndef KVD_KERNELS_CUDA_DECODE_H
#define KVD_KERNELS_CUDA_DECODE_H

#include <cuda_runtime_api.h>

#include "kernels/cuda/prefill_plan.h"
#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int dtype; /* KVD_BF16 or KVD_F16                                       */
    kvd_attn_map map;
    int32_t batch, max_pages;
    const int32_t *kv_len;     /* device [batch], >= 1                                      */
    const int32_t *page_table; /* device [batch][max_pages]                                 */
    /* NULL, or device [batch], >= 1: a request's first pages hold so many tokens of the second half of the KV heads, the pages behind them
     * tokens of the first half. kv_len then ends at the last of those, counted from the first page on. */
    const int32_t *second_len;
    /* NULL, or device [1], 1 .. batch: only so many of the requests, the first, take part; rows of o and lse behind them stay what they are. */
    const int32_t *live;
    const void *q;            /* device [batch][q_pitch]                                   */
    const void *pool;         /* device, pages of this layer                               */
    void *o;                  /* device [batch][o_pitch]                            out    */
    float *lse;               /* device [batch][n_heads] natural log, or NULL       out    */
    unsigned long long *busy; /* device [n_ctas] ns each CTA worked, or NULL        out    */
    int32_t n_ctas;           /* kvd_decode_ctas(), or any number up to 1024               */
    void *
        workspace; /* device, kvd_decode_workspace_bytes: plan and partial results; kept between plan and run */
} kvd_decode_args;

/* CTAs that fit the current device at once (SMs x CTAs per SM); -1 when the device cannot be asked. */
int kvd_decode_ctas(const kvd_attn_map *map);
/* max_kv_len bounds every length the workspace will be planned for. */
size_t kvd_decode_workspace_bytes(const kvd_attn_map *map, int batch, int max_kv_len, int n_ctas);

/*
 * Makes the work list from kv_len on the device (one launch; nothing is read back):
 *   NONE    one task per (request, KV head), CTA c takes tasks c, c + n_ctas, ... (no split)
 *   PAPERS  one task per (request, KV head), weight kv_len * (d_qk + d_v): sorted falling and given in turn to the least
 *           loaded SM, inside a CUDA kernel (ZACK section 5, FDC 4.3)
 *   OURS    all (request, KV head) intervals laid end to end in bytes (+ a fixed cost per segment) and cut
 *           into equal payloads, one per CTA
 * One plan serves every layer with the same widths and lengths.
 */
cudaError_t kvd_decode_plan(const kvd_decode_args *args, kvd_schedule schedule, cudaStream_t stream);

/*
 * The plans of many layers in one launch, since widths differ from layer to layer and lengths do not: describe every layer once
 * (`layer` is kvd_decode_plan_layer_bytes of host memory; every layer has a workspace of its own), copy the descriptions
 * to the device one after another, and launch with each step. args of the launch is that of any of the layers: batch,
 * n_kv_heads and n_ctas are the same in all.
 */
size_t kvd_decode_plan_layer_bytes(void);
cudaError_t kvd_decode_plan_describe(const kvd_decode_args *args, kvd_schedule schedule, void *layer);
cudaError_t kvd_decode_plan_layers(const kvd_decode_args *args, kvd_schedule schedule, const void *layers,
                                   int n_layers, cudaStream_t stream);

/* Runs what was planned into args->workspace. One launch; on Hopper it overlaps the end of the kernel before it on the
 * stream (programmatic dependent launch) and reads nothing until that kernel is complete. */
cudaError_t kvd_decode(const kvd_decode_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
