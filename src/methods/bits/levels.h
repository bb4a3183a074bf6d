/*
 * Computes the quantisation levels of a non-uniform quantiser from a histogram. Also declares
 * access to the tables of opened methods, which GPU code reads.
 */
#ifndef KVD_METHODS_BITS_LEVELS_H
#define KVD_METHODS_BITS_LEVELS_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "methods/bits/bits.h"

enum { KVD_LEVELS_BINS = 65535 }; /* largest number of bins */

/* Returns the middle of bin number `bin` if [-1, 1] is divided into `bins` equal bins. */
double kvd_level_bin(int bin, int bins);

/*
 * Writes the n quantisation levels, in ascending order, that minimise the sum over bins of
 * histogram * (middle - nearest level)^2. The `bins` bins divide [-1, 1] equally. The optimum is
 * exact (Wang and Song 2011, "Ckmeans.1d.dp"). If there are more levels than non-empty bins, the
 * superfluous levels equal neighbouring levels. If the histogram is empty, all levels are NaN.
 */
int kvd_levels_find(const double *histogram, int bins, int n, double *level, kvd_err *err);

/*
 * Returns the index of the level nearest to x among n >= 1 ascending levels. Ties give the lower
 * index.
 */
int kvd_level_nearest(const float *level, int n, float x);

enum { KVD_ALLOT_BITS = 8 /* largest number of bits of a dimension (allot) */ };

/*
 * Tables of an open method allot, which owns the arrays. `wide` is the largest number of dimensions
 * of a head.
 */
typedef struct {
    size_t n_kv_heads, wide;
    size_t sink;          /* number of first tokens that are stored exactly */
    const float *scale;   /* [n_layers][n_kv_heads][2][wide][2]: mean, standard deviation */
    const uint8_t *given; /* [n_layers][n_kv_heads][2][wide] bits of each dimension */
    /* [n_layers][2][KVD_ALLOT_BITS + 1][2^KVD_ALLOT_BITS] levels of each number of bits. */
    const float *levels;
} kvd_allot_tables;

void kvd_allot_tables_of(const void *self, kvd_allot_tables *t);

/* Tables of an open method rotatekv, which owns the array. */
typedef struct {
    size_t wide;  /* n_kv_heads * d_head */
    size_t heads; /* number of adjacent KV heads whose keys are rotated together */
    float clip;
    /* [n_layers][wide] for each code of the rotated keys, the channel to which it belongs */
    const uint32_t *order;
} kvd_rotatekv_tables;

void kvd_rotatekv_tables_of(const void *self, kvd_rotatekv_tables *t);

/* Tables of an open method turboquant, which owns the arrays, for vectors of d numbers. */
typedef struct {
    const float *rotation; /* matrix P [d][d]; a vector x is stored as the code of P x / |x| */
    const float *sketch;   /* matrix S [d][d] of residuals of keys; NULL without `qjl` */
    /* [2^bits] levels in ascending order; `bits` is the parameter rounded down. */
    const float *level;
    /* Levels of keys, in ascending order: [2^(bits - 1)] with `qjl`, otherwise [2^bits]. */
    const float *key_level;
    /*
     * [3][256] Levels for bits - 1, bits and bits + 1 bits. The levels for bits + 1 are set only if
     * the parameter `bits` is not a whole number.
     */
    const float *levels;
} kvd_turboquant_tables;

/*
 * Sets `*t` to the tables for vectors of d numbers. The first call for each d computes the tables,
 * and may fail.
 */
int kvd_turboquant_tables_of(const void *self, size_t d, kvd_turboquant_tables *t, kvd_err *err);
/* Returns d_head of the model with which the method was opened. */
int kvd_turboquant_d_head(const void *self);

/* Calibrated tables of an open method kvquant, which owns the arrays. */
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
