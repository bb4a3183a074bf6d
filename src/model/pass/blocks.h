/*
 * The arithmetic blocks of all model families in float32. Rows are tokens.
 *
 * All threading is OpenMP's: a product is cut into one piece per thread, and each piece is a
 * single-threaded cblas_sgemm, because a second thread pool's waiting threads would compete for the
 * cores. Inside a parallel region a block runs on the calling thread alone. For a fixed number of
 * threads, equal calls give bitwise equal results.
 */
#ifndef KVD_MODEL_PASS_BLOCKS_H
#define KVD_MODEL_PASS_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/config.h"

/* Computes y [n][d] = x / sqrt(mean(x^2) + eps) * gain [d]; x and y may be equal. */
void kvd_rms_norm(const float *x, const float *gain, double eps, size_t n, size_t d, float *y);

/*
 * Computes y [n][d] = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * gain [d] + bias [d]; x
 * and y may be equal.
 */
void kvd_layer_norm(const float *x, const float *gain, const float *bias, double eps, size_t n,
                    size_t d, float *y);

/*
 * Computes y [n][out] = x [n][in] W^T with W [out][in] row-major, as checkpoints store it. If `add`
 * is set, adds the product to y. n, in and out are below 2^31.
 */
void kvd_linear(const float *x, const float *w, size_t n, size_t in, size_t out, float *y, int add);

/*
 * Computes kvd_linear into columns of a wider matrix: row i of y starts at y + i * ldy, ldy >= out.
 */
void kvd_linear_columns(const float *x, const float *w, size_t n, size_t in, size_t out, float *y,
                        size_t ldy, int add);

/* Computes x [n] = factor * x in place. */
void kvd_scale(float *x, size_t n, float factor);

/* Adds bias [d] to every row of y [n][d]. */
void kvd_add_bias(float *y, const float *bias, size_t n, size_t d);

/*
 * Fills the cosine and sine tables [n_positions][d_head/2] for sequences of seq_len tokens. Angles
 * are computed in float64 with the scaling of the configuration. longrope has one table up to
 * rope_original_positions and another beyond; for the other scalings seq_len makes no difference.
 * `local` selects the tables of layers with a window (kvd_rope_local). Pairs beyond the rotated
 * dimensions have cosine 1 and sine 0.
 */
void kvd_rope_tables(const kvd_config *c, bool local, size_t seq_len, size_t n_positions,
                     float *cosine, float *sine);

/*
 * Returns true if this layer reads the RoPE tables of layers with a sliding window, because it has
 * a window and the model has a separate RoPE base for such layers.
 */
bool kvd_rope_local(const kvd_config *c, int layer);

/*
 * Returns the RoPE angle per position of dimension pair i < d_head/2: theta^(-2i/dims), scaled, or
 * 0 for pairs beyond the rotated dimensions.
 */
double kvd_rope_frequency(const kvd_config *c, bool local, size_t seq_len, size_t i);

/*
 * Applies RoPE to x [n][n_heads][d_head] in place; position[i] is the row of the tables for row i
 * of x. With KVD_ROPE_HALF, pair i is dimensions i and i + dims/2, where dims is the number of
 * rotated dimensions.
 */
void kvd_rope_apply(const kvd_config *c, const float *cosine, const float *sine,
                    const uint32_t *position, size_t n, size_t n_heads, float *x);

/*
 * Compute the product of an activated gate and up: gate [n] = silu(gate) * up, or gelu(gate) * up
 * with the gelu of kvd_gelu_tanh.
 */
void kvd_swiglu(float *gate, const float *up, size_t n);
void kvd_geglu_tanh(float *gate, const float *up, size_t n);
/*
 * Computes gate [n] = g sigmoid(alpha g) (1 + u), where g is min(gate, limit) and u is up clamped
 * to -limit .. limit (gpt-oss, arXiv:2508.10925).
 */
void kvd_swiglu_clamped(float *gate, const float *up, size_t n, float alpha, float limit);

/*
 * Apply an activation to x [n] in place. kvd_gelu: x Phi(x), where Phi is the cumulative normal
 * distribution. kvd_gelu_tanh: the approximation x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)).
 * kvd_relu: max(x, 0).
 */
void kvd_gelu(float *x, size_t n);
void kvd_gelu_tanh(float *x, size_t n);
void kvd_relu(float *x, size_t n);

/* Computes x [n] = softcap * tanh(scale * x / softcap) in place, softcap above 0. */
void kvd_softcap(float *x, size_t n, float scale, float softcap);

/*
 * Computes the causal softmax of the scores (kvd_config_scores) of products q . k in place,
 * product [n][n]: row i sees columns 0 .. i, and the rest of each row becomes 0.
 */
void kvd_causal_softmax(float *product, size_t n, kvd_scores scores);

/*
 * Computes the softmax of the scores of products row[from .. to-1] in place and zeroes the rest of
 * row [n]; from < to <= n.
 */
void kvd_softmax_row(float *row, size_t from, size_t to, size_t n, kvd_scores scores);

/* Returns the index of the first value of x [n] that is NaN or infinite, or n if there is none. */
size_t kvd_first_nonfinite_f32(const float *x, size_t n);

#endif
