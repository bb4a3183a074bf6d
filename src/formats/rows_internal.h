/* What a table is in memory: of rows.c, which fills and writes it, and rows_load.c, which reads one. */
#ifndef KVD_FORMATS_ROWS_INTERNAL_H
#define KVD_FORMATS_ROWS_INTERNAL_H

#include "formats/rows.h"

typedef union {
    char *text;
    int64_t integer;
    double real;
} kvd_cell_value;

struct kvd_rows {
    const kvd_column *columns;
    kvd_column *owned; /* columns of a table that was loaded; NULL when they are borrowed */
    int n_columns;
    size_t n, capacity;
    kvd_cell_value **data; /* [n_columns][capacity] */
    bool lost_text;        /* a text could not be copied: the table cannot be written */
};

/* A table without rows; NULL when memory runs out. */
kvd_rows *kvd_rows_blank(const kvd_column *columns, int n_columns);

#endif
