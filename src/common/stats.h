/* Small statistics: what stands beside every mean in a result. */
#ifndef KVD_COMMON_STATS_H
#define KVD_COMMON_STATS_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

double kvd_mean(const double *x, size_t n);
/* Sample standard deviation (n - 1); 0 for n = 1. */
double kvd_stddev(const double *x, size_t n);
/* Coefficient of variation: standard deviation / mean. */
double kvd_cv(const double *x, size_t n);
/* x [n], none of them NaN, smallest first. */
void kvd_sort(double *x, size_t n);
/* Quantile q in [0, 1] by linear interpolation; x is not changed. NaN when memory runs out. */
double kvd_quantile(const double *x, size_t n, double q);
/* Median absolute deviation from the median. */
double kvd_mad(const double *x, size_t n);

typedef struct {
    double value, lo, hi; /* estimate and its 95 % interval */
} kvd_interval;

/*
 * Ratio of sums sum(num) / sum(den) over n clusters (sequences), with a 95 %
 * percentile interval from `resamples` bootstrap draws of whole clusters
 * (Efron & Tibshirani 1993, ch. 13): tokens of one sequence are not
 * independent, so sequences are what is drawn. n = 1 gives an interval of NaN.
 */
int kvd_bootstrap_ratio(const double *num, const double *den, size_t n, int resamples, uint64_t seed,
                        kvd_interval *out, kvd_err *err);

/*
 * Mean over strata of their ratios, each stratum with the same weight however many clusters it has: stratum i is the
 * clusters first[i] .. first[i + 1] - 1, none empty. The draws are stratified (Efron & Tibshirani, section 8.3): every
 * resample draws as many clusters from a stratum as it has. A stratum of one cluster gives an interval of NaN.
 * With one stratum it is kvd_bootstrap_ratio to the last bit.
 */
int kvd_bootstrap_strata(const double *num, const double *den, const size_t *first, size_t n_strata,
                         int resamples, uint64_t seed, kvd_interval *out, kvd_err *err);

#endif
