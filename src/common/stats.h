#ifndef KVD_COMMON_STATS_H
#define KVD_COMMON_STATS_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

double kvd_mean(const double *x, size_t n);
/* Returns the standard deviation of x [n] with divisor n - 1; 0 for n = 1. */
double kvd_stddev(const double *x, size_t n);
/* Returns the standard deviation divided by the mean; NaN for n = 1. */
double kvd_cv(const double *x, size_t n);
/* Sorts numbers in rising order. None may be NaN. */
void kvd_sort(double *x, size_t n);
void kvd_sort_falling(double *x, size_t n);

/* Number and its index in an array, to be sorted by qsort with one of the three functions below. */
typedef struct {
    double value;
    size_t index;
} kvd_ranked;
int kvd_by_rising_value(const void *a, const void *b);
int kvd_by_falling_value(const void *a, const void *b);
int kvd_by_index(const void *a, const void *b);

/* Returns quantile q, in [0, 1], of x [n] by linear interpolation, or NaN if memory runs out. */
double kvd_quantile(const double *x, size_t n, double q);
double kvd_mad(const double *x, size_t n);

typedef struct {
    double value, lo, hi; /* an estimate and the ends of its 95 % interval */
} kvd_interval;

/* smallest number of clusters for which a bootstrap interval is computed */
enum { KVD_BOOTSTRAP_CLUSTERS = 8 };

/* Computes sum(num) / sum(den) over n clusters of measurements, with a 95 % bootstrap interval. */
int kvd_bootstrap_ratio(const double *num, const double *den, size_t n, int resamples,
                        uint64_t seed, kvd_interval *out, kvd_err *err);

/* Computes sum(num) / sum(den) in each stratum, and the mean of these ratios over all strata, with
 * a 95 % bootstrap interval. Stratum i has clusters first[i] .. first[i + 1] - 1. */
int kvd_bootstrap_strata(const double *num, const double *den, const size_t *first, size_t n_strata,
                         int resamples, uint64_t seed, kvd_interval *out, kvd_err *err);

#endif
