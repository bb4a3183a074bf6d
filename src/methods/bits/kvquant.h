/* Calibrated tables of method kvquant, for the CUDA engine, which quantises on the GPU. */
#ifndef KVD_METHODS_BITS_KVQUANT_H
#define KVD_METHODS_BITS_KVQUANT_H

#include "methods/bits/bits.h"

/* Calibrated tables. The open method owns the arrays. */
typedef struct {
    /*
     * [n_layers][n_kv_heads][range_width][2] Middle and half width of the range of each key
     * channel.
     */
    const float *range;
    size_t range_width;
    /*
     * [n_layers][KVD_N_SIDES][2][2^bits] Quantisation levels in ascending order. The nearest of the
     * first 2^bits numbers gives the code; the second 2^bits are the decoded numbers.
     */
    const float *levels;
} kvd_kvquant_tables;

void kvd_kvquant_tables_of(const void *self, kvd_kvquant_tables *t);
/*
 * Returns how many of the smallest and how many of the largest numbers of a value vector of n are
 * outliers. At least one number is not an outlier.
 */
size_t kvd_kvquant_apart(const kvd_parameter_values *v, size_t n);

#endif
