/*
 * Gradients of the blocks in blocks.h and attention.h, in float32. dy is the gradient of a loss with respect
 * to what a block returns, dx that with respect to what it takes; what the block took is given again.
 * Everything runs on the calling thread, between kvd_blas_serial and kvd_blas_restore.
 */
#ifndef KVD_MODEL_BLOCKS_BACK_H
#define KVD_MODEL_BLOCKS_BACK_H

#include <stddef.h>

#include "model/config.h"

/* x, dy [n][d], gain [d]; dx [n][d] += the gradient. dx is neither x nor dy. */
void kvd_rms_norm_back(const float *x, const float *gain, double eps, size_t n, size_t d, const float *dy,
                       float *dx);
void kvd_layer_norm_back(const float *x, const float *gain, double eps, size_t n, size_t d, const float *dy,
                         float *dx);

/* dx [n][in] = dy [n][out] W, W [out][in]. add: dx += instead. */
void kvd_linear_back(const float *dy, const float *w, size_t n, size_t in, size_t out, float *dx, int add);

/* Of silu(gate) * up, all [n]: dy becomes the gradient with respect to up, gate that with respect to gate. */
void kvd_swiglu_back(float *gate, const float *up, size_t n, float *dy);

/* Of KVD_GELU, KVD_GELU_TANH or KVD_RELU: x [n] as it entered, dy [n] becomes dx. */
void kvd_activation_back(kvd_activation a, const float *x, size_t n, float *dy);

/*
 * One KV head of one sequence of n rows and the `group` query heads that read it, side by side:
 *   q, o, d_o, dq [n][group][d], rows ldq apart; k, v, dk, dv [n][d], rows ldk apart
 *   window as in kvd_attention_in; scale of the scores
 *   scratch [2 * KVD_ATTEND_ROWS * n]
 * o is what attention gave, d_o its gradient; dq, dk and dv are written.
 */
typedef struct {
    size_t n, window, group, d, ldq, ldk;
    float scale;
    const float *q, *k, *v, *o, *d_o;
    float *dq, *dk, *dv;
} kvd_attend_back_in;
void kvd_attend_back(const kvd_attend_back_in *in, float *scratch);

#endif
