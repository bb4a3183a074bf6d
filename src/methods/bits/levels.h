/* Quantisation levels from a histogram, and quantisation tables of methods for GPU code. */
#ifndef KVD_METHODS_BITS_LEVELS_H
#define KVD_METHODS_BITS_LEVELS_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "methods/bits/bits.h"

enum { KVD_LEVELS_BINS = 65535 };

/* Returns the middle of bin number `bin` of `bins` equal bins of [-1, 1]. */
double kvd_level_bin(int bin, int bins);

/* Writes n ascending levels that minimise the squared error of a histogram over [-1, 1] (Wang and
 * Song 2011, Ckmeans.1d.dp). Unused levels repeat a neighbour. If the histogram is empty, all are
 * NaN. */
int kvd_levels_find(const double *histogram, int bins, int n, double *level, kvd_err *err);

/* Returns the index of the nearest of n ascending levels; on ties, the lower one. */
int kvd_level_nearest(const float *level, int n, float x);

enum { KVD_ALLOT_BITS = 8 };

/* Means, deviations, bits and levels of method allot for GPU code. The method owns the arrays. */
typedef struct {
    size_t n_kv_heads, wide;
    size_t sink;
    const float *scale;   /* [n_layers][n_kv_heads][2][wide][2]: mean, standard deviation */
    const uint8_t *given; /* [n_layers][n_kv_heads][2][wide] bits of each dimension */
    /* [n_layers][2][KVD_ALLOT_BITS + 1][2^KVD_ALLOT_BITS] Levels of K and V by number of bits. */
    const float *levels;
} kvd_allot_tables;

void kvd_allot_tables_of(const void *self, kvd_allot_tables *t);

/* How method rotatekv rotates and sorts key channels, for GPU code. The method owns `order`. */
typedef struct {
    size_t wide;
    size_t heads; /* number of adjacent KV heads whose keys are rotated together */
    float clip;
    /* [n_layers][wide] Stored number i of a token's keys is number order[i] of its rotated keys. */
    const uint32_t *order;
} kvd_rotatekv_tables;

void kvd_rotatekv_tables_of(const void *self, kvd_rotatekv_tables *t);

/* Matrices and levels of method turboquant for vectors of d numbers. The method owns the arrays. */
typedef struct {
    const float *rotation; /* matrix P [d][d]; x is stored as the code of P x / |x| */
    /* [d][d] Random matrix that multiplies errors of keys; NULL without parameter `qjl`. */
    const float *sketch;
    /* [2^bits] Ascending quantisation levels, with `bits` rounded down. */
    const float *level;
    /* Ascending quantisation levels of keys, [2^(bits - 1)] with parameter `qjl`, else [2^bits]. */
    const float *key_level;
    /* [3][256] Quantisation levels for b - 1, b and b + 1 bits; b is `bits` rounded down. The last
     * are set only if `bits` is fractional. */
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
    /* [n_layers][KVD_N_SIDES][2][2^bits] Quantisation levels among which the nearest is searched,
     * then the numbers that they decode to. Parameter `qnorm` makes them differ. */
    const float *levels;
} kvd_kvquant_tables;

void kvd_kvquant_tables_of(const void *self, kvd_kvquant_tables *t);
/* Returns how many of n numbers are outliers at each end, less than n / 2. */
size_t kvd_kvquant_apart(const kvd_parameter_values *v, size_t n);

#endif
