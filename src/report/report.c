#include "report/report.h"

#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kvd_section *kvd_report_section(kvd_report *r, const char *id, const char *title, kvd_err *err)
{
    kvd_section **all = realloc(r->section, (r->n + 1) * sizeof *all);
    kvd_section *s = calloc(1, sizeof *s);
    if (all)
        r->section = all;
    if (!all || !s) {
        free(s);
        kvd_no_memory(err, title, sizeof *s);
        return NULL;
    }
    s->id = id;
    s->title = title;
    r->section[r->n++] = s;
    return s;
}

kvd_table *kvd_section_table(kvd_section *s, const char *name, const char *title, kvd_err *err)
{
    kvd_table **all = realloc(s->table, (s->n_tables + 1) * sizeof *all);
    kvd_table *t = calloc(1, sizeof *t);
    if (all)
        s->table = all;
    if (!all || !t) {
        free(t);
        kvd_no_memory(err, title, sizeof *t);
        return NULL;
    }
    kvd_table_init(t, name, title);
    s->table[s->n_tables++] = t;
    return t;
}

int kvd_section_figure(kvd_section *s, const char *name, const char *script, int width, int height,
                       const char *caption, kvd_err *err, const char *settings, ...)
{
    kvd_figure f = {.script = script, .width = width, .height = height};
    assert(strlen(name) < sizeof f.name);
    snprintf(f.name, sizeof f.name, "%s", name);

    va_list args;
    va_start(args, settings);
    if (vasprintf(&f.settings, settings, args) < 0)
        f.settings = NULL;
    va_end(args);
    f.caption = strdup(caption);
    kvd_figure *all = realloc(s->figure, (s->n_figures + 1) * sizeof *all);
    if (all)
        s->figure = all;
    if (!all || !f.settings || !f.caption) {
        free(f.settings);
        free(f.caption);
        return kvd_no_memory(err, name, sizeof f);
    }
    s->figure[s->n_figures++] = f;
    return 0;
}

static bool is_drawn(const kvd_table *t, size_t row, size_t drawn)
{
    return drawn == SIZE_MAX || !strcmp(kvd_table_cell(t, row, drawn)->text, "yes");
}

/* Whether a text of the column stands in no row above that is drawn. */
static bool is_first(const kvd_table *t, size_t row, size_t series, size_t drawn)
{
    for (size_t i = 0; i < row; i++)
        if (is_drawn(t, i, drawn) &&
            !strcmp(kvd_table_cell(t, i, series)->text, kvd_table_cell(t, row, series)->text))
            return false;
    return true;
}

int kvd_height_with_key(int height, int width, int columns, const kvd_table *t, size_t series, size_t drawn)
{
    enum { LINES = 3, LINE = 19 };
    int n = 0;
    size_t longest = 1;
    for (size_t i = 0; i < t->n_rows && !t->failed; i++)
        if (is_drawn(t, i, drawn) && is_first(t, i, series, drawn)) {
            const size_t length = strlen(kvd_table_cell(t, i, series)->text);
            n++;
            longest = length > longest ? length : longest;
        }
    const int fit = (int)(width / (8.5 * (double)longest + 85)), some = fit < columns ? fit : columns;
    const int lines = some > 1 ? (n + some - 1) / some : n;
    return height + (lines > LINES ? (lines - LINES) * LINE : 0);
}

void kvd_report_release(kvd_report *r)
{
    for (size_t i = 0; i < r->n; i++) {
        kvd_section *s = r->section[i];
        for (size_t j = 0; j < s->n_tables; j++) {
            kvd_table_release(s->table[j]);
            free(s->table[j]);
        }
        for (size_t j = 0; j < s->n_figures; j++) {
            free(s->figure[j].settings);
            free(s->figure[j].caption);
        }
        free(s->table);
        free(s->figure);
        kvd_text_release(&s->words);
        free(s);
    }
    free(r->section);
    *r = (kvd_report){0};
}
