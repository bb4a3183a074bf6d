/*
 * Tables: 1-D columns of equal length, stored as datasets below the HDF5 group /rows. Columns are
 * declared once, rows are appended in memory, and the table is written at the end.
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
 * Returns an empty table, which the caller frees. `columns` must outlive the table. On failure
 * returns NULL and fills *err.
 */
kvd_rows *kvd_rows_new(const kvd_column *columns, int n_columns, kvd_err *err);
void kvd_rows_free(kvd_rows *r);
size_t kvd_rows_count(const kvd_rows *r);
/* Appends a row in which reals are NaN, integers 0 and texts "". */
int kvd_rows_begin(kvd_rows *r, kvd_err *err);
/*
 * Set one cell of the newest row. An unknown column or a wrong type is a programming error
 * (assert). If memory for a text runs out, the later kvd_rows_write fails.
 */
void kvd_rows_text(kvd_rows *r, const char *column, const char *value);
void kvd_rows_int(kvd_rows *r, const char *column, int64_t value);
void kvd_rows_real(kvd_rows *r, const char *column, double value);
/* Replaces the text in any row. `column` is the index of a text column (assert). */
int kvd_rows_replace_text(kvd_rows *r, size_t row, int column, const char *value, kvd_err *err);
/*
 * Sets cells of the newest row: `column` to the value, `column`_lo and `column`_hi to the ends of
 * the interval.
 */
void kvd_rows_interval(kvd_rows *r, const char *column, const kvd_interval *x);
/* Writes all columns and sample arrays. A table without rows is an error. */
int kvd_rows_write(kvd_h5 *f, const kvd_rows *r, kvd_err *err);

/*
 * Adds a sample array: a dataset of doubles whose first axis is the row of the table. Must be
 * called before the first row. `spec` gives path and shape; its type and dims[0] are ignored. The
 * strings in `spec` must outlive the table. New samples are NaN.
 */
int kvd_rows_add_samples(kvd_rows *r, const kvd_h5_spec *spec, kvd_err *err);
/*
 * Returns the samples of one row in sample array `index`. The pointer is valid until the next
 * kvd_rows_begin.
 */
double *kvd_rows_samples(const kvd_rows *r, int index, size_t row);
/* Returns path and shape of sample array `index`. dims[0], the axis of table rows, is undefined. */
const kvd_h5_spec *kvd_rows_samples_spec(const kvd_rows *r, int index);
/* Reads a sample array. Fails if its shape does not agree with `spec` and the number of rows. */
int kvd_rows_load_samples(kvd_h5 *f, kvd_rows *r, const kvd_h5_spec *spec, kvd_err *err);

/*
 * Appends a copy of one row of `from`, with its samples. Fails if `from` lacks a column of *r or
 * has it with another type. Samples must have equal shapes (assert).
 */
int kvd_rows_take(kvd_rows *r, const kvd_rows *from, size_t row, kvd_err *err);

/*
 * Reads all columns below /rows, also those that the schema does not name. Skips datasets of higher
 * rank. Fails on unequal lengths, texts that are not UTF-8, and links to other files. On failure
 * returns NULL and fills *err. The caller frees the table.
 */
kvd_rows *kvd_rows_load(kvd_h5 *f, kvd_err *err);
/*
 * Checks a loaded table. `needed` is a list, ending with NULL, of the names of columns that must
 * exist. `columns` [n_columns] gives the type of every known column. The function `refused` must
 * return true for a number that is not allowed in its column. `path` is for messages.
 */
int kvd_rows_check(const kvd_rows *r, const char *path, const kvd_column *columns, int n_columns,
                   const char *const *needed,
                   bool (*refused)(const kvd_rows *r, size_t row, const char *column, double x),
                   kvd_err *err);
int kvd_rows_columns(const kvd_rows *r);
const kvd_column *kvd_rows_column(const kvd_rows *r, int i);
/* Returns the index of a column, or -1 if there is none of this name. */
int kvd_rows_find(const kvd_rows *r, const char *column);
/* Return one cell of a column of the matching type (assert). Texts belong to the table. */
const char *kvd_rows_get_text(const kvd_rows *r, size_t row, int column);
int64_t kvd_rows_get_int(const kvd_rows *r, size_t row, int column);
/* Returns one cell of a column of reals or of integers. */
double kvd_rows_get_real(const kvd_rows *r, size_t row, int column);

/*
 * Return the cell of a row in the column with the given name. If the table has no such column of
 * this type, kvd_row_real returns NaN and kvd_row_text returns "".
 */
double kvd_row_real(const kvd_rows *r, size_t row, const char *column);
const char *kvd_row_text(const kvd_rows *r, size_t row, const char *column);

/*
 * kvd_real_text prints the number x into `to`, and kvd_interval_text the interval lo .. hi, by the
 * printf format `format`. Both return `to`, and print "-" for NaN.
 */
const char *kvd_real_text(char *to, size_t size, const char *format, double x);
const char *kvd_interval_text(char *to, size_t size, const char *format, double lo, double hi);

/*
 * Returns the rows as a JSON array of objects. NaN and infinity become null. Returns NULL if memory
 * runs out. The caller calls json_decref.
 */
struct json_t *kvd_rows_json(const kvd_rows *rows);

#endif
