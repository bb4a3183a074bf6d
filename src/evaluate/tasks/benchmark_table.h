/* Results of benchmarks, for files of format kvdim/tasks: a table with a row per method and task,
 * and one with a row per method and answer. */
#ifndef KVD_EVALUATE_TASKS_BENCHMARK_TABLE_H
#define KVD_EVALUATE_TASKS_BENCHMARK_TABLE_H

#include "evaluate/tasks/benchmark_run.h"
#include "formats/rows.h"
#include "methods/points.h"

enum { KVD_BENCHMARK_LINE = 720 };

typedef struct kvd_benchmark_table kvd_benchmark_table;

/* Returns an empty table, or NULL on failure. Borrows `r` and `config`. `calibrated`: name of the
 * calibration text. */
kvd_benchmark_table *kvd_benchmark_table_new(const kvd_benchmark_run *r, const kvd_config *config,
                                             const char *calibrated, uint64_t seed, kvd_err *err);
void kvd_benchmark_table_free(kvd_benchmark_table *t);

/* Adds a row per task and, if there are several tasks, a row for their mean. Takes ownership of
 * *result and zeroes it. The uncompressed model must be added first. */
int kvd_benchmark_table_add(kvd_benchmark_table *t, const char *purpose, const kvd_point *point,
                            const kvd_plan *plan, kvd_benchmark_result *result, kvd_err *err);

/* Divides the mean score of the method that was added last by the uncompressed model's mean score,
 * which must not be 0. *out receives the quotient with a bootstrap interval. */
int kvd_benchmark_table_share(const kvd_benchmark_table *t, kvd_interval *out, kvd_err *err);

const kvd_rows *kvd_benchmark_table_rows(const kvd_benchmark_table *t);
extern const char kvd_benchmark_heading[], kvd_benchmark_legend[];
/* Writes row i of the benchmark table as text into `line` [KVD_BENCHMARK_LINE]. Returns `line`. */
const char *kvd_benchmark_table_line(const kvd_benchmark_table *t, size_t i, char *line);

/* Warns on stderr of tasks on which the uncompressed model scores 0. `program`: name that begins
 * the message. */
void kvd_benchmark_table_warn_zeros(const kvd_benchmark_table *t, const char *program);

int kvd_benchmark_table_write(kvd_h5 *f, const kvd_benchmark_table *t, kvd_err *err);

#endif
