/*
 * Statistics of request latencies, with intervals that account for correlation between requests.
 * Consecutive requests wait in the same queue, so the bootstrap draws blocks of consecutive
 * requests (Carlstein 1986; Kuensch 1989 for overlapping blocks).
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
     * Mean and quantiles with their 95 % intervals. Intervals are NaN if the requests form fewer
     * than two bootstrap blocks. All numbers are NaN if no latency was measured.
     */
    kvd_interval statistic[KVD_LATENCY_STATISTICS];
    double curve[KVD_LATENCY_CURVE]; /* quantiles 0, 0.01 .. 1 */
} kvd_latency;

/*
 * Computes statistics of the times x [n], leaving out NaN. `block` [n] holds, for each time, the
 * index of the block of consecutive requests to which it belongs, below KVD_LATENCY_BLOCKS.
 * Quantiles interpolate as kvd_quantile does.
 */
int kvd_latency_summarise(const double *x, const uint8_t *block, size_t n, uint64_t seed,
                          kvd_latency *out, kvd_err *err);

#endif
