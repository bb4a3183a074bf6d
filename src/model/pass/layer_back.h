/* Gradients of one layer in float32; dy: gradient of a function's output, dx: of its input. */
#ifndef KVD_MODEL_PASS_LAYER_BACK_H
#define KVD_MODEL_PASS_LAYER_BACK_H

#include <stddef.h>

#include "model/checkpoint/config.h"
#include "model/pass/layer.h"

/* Adds the gradient of the input x [n][d] of a norm to dx, which must be neither x nor dy. */
void kvd_rms_norm_back(const float *x, const float *gain, double eps, size_t n, size_t d,
                       const float *dy, float *dx);
void kvd_layer_norm_back(const float *x, const float *gain, double eps, size_t n, size_t d,
                         const float *dy, float *dx);

/* Computes dx [n][in] = dy [n][out] W, added to dx if `add`. */
void kvd_linear_back(const float *dy, const float *w, size_t n, size_t in, size_t out, float *dx,
                     int add);

/*
 * Gradient of kvd_activate with its input x [n] and, for a gate, `up`: without a gate, dy [n]
 * becomes dx. With a gate, dy becomes the gradient of `up`, and x that of the gate.
 */
void kvd_activate_back(kvd_activation a, float *x, const float *up, size_t n, float *dy);
/* Gradient of kvd_swiglu_clamped: dy [n] becomes that of up, gate [n] that of gate. */
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
 * Gradient of the steps after attention: on entry dx is the gradient of the layer's output, on
 * return that of x, without the part through Q, K and V. d_o is the gradient of o.
 */
void kvd_layer_behind_back(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                           const float *o, size_t rows, float *scratch, float *dx, float *d_o);

typedef struct {
    const float *cosine, *minus_sine; /* tables of the inverse rotation; NULL without RoPE */
    const uint32_t *rope_row;
    const float *dq, *dk, *dv; /* input: gradients of Q and K after RoPE, and of V */
    float *dq_pre, *dk_pre;    /* output: gradients of Q and K before RoPE */
    /* Output: gradient of the K projection, before the norm of K. */
    float *dk_raw;
    /* Output: recomputed input of the QKV projections, [rows][d_model]. */
    float *in;
} kvd_layer_back_qkv;

/* Fills the outputs of *g, and adds to dx, if not NULL, the gradient through Q, K and V. */
void kvd_layer_before_back(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                           size_t rows, float *scratch, const kvd_layer_back_qkv *g, float *dx);

#endif
