/*
 * RoPE, rotation and cut of Q, K and V: the reference. Plain C, double accumulation; what kernels/cuda/append.h is compared with.
 */
#ifndef KVD_KERNELS_APPEND_REF_H
#define KVD_KERNELS_APPEND_REF_H

#include "common/err.h"
#include "kernels/layout.h"

/* Angles of RoPE: pair i at position s turns by the angle whose cosine is cos[s * dim/2 + i]. */
typedef struct {
    const float *cos,
        *sin;        /* [positions][dim / 2]; NULL: no RoPE                                              */
    int dim;         /* leading dims that turn, even, <= d_head                                          */
    int interleaved; /* 0: pairs (i, i + dim/2); 1: pairs (2i, 2i+1)                                     */
} kvd_rope_table;

/*
 *   token_start [batch]  in  first row of request b in x
 *   x   [n_q][(n_heads + 2 n_kv_heads) d_head]  in  Q, K, V of the new tokens before RoPE
 *   r_qk, r_v            in  per KV head [d_head][d_qk], [d_head][d_v] row-major, head after head; NULL: the first d columns of the identity
 *   q   PLAIN Q          out float64: cut(rope(x_q) R_qk)
 *   k   [n_kv_heads][n_q][d_qk], v  [n_kv_heads][n_q][d_v]  out  float64: K and V of the new tokens alone,
 *                            requests one after another
 *
 * n_q = sum of q_len. Query t of request b stands at position kv_len[b] - q_len[b] + t. Returns 0, or -1 with *err when a count, a
 * width or a length is out of range.
 */
int kvd_append_ref(const kvd_attn_heads *heads, const kvd_attn_batch *batch, const int32_t *token_start,
                   const float *x, const kvd_rope_table *rope, const float *r_qk, const float *r_v, double *q,
                   double *k, double *v, kvd_err *err);

#endif
