/*
 * Documents from text files: a plain text file is one document; a .jsonl file gives one per line,
 * a .json list one per entry, a .csv file (with a header row) one per row.
 */
#ifndef KVD_MODEL_DOCUMENTS_H
#define KVD_MODEL_DOCUMENTS_H

#include <stddef.h>

#include "common/err.h"

/* text [len], valid during the call only; it may hold zero bytes. Return 0 to go on, 1 to stop
 * without an error, -1 (with *err) to stop with one. */
typedef int (*kvd_document)(void *ctx, const char *text, size_t len, kvd_err *err);

/*
 * Reads `path` and calls `document` for each of its documents, in order.
 *
 *   field  JSON key or CSV column; "a,b" joins the two by a line feed; NULL: "text", or the value
 *          itself in a JSON list of strings. Not used for plain text.
 *
 * Returns 0, or 1 when `document` stopped the reading. Returns -1 with *err on a file that cannot
 * be read or is empty, on a row that is not JSON, lacks the field or has nothing in it; the message
 * names the file and the line (JSON list: the entry). Errors of `document` get the same in front.
 * Lines of white space in a .jsonl file are passed over.
 */
int kvd_documents_read(const char *path, const char *field, kvd_document document, void *ctx, kvd_err *err);

#endif
