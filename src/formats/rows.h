/* Tables: columns of equal length in the HDF5 group /rows, kept in memory until written. */
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
/* Appends a row in which reals are NaN, integers 0 and texts "". */
int kvd_rows_begin(kvd_rows *r, kvd_err *err);
/* Set a cell of the newest row. An unknown column or a wrong type is a bug (assert). */
void kvd_rows_text(kvd_rows *r, const char *column, const char *value);
void kvd_rows_int(kvd_rows *r, const char *column, int64_t value);
void kvd_rows_real(kvd_rows *r, const char *column, double value);
/* Replaces the text in any row. `column` must be a text column (assert). */
int kvd_rows_replace_text(kvd_rows *r, size_t row, int column, const char *value, kvd_err *err);
/* Sets the cells `column`, `column`_lo and `column`_hi of the newest row. */
void kvd_rows_interval(kvd_rows *r, const char *column, const kvd_interval *x);
/* Writes all columns and sample arrays. A table without rows is an error. */
int kvd_rows_write(kvd_h5 *f, const kvd_rows *r, kvd_err *err);

/* Adds a dataset with several values per row. Call before the first row. *spec must outlive *r. */
int kvd_rows_add_samples(kvd_rows *r, const kvd_h5_spec *spec, kvd_err *err);
/* Returns the samples of one row in array `index`, valid until the next kvd_rows_begin. */
double *kvd_rows_samples(const kvd_rows *r, int index, size_t row);
/* Returns path and shape of sample array `index`. dims[0], the axis of rows, is undefined. */
const kvd_h5_spec *kvd_rows_samples_spec(const kvd_rows *r, int index);
/* Reads a sample array. Fails if the shape does not agree with `spec` and the number of rows. */
int kvd_rows_load_samples(kvd_h5 *f, kvd_rows *r, const kvd_h5_spec *spec, kvd_err *err);

/* Appends a copy of a row of `from`, with samples. Fails if `from` lacks a column of *r. */
int kvd_rows_take(kvd_rows *r, const kvd_rows *from, size_t row, kvd_err *err);

/* Reads all columns of /rows. Fails on unequal lengths, bad UTF-8, links. Caller frees the rows. */
kvd_rows *kvd_rows_load(kvd_h5 *f, kvd_err *err);
/* Checks a loaded table: `needed` columns (ended by NULL), types of `columns`, bad numbers. */
int kvd_rows_check(const kvd_rows *r, const char *path, const kvd_column *columns, int n_columns,
                   const char *const *needed,
                   bool (*refused)(const kvd_rows *r, size_t row, const char *column, double x),
                   kvd_err *err);
int kvd_rows_columns(const kvd_rows *r);
const kvd_column *kvd_rows_column(const kvd_rows *r, int i);
int kvd_rows_find(const kvd_rows *r, const char *column);
/* Return one cell of a column of the matching type (assert). Texts belong to the table. */
const char *kvd_rows_get_text(const kvd_rows *r, size_t row, int column);
int64_t kvd_rows_get_int(const kvd_rows *r, size_t row, int column);
double kvd_rows_get_real(const kvd_rows *r, size_t row, int column);

/* Return the cell of a row in the named column, or NaN or "" if there is no such column. */
double kvd_row_real(const kvd_rows *r, size_t row, const char *column);
const char *kvd_row_text(const kvd_rows *r, size_t row, const char *column);

/* Print the number x, or the interval lo .. hi, into `to`. NaN is printed as "-". Return `to`. */
const char *kvd_real_text(char *to, size_t size, const char *format, double x);
const char *kvd_interval_text(char *to, size_t size, const char *format, double lo, double hi);

/* Returns a JSON array of objects, or NULL without memory. NaN and infinity become null. */
struct json_t *kvd_rows_json(const kvd_rows *rows);

#endif
