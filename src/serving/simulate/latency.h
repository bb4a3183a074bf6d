/* Latency statistics with 95 % block-bootstrap intervals (Carlstein 1986; Kuensch 1989). */
#ifndef KVD_SERVING_SIMULATE_LATENCY_H
#define KVD_SERVING_SIMULATE_LATENCY_H

#include <stddef.h>
#include <stdint.h>

#include "common/stats.h"
#include "formats/serving.h"

enum { KVD_LATENCY_BLOCKS = 32, KVD_LATENCY_RESAMPLES = 400 };

typedef struct {
    /* mean and quantiles of latencies with 95 % intervals */
    kvd_interval statistic[KVD_LATENCY_STATISTICS];
    double curve[KVD_LATENCY_CURVE]; /* quantiles 0, 0.01 .. 1 */
} kvd_latency;

/* Computes statistics of the latencies x [n]; ignores NaN. block [n]: number of the bootstrap block
 * of each latency. */
int kvd_latency_summarise(const double *x, const uint8_t *block, size_t n, uint64_t seed,
                          kvd_latency *out, kvd_err *err);

#endif
