/* Tables of results: columns of equal length in the HDF5 group /rows. */
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
/* Appends a row of empty cells: NaN, 0 or "", depending on the column's type. */
int kvd_rows_begin(kvd_rows *r, kvd_err *err);
/* Set a cell of the newest row. An unknown column or wrong type is a bug (assert). */
void kvd_rows_text(kvd_rows *r, const char *column, const char *value);
void kvd_rows_int(kvd_rows *r, const char *column, int64_t value);
void kvd_rows_real(kvd_rows *r, const char *column, double value);
/* Replaces a text of column number `column`, which must hold texts (assert). */
int kvd_rows_replace_text(kvd_rows *r, size_t row, int column, const char *value, kvd_err *err);
/* Sets `column`, `column`_lo and `column`_hi of the newest row to the interval's value, lower end
 * and upper end. */
void kvd_rows_interval(kvd_rows *r, const char *column, const kvd_interval *x);
/* Writes table *r into file f. An empty table is an error. */
int kvd_rows_write(kvd_h5 *f, const kvd_rows *r, kvd_err *err);

/* Adds a dataset with several values per row to the table. Call it before any row is added. *spec
 * must outlive *r. */
int kvd_rows_add_samples(kvd_rows *r, const kvd_h5_spec *spec, kvd_err *err);
/* Returns the values of a row in array number `index`. The result is valid until the next
 * kvd_rows_begin. */
double *kvd_rows_samples(const kvd_rows *r, int index, size_t row);
/* Returns name and shape of array number `index`, which has several values per row of the table.
 * dims[0], the number of rows, is undefined. */
const kvd_h5_spec *kvd_rows_samples_spec(const kvd_rows *r, int index);
/* Reads an array with several values per row from the file. Its shape must agree with `spec`. */
int kvd_rows_load_samples(kvd_h5 *f, kvd_rows *r, const kvd_h5_spec *spec, kvd_err *err);

/* Appends a copy of a row of `from`. Fails if `from` lacks a column. */
int kvd_rows_take(kvd_rows *r, const kvd_rows *from, size_t row, kvd_err *err);

/* Reads a table of results, which the caller frees. Fails if columns differ in length, on invalid
 * UTF-8, or if a column is a soft or external link. */
kvd_rows *kvd_rows_load(kvd_h5 *f, kvd_err *err);
/* Fails if the table lacks a column named in `needed` (ended by NULL), if such a column has another
 * type than in `columns`, or if `refused` returns true for a number. */
int kvd_rows_check(const kvd_rows *r, const char *path, const kvd_column *columns, int n_columns,
                   const char *const *needed,
                   bool (*refused)(const kvd_rows *r, size_t row, const char *column, double x),
                   kvd_err *err);
int kvd_rows_columns(const kvd_rows *r);
const kvd_column *kvd_rows_column(const kvd_rows *r, int i);
int kvd_rows_find(const kvd_rows *r, const char *column);
/* Return a cell. The type of the column must fit the function (checked by assert). Returned texts
 * belong to the table. */
const char *kvd_rows_get_text(const kvd_rows *r, size_t row, int column);
int64_t kvd_rows_get_int(const kvd_rows *r, size_t row, int column);
double kvd_rows_get_real(const kvd_rows *r, size_t row, int column);

/* Return a cell of a named column, or NaN or "" if there is no such column. */
double kvd_row_real(const kvd_rows *r, size_t row, const char *column);
const char *kvd_row_text(const kvd_rows *r, size_t row, const char *column);

/* Print x, or the interval lo .. hi, into `to` and return `to`. NaN becomes "-". */
const char *kvd_real_text(char *to, size_t size, const char *format, double x);
const char *kvd_interval_text(char *to, size_t size, const char *format, double lo, double hi);

/* Returns a JSON array with one object per row, or NULL if memory is short. NaN and infinity become
 * null. */
struct json_t *kvd_rows_json(const kvd_rows *rows);

#endif
