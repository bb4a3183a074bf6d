/* Reads and writes CSV (RFC 4180), with one callback per row. */
#ifndef KVD_COMMON_FILES_CSV_H
#define KVD_COMMON_FILES_CSV_H

#include <stddef.h>
#include <stdio.h>

#include "common/err.h"

/*
 * Callback for a row. Lines count from 1. Field i has len[i] bytes, which may include zero bytes.
 * Returns -1 to stop.
 */
typedef int (*kvd_csv_row)(void *ctx, size_t line, char *const *field, const size_t *len,
                           size_t n_fields, kvd_err *err);

/* Calls `row` for every row of a CSV file. A row longer than 64 MiB is an error. */
int kvd_csv_read(const char *path, kvd_csv_row row, void *ctx, kvd_err *err);

/*
 * Value of the first field in the last row of a file with several tables. The second field of that
 * row is the number of rows.
 */
#define KVD_CSV_END "end"

/*
 * Reads table `name` of a file with several tables, without the first column. Fails if the table or
 * the last row is missing.
 */
int kvd_csv_read_table(const char *path, const char *name, kvd_csv_row row, void *ctx,
                       kvd_err *err);

/* Parses CSV text in memory. Messages use `name` as the file name. */
int kvd_csv_parse(const char *name, const char *text, size_t len, kvd_csv_row row, void *ctx,
                  kvd_err *err);

/* Writes one field, quoted if necessary, and the separator or line end. */
int kvd_csv_put(FILE *f, const char *field, int last, kvd_err *err);

/*
 * Writes a text as a field. A text that begins with "=", "+", "-" or "@" gets an apostrophe in
 * front, so that no spreadsheet runs it.
 */
int kvd_csv_put_text(FILE *f, const char *text, int last, kvd_err *err);

#endif
