/* Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1) in its absorbed form.
 *
 * The cache holds per token a key with RoPE and a latent c, which all heads share. In attention,
 * key and latent form one KV head with K = (key, c) and V = (rope_dims zeros, c). */
#ifndef KVD_MODEL_PASS_LATENT_H
#define KVD_MODEL_PASS_LATENT_H

#include "model/pass/layer.h"

/* epsilon of the norms inside latent attention; rms_norm_eps does not apply to them */
#define KVD_LATENT_EPS 1e-6

/* Returns how many floats of scratch memory kvd_latent_project needs per token. */
size_t kvd_latent_scratch(const kvd_config *c);

/* Computes Q, K and V before RoPE from x [rows][d_model], the normed layer input. */
void kvd_latent_project(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                        size_t rows, float *scratch, const kvd_layer_qkv *out);

/* Multiplies the attention output `o` of each head by W_UV. values [rows][n_heads][d_value]
 * receives the products. */
void kvd_latent_values(const kvd_config *c, const kvd_layer_weights *w, const float *o, size_t rows,
                       float *values);

/* Writes two matrices of latent attention, whose latent is called c. A NULL matrix is skipped.
 * Matrix rows of dimensions with RoPE are 0.
 *
 * w_o [n_heads][d_head][d_model]  maps c to the residual stream
 * w_v [d_head][d_model]           maps the normed layer input to c */
int kvd_latent_weights(const kvd_config *c, const kvd_weight *part, float *w_o, float *w_v,
                       kvd_err *err);

/* Returns the number of multiplications by weights that latent attention takes per token and
 * layer. */
double kvd_latent_multiplications(const kvd_config *c);

#endif
