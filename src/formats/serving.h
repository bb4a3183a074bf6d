/* kvdim/serving files: results of simulated serving. A table row is one of these:
 *
 * - point: a method at one request rate
 * - max-rate: a method at its highest request rate within the latency bound
 * - validation: a statistic of served requests, measured and simulated */
#ifndef KVD_FORMATS_SERVING_H
#define KVD_FORMATS_SERVING_H

#include "formats/model_info.h"
#include "formats/rows.h"

extern const kvd_schema kvd_schema_serving;

typedef enum {
    KVD_SERVING_TTFT,
    KVD_SERVING_TBT,
    KVD_SERVING_LATENCY, /* job completion time / number of output tokens */
    KVD_SERVING_JCT,
    KVD_SERVING_MEASURES
} kvd_serving_time;

typedef enum {
    KVD_LATENCY_MEAN,
    KVD_LATENCY_P50,
    KVD_LATENCY_P90,
    KVD_LATENCY_P99,
    KVD_LATENCY_STATISTICS
} kvd_latency_statistic;
extern const char *const kvd_latency_statistic_name[KVD_LATENCY_STATISTICS];

/* Writes the name of a latency column to `name`, such as "ttft_mean_s". bound: 0 for the latency
 * itself, 1 for the lower end of its confidence interval ("ttft_mean_lo_s"), 2 for the upper end
 * ("ttft_mean_hi_s"). */
void kvd_serving_column(char *name, size_t size, kvd_serving_time m, kvd_latency_statistic k,
                        int bound);

/* Number of latencies with stored quantiles (times to first token and between tokens, normalised
 * latency), and number of quantiles (0, 0.01 .. 1). */
enum { KVD_SERVING_CURVES = 3, KVD_LATENCY_CURVE = 101 };

/* Returns an empty table of serving results, which the caller frees. */
kvd_rows *kvd_serving_rows(kvd_err *err);

/* Writes and completes kvdim-serve's result file. `none` lists the compression methods that
 * exceeded the latency bound at every request rate. */
int kvd_serving_write(kvd_h5 *f, const kvd_rows *r, const kvd_model_info *model, const char *none,
                      kvd_err *err);

/* Reads the table of simulated serving. Fails on a missing column or bad number. The caller always
 * frees *rows. */
int kvd_serving_read(kvd_rows **rows, kvd_h5 *f, kvd_err *err);

#endif
