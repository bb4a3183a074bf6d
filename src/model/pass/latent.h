/*
 * Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1) in its absorbed form.
 *
 * The cache of a token with hidden state x is the row [k_rope | c]. All heads share the rotated key
 * k_rope of rope_dims dimensions and the latent c = norm(W_DKV x). Head h has the query [q_rope |
 * q_nope W_UK] and the value c. The head's output is then multiplied by W_UV.
 *
 * Attention and caches see one KV head of d_head = rope_dims + latent dimensions. In rows of V the
 * first rope_dims dimensions are 0.
 */
#ifndef KVD_MODEL_PASS_LATENT_H
#define KVD_MODEL_PASS_LATENT_H

#include "model/pass/layer.h"

/* Epsilon of the norms inside latent attention, whatever rms_norm_eps of config.json is. */
#define KVD_LATENT_EPS 1e-6

/* Returns the floats of scratch per token that latent attention needs; 0 for other models. */
size_t kvd_latent_scratch(const kvd_config *c);

/*
 * Computes Q, K and V before RoPE from x [rows][d_model], the layer's input after its norm. Does
 * not write out->q_pre and out->k_pre. scratch [rows][kvd_latent_scratch].
 */
void kvd_latent_project(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                        size_t rows, float *scratch, const kvd_layer_qkv *out);

/*
 * Computes values [rows][n_heads][d_value] from the attention output o [rows][n_heads][d_head]:
 * each head's latent part times its W_UV.
 */
void kvd_latent_values(const kvd_config *c, const kvd_layer_weights *w, const float *o, size_t rows,
                       float *values);

/*
 * Writes, for latent attention, the matrices of kvd_forward_weights_o and kvd_forward_weights_v.
 * part [KVD_LAYER_WEIGHTS] are the weights of a layer; w_o or w_v may be NULL. Returns 0, or -1
 * with *err if memory runs out.
 *
 * Let c be the latent. In both results, the rows of the rope_dims rotated dimensions are 0. The
 * other rows are:
 *
 *   w_o [n_heads][d_head][d_model]  the map from c to the residual stream through head h: row j is
 *                                   column j of W_O^h W_UV^h. W_UV maps c to the head's values, and
 *                                   W_O^h maps these to the output.
 *   w_v [d_head][d_model]           the map from the layer's normed input to c: rows of W_DKV, each
 *                                   multiplied by the gain of the latent's norm
 *
 * The norm of the latent also divides by the latent's rms, a number per token, which w_v does not
 * contain.
 */
int kvd_latent_weights(const kvd_config *c, const kvd_weight *part, float *w_o, float *w_v,
                       kvd_err *err);

/*
 * Returns the number of multiplications by weights per token and layer, without attention scores.
 */
double kvd_latent_multiplications(const kvd_config *c);

#endif
