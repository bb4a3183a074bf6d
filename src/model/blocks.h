/* The arithmetic blocks of the Llama family in float32. Rows are tokens; threads by OpenMP and
 * OpenBLAS. blocks_ref.h holds the plain double-precision versions. */
#ifndef KVD_MODEL_BLOCKS_H
#define KVD_MODEL_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#include "model/config.h"

/* y [n][d] = x / sqrt(mean(x^2) + eps) * gain [d]; x and y may be the same. */
void kvd_rms_norm(const float *x, const float *gain, double eps, size_t n, size_t d, float *y);

/* y [n][out] = x [n][in] W^T, W [out][in] row-major as checkpoints store it. add: y += instead. */
void kvd_linear(const float *x, const float *w, size_t n, size_t in, size_t out, float *y, int add);

/* Cosine and sine tables [max_positions][d_head/2], angles computed in float64 with the
 * scaling of the configuration. */
void kvd_rope_tables(const kvd_config *c, size_t n_positions, float *cosine, float *sine);

/* Rotates x [n][n_heads][d_head] in place; position[i] is the position of row i. */
void kvd_rope_apply(const kvd_config *c, const float *cosine, const float *sine, const uint32_t *position,
                    size_t n, size_t n_heads, float *x);

/* gate [n] = silu(gate) * up. */
void kvd_swiglu(float *gate, const float *up, size_t n);

/* Causal softmax in place over scores [n][n] (row i sees columns 0..i), times scale first; the
 * rest of each row becomes 0. */
void kvd_causal_softmax(float *scores, size_t n, float scale);

#endif
