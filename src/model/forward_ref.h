/*
 * The same forward pass in plain double precision: loops that a reader can check against the
 * formulas, no BLAS, no threads, one sequence. For tests and for people who distrust forward.c.
 */
#ifndef KVD_MODEL_FORWARD_REF_H
#define KVD_MODEL_FORWARD_REF_H

#include "model/checkpoint.h"

/*
 * id [n] -> logits [n][vocab_size], and, where not NULL, per layer
 *   q_pre, q [n_layers][n][n_heads][d_head], k_pre, k, v [n_layers][n][n_kv_heads][d_head],
 *   o [n_layers][n][n_heads][d_head] attention output before W_O.
 */
typedef struct {
    double *logits, *q_pre, *k_pre, *q, *k, *v, *o;
    /* May change K before RoPE and V of a layer, both [n][n_kv_heads][d_head], before they are used; NULL: nobody does. So gradients can
     * be told from differences of logits. */
    void (*nudge)(void *ctx, size_t layer, double *k_pre, double *v);
    void *ctx;
} kvd_forward_ref_out;

int kvd_forward_ref(const kvd_checkpoint *c, const uint32_t *id, size_t n, const kvd_forward_ref_out *out,
                    kvd_err *err);

#endif
