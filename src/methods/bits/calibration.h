/*
 * Calibration rows (tokens of a calibration text) of K or V of one head, in the form in which a
 * bits method codes them: projected to the kept dimensions, if a method of methods/dims removes
 * some.
 */
#ifndef KVD_METHODS_BITS_CALIBRATION_H
#define KVD_METHODS_BITS_CALIBRATION_H

#include "methods/dims/dims.h"

typedef struct {
    const kvd_method_setup *setup; /* model, projections and calibration activations; borrowed */
    bool pre;                      /* true: read keys before RoPE */
    size_t n;
    /* `cut` [n][width] is the result of kvd_calibration_rows_read; `rows` is private. */
    float *rows, *cut;
} kvd_calibration_rows;

/*
 * Fails unless the calibration activations of *s contain all layers of the model and, if `pre`,
 * keys before RoPE.
 */
int kvd_calibration_fits(const kvd_method_setup *s, bool pre, kvd_err *err);
/*
 * Allocates memory for n calibration rows of a KV head, or of all heads that share a latent (palu).
 * The caller must call kvd_calibration_rows_close, after a failure too.
 */
int kvd_calibration_rows_open(kvd_calibration_rows *r, const kvd_method_setup *s, bool pre,
                              size_t n, kvd_err *err);
/* Reads K or V of the first n calibration tokens of a KV head into r->cut [n][*width]. */
int kvd_calibration_rows_read(kvd_calibration_rows *r, kvd_side side, int layer, int kv_head,
                              size_t *width, kvd_err *err);
void kvd_calibration_rows_close(kvd_calibration_rows *r);

/*
 * Reads the first n calibration rows of all KV heads, next to each other, into rows [n][n_kv_heads
 * * d_head]. Leaves out the first `sink` tokens of every sequence. `scratch` holds 2 n d_head
 * numbers. Returns the number of rows read; 0 after a failure.
 */
size_t kvd_calibration_all_heads(const kvd_method_setup *s, kvd_x what, int layer, size_t n,
                                 size_t sink, float *scratch, float *rows, kvd_err *err);
/* Subtracts its mean from every column of x [n][d], and writes the means to mean [d]. */
void kvd_subtract_means(float *x, size_t n, size_t d, float *mean);

#endif
