#include "methods/grid.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* A piece of the text: values that stand for one another, or a single one, which is there always. */
typedef struct {
    const char *at; /* the first value   */
    size_t len, n;  /* of all values with what is between them; how many */
} choices;

enum { PIECES = 64 };

/* Cuts the text where values are chosen from: text, choices, text, ... */
static int cut(const char *text, choices piece[PIECES], size_t *n, kvd_err *err)
{
    const char *at = text;
    *n = 0;
    while (*at) {
        const char *slash = strchr(at, '/');
        if (!slash || *n + 2 >= PIECES) {
            if (slash)
                return kvd_fail(err, "method '%s': too many keys with several values", text);
            piece[(*n)++] = (choices){at, strlen(at), 1};
            break;
        }
        const char *value = slash; /* back to the = before it */
        while (value > at && value[-1] != '=' && value[-1] != ',')
            value--;
        if (value == at || value[-1] != '=')
            return kvd_fail(err, "method '%s': '/' stands between values of a key", text);
        choices c = {value, strcspn(value, ","), 1};
        for (size_t i = 0; i < c.len; i++) {
            if (value[i] != '/')
                continue;
            if (i == 0 || i + 1 == c.len || value[i - 1] == '/')
                return kvd_fail(err, "method '%s': '%.*s' has an empty value", text, (int)c.len, value);
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

int kvd_method_grid(const char *text, size_t most, char ***texts, size_t *n, kvd_err *err)
{
    choices piece[PIECES];
    size_t pieces, total = 1;
    *texts = NULL;
    *n = 0;
    if (cut(text, piece, &pieces, err))
        return -1;
    for (size_t i = 0; i < pieces; i++) {
        if (piece[i].n > most / total)
            return kvd_fail(err, "method '%s' stands for more than %zu methods", text, most);
        total *= piece[i].n;
    }
    char **list = calloc(total, sizeof *list);
    bool failed = !list;
    for (size_t i = 0; !failed && i < total; i++)
        failed = !(list[i] = combine(piece, pieces, i));
    if (failed) {
        kvd_method_grid_free(list, total);
        return kvd_no_memory(err, "methods", total * sizeof *list);
    }
    *texts = list;
    *n = total;
    return 0;
}

void kvd_method_grid_free(char **texts, size_t n)
{
    for (size_t i = 0; texts && i < n; i++)
        free(texts[i]);
    free(texts);
}

size_t kvd_method_text_length(const char *list)
{
    size_t n = strcspn(list, ",");
    while (list[n]) {
        const char *const next = list + n + 1;
        const size_t more = strcspn(next, ",");
        if (!memchr(next, '=', more))
            break;
        n += 1 + more;
    }
    return n;
}
