/* Loads the tokenizers of tests/data/tokenizers. */
#ifndef KVD_TESTS_TOKENIZER_CASE_H
#define KVD_TESTS_TOKENIZER_CASE_H

#include <string.h>

#include <jansson.h>

#include "model/text/tokenizer.h"
#include "unit.h"

#define TOKENIZERS "tests/data/tokenizers/"

static inline void end_json(void *j)
{
    json_decref(j);
}

/* Reads JSON, freed at the end of the test. */
static inline json_t *load_json(const char *path)
{
    json_error_t why;
    json_t *j = json_load_file(path, JSON_ALLOW_NUL, &why);
    if (!j)
        fail_msg("%s: %s", path, why.text);
    unit_at_end(end_json, j);
    return j;
}

static inline void end_tokenizer(void *t)
{
    kvd_tokenizer_free(t);
}

/* Parses JSON in which single quotes mean double quotes. The result is freed at the end of the
 * test. */
static inline json_t *json_of(const char *text)
{
    json_error_t why;
    json_t *const j = json_loads(double_quotes(text), JSON_DECODE_ANY, &why);
    if (!j)
        fail_msg("%s: %s", text, why.text);
    unit_at_end(end_json, j);
    return j;
}

/* Fails the test if the tokenizer t is NULL. Otherwise frees t at the end of the test. */
static inline kvd_tokenizer *keep_tokenizer(kvd_tokenizer *t, const kvd_err *err)
{
    if (!t)
        fail_msg("%s", err->msg);
    unit_at_end(end_tokenizer, t);
    return t;
}

static inline kvd_tokenizer *must_parse(const char *name, const char *text, size_t len)
{
    kvd_err err;
    kvd_tokenizer *const t = kvd_tokenizer_parse(name, text, len, 0, &err);
    return keep_tokenizer(t, &err);
}

static inline kvd_tokenizer *open_tokenizer(const char *path)
{
    kvd_err err;
    kvd_tokenizer *const t = kvd_tokenizer_open(path, 0, &err);
    return keep_tokenizer(t, &err);
}

static inline void expect_ids(const char *what, const kvd_ids *ids, const json_t *want)
{
    if (ids->n != json_array_size(want))
        fail_msg("%s: %zu ids, not %zu", what, ids->n, json_array_size(want));
    for (size_t i = 0; i < ids->n; i++)
        if (ids->id[i] != json_integer_value(json_array_get(want, i)))
            fail_msg("%s: id %zu is %u, not %d", what, i, ids->id[i],
                     (int)json_integer_value(json_array_get(want, i)));
}

static inline void expect_decoded(const char *what, const kvd_tokenizer *t, const kvd_ids *ids,
                                  const char *want, size_t len)
{
    kvd_err err;
    size_t n;
    char *back = kvd_tokenizer_decode(t, ids->id, ids->n, true, &n, &err);
    if (!back)
        fail_msg("%s: %s", what, err.msg);
    if (n != len || memcmp(back, want, n))
        fail_msg("%s: decodes to '%s', not '%s'", what, back, want);
    assert_int_equal(back[n], 0);
    free(back);
}

/* Loads the tokenizer `base`, but with the top-level JSON fields in `patch` instead of its own. */
static inline kvd_tokenizer *variant(const char *base, json_t *patch)
{
    char path[200];
    (void)snprintf(path, sizeof path, TOKENIZERS "%s.json", base);
    json_t *j = load_json(path);
    assert_int_equal(json_object_update(j, patch), 0);
    char *text = json_dumps(j, JSON_COMPACT);
    kvd_tokenizer *t = must_parse(base, text, strlen(text));
    free(text);
    return t;
}

#endif
