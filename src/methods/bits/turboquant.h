/*
 * Rotation and quantisation levels of method turboquant, for the CUDA engine, which codes rows
 * itself instead of calling kvd_bits_method.code.
 */
#ifndef KVD_METHODS_BITS_TURBOQUANT_H
#define KVD_METHODS_BITS_TURBOQUANT_H

#include "methods/bits/bits.h"

/* Tables of an open method turboquant for vectors of d numbers. The method owns them. */
typedef struct {
    const float *rotation; /* matrix P [d][d]: of a vector x, P x / |x| is coded */
    /* [2^bits] quantisation levels, rising; `bits` is the parameter rounded down. */
    const float *level;
} kvd_turboquant_tables;

/*
 * Fills *t with the tables for vectors of d numbers. The first call for a value of d computes the
 * tables, and may fail.
 */
int kvd_turboquant_tables_of(const void *self, size_t d, kvd_turboquant_tables *t, kvd_err *err);
/*
 * Sets *d_head, and *group to the number of query heads per KV head, to those of the open method's
 * model.
 */
void kvd_turboquant_heads(const void *self, int *d_head, int *group);

#endif
