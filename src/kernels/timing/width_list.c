#include "kernels/timing/width_list.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "common/files/csv.h"

/* Writes the file name without folder and suffix to `name`, for display. */
static void base_name(const char *path, char *name, size_t size)
{
    const char *const slash = strrchr(path, '/'), *const from = slash ? slash + 1 : path;
    const char *const dot = strrchr(from, '.');
    const size_t n = dot && dot > from ? (size_t)(dot - from) : strlen(from);
    snprintf(name, size, "%.*s", (int)(n < size ? n : size - 1), from);
}

static void repeat(kvd_attn_heads *heads, int n)
{
    for (int g = n; g < heads->n_kv_heads; g++) {
        heads->d_qk[g] = heads->d_qk[g % n];
        heads->d_v[g] = heads->d_v[g % n];
    }
}

/* ---- numbers on the command line ---- */

static int pair(kvd_attn_heads *heads, int g, const char *option, char *text, kvd_err *err)
{
    const size_t most = (size_t)heads->d_head;
    char *const colon = strchr(text, ':');
    size_t d_qk, d_v;
    if (colon)
        *colon = '\0';
    if (kvd_arg_size(option, text, 1, most, &d_qk, err) ||
        kvd_arg_size(option, colon ? colon + 1 : text, 1, most, &d_v, err))
        return -1;
    heads->d_qk[g] = (int)d_qk;
    heads->d_v[g] = (int)d_v;
    return 0;
}

static int parse_numbers(kvd_width_list *list, const char *option, const char *text, kvd_err *err)
{
    char *const copy = strdup(text);
    if (!copy)
        return kvd_no_memory(err, option, strlen(text));
    int n = 0, status = 0;
    for (char *s = copy, *next; !status && s; s = next) {
        next = strchr(s, ',');
        if (next)
            *next++ = '\0';
        if (n == list->heads.n_kv_heads)
            status = kvd_fail(err, "%s: '%s' has more widths than %d KV heads", option, text, n);
        else
            status = pair(&list->heads, n++, option, s, err);
    }
    free(copy);
    if (status)
        return -1;
    repeat(&list->heads, n);
    const size_t size = sizeof list->name, len = strlen(text);
    snprintf(list->name, size, "%.*s%s", (int)(len < size ? len : size - 4), text,
             len < size ? "" : "...");
    return 0;
}

/* ---- CSV ---- */

typedef struct {
    kvd_attn_heads *heads;
    int n;
} reading;

static int read_row(void *ctx, size_t line, char *const *field, const size_t *len, size_t n_fields,
                    kvd_err *err)
{
    reading *const r = ctx;
    (void)len;
    if (n_fields != 2)
        return kvd_fail(err, "%zu columns, 2 are wanted: d_qk, d_v", n_fields);
    if (line == 1 && !strcmp(field[0], "d_qk") && !strcmp(field[1], "d_v"))
        return 0;
    if (r->n == r->heads->n_kv_heads)
        return kvd_fail(err, "more widths than %d KV heads", r->n);
    size_t d[2];
    for (int i = 0; i < 2; i++)
        if (kvd_arg_size(i ? "d_v" : "d_qk", field[i], 1, (size_t)r->heads->d_head, &d[i], err))
            return -1;
    r->heads->d_qk[r->n] = (int)d[0];
    r->heads->d_v[r->n] = (int)d[1];
    r->n++;
    return 0;
}

static int parse_file(kvd_width_list *list, const char *option, const char *path, kvd_err *err)
{
    reading r = {&list->heads, 0};
    if (kvd_csv_read(path, read_row, &r, err))
        return kvd_in(err, "%s", option);
    if (r.n == 0)
        return kvd_fail(err, "%s: '%s' has no widths", option, path);
    repeat(&list->heads, r.n);
    base_name(path, list->name, sizeof list->name);
    return 0;
}

int kvd_width_list_parse(kvd_width_list *list, const char *option, const char *text, kvd_err *err)
{
    return text[0] && strspn(text, "0123456789:,") == strlen(text)
               ? parse_numbers(list, option, text, err)
               : parse_file(list, option, text, err);
}

/* ---- rates ---- */

int kvd_width_list_rates(kvd_width_list *list, const char *path, const kvd_rates *rates,
                         size_t point, size_t layer, kvd_err *err)
{
    const kvd_widths *const w = &rates->widths[point];
    kvd_attn_heads *const h = &list->heads;
    if (w->d_head != h->d_head)
        return kvd_fail(err, "'%s' has d_head %d, --d-head is %d", path, w->d_head, h->d_head);
    if (layer >= (size_t)w->n_layers)
        return kvd_fail(err, "--layer %zu: '%s' has %d layers", layer, path, w->n_layers);
    const size_t all = (size_t)w->n_layers * (size_t)w->n_kv_heads,
                 first = layer * (size_t)w->n_kv_heads;
    for (int g = 0; g < h->n_kv_heads; g++) {
        const size_t i = (first + (size_t)g) % all;
        h->d_qk[g] = (int)kvd_pad16(w->kept[0][i], w->d_head);
        h->d_v[g] = (int)kvd_pad16(w->kept[1][i], w->d_head);
    }
    char base[40];
    base_name(path, base, sizeof base);
    snprintf(list->name, sizeof list->name, "%s p=%.3g", base, rates->overall_p[point]);
    return 0;
}

int kvd_rates_point(const char *path, const kvd_rates *rates, double p, size_t *point, kvd_err *err)
{
    *point = 0;
    for (size_t i = 1; i < rates->n_points; i++)
        if (fabs(rates->overall_p[i] - p) < fabs(rates->overall_p[*point] - p))
            *point = i;
    if (fabs(rates->overall_p[*point] - p) > 0.01)
        return kvd_fail(err, "--overall-p %g: the nearest point of '%s' has p = %.4f", p, path,
                        rates->overall_p[*point]);
    return 0;
}
