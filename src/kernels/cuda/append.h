/*
 * CUDA kernel of RoPE, rotation, truncation and store of Q, K and V (layouts of kernels/layout.h).
 *
 * V is already rotated (W_V includes the rotation), unless `r_v` is given.
 */
#ifndef KVD_KERNELS_CUDA_APPEND_H
#define KVD_KERNELS_CUDA_APPEND_H

#include <cuda_runtime_api.h>

#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int dtype; /* KVD_BF16 or KVD_F16, for x, r_qk, r_v and the outputs */
    kvd_attn_map map;
    int32_t d_head; /* dimensions before compression; 16, 32 .. 256 */
    /* requests, and new tokens of all requests */
    int32_t batch, n_tokens;
    /* Device [batch]: first row of request b in x, increasing. */
    const int32_t *token_start;
    /* Device [batch]: number of new tokens, and of all tokens including the new ones. */
    const int32_t *q_len, *kv_len;
    /*
     * Device [batch]: first row of request b in blocked Q (prefill). NULL (decode): Q is
     * [batch][q_pitch], q_len is 1.
     */
    const int32_t *q_start;
    int32_t n_q8;              /* rows of Q in layout BLOCKED; 0 in decode */
    const int32_t *page_table; /* device [batch][max_pages] */
    int32_t max_pages;
    /* Decode only, device [batch]: RoPE position of the new token. NULL: kv_len - 1. */
    const uint32_t *position;
    /*
     * Decode only. If 1, the launch may read token_start, kv_len, position and page_table before
     * preceding kernels have ended. The caller guarantees that a kernel without programmatic launch
     * runs after their writer.
     */
    int32_t lists_ready;
    /* Device [n_tokens][(n_heads + 2 n_kv_heads) * d_head]: Q, K, V before RoPE. */
    const void *x;
    /*
     * 1: x is [n_tokens][(n_heads + n_kv_heads) * d_head + sum of d_v], with V cut to its kept
     * columns.
     */
    int32_t v_is_cut;
    /* Device [max position][rope_dim / 2]; NULL: no RoPE. */
    const float *rope_cos, *rope_sin;
    int32_t rope_dim; /* leading dims that RoPE rotates; even, at most d_head */
    /* Pairs that RoPE rotates. 0: (i, i + rope_dim/2); 1: (2i, 2i+1). */
    int32_t rope_interleaved;
    /* Device: row-major [d_head][d_qk] per KV head. NULL: the first d_qk dims are kept. */
    const void *r_qk;
    /* Device: [d_head][d_v] per KV head. NULL: V is only truncated. */
    const void *r_v;
    void *q, *pool; /* outputs */
    /*
     * Decode only, device; may be NULL. Start and end of the kernel in ns of %globaltimer. The
     * caller sets *ended to 0.
     */
    unsigned long long *began, *ended;
} kvd_append_args;

/* Launches without waiting. Returns cudaErrorInvalidValue if `args` is outside its limits. */
cudaError_t kvd_append(const kvd_append_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
