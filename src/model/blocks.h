/*
 * The arithmetic blocks of all model families in float32. Rows are tokens.
 *
 * All threading is OpenMP's: a product is cut into one piece per thread and each piece is a
 * single-threaded cblas_sgemm, because the waiting threads of two pools take time from each
 * other. Called inside a parallel region, a block runs on the calling thread alone. For a fixed
 * number of threads the results of equal calls are equal bit for bit.
 */
#ifndef KVD_MODEL_BLOCKS_H
#define KVD_MODEL_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#include "model/config.h"

/* y [n][d] = x / sqrt(mean(x^2) + eps) * gain [d]; x and y may be the same. */
void kvd_rms_norm(const float *x, const float *gain, double eps, size_t n, size_t d, float *y);

/* y [n][d] = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * gain [d] + bias [d]; x and y may be
 * the same. */
void kvd_layer_norm(const float *x, const float *gain, const float *bias, double eps, size_t n, size_t d,
                    float *y);

/* y [n][out] = x [n][in] W^T, W [out][in] row-major as checkpoints store it. add: y += instead.
 * n, in and out are below 2^31. */
void kvd_linear(const float *x, const float *w, size_t n, size_t in, size_t out, float *y, int add);

/* The same into columns of a wider matrix: row i of y starts at y + i * ldy, ldy >= out. */
void kvd_linear_columns(const float *x, const float *w, size_t n, size_t in, size_t out, float *y, size_t ldy,
                        int add);

/* bias [d] added to every row of y [n][d]. */
void kvd_add_bias(float *y, const float *bias, size_t n, size_t d);

/*
 * Cosine and sine tables [n_positions][d_head/2], angles computed in float64 with the scaling of the
 * configuration, for sequences of seq_len tokens: longrope has one table up to rope_original_positions,
 * another beyond, and a factor on both; for the other scalings seq_len makes no difference.
 */
void kvd_rope_tables(const kvd_config *c, size_t seq_len, size_t n_positions, float *cosine, float *sine);

/* Angle per position of pair i < d_head/2: theta^(-2i/d_head), scaled. */
double kvd_rope_frequency(const kvd_config *c, size_t seq_len, size_t i);

/* Rotates x [n][n_heads][d_head] in place; position[i] is the row of the tables for row i. */
void kvd_rope_apply(const kvd_config *c, const float *cosine, const float *sine, const uint32_t *position,
                    size_t n, size_t n_heads, float *x);

/* gate [n] = silu(gate) * up. */
void kvd_swiglu(float *gate, const float *up, size_t n);

/* x [n] = x Phi(x) with the normal distribution's Phi; by the approximation
 * x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)); max(x, 0). */
void kvd_gelu(float *x, size_t n);
void kvd_gelu_tanh(float *x, size_t n);
void kvd_relu(float *x, size_t n);

/* Causal softmax in place over scores [n][n] (row i sees columns 0..i), times scale first; the
 * rest of each row becomes 0. */
void kvd_causal_softmax(float *scores, size_t n, float scale);

/* One row of it: softmax of scale * row[from .. to-1], 0 in the rest of row [n]; from < to <= n. */
void kvd_softmax_row(float *row, size_t from, size_t to, size_t n, float scale);

/* Index of the first value of x [n] that is NaN or infinite; n when there is none. */
size_t kvd_first_nonfinite_f32(const float *x, size_t n);

#endif
