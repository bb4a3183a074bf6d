/*
 * Gradients of one layer of any model family (layer.h) on a block of tokens: of the steps after
 * attention and of those before it. kvd_attend_back computes the gradients of attention between
 * them. Several threads may call these functions on different blocks at once, between
 * kvd_blas_serial and kvd_blas_restore.
 */
#ifndef KVD_MODEL_PASS_LAYER_BACK_H
#define KVD_MODEL_PASS_LAYER_BACK_H

#include <stddef.h>

#include "model/checkpoint/config.h"
#include "model/pass/layer.h"

/*
 * Gradients of the functions of blocks.h and attention.h, in float32. dy is the gradient of a loss
 * with respect to a function's output, dx the gradient with respect to its input. The caller passes
 * the function's input again. Everything runs on the calling thread, between kvd_blas_serial and
 * kvd_blas_restore.
 */

/*
 * Add the gradient with respect to the input x [n][d] of a norm with gain [d] to dx [n][d]. dy
 * [n][d] is the gradient with respect to the norm's output. dx must be neither x nor dy.
 */
void kvd_rms_norm_back(const float *x, const float *gain, double eps, size_t n, size_t d,
                       const float *dy, float *dx);
void kvd_layer_norm_back(const float *x, const float *gain, double eps, size_t n, size_t d,
                         const float *dy, float *dx);

/*
 * Computes dx [n][in] = dy [n][out] W with W [out][in], the gradient of kvd_linear. If `add` is not
 * 0, adds the product to dx.
 */
void kvd_linear_back(const float *dy, const float *w, size_t n, size_t in, size_t out, float *dx,
                     int add);

/*
 * Compute the gradient of kvd_swiglu, kvd_swiglu_clamped or kvd_geglu_tanh. On entry gate and up
 * [n] are the function's inputs and dy [n] is the gradient with respect to its output. On return dy
 * is the gradient with respect to up, and gate the gradient with respect to gate.
 */
void kvd_swiglu_back(float *gate, const float *up, size_t n, float *dy);
void kvd_swiglu_clamped_back(float *gate, const float *up, size_t n, float alpha, float limit,
                             float *dy);
void kvd_geglu_tanh_back(float *gate, const float *up, size_t n, float *dy);

/*
 * Computes the gradient of the activation KVD_GELU, KVD_GELU_TANH or KVD_RELU in place: x [n] is
 * the activation's input, and dy [n] becomes dx.
 */
void kvd_activation_back(kvd_activation a, const float *x, size_t n, float *dy);

/*
 * The input of kvd_attend_back: one KV head of one sequence of n tokens, and the `group` adjacent
 * query heads that read it.
 *   q, o, d_o, dq   [n][group][d], tokens ldq floats apart: queries, attention output, gradient
 *                   with respect to o, gradient with respect to q (written)
 *   k, v, dk, dv    [n][d], tokens ldk floats apart: keys, values, their gradients (written)
 *   window          sliding window, as in kvd_attention_in
 *   score           as kvd_config_scores returns it
 * The argument `scratch` has 2 * KVD_ATTEND_ROWS * n floats, or 3 * KVD_ATTEND_ROWS * n if
 * score.softcap is not 0.
 */
typedef struct {
    size_t n, window, group, d, ldq, ldk;
    kvd_scores score;
    /* Attention sink logit of each of the `group` query heads; NULL if the model has no sinks. */
    const float *sinks;
    const float *q, *k, *v, *o, *d_o;
    float *dq, *dk, *dv;
} kvd_attend_back_in;
void kvd_attend_back(const kvd_attend_back_in *in, float *scratch);

/* Returns the number of floats of scratch per token that the functions below need. */
size_t kvd_layer_back_scratch(const kvd_config *c);

/* Adds the gradient of kvd_layer_normalise with respect to its input x to dx [rows][d_model]. */
void kvd_layer_normalise_back(const kvd_config *c, const float *x, const float *gain, size_t rows,
                              const float *dy, float *dx);

/*
 * Computes the gradients of the steps of a layer that follow attention. x [rows][d_model] is the
 * layer's input, o [rows][n_heads][d_head] the output of attention. On entry dx [rows][d_model] is
 * the gradient with respect to the layer's output; on return it is the gradient with respect to x
 * except for the contribution of attention. d_o [rows][n_heads][d_head] receives the gradient with
 * respect to o.
 */
void kvd_layer_behind_back(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                           const float *o, size_t rows, float *scratch, float *dx, float *d_o);

/* Gradients of Q, K and V of a block of tokens: input and output of kvd_layer_before_back. */
typedef struct {
    const float *cosine, *minus_sine; /* RoPE tables of the inverse rotation; NULL without RoPE */
    const uint32_t *rope_row;
    const float *dq, *dk, *dv; /* input: gradients with respect to Q and K after RoPE, and to V */
    float *dq_pre, *dk_pre;    /* output: gradients with respect to Q and K before RoPE */
    /* Output: gradient with respect to the K projection's output, before the norm of K. */
    float *dk_raw;
    /*
     * Output of the function: the array that was the input of the projections to Q, K and V in the
     * forward pass, [rows][d_model].
     */
    float *in;
} kvd_layer_back_qkv;

/*
 * Computes the outputs of the struct *g (dq_pre, dk_pre, dk_raw and in) for a block of tokens, and
 * adds to dx [rows][d_model] the gradient that reaches the layer's input x through Q, K and V. If
 * dx is NULL, only the outputs in *g are computed.
 */
void kvd_layer_before_back(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                           size_t rows, float *scratch, const kvd_layer_back_qkv *g, float *dx);

#endif
