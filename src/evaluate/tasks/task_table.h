/*
 * Results of kvdim-tasks (file kvdim/tasks): one line per setting; /generated, /needle, /classified
 * hold every item's values.
 *
 * A measure has columns NAME, NAME_lo, NAME_hi (mean, confidence interval); measures against right
 * answers also NAME_change, the paired difference from the uncompressed model, with interval;
 * several seeds NAME_sd.
 */
#ifndef KVD_EVALUATE_TASKS_TASK_TABLE_H
#define KVD_EVALUATE_TASKS_TASK_TABLE_H

#include "evaluate/tasks/task_run.h"
#include "formats/rows.h"
#include "methods/points.h"

/* Bytes of a printed results line. */
enum { KVD_TASK_LINE = 1024 };

typedef struct kvd_task_table kvd_task_table;

/*
 * Returns an empty table, or NULL on failure. Borrows `f` and `config`. label, calibrated: names of
 * texts; seed: of the bootstrap.
 */
kvd_task_table *kvd_task_table_new(const kvd_task_run *f, const kvd_config *config,
                                   const char *label, const char *calibrated, bool seeds,
                                   uint64_t seed, kvd_err *err);
void kvd_task_table_free(kvd_task_table *c);

/*
 * Adds a line. plan: open, the first of n_seeds if a mean. spread [KVD_N_FREE_MEASURES]: standard
 * deviations over seeds, if n_seeds > 1.
 */
int kvd_task_table_add(kvd_task_table *c, const char *purpose, const kvd_point *point,
                       const kvd_plan *plan, const kvd_task_result *r, size_t n_seeds,
                       const double *spread, kvd_err *err);

const kvd_rows *kvd_task_table_rows(const kvd_task_table *c);
/* Writes line i's measures with intervals into line [KVD_TASK_LINE]. Returns `line`. */
const char *kvd_task_table_line(const kvd_task_table *c, size_t i, char *line);

/* Computes line `row`'s share of the uncompressed mean (kvd_task_share). */
int kvd_task_table_share(const kvd_task_table *c, size_t row, kvd_task_measure m, kvd_interval *out,
                         kvd_err *err);

/* Writes the results lines and the values of all items to the file. */
int kvd_task_table_write(kvd_h5 *f, const kvd_task_table *c, kvd_err *err);

#endif
