/* Reads and writes CSV (RFC 4180), with one callback per row. */
#ifndef KVD_COMMON_FILES_CSV_H
#define KVD_COMMON_FILES_CSV_H

#include <stddef.h>
#include <stdio.h>

#include "common/err.h"

/* Is called for every row, with field i of len[i] bytes. Returns -1 to stop. */
typedef int (*kvd_csv_row)(void *ctx, size_t line, char *const *field, const size_t *len,
                           size_t n_fields, kvd_err *err);

/* Fails if a field has a zero byte, which would hide the rest of it from string functions. */
int kvd_csv_check_zero_bytes(char *const *field, const size_t *len, size_t n_fields, kvd_err *err);

/* Calls `row` for every row of a CSV file. A row longer than 64 MiB is an error. */
int kvd_csv_read(const char *path, kvd_csv_row row, void *ctx, kvd_err *err);

/* Marks the last row of a file that shows whether it is complete. The row's second field counts the
 * rows before it. */
#define KVD_CSV_END "end"

/* Reads table `name` of a file with several tables, or all of a file with one if `name` is NULL.
 * Fails if the table is missing, if the file does not close with the row "end" and the right number
 * of rows, or if a field has a zero byte. */
int kvd_csv_read_table(const char *path, const char *name, kvd_csv_row row, void *ctx,
                       kvd_err *err);

/* Parses CSV text in memory. Messages use `name` as the file name. */
int kvd_csv_parse(const char *name, const char *text, size_t len, kvd_csv_row row, void *ctx,
                  kvd_err *err);

/* Writes one field, quoted if necessary, and the separator or line end. */
int kvd_csv_put(FILE *f, const char *field, int last, kvd_err *err);

/* Writes a text. An apostrophe before a first =, +, - or @ keeps spreadsheets from running it. */
int kvd_csv_put_text(FILE *f, const char *text, int last, kvd_err *err);

#endif
