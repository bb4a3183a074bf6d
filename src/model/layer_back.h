/*
 * Gradients of one layer of any family (layer.h) on a block of rows, behind and before its attention; what
 * lies between is kvd_attend_back. Called with blocks of rows on several threads at once, between
 * kvd_blas_serial and kvd_blas_restore.
 */
#ifndef KVD_MODEL_LAYER_BACK_H
#define KVD_MODEL_LAYER_BACK_H

#include "model/layer.h"

/* Floats of scratch per row. */
size_t kvd_layer_back_scratch(const kvd_config *c);

/* Gradient of kvd_layer_normalise: dx [rows][d_model] +=. */
void kvd_layer_normalise_back(const kvd_config *c, const float *x, const float *gain, size_t rows,
                              const float *dy, float *dx);

/*
 * x [rows][d_model] as it enters the layer, o [rows][n_heads][d_head] as attention gave it. dx
 * [rows][d_model] holds the gradient with respect to what leaves the layer and becomes that part of the
 * gradient with respect to x which does not come through attention; d_o [rows][n_heads][d_head] receives that
 * with respect to o.
 */
void kvd_layer_behind_back(const kvd_config *c, const kvd_layer_weights *w, const float *x, const float *o,
                           size_t rows, float *scratch, float *dx, float *d_o);

/* Of `rows` rows. */
typedef struct {
    const float *cosine, *minus_sine; /* tables that turn back; NULL without RoPE                        */
    const uint32_t *rope_row;
    const float *dq, *dk, *dv; /* with respect to Q and K after RoPE, and to V                       */
    float *dq_pre, *dk_pre;    /* written: before RoPE                                               */
    float *dk_raw;             /* written: of K as its projection gives it, before the norm of Q and K */
    float *in;                 /* written: [rows][d_model], what the projections read                */
} kvd_layer_back_qkv;

/* dx [rows][d_model] += what comes through Q, K and V; NULL: nobody wants that. */
void kvd_layer_before_back(const kvd_config *c, const kvd_layer_weights *w, const float *x, size_t rows,
                           float *scratch, const kvd_layer_back_qkv *g, float *dx);

#endif
