/* Levels of a non-uniform quantiser from a histogram, and method tables for GPU code. */
#ifndef KVD_METHODS_BITS_LEVELS_H
#define KVD_METHODS_BITS_LEVELS_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "methods/bits/bits.h"

enum { KVD_LEVELS_BINS = 65535 };

/* Returns the middle of bin number `bin` of `bins` equal bins of [-1, 1]. */
double kvd_level_bin(int bin, int bins);

/*
 * Writes n ascending levels that minimise the squared error of a histogram over [-1, 1] (Wang and
 * Song 2011, Ckmeans.1d.dp). Unused levels repeat a neighbour. If the histogram is empty, all are
 * NaN.
 */
int kvd_levels_find(const double *histogram, int bins, int n, double *level, kvd_err *err);

/* Returns the index of the nearest of n ascending levels; on ties, the lower one. */
int kvd_level_nearest(const float *level, int n, float x);

enum { KVD_ALLOT_BITS = 8 };

/* Tables of method allot for GPU code. The method's data own the arrays. */
typedef struct {
    size_t n_kv_heads, wide;
    size_t sink;
    const float *scale;   /* [n_layers][n_kv_heads][2][wide][2]: mean, standard deviation */
    const uint8_t *given; /* [n_layers][n_kv_heads][2][wide] bits of each dimension */
    /* [n_layers][2][KVD_ALLOT_BITS + 1][2^KVD_ALLOT_BITS] Levels for each number of bits. */
    const float *levels;
} kvd_allot_tables;

void kvd_allot_tables_of(const void *self, kvd_allot_tables *t);

/* Tables of method rotatekv for GPU code. The method's data own the array. */
typedef struct {
    size_t wide;
    size_t heads; /* number of adjacent KV heads whose keys are rotated together */
    float clip;
    /* [n_layers][wide] Original channel of each number of the rotated keys. */
    const uint32_t *order;
} kvd_rotatekv_tables;

void kvd_rotatekv_tables_of(const void *self, kvd_rotatekv_tables *t);

/* Tables of method turboquant for vectors of d numbers. The method's data own the arrays. */
typedef struct {
    const float *rotation; /* matrix P [d][d]; x is stored as the code of P x / |x| */
    /* [d][d] Random matrix that multiplies errors of keys; NULL without parameter `qjl`. */
    const float *sketch;
    /* [2^bits] Ascending quantisation levels, with `bits` rounded down. */
    const float *level;
    /* Ascending quantisation levels of keys, [2^(bits - 1)] with parameter `qjl`, else [2^bits]. */
    const float *key_level;
    /* [3][256] Levels for bits - 1, bits and bits + 1 bits, if `bits` is fractional. */
    const float *levels;
} kvd_turboquant_tables;

/* Sets *t to turboquant's tables for vectors of d numbers. The first call computes them. */
int kvd_turboquant_tables_of(const void *self, size_t d, kvd_turboquant_tables *t, kvd_err *err);
int kvd_turboquant_d_head(const void *self);

/* Calibrated tables of method kvquant for GPU code. The method's data own the arrays. */
typedef struct {
    /* [n_layers][n_kv_heads][range_width][2] Middle and half width of each key channel's range. */
    const float *range;
    size_t range_width;
    /* [n_layers][KVD_N_SIDES][2][2^bits] Levels to search for the nearest, then decoded numbers. */
    const float *levels;
} kvd_kvquant_tables;

void kvd_kvquant_tables_of(const void *self, kvd_kvquant_tables *t);
/* Returns how many of n numbers are outliers at each end, less than n / 2. */
size_t kvd_kvquant_apart(const kvd_parameter_values *v, size_t n);

#endif
