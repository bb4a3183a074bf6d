/*
 * Reads CSV files through libcsv and writes CSV fields: RFC 4180 quoting, files of any size, one
 * callback per row.
 */
#ifndef KVD_COMMON_FILES_CSV_H
#define KVD_COMMON_FILES_CSV_H

#include <stddef.h>
#include <stdio.h>

#include "common/err.h"

/*
 * Callback for one row of a CSV file. Fields are zero-terminated and valid during the call only;
 * len[i] is the true length, because a field may hold a zero byte. `line` counts rows from 1; empty
 * lines are not rows. Blanks around a field count only inside quotes; a byte order mark at the
 * start of the file is skipped. Returns 0 to continue, or -1 with *err to stop with an error.
 */
typedef int (*kvd_csv_row)(void *ctx, size_t line, char *const *field, const size_t *len,
                           size_t n_fields, kvd_err *err);

/*
 * Reads a CSV file and calls `row` for each row. Errors name the file and the row. A row longer
 * than 64 MiB is refused.
 */
int kvd_csv_read(const char *path, kvd_csv_row row, void *ctx, kvd_err *err);

/*
 * Reads one table of a CSV file that holds several, in which the first field of every row is the
 * name of its table. Calls `row` for the rows of the table `name` without this field; `line` counts
 * the rows of the table from 1, so that row 1 is its heading. Fails if no row has the name.
 */
int kvd_csv_read_table(const char *path, const char *name, kvd_csv_row row, void *ctx,
                       kvd_err *err);

/* Parses CSV text in memory as kvd_csv_read does a file; `name` is used in messages. */
int kvd_csv_parse(const char *name, const char *text, size_t len, kvd_csv_row row, void *ctx,
                  kvd_err *err);

/* Writes one CSV field, quoted if necessary, and the separator or line end after it. */
int kvd_csv_put(FILE *f, const char *field, int last, kvd_err *err);

/*
 * Writes a CSV field of text for a table that people open in a spreadsheet. Spreadsheets run a
 * field that starts with = + - @ tab or carriage return as a formula. Such a text gets an
 * apostrophe in front, unless it is a number or one character long.
 */
int kvd_csv_put_text(FILE *f, const char *text, int last, kvd_err *err);

#endif
