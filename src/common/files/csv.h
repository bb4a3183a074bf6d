/* Reads and writes CSV (RFC 4180), with one callback per row. */
#ifndef KVD_COMMON_FILES_CSV_H
#define KVD_COMMON_FILES_CSV_H

#include <stddef.h>
#include <stdio.h>

#include "common/err.h"

/* Function that is called for every CSV row. Field i has len[i] bytes. Returns -1 to stop the
 * reader. */
typedef int (*kvd_csv_row)(void *ctx, size_t line, char *const *field, const size_t *len,
                           size_t n_fields, kvd_err *err);

/* Fails if a field has a zero byte, which would hide the rest of it from string functions. */
int kvd_csv_check_zero_bytes(char *const *field, const size_t *len, size_t n_fields, kvd_err *err);

/* Calls `row` for every row of a CSV file. A row longer than 64 MiB is an error. */
int kvd_csv_read(const char *path, kvd_csv_row row, void *ctx, kvd_err *err);

/* First field of a CSV file's last row, whose second field is the number of rows before it. A file
 * without this row is incomplete. */
#define KVD_CSV_END "end"

/* Reads table `name` of a CSV file with several tables, or the only table if `name` is NULL. Fails
 * if the table is missing, if a field holds a zero byte, or if the last row is not "end" with the
 * number of rows before it. */
int kvd_csv_read_table(const char *path, const char *name, kvd_csv_row row, void *ctx,
                       kvd_err *err);

/* Parses CSV text in memory. Messages use `name` as the file name. */
int kvd_csv_parse(const char *name, const char *text, size_t len, kvd_csv_row row, void *ctx,
                  kvd_err *err);

/* Writes one field, quoted if necessary, and the separator or line end. */
int kvd_csv_put(FILE *f, const char *field, int last, kvd_err *err);

/* Writes a text. If it begins with =, +, - or @ and is no number, writes an apostrophe first,
 * because spreadsheets would run the text as a formula. */
int kvd_csv_put_text(FILE *f, const char *text, int last, kvd_err *err);

#endif
