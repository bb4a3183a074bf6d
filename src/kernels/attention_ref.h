/*
 * Reference implementation of causal attention in plain C with float64 sums. Every kernel is tested
 * against it. Tensors have the layout PLAIN of kernels/layout.h. All functions return 0, or -1 with
 * *err filled.
 */
#ifndef KVD_KERNELS_ATTENTION_REF_H
#define KVD_KERNELS_ATTENTION_REF_H

#include "common/err.h"
#include "kernels/layout.h"

/*
 * Sizes of Q, K, V and O in the PLAIN layout, and where the rows of every head begin in them. Heads
 * may have any number of dimensions from 1 on.
 */

typedef struct {
    int group;            /* number of query heads per KV head */
    size_t n_q, n_kv;     /* sums of q_len and of kv_len over all requests */
    size_t max_q, max_kv; /* largest q_len and largest kv_len of a request */
    /* number of elements over all heads and rows */
    size_t q_elements, k_elements, v_elements, o_elements;
    /* [n_heads] First element of query head h in Q and in O. */
    size_t q_at[KVD_HEADS_MAX], o_at[KVD_HEADS_MAX];
    /* [n_kv_heads] First element of KV head g in K and in V. */
    size_t k_at[KVD_HEADS_MAX], v_at[KVD_HEADS_MAX];
} kvd_attn_plain;

/*
 * Fills *plain. Fails if a number of heads, dimensions or requests is out of range, n_kv_heads does
 * not divide n_heads, or a request has more queries than keys.
 */
int kvd_attn_plain_make(const kvd_attn_heads *heads, const kvd_attn_batch *batch,
                        kvd_attn_plain *plain, kvd_err *err);

/*
 * Computes attention of every query, within the sliding window of `heads` if it has one.
 *
 * - `q`, `k`, `v`: inputs, PLAIN Q, K and V, float32.
 * - `out`: output, PLAIN O, float64.
 * - `lse`: output, [n_heads][n_q], natural logarithm of the sum of the exponentials of the scaled
 *   scores. May be NULL.
 *
 * NaN in a row that a query attends to gives NaN. Rows that no query attends to are not read.
 */
int kvd_attention_ref(const kvd_attn_heads *heads, const kvd_attn_batch *batch, const float *q,
                      const float *k, const float *v, double *out, double *lse, kvd_err *err);
/*
 * Does what kvd_attention_ref does, with attention sinks: exp(sinks[h]) is added to the softmax
 * denominators of query head h, and `lse` includes it. If `sinks` is NULL, there are no sinks.
 */
int kvd_attention_ref_sinks(const kvd_attn_heads *heads, const kvd_attn_batch *batch,
                            const float *sinks, const float *q, const float *k, const float *v,
                            double *out, double *lse, kvd_err *err);

/*
 * Computes the attention output of query t of query head h of request b: `out` [d_v], float64.
 * Tests use this function to check samples of problems for which kvd_attention_ref would take
 * hours.
 */
int kvd_attention_ref_row(const kvd_attn_heads *heads, const kvd_attn_batch *batch, int b, int h,
                          size_t t, const float *q, const float *k, const float *v, double *out,
                          kvd_err *err);

/*
 * RoPE angles. At position s, the i-th pair of rotated dims has the angle with cosine cos[s * dim/2
 * + i] and sine sin[s * dim/2 + i].
 */
typedef struct {
    const float *cos, *sin; /* [positions][dim / 2]; NULL: no RoPE */
    int dim;                /* number of leading dims that RoPE rotates; even, at most d_head */
    int interleaved;        /* pairs of dims that RoPE rotates. 0: (i, i + dim/2); 1: (2i, 2i+1) */
} kvd_rope_table;

/*
 * Computes Q, K and V of new tokens as the cache stores them: RoPE, rotation, truncation.
 *
 * - `token_start`: input, [batch], first row of request b in `x`.
 * - `x`: input, [n_q][(n_heads + 2 n_kv_heads) d_head], Q, K and V of the new tokens before RoPE.
 * - `r_qk`, `r_v`: inputs, one row-major rotation [d_head][d_qk] or [d_head][d_v] per KV head, head
 *   after head. If NULL, the first d_qk or d_v columns of the identity are used.
 * - `q`: output, PLAIN Q, float64: the first d_qk columns of rope(x_q) R_qk.
 * - `k`, `v`: outputs, [n_kv_heads][n_q][d_qk] and [n_kv_heads][n_q][d_v], float64: K and V of the
 *   new tokens alone, one request after another.
 *
 * n_q is the sum of q_len. Query t of request b has position kv_len[b] - q_len[b] + t.
 */
int kvd_append_ref(const kvd_attn_heads *heads, const kvd_attn_batch *batch,
                   const int32_t *token_start, const float *x, const kvd_rope_table *rope,
                   const float *r_qk, const float *r_v, double *q, double *k, double *v,
                   kvd_err *err);

#endif
