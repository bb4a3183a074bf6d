#include "serving/simulate/latency.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"

static const double level[KVD_LATENCY_STATISTICS] = {NAN, 0.5, 0.9, 0.99};

enum { BLOCKS = KVD_LATENCY_BLOCKS, RESAMPLES = KVD_LATENCY_RESAMPLES };

typedef struct {
    double x;
    uint8_t block;
} value;

typedef struct {
    double *all; /* [n], rising */
    /* [n] latencies, sorted by block (group of requests that the bootstrap resamples), then by
     * size */
    double *of_block;
    size_t n, start[BLOCKS + 1];
    double sum[BLOCKS];
} sorted;

static int rising(const void *a, const void *b)
{
    const double x = ((const value *)a)->x, y = ((const value *)b)->x;
    return (x > y) - (x < y);
}

static int sort(const double *x, const uint8_t *block, size_t n, sorted *s, kvd_err *err)
{
    value *v = malloc((n ? n : 1) * sizeof *v);
    memset(s, 0, sizeof *s);
    s->all = malloc((n ? n : 1) * sizeof *s->all);
    s->of_block = malloc((n ? n : 1) * sizeof *s->of_block);
    if (!v || !s->all || !s->of_block) {
        free(v);
        return kvd_no_memory(err, "latencies", 4 * n * sizeof *s->all);
    }
    for (size_t i = 0; i < n; i++)
        if (!isnan(x[i])) {
            v[s->n++] = (value){x[i], block[i]};
            s->start[block[i] + 1]++;
        }
    qsort(v, s->n, sizeof *v, rising);
    for (int b = 0; b < BLOCKS; b++)
        s->start[b + 1] += s->start[b];
    size_t next[BLOCKS];
    memcpy(next, s->start, sizeof next);
    for (size_t i = 0; i < s->n; i++) {
        s->all[i] = v[i].x;
        s->of_block[next[v[i].block]++] = v[i].x;
        s->sum[v[i].block] += v[i].x;
    }
    free(v);
    return 0;
}

static double quantile(const sorted *s, double q)
{
    const double at = (double)(s->n - 1) * q;
    const size_t i = (size_t)at;
    if (i + 1 >= s->n)
        return s->all[s->n - 1];
    return s->all[i] + (at - (double)i) * (s->all[i + 1] - s->all[i]);
}

static size_t count(const sorted *s, int b, double x)
{
    size_t lo = s->start[b], hi = s->start[b + 1];
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (s->of_block[mid] <= x)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo - s->start[b];
}

/* Returns element k of a bootstrap resample's sorted latencies. weight: how often the resample
 * contains each block of requests. */
static double order_statistic(const sorted *s, const int *weight, size_t k)
{
    size_t lo = 0, hi = s->n - 1;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        size_t there = 0;
        for (int b = 0; b < BLOCKS; b++)
            there += weight[b] ? (size_t)weight[b] * count(s, b, s->all[mid]) : 0;
        if (there > k)
            hi = mid;
        else
            lo = mid + 1;
    }
    return s->all[lo];
}

static void resample(const sorted *s, const int *weight, double *statistic)
{
    size_t n = 0;
    double sum = 0;
    for (int b = 0; b < BLOCKS; b++) {
        n += (size_t)weight[b] * (s->start[b + 1] - s->start[b]);
        sum += weight[b] * s->sum[b];
    }
    statistic[KVD_LATENCY_MEAN] = sum / (double)n;
    for (int k = KVD_LATENCY_P50; k < KVD_LATENCY_STATISTICS; k++) {
        const double at = (double)(n - 1) * level[k];
        const size_t i = (size_t)at;
        const double lower = order_statistic(s, weight, i),
                     upper = i + 1 < n ? order_statistic(s, weight, i + 1) : lower;
        statistic[k] = lower + (at - (double)i) * (upper - lower);
    }
}

static int intervals(const sorted *s, uint64_t seed, kvd_latency *out, kvd_err *err)
{
    int held[BLOCKS], n_held = 0;
    for (int b = 0; b < BLOCKS; b++)
        if (s->start[b + 1] > s->start[b])
            held[n_held++] = b;
    if (n_held < 2)
        return 0;
    double *drawn = malloc((size_t)KVD_LATENCY_STATISTICS * RESAMPLES * sizeof *drawn);
    if (!drawn)
        return kvd_no_memory(err, "a bootstrap",
                             (size_t)KVD_LATENCY_STATISTICS * RESAMPLES * sizeof *drawn);
    kvd_rng rng;
    kvd_rng_seed(&rng, seed, 0);
    for (int r = 0; r < RESAMPLES; r++) {
        int weight[BLOCKS] = {0};
        double statistic[KVD_LATENCY_STATISTICS];
        for (int i = 0; i < n_held; i++)
            weight[held[kvd_rng_below(&rng, (uint64_t)n_held)]]++;
        resample(s, weight, statistic);
        for (int k = 0; k < KVD_LATENCY_STATISTICS; k++)
            drawn[k * RESAMPLES + r] = statistic[k];
    }
    for (int k = 0; k < KVD_LATENCY_STATISTICS; k++) {
        out->statistic[k].lo = kvd_quantile(drawn + k * RESAMPLES, RESAMPLES, 0.025);
        out->statistic[k].hi = kvd_quantile(drawn + k * RESAMPLES, RESAMPLES, 0.975);
    }
    free(drawn);
    return 0;
}

int kvd_latency_summarise(const double *x, const uint8_t *block, size_t n, uint64_t seed,
                          kvd_latency *out, kvd_err *err)
{
    sorted s;
    for (int k = 0; k < KVD_LATENCY_STATISTICS; k++)
        out->statistic[k] = (kvd_interval){NAN, NAN, NAN};
    for (int i = 0; i < KVD_LATENCY_CURVE; i++)
        out->curve[i] = NAN;
    int status = sort(x, block, n, &s, err);
    if (!status && s.n) {
        double sum = 0;
        for (int b = 0; b < BLOCKS; b++)
            sum += s.sum[b];
        out->statistic[KVD_LATENCY_MEAN].value = sum / (double)s.n;
        for (int k = KVD_LATENCY_P50; k < KVD_LATENCY_STATISTICS; k++)
            out->statistic[k].value = quantile(&s, level[k]);
        for (int i = 0; i < KVD_LATENCY_CURVE; i++)
            out->curve[i] = quantile(&s, (double)i / (KVD_LATENCY_CURVE - 1));
        status = intervals(&s, seed, out, err);
    }
    free(s.all);
    free(s.of_block);
    return status;
}
