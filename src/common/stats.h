/* Standard deviations, quantiles, and bootstrap intervals for the means in a result. */
#ifndef KVD_COMMON_STATS_H
#define KVD_COMMON_STATS_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

double kvd_mean(const double *x, size_t n);
/* Returns the sample standard deviation of x [n], with divisor n - 1; 0 for n = 1. */
double kvd_stddev(const double *x, size_t n);
/* Returns the coefficient of variation of x [n]: standard deviation / mean. */
double kvd_cv(const double *x, size_t n);
/* Sorts x [n], which holds no NaN, in rising order. */
void kvd_sort(double *x, size_t n);
/*
 * Returns quantile q, in [0, 1], of x [n] by linear interpolation; x is not changed. Returns NaN if
 * memory runs out.
 */
double kvd_quantile(const double *x, size_t n, double q);
/* Returns the median absolute deviation of x [n] from its median. */
double kvd_mad(const double *x, size_t n);

typedef struct {
    double value, lo, hi; /* an estimate and the ends of its 95 % interval */
} kvd_interval;

/* Least number of clusters for which a bootstrap interval is computed. */
enum { KVD_BOOTSTRAP_CLUSTERS = 8 };

/*
 * Computes the ratio of sums sum(num) / sum(den) over n clusters (sequences), with a 95 %
 * percentile interval from `resamples` bootstrap draws of whole clusters (Efron & Tibshirani 1993,
 * ch. 13). Sequences are drawn because the tokens of one sequence are not independent. The interval
 * is NaN if n is less than KVD_BOOTSTRAP_CLUSTERS: resamples of few clusters vary less than the
 * mean does, so the interval would be too narrow. It is NaN too if sum(den) of a resample is 0.
 */
int kvd_bootstrap_ratio(const double *num, const double *den, size_t n, int resamples,
                        uint64_t seed, kvd_interval *out, kvd_err *err);

/*
 * Computes the mean of the ratios sum(num) / sum(den) of several strata, with a bootstrap interval.
 * Stratum i is the clusters first[i] .. first[i + 1] - 1, at least one; every stratum has equal
 * weight, whatever its number of clusters. The draws are stratified (Efron & Tibshirani, section
 * 8.3): every resample draws from a stratum as many clusters as it has. The interval is NaN if a
 * stratum has one cluster, or all strata together have fewer than KVD_BOOTSTRAP_CLUSTERS. With one
 * stratum the result equals kvd_bootstrap_ratio to the last bit.
 */
int kvd_bootstrap_strata(const double *num, const double *den, const size_t *first, size_t n_strata,
                         int resamples, uint64_t seed, kvd_interval *out, kvd_err *err);

#endif
