/*
 * Reads documents from text files. A plain text file is one document. A .jsonl file has one
 * document per line, a .json list one per entry, and a .csv file (with a header row) one per row.
 */
#ifndef KVD_MODEL_TEXT_DOCUMENTS_H
#define KVD_MODEL_TEXT_DOCUMENTS_H

#include <stddef.h>

#include "common/err.h"

/*
 * Callback that receives one document of `len` bytes, which is valid during the call only and may
 * contain zero bytes. Returns 0 to continue, 1 to stop without an error, or -1 with *err to stop
 * with an error.
 */
typedef int (*kvd_document)(void *ctx, const char *text, size_t len, kvd_err *err);

/*
 * Reads the file `path` and calls `document` for each of its documents, in order.
 *
 *   field  JSON key or CSV column that holds the text. "a,b" joins the values of two keys by a line
 *          feed. NULL means "text", or the value itself in a JSON list of strings. Not used for
 *          plain text.
 *
 * Returns 0, or 1 if `document` stopped the reading. Returns -1 with *err if the file cannot be
 * read or is empty, or if a row is not JSON, lacks the field or has an empty one. The message names
 * the file and the line (for a JSON list, the entry), also before a message of `document`. Lines of
 * white space in a .jsonl file are skipped.
 */
int kvd_documents_read(const char *path, const char *field, kvd_document document, void *ctx,
                       kvd_err *err);

#endif
