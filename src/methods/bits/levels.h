/* Levels of a non-uniform code from a histogram of the numbers that it codes. */
#ifndef KVD_METHODS_BITS_LEVELS_H
#define KVD_METHODS_BITS_LEVELS_H

#include "common/err.h"

enum { KVD_LEVELS_BINS = 65535 }; /* at most */

/* Middle of a bin of [-1, 1] cut into `bins` equal ones. */
double kvd_level_bin(int bin, int bins);

/*
 * The n levels, rising, for which a histogram [bins] of [-1, 1] loses least, sum over bins of histogram * (middle - nearest
 * level)^2: k-means in one dimension, whose best end can be computed (Wang and Song 2011, "Ckmeans.1d.dp"). Levels without
 * bins, of histograms with fewer than n, are as a neighbour; of an empty histogram all are NaN. Fails on memory.
 */
int kvd_levels_find(const double *histogram, int bins, int n, double *level, kvd_err *err);

/* Index of the one of n >= 1 rising levels that is nearest to x; the lower of two that are equally near. */
int kvd_level_nearest(const float *level, int n, float x);

#endif
