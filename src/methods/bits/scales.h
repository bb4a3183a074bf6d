/* Scales of formats whose numbers are divided by one factor per tensor. */
#ifndef KVD_METHODS_BITS_SCALES_H
#define KVD_METHODS_BITS_SCALES_H

#include "methods/axis.h"

/*
 * Numbers that share a scale: all numbers (the scale is 1), a layer's, or a KV head's of a layer.
 */
typedef enum { KVD_SCALE_ONE, KVD_SCALE_LAYER, KVD_SCALE_HEAD, KVD_N_SCALES } kvd_scale_of;

/* An open fp8 or nvfp4 (`self` of kvd_bits_method) begins with its scales. */
typedef struct {
    size_t n_kv_heads;
    float *scale; /* [n_layers][n_kv_heads][KVD_N_SIDES]; NULL: every scale is 1 */
} kvd_scales;

/*
 * Sets the scales so that the largest magnitude among the first `rows` calibration tokens, as a
 * bits method codes them, becomes `largest`. Keys and values have scales of their own. A tensor of
 * zeros has the scale 1. With KVD_SCALE_ONE nothing of *s is read. The caller must call
 * kvd_scales_release, after a failure too.
 */
int kvd_scales_make(kvd_scales *scales, kvd_scale_of of, const kvd_method_setup *s, size_t rows,
                    float largest, kvd_err *err);
float kvd_scales_at(const kvd_scales *scales, kvd_side side, int layer, int kv_head);
void kvd_scales_release(kvd_scales *scales);

#endif
