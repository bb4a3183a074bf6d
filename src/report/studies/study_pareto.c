/* Section of the report: methods with the best quality at each cache size. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/measures/measures.h"
#include "report/studies/studies.h"

enum { MEASURES = 3, FEWEST_METHODS = 3, FEWEST_POINTS = 3 };

/* Returns a measure of the accuracy loss of a compressed cache: KL divergence (k = 0), lost top-1
 * accuracy (k = 1) or perplexity divided by the uncompressed model's (k = 2). */
static double measure(const kvd_accuracy_entry *e, int k)
{
    if (k == 2)
        return kvd_entry_ratio(e).value;
    return k == 1 ? 1 - kvd_entry_real(e, "top1_share") : kvd_entry_real(e, "kl");
}
static const char *const measure_name[MEASURES] = {"KL", "top-1", "perplexity"};

static bool usable(const kvd_accuracy_entry *e)
{
    return !isnan(kvd_entry_real(e, "cache_share")) && !isnan(measure(e, 0)) &&
           !kvd_entry_is_search_point(e);
}

/* Returns false if the run stored wider numbers than its computed cache size assumes, for example
 * 32 bits instead of 16. */
static bool stored_small(const kvd_accuracy_entry *e)
{
    return kvd_entry_real(e, "stored_element_bytes") <= kvd_entry_real(e, "element_bytes");
}

static bool comparable(const kvd_accuracy_entry *a, const kvd_accuracy_entry *b)
{
    return !strcmp(a->file->model.hash, b->file->model.hash) &&
           !strcmp(kvd_entry_text(a, "label"), kvd_entry_text(b, "label")) && usable(a) &&
           usable(b) && stored_small(a) && stored_small(b) &&
           kvd_entry_real(a, "n_predictions") == kvd_entry_real(b, "n_predictions") &&
           kvd_entry_real(a, "prompt") == kvd_entry_real(b, "prompt");
}

static bool beats(const kvd_accuracy_entry *a, const kvd_accuracy_entry *b, int k)
{
    const double bytes_a = kvd_entry_real(a, "cache_share"),
                 bytes_b = kvd_entry_real(b, "cache_share");
    const double x = measure(a, k), y = measure(b, k);
    return bytes_a <= bytes_b && x <= y && (bytes_a < bytes_b || x < y);
}

/* Returns a bit mask. Bit k is set if accuracy result i is Pareto-optimal in cache bytes and loss
 * measure k. */
static unsigned fronts_of(const kvd_accuracy_entries *all, size_t i)
{
    unsigned fronts = 0;
    for (int k = 0; k < MEASURES; k++) {
        bool beaten =
            isnan(measure(&all->item[i], k)) || kvd_entry_real(&all->item[i], "cache_share") > 1;
        for (size_t j = 0; j < all->n && !beaten; j++)
            beaten = j != i && beats(&all->item[j], &all->item[i], k) &&
                     comparable(&all->item[j], &all->item[i]);
        fronts |= beaten ? 0 : 1U << k;
    }
    return fronts;
}

static bool has_series(const kvd_accuracy_entries *all, const char *label, bool any)
{
    size_t methods = 0, points = 0;
    for (size_t i = 0; i < all->n; i = all->item[i].last + 1)
        if (!strcmp(kvd_entry_text(&all->item[i], "label"), label) && usable(&all->item[i]) &&
            (any || stored_small(&all->item[i])) && !kvd_entry_is_none(&all->item[i])) {
            methods++;
            points += all->item[i].last - i + 1;
        }
    return methods >= FEWEST_METHODS && points >= FEWEST_POINTS * methods;
}

static void interval_columns(kvd_table *t, int digits)
{
    kvd_table_add_interval(t, digits, "kl", "KL, nat");
    kvd_table_add_interval(t, digits, "top1_share", "top-1 share");
    kvd_table_add_interval(t, digits, "perplexity_ratio", "perplexity ratio");
}

static void interval_cells(kvd_table *t, const kvd_accuracy_entry *e)
{
    kvd_table_row(t, e->rows, e->row, 6);
    kvd_table_bounded(t, kvd_entry_ratio(e));
}

static const char *front_names(unsigned fronts, char text[64])
{
    *text = '\0';
    for (int k = 0; k < MEASURES; k++)
        if (fronts & 1U << k)
            snprintf(text + strlen(text), 64 - strlen(text), "%s%s", *text ? ", " : "",
                     measure_name[k]);
    return text;
}

static int by_bytes(const void *a, const void *b)
{
    const kvd_accuracy_entry *const x = *(const kvd_accuracy_entry *const *)a,
                                    *const y = *(const kvd_accuracy_entry *const *)b;
    const double p = kvd_entry_real(x, "cache_share"), q = kvd_entry_real(y, "cache_share");
    return p > q ? -1 : p < q ? 1 : strcmp(x->series, y->series);
}

static void fronts_table(const kvd_accuracy_entries *all, kvd_section *s,
                         const kvd_accuracy_entry **on)
{
    kvd_table *const t =
        kvd_section_table(s, "pareto", "Points that no other beats in both bytes and quality");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "label", "evaluated on");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "cache_share", "bytes / uncompressed");
    kvd_table_add_column(t, KVD_CELL_REAL, 0, "bytes_per_token_stored", "bytes per token");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "setting", "at");
    interval_columns(t, 4);
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "front", "best in bytes and");
    kvd_table_note(
        t, "Bytes as the cache counted them, scales, indices and tables included, against an "
           "uncompressed 16-bit cache. Intervals "
           "are those of the point: neighbours whose intervals overlap are not told apart.");
    for (size_t l = 0; l < all->n_labels; l++) {
        size_t n = 0;
        if (!has_series(all, all->label[l], false))
            continue;
        for (size_t i = 0; i < all->n; i++)
            if (usable(&all->item[i]) && stored_small(&all->item[i]) &&
                !strcmp(kvd_entry_text(&all->item[i], "label"), all->label[l]) && fronts_of(all, i))
                on[n++] = &all->item[i];
        qsort(on, n, sizeof(const kvd_accuracy_entry *), by_bytes);
        for (size_t i = 0; i < n; i++) {
            char text[100], names[64];
            kvd_entry_setting(on[i], text, sizeof text);
            kvd_table_row(t, on[i]->rows, on[i]->row, 3);
            kvd_table_text(t, on[i]->method);
            kvd_table_text(t, text);
            interval_cells(t, on[i]);
            kvd_table_text(t, front_names(fronts_of(all, (size_t)(on[i] - all->item)), names));
        }
    }
    kvd_table_unique(t);
}

static void front_figure(const kvd_accuracy_entries *all, size_t label, size_t number,
                         kvd_section *s)
{
    static const kvd_panel panels[] = {
        {.title = "KL divergence", .x = "cache_share", .log_x = true, .y = "kl", .log_y = true},
        {.title = "top-1 accuracy / uncompressed",
         .x = "cache_share",
         .log_x = true,
         .y = "top1_share"},
        {.title = "perplexity / uncompressed",
         .x = "cache_share",
         .log_x = true,
         .y = "perplexity_ratio",
         .log_y = true}};
    char name[64];
    size_t unknown = 0;
    snprintf(name, sizeof name, "pareto-%zu", number);
    kvd_table *const t = kvd_section_data(s, name, "Quality against bytes, all points");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "series");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "cache_share", "bytes / uncompressed");
    interval_columns(t, 6);
    kvd_table_add_column(t, KVD_CELL_INT, 0, "fronts", "bits: 1 KL, 2 top-1, 4 perplexity");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "rate_key", "along");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "rate_value", "at");
    for (size_t i = 0; i < all->n; i++) {
        const kvd_accuracy_entry *const e = &all->item[i];
        if (kvd_entry_is_none(e) || strcmp(kvd_entry_text(e, "label"), all->label[label]))
            continue;
        unknown += isnan(kvd_entry_real(e, "cache_share")) || isnan(measure(e, 0));
        if (!usable(e) || !stored_small(e))
            continue;
        kvd_table_text(t, e->method);
        kvd_table_real(t, kvd_entry_real(e, "cache_share"));
        interval_cells(t, e);
        kvd_table_int(t, (int64_t)fronts_of(all, i));
        kvd_table_row(t, e->rows, e->row, 2);
    }
    kvd_text caption = {0};
    kvd_text_add(
        &caption,
        "Predictions of %s against the bytes that the cache stored, over those of an uncompressed "
        "16-bit cache: every method at every setting. Ringed points are beaten by none in bytes "
        "and the measure of the panel; bars are their 95 %% intervals, and a bar that ends on the "
        "axis of KL goes on below it.",
        all->label[label]);
    kvd_section_figure(s, name, "pareto.gp", 1000,
                       kvd_height_with_key(500, 1000, 5, t, 0, SIZE_MAX), kvd_text_get(&caption),
                       "csv='tables/%s.csv'", name);
    s->failed |= caption.failed;
    kvd_text_release(&caption);
    kvd_section_panels(s, t, panels, sizeof panels / sizeof *panels);
    if (number > 1)
        kvd_section_fold(s);
    if (unknown)
        kvd_section_left_out(
            s, "Left out: %zu settings without a KL divergence or a count of bytes.", unknown);
}

/* Sets *x to the fraction of cache bytes that a method saves at 99 % of the uncompressed model's
 * accuracy. Returns false if it is unknown. */
static bool target_of(const kvd_accuracy_entries *all, const char *method, const char *label,
                      kvd_target_result *x)
{
    for (size_t i = 0; i < all->n; i++) {
        const kvd_target_result *const found = kvd_entry_search(&all->item[i], 0.99);
        if (found && !isnan(found->saving) && !strcmp(all->item[i].method, method) &&
            !strcmp(kvd_entry_text(&all->item[i], "label"), label)) {
            *x = *found;
            return true;
        }
    }
    for (size_t i = 0; i < all->n;) {
        const size_t last = all->item[i].last;
        if (!strcmp(all->item[i].method, method) &&
            !strcmp(kvd_entry_text(&all->item[i], "label"), label) &&
            !kvd_entry_is_none(&all->item[i]) && last - i + 1 >= FEWEST_POINTS) {
            kvd_target_from_points(all, i, last, x);
            return true;
        }
        i = last + 1;
    }
    return false;
}

static void saving_table(const kvd_accuracy_entries *all, kvd_section *s)
{
    kvd_table *const t =
        kvd_section_table(s, "saving", "Bytes saved at 99 % of the top-1 accuracy");
    char name[KVD_LABEL + 24];
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    for (size_t l = 0; l < all->n_labels; l++)
        if (has_series(all, all->label[l], true)) {
            kvd_table_add_interval(t, 3, all->label[l], all->label[l]);
            kvd_table_shade(t, 0, 1);
        }
    kvd_table_note(
        t,
        "Share of the bytes of an uncompressed 16-bit cache, as counted, that a method saves before it "
        "first falls below 99 %% of the uncompressed model's top-1 accuracy (the shape of ZACK "
        "Tables 8 to 11 and FDC Tables 7 to 11, whose p counts elements); in brackets what is "
        "surely kept and what is surely lost, by the 95 %% interval of the share over sequences. "
        "0: the first setting falls below it. Searched where a search was made, else read off the "
        "points. Best of a grid: of settings that differ in more than one key the one that saves "
        "most, chosen on the text that it is judged on.");
    for (size_t i = 0; i < all->n; i++) {
        bool again = kvd_entry_is_none(&all->item[i]), any = false;
        for (size_t j = 0; j < i && !again; j++)
            again = !strcmp(all->item[j].method, all->item[i].method);
        kvd_target_result x;
        bool grid = false;
        for (size_t l = 0; l < all->n_labels && !again; l++)
            if (has_series(all, all->label[l], true) &&
                target_of(all, all->item[i].method, all->label[l], &x)) {
                any = true;
                grid = grid || x.grid;
            }
        if (!any)
            continue;
        snprintf(name, sizeof name, "%s%s", all->item[i].method, grid ? " (best of a grid)" : "");
        kvd_table_text(t, name);
        for (size_t l = 0; l < all->n_labels; l++)
            if (has_series(all, all->label[l], true)) {
                const bool known = target_of(all, all->item[i].method, all->label[l], &x);
                kvd_table_real(t, !known ? (double)NAN : isnan(x.saving) ? 0 : x.saving);
                kvd_table_real(t, known ? x.saving_lo : (double)NAN);
                kvd_table_real(t, known ? x.saving_hi : (double)NAN);
            }
    }
}

int kvd_study_pareto(const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err)
{
    enum { MOST_FIGURES = 8 };
    size_t drawn = 0;
    const kvd_accuracy_entry **const on = calloc(all->n ? all->n : 1, sizeof *on);
    if (!on)
        return kvd_no_memory(err, "fronts", all->n * sizeof *on);
    for (size_t l = 0; l < all->n_labels && drawn < MOST_FIGURES; l++)
        if (has_series(all, all->label[l], false))
            front_figure(all, l, ++drawn, s);
    bool compared = false;
    for (size_t l = 0; l < all->n_labels; l++)
        compared = compared || has_series(all, all->label[l], true);
    if (compared)
        saving_table(all, s);
    if (drawn)
        fronts_table(all, s, on);
    free(on);
    return 0;
}
