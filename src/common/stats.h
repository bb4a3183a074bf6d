#ifndef KVD_COMMON_STATS_H
#define KVD_COMMON_STATS_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

double kvd_mean(const double *x, size_t n);
/* Returns the standard deviation of x [n] with divisor n - 1; 0 for n = 1. */
double kvd_stddev(const double *x, size_t n);
/* Returns the coefficient of variation: standard deviation / mean. */
double kvd_cv(const double *x, size_t n);
/* Sorts numbers in rising order. NaN is not allowed. */
void kvd_sort(double *x, size_t n);
/* Returns quantile q of x [n], q in [0, 1], by linear interpolation; NaN without memory. */
double kvd_quantile(const double *x, size_t n, double q);
/* Returns the median absolute deviation from the median. */
double kvd_mad(const double *x, size_t n);

typedef struct {
    double value, lo, hi; /* an estimate and the ends of its 95 % interval */
} kvd_interval;

/* Fewest clusters for which a bootstrap interval is computed. */
enum { KVD_BOOTSTRAP_CLUSTERS = 8 };

/*
 * Computes sum(num) / sum(den) over n clusters, with a 95 % percentile interval from bootstrap
 * draws of clusters (Efron & Tibshirani 1993, ch. 13); NaN interval below KVD_BOOTSTRAP_CLUSTERS or
 * if a draw's sum(den) is 0. Fails if sum(den) is 0 or a sum is not finite.
 */
int kvd_bootstrap_ratio(const double *num, const double *den, size_t n, int resamples,
                        uint64_t seed, kvd_interval *out, kvd_err *err);

/*
 * Computes the mean over strata of sum(num) / sum(den); stratum i has clusters first[i] .. first[i
 * + 1] - 1, at least one. Clusters are drawn within each stratum (Efron & Tibshirani, section 8.3).
 * The interval is NaN if a stratum has one cluster or all have fewer than KVD_BOOTSTRAP_CLUSTERS.
 */
int kvd_bootstrap_strata(const double *num, const double *den, const size_t *first, size_t n_strata,
                         int resamples, uint64_t seed, kvd_interval *out, kvd_err *err);

#endif
