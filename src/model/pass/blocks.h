/*
 * The operations of the forward pass of all model families, in float32 on the CPU. Each row of a
 * matrix x or y belongs to one token.
 *
 * Products are divided among OpenMP threads, each with a single-threaded cblas_sgemm. If called
 * inside a parallel region, a function runs on the calling thread alone. For a fixed number of
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
 * Computes y [n][out] = x [n][in] W^T with the row-major matrix W [out][in]. If `add` is not 0,
 * adds the product to y. n, in and out are below 2^31.
 */
void kvd_linear(const float *x, const float *w, size_t n, size_t in, size_t out, float *y, int add);

/*
 * Computes the product of kvd_linear, and writes it to columns of a wider matrix: row i starts at y
 * + i * ldy, and ldy is at least `out`.
 */
void kvd_linear_columns(const float *x, const float *w, size_t n, size_t in, size_t out, float *y,
                        size_t ldy, int add);

void kvd_scale(float *x, size_t n, float factor);

void kvd_add_bias(float *y, const float *bias, size_t n, size_t d);

/*
 * Fills the tables `cosine` and `sine` [n_positions][d_head/2]. seq_len, the length of the
 * sequence, matters only for LongRoPE, which has other angles in long sequences. `local` selects
 * the frequencies of layers with a sliding window (kvd_rope_local). Dimensions that RoPE does not
 * rotate have cosine 1 and sine 0.
 */
void kvd_rope_tables(const kvd_config *c, bool local, size_t seq_len, size_t n_positions,
                     float *cosine, float *sine);

/*
 * Returns true if the model has a separate RoPE base for layers with a sliding window, and `layer`
 * is such a layer, or if `layer` is one of the layers without RoPE, whose frequencies are 0.
 */
bool kvd_rope_local(const kvd_config *c, int layer);

/*
 * Returns RoPE frequency i, the angle per position: theta^(-2i/dims) without scaling, for i <
 * d_head/2. Returns 0 for dimensions that RoPE does not rotate. `local` selects the frequencies of
 * layers with a sliding window; seq_len is the length of the sequence.
 */
double kvd_rope_frequency(const kvd_config *c, bool local, size_t seq_len, size_t i);

/*
 * Rotates x [n][n_heads][d_head] in place; position[i] is the row of the tables for token i. With
 * KVD_ROPE_HALF, dimensions i and i + dims/2 are rotated together, where dims is the number of
 * rotated dimensions of a head.
 */
void kvd_rope_apply(const kvd_config *c, const float *cosine, const float *sine,
                    const uint32_t *position, size_t n, size_t n_heads, float *x);

/*
 * Activations with a gate. kvd_swiglu: gate [n] = silu(gate) * up. kvd_geglu_tanh: gate [n] =
 * gelu(gate) * up, with the gelu of kvd_gelu_tanh.
 */
void kvd_swiglu(float *gate, const float *up, size_t n);
void kvd_geglu_tanh(float *gate, const float *up, size_t n);
/*
 * Computes gate [n] = g sigmoid(alpha g) (1 + u), with g = min(gate, limit) and u = up clamped to
 * -limit .. limit (gpt-oss, arXiv:2508.10925).
 */
void kvd_swiglu_clamped(float *gate, const float *up, size_t n, float alpha, float limit);

/*
 * Activations in place. kvd_gelu: x Phi(x), where Phi is the cumulative normal distribution.
 * kvd_gelu_tanh: x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)). kvd_relu: max(x, 0).
 * kvd_relu2: max(x, 0)^2.
 */
void kvd_gelu(float *x, size_t n);
void kvd_gelu_tanh(float *x, size_t n);
void kvd_relu(float *x, size_t n);
void kvd_relu2(float *x, size_t n);

/* Computes x [n] = softcap * tanh(scale * x / softcap) in place; softcap is above 0. */
void kvd_softcap(float *x, size_t n, float scale, float softcap);

/*
 * Computes in place the softmax of elements from .. to-1 of row [n], the products q . k of one
 * query. The other elements become 0; from < to <= n.
 */
void kvd_softmax_row(float *row, size_t from, size_t to, size_t n, kvd_scores scores);

/* Returns the index of the first NaN or infinite value, or n if there is none. */
size_t kvd_first_nonfinite_f32(const float *x, size_t n);

#endif
