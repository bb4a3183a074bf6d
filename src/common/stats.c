#include "common/stats.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"

double kvd_mean(const double *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    return sum / (double)n;
}

double kvd_stddev(const double *x, size_t n)
{
    if (n < 2)
        return 0;
    const double mean = kvd_mean(x, n);
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (x[i] - mean) * (x[i] - mean);
    return sqrt(sum / (double)(n - 1));
}

double kvd_cv(const double *x, size_t n)
{
    return n < 2 ? (double)NAN : kvd_stddev(x, n) / kvd_mean(x, n);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void kvd_sort(double *x, size_t n)
{
    qsort(x, n, sizeof *x, ascending);
}

static int descending(const void *a, const void *b)
{
    return ascending(b, a);
}

void kvd_sort_falling(double *x, size_t n)
{
    qsort(x, n, sizeof *x, descending);
}

int kvd_by_index(const void *a, const void *b)
{
    const size_t x = ((const kvd_ranked *)a)->index, y = ((const kvd_ranked *)b)->index;
    return (x > y) - (x < y);
}

int kvd_by_rising_value(const void *a, const void *b)
{
    const int order = ascending(&((const kvd_ranked *)a)->value, &((const kvd_ranked *)b)->value);
    return order ? order : kvd_by_index(a, b);
}

int kvd_by_falling_value(const void *a, const void *b)
{
    const int order = ascending(&((const kvd_ranked *)b)->value, &((const kvd_ranked *)a)->value);
    return order ? order : kvd_by_index(a, b);
}

/* Returns quantile q of sorted x [n] by linear interpolation, as NumPy does. */
static double sorted_quantile(const double *x, size_t n, double q)
{
    const double at = (double)(n - 1) * q;
    const size_t i = (size_t)floor(at);
    if (i + 1 >= n)
        return x[n - 1];
    return x[i] + (at - (double)i) * (x[i + 1] - x[i]);
}

static double unsorted_quantile(double *x, size_t n, double q)
{
    for (size_t i = 0; i < n; i++)
        if (isnan(x[i]))
            return NAN;
    kvd_sort(x, n);
    return sorted_quantile(x, n, q);
}

double kvd_quantile(const double *x, size_t n, double q)
{
    if (n == 0 || !(q >= 0 && q <= 1))
        return NAN;
    double *copy = malloc(n * sizeof *copy);
    if (!copy)
        return NAN;
    memcpy(copy, x, n * sizeof *copy);
    const double v = unsorted_quantile(copy, n, q);
    free(copy);
    return v;
}

double kvd_mad(const double *x, size_t n)
{
    const double median = kvd_quantile(x, n, 0.5);
    double *deviation = n ? malloc(n * sizeof *deviation) : NULL;
    if (!deviation)
        return NAN;
    for (size_t i = 0; i < n; i++)
        deviation[i] = fabs(x[i] - median);
    const double v = unsorted_quantile(deviation, n, 0.5);
    free(deviation);
    return v;
}

/* Returns the mean over strata of sum(num) / sum(den). If r is not NULL, resamples the clusters of
 * each stratum with replacement. */
static double mean_ratio(const double *num, const double *den, const size_t *first, size_t n_strata,
                         kvd_rng *r)
{
    double sum = 0;
    for (size_t s = 0; s < n_strata; s++) {
        const size_t n = first[s + 1] - first[s];
        double a = 0, b = 0;
        for (size_t i = 0; i < n; i++) {
            const size_t j = first[s] + (r ? (size_t)kvd_rng_below(r, n) : i);
            a += num[j];
            b += den[j];
        }
        sum += a / b;
    }
    return sum / (double)n_strata;
}

int kvd_bootstrap_strata(const double *num, const double *den, const size_t *first, size_t n_strata,
                         int resamples, uint64_t seed, kvd_interval *out, kvd_err *err)
{
    if (n_strata == 0 || resamples < 1)
        return kvd_fail(err, "a bootstrap of %zu strata with %d resamples is not possible",
                        n_strata, resamples);
    bool alone = false;
    for (size_t s = 0; s < n_strata; s++) {
        if (first[s + 1] <= first[s])
            return kvd_fail(err, "stratum %zu has no cluster to draw from", s);
        alone = alone || first[s + 1] - first[s] == 1;
        double a = 0, b = 0;
        for (size_t i = first[s]; i < first[s + 1]; i++) {
            a += num[i];
            b += den[i];
        }
        if (!isfinite(a) || !isfinite(b) || b == 0)
            return kvd_fail(err, "the ratio %g / %g is not a number", a, b);
    }
    *out = (kvd_interval){mean_ratio(num, den, first, n_strata, NULL), NAN, NAN};
    if (alone || first[n_strata] - first[0] < KVD_BOOTSTRAP_CLUSTERS)
        return 0;
    double *ratio = malloc((size_t)resamples * sizeof *ratio);
    if (!ratio)
        return kvd_no_memory(err, "bootstrap", (unsigned long long)resamples * sizeof *ratio);
    kvd_rng r;
    kvd_rng_seed(&r, seed, 0);
    for (int k = 0; k < resamples; k++) {
        ratio[k] = mean_ratio(num, den, first, n_strata, &r);
        if (!isfinite(ratio[k])) {
            free(ratio);
            return 0;
        }
    }
    qsort(ratio, (size_t)resamples, sizeof *ratio, ascending);
    out->lo = sorted_quantile(ratio, (size_t)resamples, 0.025);
    out->hi = sorted_quantile(ratio, (size_t)resamples, 0.975);
    free(ratio);
    return 0;
}

int kvd_bootstrap_ratio(const double *num, const double *den, size_t n, int resamples,
                        uint64_t seed, kvd_interval *out, kvd_err *err)
{
    if (n == 0 || resamples < 1)
        return kvd_fail(err, "a bootstrap of %zu clusters with %d resamples is not possible", n,
                        resamples);
    const size_t all[2] = {0, n};
    return kvd_bootstrap_strata(num, den, all, 1, resamples, seed, out, err);
}
