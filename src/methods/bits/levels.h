/* Computes the quantisation levels of a non-uniform quantiser from a histogram. */
#ifndef KVD_METHODS_BITS_LEVELS_H
#define KVD_METHODS_BITS_LEVELS_H

#include "common/err.h"

enum { KVD_LEVELS_BINS = 65535 }; /* largest number of bins */

/* Returns the middle of bin number `bin` if [-1, 1] is divided into `bins` equal bins. */
double kvd_level_bin(int bin, int bins);

/*
 * Writes the n quantisation levels, in ascending order, that minimise the sum over bins of
 * histogram * (middle - nearest level)^2. The `bins` bins divide [-1, 1] equally. The optimum is
 * exact (Wang and Song 2011, "Ckmeans.1d.dp"). A level that no bin needs equals a neighbour. If the
 * histogram is empty, all levels are NaN.
 */
int kvd_levels_find(const double *histogram, int bins, int n, double *level, kvd_err *err);

/*
 * Returns the index of the level nearest to x among n >= 1 ascending levels. Ties give the lower
 * index.
 */
int kvd_level_nearest(const float *level, int n, float x);

#endif
