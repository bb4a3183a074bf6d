/* What kvquant found in its calibration, for caches that code elsewhere than in kvd_bits_method.code. */
#ifndef KVD_METHODS_BITS_KVQUANT_H
#define KVD_METHODS_BITS_KVQUANT_H

#include "methods/bits/bits.h"

/* Borrowed from the open method. */
typedef struct {
    const float *range; /* [n_layers][n_kv_heads][range_width][2] of keys: middle, half width */
    size_t range_width;
    const float *
        levels; /* [n_layers][KVD_N_SIDES][2][2^bits], rising: what a number is compared with, what it is read as */
} kvd_kvquant_tables;

void kvd_kvquant_tables_of(const void *self, kvd_kvquant_tables *t);
/* Numbers apart at each end of a vector of n values; always some between them. */
size_t kvd_kvquant_apart(const kvd_values *v, size_t n);

#endif
