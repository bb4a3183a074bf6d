/*
 * Distribution of request latencies in a queue, with intervals that account for the correlation
 * between consecutive requests.
 *
 * Requests that arrive one after another wait in the same queue. The interval of a statistic is
 * therefore computed by drawing blocks of consecutive requests instead of single requests: a
 * bootstrap of blocks that do not overlap (Carlstein 1986; Kuensch 1989 for overlapping blocks).
 */
#ifndef KVD_SERVING_SIMULATE_LATENCY_H
#define KVD_SERVING_SIMULATE_LATENCY_H

#include <stddef.h>
#include <stdint.h>

#include "common/stats.h"
#include "formats/serving.h"

enum { KVD_LATENCY_BLOCKS = 32, KVD_LATENCY_RESAMPLES = 400 };

typedef struct {
    /*
     * Mean and quantiles of the times with their 95 % intervals. The intervals are computed from
     * blocks of consecutive requests, and are NaN if there are fewer than two blocks. All numbers
     * are NaN if there are no times.
     */
    kvd_interval statistic[KVD_LATENCY_STATISTICS];
    double curve[KVD_LATENCY_CURVE]; /* quantiles 0, 0.01 .. 1 of the latencies */
} kvd_latency;

/*
 * Computes statistics and quantiles of the times x [n], leaving out NaN. block [n] holds the index
 * of each time's block of consecutive requests, below KVD_LATENCY_BLOCKS. Quantiles interpolate as
 * kvd_quantile does.
 */
int kvd_latency_summarise(const double *x, const uint8_t *block, size_t n, uint64_t seed,
                          kvd_latency *out, kvd_err *err);

#endif
