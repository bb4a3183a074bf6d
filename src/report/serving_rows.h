/* Reads what kvdim-serve writes, and one row of it as the report sees it. */
#ifndef KVD_REPORT_SERVING_ROWS_H
#define KVD_REPORT_SERVING_ROWS_H

#include "report/results.h"

/* f is open; the caller frees *rows. Columns that the report cannot do without must be there; times and
 * shares must not be negative, and infinite only where no objective was set. */
int kvd_serving_read(kvd_rows **rows, kvd_h5 *f, kvd_err *err);

typedef struct {
    const kvd_result *file;
    size_t row;
    const char *kind;       /* "point", "max-rate", "validation"                                */
    char place[KVD_LABEL];  /* "model on H200: trace; 2 replicas; chunks of 512": rows that can be compared */
    char series[KVD_LABEL]; /* the method                                                        */
} kvd_serving_entry;

typedef struct {
    kvd_serving_entry *item;
    size_t n;
} kvd_serving_entries;

/* All rows of all files by place, in the order of the files within it; texts are made fit for legends.
 * *out is empty when there are none. */
int kvd_serving_collect(const kvd_results *r, kvd_serving_entries *out, kvd_err *err);
void kvd_serving_entries_release(kvd_serving_entries *e);

/* A value of the row: NaN or "" when the file has no such column. */
double kvd_serving_real(const kvd_serving_entry *e, const char *column);
const char *kvd_serving_text(const kvd_serving_entry *e, const char *column);

/* The row of method none in the same place, of the same kind, and of a point at the same rate; NULL
 * without one. */
const kvd_serving_entry *kvd_serving_uncompressed(const kvd_serving_entries *all, const kvd_serving_entry *e);

#endif
