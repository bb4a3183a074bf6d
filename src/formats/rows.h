/*
 * Results tables: 1-D columns of equal length, stored as datasets below the HDF5 group /rows.
 * Columns are declared once, rows are appended in memory, and the table is written at the end. The
 * files of kvdim-eval, kvdim-attn, kvdim-jct and kvdim-serve consist of such tables.
 */
#ifndef KVD_FORMATS_ROWS_H
#define KVD_FORMATS_ROWS_H

#include "common/files/h5.h"
#include "common/stats.h"

typedef enum { KVD_COL_TEXT, KVD_COL_INT, KVD_COL_REAL } kvd_column_kind;

typedef struct {
    const char *name; /* the column is the HDF5 dataset /rows/<name> */
    kvd_column_kind kind;
    const char *units;
    const char *long_name;
} kvd_column;

typedef struct kvd_rows kvd_rows;

/*
 * Returns a results table without rows. The array `columns` must outlive the table. On failure
 * returns NULL and fills *err. The caller frees the table.
 */
kvd_rows *kvd_rows_new(const kvd_column *columns, int n_columns, kvd_err *err);
void kvd_rows_free(kvd_rows *r);
size_t kvd_rows_count(const kvd_rows *r);
/* Appends a row to the table, with reals NaN, integers 0 and texts "". */
int kvd_rows_begin(kvd_rows *r, kvd_err *err);
/*
 * Set one cell of the newest row. An unknown column name or a wrong type is a programming error
 * (assert). If memory for a text runs out, kvd_rows_write reports it later.
 */
void kvd_rows_text(kvd_rows *r, const char *column, const char *value);
void kvd_rows_int(kvd_rows *r, const char *column, int64_t value);
void kvd_rows_real(kvd_rows *r, const char *column, double value);
/*
 * Replaces the text in one cell of any row. `column` is the index of a text column (assert). On
 * failure returns -1 and fills *err.
 */
int kvd_rows_replace_text(kvd_rows *r, size_t row, int column, const char *value, kvd_err *err);
/*
 * Sets three cells of the newest row: value in `column`, and the interval's ends in `column`_lo and
 * `column`_hi.
 */
void kvd_rows_interval(kvd_rows *r, const char *column, const kvd_interval *x);
/*
 * Writes all columns into the HDF5 group /rows, and the arrays of samples. A table without rows is
 * an error.
 */
int kvd_rows_write(kvd_h5 *f, const kvd_rows *r, kvd_err *err);

/*
 * Adds an array of samples to the table: a dataset of doubles whose first axis is the row of the
 * table. The caller must add it before the first row. `spec` gives its path and shape; the type and
 * dims[0] are ignored, and its texts must outlive the table. A new row has NaN samples.
 */
int kvd_rows_add_samples(kvd_rows *r, const kvd_h5_spec *spec, kvd_err *err);
/*
 * Returns the samples of one row of the table, from the array of samples number `index`. The
 * pointer is valid until the next kvd_rows_begin.
 */
double *kvd_rows_samples(const kvd_rows *r, int index, size_t row);
/*
 * Returns the path and shape of the array of samples number `index`. Its first axis is the row of
 * the table; dims[1 ..] are the lengths of the other axes.
 */
const kvd_h5_spec *kvd_rows_samples_spec(const kvd_rows *r, int index);
/*
 * Reads an array of samples of a loaded table. Fails if its shape does not agree with `spec` and
 * the number of rows.
 */
int kvd_rows_load_samples(kvd_h5 *f, kvd_rows *r, const kvd_h5_spec *spec, kvd_err *err);

/*
 * Appends a copy of one row of the table `from`, with its samples. Fails if `from` lacks a column
 * of *r or has it with another type. Samples of both tables must have equal shapes (assert).
 */
int kvd_rows_take(kvd_rows *r, const kvd_rows *from, size_t row, kvd_err *err);

/*
 * Reads all columns below /rows of a file, also those that its schema does not name. Skips datasets
 * of higher rank (raw samples). Returns NULL and fills *err if columns have unequal lengths, a text
 * is not UTF-8, or a link leads to another file. The caller frees the table.
 */
kvd_rows *kvd_rows_load(kvd_h5 *f, kvd_err *err);
/*
 * Checks a loaded table. `needed`: names of columns that must exist, with the type that they have
 * in `columns`; ends with NULL. `refused`: returns true for a number that is not allowed in that
 * row and column. `path`: the file name for error messages.
 */
int kvd_rows_check(const kvd_rows *r, const char *path, const kvd_column *columns, int n_columns,
                   const char *const *needed,
                   bool (*refused)(const kvd_rows *r, size_t row, const char *column, double x),
                   kvd_err *err);
int kvd_rows_columns(const kvd_rows *r);
const kvd_column *kvd_rows_column(const kvd_rows *r, int i);
/* Returns the index of the column with this name, or -1. */
int kvd_rows_find(const kvd_rows *r, const char *column);
/*
 * Return one cell, given the row and the index of a column, which must have the type that the
 * function names (assert). The table owns the texts.
 */
const char *kvd_rows_get_text(const kvd_rows *r, size_t row, int column);
int64_t kvd_rows_get_int(const kvd_rows *r, size_t row, int column);
/* Returns an integer cell converted to double, too. */
double kvd_rows_get_real(const kvd_rows *r, size_t row, int column);

/*
 * Return one cell, given the row and the name of a column. If the table has no such column, or one
 * of another type, the result is NaN or "".
 */
double kvd_row_real(const kvd_rows *r, size_t row, const char *column);
const char *kvd_row_text(const kvd_rows *r, size_t row, const char *column);

/*
 * Print a number x (or two, lo and hi) into `to` by a printf format, for a cell of a text table.
 * NaN, which marks a column that does not apply to a row, is printed as "-". Return `to`.
 */
const char *kvd_real_text(char *to, size_t size, const char *format, double x);
const char *kvd_interval_text(char *to, size_t size, const char *format, double lo, double hi);

/*
 * Returns the rows of a table as a JSON array (json_t of jansson) of objects with one member per
 * column. NaN and infinity, which JSON lacks, become null. Returns NULL if memory runs out. The
 * caller calls json_decref.
 */
struct json_t *kvd_rows_json(const kvd_rows *rows);

#endif
