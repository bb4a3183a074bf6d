/*
 * Rotation and levels of method turboquant, for the GPU cache, which codes rows itself instead of
 * calling kvd_bits_method.code.
 */
#ifndef KVD_METHODS_BITS_TURBOQUANT_H
#define KVD_METHODS_BITS_TURBOQUANT_H

#include "methods/bits/bits.h"

/* Tables for vectors of d numbers, borrowed from the open method. */
typedef struct {
    const float *rotation; /* [d][d] matrix P: a vector x is coded as levels of P x / |x| */
    const float *level;    /* [2^bits] rising; `bits` is the parameter rounded down */
} kvd_turboquant_tables;

/*
 * Fills *t with the tables for vectors of d numbers. The first call for a width makes its tables,
 * and may fail.
 */
int kvd_turboquant_tables_of(const void *self, size_t d, kvd_turboquant_tables *t, kvd_err *err);
/*
 * Sets *d_head, and *group to the number of query heads per KV head, from the model of the open
 * method.
 */
void kvd_turboquant_heads(const void *self, int *d_head, int *group);

#endif
