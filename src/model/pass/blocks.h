/* Operations of the forward pass in float32 on the CPU. Row i of x and y belongs to token i.
 *
 * Equal calls with equal numbers of threads give equal bits. */
#ifndef KVD_MODEL_PASS_BLOCKS_H
#define KVD_MODEL_PASS_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/config.h"

/* Computes y [n][d] = x / sqrt(mean(x^2) + eps) * gain [d]; y may be x. */
void kvd_rms_norm(const float *x, const float *gain, double eps, size_t n, size_t d, float *y);

/* Computes y [n][d] = (x - mean(x)) / sqrt(variance(x) + eps) * gain + bias; y may be x. */
void kvd_layer_norm(const float *x, const float *gain, const float *bias, double eps, size_t n,
                    size_t d, float *y);

/* Computes the product x [n][in] W^T and writes it to y [n][out] or, if `add`, adds it to y. All
 * sizes must be below 2^31. */
void kvd_linear(const float *x, const float *w, size_t n, size_t in, size_t out, float *y, int add);

/* Like kvd_linear, but writes to columns of a wider matrix: row i of the result begins at y + i *
 * ldy. */
void kvd_linear_columns(const float *x, const float *w, size_t n, size_t in, size_t out, float *y,
                        size_t ldy, int add);

void kvd_scale(float *x, size_t n, float factor);

void kvd_add_bias(float *y, const float *bias, size_t n, size_t d);

/* Fills the RoPE tables `cosine` and `sine` [n_positions][d_head/2]. `local` selects the base of
 * layers with a sliding window. */
void kvd_rope_tables(const kvd_config *c, bool local, size_t seq_len, size_t n_positions,
                     float *cosine, float *sine);

bool kvd_rope_local(const kvd_config *c, int layer);

/* Returns the RoPE frequency of the i-th pair of dimensions, in radians per position, or 0 if the
 * pair is not rotated. `local` selects the frequencies of layers with a sliding window. */
double kvd_rope_frequency(const kvd_config *c, bool local, size_t seq_len, size_t i);

/* Rotates x [n][n_heads][d_head] in place by row position[i] of the tables. */
void kvd_rope_apply(const kvd_config *c, const float *cosine, const float *sine,
                    const uint32_t *position, size_t n, size_t n_heads, float *x);

/* Applies the activation function `a` to x [n] in place. With a gated function, then multiplies x
 * by `up` [n], unless `up` is NULL. */
void kvd_activate(kvd_activation a, float *x, const float *up, size_t n);

/* Computes gate = g sigmoid(alpha g) (1 + u), g = min(gate, limit), u = up clamped to +-limit. */
void kvd_swiglu_clamped(float *gate, const float *up, size_t n, float alpha, float limit);

/* Replaces x by softcap * tanh(scale * x / softcap); softcap must be above 0. */
void kvd_softcap(float *x, size_t n, float scale, float softcap);

/* Computes the softmax of one query in place. On entry, `row` [n] has the query's dot products with
 * n keys. On return, it has the probabilities of keys from .. to - 1, and 0 for all other keys. */
void kvd_softmax_row(float *row, size_t from, size_t to, size_t n, kvd_scores scores);

/* Returns the index of the first NaN or infinity in x [n], or n if all numbers are finite. */
size_t kvd_first_nonfinite_f32(const float *x, size_t n);

#endif
