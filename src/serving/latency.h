/*
 * A distribution of times in a queue, with intervals that know that neighbours are alike.
 *
 * Requests that arrive one after another wait in the same queue, so the interval of a statistic comes from
 * drawing stretches of consecutive requests, not single ones: a bootstrap of blocks that do not overlap
 * (Carlstein 1986; Kuensch 1989 for overlapping ones).
 */
#ifndef KVD_SERVING_LATENCY_H
#define KVD_SERVING_LATENCY_H

#include <stddef.h>
#include <stdint.h>

#include "common/stats.h"

enum { KVD_LATENCY_BLOCKS = 32, KVD_LATENCY_RESAMPLES = 400, KVD_LATENCY_CURVE = 101 };

typedef enum {
    KVD_LATENCY_MEAN,
    KVD_LATENCY_P50,
    KVD_LATENCY_P90,
    KVD_LATENCY_P99,
    KVD_LATENCY_STATISTICS
} kvd_latency_statistic;
extern const char *const kvd_latency_statistic_name[KVD_LATENCY_STATISTICS]; /* "mean", "p50", ... */

typedef struct {
    kvd_interval
        statistic[KVD_LATENCY_STATISTICS]; /* intervals NaN with fewer than two blocks; all NaN with n = 0 */
    double curve[KVD_LATENCY_CURVE];       /* quantiles 0, 0.01 .. 1                          */
} kvd_latency;

/*
 * x [n]: values of which NaN are left out; block [n]: the block of each, below KVD_LATENCY_BLOCKS. Quantiles
 * interpolate as kvd_quantile does.
 */
int kvd_latency_summarise(const double *x, const uint8_t *block, size_t n, uint64_t seed, kvd_latency *out,
                          kvd_err *err);

#endif
