/* Loads the tokenizers of tests/data/tokenizers. */
#ifndef KVD_TESTS_TOKENIZER_CASE_H
#define KVD_TESTS_TOKENIZER_CASE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "model/text/tokenizer.h"
#include "unit.h"

#define DATA "tests/data/tokenizers/"

static inline json_t *load_json(const char *path)
{
    json_error_t why;
    json_t *j = json_load_file(path, JSON_ALLOW_NUL, &why);
    if (!j)
        fail_msg("%s: %s", path, why.text);
    return j;
}

static inline kvd_tokenizer *must_parse(const char *name, const char *text, size_t len)
{
    kvd_err err;
    kvd_tokenizer *t = kvd_tokenizer_parse(name, text, len, 0, &err);
    if (!t)
        fail_msg("%s", err.msg);
    return t;
}

/* Loads tokenizer `base` after replacing top-level JSON fields by those of `patch`. */
static inline kvd_tokenizer *variant(const char *base, json_t *patch)
{
    char path[200];
    (void)snprintf(path, sizeof path, DATA "%s.json", base);
    json_t *j = load_json(path);
    assert_int_equal(json_object_update(j, patch), 0);
    char *text = json_dumps(j, JSON_COMPACT);
    kvd_tokenizer *t = must_parse(base, text, strlen(text));
    free(text);
    json_decref(j);
    return t;
}

#endif
