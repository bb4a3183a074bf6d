/*
 * Calibrated tables of method kvquant, for the CUDA engine, which codes rows itself instead of
 * calling kvd_bits_method.code.
 */
#ifndef KVD_METHODS_BITS_KVQUANT_H
#define KVD_METHODS_BITS_KVQUANT_H

#include "methods/bits/bits.h"

/* Calibrated tables of an open method kvquant, which owns them. */
typedef struct {
    /*
     * Range of each key channel, [n_layers][n_kv_heads][range_width][2]: its middle and half its
     * width.
     */
    const float *range;
    size_t range_width;
    /*
     * Quantisation levels [n_layers][KVD_N_SIDES][2][2^bits], rising. A number is compared with the
     * first 2^bits to choose its code; the second 2^bits are the numbers as which codes are read.
     */
    const float *levels;
} kvd_kvquant_tables;

void kvd_kvquant_tables_of(const void *self, kvd_kvquant_tables *t);
/*
 * Returns the number of outliers at each end (smallest and largest) of a value vector of n numbers.
 * At least one number is left between them.
 */
size_t kvd_kvquant_apart(const kvd_parameter_values *v, size_t n);

#endif
