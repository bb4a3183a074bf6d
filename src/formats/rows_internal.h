/*
 * Representation of a table in memory, shared by rows.c, which fills and writes tables, and
 * rows_load.c, which reads them.
 */
#ifndef KVD_FORMATS_ROWS_INTERNAL_H
#define KVD_FORMATS_ROWS_INTERNAL_H

#include "formats/rows.h"

typedef union {
    char *text;
    int64_t integer;
    double real;
} kvd_cell_value;

enum { KVD_MAX_SAMPLES = 8 };

struct kvd_rows {
    const kvd_column *columns;
    kvd_column *owned; /* columns of a table that was loaded; NULL if the columns are borrowed */
    int n_columns;
    size_t n, capacity;
    kvd_cell_value **data; /* [n_columns][capacity] */
    bool lost_text;        /* a text could not be copied: the table cannot be written */
    int n_samples;
    struct {
        kvd_h5_spec spec;
        size_t width;  /* number of values per row */
        double *value; /* [capacity][width] */
    } samples[KVD_MAX_SAMPLES];
};

/* Returns an empty table with these columns, or NULL if memory runs out. */
kvd_rows *kvd_rows_blank(const kvd_column *columns, int n_columns);

#endif
