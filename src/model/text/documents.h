/*
 * Reads documents: a plain text file, or each line of a .jsonl file, entry of a .json list, or row
 * of a .csv file with a header row.
 */
#ifndef KVD_MODEL_TEXT_DOCUMENTS_H
#define KVD_MODEL_TEXT_DOCUMENTS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

/*
 * Callback that receives one document. `text` is valid during the call only and may contain zero
 * bytes. Returns 0 to continue, 1 to stop without an error, or -1 with *err.
 */
typedef int (*kvd_document)(void *ctx, const char *text, size_t len, kvd_err *err);

/*
 * Calls `document` for each document of the file, in order. Returns 0, or 1 if `document` stopped
 * the reading. Returns -1 with *err that names the file and the line (or the entry of a JSON list).
 * An empty file is an error, and so is a row whose field is missing or empty. Lines of white space
 * in a .jsonl file are skipped.
 *
 *   field  JSON key or CSV column of the text. "a,b" joins two by a line feed. NULL means "text",
 *          or the value itself in a JSON list of strings. Not used for plain text.
 *
 * A file whose name ends like a table or a compressed file (.tsv, .ndjson, .gz, ...) is refused,
 * because it is no plain text.
 */
int kvd_documents_read(const char *path, const char *field, kvd_document document, void *ctx,
                       kvd_err *err);

/* Returns true if documents of the file have fields: .jsonl, .json and .csv. */
bool kvd_documents_have_fields(const char *path);
/* Fails with a message that names `field` and the file, which has no fields. */
int kvd_documents_no_field(const char *path, const char *field, kvd_err *err);

#endif
