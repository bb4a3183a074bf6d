/*
 * Tables: 1-D columns of equal length, datasets of the HDF5 group /rows, appended by row and
 * written at the end.
 */
#ifndef KVD_FORMATS_ROWS_H
#define KVD_FORMATS_ROWS_H

#include "common/files/h5.h"
#include "common/stats.h"

typedef enum { KVD_COL_TEXT, KVD_COL_INT, KVD_COL_REAL } kvd_column_kind;

typedef struct {
    const char *name; /* HDF5 dataset /rows/<name> */
    kvd_column_kind kind;
    const char *units;
    const char *long_name;
} kvd_column;

typedef struct kvd_rows kvd_rows;

/*
 * Returns an empty table, which the caller frees; `columns` must outlive it. On failure returns
 * NULL and fills *err.
 */
kvd_rows *kvd_rows_new(const kvd_column *columns, int n_columns, kvd_err *err);
void kvd_rows_free(kvd_rows *r);
size_t kvd_rows_count(const kvd_rows *r);
/* Appends a row of NaN, 0 and "". */
int kvd_rows_begin(kvd_rows *r, kvd_err *err);
/*
 * Set one cell of the newest row. An unknown column or wrong type is an assert. Without memory for
 * a text, kvd_rows_write fails later.
 */
void kvd_rows_text(kvd_rows *r, const char *column, const char *value);
void kvd_rows_int(kvd_rows *r, const char *column, int64_t value);
void kvd_rows_real(kvd_rows *r, const char *column, double value);
/* Replaces the text in any row; `column` is a text column (assert). */
int kvd_rows_replace_text(kvd_rows *r, size_t row, int column, const char *value, kvd_err *err);
/* Sets `column`, `column`_lo and `column`_hi of the newest row. */
void kvd_rows_interval(kvd_rows *r, const char *column, const kvd_interval *x);
/* Writes all columns and sample arrays. A table without rows is an error. */
int kvd_rows_write(kvd_h5 *f, const kvd_rows *r, kvd_err *err);

/*
 * Adds a dataset of doubles, NaN at first, whose first axis is the table's row. Call before the
 * first row. `spec`: path and shape (its type and dims[0] are ignored); its strings must outlive
 * the table.
 */
int kvd_rows_add_samples(kvd_rows *r, const kvd_h5_spec *spec, kvd_err *err);
/* Returns a row's samples in array `index`, valid until the next kvd_rows_begin. */
double *kvd_rows_samples(const kvd_rows *r, int index, size_t row);
/* Returns path and shape of sample array `index`; dims[0], the rows, is undefined. */
const kvd_h5_spec *kvd_rows_samples_spec(const kvd_rows *r, int index);
/* Fails if the shape does not agree with `spec` and the number of rows. */
int kvd_rows_load_samples(kvd_h5 *f, kvd_rows *r, const kvd_h5_spec *spec, kvd_err *err);

/*
 * Appends a copy of one row of `from` with its samples (equal shapes: assert). Fails if `from`
 * lacks a column of *r or its type differs.
 */
int kvd_rows_take(kvd_rows *r, const kvd_rows *from, size_t row, kvd_err *err);

/*
 * Reads all columns of /rows, also unknown ones, but not of higher rank. Fails on unequal lengths,
 * invalid UTF-8 and links to other files. On failure returns NULL and fills *err. The caller frees
 * the table.
 */
kvd_rows *kvd_rows_load(kvd_h5 *f, kvd_err *err);
/*
 * Checks a loaded table: columns `needed` (NULL-ended) exist, columns [n_columns] have their types,
 * and `refused` is false for each number. `path`: for messages.
 */
int kvd_rows_check(const kvd_rows *r, const char *path, const kvd_column *columns, int n_columns,
                   const char *const *needed,
                   bool (*refused)(const kvd_rows *r, size_t row, const char *column, double x),
                   kvd_err *err);
int kvd_rows_columns(const kvd_rows *r);
const kvd_column *kvd_rows_column(const kvd_rows *r, int i);
/* Returns the index of a column, or -1. */
int kvd_rows_find(const kvd_rows *r, const char *column);
/* Return one cell of a column of the matching type (assert). Texts belong to the table. */
const char *kvd_rows_get_text(const kvd_rows *r, size_t row, int column);
int64_t kvd_rows_get_int(const kvd_rows *r, size_t row, int column);
/* Returns one cell of a column of reals or of integers. */
double kvd_rows_get_real(const kvd_rows *r, size_t row, int column);

/* Return a row's cell in the named column; NaN or "" without such a column. */
double kvd_row_real(const kvd_rows *r, size_t row, const char *column);
const char *kvd_row_text(const kvd_rows *r, size_t row, const char *column);

/*
 * Print x, or the interval lo .. hi, into `to` by the printf format `format`, "-" for NaN. Return
 * `to`.
 */
const char *kvd_real_text(char *to, size_t size, const char *format, double x);
const char *kvd_interval_text(char *to, size_t size, const char *format, double lo, double hi);

/*
 * Returns the rows as a JSON array of objects, null for NaN and infinity; NULL without memory. The
 * caller calls json_decref.
 */
struct json_t *kvd_rows_json(const kvd_rows *rows);

#endif
