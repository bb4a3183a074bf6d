/*
 * kvdim/serving files: results of simulated serving. A row of the table is of one of three kinds.
 *
 *   point       a compression method at one request rate
 *   max-rate    a method at the highest request rate at which the mean of JCT / output tokens is at
 *               most latency_bound_s, a column of the row
 *   validation  one statistic of requests that kvdim-jct served (measured), and of their simulation
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
 * Writes the name of the column of a statistic k of the time m. If `bound` is 0, the column holds
 * the value, as "ttft_mean_s" does. If `bound` is 1 or 2, it holds the lower or upper end of the
 * interval of that value: "ttft_mean_lo_s" or "ttft_mean_hi_s".
 */
void kvd_serving_column(char *name, size_t size, kvd_serving_time m, kvd_latency_statistic k,
                        int bound);

/*
 * Sizes of the sample arrays with quantiles 0, 0.01 .. 1 of TTFT, TBT and normalised latency. The
 * quantiles are NaN in rows of kind "validation".
 */
enum { KVD_SERVING_CURVES = 3, KVD_LATENCY_CURVE = 101 };

/* Returns an empty table. On failure returns NULL and fills *err. The caller frees the table. */
kvd_rows *kvd_serving_rows(kvd_err *err);

/*
 * Writes the table into a new file and completes it. `none` is a text with one line for each method
 * for which no request rate met the bound.
 */
int kvd_serving_write(kvd_h5 *f, const kvd_rows *r, const kvd_model_info *model, const char *none,
                      kvd_err *err);

/*
 * Reads the table of a file. Fails if a needed column is missing, or a number is negative or
 * infinite. An infinite latency objective means no objective. The caller frees *rows, also on
 * failure.
 */
int kvd_serving_read(kvd_rows **rows, kvd_h5 *f, kvd_err *err);

#endif
