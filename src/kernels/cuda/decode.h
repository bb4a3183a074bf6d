/*
 * Decode attention in CUDA on heads with different numbers of dimensions, for sm_80 and later.
 * Paged KV cache in layout BLOCKED of kernels/layout.h, bf16 or fp16. The keys of a request are
 * divided among CTAs, by a plan (kvd_decode_plan) or, on Hopper, in equal parts without a plan.
 * Partial results are merged in a fixed order. Equal inputs give equal bits if the plan, or the
 * number of CTAs per KV head, is the same; launches with and without a plan round differently.
 */
#ifndef KVD_KERNELS_CUDA_DECODE_H
#define KVD_KERNELS_CUDA_DECODE_H

#include <cuda_runtime_api.h>

#include "kernels/cuda/prefill_plan.h"
#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Number of time stamps per CTA in kvd_decode_args.stamps. */
enum { KVD_DECODE_STAMPS = 16 };

typedef struct {
    int dtype; /* KVD_BF16 or KVD_F16 */
    kvd_attn_map map;
    int32_t batch, max_pages;
    const int32_t *kv_len;     /* device [batch], >= 1 */
    const int32_t *page_table; /* device [batch][max_pages] */
    /*
     * A power of 2 below 64: page_table is [batch][max_pages * n] and lists pieces of this number
     * of tokens, with n = 64 / piece_tokens. Entry x is piece x % n of page x / n of the pool. Not
     * supported with ctas_per_task. 0: page_table lists pages.
     */
    int32_t piece_tokens;
    /*
     * Device [batch], >= 1, or NULL. If given, KV heads n_kv_heads / 2 and above have second_len[b]
     * tokens, in the first pages of request b. The later pages hold the tokens of the lower KV
     * heads. kv_len[b] counts the tokens that fit into the pages of request b up to the last token
     * of the lower heads.
     */
    const int32_t *second_len;
    /*
     * Device [1]: number of requests to compute, 1 .. batch, from the first on. NULL: all requests.
     * Rows of o and lse of other requests are not written.
     */
    const int32_t *live;
    const void *q;    /* device [batch][q_pitch] */
    const void *pool; /* pages of K and V on the device */
    /*
     * Device [n_heads]: logits of the attention sinks. The exponential of a head's sink is added to
     * the denominators of its softmax, once per row. NULL: no sinks.
     */
    const float *sinks;
    /*
     * Number of logits in `sinks` if the batch has one request for each KV head of a layer. The
     * logits of request b then begin at element b * map.n_heads % n_sinks. If 0, all requests have
     * the same n_heads logits.
     */
    int32_t n_sinks;
    void *o; /* output, device [batch][o_pitch] */
    /*
     * Output, device [batch][n_heads], natural logarithms of the softmax denominators. May be NULL.
     */
    float *lse;
    /* Output, device [n_ctas]: nanoseconds that each CTA worked. May be NULL. */
    unsigned long long *busy;
    /*
     * Output, device [n_ctas][KVD_DECODE_STAMPS]: for each CTA, the times in ns of the events
     * listed in decode_merge.cuh (AT_...). May be NULL.
     */
    unsigned long long *stamps;
    int32_t n_ctas; /* number of CTAs: kvd_decode_ctas(), or any number up to 1024 */
    /*
     * 0: compute by the plan in `workspace`. Otherwise no plan is read, and this is the number of
     * CTAs for each KV head of each request (the return value of kvd_decode_ctas_per_task()).
     * `workspace` may then have any contents.
     */
    int32_t ctas_per_task;
    /*
     * Device memory, kvd_decode_workspace_bytes() bytes. The contents must not change between
     * kvd_decode_plan and kvd_decode.
     */
    void *workspace;
} kvd_decode_args;

/* Returns the number of CTAs that the device runs at once, or -1 if it cannot be queried. */
int kvd_decode_ctas(const kvd_attn_map *map);
/*
 * Returns the number of CTAs per KV head and request with which a launch without a plan is expected
 * to be faster than one with a plan: a power of 2 up to 16, or 0 if there is none. If the caller
 * knows all kv_len and the largest needs max_pages pages, `shortest` is the smallest kv_len;
 * otherwise it is 0. The result depends on the device, args->map, batch, max_pages, second_len and
 * n_ctas alone, and is valid for every kv_len of up to max_pages pages.
 */
int kvd_decode_ctas_per_task(const kvd_decode_args *args, int shortest);
/* Returns the bytes of args->workspace. `max_kv_len` must be at least the largest kv_len. */
size_t kvd_decode_workspace_bytes(const kvd_attn_map *map, int batch, int max_kv_len, int n_ctas);

/*
 * Assigns the keys of every (request, KV head) to CTAs, from kv_len on the device in one launch.
 * The schedules are:
 *
 * - NONE: a task per (request, KV head). CTA c computes tasks c, c + n_ctas, ...; no task is split.
 * - PAPERS: one task per (request, KV head) with weight kv_len * (d_qk + d_v). The tasks are sorted
 *   by decreasing weight and assigned one by one to the least loaded SM (ZACK section 5, FDC 4.3).
 * - OURS: the keys of all (request, KV head) are concatenated, measured in bytes plus a fixed cost
 *   per part, and cut at half pages into equal parts, one per CTA.
 *
 * One plan serves every layer with the same numbers of dimensions and tokens.
 */
cudaError_t kvd_decode_plan(const kvd_decode_args *args, kvd_schedule schedule,
                            cudaStream_t stream);

/*
 * These three functions create the plans of several layers in one launch. The caller calls
 * kvd_decode_plan_describe once per layer: `layer` is host memory of kvd_decode_plan_layer_bytes()
 * bytes, and every layer has its own workspace. The caller copies these descriptions to the device,
 * one after another, and then calls kvd_decode_plan_layers before every step. The argument `args`
 * of kvd_decode_plan_layers may belong to any of the layers; batch, n_kv_heads and n_ctas must be
 * equal in all layers.
 */
size_t kvd_decode_plan_layer_bytes(void);
cudaError_t kvd_decode_plan_describe(const kvd_decode_args *args, kvd_schedule schedule,
                                     void *layer);
cudaError_t kvd_decode_plan_layers(const kvd_decode_args *args, kvd_schedule schedule,
                                   const void *layers, int n_layers, cudaStream_t stream);

/*
 * Computes decode attention in one launch, by the plan in args->workspace unless
 * args->ctas_per_task is set. Returns cudaErrorInvalidValue if ctas_per_task is set and the kernel
 * without a plan does not support it, the batch or the numbers of dimensions. On Hopper the launch
 * overlaps the end of the preceding kernel, but reads nothing until that kernel is complete.
 */
cudaError_t kvd_decode(const kvd_decode_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
