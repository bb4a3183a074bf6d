/*
 * Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1), absorbed form:
 *
 *   cached row      [k_rope | c], shared by all heads: rotated key, latent c = norm(W_DKV x)
 *   query of head h [q_rope | q_nope W_UK]
 *   value of head h c; the output is then multiplied by W_UV
 *
 * Caches see one KV head of d_head = rope_dims + latent; V begins with rope_dims zeros.
 */
#ifndef KVD_MODEL_PASS_LATENT_H
#define KVD_MODEL_PASS_LATENT_H

#include "model/pass/layer.h"

/* Epsilon of the norms inside latent attention, independent of rms_norm_eps. */
#define KVD_LATENT_EPS 1e-6

/* Returns the floats of scratch per token that latent attention needs; 0 for other models. */
size_t kvd_latent_scratch(const kvd_config *c);

/*
 * Computes Q, K, V before RoPE from normed input x [rows][d_model]. scratch
 * [rows][kvd_latent_scratch].
 */
void kvd_latent_project(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                        size_t rows, float *scratch, const kvd_layer_qkv *out);

/* values [rows][n_heads][d_value] = latent part of o [rows][n_heads][d_head] times W_UV. */
void kvd_latent_values(const kvd_config *c, const kvd_layer_weights *w, const float *o, size_t rows,
                       float *values);

/*
 * kvd_forward_weights_o and _v from part [KVD_LAYER_WEIGHTS]; w_o or w_v may be NULL. Rows of
 * rotated dimensions are 0; others, for latent c:
 *
 *   w_o [n_heads][d_head][d_model]  c to residual stream: row j is column j of W_O^h W_UV^h
 *   w_v [d_head][d_model]           normed input to c: W_DKV times the norm's gain, without its
 *                                   division by the rms
 */
int kvd_latent_weights(const kvd_config *c, const kvd_weight *part, float *w_o, float *w_v,
                       kvd_err *err);

/* Returns multiplications by weights per token and layer, without attention scores. */
double kvd_latent_multiplications(const kvd_config *c);

#endif
