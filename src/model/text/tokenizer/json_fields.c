#include "model/text/tokenizer/json_fields.h"

#include <stdio.h>
#include <string.h>

#include "common/utf8.h"

static bool listed(const char *list, const char *name)
{
    const size_t n = strlen(name);
    while (*list) {
        const size_t len = strcspn(list, " ");
        if (len == n && !memcmp(list, name, n))
            return true;
        list += len + (list[len] == ' ');
    }
    return false;
}

int kvd_json_known(const json_t *o, const char *what, const char *known, kvd_err *err)
{
    if (!json_is_object(o))
        return kvd_fail(err, "%s: not a JSON object", what);
    for (void *it = json_object_iter((json_t *)o); it; it = json_object_iter_next((json_t *)o, it))
        if (!listed(known, json_object_iter_key(it)))
            return kvd_fail(err, "%s: field '%s' is not supported", what, json_object_iter_key(it));
    return 0;
}

int kvd_json_bool(const json_t *o, const char *what, const char *field, bool *value, kvd_err *err)
{
    const json_t *v = json_object_get(o, field);
    if (!v)
        return 0;
    if (!json_is_boolean(v))
        return kvd_fail(err, "%s: field '%s' is not true or false", what, field);
    *value = json_is_true(v);
    return 0;
}

int kvd_json_id(const json_t *v, const char *what, uint32_t *id, kvd_err *err)
{
    if (!json_is_integer(v))
        return kvd_fail(err, "%s: not an integer", what);
    const json_int_t i = json_integer_value(v);
    if (i < 0 || i > INT32_MAX)
        return kvd_fail(err, "%s: %" JSON_INTEGER_FORMAT " is not in 0..2147483647", what, i);
    *id = (uint32_t)i;
    return 0;
}

int kvd_json_count(const json_t *o, const char *what, const char *field, uint32_t *value,
                   kvd_err *err)
{
    const json_t *v = json_object_get(o, field);
    if (!v)
        return 0;
    if (kvd_json_id(v, field, value, err))
        return kvd_in(err, "%s", what);
    return 0;
}

const char *kvd_json_text(const json_t *o, const char *what, const char *field, size_t *len,
                          kvd_err *err)
{
    const json_t *v = json_object_get(o, field);
    if (!json_is_string(v)) {
        kvd_fail(err, "%s: field '%s' is %s", what, field, v ? "not a string" : "missing");
        return NULL;
    }
    *len = json_string_length(v);
    return json_string_value(v);
}

const char *kvd_json_character(const json_t *o, const char *what, const char *field, size_t *len,
                               kvd_err *err)
{
    const char *const text = kvd_json_text(o, what, field, len, err);
    if (!text || (*len && *len == kvd_utf8_width(text[0])))
        return text;
    kvd_fail(err, "%s: %s '%.40s' is not one character", what, field, text);
    return NULL;
}

int kvd_json_metaspace(const json_t *spec, const char *what, kvd_metaspace *m, kvd_err *err)
{
    static const char *const schemes[] = {"always", "first", "never"};
    const char *scheme = schemes[0];
    bool space = true;
    size_t len, k = 0;
    m->split = true;
    if (kvd_json_known(spec, what, "type replacement add_prefix_space prepend_scheme split str_rep",
                       err) ||
        !(m->sign = kvd_json_character(spec, what, "replacement", &m->len, err)) ||
        kvd_json_bool(spec, what, "add_prefix_space", &space, err) ||
        kvd_json_bool(spec, what, "split", &m->split, err) ||
        (json_object_get(spec, "prepend_scheme") &&
         !(scheme = kvd_json_text(spec, what, "prepend_scheme", &len, err))))
        return -1;
    while (k < 3 && strcmp(scheme, schemes[k]))
        k++;
    if (k == 3)
        return kvd_fail(err, "%s: prepend_scheme '%s' is not supported", what, scheme);
    if (!space && k != KVD_PREPEND_NEVER)
        return kvd_fail(err, "%s: add_prefix_space is false, prepend_scheme is '%s'", what, scheme);
    m->prepend = (kvd_prepend)k;
    return 0;
}

json_t *kvd_json_array(const json_t *o, const char *what, const char *field, kvd_err *err)
{
    json_t *v = json_object_get(o, field);
    if (!json_is_array(v)) {
        kvd_fail(err, "%s: field '%s' is %s", what, field, v ? "not an array" : "missing");
        return NULL;
    }
    return v;
}

/* Returns the string in the field "type" of a JSON object, or NULL with *err. */
static const char *type_of(const json_t *o, const char *what, kvd_err *err)
{
    size_t len;
    if (!json_is_object(o)) {
        kvd_fail(err, "%s: not a JSON object", what);
        return NULL;
    }
    const char *type = kvd_json_text(o, what, "type", &len, err);
    if (type && strlen(type) != len) {
        kvd_fail(err, "%s: field 'type' holds a zero byte", what);
        return NULL;
    }
    return type;
}

typedef struct {
    const char *what, *list;
    int (*step)(void *ctx, const char *type, const json_t *spec, kvd_err *err);
    void *ctx;
} walk;

static int walk_steps(const walk *w, const json_t *spec, int depth, kvd_err *err)
{
    enum { NESTING_MAX = 32 };
    const char *const type = type_of(spec, w->what, err);
    char name[64], known[64];
    if (!type)
        return -1;
    if (depth > NESTING_MAX)
        return kvd_fail(err, "%s: nested deeper than %d", w->what, NESTING_MAX);
    if (strcmp(type, "Sequence"))
        return w->step(w->ctx, type, spec, err);
    (void)snprintf(name, sizeof name, "%s Sequence", w->what);
    (void)snprintf(known, sizeof known, "type %s", w->list);
    const json_t *list;
    if (kvd_json_known(spec, name, known, err) ||
        !(list = kvd_json_array(spec, name, w->list, err)))
        return -1;
    for (size_t i = 0; i < json_array_size(list); i++)
        if (walk_steps(w, json_array_get(list, i), depth + 1, err))
            return -1;
    return 0;
}

int kvd_json_steps(const json_t *spec, const char *what, const char *list,
                   int (*step)(void *ctx, const char *type, const json_t *spec, kvd_err *err),
                   void *ctx, kvd_err *err)
{
    const walk w = {what, list, step, ctx};
    return walk_steps(&w, spec, 0, err);
}
