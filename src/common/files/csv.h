/* Reads and writes CSV (RFC 4180), with one callback per row. */
#ifndef KVD_COMMON_FILES_CSV_H
#define KVD_COMMON_FILES_CSV_H

#include <stddef.h>
#include <stdio.h>

#include "common/err.h"

/*
 * Callback for row `line` (from 1, without empty lines). Fields are valid during the call; len[i]
 * counts zero bytes within field i. Unquoted blanks around a field are removed. Returns 0, or -1
 * with *err to stop.
 */
typedef int (*kvd_csv_row)(void *ctx, size_t line, char *const *field, const size_t *len,
                           size_t n_fields, kvd_err *err);

/* Reads a CSV file and calls `row` for every row. Rows of more than 64 MiB are an error. */
int kvd_csv_read(const char *path, kvd_csv_row row, void *ctx, kvd_err *err);

/*
 * First field of the last row of a file of several tables; the second is the number of earlier
 * rows.
 */
#define KVD_CSV_END "end"

/*
 * Reads table `name` of a file of several tables: the first field of each row names the table and
 * is not passed on; row 1 is the heading. Fails without such a table or a correct KVD_CSV_END row.
 */
int kvd_csv_read_table(const char *path, const char *name, kvd_csv_row row, void *ctx,
                       kvd_err *err);

/* Parses CSV text in memory. Messages use `name` like a file name. */
int kvd_csv_parse(const char *name, const char *text, size_t len, kvd_csv_row row, void *ctx,
                  kvd_err *err);

/* Writes one field, quoted if necessary, and the separator or line end. */
int kvd_csv_put(FILE *f, const char *field, int last, kvd_err *err);

/*
 * Writes a text, with an apostrophe before "=", "+", "-", "@", tab or carriage return, so that
 * spreadsheets run no formula. Numbers and single characters stay unchanged.
 */
int kvd_csv_put_text(FILE *f, const char *text, int last, kvd_err *err);

#endif
