/*
 * Benchmark results in kvdim/tasks files: /rows has a row per method and task, /answers a row per
 * method and answer.
 */
#ifndef KVD_EVALUATE_TASKS_BENCHMARK_TABLE_H
#define KVD_EVALUATE_TASKS_BENCHMARK_TABLE_H

#include "evaluate/tasks/benchmark_run.h"
#include "formats/rows.h"
#include "methods/points.h"

enum { KVD_BENCHMARK_LINE = 400 };

typedef struct kvd_benchmark_table kvd_benchmark_table;

/*
 * Creates an empty table, or returns NULL. Borrows `r` and `config`. `calibrated` names the
 * calibration text, `seed` is the bootstrap's.
 */
kvd_benchmark_table *kvd_benchmark_table_new(const kvd_benchmark_run *r, const kvd_config *config,
                                             const char *calibrated, uint64_t seed, kvd_err *err);
void kvd_benchmark_table_free(kvd_benchmark_table *t);

/*
 * Adds a row for each task and, if there are several, one for their mean with equal weights. Owns
 * *result. The uncompressed model must come first.
 */
int kvd_benchmark_table_add(kvd_benchmark_table *t, const char *purpose, const kvd_point *point,
                            const kvd_plan *plan, kvd_benchmark_result *result, kvd_err *err);

/*
 * Computes the latest mean score divided by that of the uncompressed model, with a 95 % interval.
 * Fails if the uncompressed model scores 0.
 */
int kvd_benchmark_table_share(const kvd_benchmark_table *t, kvd_interval *out, kvd_err *err);

const kvd_rows *kvd_benchmark_table_rows(const kvd_benchmark_table *t);
extern const char kvd_benchmark_heading[];
/* Writes row i as text into line [KVD_BENCHMARK_LINE] and returns `line`. */
const char *kvd_benchmark_table_line(const kvd_benchmark_table *t, size_t i, char *line);

int kvd_benchmark_table_write(kvd_h5 *f, const kvd_benchmark_table *t, kvd_err *err);

#endif
