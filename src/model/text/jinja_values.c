/* Operations on values of Jinja templates: conversions, methods, filters and tests. */
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "model/text/jinja_run.h"

void kvd_jinja_stop(run *r, const char *why)
{
    r->broken = r->broken ? r->broken : why;
}

json_t *kvd_jinja_raise(run *r, const char *why)
{
    r->raised = r->raised ? r->raised : why;
    return r->undefined;
}

void kvd_jinja_count(run *r, size_t bytes)
{
    r->bytes += bytes;
    if (r->bytes > MAX_BYTES)
        kvd_jinja_stop(r, "it runs too long");
}

size_t kvd_jinja_bytes(const json_t *v)
{
    return json_string_length(v) + (json_array_size(v) + json_object_size(v)) * sizeof v;
}

bool kvd_jinja_is_space(const run *r, const json_t *v)
{
    size_t i;
    json_t *space;
    json_array_foreach(r->spaces, i, space) if (space == v) return true;
    return false;
}

json_t *kvd_jinja_keep(run *r, json_t *value)
{
    if (++r->steps > MAX_STEPS)
        json_decref(value);
    if (!value || r->steps > MAX_STEPS || json_array_append_new(r->kept, value)) {
        kvd_jinja_stop(r, "it is too long or there is no memory");
        return r->undefined;
    }
    return value;
}

json_t *kvd_jinja_text(run *r, const char *s, size_t n)
{
    kvd_jinja_count(r, n);
    return kvd_jinja_keep(r, json_stringn(s, n));
}

void kvd_jinja_put(run *r, const char *s, size_t n)
{
    buffer *const b = &r->out;
    kvd_jinja_count(r, n);
    if (n > MAX_OUTPUT - b->n) {
        kvd_jinja_stop(r, "it writes too much");
        return;
    }
    if (b->n + n + 1 > b->capacity) {
        const size_t capacity = 2 * (b->n + n + 1);
        char *const more = realloc(b->s, capacity);
        if (!more) {
            kvd_jinja_stop(r, "there is no memory");
            return;
        }
        b->s = more;
        b->capacity = capacity;
    }
    memcpy(b->s + b->n, s, n);
    b->n += n;
    b->s[b->n] = '\0';
}

bool kvd_jinja_is_true(const run *r, const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_STRING:
        return json_string_length(v) > 0;
    case JSON_ARRAY:
        return !is_undefined(r, v) && json_array_size(v) > 0;
    case JSON_OBJECT:
        return json_object_size(v) > 0;
    case JSON_INTEGER:
        return json_integer_value(v) != 0;
    default:
        return json_is_true(v);
    }
}

static bool are_elements_equal(run *r, const json_t *a, const json_t *b)
{
    bool same = kvd_jinja_bytes(a) == kvd_jinja_bytes(b);
    const char *key;
    json_t *x;
    size_t i;
    if (++r->depth > MAX_DEPTH)
        kvd_jinja_stop(r, "it is nested too deeply");
    json_array_foreach(a, i, x)
    {
        same = same && !r->broken && kvd_jinja_is_equal(r, x, json_array_get(b, i));
    }
    json_object_foreach((json_t *)(uintptr_t)a, key, x)
    {
        const json_t *const y = json_object_get(b, key);
        same = same && !r->broken && y && kvd_jinja_is_equal(r, x, y);
    }
    r->depth--;
    return same;
}

bool kvd_jinja_is_equal(run *r, const json_t *a, const json_t *b)
{
    kvd_jinja_count(r, kvd_jinja_bytes(a) + COMPARISON);
    if (a == b || is_undefined(r, a) || is_undefined(r, b))
        return a == b;
    if (is_number(a) && is_number(b))
        return number_of(a) == number_of(b);
    if (json_typeof(a) != json_typeof(b) || !(json_is_array(a) || json_is_object(a)))
        return json_equal(a, b);
    kvd_jinja_count(r, kvd_jinja_bytes(r->spaces));
    return !kvd_jinja_is_space(r, a) && !kvd_jinja_is_space(r, b) && are_elements_equal(r, a, b);
}

/* Writes a value as Python's str does. */
void kvd_jinja_put_value(run *r, const json_t *v)
{
    char digits[24];
    if (is_undefined(r, v))
        return;
    if (json_is_string(v))
        kvd_jinja_put(r, json_string_value(v), json_string_length(v));
    else if (json_is_integer(v))
        kvd_jinja_put(
            r, digits,
            (size_t)snprintf(digits, sizeof digits, "%lld", (long long)json_integer_value(v)));
    else if (json_is_null(v))
        kvd_jinja_put(r, "None", 4);
    else if (json_is_boolean(v))
        kvd_jinja_put(r, json_is_true(v) ? "True" : "False", json_is_true(v) ? 4 : 5);
    else
        kvd_jinja_raise(r, "it writes a list, a dictionary or a fraction");
}

json_t *kvd_jinja_end_capture(run *r, buffer before)
{
    json_t *const v = kvd_jinja_text(r, r->out.s ? r->out.s : "", r->out.n);
    free(r->out.s);
    r->out = before;
    return v;
}

buffer kvd_jinja_begin_capture(run *r)
{
    const buffer before = r->out;
    r->out = (buffer){0};
    return before;
}

json_t *kvd_jinja_bool(run *r, bool on)
{
    return kvd_jinja_keep(r, json_boolean(on));
}

/* Returns the byte offset of character i in the text s, which has n bytes. Returns n if the text
 * has no such character. */
static size_t byte_at(const char *s, size_t n, size_t i)
{
    size_t at = 0;
    while (i-- && at < n)
        at += kvd_utf8_width(s[at]);
    return at;
}

size_t kvd_jinja_length(const json_t *v)
{
    size_t n = 0;
    if (!json_is_string(v))
        return json_is_object(v) ? json_object_size(v) : json_array_size(v);
    for (size_t at = 0; at < json_string_length(v); n++)
        at += kvd_utf8_width(json_string_value(v)[at]);
    return n;
}

json_t *kvd_jinja_part(run *r, const json_t *v, size_t from, size_t to)
{
    if (json_is_string(v)) {
        const char *const s = json_string_value(v);
        const size_t n = json_string_length(v), a = byte_at(s, n, from), b = byte_at(s, n, to);
        return kvd_jinja_text(r, s + a, b > a ? b - a : 0);
    }
    json_t *const list = kvd_jinja_keep(r, json_array());
    for (size_t i = from; i < to && !r->broken; i++)
        json_array_append(list, json_array_get(v, i));
    return list;
}

json_t *kvd_jinja_item(run *r, const json_t *v, const json_t *key)
{
    json_t *found = NULL;
    if (is_undefined(r, v))
        return kvd_jinja_raise(r, "it looks into an undefined value");
    if (json_is_object(v) && json_is_string(key))
        found = json_object_get(v, json_string_value(key));
    else if (json_is_integer(key) && (json_is_array(v) || json_is_string(v))) {
        const json_int_t n = (json_int_t)kvd_jinja_length(v), i = json_integer_value(key);
        const json_int_t at = i < 0 ? n + i : i;
        if (at >= 0 && at < n)
            found = json_is_array(v) ? json_array_get(v, (size_t)at)
                                     : kvd_jinja_part(r, v, (size_t)at, (size_t)at + 1);
    }
    return found ? found : r->undefined;
}

bool kvd_jinja_contains(run *r, const json_t *list, const json_t *v)
{
    size_t i;
    json_t *element;
    if (json_is_string(list) && json_is_string(v))
        return strstr(json_string_value(list), json_string_value(v)) != NULL;
    if (json_is_object(list) && json_is_string(v))
        return json_object_get(list, json_string_value(v)) != NULL;
    if (!json_is_array(list)) {
        kvd_jinja_raise(r, "it looks for a value in neither a text, a list nor a dictionary");
        return false;
    }
    json_array_foreach(list, i, element) if (kvd_jinja_is_equal(r, element, v)) return true;
    return false;
}

/* Removes white space or, if `chars` is not NULL, the characters `chars` from the left end of a
 * text (if `left`) and from its right end (if `right`). */
static json_t *strip(run *r, const json_t *v, const char *chars, bool left, bool right)
{
    const char *s = json_string_value(v);
    size_t n = json_string_length(v);
    unsigned width;
    for (size_t k; left && n; s += k, n -= k) {
        const uint32_t c = kvd_utf8_decode(s, &width);
        if (chars ? c >= 128 || !strchr(chars, (int)c)
                  : !kvd_utf8_is_space(c) && (c < 0x1c || c > 0x1f))
            break;
        k = width;
    }
    for (size_t k; right && n; n = k) {
        const uint32_t c = kvd_utf8_decode(s + (k = kvd_utf8_before(s, n)), &width);
        if (chars ? c >= 128 || !strchr(chars, (int)c)
                  : !kvd_utf8_is_space(c) && (c < 0x1c || c > 0x1f))
            break;
    }
    return kvd_jinja_text(r, s, n);
}

static json_t *replace(run *r, const json_t *v, const json_t *from, const json_t *to)
{
    if (!json_is_string(from) || !json_is_string(to) || !json_string_length(from))
        return kvd_jinja_raise(r, "it replaces text in a way that is not supported");
    const buffer before = kvd_jinja_begin_capture(r);
    const char *s = json_string_value(v);
    for (const char *hit; (hit = strstr(s, json_string_value(from)));
         s = hit + json_string_length(from)) {
        kvd_jinja_put(r, s, (size_t)(hit - s));
        kvd_jinja_put_value(r, to);
    }
    kvd_jinja_put(r, s, strlen(s));
    return kvd_jinja_end_capture(r, before);
}

static json_t *split(run *r, const json_t *v, const arguments *a)
{
    const json_int_t most = a->n > 1 && json_is_integer(a->value[1]) ? number_of(a->value[1]) : -1;
    if (!a->n || !json_is_string(a->value[0]) || !json_string_length(a->value[0]))
        return kvd_jinja_raise(r, "it splits text in a way that is not supported");
    json_t *const list = kvd_jinja_keep(r, json_array());
    const char *s = json_string_value(v), *hit;
    for (json_int_t i = 0;
         i != most && !r->broken && (hit = strstr(s, json_string_value(a->value[0]))); i++) {
        json_array_append(list, kvd_jinja_text(r, s, (size_t)(hit - s)));
        s = hit + json_string_length(a->value[0]);
    }
    json_array_append(list, kvd_jinja_text(r, s, strlen(s)));
    return list;
}

/* Returns s in capitals or small letters. */
static json_t *change_case(run *r, const json_t *v, bool capitals)
{
    const buffer before = kvd_jinja_begin_capture(r);
    for (const char *s = json_string_value(v); *s; s++) {
        const char c = (char)(capitals ? toupper((unsigned char)*s) : tolower((unsigned char)*s));
        if ((unsigned char)*s >= 128)
            kvd_jinja_raise(r, "it changes the case of letters beyond ASCII");
        kvd_jinja_put(r, &c, 1);
    }
    return kvd_jinja_end_capture(r, before);
}

static bool is_end(const json_t *v, const json_t *end, bool start)
{
    const size_t n = json_string_length(v), k = json_string_length(end);
    return n >= k && !memcmp(json_string_value(v) + (start ? 0 : n - k), json_string_value(end), k);
}

json_t *kvd_jinja_entries(run *r, json_t *v, bool keys, bool values)
{
    json_t *const list = kvd_jinja_keep(r, json_array()), *value;
    const char *key;
    json_object_foreach(v, key, value)
    {
        json_t *const name = kvd_jinja_text(r, key, strlen(key));
        if (keys && values) {
            json_t *const pair = kvd_jinja_keep(r, json_array());
            json_array_append(pair, name);
            json_array_append(pair, value);
            json_array_append(list, pair);
        } else
            json_array_append(list, keys ? name : value);
    }
    return list;
}

json_t *kvd_jinja_method(run *r, json_t *v, const char *name, const arguments *a)
{
    const char *const chars =
        a->n && json_is_string(a->value[0]) ? json_string_value(a->value[0]) : NULL;
    const bool no_chars = !a->n;
    if (json_is_string(v) && !json_object_size(a->named)) {
        const bool left = strcmp(name, "rstrip") != 0, right = strcmp(name, "lstrip") != 0;
        if ((!strcmp(name, "strip") || !left || !right) && (chars || no_chars))
            return strip(r, v, chars, left, right);
        if (!strcmp(name, "split"))
            return split(r, v, a);
        if (!strcmp(name, "replace") && a->n == 2)
            return replace(r, v, a->value[0], a->value[1]);
        if ((!strcmp(name, "startswith") || !strcmp(name, "endswith")) && chars && a->n == 1)
            return kvd_jinja_bool(r, is_end(v, a->value[0], *name == 's'));
        if ((!strcmp(name, "upper") || !strcmp(name, "lower")) && no_chars)
            return change_case(r, v, *name == 'u');
    }
    if (json_is_object(v)) {
        const bool items = !strcmp(name, "items");
        if (items || !strcmp(name, "keys") || !strcmp(name, "values"))
            return kvd_jinja_entries(r, v, items || *name == 'k', items || *name == 'v');
        if (!strcmp(name, "get") && chars) {
            json_t *const found = json_object_get(v, chars);
            return found ? found : a->n > 1 ? a->value[1] : kvd_jinja_keep(r, json_null());
        }
    }
    return kvd_jinja_raise(r, "it calls a method that is not supported");
}

static json_t *join(run *r, const json_t *v, const arguments *a)
{
    const buffer before = kvd_jinja_begin_capture(r);
    size_t i;
    json_t *element;
    json_array_foreach(v, i, element)
    {
        if (i && a->n)
            kvd_jinja_put_value(r, a->value[0]);
        kvd_jinja_put_value(r, element);
    }
    return kvd_jinja_end_capture(r, before);
}

/* Returns the elements of a list whose attribute passes a test; if `reject`, the elements whose
 * attribute fails it. */
static json_t *select_by(run *r, const json_t *v, const arguments *a, bool reject)
{
    json_t *const list = kvd_jinja_keep(r, json_array()), *element;
    const char *const how = a->n > 1 ? json_string_value(a->value[1]) : NULL;
    const arguments rest = {.value = {a->n > 2 ? a->value[2] : NULL}, .n = a->n > 2};
    size_t i;
    if (!a->n || a->n > 3 || !json_is_string(a->value[0]) || (a->n > 1 && !how))
        return kvd_jinja_raise(r, "it selects elements in a way that is not supported");
    json_array_foreach(v, i, element)
    {
        json_t *const attribute = kvd_jinja_item(r, element, a->value[0]);
        const json_t *const passed = how ? kvd_jinja_test(r, attribute, how, &rest) : attribute;
        if (kvd_jinja_is_true(r, passed) != reject)
            json_array_append(list, element);
    }
    return list;
}

json_t *kvd_jinja_filter(run *r, json_t *v, const char *name, const arguments *a)
{
    const bool text = json_is_string(v), none = is_undefined(r, v);
    if (json_object_size(a->named))
        return kvd_jinja_raise(r, "it uses a filter in a way that is not supported");
    if (!strcmp(name, "default") || !strcmp(name, "d")) {
        const bool falsy =
            a->n > 1 && kvd_jinja_is_true(r, a->value[1]) && !kvd_jinja_is_true(r, v);
        return !none && !falsy ? v : a->n ? a->value[0] : kvd_jinja_text(r, "", 0);
    }
    if (!strcmp(name, "trim") && text && !a->n)
        return strip(r, v, NULL, true, true);
    if ((!strcmp(name, "upper") || !strcmp(name, "lower")) && text)
        return change_case(r, v, *name == 'u');
    if (!strcmp(name, "replace") && text && a->n == 2)
        return replace(r, v, a->value[0], a->value[1]);
    if ((!strcmp(name, "length") || !strcmp(name, "count")) &&
        (text || json_is_array(v) || json_is_object(v)))
        return kvd_jinja_keep(r, json_integer((json_int_t)kvd_jinja_length(v)));
    if (!strcmp(name, "string") || !strcmp(name, "safe")) {
        const buffer before = kvd_jinja_begin_capture(r);
        kvd_jinja_put_value(r, v);
        return kvd_jinja_end_capture(r, before);
    }
    if (!strcmp(name, "list") && json_is_array(v))
        return v;
    if (!strcmp(name, "items") && json_is_object(v))
        return kvd_jinja_entries(r, v, true, true);
    if (!strcmp(name, "join") && json_is_array(v))
        return join(r, v, a);
    if ((!strcmp(name, "selectattr") || !strcmp(name, "rejectattr")) && json_is_array(v))
        return select_by(r, v, a, *name == 'r');
    if ((!strcmp(name, "first") || !strcmp(name, "last")) && json_is_array(v) && !none)
        return kvd_jinja_item(r, v, kvd_jinja_keep(r, json_integer(*name == 'f' ? 0 : -1)));
    return kvd_jinja_raise(r, "it uses a filter that is not supported");
}

json_t *kvd_jinja_test(run *r, json_t *v, const char *name, const arguments *a)
{
    const bool none = is_undefined(r, v);
    const struct {
        const char *name;
        bool holds;
    } known[] = {
        {"defined", !none},
        {"undefined", none},
        {"none", json_is_null(v)},
        {"string", json_is_string(v)},
        {"mapping", json_is_object(v)},
        {"sequence", json_is_string(v) || json_is_array(v) || json_is_object(v)},
        {"iterable", json_is_string(v) || json_is_array(v) || json_is_object(v)},
        {"boolean", json_is_boolean(v)},
        {"number", is_number(v)},
        {"integer", json_is_integer(v)},
        {"true", json_is_true(v)},
        {"false", json_is_false(v)},
        {"odd", json_is_integer(v) && json_integer_value(v) % 2},
        {"even", json_is_integer(v) && !(json_integer_value(v) % 2)},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, name) && !a->n)
            return kvd_jinja_bool(r, known[i].holds);
    if (a->n == 1 && (!strcmp(name, "equalto") || !strcmp(name, "eq")))
        return kvd_jinja_bool(r, kvd_jinja_is_equal(r, v, a->value[0]));
    if (a->n == 1 && !strcmp(name, "in"))
        return kvd_jinja_bool(r, kvd_jinja_contains(r, a->value[0], v));
    return kvd_jinja_raise(r, "it uses a test that is not supported");
}
