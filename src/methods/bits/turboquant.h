/*
 * Rotation and quantisation levels of method turboquant, for the CUDA engine, which quantises on
 * the GPU.
 */
#ifndef KVD_METHODS_BITS_TURBOQUANT_H
#define KVD_METHODS_BITS_TURBOQUANT_H

#include "methods/bits/bits.h"

/* Tables for vectors of d numbers. The open method owns the arrays. */
typedef struct {
    const float *rotation; /* matrix P [d][d]: the code of a vector x codes P x / |x| */
    const float *sketch;   /* matrix S [d][d] of residuals of keys; NULL without `qjl` */
    /* [2^bits] levels in ascending order; `bits` is the parameter rounded down. */
    const float *level;
    /* The levels of keys: [2^(bits - 1)] with `qjl`, else as `level`. */
    const float *key_level;
} kvd_turboquant_tables;

/*
 * Sets `*t` to the tables for vectors of d numbers. The first call for a value of d computes them,
 * and may fail.
 */
int kvd_turboquant_tables_of(const void *self, size_t d, kvd_turboquant_tables *t, kvd_err *err);
/* Returns the d_head of the model for which the method is open. */
int kvd_turboquant_d_head(const void *self);

#endif
