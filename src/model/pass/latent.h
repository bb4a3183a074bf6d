/*
 * Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1) in its absorbed form.
 *
 * A token's cache is the row [k_rope | c]: a rotated key of rope_dims dimensions that all heads
 * share, and the latent c = norm(W_DKV x). Head h has the query [q_rope | q_nope W_UK] and the
 * value c, so its scores and its output equal those of the expanded keys [k_rope | W_UK c] and
 * values W_UV c, after the output is multiplied by W_UV. Attention and caches see one KV head of
 * d_head = rope_dims + latent dimensions; in rows of V the first rope_dims dimensions are 0.
 */
#ifndef KVD_MODEL_PASS_LATENT_H
#define KVD_MODEL_PASS_LATENT_H

#include "model/pass/layer.h"

/*
 * Epsilon of the norms inside latent attention (of the latent and of the low-rank query). It does
 * not follow rms_norm_eps.
 */
#define KVD_LATENT_EPS 1e-6

/*
 * Returns the number of floats of scratch per row that the functions below need; 0 for models
 * without latent attention.
 */
size_t kvd_latent_scratch(const kvd_config *c);

/*
 * Computes Q, K and V before RoPE of the layer's normed input x [rows][d_model] into *out; the
 * copies q_pre and k_pre are not written. scratch [rows][kvd_latent_scratch].
 */
void kvd_latent_project(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                        size_t rows, float *scratch, const kvd_layer_qkv *out);

/*
 * Computes values [rows][n_heads][d_value] from the attention output o [rows][n_heads][d_head],
 * by W_UV of each head.
 */
void kvd_latent_values(const kvd_config *c, const kvd_layer_weights *w, const float *o, size_t rows,
                       float *values);

/*
 * Writes the matrices that a pair of V and W_O needs (kvd_forward_weights_o and _v) from the
 * weights of a layer, part [KVD_LAYER_WEIGHTS]; w_o or w_v may be NULL.
 *   w_o [n_heads][d_head][d_model]  W_O^h W_UV^h with rows of zeros for the rotated dimensions
 *   w_v [d_head][d_model]           rows of W_DKV, each times the gain of the latent's norm, after
 *                                   rows of zeros
 * The factor 1 / rms of the latent's norm, a number per token, is not in w_v. Returns 0, or -1 with
 * *err if memory runs out.
 */
int kvd_latent_weights(const kvd_config *c, const kvd_weight *part, float *w_o, float *w_v,
                       kvd_err *err);

/*
 * Returns the number of multiplications by weights per token in latent attention, without those of
 * scores.
 */
double kvd_latent_multiplications(const kvd_config *c);

#endif
