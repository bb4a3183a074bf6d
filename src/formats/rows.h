/*
 * Tables of results: columns of equal length in the HDF5 group /rows, kept in memory until written.
 */
#ifndef KVD_FORMATS_ROWS_H
#define KVD_FORMATS_ROWS_H

#include "common/files/h5.h"
#include "common/stats.h"

typedef enum { KVD_COL_TEXT, KVD_COL_INT, KVD_COL_REAL } kvd_column_kind;

typedef struct {
    const char *name; /* The column is the HDF5 dataset /rows/<name>. */
    kvd_column_kind kind;
    const char *units;
    const char *long_name;
} kvd_column;

typedef struct kvd_rows kvd_rows;

/* Returns an empty table, which the caller frees. `columns` must outlive it. */
kvd_rows *kvd_rows_new(const kvd_column *columns, int n_columns, kvd_err *err);
void kvd_rows_free(kvd_rows *r);
size_t kvd_rows_count(const kvd_rows *r);
/* Appends a row whose cells are NaN (reals), 0 (integers) and "" (texts). */
int kvd_rows_begin(kvd_rows *r, kvd_err *err);
/*
 * Set the cell of the newest row in `column`. An unknown column or a wrong type is a bug (assert).
 */
void kvd_rows_text(kvd_rows *r, const char *column, const char *value);
void kvd_rows_int(kvd_rows *r, const char *column, int64_t value);
void kvd_rows_real(kvd_rows *r, const char *column, double value);
/* Replaces the text of any row in column number `column`, which must be a text column (assert). */
int kvd_rows_replace_text(kvd_rows *r, size_t row, int column, const char *value, kvd_err *err);
/* Sets the cells `column`, `column`_lo and `column`_hi of the newest row. */
void kvd_rows_interval(kvd_rows *r, const char *column, const kvd_interval *x);
/* Writes all columns and sample arrays into the file. A table without rows is an error. */
int kvd_rows_write(kvd_h5 *f, const kvd_rows *r, kvd_err *err);

/*
 * Adds a dataset with several values (samples) per row. Must be called before the first row. *spec
 * must outlive *r.
 */
int kvd_rows_add_samples(kvd_rows *r, const kvd_h5_spec *spec, kvd_err *err);
/* Returns the samples of one row in array `index`, valid until the next kvd_rows_begin. */
double *kvd_rows_samples(const kvd_rows *r, int index, size_t row);
/* Returns name and shape of sample array `index`. dims[0], the axis of rows, is undefined. */
const kvd_h5_spec *kvd_rows_samples_spec(const kvd_rows *r, int index);
/*
 * Reads a sample array from the file. Fails if the shape does not agree with `spec` and the number
 * of rows.
 */
int kvd_rows_load_samples(kvd_h5 *f, kvd_rows *r, const kvd_h5_spec *spec, kvd_err *err);

/*
 * Appends a copy of row `row` of `from`, including its samples. Fails if `from` lacks a column of
 * *r.
 */
int kvd_rows_take(kvd_rows *r, const kvd_rows *from, size_t row, kvd_err *err);

/*
 * Reads all columns of the group /rows. Fails on unequal lengths, bad UTF-8 and links. The caller
 * frees the table.
 */
kvd_rows *kvd_rows_load(kvd_h5 *f, kvd_err *err);
/*
 * Checks a table that was read: it must have the columns `needed` (ended by NULL) and the types of
 * `columns`, and no bad numbers.
 */
int kvd_rows_check(const kvd_rows *r, const char *path, const kvd_column *columns, int n_columns,
                   const char *const *needed,
                   bool (*refused)(const kvd_rows *r, size_t row, const char *column, double x),
                   kvd_err *err);
int kvd_rows_columns(const kvd_rows *r);
const kvd_column *kvd_rows_column(const kvd_rows *r, int i);
int kvd_rows_find(const kvd_rows *r, const char *column);
/*
 * Return the cell of a row and column. The column must have the matching type (assert). Texts
 * belong to the table.
 */
const char *kvd_rows_get_text(const kvd_rows *r, size_t row, int column);
int64_t kvd_rows_get_int(const kvd_rows *r, size_t row, int column);
double kvd_rows_get_real(const kvd_rows *r, size_t row, int column);

/* Return the cell of a row in the named column, or NaN or "" if there is no such column. */
double kvd_row_real(const kvd_rows *r, size_t row, const char *column);
const char *kvd_row_text(const kvd_rows *r, size_t row, const char *column);

/*
 * Print the number x, or the interval lo .. hi, into `to` and return `to`. NaN is printed as "-".
 */
const char *kvd_real_text(char *to, size_t size, const char *format, double x);
const char *kvd_interval_text(char *to, size_t size, const char *format, double lo, double hi);

/*
 * Returns the table as a JSON array with an object per row, or NULL if memory is short. NaN and
 * infinity become null.
 */
struct json_t *kvd_rows_json(const kvd_rows *rows);

#endif
