/* Results of kvdim-tasks: a table row per method with its parameters, and values per item.
 *
 * Columns NAME, NAME_lo and NAME_hi have a measure's mean and 95 % interval, NAME_change the mean
 * difference from the uncompressed model, NAME_sd the standard deviation over random seeds. */
#ifndef KVD_EVALUATE_TASKS_TASK_TABLE_H
#define KVD_EVALUATE_TASKS_TASK_TABLE_H

#include "evaluate/tasks/task_run.h"
#include "formats/rows.h"
#include "methods/points.h"

/* size of the buffer for a printed line, in bytes */
enum { KVD_TASK_LINE = 1024 };

typedef struct kvd_task_table kvd_task_table;

/* Returns an empty table, or NULL on failure. Borrows `f` and `config`. `label`: name of the
 * evaluated text. `calibrated`: name of the calibration text. */
kvd_task_table *kvd_task_table_new(const kvd_task_run *f, const kvd_config *config,
                                   const char *label, const char *calibrated, bool seeds,
                                   uint64_t seed, kvd_err *err);
void kvd_task_table_free(kvd_task_table *c);

/* Adds a row with the results *r of one method. `point`: parameters of the method. `plan`: the
 * method as it ran, with the first seed if there were several. spread [KVD_N_FREE_MEASURES]:
 * standard deviation of each measure over seeds, used only if n_seeds > 1. */
int kvd_task_table_add(kvd_task_table *c, const char *purpose, const kvd_point *point,
                       const kvd_plan *plan, const kvd_task_result *r, size_t n_seeds,
                       const double *spread, kvd_err *err);

const kvd_rows *kvd_task_table_rows(const kvd_task_table *c);
extern const char kvd_task_heading[], kvd_task_legend[];
/* Writes measure m in row i of the table as text into `line` [KVD_TASK_LINE], and returns `line`.
 * Returns NULL if the measure is not printed, or the row has no value of it. */
const char *kvd_task_table_line(const kvd_task_table *c, size_t i, kvd_task_measure m, char *line);

int kvd_task_table_share(const kvd_task_table *c, size_t row, kvd_task_measure m, kvd_interval *out,
                         kvd_err *err);

int kvd_task_table_write(kvd_h5 *f, const kvd_task_table *c, kvd_err *err);

#endif
