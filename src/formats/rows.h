/*
 * Tables of measured points: 1-D columns of equal length under /rows, as the schemas accuracy,
 * kernels, jct and serving share. Columns are declared once, rows are appended, all is written
 * at the end.
 */
#ifndef KVD_FORMATS_ROWS_H
#define KVD_FORMATS_ROWS_H

#include "common/h5.h"
#include "common/stats.h"

typedef enum { KVD_COL_TEXT, KVD_COL_INT, KVD_COL_REAL } kvd_column_kind;

typedef struct {
    const char *name; /* dataset /rows/<name>          */
    kvd_column_kind kind;
    const char *units;
    const char *long_name;
} kvd_column;

typedef struct kvd_rows kvd_rows;

/* A table without rows; the columns are borrowed. NULL with *err when memory runs out; else the caller frees it. */
kvd_rows *kvd_rows_new(const kvd_column *columns, int n_columns, kvd_err *err);
void kvd_rows_free(kvd_rows *r);
size_t kvd_rows_count(const kvd_rows *r);
/* Starts a row: reals NaN, ints 0, texts "". */
int kvd_rows_begin(kvd_rows *r, kvd_err *err);
/* Set a field of the row begun last; an unknown name or wrong kind is a mistake of ours (assert). A
 * text that cannot be copied for want of memory is reported by kvd_rows_write. */
void kvd_rows_text(kvd_rows *r, const char *column, const char *value);
void kvd_rows_int(kvd_rows *r, const char *column, int64_t value);
void kvd_rows_real(kvd_rows *r, const char *column, double value);
/* value, and lo and hi into <column>_lo and <column>_hi. */
void kvd_rows_interval(kvd_rows *r, const char *column, const kvd_interval *x);
/* All columns into /rows; a table without rows is an error. */
int kvd_rows_write(kvd_h5 *f, const kvd_rows *r, kvd_err *err);

/* Reads every column of a file, whatever they are (the report does not know them beforehand). Data of
 * higher rank under /rows (raw samples) are passed over. NULL with *err for columns of unequal length, texts that are not UTF-8,
 * links out of the file; else the caller frees it. */
kvd_rows *kvd_rows_load(kvd_h5 *f, kvd_err *err);
int kvd_rows_columns(const kvd_rows *r);
const kvd_column *kvd_rows_column(const kvd_rows *r, int i);
int kvd_rows_find(const kvd_rows *r, const char *column); /* index or -1 */
/* A cell of a column of that kind (assert); texts are the table's. */
const char *kvd_rows_get_text(const kvd_rows *r, size_t row, int column);
int64_t kvd_rows_get_int(const kvd_rows *r, size_t row, int column);
double kvd_rows_get_real(const kvd_rows *r, size_t row, int column); /* an int column as double too */

/* The same of a column by its name: NaN and "" where the table has none of that name, or it is of the other kind. */
double kvd_row_real(const kvd_rows *r, size_t row, const char *column);
const char *kvd_row_text(const kvd_rows *r, size_t row, const char *column);

#endif
