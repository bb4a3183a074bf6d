/* Reads fields of JSON objects; unknown fields are errors. Messages name object and field. */
#ifndef KVD_MODEL_TEXT_TOKENIZER_JSON_FIELDS_H
#define KVD_MODEL_TEXT_TOKENIZER_JSON_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* Fails unless `o` is an object whose fields are in `known`, separated by spaces. */
int kvd_json_known(const json_t *o, const char *what, const char *known, kvd_err *err);

/* Reads an optional field; if it is absent, *value does not change. */
int kvd_json_bool(const json_t *o, const char *what, const char *field, bool *value, kvd_err *err);
int kvd_json_count(const json_t *o, const char *what, const char *field, uint32_t *value,
                   kvd_err *err);

/* Returns the value of a required field, which the object owns, or NULL with *err. */
const char *kvd_json_text(const json_t *o, const char *what, const char *field, size_t *len,
                          kvd_err *err);
json_t *kvd_json_array(const json_t *o, const char *what, const char *field, kvd_err *err);

/* Returns the string in the field "type", or NULL with *err. */
const char *kvd_json_type(const json_t *o, const char *what, kvd_err *err);

/* Reads a token id, an integer from 0 to 2^31 - 1. */
int kvd_json_id(const json_t *v, const char *what, uint32_t *id, kvd_err *err);

#endif
