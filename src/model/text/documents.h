/* Reads documents: a text file, or the lines or rows of a .jsonl, .json or .csv file. */
#ifndef KVD_MODEL_TEXT_DOCUMENTS_H
#define KVD_MODEL_TEXT_DOCUMENTS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

/* Callback that receives a document. Returns 0 to continue, 1 to stop, or -1 with *err. */
typedef int (*kvd_document)(void *ctx, const char *text, size_t len, kvd_err *err);

/*
 * Calls `document` for each document. Returns 0, 1 if stopped, or -1 with *err. Empty files and
 * missing or empty fields are errors.
 *
 *   field  JSON key or CSV column; "a,b" joins two by a line feed. NULL means the field "text" or,
 *          if a JSON document is a string, the string.
 *
 * Files whose ending is that of a table or compressed file (.tsv, .gz, ...) are refused.
 */
int kvd_documents_read(const char *path, const char *field, kvd_document document, void *ctx,
                       kvd_err *err);

/* Returns true if the path ends in .jsonl, .json or .csv. Documents of such files have fields. */
bool kvd_documents_have_fields(const char *path);
int kvd_documents_no_field(const char *path, const char *field, kvd_err *err);

#endif
