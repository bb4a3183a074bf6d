/*
 * Decode attention in CUDA on heads with different numbers of dimensions, for sm_80 and later (with
 * bulk copies if the GPU has them). Paged KV cache in layout BLOCKED of kernels/layout.h, bf16 or
 * fp16. The query heads of a KV head are computed together, and the keys of a request are divided
 * among CTAs. Partial results are merged in a fixed order, so the same plan gives the same bits.
 */
#ifndef KVD_KERNELS_CUDA_DECODE_H
#define KVD_KERNELS_CUDA_DECODE_H

#include <cuda_runtime_api.h>

#include "kernels/cuda/prefill_plan.h"
#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Number of time stamps that a CTA may write to kvd_decode_args.stamps. */
enum { KVD_DECODE_STAMPS = 16 };

typedef struct {
    int dtype; /* KVD_BF16 or KVD_F16 */
    kvd_attn_map map;
    int32_t batch, max_pages;
    const int32_t *kv_len;     /* device [batch]: number of tokens of each request, >= 1 */
    const int32_t *page_table; /* device [batch][max_pages]: pages of each request */
    /*
     * Device [batch], >= 1; NULL: not used. If given, the two halves of the KV heads have different
     * tokens in separate pages. The first pages of request b hold second_len[b] tokens of the
     * second half of the KV heads. The pages after them hold the tokens of the first half.
     * kv_len[b] then counts all token places from the request's first page to the last token of the
     * first half.
     */
    const int32_t *second_len;
    /*
     * Device [1], 1 .. batch: number of requests, from the first on, that are computed; NULL: all.
     * Rows of o and lse of the other requests are not written.
     */
    const int32_t *live;
    const void *q;    /* queries, device [batch][q_pitch] */
    const void *pool; /* pages of K and V of this layer, on the device */
    void *o;          /* attention output, device [batch][o_pitch] */
    /*
     * Output, device [batch][n_heads]: natural logarithms of the softmax denominators; NULL: not
     * written.
     */
    float *lse;
    /* Output, device [n_ctas]: nanoseconds that each CTA worked; NULL: not measured. */
    unsigned long long *busy;
    /*
     * Output, device [n_ctas][KVD_DECODE_STAMPS]: times in nanoseconds of the events that
     * decode_merge.cuh names; NULL: not measured.
     */
    unsigned long long *stamps;
    int32_t n_ctas; /* number of CTAs: kvd_decode_ctas(), or any number up to 1024 */
    /*
     * Device memory, kvd_decode_workspace_bytes() bytes: the plan and the partial results. Its
     * contents must be kept from kvd_decode_plan to kvd_decode.
     */
    void *workspace;
} kvd_decode_args;

/*
 * Returns the number of CTAs that the current device runs at once (SMs x CTAs per SM), or -1 if the
 * device cannot be queried.
 */
int kvd_decode_ctas(const kvd_attn_map *map);
/*
 * Returns the size of the workspace in bytes. `max_kv_len` is an upper bound of every number of
 * tokens per request for which the workspace will be planned.
 */
size_t kvd_decode_workspace_bytes(const kvd_attn_map *map, int batch, int max_kv_len, int n_ctas);

/*
 * Creates the plan, which assigns the keys of every (request, KV head) to CTAs, from kv_len on the
 * device in one launch. The host reads nothing back. Schedules:
 * - NONE: one task per (request, KV head). CTA c computes tasks c, c + n_ctas, ...; no task is
 *   split.
 * - PAPERS: one task per (request, KV head) with weight kv_len * (d_qk + d_v). Inside a CUDA kernel
 *   the tasks are sorted by decreasing weight and assigned one by one to the least loaded SM (ZACK
 *   section 5, FDC 4.3).
 * - OURS: the keys of all (request, KV head) are concatenated, measured in bytes plus a fixed
 *   cost per part, and cut at half pages into equal parts, one per CTA. If the parts stay nearly
 *   equal, no CTA works on two (request, KV head).
 *
 * One plan serves every layer with the same numbers of dimensions and tokens.
 */
cudaError_t kvd_decode_plan(const kvd_decode_args *args, kvd_schedule schedule,
                            cudaStream_t stream);

/*
 * These functions create the plans of many layers in one launch, for layers that differ in widths
 * or in lengths (kv_len). Call kvd_decode_plan_describe once per layer: `layer` is host memory of
 * kvd_decode_plan_layer_bytes() bytes, and every layer has its own workspace. Copy the descriptions
 * to the device, one after another, and call kvd_decode_plan_layers before every step. Its `args`
 * may be that of any layer, because batch, n_kv_heads and n_ctas are equal in all layers.
 */
size_t kvd_decode_plan_layer_bytes(void);
cudaError_t kvd_decode_plan_describe(const kvd_decode_args *args, kvd_schedule schedule,
                                     void *layer);
cudaError_t kvd_decode_plan_layers(const kvd_decode_args *args, kvd_schedule schedule,
                                   const void *layers, int n_layers, cudaStream_t stream);

/*
 * Computes decode attention by the plan in args->workspace, in one launch. On Hopper the launch
 * overlaps the end of the preceding kernel on the stream (programmatic dependent launch) and reads
 * nothing until that kernel is complete.
 */
cudaError_t kvd_decode(const kvd_decode_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
