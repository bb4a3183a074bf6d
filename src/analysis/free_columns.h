/*
 * Free-running evaluation in kvdim/accuracy: columns of /rows for the tasks that were run, and under /generated, /needle and /classified the raw
 * values of every item, from which means and intervals can be made again.
 *
 * A measure has columns NAME, NAME_lo, NAME_hi; one against the data also NAME_change, its paired difference from the uncompressed
 * model, with its interval; with seeds NAME_sd.
 */
#ifndef KVD_ANALYSIS_FREE_COLUMNS_H
#define KVD_ANALYSIS_FREE_COLUMNS_H

#include "analysis/free_run.h"
#include "formats/rows.h"

typedef struct kvd_free_columns kvd_free_columns;

/* f is borrowed. NULL with *err. */
kvd_free_columns *kvd_free_columns_new(const kvd_free_run *f, bool seeds, kvd_err *err);
void kvd_free_columns_free(kvd_free_columns *c);

int kvd_free_columns_count(const kvd_free_columns *c);
const kvd_column *kvd_free_columns_at(const kvd_free_columns *c, int i);

/* Fields of the row begun last; r without values: it was not run. spread [KVD_N_FREE_MEASURES] over seeds, or NULL. seed: of the bootstrap. */
int kvd_free_columns_add(kvd_free_columns *c, kvd_rows *rows, const kvd_free_result *r, const double *spread,
                         uint64_t seed, kvd_err *err);

/* Raw values of all rows. */
int kvd_free_columns_write(kvd_h5 *f, const kvd_free_columns *c, kvd_err *err);

#endif
