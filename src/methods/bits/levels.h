/* Levels of a non-uniform quantiser, from a histogram of the numbers that it codes. */
#ifndef KVD_METHODS_BITS_LEVELS_H
#define KVD_METHODS_BITS_LEVELS_H

#include "common/err.h"

enum { KVD_LEVELS_BINS = 65535 }; /* largest number of bins */

/*
 * Returns the middle of bin number `bin` if the interval [-1, 1] is divided into `bins` equal bins.
 */
double kvd_level_bin(int bin, int bins);

/*
 * Writes the n levels, rising, that minimise the sum over bins of histogram * (middle - nearest
 * level)^2, for a histogram [bins] of [-1, 1]: k-means in one dimension, of which the optimum can
 * be computed (Wang and Song 2011, "Ckmeans.1d.dp"). Levels without bins equal a neighbour; for an
 * empty histogram all are NaN. Fails if memory runs out.
 */
int kvd_levels_find(const double *histogram, int bins, int n, double *level, kvd_err *err);

/*
 * Returns the index of the level nearest to x among n >= 1 rising levels; of two equally near the
 * lower.
 */
int kvd_level_nearest(const float *level, int n, float x);

#endif
