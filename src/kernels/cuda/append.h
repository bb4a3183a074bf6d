/*
 * Applies RoPE and rotation to Q, K and V of new tokens, keeps the first dimensions of each head,
 * and stores them (CUDA). If r_v is NULL, V is taken as already rotated by W_V.
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
    int32_t d_head;             /* dimensions before compression; 16, 32 .. 256 */
    int32_t batch, n_tokens;    /* requests, and new tokens of all requests */
    const int32_t *token_start; /* Device [batch]: first row of request b in x, increasing. */
    /*
     * [batch] in device memory: number of new tokens of each request, and of all tokens with the
     * new ones.
     */
    const int32_t *q_len, *kv_len;
    /*
     * [batch] in device memory, prefill: first row of each request in Q. NULL: decode, Q
     * [batch][q_pitch].
     */
    const int32_t *q_start;
    int32_t n_q8;              /* rows of Q in layout BLOCKED; 0 in decode */
    const int32_t *page_table; /* device [batch][max_pages] */
    int32_t max_pages;
    /* Decode only, [batch] in device memory: RoPE position of the new token; if NULL, kv_len - 1 */
    const uint32_t *position;
    /*
     * Decode only. 1: the launch may read token_start, kv_len, position and page_table before
     * preceding kernels end. A kernel without programmatic launch must run between the kernel that
     * writes these arrays and this launch.
     */
    int32_t lists_ready;
    const void *x; /* Device [n_tokens][(n_heads + 2 n_kv_heads) * d_head]: Q, K, V before RoPE. */
    /* If 1, V in x is truncated: x is [n_tokens][(n_heads + n_kv_heads) * d_head + sum of d_v]. */
    int32_t v_is_cut;
    /* Device [max position][rope_dim / 2], cosines and sines of RoPE, or NULL without RoPE. */
    const float *rope_cos, *rope_sin;
    int32_t rope_dim;         /* leading dims that RoPE rotates; even, at most d_head */
    int32_t rope_interleaved; /* rotated pairs are (i, i + rope_dim/2) if 0, (2i, 2i+1) if 1 */
    /*
     * Rotation matrices of Q and K, device, row-major [d_head][d_qk] per KV head. NULL: the first
     * d_qk dims are kept.
     */
    const void *r_qk;
    const void *r_v; /* device, [d_head][d_v] per KV head; if NULL, V is only truncated */
    void *q, *pool;  /* outputs */
    /*
     * Decode only, may be NULL. The kernel writes its start and end in ns of %globaltimer. The
     * caller must zero *ended first.
     */
    unsigned long long *began, *ended;
} kvd_append_args;

/* Launches without waiting. Returns cudaErrorInvalidValue if `args` is outside its limits. */
cudaError_t kvd_append(const kvd_append_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
