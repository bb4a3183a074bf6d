/* Structure of a table of results in memory, shared by rows.c and rows_load.c. */
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
    /* columns that were read from a file and are freed with the table; NULL if the caller owns the
     * columns */
    kvd_column *owned;
    int n_columns;
    size_t n, capacity;
    kvd_cell_value **data; /* cells of each column, [n_columns][capacity] */
    /* true if memory for a text was short, so that the table cannot be written */
    bool lost_text;
    int n_samples;
    struct {
        kvd_h5_spec spec;
        size_t width;  /* number of samples per row */
        double *value; /* samples of all rows, [capacity][width] */
    } samples[KVD_MAX_SAMPLES];
};

/* Returns an empty table, or NULL if memory is short. */
kvd_rows *kvd_rows_blank(const kvd_column *columns, int n_columns);

#endif
