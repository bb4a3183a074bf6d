/* Reads fields of tokenizer.json. Unknown fields are errors, named in messages. */
#ifndef KVD_MODEL_TEXT_TOKENIZER_JSON_FIELDS_H
#define KVD_MODEL_TEXT_TOKENIZER_JSON_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* Fails unless all fields of the object are in the list `known`, separated by spaces. */
int kvd_json_known(const json_t *o, const char *what, const char *known, kvd_err *err);

/* Reads an optional true or false. If it is absent, *value does not change. */
int kvd_json_bool(const json_t *o, const char *what, const char *field, bool *value, kvd_err *err);
int kvd_json_count(const json_t *o, const char *what, const char *field, uint32_t *value,
                   kvd_err *err);

/* Returns the text of a required field. The JSON object owns it. */
const char *kvd_json_text(const json_t *o, const char *what, const char *field, size_t *len,
                          kvd_err *err);
json_t *kvd_json_array(const json_t *o, const char *what, const char *field, kvd_err *err);

/* Calls the function `step` for the tokenizer step that `spec` describes. If that step has type
 * Sequence, calls the function for each element of the step's array with name `list`. */
int kvd_json_steps(const json_t *spec, const char *what, const char *list,
                   int (*step)(void *ctx, const char *type, const json_t *spec, kvd_err *err),
                   void *ctx, kvd_err *err);

/* Returns the text of a required field, which must be a single character of *len bytes. */
const char *kvd_json_character(const json_t *o, const char *what, const char *field, size_t *len,
                               kvd_err *err);

/* pieces of text before which a space marker is put: every piece, only a document's first piece, or
 * none */
typedef enum { KVD_PREPEND_ALWAYS, KVD_PREPEND_FIRST, KVD_PREPEND_NEVER } kvd_prepend;

/* settings of the tokenizer step Metaspace, which replaces spaces by a marker character such as
 * U+2581; decoding replaces the marker by spaces */
typedef struct {
    const char *sign;
    size_t len;
    kvd_prepend prepend;
    bool split;
} kvd_metaspace;
/* Reads and checks a Metaspace object of tokenizer.json. m->sign points into `spec`, which must
 * outlive *m. */
int kvd_json_metaspace(const json_t *spec, const char *what, kvd_metaspace *m, kvd_err *err);

/* Reads a token id, an integer from 0 to 2^31 - 1. */
int kvd_json_id(const json_t *v, const char *what, uint32_t *id, kvd_err *err);

#endif
