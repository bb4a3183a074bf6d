/* Interprets a template tag by tag, without a syntax tree: loops read their body again. */
#include <stdlib.h>
#include <string.h>

#include "model/text/jinja_run.h"

static void end_tag(run *r)
{
    if (r->at.kind != END)
        kvd_jinja_stop(r, "its syntax is not understood");
}

static size_t run_if(run *r, size_t i, bool live)
{
    static const char *const words[] = {"elif", "else", "endif", NULL};
    const char *const *ends = words;
    bool done = false;
    do {
        bool taken = is_live(r, live) && !done;
        if (kvd_jinja_accept(r, "else"))
            ends = words + 2;
        else {
            kvd_jinja_next(r); /* if or elif */
            const json_t *const v = kvd_jinja_expression(r, taken);
            taken = is_live(r, taken) && kvd_jinja_is_true(r, v);
        }
        end_tag(r);
        done |= taken;
        i = kvd_jinja_run_until(r, i + 1, ends, taken);
    } while (!r->broken && !kvd_jinja_is_token(r, "endif"));
    kvd_jinja_next(r);
    end_tag(r);
    return i;
}

/* Sets the template variable `loop` (loop.index, loop.first and so on) for element i of the list
 * that a {% for %} loop runs over. */
static void set_loop(run *r, const json_t *list, size_t i)
{
    json_t *const loop = kvd_jinja_keep(r, json_object());
    const size_t n = json_array_size(list);
    const struct {
        const char *name;
        size_t value;
    } numbers[] = {{"index", i + 1},
                   {"index0", i},
                   {"length", n},
                   {"revindex", n - i},
                   {"revindex0", n - i - 1}};
    if (r->broken)
        return;
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
        json_object_set_new(loop, numbers[k].name, json_integer((json_int_t)numbers[k].value));
    json_object_set_new(loop, "first", json_boolean(i == 0));
    json_object_set_new(loop, "last", json_boolean(i + 1 == n));
    if (i)
        json_object_set(loop, "previtem", json_array_get(list, i - 1));
    if (i + 1 < n)
        json_object_set(loop, "nextitem", json_array_get(list, i + 1));
    kvd_jinja_assign(r, "loop", loop);
}

enum { MAX_TARGETS = 4 };

static void set_targets(run *r, char name[MAX_TARGETS][64], int n, json_t *v)
{
    if (n == 1)
        kvd_jinja_assign(r, name[0], v);
    else if (!json_is_array(v) || json_array_size(v) != (size_t)n)
        kvd_jinja_raise(r, "it takes a value apart that is no list of this length");
    else
        for (int i = 0; i < n; i++)
            kvd_jinja_assign(r, name[i], json_array_get(v, (size_t)i));
}

/* Returns the elements that a template's {% for %} loop visits. The condition of the loop, if any,
 * begins at *where. */
static json_t *visited(run *r, json_t *v, char name[MAX_TARGETS][64], int n, const cursor *where)
{
    json_t *const list = kvd_jinja_keep(r, json_array()), *element;
    size_t i;
    if (json_is_object(v))
        v = kvd_jinja_entries(r, v, true, false);
    else if (!json_is_array(v))
        kvd_jinja_raise(r, "it loops over neither a list nor a dictionary");
    json_array_foreach(v, i, element)
    {
        bool taken = true;
        if (where && kvd_jinja_push_frame(r)) {
            r->at = *where;
            set_targets(r, name, n, element);
            taken = kvd_jinja_is_true(r, kvd_jinja_expression(r, true));
            r->n_frames--;
        }
        if (taken)
            json_array_append(list, element);
    }
    return list;
}

static size_t run_for(run *r, size_t i, bool live)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    char name[MAX_TARGETS][64];
    int n = 0;
    kvd_jinja_next(r);
    const bool open = kvd_jinja_accept(r, "(");
    do
        if (n == MAX_TARGETS || !kvd_jinja_take_name(r, name[n++]))
            kvd_jinja_stop(r, "its syntax is not understood");
    while (!r->broken && kvd_jinja_accept(r, ","));
    if (open)
        kvd_jinja_expect(r, ")");
    kvd_jinja_expect(r, "in");
    json_t *list = r->broken ? r->undefined : kvd_jinja_disjunction(r, live);
    const bool chosen = kvd_jinja_accept(r, "if");
    const cursor where = r->at;
    if (chosen)
        (void)kvd_jinja_expression(r, false);
    end_tag(r);
    if (is_live(r, live))
        list = visited(r, list, name, n, chosen ? &where : NULL);
    const bool on = is_live(r, live);
    const size_t n_items = on ? json_array_size(list) : 0;
    size_t end = i;
    for (size_t k = 0; k < n_items && !r->broken && r->jump != BREAK && kvd_jinja_push_frame(r);
         k++) {
        r->jump = GO;
        set_targets(r, name, n, json_array_get(list, k));
        set_loop(r, list, k);
        end = kvd_jinja_run_until(r, i + 1, ends, true);
        r->n_frames--;
    }
    if (!n_items)
        end = kvd_jinja_run_until(r, i + 1, ends, false);
    else
        r->jump = GO;
    if (!r->broken && kvd_jinja_accept(r, "else"))
        end = kvd_jinja_run_until(r, end + 1, ends + 1, on && !n_items);
    kvd_jinja_next(r);
    end_tag(r);
    return end;
}

static size_t run_set(run *r, size_t i, bool live)
{
    static const char *const ends[] = {"endset", NULL};
    char name[64], field[64] = "";
    kvd_jinja_next(r);
    if (!kvd_jinja_take_name(r, name) ||
        (kvd_jinja_accept(r, ".") && !kvd_jinja_take_name(r, field)))
        return i;
    json_t *v;
    if (kvd_jinja_accept(r, "=")) {
        v = kvd_jinja_expression(r, live);
        end_tag(r);
    } else {
        end_tag(r);
        const buffer before = kvd_jinja_begin_capture(r);
        i = kvd_jinja_run_until(r, i + 1, ends, live);
        v = kvd_jinja_end_capture(r, before);
        kvd_jinja_next(r);
        end_tag(r);
    }
    if (!is_live(r, live))
        return i;
    json_t *const space = kvd_jinja_look_up(r, name);
    if (!*field)
        kvd_jinja_assign(r, name, v);
    else if (!kvd_jinja_is_space(r, space) || json_object_set(space, field, v))
        kvd_jinja_raise(r, "it changes a value that is no namespace");
    return i;
}

static size_t run_macro(run *r, size_t i, bool live)
{
    static const char *const ends[] = {"endmacro", NULL};
    char name[64];
    kvd_jinja_next(r);
    if (kvd_jinja_take_name(r, name) && is_live(r, live))
        json_object_set_new(r->macros, name, json_integer((json_int_t)i));
    i = kvd_jinja_run_until(r, i + 1, ends, false);
    kvd_jinja_next(r);
    end_tag(r);
    return i;
}

/* Runs the block of a Jinja template that begins with node i, such as {% if %}. Returns the index
 * of the block's last node. */
static size_t run_block(run *r, size_t i, bool live)
{
    if (kvd_jinja_is_token(r, "if"))
        return run_if(r, i, live);
    if (kvd_jinja_is_token(r, "for"))
        return run_for(r, i, live);
    if (kvd_jinja_is_token(r, "set"))
        return run_set(r, i, live);
    if (kvd_jinja_is_token(r, "macro"))
        return run_macro(r, i, live);
    const bool leave = kvd_jinja_is_token(r, "break"),
               mark = kvd_jinja_is_token(r, "generation") || kvd_jinja_is_token(r, "endgeneration");
    if (!leave && !mark && !kvd_jinja_is_token(r, "continue"))
        kvd_jinja_stop(r, "it has a tag that is not supported");
    if (is_live(r, live) && !mark)
        r->jump = leave ? BREAK : CONTINUE;
    kvd_jinja_next(r);
    end_tag(r);
    return i;
}

size_t kvd_jinja_run_until(run *r, size_t i, const char *const *ends, bool live)
{
    if (++r->depth > MAX_DEPTH)
        kvd_jinja_stop(r, "it is nested too deeply");
    for (; i < r->n_nodes && !r->broken; i++) {
        const node *const x = &r->nodes[i];
        const bool on = is_live(r, live) && r->jump == GO;
        if (++r->steps > MAX_STEPS)
            kvd_jinja_stop(r, "it runs too long");
        if (x->kind == TEXT) {
            if (on)
                kvd_jinja_put(r, x->at, x->n);
            continue;
        }
        kvd_jinja_open_tag(r, i);
        if (x->kind == PRINT) {
            const json_t *const v = kvd_jinja_expression(r, on);
            end_tag(r);
            if (is_live(r, on))
                kvd_jinja_put_value(r, v);
            continue;
        }
        for (const char *const *end = ends; end && *end; end++)
            if (kvd_jinja_is_token(r, *end)) {
                r->depth--;
                return i;
            }
        i = run_block(r, i, on);
    }
    r->depth--;
    if (ends)
        kvd_jinja_stop(r, "a block of it has no end");
    return i;
}

static bool add_node(run *r, node_kind kind, const char *at, size_t n)
{
    if (kind == TEXT && !n)
        return true;
    if ((r->n_nodes & (r->n_nodes - 1)) == 0) {
        node *const more = realloc(r->nodes, (r->n_nodes ? 2 * r->n_nodes : 1) * sizeof *more);
        if (!more) {
            kvd_jinja_stop(r, "there is no memory");
            return false;
        }
        r->nodes = more;
    }
    r->nodes[r->n_nodes++] = (node){kind, at, n};
    return true;
}

/* Finds the end of a template tag. Returns a pointer to the characters `close`, such as "}}", or
 * NULL if the tag does not end. Skips string literals and inner braces. */
static const char *tag_end(const char *p, const char *close)
{
    int depth = 0;
    for (; *p; p++) {
        if (!depth && !strncmp(p, close, 2))
            return p;
        if (*close != '#' && (*p == '\'' || *p == '"')) {
            const char quote = *p++;
            while (*p && *p != quote)
                p += *p == '\\' && p[1] ? 2 : 1;
            if (!*p)
                return NULL;
        }
        if (*close == '}')
            depth += (*p == '{') - (*p == '}');
    }
    return NULL;
}

static size_t blanks_before(const char *from, const char *end, const char *blanks)
{
    size_t n = 0;
    while (end - n > from && strchr(blanks, end[-(ptrdiff_t)n - 1]))
        n++;
    return n;
}

/* Divides the template into texts and tags, without the white space that tags remove. */
static void split_tags(run *r, const char *s)
{
    static const char white[] = " \n\t\v\f\r";
    bool line = true; /* true if `s` is at the start of a line */
    while (*s && !r->broken) {
        const char *tag = s;
        while (*tag && !(*tag == '{' && tag[1] && strchr("{%#", tag[1])))
            tag++;
        const char *cut = tag;
        const char kind = *tag ? tag[1] : '\0', mode = kind ? tag[2] : '\0';
        if (kind && mode == '-')
            cut -= blanks_before(s, tag, white);
        else if ((kind == '%' || kind == '#') && mode != '+') {
            const char *const start = tag - blanks_before(s, tag, " \t\v\f\r");
            if (start > s ? start[-1] == '\n' : line)
                cut = start;
        }
        add_node(r, TEXT, s, (size_t)(cut - s));
        if (!kind)
            return;
        const char close[] = {kind == '{' ? '}' : kind, '}', '\0'};
        const char *const at = tag + 2 + (mode == '-' || (mode == '+' && kind != '{'));
        const char *end = tag_end(at, close);
        if (!end) {
            kvd_jinja_stop(r, "a tag of it has no end");
            return;
        }
        s = end + 2;
        const char last = end > at ? end[-1] : '\0';
        const bool sign = last == '-' || (last == '+' && kind != '{');
        if (kind != '#')
            add_node(r, kind == '{' ? PRINT : BLOCK, at, (size_t)(end - at) - sign);
        line = false;
        if (last == '-')
            for (; *s && strchr(white, *s); s++)
                line = *s == '\n';
        else if (kind != '{' && last != '+' && *s == '\n') {
            line = true;
            s++;
        }
    }
}

/* Copies a template; replaces CR LF and CR by LF, and removes a line feed at the end. */
static char *unify_lines(const char *text)
{
    char *const s = strdup(text), *to = s;
    for (const char *p = s; s && *p; p++)
        if (*p == '\r') {
            *to++ = '\n';
            p += p[1] == '\n';
        } else
            *to++ = *p;
    if (s)
        *to = '\0';
    if (to > s && to[-1] == '\n')
        to[-1] = '\0';
    return s;
}

char *kvd_jinja_render(const char *text, json_t *names, kvd_err *err)
{
    char *const s = unify_lines(text);
    run r = {.kept = json_array(), .n_frames = 1};
    if (!s || !r.kept)
        kvd_jinja_stop(&r, "there is no memory");
    else {
        r.undefined = r.spaces = r.macros = json_null();
        r.undefined = kvd_jinja_keep(&r, json_array());
        r.spaces = kvd_jinja_keep(&r, json_array());
        r.macros = kvd_jinja_keep(&r, json_object());
        r.frame[0] = kvd_jinja_keep(&r, json_copy(names));
        kvd_jinja_put(&r, "", 0);
    }
    if (!r.broken)
        split_tags(&r, s);
    if (!r.broken)
        (void)kvd_jinja_run_until(&r, 0, NULL, true);
    const char *const why = r.broken ? r.broken : r.raised;
    if (why) {
        kvd_fail(err, "the chat template is not run: %s", why);
        free(r.out.s);
        r.out.s = NULL;
    }
    /* Empties all Jinja namespaces, because a namespace that contains itself would not be freed. */
    size_t i;
    json_t *space;
    json_array_foreach(r.spaces, i, space)
    {
        json_object_clear(space);
    }
    json_decref(r.kept);
    free(r.nodes);
    free(s);
    return r.out.s;
}
