/* Reads K or V of calibration tokens in the form that methods quantise: before or after RoPE, and
 * projected if dimensions are removed. */
#ifndef KVD_METHODS_BITS_CALIBRATION_H
#define KVD_METHODS_BITS_CALIBRATION_H

#include "methods/dims/dims.h"

typedef struct {
    const kvd_method_setup *setup;
    bool pre;
    size_t n;
    /* cut [n][width]: K or V of n calibration tokens in one KV head. rows: scratch memory. */
    float *rows, *cut;
} kvd_calibration_rows;

/* Returns the number of calibration tokens, but at most `most`. */
size_t kvd_calibration_tokens(const kvd_method_setup *s, double most);
/* Fails unless the calibration data contain all layers and, if `pre` is true, keys before RoPE. */
int kvd_calibration_fits(const kvd_method_setup *s, bool pre, kvd_err *err);
/* Allocates memory for reading n calibration tokens. `pre`: true to read keys before RoPE, false
 * after RoPE. The caller must call kvd_calibration_rows_close, even after a failure. */
int kvd_calibration_rows_open(kvd_calibration_rows *r, const kvd_method_setup *s, bool pre,
                              size_t n, kvd_err *err);
/* Reads K or V of the first r->n tokens of a KV head into r->cut [n][*width]. */
int kvd_calibration_rows_read(kvd_calibration_rows *r, kvd_side side, int layer, int kv_head,
                              size_t *width, kvd_err *err);
void kvd_calibration_rows_close(kvd_calibration_rows *r);

/* Reads K or V of n calibration tokens, all KV heads together, into rows [n][n_kv_heads * d_head].
 * Leaves out the first `sink` tokens of every sequence. scratch has 2 * n * d_head elements.
 * Returns the number of tokens in `rows`, 0 on failure. */
size_t kvd_calibration_all_heads(const kvd_method_setup *s, kvd_x what, int layer, size_t n,
                                 size_t sink, float *scratch, float *rows, kvd_err *err);
/* Subtracts the mean of every column from x [n][d], and writes it to mean [d]. */
void kvd_subtract_means(float *x, size_t n, size_t d, float *mean);

#endif
