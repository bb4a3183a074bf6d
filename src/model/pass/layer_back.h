/* Backward pass of one layer in float32. dy and dx are the gradients of the loss with respect to a
 * function's output and to its input. */
#ifndef KVD_MODEL_PASS_LAYER_BACK_H
#define KVD_MODEL_PASS_LAYER_BACK_H

#include <stddef.h>

#include "model/checkpoint/config.h"
#include "model/pass/layer.h"

/* Backward pass of a norm: adds the gradient of the norm's input x [n][d] to dx. dy is the gradient
 * of the norm's output. dx must be neither x nor dy. */
void kvd_rms_norm_back(const float *x, const float *gain, double eps, size_t n, size_t d,
                       const float *dy, float *dx);
void kvd_layer_norm_back(const float *x, const float *gain, double eps, size_t n, size_t d,
                         const float *dy, float *dx);

/* Computes the product dy [n][out] W and writes it to dx [n][in] or, if `add`, adds it to dx. */
void kvd_linear_back(const float *dy, const float *w, size_t n, size_t in, size_t out, float *dx,
                     int add);

/* Backward pass of an activation function. Without a gate, dy [n] becomes the gradient of x. With a
 * gate, dy becomes the gradient of `up`, and x is overwritten by its own gradient. */
void kvd_activate_back(kvd_activation a, float *x, const float *up, size_t n, float *dy);
/* Backward pass of kvd_swiglu_clamped: dy [n] becomes the gradient of `up`, and `gate` is
 * overwritten by its own gradient. */
void kvd_swiglu_clamped_back(float *gate, const float *up, size_t n, float alpha, float limit,
                             float *dy);

/* Gradient of attention for one KV head and its `group` query heads.
 *
 * q, o, d_o, dq   [n][group][d], tokens are ldq floats apart; dq is written
 * k, v, dk, dv    [n][d], tokens are ldk floats apart; dk and dv are written
 * scratch         2 * KVD_ATTEND_ROWS * n floats, with a softcap 3 * KVD_ATTEND_ROWS * n */
typedef struct {
    size_t n, window, group, d, ldq, ldk;
    kvd_scores score;
    /* sink logits [group], or NULL */
    const float *sinks;
    const float *q, *k, *v, *o, *d_o;
    float *dq, *dk, *dv;
} kvd_attend_back_in;
void kvd_attend_back(const kvd_attend_back_in *in, float *scratch);

/* Returns how many floats of scratch memory per token the functions of this header need. */
size_t kvd_layer_back_scratch(const kvd_config *c);

/* Adds the gradient of a norm's input x to dx [rows][d_model]; dy is the gradient of the norm's
 * output. */
void kvd_layer_normalise_back(const kvd_config *c, const float *x, const float *gain, size_t rows,
                              const float *dy, float *dx);

/* Backward pass of a layer's steps after attention.
 *
 * - dx: on entry, the gradient of the layer's output; on return, the gradient of its input x,
 *   without the part through attention
 * - d_o: receives the gradient of the attention output o */
void kvd_layer_behind_back(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                           const float *o, size_t rows, float *scratch, float *dx, float *d_o);

typedef struct {
    const float *cosine, *minus_sine; /* tables of the inverse rotation; NULL without RoPE */
    const uint32_t *rope_row;
    const float *dq, *dk, *dv; /* input: gradients of Q and K after RoPE, and of V */
    float *dq_pre, *dk_pre;    /* output: gradients of Q and K before RoPE */
    /* output: gradient of the key projection's output, which is K without norm and RoPE */
    float *dk_raw;
    /* receives the input of the projections to Q, K and V, [rows][d_model] */
    float *in;
} kvd_layer_back_qkv;

/* Backward pass of Q, K and V. Reads the gradients dq, dk and dv in *g, and fills dq_pre, dk_pre,
 * dk_raw and in. Unless dx is NULL, adds to dx the gradient that reaches the layer's input x
 * through Q, K and V. */
void kvd_layer_before_back(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                           size_t rows, float *scratch, const kvd_layer_back_qkv *g, float *dx);

#endif
