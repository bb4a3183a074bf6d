/* Splits Jinja chat templates into lexical tokens, and evaluates their expressions. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "model/text/jinja_run.h"

void kvd_jinja_next(run *r)
{
    static const char *const two[] = {"==", "!=", "<=", ">=", "//", "**"};
    cursor *const c = &r->at;
    while (c->p < c->end && isspace((unsigned char)*c->p))
        c->p++;
    const char *const s = c->token = c->p;
    const size_t left = (size_t)(c->end - s);
    c->kind = SIGN;
    if (!left) {
        c->kind = END;
    } else if (isalpha((unsigned char)*s) || *s == '_') {
        c->kind = NAME;
        while (c->p < c->end && (isalnum((unsigned char)*c->p) || *c->p == '_'))
            c->p++;
    } else if (isdigit((unsigned char)*s)) {
        c->kind = NUMBER;
        while (c->p < c->end && isdigit((unsigned char)*c->p))
            c->p++;
        if (c->p < c->end && (*c->p == '.' || *c->p == '_' || isalpha((unsigned char)*c->p)))
            kvd_jinja_stop(r, "it has a number that is no integer");
    } else if (*s == '\'' || *s == '"') {
        c->kind = STRING;
        do
            c->p += *c->p == '\\' ? 2 : 1;
        while (c->p < c->end && *c->p != *s);
        if (c->p++ >= c->end)
            kvd_jinja_stop(r, "it has a text without end");
    } else {
        c->p++;
        for (size_t i = 0; left > 1 && i < sizeof two / sizeof *two; i++)
            c->p += c->p == s + 1 && !memcmp(s, two[i], 2);
    }
    c->n = c->p > c->end ? left : (size_t)(c->p - s);
    if (c->p > c->end)
        c->p = c->end;
}

bool kvd_jinja_is_token(const run *r, const char *text)
{
    return (r->at.kind == NAME || r->at.kind == SIGN) && r->at.n == strlen(text) &&
           !memcmp(r->at.token, text, r->at.n);
}

bool kvd_jinja_accept(run *r, const char *text)
{
    if (!kvd_jinja_is_token(r, text))
        return false;
    kvd_jinja_next(r);
    return true;
}

void kvd_jinja_expect(run *r, const char *text)
{
    if (!kvd_jinja_accept(r, text))
        kvd_jinja_stop(r, "its syntax is not understood");
}

/* Copies the current token, which must be a name, and reads the next one. */
bool kvd_jinja_take_name(run *r, char name[64])
{
    const bool ok = r->at.kind == NAME && r->at.n < 64;
    name[0] = '\0';
    if (ok) {
        memcpy(name, r->at.token, r->at.n);
        name[r->at.n] = '\0';
        kvd_jinja_next(r);
    } else
        kvd_jinja_stop(r, "its syntax is not understood");
    return ok;
}

/* Returns the text in the current token, a quoted string, after decoding its escape sequences. */
static json_t *string_token(run *r)
{
    const char *const end = r->at.token + r->at.n - 1;
    char *const s = malloc(r->at.n + 1);
    size_t n = 0;
    json_t *v = r->undefined;
    if (!s)
        kvd_jinja_stop(r, "there is no memory");
    for (const char *p = r->at.token + 1; s && p < end; p++) {
        static const char escapes[] = "n\nt\tr\r\\\\''\"\"";
        const char *code = *p == '\\' && p + 1 < end ? escapes : NULL;
        while (code && *code && *code != p[1])
            code += 2;
        if (code && !*code) {
            kvd_jinja_stop(r, "it has an escape sequence that is not supported");
            break;
        }
        s[n++] = code ? code[1] : *p;
        p += code != NULL;
    }
    if (s && !r->broken)
        v = kvd_jinja_text(r, s, n);
    free(s);
    return v;
}

json_t *kvd_jinja_look_up(run *r, const char *name)
{
    for (int i = r->n_frames - 1; i >= 0; i--) {
        json_t *const v = i == 0 || i >= r->base ? json_object_get(r->frame[i], name) : NULL;
        if (v)
            return v;
    }
    return r->undefined;
}

void kvd_jinja_assign(run *r, const char *name, json_t *value)
{
    if (json_object_set(r->frame[r->n_frames - 1], name, value))
        kvd_jinja_stop(r, "there is no memory");
}

bool kvd_jinja_push_frame(run *r)
{
    if (r->n_frames == MAX_FRAMES) {
        kvd_jinja_stop(r, "it is nested too deeply");
        return false;
    }
    r->frame[r->n_frames++] = kvd_jinja_keep(r, json_object());
    return !r->broken;
}

/* Reads the arguments of a call and the closing parenthesis. The opening parenthesis has already
 * been read. */
static void read_arguments(run *r, arguments *a, bool live)
{
    a->n = 0;
    a->named = kvd_jinja_keep(r, json_object());
    while (!r->broken && !kvd_jinja_accept(r, ")")) {
        const cursor before = r->at;
        char name[64] = "";
        if (r->at.kind == NAME && (!kvd_jinja_take_name(r, name) || !kvd_jinja_accept(r, "="))) {
            r->at = before;
            name[0] = '\0';
        }
        json_t *const v = kvd_jinja_expression(r, live);
        if (*name && !r->broken)
            json_object_set(a->named, name, v);
        else if (a->n == MAX_ARGS)
            kvd_jinja_stop(r, "it has too many arguments");
        else
            a->value[a->n++] = v;
        if (!kvd_jinja_is_token(r, ")"))
            kvd_jinja_expect(r, ",");
    }
}

void kvd_jinja_open_tag(run *r, size_t i)
{
    r->at.p = r->nodes[i].at;
    r->at.end = r->at.p + r->nodes[i].n;
    kvd_jinja_count(r, r->nodes[i].n);
    kvd_jinja_next(r);
}

/* Runs the template macro that node i defines, and returns the text that the macro writes. */
static json_t *call_macro(run *r, size_t i, const arguments *a)
{
    static const char *const ends[] = {"endmacro", NULL};
    const cursor caller = r->at;
    const int base = r->base;
    char name[64];
    int n = 0;
    if (!kvd_jinja_push_frame(r))
        return r->undefined;
    const buffer before = kvd_jinja_begin_capture(r);
    r->base = r->n_frames - 1;
    kvd_jinja_open_tag(r, i);
    kvd_jinja_next(r);
    (void)kvd_jinja_take_name(r, name);
    kvd_jinja_expect(r, "(");
    while (!r->broken && !kvd_jinja_accept(r, ")")) {
        if (!kvd_jinja_take_name(r, name))
            break;
        json_t *given = n < a->n ? a->value[n] : json_object_get(a->named, name);
        if (kvd_jinja_accept(r, "=")) {
            json_t *const absent = kvd_jinja_expression(r, !given);
            given = given ? given : absent;
        }
        kvd_jinja_assign(r, name, given ? given : r->undefined);
        n++;
        if (!kvd_jinja_is_token(r, ")"))
            kvd_jinja_expect(r, ",");
    }
    if (n < a->n)
        kvd_jinja_raise(r, "it calls a macro with too many arguments");
    (void)kvd_jinja_run_until(r, i + 1, ends, is_live(r, true));
    r->n_frames--;
    r->base = base;
    r->at = caller;
    return kvd_jinja_end_capture(r, before);
}

static json_t *range(run *r, const arguments *a)
{
    const json_int_t from = a->n > 1 ? number_of(a->value[0]) : 0;
    const json_int_t to = a->n ? number_of(a->value[a->n > 1]) : 0;
    if (a->n < 1 || a->n > 2 || !is_number(a->value[0]) || !is_number(a->value[a->n - 1]))
        return kvd_jinja_raise(r, "it calls range in a way that is not supported");
    json_t *const list = kvd_jinja_keep(r, json_array());
    for (json_int_t i = from; i < to && !r->broken; i++)
        json_array_append(list, kvd_jinja_keep(r, json_integer(i)));
    return list;
}

static json_t *call(run *r, const char *name, const arguments *a)
{
    json_t *const macro = json_object_get(r->macros, name), *const v = kvd_jinja_look_up(r, name);
    if (macro)
        return call_macro(r, (size_t)json_integer_value(macro), a);
    if (!strcmp(name, "raise_exception"))
        return kvd_jinja_raise(r, "it raises an exception");
    if (!strcmp(name, "range"))
        return range(r, a);
    if (!strcmp(name, "namespace") && !a->n) {
        json_array_append(r->spaces, a->named);
        return a->named;
    }
    if (!strcmp(name, "strftime_now") && json_is_string(v) && a->n == 1 &&
        json_is_string(a->value[0]) && !strcmp(json_string_value(a->value[0]), "%Y-%m-%d"))
        return v;
    return kvd_jinja_raise(r, "it calls a function that is not supported");
}

/* Reads list elements up to the token `close`. If `tuple`, reads (x) as the value x, not as a list
 * with one element. */
static json_t *read_list(run *r, const char *close, bool tuple, bool live)
{
    json_t *const list = kvd_jinja_keep(r, json_array());
    while (!r->broken && !kvd_jinja_accept(r, close)) {
        json_t *const v = kvd_jinja_expression(r, live);
        if (tuple && !json_array_size(list) && kvd_jinja_accept(r, close))
            return v;
        json_array_append(list, v);
        if (!kvd_jinja_is_token(r, close))
            kvd_jinja_expect(r, ",");
    }
    return list;
}

static json_t *read_dictionary(run *r, bool live)
{
    json_t *const d = kvd_jinja_keep(r, json_object());
    while (!r->broken && !kvd_jinja_accept(r, "}")) {
        json_t *const key = kvd_jinja_expression(r, live);
        kvd_jinja_expect(r, ":");
        json_t *const v = kvd_jinja_expression(r, live);
        if (is_live(r, live) && !json_is_string(key))
            kvd_jinja_raise(r, "it has a dictionary whose keys are no texts");
        else if (is_live(r, live))
            json_object_set(d, json_string_value(key), v);
        if (!kvd_jinja_is_token(r, "}"))
            kvd_jinja_expect(r, ",");
    }
    return d;
}

/* Reads a name and returns its value: a constant such as `true`, a variable, or the result of a
 * function call. */
static json_t *read_name(run *r, bool live)
{
    char name[64];
    arguments a;
    if (!kvd_jinja_take_name(r, name))
        return r->undefined;
    if (kvd_jinja_accept(r, "(")) {
        read_arguments(r, &a, live);
        return is_live(r, live) ? call(r, name, &a) : r->undefined;
    }
    if (!strcasecmp(name, "true") || !strcasecmp(name, "false"))
        return kvd_jinja_bool(r, tolower((unsigned char)*name) == 't');
    if (!strcasecmp(name, "none"))
        return kvd_jinja_keep(r, json_null());
    return kvd_jinja_look_up(r, name);
}

static json_t *read_value(run *r, bool live)
{
    json_t *v = r->undefined;
    if (r->at.kind == STRING) {
        const buffer before = kvd_jinja_begin_capture(r);
        for (; r->at.kind == STRING && !r->broken; kvd_jinja_next(r))
            kvd_jinja_put_value(r, string_token(r));
        return kvd_jinja_end_capture(r, before);
    }
    if (r->at.kind == NUMBER) {
        if (r->at.n > 18)
            kvd_jinja_stop(r, "it has a number that is too large");
        else
            v = kvd_jinja_keep(r, json_integer(strtoll(r->at.token, NULL, 10)));
        kvd_jinja_next(r);
        return v;
    }
    if (kvd_jinja_accept(r, "("))
        return read_list(r, ")", true, live);
    if (kvd_jinja_accept(r, "["))
        return read_list(r, "]", false, live);
    if (kvd_jinja_accept(r, "{"))
        return read_dictionary(r, live);
    return read_name(r, live);
}

/* Clips a bound of a slice to 0 .. n, as Python does. */
static size_t clip(const json_t *v, json_int_t n, json_int_t absent)
{
    const json_int_t i = json_is_integer(v) ? json_integer_value(v) : absent;
    const json_int_t at = i < 0 ? n + i : i;
    return (size_t)(at < 0 ? 0 : at > n ? n : at);
}

/* Evaluates v[index], v[from:to] or v[::-1]. The opening bracket has already been read. */
static json_t *subscript(run *r, json_t *v, bool live)
{
    json_t *bound[3] = {NULL, NULL, NULL};
    int colons = 0;
    while (!r->broken && !kvd_jinja_accept(r, "]")) {
        if (kvd_jinja_accept(r, ":") && ++colons < 3)
            continue;
        if (colons > 2 || bound[colons])
            kvd_jinja_stop(r, "its syntax is not understood");
        else
            bound[colons] = kvd_jinja_expression(r, live);
    }
    if (!is_live(r, live))
        return r->undefined;
    if (!colons)
        return bound[0] ? kvd_jinja_item(r, v, bound[0]) : r->undefined;
    const json_int_t n = (json_int_t)kvd_jinja_length(v);
    if (is_undefined(r, v) || !(json_is_array(v) || json_is_string(v)))
        return kvd_jinja_raise(r, "it takes a part of neither a text nor a list");
    if (!bound[2])
        return kvd_jinja_part(r, v, clip(bound[0], n, 0), clip(bound[1], n, n));
    if (bound[0] || bound[1] || !json_is_array(v) || !json_is_integer(bound[2]) ||
        json_integer_value(bound[2]) != -1)
        return kvd_jinja_raise(r, "it takes a part with a step that is not supported");
    json_t *const list = kvd_jinja_keep(r, json_array());
    for (size_t i = json_array_size(v); i-- > 0;)
        json_array_append(list, json_array_get(v, i));
    return list;
}

static json_t *read_test(run *r, json_t *v, bool live)
{
    const bool no = kvd_jinja_accept(r, "not");
    char name[64];
    arguments a = {.n = 0};
    if (!kvd_jinja_take_name(r, name))
        return r->undefined;
    const bool word = r->at.kind == NAME && !kvd_jinja_is_token(r, "and") &&
                      !kvd_jinja_is_token(r, "or") && !kvd_jinja_is_token(r, "else") &&
                      !kvd_jinja_is_token(r, "if") && !kvd_jinja_is_token(r, "is") &&
                      !kvd_jinja_is_token(r, "not") && !kvd_jinja_is_token(r, "in");
    if (kvd_jinja_accept(r, "("))
        read_arguments(r, &a, live);
    else if (word || r->at.kind == STRING || r->at.kind == NUMBER || kvd_jinja_is_token(r, "["))
        a.value[a.n++] = read_value(r, live);
    if (!is_live(r, live))
        return r->undefined;
    return kvd_jinja_bool(r, kvd_jinja_is_true(r, kvd_jinja_test(r, v, name, &a)) != no);
}

/* Evaluates a Jinja value with its subscripts, attributes and method calls, such as
 * x.content.strip(). */
static json_t *postfix(run *r, bool live)
{
    char name[64];
    arguments a;
    json_t *v = read_value(r, live);
    while (!r->broken) {
        kvd_jinja_count(r, kvd_jinja_bytes(v));
        if (kvd_jinja_accept(r, "[")) {
            v = subscript(r, v, live);
            continue;
        }
        if (!kvd_jinja_accept(r, ".") || !kvd_jinja_take_name(r, name))
            break;
        const bool method = kvd_jinja_accept(r, "(");
        if (method)
            read_arguments(r, &a, live);
        v = !is_live(r, live) ? r->undefined
            : method          ? kvd_jinja_method(r, v, name, &a)
                              : kvd_jinja_item(r, v, kvd_jinja_text(r, name, strlen(name)));
    }
    return v;
}

/* Evaluates a Jinja value with its filters and tests, such as `x | trim` or `x is defined`. */
static json_t *filtered(run *r, bool live)
{
    char name[64];
    json_t *v = postfix(r, live);
    while (!r->broken) {
        kvd_jinja_count(r, kvd_jinja_bytes(v));
        if (kvd_jinja_accept(r, "is")) {
            v = read_test(r, v, live);
            continue;
        }
        arguments a = {.n = 0};
        if (!kvd_jinja_accept(r, "|") || !kvd_jinja_take_name(r, name))
            break;
        a.named = kvd_jinja_keep(r, json_object());
        if (kvd_jinja_accept(r, "("))
            read_arguments(r, &a, live);
        v = is_live(r, live) ? kvd_jinja_filter(r, v, name, &a) : r->undefined;
    }
    return v;
}

static json_t *unary(run *r, bool live)
{
    if (!kvd_jinja_accept(r, "-"))
        return filtered(r, live);
    json_t *const v = postfix(r, live);
    if (is_live(r, live) && !json_is_integer(v))
        return kvd_jinja_raise(r, "it negates what is no integer");
    return kvd_jinja_keep(r, json_integer(-json_integer_value(v)));
}

static json_t *arithmetic(run *r, char op, const json_t *a, const json_t *b)
{
    const json_int_t x = number_of(a), y = number_of(b);
    const json_int_t limit = (json_int_t)1 << 30;
    if (!is_number(a) || !is_number(b) || llabs(x) > limit || llabs(y) > limit ||
        ((op == '%' || op == '/') && y <= 0))
        return kvd_jinja_raise(r, "it computes with values that are no integers, or too large");
    const json_int_t rest = op == '%' || op == '/' ? ((x % y) + y) % y : 0;
    return kvd_jinja_keep(r, json_integer(op == '+'   ? x + y
                                          : op == '-' ? x - y
                                          : op == '*' ? x * y
                                          : op == '%' ? rest
                                                      : (x - rest) / y));
}

static json_t *product(run *r, bool live)
{
    json_t *v = unary(r, live);
    while (!r->broken && (kvd_jinja_is_token(r, "*") || kvd_jinja_is_token(r, "//") ||
                          kvd_jinja_is_token(r, "%"))) {
        const char op = *r->at.token;
        kvd_jinja_next(r);
        json_t *const right = unary(r, live);
        v = is_live(r, live) ? arithmetic(r, op, v, right) : r->undefined;
    }
    return v;
}

static json_t *concatenation(run *r, bool live)
{
    json_t *v = product(r, live);
    while (!r->broken && kvd_jinja_accept(r, "~")) {
        json_t *const right = product(r, live);
        const buffer before = kvd_jinja_begin_capture(r);
        if (is_live(r, live)) {
            kvd_jinja_put_value(r, v);
            kvd_jinja_put_value(r, right);
        }
        v = kvd_jinja_end_capture(r, before);
    }
    return v;
}

static json_t *sum(run *r, bool live)
{
    json_t *v = concatenation(r, live);
    while (!r->broken && (kvd_jinja_is_token(r, "+") || kvd_jinja_is_token(r, "-"))) {
        const char op = *r->at.token;
        kvd_jinja_next(r);
        json_t *const right = concatenation(r, live);
        if (!is_live(r, live))
            continue;
        if (op == '+' && json_is_string(v) && json_is_string(right)) {
            const buffer before = kvd_jinja_begin_capture(r);
            kvd_jinja_put_value(r, v);
            kvd_jinja_put_value(r, right);
            v = kvd_jinja_end_capture(r, before);
        } else if (op == '+' && json_is_array(v) && json_is_array(right) && !is_undefined(r, v) &&
                   !is_undefined(r, right)) {
            kvd_jinja_count(r, kvd_jinja_bytes(v) + kvd_jinja_bytes(right));
            json_t *const list = kvd_jinja_keep(r, r->broken ? NULL : json_copy(v));
            if (json_array_extend(list, right))
                kvd_jinja_stop(r, "there is no memory");
            v = list;
        } else
            v = arithmetic(r, op, v, right);
    }
    return v;
}

static bool in_order(run *r, const char *op, const json_t *a, const json_t *b)
{
    json_int_t order = 0;
    if (is_number(a) && is_number(b))
        order = (number_of(a) > number_of(b)) - (number_of(a) < number_of(b));
    else if (json_is_string(a) && json_is_string(b))
        order = strcmp(json_string_value(a), json_string_value(b));
    else
        kvd_jinja_raise(r, "it compares values that have no order");
    return op[0] == '<' ? order < 0 || (op[1] == '=' && !order)
                        : order > 0 || (op[1] == '=' && !order);
}

static json_t *comparison(run *r, bool live)
{
    static const char *const ops[] = {"==", "!=", "<=", ">=", "<", ">", "in", "not"};
    enum { N_OPS = sizeof ops / sizeof *ops };
    json_t *left = sum(r, live), *result = NULL;
    while (!r->broken) {
        size_t i = 0;
        while (i < N_OPS && !kvd_jinja_is_token(r, ops[i]))
            i++;
        if (i == N_OPS)
            break;
        kvd_jinja_next(r);
        if (!strcmp(ops[i], "not"))
            kvd_jinja_expect(r, "in");
        json_t *const right = sum(r, live);
        if (is_live(r, live)) {
            const bool holds = i < 2   ? kvd_jinja_is_equal(r, left, right) == (i == 0)
                               : i < 6 ? in_order(r, ops[i], left, right)
                                       : kvd_jinja_contains(r, right, left) == (i == 6);
            result = kvd_jinja_bool(r, holds && (!result || json_is_true(result)));
        }
        left = right;
    }
    return result ? result : left;
}

static json_t *negation(run *r, bool live)
{
    if (!kvd_jinja_accept(r, "not"))
        return comparison(r, live);
    if (++r->depth > MAX_DEPTH)
        kvd_jinja_stop(r, "it is nested too deeply");
    json_t *const v = r->broken ? r->undefined : negation(r, live);
    r->depth--;
    return kvd_jinja_bool(r, !kvd_jinja_is_true(r, v));
}

static json_t *conjunction(run *r, bool live)
{
    json_t *v = negation(r, live);
    while (!r->broken && kvd_jinja_accept(r, "and")) {
        const bool on = is_live(r, live) && kvd_jinja_is_true(r, v);
        json_t *const right = negation(r, on);
        v = on ? right : v;
    }
    return v;
}

json_t *kvd_jinja_disjunction(run *r, bool live)
{
    json_t *v = conjunction(r, live);
    while (!r->broken && kvd_jinja_accept(r, "or")) {
        const bool on = is_live(r, live) && !kvd_jinja_is_true(r, v);
        json_t *const right = conjunction(r, on);
        v = on ? right : v;
    }
    return v;
}

/* Evaluates a template expression, `A` or `A if B else C`. A is evaluated before B; if B is false,
 * errors in A are ignored. */
json_t *kvd_jinja_expression(run *r, bool live)
{
    const bool on = is_live(r, live);
    if (++r->depth > MAX_DEPTH)
        kvd_jinja_stop(r, "it is nested too deeply");
    json_t *v = r->broken ? r->undefined : kvd_jinja_disjunction(r, live);
    while (!r->broken && kvd_jinja_accept(r, "if")) {
        const char *const raised = r->raised;
        if (on)
            r->raised = NULL;
        const bool taken = kvd_jinja_is_true(r, kvd_jinja_disjunction(r, on));
        json_t *const other =
            kvd_jinja_accept(r, "else") ? kvd_jinja_expression(r, on && !taken) : r->undefined;
        if (on && taken)
            r->raised = r->raised ? r->raised : raised;
        v = taken ? v : other;
    }
    r->depth--;
    return v;
}
