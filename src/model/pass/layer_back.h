/*
 * Computes a layer backward in float32. dy is the gradient by a function's output, dx by its input.
 */
#ifndef KVD_MODEL_PASS_LAYER_BACK_H
#define KVD_MODEL_PASS_LAYER_BACK_H

#include <stddef.h>

#include "model/checkpoint/config.h"
#include "model/pass/layer.h"

/* Adds the gradient by the input x [n][d] of a norm to dx, which must be neither x nor dy. */
void kvd_rms_norm_back(const float *x, const float *gain, double eps, size_t n, size_t d,
                       const float *dy, float *dx);
void kvd_layer_norm_back(const float *x, const float *gain, double eps, size_t n, size_t d,
                         const float *dy, float *dx);

/*
 * Computes dx [n][in] = dy [n][out] W, the gradient by the input of a product with W. If `add`,
 * adds it to dx.
 */
void kvd_linear_back(const float *dy, const float *w, size_t n, size_t in, size_t out, float *dx,
                     int add);

/*
 * Computes kvd_activate backward. Its input was x [n] and, for a gate, `up`. Without a gate, dy [n]
 * becomes dx. With a gate, dy becomes the gradient of `up`, and x that of the gate.
 */
void kvd_activate_back(kvd_activation a, float *x, const float *up, size_t n, float *dy);
/*
 * Computes kvd_swiglu_clamped backward: dy [n] becomes the gradient by up, gate [n] that by gate.
 */
void kvd_swiglu_clamped_back(float *gate, const float *up, size_t n, float alpha, float limit,
                             float *dy);

/*
 * Gradient of attention for one KV head and its `group` query heads, in a sequence of n tokens.
 *   q, o, d_o, dq   [n][group][d], stride ldq floats: queries, output, its gradient, dq (written)
 *   k, v, dk, dv    [n][d], stride ldk floats: keys, values, their gradients (written)
 *   window, score   as in kvd_attention_in, kvd_config_scores
 *   scratch         2 * KVD_ATTEND_ROWS * n floats, with a softcap 3 * KVD_ATTEND_ROWS * n
 */
typedef struct {
    size_t n, window, group, d, ldq, ldk;
    kvd_scores score;
    /* Logits of the attention sinks, [group], or NULL. */
    const float *sinks;
    const float *q, *k, *v, *o, *d_o;
    float *dq, *dk, *dv;
} kvd_attend_back_in;
void kvd_attend_back(const kvd_attend_back_in *in, float *scratch);

/* Returns how many floats of scratch memory per token the functions of this file need. */
size_t kvd_layer_back_scratch(const kvd_config *c);

/* Adds the gradient by the input x of kvd_layer_normalise to dx [rows][d_model]. */
void kvd_layer_normalise_back(const kvd_config *c, const float *x, const float *gain, size_t rows,
                              const float *dy, float *dx);

/*
 * Computes a layer's steps after attention backward: on entry dx is the gradient by the layer's
 * output, on return that by x, without the part through Q, K and V. d_o is the gradient of o.
 */
void kvd_layer_behind_back(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                           const float *o, size_t rows, float *scratch, float *dx, float *d_o);

typedef struct {
    const float *cosine, *minus_sine; /* tables of the inverse rotation; NULL without RoPE */
    const uint32_t *rope_row;
    const float *dq, *dk, *dv; /* input: gradients of Q and K after RoPE, and of V */
    float *dq_pre, *dk_pre;    /* output: gradients of Q and K before RoPE */
    /* Output: gradient by the K projection, before the norm of K. */
    float *dk_raw;
    /* Output: the input of the QKV projections, computed again, [rows][d_model]. */
    float *in;
} kvd_layer_back_qkv;

/*
 * Computes the steps before attention backward: fills the outputs of *g and adds to dx, unless
 * NULL, the gradient through Q, K and V.
 */
void kvd_layer_before_back(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                           size_t rows, float *scratch, const kvd_layer_back_qkv *g, float *dx);

#endif
