/* Reads and writes CSV (RFC 4180), with one callback per row. */
#ifndef KVD_COMMON_FILES_CSV_H
#define KVD_COMMON_FILES_CSV_H

#include <stddef.h>
#include <stdio.h>

#include "common/err.h"

/*
 * Callback for one row. Fields end with a zero byte and are valid only during the call. len[i] is
 * the length of field i, which may hold zero bytes. `line` is the number of the row, from 1; empty
 * lines are not counted. Blanks around a field are removed, except inside quotes. Returns 0 to
 * continue, or -1 with *err to stop.
 */
typedef int (*kvd_csv_row)(void *ctx, size_t line, char *const *field, const size_t *len,
                           size_t n_fields, kvd_err *err);

/*
 * Reads a CSV file and calls `row` for every row. Errors name the file and the row. A row longer
 * than 64 MiB is an error.
 */
int kvd_csv_read(const char *path, kvd_csv_row row, void *ctx, kvd_err *err);

/*
 * First field of the last row of a CSV file that holds several tables. The second field of that row
 * is the number of rows before it, so that a file that was cut off is recognised.
 */
#define KVD_CSV_END "end"

/*
 * Reads one of several tables in a file. The first field of every row is the name of its table, and
 * is not passed to the callback. Row 1 is the table's heading. Fails if no row has the name, or if
 * the last row is not KVD_CSV_END with the number of rows.
 */
int kvd_csv_read_table(const char *path, const char *name, kvd_csv_row row, void *ctx,
                       kvd_err *err);

/* Parses CSV text in memory. `name` is used in messages like the name of a file. */
int kvd_csv_parse(const char *name, const char *text, size_t len, kvd_csv_row row, void *ctx,
                  kvd_err *err);

/* Writes one field, quoted if necessary, and then the separator or line end. */
int kvd_csv_put(FILE *f, const char *field, int last, kvd_err *err);

/*
 * Writes a text so that spreadsheets do not run it as a formula: if the text begins with "=", "+",
 * "-", "@", a tab or a carriage return, writes an apostrophe before it. Numbers and single
 * characters stay unchanged.
 */
int kvd_csv_put_text(FILE *f, const char *text, int last, kvd_err *err);

#endif
