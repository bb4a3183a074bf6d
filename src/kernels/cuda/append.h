/* Applies RoPE and rotation matrices to Q, K and V of new tokens. Stores the dimensions that
 * compression keeps. */
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
    int32_t d_head;             /* dimensions before compression; 16, 32 .. 256 */
    int32_t batch, n_tokens;    /* requests, and new tokens of all requests */
    const int32_t *token_start; /* Device [batch]: first row of request b in x, increasing. */
    /* [batch] in device memory: number of new tokens of each request, and number of all its tokens
     * including these. */
    const int32_t *q_len, *kv_len;
    /* [batch] in device memory: index of each request's first query in Q; NULL in decode. */
    const int32_t *q_start;
    int32_t n_q8;              /* rows of Q in layout BLOCKED; 0 in decode */
    const int32_t *page_table; /* device [batch][max_pages] */
    int32_t max_pages;
    /* [batch] on the device, for decode only: RoPE position of each request's new token. NULL:
     * position kv_len - 1. */
    const uint32_t *position;
    /* If 1, token_start, kv_len, position and page_table must be complete before the preceding
     * kernel starts. The launch may then read them before that kernel ends. Decode only. */
    int32_t lists_ready;
    const void *x; /* Device [n_tokens][(n_heads + 2 n_kv_heads) * d_head]: Q, K, V before RoPE. */
    /* If 1, each head's V in the input `x` has only its d_v kept columns. If 0, it has d_head
     * columns. */
    int32_t v_is_cut;
    /* [max position][rope_dim / 2] Cosines and sines in device memory, or NULL without RoPE. */
    const float *rope_cos, *rope_sin;
    int32_t rope_dim;         /* leading dims that RoPE rotates; even, at most d_head */
    int32_t rope_interleaved; /* rotated pairs are (i, i + rope_dim/2) if 0, (2i, 2i+1) if 1 */
    /* Rotation matrices on the device, [d_head][d_qk] per KV head. NULL: the identity. */
    const void *r_qk;
    const void *r_v; /* device, [d_head][d_v] per KV head; if NULL, V is only truncated */
    void *q, *pool;  /* outputs */
    /* Outputs of a decode launch, or NULL: GPU time in ns at which the launch starts and ends. The
     * caller zeroes *ended. */
    unsigned long long *began, *ended;
} kvd_append_args;

/* Queues kernels that store Q, K, V. Returns cudaErrorInvalidValue if `args` is not supported. */
cudaError_t kvd_append(const kvd_append_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
