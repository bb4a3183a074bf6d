/*
 * Results of kvdim-tasks (file kvdim/tasks): one results line per evaluated setting of a method.
 * The groups /generated, /needle and /classified hold the values of every item of tasks generate,
 * needle and classify. Means and intervals can be computed from them again.
 *
 * A measure has the columns NAME, NAME_lo and NAME_hi: its mean and the ends of its confidence
 * interval. If the measure compares with the right answer in the data, it also has NAME_change, its
 * paired difference from the uncompressed model, with an interval. A measure that compares with the
 * output of the uncompressed model does not. With several random seeds a measure has NAME_sd, the
 * standard deviation over seeds.
 */
#ifndef KVD_EVALUATE_TASKS_TASK_TABLE_H
#define KVD_EVALUATE_TASKS_TASK_TABLE_H

#include "evaluate/tasks/task_run.h"
#include "formats/rows.h"
#include "methods/points.h"

/* Size in bytes of a printed results line. */
enum { KVD_TASK_LINE = 1024 };

typedef struct kvd_task_table kvd_task_table;

/*
 * Returns a results table without lines. On failure returns NULL and fills *err. `f` and `config`
 * are borrowed. `label`: name of the texts. `calibrated`: name of the calibration text. `seed`:
 * random seed of the bootstrap.
 */
kvd_task_table *kvd_task_table_new(const kvd_task_run *f, const kvd_config *config,
                                   const char *label, const char *calibrated, bool seeds,
                                   uint64_t seed, kvd_err *err);
void kvd_task_table_free(kvd_task_table *c);

/*
 * Adds a results line. `plan` is the open cache plan that gave the result. If the result is a mean
 * over n_seeds plans with different seeds, `plan` is the first of them. spread
 * [KVD_N_FREE_MEASURES]: standard deviations over seeds, read if n_seeds is above 1.
 */
int kvd_task_table_add(kvd_task_table *c, const char *purpose, const kvd_point *point,
                       const kvd_plan *plan, const kvd_task_result *r, size_t n_seeds,
                       const double *spread, kvd_err *err);

const kvd_rows *kvd_task_table_rows(const kvd_task_table *c);
/*
 * Writes the measures of results line i with their intervals into line [KVD_TASK_LINE]. Returns
 * `line`.
 */
const char *kvd_task_table_line(const kvd_task_table *c, size_t i, char *line);

/*
 * Computes the share of the uncompressed model's mean that results line `row` keeps
 * (kvd_task_share).
 */
int kvd_task_table_share(const kvd_task_table *c, size_t row, kvd_task_measure m, kvd_interval *out,
                         kvd_err *err);

/* Writes the results lines and the values of all items to the file. */
int kvd_task_table_write(kvd_h5 *f, const kvd_task_table *c, kvd_err *err);

#endif
