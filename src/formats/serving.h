/*
 * kvdim/serving files: results of simulated serving. A row is of one of three kinds:
 *
 * - point: a compression method at one request rate
 * - max-rate: a method at the highest request rate at which the mean of JCT / output tokens is at
 *   most latency_bound_s
 * - validation: one statistic of requests that kvdim-jct served (measured), and of their simulation
 */
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

/*
 * Writes the name of a column of latencies, such as "ttft_mean_s". With `bound` 1 it is
 * "ttft_mean_lo_s", with 2 "ttft_mean_hi_s".
 */
void kvd_serving_column(char *name, size_t size, kvd_serving_time m, kvd_latency_statistic k,
                        int bound);

/* Axes of the arrays of quantiles: TTFT, TBT and normalised latency; quantiles 0, 0.01 .. 1. */
enum { KVD_SERVING_CURVES = 3, KVD_LATENCY_CURVE = 101 };

/* Returns an empty table of serving results, which the caller frees. */
kvd_rows *kvd_serving_rows(kvd_err *err);

/*
 * Writes the table to the file and completes it. `none` lists methods that met the latency bound at
 * no rate, one per line.
 */
int kvd_serving_write(kvd_h5 *f, const kvd_rows *r, const kvd_model_info *model, const char *none,
                      kvd_err *err);

/*
 * Reads the table of results. Fails on a missing column or a bad number. The caller always frees
 * *rows.
 */
int kvd_serving_read(kvd_rows **rows, kvd_h5 *f, kvd_err *err);

#endif
