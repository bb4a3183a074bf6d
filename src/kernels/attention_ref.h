/*
 * Reference causal attention with float64 sums on host arrays. Heads are row-major matrices, one
 * after another (layout PLAIN of kernels/layout.h).
 */
#ifndef KVD_KERNELS_ATTENTION_REF_H
#define KVD_KERNELS_ATTENTION_REF_H

#include "common/err.h"
#include "kernels/layout.h"

typedef struct {
    int group;
    size_t n_q, n_kv; /* sums of q_len and of kv_len over all requests */
    size_t max_q, max_kv;
    size_t q_elements, k_elements, v_elements, o_elements;
    /* [n_heads] first element of each query head in Q and in O */
    size_t q_at[KVD_HEADS_MAX], o_at[KVD_HEADS_MAX];
    /* [n_kv_heads] first element of each KV head in K and in V */
    size_t k_at[KVD_HEADS_MAX], v_at[KVD_HEADS_MAX];
} kvd_attn_plain;

/*
 * Computes where each head starts in host arrays Q, K, V and O (layout PLAIN of kernels/layout.h).
 * Fails if a size is out of range, n_kv_heads does not divide n_heads, or a q_len exceeds its
 * kv_len.
 */
int kvd_attn_plain_make(const kvd_attn_heads *heads, const kvd_attn_batch *batch,
                        kvd_attn_plain *plain, kvd_err *err);

/*
 * Computes causal attention, within a sliding window if `heads` has one. Rows of K and V that no
 * query attends to are not read. PLAIN (kernels/layout.h): one row-major matrix per head.
 *
 * - `q`, `k`, `v`: inputs, PLAIN, float32.
 * - `out`: output, PLAIN O, float64.
 * - `lse` [n_heads][n_q]: output, natural log of the softmax denominators. May be NULL.
 */
int kvd_attention_ref(const kvd_attn_heads *heads, const kvd_attn_batch *batch, const float *q,
                      const float *k, const float *v, double *out, double *lse, kvd_err *err);
/*
 * Like kvd_attention_ref, but adds exp(sinks[h]) to the softmax denominators of query head h.
 * `sinks` [n_heads] may be NULL.
 */
int kvd_attention_ref_sinks(const kvd_attn_heads *heads, const kvd_attn_batch *batch,
                            const float *sinks, const float *q, const float *k, const float *v,
                            double *out, double *lse, kvd_err *err);

/* Computes one row of attention: `out` [d_v] for query t of query head h of request b. */
int kvd_attention_ref_row(const kvd_attn_heads *heads, const kvd_attn_batch *batch, int b, int h,
                          size_t t, const float *q, const float *k, const float *v, double *out,
                          kvd_err *err);

/* RoPE angles: pair i at position s has cosine cos[s * dim/2 + i] and sine sin[s * dim/2 + i]. */
typedef struct {
    const float *cos, *sin; /* [positions][dim / 2], or NULL without RoPE */
    int dim;                /* number of leading dims that RoPE rotates; even, at most d_head */
    int interleaved;        /* rotated pairs are (i, i + dim/2) if 0, (2i, 2i+1) if 1 */
} kvd_rope_table;

/*
 * Applies RoPE, rotation and truncation to Q, K and V of new tokens; n_q is the sum of q_len.
 *
 * - `token_start` [batch]: input, first row of request b in `x`.
 * - `x` [n_q][(n_heads + 2 n_kv_heads) d_head]: input, Q, K, V before RoPE.
 * - `r_qk`, `r_v`: inputs, [d_head][d_qk] or [d_head][d_v] per KV head. NULL: identity.
 * - `q`: output, PLAIN Q, float64: first d_qk columns of rope(x_q) R_qk.
 * - `k`, `v`: outputs, [n_kv_heads][n_q][d_qk or d_v], float64, new tokens alone.
 *
 * Query t of request b has position kv_len[b] - q_len[b] + t.
 */
int kvd_append_ref(const kvd_attn_heads *heads, const kvd_attn_batch *batch,
                   const int32_t *token_start, const float *x, const kvd_rope_table *rope,
                   const float *r_qk, const float *r_v, double *q, double *k, double *v,
                   kvd_err *err);

#endif
