/*
 * Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1) in its absorbed form:
 *
 *   cached row      [k_rope | c] for all heads: rotated key, and latent c = norm(W_DKV x)
 *   query of head h [q_rope | q_nope W_UK]
 *   value of head h c; the output of the head is then multiplied by W_UV
 *
 * Caches see one KV head of d_head = rope_dims + latent dimensions; V begins with rope_dims zeros.
 */
#ifndef KVD_MODEL_PASS_LATENT_H
#define KVD_MODEL_PASS_LATENT_H

#include "model/pass/layer.h"

/* Epsilon of the norms inside latent attention. It does not depend on rms_norm_eps. */
#define KVD_LATENT_EPS 1e-6

/* Returns how many floats of scratch memory latent attention needs per token. */
size_t kvd_latent_scratch(const kvd_config *c);

/*
 * Computes Q, K and V of latent attention before RoPE, from x [rows][d_model], the layer's input
 * after its norm.
 */
void kvd_latent_project(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                        size_t rows, float *scratch, const kvd_layer_qkv *out);

/*
 * Computes the values [rows][n_heads][d_value]: the attention output o of each head multiplied by
 * W_UV.
 */
void kvd_latent_values(const kvd_config *c, const kvd_layer_weights *w, const float *o, size_t rows,
                       float *values);

/*
 * Writes the matrices of kvd_forward_weights_o and kvd_forward_weights_v; w_o or w_v may be NULL.
 * Rows of rotated dimensions are 0. For the latent c, the other rows are:
 *
 *   w_o [n_heads][d_head][d_model]  map c to the residual stream: row j is column j of
 *                                   W_O^h W_UV^h
 *   w_v [d_head][d_model]           map the normed input to c: W_DKV times the norm's gain
 */
int kvd_latent_weights(const kvd_config *c, const kvd_weight *part, float *w_o, float *w_v,
                       kvd_err *err);

/* Returns how many multiplications by weights latent attention takes per token and layer. */
double kvd_latent_multiplications(const kvd_config *c);

#endif
