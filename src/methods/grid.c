#include "methods/grid.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Part of a method text such as "h2o,heavy=0.1/0.2": the alternative values "0.1/0.2" of a
 * parameter, or the text before or after such values. */
typedef struct {
    const char *at;
    size_t len;
    size_t n;
} choices;

enum { PIECES = 64 };

/* Returns the first slash outside file paths in a method text such as "h2o,heavy=0.1/0.2", or NULL.
 * Sets *value to the start of the parameter value with the slash, here 0.1/0.2. */
static const char *find_slash(const char *at, const char **value)
{
    const char *slash = strchr(at, '/');
    while (slash) {
        const char *first = slash;
        while (first > at && first[-1] != '=' && first[-1] != ',')
            first--;
        const char *key = first > at ? first - 1 : first;
        while (key > at && key[-1] != ',')
            key--;
        *value = first;
        if (first == at || first[-1] != '=' ||
            !kvd_method_is_text_key(key, (size_t)(first - 1 - key)))
            return slash;
        slash = strchr(first + strcspn(first, ","), '/');
    }
    return NULL;
}

static int cut(const char *text, choices piece[PIECES], size_t *n, kvd_err *err)
{
    const char *at = text;
    *n = 0;
    while (*at) {
        const char *value;
        const char *const slash = find_slash(at, &value);
        if (!slash || *n + 2 >= PIECES) {
            if (slash)
                return kvd_fail(err, "method '%s': too many keys with several values", text);
            piece[(*n)++] = (choices){at, strlen(at), 1};
            break;
        }
        if (value == at || value[-1] != '=')
            return kvd_fail(err, "method '%s': '/' may only separate values of a key", text);
        choices c = {value, strcspn(value, ","), 1};
        for (size_t i = 0; i < c.len; i++) {
            if (value[i] != '/')
                continue;
            if (i == 0 || i + 1 == c.len || value[i - 1] == '/')
                return kvd_fail(err, "method '%s': '%.*s' has an empty value", text, (int)c.len,
                                value);
            c.n++;
        }
        piece[(*n)++] = (choices){at, (size_t)(value - at), 1};
        piece[(*n)++] = c;
        at = value + c.len;
    }
    return 0;
}

static const char *value_of(const choices *c, size_t i, size_t *len)
{
    const char *at = c->at;
    if (c->n == 1) {
        *len = c->len;
        return at;
    }
    for (; i > 0; i--)
        at = strchr(at, '/') + 1;
    *len = strcspn(at, "/,");
    return at;
}

static char *combine(const choices *piece, size_t n, size_t which)
{
    size_t index[PIECES], size = 1;
    for (size_t i = n; i-- > 0; which /= piece[i].n) {
        index[i] = which % piece[i].n;
        size += piece[i].len;
    }
    char *const text = malloc(size), *to = text;
    for (size_t i = 0; text && i < n; i++) {
        size_t len;
        const char *from = value_of(&piece[i], index[i], &len);
        memcpy(to, from, len);
        to += len;
    }
    if (text)
        *to = 0;
    return text;
}

static int expand(const char *method, char **text, size_t *n, size_t most, kvd_err *err)
{
    choices piece[PIECES];
    size_t pieces, total = 1;
    if (cut(method, piece, &pieces, err))
        return -1;
    for (size_t i = 0; i < pieces; i++) {
        if (piece[i].n > (most - *n) / total)
            return kvd_fail(err, "--method %s: at most %zu can be given", method, most);
        total *= piece[i].n;
    }
    for (size_t i = 0; i < total; i++) {
        char *const one = combine(piece, pieces, i);
        if (!one)
            return kvd_no_memory(err, "methods", total * strlen(method));
        text[(*n)++] = one;
        for (size_t j = 0; j + 1 < *n; j++)
            if (!strcmp(text[j], one))
                return kvd_fail(err, "--method: '%s' is given twice", one);
    }
    return 0;
}

static bool is_method(const char *name, size_t n)
{
    kvd_method_entry p;
    bool found = n == 4 && !memcmp(name, "none", n);
    for (int i = 0; !found && kvd_method_entry_at(i, &p); i++)
        found = strlen(p.info->name) == n && !memcmp(p.info->name, name, n);
    return found;
}

static int unknown_method(const char *spec, const char *name, size_t n, kvd_err *err)
{
    char word[KVD_ARG_FIELD];
    kvd_arg_field(name, n, word);
    const char *const nearest = kvd_method_nearest(word);
    return kvd_fail(err,
                    "--method %s: '%s' is neither a method nor KEY=VALUE%s%s; --list-methods lists "
                    "all methods",
                    spec, word, nearest ? "; nearest: " : "", nearest ? nearest : "");
}

static int check_names(const char *spec, const char *names, size_t n, kvd_err *err)
{
    for (const char *at = names, *const end = names + n; at <= end; at++) {
        const char *plus = memchr(at, '+', (size_t)(end - at));
        plus = plus ? plus : end;
        if (plus == at)
            return kvd_fail(err, "--method %s: a name is missing", spec);
        if (!is_method(at, (size_t)(plus - at)))
            return unknown_method(spec, at, (size_t)(plus - at), err);
        at = plus;
    }
    return 0;
}

/* Returns the length in characters of the first method's text in `list`, including its parameters.
 * `spec`: the whole list, for error messages. Returns 0 on failure. */
static size_t first_method(const char *spec, const char *list, kvd_err *err)
{
    size_t n = strcspn(list, ",");
    if (memchr(list, '=', n)) {
        kvd_fail(err, "--method %s: '%.*s' has no method before it", spec, (int)n, list);
        return 0;
    }
    const char *const at = memchr(list, '@', n);
    if (check_names(spec, list, at ? (size_t)(at - list) : n, err))
        return 0;
    while (list[n]) {
        const char *const next = list + n + 1;
        const size_t more = strcspn(next, ",");
        if (!memchr(next, '=', more))
            break;
        n += 1 + more;
    }
    return n;
}

/* Fails if `spec` begins or ends with a blank, or has a blank next to ',', '+' or '='. */
static int refuse_blanks(const char *spec, kvd_err *err)
{
    char *const clean = strdup(spec);
    size_t n = 0;
    if (!clean)
        return kvd_no_memory(err, "methods", strlen(spec));
    for (const char *at = spec; *at; at++) {
        const char next = at[strspn(at, " \t")];
        if ((*at != ' ' && *at != '\t') ||
            (next && n && !strchr(",+=", next) && !strchr(",+=", clean[n - 1])))
            clean[n++] = *at;
    }
    clean[n] = '\0';
    const int status =
        strcmp(clean, spec)
            ? kvd_fail(err, "--method '%.200s': write it without blanks: '%.200s'", spec, clean)
            : 0;
    free(clean);
    return status;
}

int kvd_methods_add(const char *spec, kvd_method *method, char **text, size_t *n, size_t most,
                    kvd_err *err)
{
    if (refuse_blanks(spec, err))
        return -1;
    for (const char *at = spec;; at++) {
        const size_t length = first_method(spec, at, err), before = *n;
        char *const one = length ? strndup(at, length) : NULL;
        if (!one)
            return length ? kvd_no_memory(err, "methods", length) : -1;
        int status = expand(one, text, n, most, err);
        free(one);
        for (size_t i = before; !status && method && i < *n; i++)
            status = kvd_method_parse(text[i], &method[i], err);
        if (status)
            return -1;
        at += length;
        if (!*at)
            return 0;
    }
}

int kvd_methods_add_inputs(const kvd_method *method, size_t n, kvd_run *run, kvd_err *err)
{
    const char *path;
    if (kvd_plugins_record(run, err))
        return -1;
    for (size_t i = 0; i < n; i++)
        for (int k = 0; (path = kvd_method_file(&method[i], k)); k++) {
            bool known = false;
            for (int j = 0; j < run->n_inputs; j++)
                known |= !strcmp(run->inputs[j].path, path);
            if (!known && kvd_run_add_input(run, path, err))
                return -1;
        }
    return 0;
}

static void print_tradeoff(const char *name)
{
    kvd_err none;
    kvd_method m;
    kvd_method_tradeoff r;
    if (!kvd_method_parse(name, &m, &none) && !kvd_method_tradeoff_find(&m, NULL, &r, &none))
        printf("  %-14s --sweep, --target: %s from %g to %g%s%s\n", "", r.name, r.most, r.least,
               *r.with ? ", together with " : "", r.with);
}

void kvd_method_print_all(void)
{
    kvd_method_entry p;
    printf("Methods, the axis that each shortens, and its keys with their defaults\n"
           "  %-12s the uncompressed model\n",
           "none");
    for (int i = 0; kvd_method_entry_at(i, &p); i++) {
        printf("  %-12s %s: %s\n", p.info->name, p.axis, p.info->summary);
        print_tradeoff(p.info->name);
        for (int k = 0; p.info->parameter && p.info->parameter[k].key; k++)
            printf("  %-14s %s=%g  %s\n", "", p.info->parameter[k].key, p.info->parameter[k].value,
                   p.info->parameter[k].meaning);
        if (p.info->text_key)
            printf("  %-14s %s=PATH  %s\n", "", p.info->text_key, p.info->text_meaning);
    }
    printf("\nKeys of");
    for (int i = 0, n = 0; kvd_method_entry_at(i, &p); i++)
        if (p.dims)
            printf("%s %s", n++ ? "," : "", p.info->name);
    puts("\n"
         "  p              overall fraction of the dimensions removed\n"
         "  p.qk, p.v      the same for the Q-K pair and for V, given together\n"
         "  r              removal rate of Eq. 6; without p and r: every point of a --rates file\n"
         "  ranks          rule of the widths: eq6 (default), eq6-energy, error (errors measured\n"
         "                 in --error-table) or loss (predicted by the singular values of fisher)\n"
         "  cut            both (default), qk or v: cuts one side at the widths of both\n"
         "  online         0 (default) or 1, of zack, uniform and zdc: every request computes its\n"
         "                 rotations from its prompt\n"
         "  explicit       0 (default) or 1, of zack, fdc, uniform and zdc: rows are cut and\n"
         "                 rebuilt by launches of their own, not folded into products\n"
         "\n"
         "Key of every method but none\n"
         "  keep_layers    FIRST:LAST: the first FIRST and the last LAST layers are kept whole");
}
