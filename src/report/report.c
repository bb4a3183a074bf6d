#include "report/report.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/run.h"

kvd_section *kvd_report_section(kvd_report *r, const char *id, const char *title)
{
    kvd_section **all = realloc(r->section, (r->n + 1) * sizeof *all);
    kvd_section *s = calloc(1, sizeof *s);
    if (all)
        r->section = all;
    if (!all || !s) {
        free(s);
        r->lost.failed = true;
        return &r->lost;
    }
    s->id = id;
    s->title = title;
    r->section[r->n++] = s;
    return s;
}

kvd_table *kvd_section_table(kvd_section *s, const char *name, const char *title)
{
    kvd_table **all = realloc(s->table, (s->n_tables + 1) * sizeof *all);
    kvd_table *t = calloc(1, sizeof *t);
    if (all)
        s->table = all;
    if (!all || !t || kvd_interrupted()) {
        free(t);
        s->failed = s->lost.failed = true;
        return &s->lost;
    }
    kvd_table_init(t, name, title);
    s->table[s->n_tables++] = t;
    return t;
}

kvd_table *kvd_section_data(kvd_section *s, const char *name, const char *title)
{
    kvd_table *const t = kvd_section_table(s, name, title);
    t->only_files = t->no_markdown = true;
    return t;
}

void kvd_section_figure(kvd_section *s, const char *name, const char *script, int width, int height,
                        const char *caption, const char *settings, ...)
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
        s->failed = true;
        return;
    }
    s->figure[s->n_figures++] = f;
}

static void add_formatted(kvd_text *t, const char *fmt, va_list args)
{
    char *text = NULL;
    if (vasprintf(&text, fmt, args) < 0) {
        t->failed = true;
        return;
    }
    kvd_text_add(t, "%s%s", t->len ? " " : "", text);
    free(text);
}

void kvd_section_fold(kvd_section *s)
{
    if (!s->failed)
        s->figure[s->n_figures - 1].folded = true;
}

void kvd_section_left_out(kvd_section *s, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (!s->failed)
        add_formatted(&s->figure[s->n_figures - 1].left_out, fmt, args);
    va_end(args);
}

void kvd_section_not_drawn(kvd_section *s, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (!s->failed)
        add_formatted(&s->figure[s->n_figures - 1].why, fmt, args);
    va_end(args);
}

static size_t column_of(const kvd_table *t, const char *name)
{
    size_t j = 0;
    while (j < t->n_cols && strcmp(t->col[j].name, name))
        j++;
    assert(j < t->n_cols);
    return j;
}

static double number_of(const kvd_table *t, size_t row, size_t col)
{
    const kvd_cell *c = kvd_table_cell(t, row, col);
    return t->col[col].kind == KVD_CELL_INT && !isnan(c->real) ? (double)c->number : c->real;
}

/* counts of a panel's points: all points; points that are not finite; points at 0 or below, which a
 * logarithmic axis cannot show */
typedef struct {
    size_t all, not_finite, not_above_0;
} point_count;

static void count_points(const kvd_table *t, const kvd_panel *p, point_count *n)
{
    const size_t y = column_of(t, p->y);
    for (size_t i = 0; i < t->n_rows; i++) {
        if (p->where && strcmp(kvd_table_cell(t, i, column_of(t, p->where))->text, p->is))
            continue;
        const double at = p->x ? number_of(t, i, column_of(t, p->x)) : 1,
                     value = number_of(t, i, y);
        if (p->sparse && isnan(value))
            continue;
        n->all++;
        if (!isfinite(at) || !isfinite(value))
            n->not_finite++;
        else if ((p->log_x && at <= 0) || (p->log_y && value <= 0))
            n->not_above_0++;
    }
}

void kvd_section_panels(kvd_section *s, const kvd_table *t, const kvd_panel *panel, size_t n_panels)
{
    size_t shown = 0;
    if (t->failed || s->failed)
        return;
    for (size_t i = 0; i < n_panels; i++) {
        point_count n = {0};
        count_points(t, &panel[i], &n);
        if (n.not_finite)
            kvd_section_left_out(
                s, "Left out of \"%s\": %zu of %zu points, which have no finite value.",
                panel[i].title, n.not_finite, n.all);
        if (n.not_above_0)
            kvd_section_left_out(
                s,
                "Left out of \"%s\": %zu of %zu points at 0 or below, which a logarithmic axis "
                "cannot show.",
                panel[i].title, n.not_above_0, n.all);
        shown += n.all - n.not_finite - n.not_above_0;
    }
    if (shown == 0)
        kvd_section_not_drawn(s, "no point can be shown. %s",
                              kvd_text_get(&s->figure[s->n_figures - 1].left_out));
}

static bool is_drawn(const kvd_table *t, size_t row, size_t drawn)
{
    return drawn == SIZE_MAX || !strcmp(kvd_table_cell(t, row, drawn)->text, "yes");
}

static bool is_first(const kvd_table *t, size_t row, size_t series, size_t drawn)
{
    for (size_t i = 0; i < row; i++)
        if (is_drawn(t, i, drawn) &&
            !strcmp(kvd_table_cell(t, i, series)->text, kvd_table_cell(t, row, series)->text))
            return false;
    return true;
}

int kvd_height_with_key(int height, int width, int columns, const kvd_table *t, size_t series,
                        size_t drawn)
{
    enum { LINES = 3, LINE = 20 };
    int n = 0;
    size_t longest = 1;
    for (size_t i = 0; i < t->n_rows && !t->failed; i++)
        if (is_drawn(t, i, drawn) && is_first(t, i, series, drawn)) {
            const size_t length = strlen(kvd_table_cell(t, i, series)->text);
            n++;
            longest = length > longest ? length : longest;
        }
    const int fit = (int)(width / (8.5 * (double)longest + 85)),
              some = fit < columns ? fit : columns;
    const int lines = some > 1 ? (n + some - 1) / some : n;
    return height + (lines > LINES ? (lines - LINES) * LINE : 0);
}

int kvd_report_check(const kvd_report *r, kvd_err *err)
{
    bool failed = r->lost.failed;
    for (size_t i = 0; i < r->n; i++)
        failed = failed || r->section[i]->failed || r->section[i]->words.failed;
    return !failed             ? 0
           : kvd_interrupted() ? kvd_fail_interrupted(err)
                               : kvd_no_memory(err, "a section of the report", sizeof *r->section);
}

static void release_section(kvd_section *s)
{
    for (size_t j = 0; j < s->n_tables; j++) {
        kvd_table_release(s->table[j]);
        free(s->table[j]);
    }
    for (size_t j = 0; j < s->n_figures; j++) {
        free(s->figure[j].settings);
        free(s->figure[j].caption);
        kvd_text_release(&s->figure[j].left_out);
        kvd_text_release(&s->figure[j].why);
        kvd_text_release(&s->figure[j].no_png);
    }
    free(s->table);
    free(s->figure);
    kvd_table_release(&s->lost);
    kvd_text_release(&s->words);
}

void kvd_report_release(kvd_report *r)
{
    for (size_t i = 0; i < r->n; i++) {
        release_section(r->section[i]);
        free(r->section[i]);
    }
    release_section(&r->lost);
    free(r->section);
    kvd_text_release(&r->title);
    *r = (kvd_report){0};
}
