/*
 * Tables of measured points: 1-D columns of equal length under /rows. The schemas accuracy,
 * kernels, jct and serving use them. Columns are declared once, rows are appended, and the table is
 * written at the end.
 */
#ifndef KVD_FORMATS_ROWS_H
#define KVD_FORMATS_ROWS_H

#include "common/files/h5.h"
#include "common/stats.h"

typedef enum { KVD_COL_TEXT, KVD_COL_INT, KVD_COL_REAL } kvd_column_kind;

typedef struct {
    const char *name; /* dataset /rows/<name> */
    kvd_column_kind kind;
    const char *units;
    const char *long_name;
} kvd_column;

typedef struct kvd_rows kvd_rows;

/*
 * Returns a table without rows; it borrows `columns`. On failure returns NULL and fills *err. The
 * caller frees the table.
 */
kvd_rows *kvd_rows_new(const kvd_column *columns, int n_columns, kvd_err *err);
void kvd_rows_free(kvd_rows *r);
size_t kvd_rows_count(const kvd_rows *r);
/* Appends a row to the table: reals are NaN, ints 0, texts "". */
int kvd_rows_begin(kvd_rows *r, kvd_err *err);
/*
 * Set a field of the newest row. An unknown name or a wrong kind is a programming error (assert).
 * If memory for a text runs out, kvd_rows_write reports it.
 */
void kvd_rows_text(kvd_rows *r, const char *column, const char *value);
void kvd_rows_int(kvd_rows *r, const char *column, int64_t value);
void kvd_rows_real(kvd_rows *r, const char *column, double value);
/*
 * Replaces a text of any row of a loaded or new table. `column` is the index of a text column
 * (assert). On failure returns -1 and fills *err.
 */
int kvd_rows_replace_text(kvd_rows *r, size_t row, int column, const char *value, kvd_err *err);
/* Sets three columns: value in `column`, lo and hi in `column`_lo and `column`_hi. */
void kvd_rows_interval(kvd_rows *r, const char *column, const kvd_interval *x);
/* Writes all columns into /rows, and the samples. A table without rows is an error. */
int kvd_rows_write(kvd_h5 *f, const kvd_rows *r, kvd_err *err);

/*
 * Raw samples: a dataset of doubles whose first axis is the row. The caller must declare them
 * before the first row, in the order of their index. spec: its type and dims[0] are ignored, and
 * its texts are borrowed. The values of a row are NaN after kvd_rows_begin.
 */
int kvd_rows_add_samples(kvd_rows *r, const kvd_h5_spec *spec, kvd_err *err);
/* Returns the samples of a row, which the next kvd_rows_begin may move. */
double *kvd_rows_samples(const kvd_rows *r, int index, size_t row);
/* Returns the declaration of the samples with this index; dims[1 ..] are their shape per row. */
const kvd_h5_spec *kvd_rows_samples_spec(const kvd_rows *r, int index);
/* Reads samples of a loaded table. Fails if their shape is not that of spec for all rows. */
int kvd_rows_load_samples(kvd_h5 *f, kvd_rows *r, const kvd_h5_spec *spec, kvd_err *err);

/*
 * Appends a row of another table, with its samples. Fails if that table lacks a column of *r or has
 * it with another type. Samples of both tables must have the same shapes (assert).
 */
int kvd_rows_take(kvd_rows *r, const kvd_rows *from, size_t row, kvd_err *err);

/*
 * Reads all columns of a file, also those that its schema does not name. Skips datasets of higher
 * rank under /rows (raw samples). Returns NULL and fills *err for columns of unequal length, texts
 * that are not UTF-8, and links out of the file. The caller frees the table.
 */
kvd_rows *kvd_rows_load(kvd_h5 *f, kvd_err *err);
/*
 * Checks a loaded table. needed: names of columns that must be there with the type that `columns`,
 * the table of the schema, gives them; ends with NULL. refused: returns true for a number that the
 * schema does not allow in that row and column. path: the file, for messages.
 */
int kvd_rows_check(const kvd_rows *r, const char *path, const kvd_column *columns, int n_columns,
                   const char *const *needed,
                   bool (*refused)(const kvd_rows *r, size_t row, const char *column, double x),
                   kvd_err *err);
int kvd_rows_columns(const kvd_rows *r);
const kvd_column *kvd_rows_column(const kvd_rows *r, int i);
int kvd_rows_find(const kvd_rows *r, const char *column); /* returns the column's index, or -1 */
/*
 * Return the cell of a row in the column with index `column`, which must have the kind that the
 * function names (assert). Texts belong to the table.
 */
const char *kvd_rows_get_text(const kvd_rows *r, size_t row, int column);
int64_t kvd_rows_get_int(const kvd_rows *r, size_t row, int column);
/* an int column is returned as double */
double kvd_rows_get_real(const kvd_rows *r, size_t row, int column);

/*
 * Return a cell of the column with that name; NaN or "" if the table has no such column, or one of
 * the other kind.
 */
double kvd_row_real(const kvd_rows *r, size_t row, const char *column);
const char *kvd_row_text(const kvd_rows *r, size_t row, const char *column);

/*
 * Print a cell of a table: x by a printf format for one double, or lo and hi by a format for two. A
 * column that does not apply to a row is NaN there and is printed as "-". Return `to`.
 */
const char *kvd_real_text(char *to, size_t size, const char *format, double x);
const char *kvd_interval_text(char *to, size_t size, const char *format, double lo, double hi);

/*
 * Returns a list of JSON objects (json_t of jansson) with one member per column. NaN and infinity,
 * which JSON lacks, become null. Returns NULL if memory runs out. The caller calls json_decref.
 */
struct json_t *kvd_rows_json(const kvd_rows *rows);

#endif
