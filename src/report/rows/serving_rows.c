#include "report/rows/serving_rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double kvd_serving_real(const kvd_serving_entry *e, const char *column)
{
    return kvd_row_real(e->file->serving, e->row, column);
}

const char *kvd_serving_text(const kvd_serving_entry *e, const char *column)
{
    return kvd_row_text(e->file->serving, e->row, column);
}

static void describe(kvd_serving_entry *e)
{
    char replicas[32] = "", chunk[48] = "";
    const bool stored = !strcmp(kvd_serving_text(e, "admission"), "stored");
    const double n = kvd_serving_real(e, "replicas"), tokens = kvd_serving_real(e, "chunk");
    if (n > 1)
        snprintf(replicas, sizeof replicas, "; %.0f replicas", n);
    if (tokens > 0)
        snprintf(chunk, sizeof chunk, "; chunks of %.0f", tokens);
    const char *const engine = kvd_serving_text(e, "engine");
    snprintf(e->place, sizeof e->place, "%.48s on %.*s: %.60s%s%s%s", e->file->model.name,
             (int)strcspn(engine, ",;"), engine, kvd_serving_text(e, "trace"), replicas, chunk,
             stored ? "; admitted by what is stored" : "");
    snprintf(e->series, sizeof e->series, "%.100s", kvd_serving_text(e, "method"));
    kvd_series_clean(e->place);
    kvd_series_clean(e->series);
}

/*
 * Returns true if two rows with the same label were served under different limits (batch, memory,
 * latency bounds), which the label does not show in full.
 */
static bool other_service(const kvd_serving_entry *a, const kvd_serving_entry *b)
{
    static const char *const column[] = {"max_batch",     "max_tokens", "memory_bytes",
                                         "reserve_bytes", "slo_ttft_s", "slo_tbt_s"};
    for (size_t i = 0; i < sizeof column / sizeof *column; i++) {
        const double x = kvd_serving_real(a, column[i]), y = kvd_serving_real(b, column[i]);
        if (x < y || x > y || isnan(x) != isnan(y))
            return true;
    }
    return strcmp(kvd_serving_text(a, "trace"), kvd_serving_text(b, "trace")) ||
           strcmp(kvd_serving_text(a, "route"), kvd_serving_text(b, "route"));
}

/*
 * Appends the name of the file to a place that several files have, if their rows share a method or
 * were served under different limits.
 */
static void tell_apart(kvd_serving_entries *all)
{
    bool *const shared = calloc(all->n, sizeof *shared);
    for (size_t i = 0; shared && i < all->n; i++)
        for (size_t k = 0; k < all->n && !shared[i]; k++)
            shared[i] = all->item[i].file != all->item[k].file &&
                        !strcmp(all->item[i].place, all->item[k].place) &&
                        (!strcmp(all->item[i].series, all->item[k].series) ||
                         other_service(&all->item[i], &all->item[k]));
    for (size_t i = 0; shared && i < all->n; i++)
        if (shared[i]) {
            const size_t at = strlen(all->item[i].place);
            snprintf(all->item[i].place + at, KVD_LABEL - at, " (%.60s)", all->item[i].file->name);
        }
    free(shared);
}

static int by_place(const void *a, const void *b)
{
    const kvd_serving_entry *x = a, *y = b;
    const int order = strcmp(x->place, y->place);
    if (order)
        return order;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

int kvd_serving_collect(const kvd_results *r, kvd_serving_entries *out, kvd_err *err)
{
    size_t n = 0;
    *out = (kvd_serving_entries){0};
    for (size_t i = 0; i < r->n; i++)
        if (r->item[i].kind == KVD_RESULT_SERVING)
            n += kvd_rows_count(r->item[i].serving);
    if (n == 0)
        return 0;
    out->item = calloc(n, sizeof *out->item);
    if (!out->item)
        return kvd_no_memory(err, "rows of serving", (unsigned long long)n * sizeof *out->item);
    for (size_t i = 0; i < r->n; i++)
        for (size_t k = 0;
             r->item[i].kind == KVD_RESULT_SERVING && k < kvd_rows_count(r->item[i].serving); k++) {
            kvd_serving_entry *const e = &out->item[out->n++];
            e->file = &r->item[i];
            e->row = k;
            e->kind = kvd_serving_text(e, "kind");
            describe(e);
        }
    tell_apart(out);
    qsort(out->item, out->n, sizeof *out->item, by_place);
    return 0;
}

void kvd_serving_entries_release(kvd_serving_entries *e)
{
    free(e->item);
    *e = (kvd_serving_entries){0};
}

const kvd_serving_entry *kvd_serving_uncompressed(const kvd_serving_entries *all,
                                                  const kvd_serving_entry *e)
{
    const bool point = !strcmp(e->kind, "point");
    const char *const column = point ? "rate" : "latency_bound_s";
    for (size_t i = 0; i < all->n; i++) {
        const kvd_serving_entry *const x = &all->item[i];
        const double a = kvd_serving_real(x, column), b = kvd_serving_real(e, column);
        if (!strcmp(x->kind, e->kind) && !strcmp(x->place, e->place) &&
            !strcmp(x->series, "none") && a <= b && a >= b)
            return x;
    }
    return NULL;
}
