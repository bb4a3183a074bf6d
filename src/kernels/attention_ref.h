/*
 * Attention on heads of unequal width: the reference. Plain C, double accumulation, no tricks; what every kernel is
 * compared with. Causal; layouts and shapes as PLAIN in kernels/layout.h.
 */
#ifndef KVD_KERNELS_ATTENTION_REF_H
#define KVD_KERNELS_ATTENTION_REF_H

#include "common/err.h"
#include "kernels/layout.h"

/*
 *   q    PLAIN Q  in   float32        k, v  PLAIN K, V  in   float32
 *   out  PLAIN O  out  float64        lse   [n_heads][n_q] out, may be NULL: log sum exp of the scaled scores (natural log)
 *
 * Any width >= 1 (not only multiples of 16). Returns 0, or -1 with *err when a count, width or length is out of range
 * or memory runs out. NaN in a row that a query sees gives NaN; rows that no query sees are not read.
 */
int kvd_attention_ref(const kvd_attn_heads *heads, const kvd_attn_batch *batch, const float *q,
                      const float *k, const float *v, double *out, double *lse, kvd_err *err);

/* The same for one query row: request b, query head h, query t. out [d_v] float64. For spot checks of sizes
 * where the whole reference would take hours. */
int kvd_attention_ref_row(const kvd_attn_heads *heads, const kvd_attn_batch *batch, int b, int h, size_t t,
                          const float *q, const float *k, const float *v, double *out, kvd_err *err);

#endif
