/*
 * What stands between the QKV product and attention, in one kernel: RoPE on Q and K, rotation by R_qk, cut to the kept
 * widths, and the store of Q (blocked, or row-major for decode) and of K and V into the pages. V comes rotated (R_vw is folded
 * into W_V) and is cut and stored; with `r_v` it is rotated here. Layouts of kernels/layout.h.
 */
#ifndef KVD_KERNELS_CUDA_APPEND_H
#define KVD_KERNELS_CUDA_APPEND_H

#include <cuda_runtime_api.h>

#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int dtype; /* of x, r and the outputs: KVD_BF16 or KVD_F16                                  */
    kvd_attn_map map;
    int32_t d_head; /* 16 .. 128, multiple of 16                                                     */
    int32_t batch,
        n_tokens; /* new tokens of all requests, packed: request b has q_len[b]                   */
    const int32_t
        *token_start; /* device [batch]: first row of request b in x, rising                           */
    const int32_t *q_len,
        *kv_len; /* device [batch]; kv_len counts the new tokens                              */
    const int32_t *
        q_start; /* device [batch] rows of blocked Q (prefill), or NULL: Q is row-major [batch][q_pitch], q_len = 1 */
    int32_t n_q8; /* rows of blocked Q; 0 for decode                                               */
    const int32_t
        *page_table; /* device [batch][max_pages]                                                     */
    int32_t max_pages;
    const uint32_t *
        position; /* device [batch], of decode alone: of the new row in its sequence, for RoPE; NULL: kv_len - 1 */
    const void *x; /* device [n_tokens][(n_heads + 2 n_kv_heads) * d_head]: Q, K, V before RoPE      */
    int32_t
        v_is_cut; /* 1: x has only the kept columns of V: [n_tokens][(n_heads + n_kv_heads) * d_head + sum of d_v] */
    const float *rope_cos,
        *rope_sin;    /* device [max position][rope_dim / 2]; NULL: no RoPE                     */
    int32_t rope_dim; /* leading dims that turn, <= d_head, even                                       */
    int32_t
        rope_interleaved; /* 0: pairs (i, i + rope_dim/2) as Hugging Face Llama; 1: pairs (2i, 2i+1)        */
    const void *
        r_qk; /* device, per KV head [d_head][d_qk] row-major, head after head; NULL: no rotation, the first d_qk dims */
    const void *r_v; /* likewise [d_head][d_v]; NULL: V is cut only                                   */
    void *q, *pool;  /* out                                                                           */
    /* Device, of decode alone, or NULL: %globaltimer when the kernels before had ended, and the largest at the end of a CTA (zero before). */
    unsigned long long *began, *ended;
} kvd_append_args;

cudaError_t kvd_append(const kvd_append_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
