/*
 * Decode attention in CUDA (sm_80 and later) on bf16 or fp16 pages of 8 x 8 blocks (layout BLOCKED
 * of kernels/layout.h). Results are equal bit for bit if inputs and the division of work among CTAs
 * are equal.
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
     * If not 0, pages are divided into pieces of this number of tokens, a power of 2 below 64.
     * page_table is then [batch][max_pages * n] with n = 64 / piece_tokens, and entry x is piece x
     * % n of page x / n. Requires ctas_per_task 0.
     */
    int32_t piece_tokens;
    /*
     * Device [batch], or NULL. KV heads n_kv_heads / 2 and above have second_len[b] >= 1 tokens in
     * the first pages of request b, lower heads in the pages after them. kv_len[b] counts tokens of
     * all these pages.
     */
    const int32_t *second_len;
    /*
     * [1] in device memory: number of requests to compute, or NULL for all. Other rows are not
     * written.
     */
    const int32_t *live;
    const void *q;    /* device [batch][q_pitch] */
    const void *pool; /* pages of K and V on the device */
    /*
     * [n_heads] in device memory: logits of attention sinks, which join the softmax denominators,
     * or NULL.
     */
    const float *sinks;
    /*
     * Length of `sinks` if the batch has one request per KV head: the sinks of request b begin at
     * (b * map.n_heads) % n_sinks. If 0, all requests have the same n_heads sinks.
     */
    int32_t n_sinks;
    void *o; /* output, device [batch][o_pitch] */
    /*
     * Output, [batch][n_heads] in device memory, natural logs of the softmax denominators. May be
     * NULL.
     */
    float *lse;
    /* Output, [n_ctas] in device memory: nanoseconds that each CTA worked. May be NULL. */
    unsigned long long *busy;
    /*
     * Output, [n_ctas][KVD_DECODE_STAMPS] in device memory: time in ns of events AT_...
     * (decode_merge.cuh).
     */
    unsigned long long *stamps;
    int32_t n_ctas; /* kvd_decode_ctas(), or any number up to 1024 */
    /*
     * CTAs per KV head, from kvd_decode_ctas_per_task(), or 0 to divide the work as kvd_decode_plan
     * has written to `workspace`.
     */
    int32_t ctas_per_task;
    /*
     * Device memory, kvd_decode_workspace_bytes() bytes; unchanged from kvd_decode_plan to
     * kvd_decode.
     */
    void *workspace;
} kvd_decode_args;

/* Returns the number of CTAs that the device runs at once, or -1 if the query fails. */
int kvd_decode_ctas(const kvd_attn_map *map);
/*
 * Returns the number of CTAs per KV head and request that is faster than a division of the keys by
 * kvd_decode_plan, or 0 if kvd_decode_plan is faster. `shortest`: smallest kv_len, or 0. Valid for
 * requests of up to max_pages pages.
 */
int kvd_decode_ctas_per_task(const kvd_decode_args *args, int shortest);
/* Returns the bytes of args->workspace. `max_kv_len` is at least the largest kv_len. */
size_t kvd_decode_workspace_bytes(const kvd_attn_map *map, int batch, int max_kv_len, int n_ctas);

/*
 * Assigns the keys of every (request, KV head) to CTAs, in one launch.
 *
 * - NONE: CTA c computes tasks (request, KV head) c, c + n_ctas, ...
 * - PAPERS: tasks by decreasing kv_len * (d_qk + d_v) go to the least loaded SM (papers ZACK,
 *   section 5, and FDC, 4.3).
 * - OURS: the bytes of all keys are cut at half pages into equal parts.
 *
 * A plan serves all layers with equal dimensions and tokens.
 */
cudaError_t kvd_decode_plan(const kvd_decode_args *args, kvd_schedule schedule,
                            cudaStream_t stream);

/*
 * Divide the attention of several layers with equal batch, n_kv_heads and n_ctas among CTAs in one
 * launch. The caller describes each layer in host memory, copies the descriptions to one device
 * array, then passes it to kvd_decode_plan_layers.
 */
size_t kvd_decode_plan_layer_bytes(void);
cudaError_t kvd_decode_plan_describe(const kvd_decode_args *args, kvd_schedule schedule,
                                     void *layer);
cudaError_t kvd_decode_plan_layers(const kvd_decode_args *args, kvd_schedule schedule,
                                   const void *layers, int n_layers, cudaStream_t stream);

/* Computes decode attention. Returns cudaErrorInvalidValue if ctas_per_task is not supported. */
cudaError_t kvd_decode(const kvd_decode_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
