/*
 * Results of benchmarks in a file of schema kvdim/tasks: lines under /rows per setting and task,
 * and arrays /answers/... per setting and answer.
 */
#ifndef KVD_EVALUATE_TASKS_BENCHMARK_TABLE_H
#define KVD_EVALUATE_TASKS_BENCHMARK_TABLE_H

#include "evaluate/tasks/benchmark_run.h"
#include "formats/rows.h"
#include "methods/points.h"

enum { KVD_BENCHMARK_LINE = 400 };

typedef struct kvd_benchmark_table kvd_benchmark_table;

/*
 * Returns an empty table. On failure returns NULL and fills *err. `r` and `config` are borrowed.
 * `calibrated` names the calibration text; `seed` is that of the bootstrap.
 */
kvd_benchmark_table *kvd_benchmark_table_new(const kvd_benchmark_run *r, const kvd_config *config,
                                             const char *calibrated, uint64_t seed, kvd_err *err);
void kvd_benchmark_table_free(kvd_benchmark_table *t);

/*
 * Adds the lines of one setting, whose plan must be open: one per task and, if there are several
 * tasks, one for the mean over tasks, in which tasks have equal weight. Afterwards the table owns
 * *result. The uncompressed model must come first, because changes are paired differences from it.
 */
int kvd_benchmark_table_add(kvd_benchmark_table *t, const char *purpose, const kvd_point *point,
                            const kvd_plan *plan, kvd_benchmark_result *result, kvd_err *err);

/*
 * Divides the mean score of the setting that was added last by the mean score of the uncompressed
 * model. Tasks have equal weight; the 95 % interval draws items of all tasks. Fails if the
 * uncompressed model scores 0.
 */
int kvd_benchmark_table_share(const kvd_benchmark_table *t, kvd_interval *out, kvd_err *err);

const kvd_rows *kvd_benchmark_table_rows(const kvd_benchmark_table *t);
extern const char kvd_benchmark_heading[];
/* Writes row i as text into line [KVD_BENCHMARK_LINE] and returns `line`. */
const char *kvd_benchmark_table_line(const kvd_benchmark_table *t, size_t i, char *line);

int kvd_benchmark_table_write(kvd_h5 *f, const kvd_benchmark_table *t, kvd_err *err);

#endif
