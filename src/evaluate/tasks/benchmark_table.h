/*
 * Results of benchmarks as a file of schema kvdim/tasks: one results line under /rows per evaluated
 * setting and task, and one element of the arrays /answers/... per setting and answer.
 */
#ifndef KVD_EVALUATE_TASKS_BENCHMARK_TABLE_H
#define KVD_EVALUATE_TASKS_BENCHMARK_TABLE_H

#include "evaluate/tasks/benchmark_run.h"
#include "formats/rows.h"
#include "methods/points.h"

/* Size in bytes of a printed results line. */
enum { KVD_BENCHMARK_LINE = 400 };

typedef struct kvd_benchmark_table kvd_benchmark_table;

/*
 * Returns a results table without lines. On failure returns NULL and fills *err. `r` and `config`
 * are borrowed. `calibrated` is the name of the calibration text; `seed` is the random seed of the
 * bootstrap.
 */
kvd_benchmark_table *kvd_benchmark_table_new(const kvd_benchmark_run *r, const kvd_config *config,
                                             const char *calibrated, uint64_t seed, kvd_err *err);
void kvd_benchmark_table_free(kvd_benchmark_table *t);

/*
 * Adds the result of one evaluated setting, whose cache plan must be open: a results line for every
 * task and, if there are several, one for their mean, in which every task has equal weight. The
 * table takes over the result. The uncompressed model must come first, because changes are
 * differences from its scores, paired by item.
 */
int kvd_benchmark_table_add(kvd_benchmark_table *t, const kvd_point *point, const kvd_plan *plan,
                            kvd_benchmark_result *result, kvd_err *err);

const kvd_rows *kvd_benchmark_table_rows(const kvd_benchmark_table *t);
extern const char kvd_benchmark_heading[];
/* Writes results line i as text into line [KVD_BENCHMARK_LINE]. Returns `line`. */
const char *kvd_benchmark_table_line(const kvd_benchmark_table *t, size_t i, char *line);

/* Writes the results lines and the generated answers to the file. */
int kvd_benchmark_table_write(kvd_h5 *f, const kvd_benchmark_table *t, kvd_err *err);

#endif
