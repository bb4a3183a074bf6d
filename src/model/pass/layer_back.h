/*
 * Gradients of one layer of any model family (layer.h) on a block of tokens, in float32. Several
 * threads may call these functions on different blocks at the same time if they have called
 * kvd_blas_serial (and later kvd_blas_restore), so that each call runs on its own thread only. dy
 * is the gradient of a loss with respect to a function's output, dx with respect to its input.
 */
#ifndef KVD_MODEL_PASS_LAYER_BACK_H
#define KVD_MODEL_PASS_LAYER_BACK_H

#include <stddef.h>

#include "model/checkpoint/config.h"
#include "model/pass/layer.h"

/*
 * Adds to dx [n][d] the gradient of the input x [n][d] of a norm. dy [n][d] is the gradient of the
 * norm's output. dx must be neither x nor dy.
 */
void kvd_rms_norm_back(const float *x, const float *gain, double eps, size_t n, size_t d,
                       const float *dy, float *dx);
void kvd_layer_norm_back(const float *x, const float *gain, double eps, size_t n, size_t d,
                         const float *dy, float *dx);

/*
 * Computes the gradient of kvd_linear: dx [n][in] = dy [n][out] W with W [out][in]. If `add` is not
 * 0, adds the product to dx.
 */
void kvd_linear_back(const float *dy, const float *w, size_t n, size_t in, size_t out, float *dx,
                     int add);

/*
 * Compute the gradient of an activation function with a gate. On entry gate [n] and up [n] are the
 * inputs of the activation, and dy [n] is the gradient of its output. On return the array dy holds
 * the gradient of up, and the array gate holds the gradient of gate.
 */
void kvd_swiglu_back(float *gate, const float *up, size_t n, float *dy);
void kvd_swiglu_clamped_back(float *gate, const float *up, size_t n, float alpha, float limit,
                             float *dy);
void kvd_geglu_tanh_back(float *gate, const float *up, size_t n, float *dy);

/*
 * Computes the gradient of an activation without gate: x [n] is the activation's input,
 * and dy [n] becomes dx.
 */
void kvd_activation_back(kvd_activation a, const float *x, size_t n, float *dy);

/*
 * Input and output of kvd_attend_back, for one KV head of one sequence of n tokens, and the `group`
 * adjacent query heads that read it.
 *   q, o, d_o, dq   [n][group][d], tokens ldq floats apart: queries, attention output, gradient
 *                   of o, gradient of q (written)
 *   k, v, dk, dv    [n][d], tokens ldk floats apart: keys, values, their gradients (written)
 *   window          sliding window, as in kvd_attention_in
 *   score           as kvd_config_scores returns it
 * `scratch` has 2 * KVD_ATTEND_ROWS * n floats, or 3 * KVD_ATTEND_ROWS * n with a softcap.
 */
typedef struct {
    size_t n, window, group, d, ldq, ldk;
    kvd_scores score;
    /* Attention sink logits [group], or NULL. */
    const float *sinks;
    const float *q, *k, *v, *o, *d_o;
    float *dq, *dk, *dv;
} kvd_attend_back_in;
void kvd_attend_back(const kvd_attend_back_in *in, float *scratch);

/* Returns the floats of scratch per token that the functions of this file need. */
size_t kvd_layer_back_scratch(const kvd_config *c);

/* Adds the gradient of the input x of kvd_layer_normalise to dx [rows][d_model]. */
void kvd_layer_normalise_back(const kvd_config *c, const float *x, const float *gain, size_t rows,
                              const float *dy, float *dx);

/*
 * Computes the gradients of the steps of a layer after attention. x [rows][d_model] is the layer's
 * input, o [rows][n_heads][d_head] the output of attention. On entry dx [rows][d_model] is the
 * gradient of the layer's output; on return it is the gradient of x, without the contribution
 * through Q, K and V. d_o [rows][n_heads][d_head] receives the gradient of o.
 */
void kvd_layer_behind_back(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                           const float *o, size_t rows, float *scratch, float *dx, float *d_o);

typedef struct {
    const float *cosine, *minus_sine; /* RoPE tables for the inverse rotation; NULL without RoPE */
    const uint32_t *rope_row;
    const float *dq, *dk, *dv; /* input: gradients of Q and K after RoPE, and of V */
    float *dq_pre, *dk_pre;    /* output: gradients of Q and K before RoPE */
    /* Output: gradient of the K projection's output, before the norm of K. */
    float *dk_raw;
    /* Output: recomputed input of the projections to Q, K and V, [rows][d_model]. */
    float *in;
} kvd_layer_back_qkv;

/*
 * Fills the outputs of *g. Adds to dx [rows][d_model] the part of the gradient of the layer's input
 * x that comes from Q, K and V. dx may be NULL.
 */
void kvd_layer_before_back(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                           size_t rows, float *scratch, const kvd_layer_back_qkv *g, float *dx);

#endif
