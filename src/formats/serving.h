/*
 * kvdim/serving files: simulated serving. Rows are of three kinds:
 *
 * - point: a method at one request rate
 * - max-rate: a method at the highest request rate at which mean JCT / output tokens is at most
 *   latency_bound_s
 * - validation: a statistic of requests that kvdim-jct served (measured), and of their simulation
 */
#ifndef KVD_FORMATS_SERVING_H
#define KVD_FORMATS_SERVING_H

#include "formats/model_info.h"
#include "formats/rows.h"

extern const kvd_schema kvd_schema_serving;

typedef enum {
    KVD_SERVING_TTFT,
    KVD_SERVING_TBT,
    KVD_SERVING_LATENCY, /* job completion time / output tokens */
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
 * Writes the column name of statistic k of time m: the value (`bound` 0, "ttft_mean_s"), or the
 * lower (1, "ttft_mean_lo_s") or upper (2, "ttft_mean_hi_s") end of its interval.
 */
void kvd_serving_column(char *name, size_t size, kvd_serving_time m, kvd_latency_statistic k,
                        int bound);

/*
 * Sample arrays: quantiles 0, 0.01 .. 1 of TTFT, TBT and normalised latency; NaN in "validation"
 * rows.
 */
enum { KVD_SERVING_CURVES = 3, KVD_LATENCY_CURVE = 101 };

/* On failure returns NULL and fills *err. The caller frees the table. */
kvd_rows *kvd_serving_rows(kvd_err *err);

/*
 * Writes the table into a new file and completes it. `none`: a line per method for which no rate
 * met the bound.
 */
int kvd_serving_write(kvd_h5 *f, const kvd_rows *r, const kvd_model_info *model, const char *none,
                      kvd_err *err);

/*
 * Reads the table, which the caller frees, also on failure. Fails if a needed column is missing, or
 * a number is negative or infinite; an infinite latency objective means none.
 */
int kvd_serving_read(kvd_rows **rows, kvd_h5 *f, kvd_err *err);

#endif
