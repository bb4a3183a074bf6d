/* Finds quantisation levels for a histogram. Declares the tables, for example rotation matrices,
 * that GPU code gets from quantisation methods. */
#ifndef KVD_METHODS_BITS_LEVELS_H
#define KVD_METHODS_BITS_LEVELS_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "methods/bits/bits.h"

enum { KVD_LEVELS_BINS = 65535 };

/* Returns the middle of bin number `bin`, if [-1, 1] is divided into `bins` equal bins. */
double kvd_level_bin(int bin, int bins);

/* Writes n ascending quantisation levels that minimise the squared error for a histogram over [-1,
 * 1] (Wang and Song 2011, Ckmeans.1d.dp). Unused levels repeat a neighbour. If the histogram is
 * empty, all levels are NaN. */
int kvd_levels_find(const double *histogram, int bins, int n, double *level, kvd_err *err);

/* Returns the index of the level nearest to x among n ascending levels. If two are equally near,
 * returns the lower index. */
int kvd_level_nearest(const float *level, int n, float x);

enum { KVD_ALLOT_BITS = 8 };

/* Tables of method allot for its GPU code: each dimension's mean, deviation and number of bits, and
 * the quantisation levels. The method owns the arrays. */
typedef struct {
    size_t n_kv_heads, wide;
    size_t sink;
    const float *scale;   /* [n_layers][n_kv_heads][2][wide][2]: mean, standard deviation */
    const uint8_t *given; /* [n_layers][n_kv_heads][2][wide] bits of each dimension */
    /* [n_layers][2][KVD_ALLOT_BITS + 1][2^KVD_ALLOT_BITS] Quantisation levels of K and of V for
     * each number of bits. */
    const float *levels;
} kvd_allot_tables;

void kvd_allot_tables_of(const void *self, kvd_allot_tables *t);

/* Tables of method rotatekv for its GPU code: how key channels are rotated and sorted. The method
 * owns `order`. */
typedef struct {
    size_t wide;
    size_t heads; /* number of adjacent KV heads whose keys are rotated together */
    float clip;
    /* [n_layers][wide] Channel i of a stored key is channel order[i] of the rotated key. */
    const uint32_t *order;
} kvd_rotatekv_tables;

void kvd_rotatekv_tables_of(const void *self, kvd_rotatekv_tables *t);

/* Matrices and quantisation levels of method turboquant for vectors of d numbers. The method owns
 * the arrays. */
typedef struct {
    const float *rotation; /* matrix P [d][d]; x is stored as the code of P x / |x| */
    /* [d][d] Random matrix by which quantisation errors of K are multiplied, to store the signs of
     * the products. NULL without parameter `qjl`. */
    const float *sketch;
    /* [2^bits] Ascending quantisation levels. A fractional number of bits is rounded down. */
    const float *level;
    /* Ascending quantisation levels of K. There are 2^(bits - 1) with parameter `qjl`, because a
     * sign takes one bit. Otherwise, there are 2^bits. */
    const float *key_level;
    /* [3][256] Quantisation levels for b - 1, b and b + 1 bits, where b is `bits` rounded down.
     * Levels for b + 1 bits are set only if `bits` is fractional. */
    const float *levels;
} kvd_turboquant_tables;

/* Sets *t to the tables of method turboquant for vectors of d numbers. The first call for each d
 * computes them. */
int kvd_turboquant_tables_of(const void *self, size_t d, kvd_turboquant_tables *t, kvd_err *err);
int kvd_turboquant_d_head(const void *self);

/* Calibrated tables of method kvquant for its GPU code. The method owns the arrays. */
typedef struct {
    /* [n_layers][n_kv_heads][range_width][2] Middle and half width of the range of each key
     * channel. */
    const float *range;
    size_t range_width;
    /* [n_layers][K, V][encoding, decoding][2^bits] Quantisation levels. A code is the index of the
     * nearest encoding level, and decodes to the decoding level with the same index. Both kinds of
     * levels are equal without parameter `qnorm`. */
    const float *levels;
} kvd_kvquant_tables;

void kvd_kvquant_tables_of(const void *self, kvd_kvquant_tables *t);
/* Returns how many of n numbers are stored as outliers at each end (smallest, largest). The result
 * is less than n / 2. */
size_t kvd_kvquant_apart(const kvd_parameter_values *v, size_t n);

#endif
