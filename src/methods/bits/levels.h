/*
 * Quantisation levels (the numbers as which codes are read) of a non-uniform quantiser, computed
 * from a histogram of the numbers to be coded.
 */
#ifndef KVD_METHODS_BITS_LEVELS_H
#define KVD_METHODS_BITS_LEVELS_H

#include "common/err.h"

enum { KVD_LEVELS_BINS = 65535 }; /* largest number of bins */

/*
 * Returns the middle of histogram bin number `bin`, if the interval [-1, 1] is divided into `bins`
 * equal bins.
 */
double kvd_level_bin(int bin, int bins);

/*
 * Writes the n quantisation levels, rising, that minimise the sum over bins of histogram * (middle
 * - nearest level)^2, for a histogram [bins] of [-1, 1]. This is k-means in one dimension, whose
 * optimum can be computed (Wang and Song 2011, "Ckmeans.1d.dp"). A level to which no bin belongs
 * equals a neighbour; if the histogram is empty, all levels are NaN. Fails if memory runs out.
 */
int kvd_levels_find(const double *histogram, int bins, int n, double *level, kvd_err *err);

/*
 * Returns the index of the quantisation level nearest to x among n >= 1 rising levels; if two are
 * equally near, the lower.
 */
int kvd_level_nearest(const float *level, int n, float x);

#endif
