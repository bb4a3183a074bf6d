/* Reads documents: a text file, or the lines or rows of a .jsonl, .json or .csv file. */
#ifndef KVD_MODEL_TEXT_DOCUMENTS_H
#define KVD_MODEL_TEXT_DOCUMENTS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

/* Is called for each document. Returns 0 to continue, 1 to stop, or -1 with *err. */
typedef int (*kvd_document)(void *ctx, const char *text, size_t len, kvd_err *err);

/* Calls `document` for each document of a file. Returns 1 if `document` stopped the reading, -1
 * with *err on failure, otherwise 0. Empty files and empty fields are failures.
 *
 * - field: JSON key or CSV column; "a,b" joins the texts of two fields with a line feed; NULL means
 *   "text" */
int kvd_documents_read(const char *path, const char *field, kvd_document document, void *ctx,
                       kvd_err *err);

/* Returns true for .jsonl, .json and .csv, whose documents have fields. */
bool kvd_documents_have_fields(const char *path);
int kvd_documents_no_field(const char *path, const char *field, kvd_err *err);

#endif
