/* CSV through libcsv: RFC 4180 quoting, rows handed out one at a time, files of any size. */
#ifndef KVD_COMMON_CSV_H
#define KVD_COMMON_CSV_H

#include <stddef.h>
#include <stdio.h>

#include "common/err.h"

/*
 * One row: fields are zero-terminated and valid during the call only; len[i] is
 * the true length (a field may hold a zero byte). line counts rows from 1; empty
 * lines are no rows. Blanks around a field count only inside quotes, and a byte
 * order mark at the start of the file is passed over.
 * Return 0 to go on, -1 (with *err) to stop with an error.
 */
typedef int (*kvd_csv_row)(void *ctx, size_t line, char *const *field, const size_t *len, size_t n_fields,
                           kvd_err *err);

/* Reads a file; errors name the file and the row. A row longer than 64 MiB is refused. */
int kvd_csv_read(const char *path, kvd_csv_row row, void *ctx, kvd_err *err);

/* The same over memory; `name` is for messages. */
int kvd_csv_parse(const char *name, const char *text, size_t len, kvd_csv_row row, void *ctx, kvd_err *err);

/* Writes one field (quoted when it must be) and the separator or line end after it. */
int kvd_csv_put(FILE *f, const char *field, int last, kvd_err *err);

#endif
