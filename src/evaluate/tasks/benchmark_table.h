/*
 * Results of benchmarks as a file of schema kvdim/tasks: one row under /rows per measurement point
 * and task, and one element of /answers/... per point and answer.
 */
#ifndef KVD_EVALUATE_TASKS_BENCHMARK_TABLE_H
#define KVD_EVALUATE_TASKS_BENCHMARK_TABLE_H

#include "evaluate/tasks/benchmark_run.h"
#include "formats/rows.h"
#include "methods/points.h"

/* Size in bytes of the text line that describes a result row. */
enum { KVD_BENCHMARK_LINE = 400 };

typedef struct kvd_benchmark_table kvd_benchmark_table;

/*
 * Returns a table without rows; on failure NULL with *err. `r` and `config` are borrowed.
 * `calibrated` is the name of the text of the calibration activations, `seed` is the seed of the
 * bootstrap.
 */
kvd_benchmark_table *kvd_benchmark_table_new(const kvd_benchmark_run *r, const kvd_config *config,
                                             const char *calibrated, uint64_t seed, kvd_err *err);
void kvd_benchmark_table_free(kvd_benchmark_table *t);

/*
 * Adds the result of a plan, which must be open: a row for every task and, if there are several,
 * one for their mean, in which every task has equal weight. The table takes over the result. The
 * uncompressed model must come first, because changes are differences from it, paired by item.
 */
int kvd_benchmark_table_add(kvd_benchmark_table *t, const kvd_point *point, const kvd_plan *plan,
                            kvd_benchmark_result *result, kvd_err *err);

const kvd_rows *kvd_benchmark_table_rows(const kvd_benchmark_table *t);
extern const char kvd_benchmark_heading[];
/* Writes result row i as text into line [KVD_BENCHMARK_LINE]. Returns line. */
const char *kvd_benchmark_table_line(const kvd_benchmark_table *t, size_t i, char *line);

/* Writes the result rows and the generated answers to the file. */
int kvd_benchmark_table_write(kvd_h5 *f, const kvd_benchmark_table *t, kvd_err *err);

#endif
