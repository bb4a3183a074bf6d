/* Reads documents: a text file, .jsonl line, .json list entry, or .csv row. */
#ifndef KVD_MODEL_TEXT_DOCUMENTS_H
#define KVD_MODEL_TEXT_DOCUMENTS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

/* Receives a document, which may have zero bytes. Returns 0, 1 to stop, or -1 with *err. */
typedef int (*kvd_document)(void *ctx, const char *text, size_t len, kvd_err *err);

/*
 * Calls `document` in order. Returns 0, 1 if stopped, or -1 with *err. Empty files and missing or
 * empty fields are errors; blank .jsonl lines are skipped.
 *
 *   field  JSON key or CSV column; "a,b" joins two by a line feed; NULL: "text", or a JSON string
 *
 * Endings of tables or compressed files (.tsv, .ndjson, .gz, ...) are refused.
 */
int kvd_documents_read(const char *path, const char *field, kvd_document document, void *ctx,
                       kvd_err *err);

/* Returns true for .jsonl, .json and .csv. */
bool kvd_documents_have_fields(const char *path);
int kvd_documents_no_field(const char *path, const char *field, kvd_err *err);

#endif
