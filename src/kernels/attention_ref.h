/* Reference causal attention on host arrays, with float64 sums. */
#ifndef KVD_KERNELS_ATTENTION_REF_H
#define KVD_KERNELS_ATTENTION_REF_H

#include "common/err.h"
#include "kernels/layout.h"

typedef struct {
    int group;
    size_t n_q, n_kv; /* sums of q_len and of kv_len over all requests */
    size_t max_q, max_kv;
    size_t q_elements, k_elements, v_elements, o_elements;
    /* [n_heads] Index of the first element of each query head in Q and in O. */
    size_t q_at[KVD_HEADS_MAX], o_at[KVD_HEADS_MAX];
    /* [n_kv_heads] Index of the first element of each KV head in K and in V. */
    size_t k_at[KVD_HEADS_MAX], v_at[KVD_HEADS_MAX];
} kvd_attn_plain;

/* Computes where each head starts in row-major arrays Q, K, V and O. Fails if a size is out of
 * range, n_kv_heads does not divide n_heads, or a q_len exceeds its kv_len. */
int kvd_attn_plain_make(const kvd_attn_heads *heads, const kvd_attn_batch *batch,
                        kvd_attn_plain *plain, kvd_err *err);

/* Computes causal attention, within a sliding window if `heads` has one.
 *
 * Inputs are float32 and `out` is float64, one row-major matrix per head. `lse` [n_heads][n_q],
 * which may be NULL, gets the natural logs of the softmax denominators. */
int kvd_attention_ref(const kvd_attn_heads *heads, const kvd_attn_batch *batch, const float *q,
                      const float *k, const float *v, double *out, double *lse, kvd_err *err);
/* Like kvd_attention_ref, but adds exp(sinks[h]) to each denominator unless `sinks` is NULL. */
int kvd_attention_ref_sinks(const kvd_attn_heads *heads, const kvd_attn_batch *batch,
                            const float *sinks, const float *q, const float *k, const float *v,
                            double *out, double *lse, kvd_err *err);

/* Computes the attention output [d_v] of query head h for the new token t of request b. */
int kvd_attention_ref_row(const kvd_attn_heads *heads, const kvd_attn_batch *batch, int b, int h,
                          size_t t, const float *q, const float *k, const float *v, double *out,
                          kvd_err *err);

/* Cosines and sines of RoPE, [position][dim / 2]. */
typedef struct {
    const float *cos, *sin; /* [positions][dim / 2], or NULL without RoPE */
    int dim;                /* number of leading dims that RoPE rotates; even, at most d_head */
    int interleaved;        /* rotated pairs are (i, i + dim/2) if 0, (2i, 2i+1) if 1 */
} kvd_rope_table;

/* Applies RoPE and rotation matrices to new tokens, and keeps the first dimensions of each head.
 *
 * `x` [n_q][(n_heads + 2 n_kv_heads) d_head] holds Q, K and V before RoPE; request b starts at
 * token_start[b]. `r_qk` and `r_v` hold a matrix [d_head][d_qk] or [d_head][d_v] per KV head; NULL
 * means the identity. The outputs are float64, one matrix per head, with the new tokens only. */
int kvd_append_ref(const kvd_attn_heads *heads, const kvd_attn_batch *batch,
                   const int32_t *token_start, const float *x, const kvd_rope_table *rope,
                   const float *r_qk, const float *r_v, double *q, double *k, double *v,
                   kvd_err *err);

#endif
