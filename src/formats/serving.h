/*
 * kvdim/serving: simulated serving, in rows of three kinds.
 *
 *   point       a method at one rate
 *   max-rate    a method at the highest rate with a mean normalised latency of at most
 *               latency_bound_s
 *   validation  one statistic of a replay measured by kvdim-jct, and of its simulation
 */
#ifndef KVD_FORMATS_SERVING_H
#define KVD_FORMATS_SERVING_H

#include "formats/model_info.h"
#include "formats/rows.h"

extern const kvd_schema kvd_schema_serving;

typedef enum {
    KVD_SERVING_TTFT,
    KVD_SERVING_TBT,
    KVD_SERVING_LATENCY, /* normalised: JCT over output tokens */
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
extern const char
    *const kvd_latency_statistic_name[KVD_LATENCY_STATISTICS]; /* "mean", "p50", ... */

/* Writes the name of a column: bound 0 "ttft_mean_s", 1 "ttft_mean_lo_s", 2 "ttft_mean_hi_s". */
void kvd_serving_column(char *name, size_t size, kvd_serving_time m, kvd_latency_statistic k,
                        int bound);

/* Samples of a row: quantiles 0, 0.01 .. 1 of the first three measures; NaN if validation. */
enum { KVD_SERVING_CURVES = 3, KVD_LATENCY_CURVE = 101 };

/*
 * Returns an empty table of the schema kvdim/serving. On failure returns NULL and fills *err. The
 * caller frees it.
 */
kvd_rows *kvd_serving_rows(kvd_err *err);

/*
 * Writes the table into a file just created, and completes the file. none: one line for each method
 * that sustains no rate.
 */
int kvd_serving_write(kvd_h5 *f, const kvd_rows *r, const kvd_model_info *model, const char *none,
                      kvd_err *err);

/*
 * Reads the rows of the open file f. Fails if a column that the report needs is missing, if a
 * number is negative or if it is infinite and no objective. The caller frees *rows, also on
 * failure.
 */
int kvd_serving_read(kvd_rows **rows, kvd_h5 *f, kvd_err *err);

#endif
