/* Decode attention in CUDA (sm_80 and later) on bf16 or fp16 cache pages. Results are equal bit for
 * bit if inputs and the division of work are equal. */
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
    /* Number of tokens per entry of page_table: a power of 2 below 64, or 0 for 64 (a whole page).
     * Example: if it is 16, an entry of value 4 p + i refers to quarter i of page p.
     *
     * If it is not 0, ctas_per_task must be 0. */
    int32_t piece_tokens;
    /* [batch] in device memory: number of tokens per head in the second half of the KV heads, at
     * least 1. NULL: all KV heads have kv_len tokens. If it is not NULL:
     *
     * - A request's row of page_table lists the pages of the second half, then those of the first
     *   half.
     * - kv_len is the number of tokens in the first half, plus 64 for each page of the second
     *   half. */
    const int32_t *second_len;
    /* Number of requests to compute, in device memory; NULL means all. */
    const int32_t *live;
    const void *q;    /* device [batch][q_pitch] */
    const void *pool; /* pages of K and V on the device */
    /* [n_heads] on the device, or NULL: logits of attention sinks. */
    const float *sinks;
    /* 0: all requests use the same n_heads elements of `sinks`. Else: length of `sinks`, where
     * request b's elements begin at index (b * map.n_heads) % n_sinks. */
    int32_t n_sinks;
    void *o; /* output, device [batch][o_pitch] */
    /* Output, [batch][n_heads] on the device, or NULL: logs of the softmax denominators. */
    float *lse;
    /* Output, [n_ctas] in device memory, or NULL for none: nanoseconds from start to end of each
     * CTA. */
    unsigned long long *busy;
    /* Output, [n_ctas][KVD_DECODE_STAMPS] in device memory, or NULL for none: times in ns of a
     * CTA's start, first copy and other events. */
    unsigned long long *stamps;
    int32_t n_ctas; /* kvd_decode_ctas(), or any number up to 1024 */
    /* Number of CTAs per KV head of a request, as kvd_decode_ctas_per_task returns it. 0:
     * kvd_decode_plan has assigned token ranges to CTAs. */
    int32_t ctas_per_task;
    /* Device memory of kvd_decode_workspace_bytes() bytes. It must not change between
     * kvd_decode_plan and kvd_decode. */
    void *workspace;
} kvd_decode_args;

/* Returns the number of CTAs that the device runs at once, or -1 if the query fails. */
int kvd_decode_ctas(const kvd_attn_map *map);
/* Returns the fastest fixed number of CTAs per KV head and request, or 0 if kvd_decode_plan is
 * faster. `shortest`: smallest kv_len, or 0 if not known. The result holds for requests of up to
 * args->max_pages pages. */
int kvd_decode_ctas_per_task(const kvd_decode_args *args, int shortest);
/* Returns the bytes of args->workspace. `max_kv_len` is at least the largest kv_len. */
size_t kvd_decode_workspace_bytes(const kvd_attn_map *map, int batch, int max_kv_len, int n_ctas);

/* Assigns the keys of every request and KV head to CTAs. Layers with the same head dimensions and
 * the same tokens can share this assignment. */
cudaError_t kvd_decode_plan(const kvd_decode_args *args, kvd_schedule schedule,
                            cudaStream_t stream);

/* Returns the size in bytes of a packed copy of kvd_decode_plan's arguments. */
size_t kvd_decode_plan_layer_bytes(void);
/* Packs the arguments of kvd_decode_plan into `layer`, in host memory. */
cudaError_t kvd_decode_plan_describe(const kvd_decode_args *args, kvd_schedule schedule,
                                     void *layer);
/* Assigns keys to CTAs, as kvd_decode_plan does, but for several layers in one launch. `layers`:
 * packed arguments of n_layers layers, in device memory. */
cudaError_t kvd_decode_plan_layers(const kvd_decode_args *args, kvd_schedule schedule,
                                   const void *layers, int n_layers, cudaStream_t stream);

/* Computes decode attention. Returns cudaErrorInvalidValue if ctas_per_task is not supported. */
cudaError_t kvd_decode(const kvd_decode_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
