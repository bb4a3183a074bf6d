/* Scales for number formats that divide all numbers of a tensor by one factor before coding. */
#ifndef KVD_METHODS_BITS_SCALES_H
#define KVD_METHODS_BITS_SCALES_H

#include "methods/axis.h"

/*
 * Set of numbers that share a scale: all numbers (the scale is then 1), one layer, or one KV head
 * of one layer.
 */
typedef enum { KVD_SCALE_ONE, KVD_SCALE_LAYER, KVD_SCALE_HEAD, KVD_N_SCALES } kvd_scale_of;

/* Calibrated scales. Must be the first member of the private data of fp8 and nvfp4. */
typedef struct {
    size_t n_kv_heads;
    float *scale; /* [n_layers][n_kv_heads][KVD_N_SIDES]; NULL: every scale is 1 */
} kvd_scales;

/*
 * Sets the scales so that the largest magnitude among the first `rows` calibration tokens, divided
 * by the scale, is `largest`. Keys and values have separate scales. If all numbers are 0, the scale
 * is 1. With KVD_SCALE_ONE, `*s` is not read. The caller must call kvd_scales_release, after a
 * failure too.
 */
int kvd_scales_make(kvd_scales *scales, kvd_scale_of of, const kvd_method_setup *s, size_t rows,
                    float largest, kvd_err *err);
float kvd_scales_at(const kvd_scales *scales, kvd_side side, int layer, int kv_head);
void kvd_scales_release(kvd_scales *scales);

#endif
