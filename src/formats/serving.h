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

/* Writes a column name: "ttft_mean_s"; with `bound` 1 "ttft_mean_lo_s", 2 "ttft_mean_hi_s". */
void kvd_serving_column(char *name, size_t size, kvd_serving_time m, kvd_latency_statistic k,
                        int bound);

/* sizes of the arrays with quantiles 0, 0.01 .. 1 of TTFT, TBT and normalised latency */
enum { KVD_SERVING_CURVES = 3, KVD_LATENCY_CURVE = 101 };

/* Returns an empty table of serving results, which the caller frees. */
kvd_rows *kvd_serving_rows(kvd_err *err);

/* Writes and completes the file. `none`: methods that met the bound at no rate, one per line. */
int kvd_serving_write(kvd_h5 *f, const kvd_rows *r, const kvd_model_info *model, const char *none,
                      kvd_err *err);

/* Reads the table. Fails on a missing column or a bad number. The caller always frees *rows. */
int kvd_serving_read(kvd_rows **rows, kvd_h5 *f, kvd_err *err);

#endif
