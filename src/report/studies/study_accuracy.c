/* Section of the report: accuracy against cache bytes, and results of searches for the smallest
 * cache at a given accuracy. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/measures/measures.h"
#include "report/rows.h"
#include "report/studies/studies.h"

static bool same_reference(const kvd_accuracy_entry *a, const kvd_accuracy_entry *b)
{
    return kvd_entry_is_none(a) && kvd_entry_is_none(b) &&
           strcmp(kvd_entry_text(a, "label"), kvd_entry_text(b, "label")) == 0 &&
           strcmp(a->file->model.hash, b->file->model.hash) == 0 &&
           kvd_entry_real(a, "n_predictions") == kvd_entry_real(b, "n_predictions") &&
           kvd_entry_real(a, "perplexity") == kvd_entry_real(b, "perplexity");
}

/* Returns true if `item`, n characters, is one of the items of a list separated by commas. */
static bool has_item(const char *list, const char *item, size_t n)
{
    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == n && !strncmp(at, item, n))
            return true;
    return false;
}

/* Writes to `text` the parameters in which result i differs from other results of the same method,
 * for example "recent=8". */
static void whole_setting(const kvd_accuracy_entries *all, size_t i, char *text, size_t size)
{
    const kvd_accuracy_entry *const e = &all->item[i];
    char own[100], other[100];
    kvd_entry_setting(e, own, sizeof own);
    snprintf(text, size, "%s", own);
    for (const char *at = kvd_entry_text(e, "settings"); *at; at += *at == ',') {
        const size_t n = strcspn(at, ","), used = strlen(text);
        bool shown = !strncmp(at, "cut=", 4);
        for (size_t j = e->first; j <= e->last && !shown; j++) {
            kvd_entry_setting(&all->item[j], other, sizeof other);
            shown =
                !strcmp(own, other) && !has_item(kvd_entry_text(&all->item[j], "settings"), at, n);
        }
        if (shown)
            snprintf(text + used, size - used, "%s%.*s", used ? ", " : "", (int)n, at);
        at += n;
    }
}

static void quality_table(const kvd_accuracy_entries *all, kvd_section *s)
{
    kvd_table *t =
        kvd_section_table(s, "accuracy", "Quality of predictions; 95 % intervals over sequences");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "label", "evaluated on");
    if (all->models)
        kvd_table_add_column(t, KVD_CELL_TEXT, 0, "model", "model");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "rule", "widths by");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "setting", "at");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "calibration", "calibrated on");
    if (all->caches)
        kvd_table_add_column(t, KVD_CELL_TEXT, 0, "cache", "type of the cache");
    if (all->prompts)
        kvd_table_add_column(t, KVD_CELL_INT, 0, "prompt", "prompt");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "overall_p", "overall p");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "overall_p16", "p padded to 16");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "perplexity", "perplexity");
    kvd_table_add_interval(t, 4, "perplexity_ratio", "perplexity ratio");
    kvd_table_add_interval(t, 4, "top1_share", "top-1 share");
    kvd_table_add_interval(t, 4, "kl", "KL, nat");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "agree", "same top-1");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "attention_error", "D (norms)");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "attention_error_zdc", "D as printed");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "n_predictions", "predictions");
    kvd_table_note(
        t,
        "Top-1 share: top-1 accuracy over that of the uncompressed model, paired by sequence. KL: "
        "of the uncompressed model's next-token distribution from the compressed one's. D: error "
        "of the attention output, mean over layers and heads.");
    for (size_t i = 0; i < all->n; i++) {
        const kvd_accuracy_entry *e = &all->item[i];
        char setting[400];
        if (i > 0 && same_reference(e, &all->item[i - 1]))
            continue;
        kvd_table_row(t, e->rows, e->row, 1);
        if (all->models)
            kvd_table_text(t, e->file->model.name);
        kvd_table_row(t, e->rows, e->row, 2);
        whole_setting(all, i, setting, sizeof setting);
        kvd_table_text(t, setting);
        kvd_table_row(t, e->rows, e->row, 4U + all->caches + all->prompts);
        kvd_table_bounded(t, kvd_entry_ratio(e));
        kvd_table_row(t, e->rows, e->row, 10);
    }
}

static const char NO_CURVE[] = "no method was measured at two values of p";

static bool has_curve(const kvd_accuracy_entries *all, const char *label)
{
    for (size_t i = 0; i < all->n; i = all->item[i].last + 1) {
        const kvd_accuracy_entry *e = &all->item[i], *last = &all->item[e->last];
        if ((!label || strcmp(kvd_entry_text(e, "label"), label) == 0) && !kvd_entry_is_none(e) &&
            kvd_entry_real(last, "overall_p") > kvd_entry_real(e, "overall_p"))
            return true;
    }
    return false;
}

/* Returns true if the compression method of accuracy result i was measured at two or more settings.
 * Settings that kvdim-eval --target tried to find the strongest compression do not count. */
static bool is_swept(const kvd_accuracy_entries *all, size_t i)
{
    size_t swept = 0;
    for (size_t k = all->item[i].first; k <= all->item[i].last; k++)
        swept += !kvd_entry_is_search_point(&all->item[k]);
    return swept > 1;
}

/* Returns the index of the text on which most methods were evaluated. */
static size_t main_text(const kvd_accuracy_entries *all)
{
    size_t best = 0, most = 0, at = 0;
    for (size_t k = 0; k < all->n_labels; k++) {
        size_t n = 0;
        for (; at < all->n && !strcmp(kvd_entry_text(&all->item[at], "label"), all->label[k]);
             at = all->item[at].last + 1)
            n++;
        if (n > most) {
            most = n;
            best = k;
        }
    }
    return best;
}

static void quality_figure(const kvd_accuracy_entries *all, size_t label, bool folded,
                           kvd_section *s)
{
    static const kvd_panel panels[] = {
        {.title = "top-1 accuracy / uncompressed", .x = "overall_p", .y = "top1_share"},
        {.title = "perplexity / uncompressed", .x = "overall_p", .y = "perplexity_ratio"},
        {.title = "KL divergence", .x = "overall_p", .y = "kl", .log_y = true}};
    char name[64];
    size_t without_p = 0, searched = 0;
    snprintf(name, sizeof name, "accuracy-%zu", label + 1);
    kvd_table *t = kvd_section_data(s, name, "Quality against overall p");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "series");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "overall_p", "overall p");
    kvd_table_add_interval(t, 6, "top1_share", "top-1 share");
    kvd_table_add_interval(t, 6, "perplexity_ratio", "perplexity ratio");
    kvd_table_add_interval(t, 6, "kl", "KL, nat");
    for (size_t i = 0; i < all->n; i++) {
        const kvd_accuracy_entry *e = &all->item[i];
        if (kvd_entry_is_none(e) || strcmp(kvd_entry_text(e, "label"), all->label[label]))
            continue;
        if (isnan(kvd_entry_real(e, "overall_p"))) {
            without_p++;
            continue;
        }
        if (is_swept(all, i) && kvd_entry_is_search_point(e)) {
            searched++;
            continue;
        }
        kvd_table_text(t, e->series);
        kvd_table_row(t, e->rows, e->row, 4);
        kvd_table_bounded(t, kvd_entry_ratio(e));
        kvd_table_row(t, e->rows, e->row, 3);
    }
    if (t->n_rows == 0)
        return;
    kvd_text caption = {0};
    kvd_text_add(
        &caption,
        "Predictions of %s against overall p: top-1 accuracy and perplexity relative to the "
        "uncompressed model, and KL divergence from it. Bars are 95 %% intervals over sequences; "
        "a bar that ends on the axis of KL goes on below it. The dashed line is 99 %% of the "
        "accuracy.",
        all->label[label]);
    kvd_section_figure(s, name, "accuracy.gp", 980,
                       kvd_height_with_key(420, 980, 3, t, 0, SIZE_MAX), kvd_text_get(&caption),
                       "csv='tables/%s.csv'", name);
    s->failed |= caption.failed;
    kvd_text_release(&caption);
    kvd_section_panels(s, t, panels, sizeof panels / sizeof *panels);
    if (folded)
        kvd_section_fold(s);
    if (searched)
        kvd_section_left_out(s, "Left out: %zu points of searches, which the table has.", searched);
    if (without_p)
        kvd_section_left_out(s, "Left out: %zu settings that have no overall p.", without_p);
    if (!has_curve(all, all->label[label]))
        kvd_section_not_drawn(s, NO_CURVE);
}

static void target_row(kvd_table *t, const char *label, const char *method, const char *calibration,
                       const char *how, const kvd_target_result *x)
{
    const bool p = !strcmp(x->key, "p");
    const double *const end[] = {&x->value, &x->value_misses, &x->value_lo, &x->value_hi};
    kvd_table_text(t, label);
    kvd_table_text(t, method);
    kvd_table_text(t, calibration);
    kvd_table_reals(t, x->target, x->saving, x->saving_lo, x->saving_hi, x->saving_misses);
    for (int i = 0; i < 4; i++)
        kvd_table_real(t, p ? *end[i] : (double)NAN);
    kvd_table_text(t, x->grid ? "" : x->key);
    kvd_table_real(t, x->value);
    kvd_table_text(t, x->grid ? "" : x->monotone ? "yes" : "no");
    kvd_table_int(t, x->n_points);
    kvd_table_text(t, how);
    kvd_table_text(t, x->metric);
    kvd_table_text(t, kvd_target_tells(x->saving_lo, x->saving_hi) ? "" : "cannot tell");
}

void kvd_study_targets(const kvd_results *r, kvd_result_kind kind, const kvd_accuracy_entries *all,
                       kvd_section *s)
{
    const bool tasks = kind == KVD_RESULT_TASKS;
    kvd_table *t = kvd_section_table(s, tasks ? "target-tasks" : "target",
                                     tasks ? "Fewest bytes that keep a share of a task's score"
                                           : "Fewest bytes that keep a share of top-1 accuracy");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "label", "evaluated on");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "calibration", "calibrated on");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "target", "share to keep");
    kvd_table_add_interval(t, 3, "saving", "bytes saved");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "saving_misses", "missed at");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "p", "kept up to p");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "p_misses", "missed at p");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "p_surely_kept", "surely kept up to");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "p_surely_lost", "surely lost from");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "key", "along");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "value", "up to");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "monotone", "monotone");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "n_points", "points");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "how", "from");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "metric", "by");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "tells", "interval");
    kvd_table_note(
        t, "Bytes saved: of an uncompressed 16-bit cache, as counted; in "
           "brackets what is surely kept and what is surely lost, by the 95 %% interval of the "
           "share. search: bisection by --target; points: read off the evaluated "
           "points, so no finer than they are; grid: settings that differ in more than one key, "
           "the one that saves most, chosen on the text that it is judged on. Not monotone: the "
           "share is reached again beyond a miss, so the text is too short for this answer or the "
           "method uneven (Z-18). Cannot tell: no setting that saves bytes is surely kept, and "
           "none is surely lost.");
    for (size_t i = 0; i < r->n; i++)
        for (size_t k = 0; r->item[i].kind == kind && k < r->item[i].accuracy.n_targets; k++) {
            const kvd_accuracy_result *a = &r->item[i].accuracy;
            const kvd_target_result *const x = &a->target[k];
            const size_t n = kvd_rows_count(a->rows);
            const char *calibration = "", *method = x->name,
                       *label = n ? kvd_row_text(a->rows, n - 1, "label") : "";
            for (size_t j = 0; j < all->n; j++)
                if (kvd_entry_search(&all->item[j], x->target) == x) {
                    calibration = kvd_entry_text(&all->item[j], "calibration");
                    method = all->item[j].method;
                }
            target_row(t, label, method, calibration, "search", x);
        }
    for (size_t i = 0; !tasks && i < all->n;) {
        size_t last = all->item[i].last;
        bool known = kvd_entry_is_none(&all->item[i]) || last - i + 1 < KVD_FEWEST_POINTS;
        for (size_t k = i; k <= last; k++)
            known = known || kvd_entry_search(&all->item[k], 0.99);
        if (!known) {
            kvd_target_result x;
            kvd_target_from_points(all, i, last, &x);
            target_row(t, kvd_entry_text(&all->item[i], "label"), all->item[i].method,
                       kvd_entry_text(&all->item[i], "calibration"), x.grid ? "grid" : "points",
                       &x);
        }
        i = last + 1;
    }
}

static void degradation(const kvd_accuracy_entries *all, kvd_section *s)
{
    static const kvd_panel panels[] = {
        {.title = "||v - u|| / ||u||", .x = "overall_p", .y = "attention_error"},
        {.title = "as printed", .x = "overall_p", .y = "attention_error_zdc", .log_y = true}};
    size_t without_p = 0;
    kvd_table *t =
        kvd_section_table(s, "degradation", "Error of the attention output against overall p");
    t->only_files = true;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "series");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "label", "evaluated on");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "text", "which is");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "overall_p", "overall p");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "attention_error", "D (norms)");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "attention_error_zdc", "D as printed");
    for (size_t i = 0; i < all->n; i++) {
        const kvd_accuracy_entry *e = &all->item[i];
        if (kvd_entry_is_none(e) || isnan(kvd_entry_real(e, "attention_error")))
            continue;
        if (isnan(kvd_entry_real(e, "overall_p"))) {
            without_p++;
            continue;
        }
        kvd_table_text(t, e->series);
        kvd_table_series(t, kvd_entry_text(e, "label"));
        kvd_table_text(t, kvd_on_calibration_text(e->rows, e->row) ? "calibration" : "other");
        kvd_table_row(t, e->rows, e->row, 3);
    }
    if (t->n_rows == 0)
        return;
    kvd_section_figure(
        s, "zdc-fig14-degradation", "degradation.gp", 940,
        kvd_height_with_key(440, 940, 3, t, 0, SIZE_MAX),
        "Error D of the attention output against overall p (ZDC Fig. 14): solid on the "
        "calibration text, dashed on every other text. Left: ratio of norms. Right: element "
        "by element as printed, which single elements near zero dominate (D-25).",
        "csv='tables/degradation.csv'");
    kvd_section_panels(s, t, panels, sizeof panels / sizeof *panels);
    kvd_section_fold(s);
    if (without_p)
        kvd_section_left_out(s, "Left out: %zu settings that have no overall p.", without_p);
    if (!has_curve(all, NULL))
        kvd_section_not_drawn(s, NO_CURVE);
}

/* Returns true if the row records the error of the attention output of at least one layer. Rows
 * that kvdim-eval --target measured to find the strongest compression do not record it. */
static bool has_error(const kvd_accuracy_result *a, size_t row)
{
    size_t l = 0;
    while (l < a->n_layers && isnan(a->norm[row * a->n_layers + l]))
        l++;
    return l < a->n_layers;
}

static void per_layer(const kvd_accuracy_entries *all, kvd_section *s)
{
    char series[KVD_LABEL + 48];
    kvd_table *t =
        kvd_section_table(s, "degradation-layers", "Error of the attention output per layer");
    t->only_files = true;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "series");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "label", "evaluated on");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "text", "which is");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "layer", "layer");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "attention_error", "D (norms)");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "attention_error_zdc", "D as printed");
    for (size_t i = 0; i < all->n;) {
        size_t last = all->item[i].last, best = i;
        for (size_t k = i; k <= last; k++)
            if (fabs(kvd_entry_real(&all->item[k], "overall_p") - 0.5) <
                fabs(kvd_entry_real(&all->item[best], "overall_p") - 0.5))
                best = k;
        const kvd_accuracy_entry *e = &all->item[best];
        const kvd_accuracy_result *a = &e->file->accuracy;
        i = last + 1;
        if (kvd_entry_is_none(e) || isnan(kvd_entry_real(e, "overall_p")) || !a->norm || !a->zdc ||
            !has_error(a, e->row))
            continue;
        snprintf(series, sizeof series, "%s at p = %.2f", e->series,
                 kvd_entry_real(e, "overall_p"));
        for (size_t l = 0; l < a->n_layers; l++) {
            kvd_table_text(t, series);
            kvd_table_series(t, kvd_entry_text(e, "label"));
            kvd_table_text(t, kvd_on_calibration_text(a->rows, e->row) ? "calibration" : "other");
            kvd_table_int(t, (int64_t)l);
            kvd_table_real(t, a->norm[e->row * a->n_layers + l]);
            kvd_table_real(t, a->zdc[e->row * a->n_layers + l]);
        }
    }
    if (t->n_rows == 0)
        return;
    kvd_section_figure(
        s, "degradation-layers", "layers.gp", 940, kvd_height_with_key(440, 940, 2, t, 0, SIZE_MAX),
        "Error of the attention output per layer, ratio of norms, mean over heads, at the "
        "point nearest to p = 0.5: solid on the calibration text, dashed on every other text. "
        "An upper layer also shows what lower layers did to its input.",
        "csv='tables/degradation-layers.csv'");
    kvd_section_panels(
        s, t, &(kvd_panel){.title = "||v - u|| / ||u||", .x = "layer", .y = "attention_error"}, 1);
    kvd_section_fold(s);
}

static void bytes_table(const kvd_accuracy_entries *all, kvd_section *s)
{
    kvd_table *t = kvd_section_table(s, "bytes", "Bytes of the cache per token");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "method");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "setting", "at");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "overall_p", "overall p");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "element_bytes", "bytes per element");
    kvd_table_add_column(t, KVD_CELL_REAL, 0, "bytes_per_token_dense", "dense, bytes");
    kvd_table_add_column(t, KVD_CELL_REAL, 0, "bytes_per_token_nominal", "kept elements, bytes");
    kvd_table_add_column(t, KVD_CELL_REAL, 0, "bytes_per_token_padded", "padded to 16, bytes");
    kvd_table_add_column(t, KVD_CELL_REAL, 0, "bytes_per_token_stored",
                         "stored by this run, bytes");
    kvd_table_add_column(t, KVD_CELL_REAL, 0, "basis_bytes", "bases of the whole model, bytes");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "stored_element_bytes", "bytes per stored element");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "padded_share", "padded / dense");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "tokens_for_basis", "tokens until bases pay");
    kvd_table_note(
        t,
        "Dense, kept and padded count elements of the stated size; stored is what the cache of "
        "the run held, counted while it ran, in its own type. Bases: Q-K projections of the whole "
        "model, once, not per token; those of V are folded into the weights. Tokens until bases "
        "pay: bases over bytes saved per token (padded).");
    for (size_t i = 0; i < all->n; i++) {
        const kvd_accuracy_entry *e = &all->item[i];
        bool again = false;
        for (size_t j = 0; j < i && !again; j++)
            again =
                strcmp(all->item[j].series, e->series) == 0 &&
                !strcmp(kvd_entry_text(&all->item[j], "settings"), kvd_entry_text(e, "settings")) &&
                kvd_entry_real(&all->item[j], "basis_bytes") == kvd_entry_real(e, "basis_bytes") &&
                kvd_entry_real(&all->item[j], "overall_p") == kvd_entry_real(e, "overall_p");
        /* Skips the result if the table already has a row for this method with these parameters. */
        if (again)
            continue;
        char setting[400];
        whole_setting(all, i, setting, sizeof setting);
        kvd_table_text(t, e->series);
        kvd_table_text(t, setting);
        kvd_table_row(t, e->rows, e->row, 8);
        double dense = kvd_entry_real(e, "bytes_per_token_dense"),
               padded = kvd_entry_real(e, "bytes_per_token_padded");
        kvd_table_real(t, padded / dense);
        kvd_table_real(t, dense > padded ? kvd_entry_real(e, "basis_bytes") / (dense - padded)
                                         : (double)NAN);
    }
}

int kvd_study_accuracy(const kvd_results *r, const char *paired, kvd_report *report, kvd_err *err)
{
    enum { MOST_FIGURES = 8 };
    kvd_accuracy_entries all = {0};
    int status = -1;
    if (kvd_accuracy_collect(r, &all, err))
        goto done;
    if (all.n == 0) {
        status = paired ? kvd_fail(err, "--paired needs an accuracy file (kvdim-eval)") : 0;
        goto done;
    }
    kvd_section *s = kvd_report_section(report, "accuracy", "Accuracy");
    kvd_text_raw(&s->words,
                 "<p>Next-token predictions with shortened K and V against those of the "
                 "uncompressed model on the same text, and how far the attention outputs move. "
                 "Nothing here is timed.</p>\n");
    if (all.n_labels > MOST_FIGURES)
        kvd_text_add(&s->words,
                     "<p>Curves are drawn for the first %d of %zu texts; the table has all.</p>\n",
                     MOST_FIGURES, all.n_labels);
    if (kvd_study_paired(&all, paired, s, err) || kvd_study_pareto(&all, s, err))
        goto done;
    kvd_study_targets(r, KVD_RESULT_ACCURACY, &all, s);
    const size_t open = main_text(&all) < MOST_FIGURES ? main_text(&all) : 0;
    for (size_t k = 0; k < all.n_labels && k < MOST_FIGURES; k++)
        quality_figure(&all, k, k != open, s);
    kvd_study_settings(&all, s);
    if (kvd_study_proposals(r, s, err) || kvd_study_transfer(r, &all, s, err))
        goto done;
    degradation(&all, s);
    per_layer(&all, s);
    quality_table(&all, s);
    kvd_study_free(&all, s);
    kvd_study_weights(r, s);
    bytes_table(&all, s);
    status = 0;
done:
    kvd_accuracy_entries_release(&all);
    return status;
}
