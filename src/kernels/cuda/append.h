/*
 * Kernel between the products with W_Q, W_K, W_V and attention: RoPE, rotation, truncation to the
 * kept dimensions, and the store of Q, K and V. V comes rotated already (its rotation was
 * multiplied into W_V), unless `r_v` is given. Layouts are those of kernels/layout.h.
 */
#ifndef KVD_KERNELS_CUDA_APPEND_H
#define KVD_KERNELS_CUDA_APPEND_H

#include <cuda_runtime_api.h>

#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int dtype; /* KVD_BF16 or KVD_F16: data type of x, r_qk, r_v and the outputs */
    kvd_attn_map map;
    int32_t d_head; /* dimensions before compression; a multiple of 16 within 16 .. 256 */
    /* Number of requests, and number of new tokens of all requests. */
    int32_t batch, n_tokens;
    /* Device [batch]: first row of request b in x, increasing. */
    const int32_t *token_start;
    /*
     * Device [batch]: number of new tokens of each request, and number of all its tokens, including
     * the new ones.
     */
    const int32_t *q_len, *kv_len;
    /*
     * Device [batch]: first row of request b in blocked Q (prefill). NULL (decode): Q is row-major
     * [batch][q_pitch] and q_len is 1.
     */
    const int32_t *q_start;
    int32_t n_q8;              /* number of rows of Q in the BLOCKED layout; 0 in decode */
    const int32_t *page_table; /* device [batch][max_pages] */
    int32_t max_pages;
    /* Decode only, device [batch]: position of the new token for RoPE. NULL: kv_len - 1. */
    const uint32_t *position;
    /*
     * Decode only. If 1, the launch may read token_start, kv_len, position and page_table before
     * the preceding kernels have ended. The caller then guarantees that a kernel launched without
     * programmatic dependent launch runs between the work that wrote these arrays and this launch.
     * If 0, the launch waits before it reads the arrays.
     */
    int32_t lists_ready;
    /*
     * Device [n_tokens][(n_heads + 2 n_kv_heads) * d_head]: Q, K, V of the new tokens before RoPE.
     */
    const void *x;
    /*
     * 1: x has only the kept columns of V, so x is [n_tokens][(n_heads + n_kv_heads) * d_head + sum
     * of d_v].
     */
    int32_t v_is_cut;
    /* RoPE tables, device [max position][rope_dim / 2]; NULL: no RoPE. */
    const float *rope_cos, *rope_sin;
    int32_t rope_dim; /* leading dims that RoPE rotates; even, at most d_head */
    /*
     * Pairs of dims that RoPE rotates. 0: (i, i + rope_dim/2) as in Hugging Face Llama; 1: (2i,
     * 2i+1).
     */
    int32_t rope_interleaved;
    /*
     * Device: one row-major matrix [d_head][d_qk] per KV head, head after head. NULL: the first
     * d_qk dims are kept.
     */
    const void *r_qk;
    /* Device: one matrix [d_head][d_v] per KV head. NULL: V is only truncated. */
    const void *r_v;
    void *q, *pool; /* outputs */
    /*
     * Decode only, device; NULL: no measurement. Both are times of %globaltimer in ns: *began when
     * all preceding kernels had ended, *ended when the last CTA ended. The caller sets *ended to 0
     * before the launch.
     */
    unsigned long long *began, *ended;
} kvd_append_args;

/*
 * Launches the kernel and does not wait for it. Returns cudaErrorInvalidValue if `args` is outside
 * the limits that kvd_append_args states.
 */
cudaError_t kvd_append(const kvd_append_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
