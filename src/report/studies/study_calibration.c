/* Section of the report: calibration on less data, or on another text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/measures/measures.h"
#include "report/studies/studies.h"

static const char *text_of(const kvd_calibration_point *x, const char *column)
{
    return kvd_row_text(x->accuracy->accuracy.rows, x->row, column);
}

static const kvd_calibration *how(const kvd_calibration_point *x)
{
    return &x->spectrum->spectrum.calibration;
}

static void point_table(const kvd_calibration_point *point, size_t n, kvd_section *s)
{
    kvd_table *t = kvd_section_table(s, "calibration",
                                     "Calibration on fewer rows: what it costs and what it gives");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "label", "evaluated on");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "p_wanted", "p");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "prune", "pruned");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "n_tokens", "tokens left");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "centroids", "centroids");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "weighted", "weighted");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "kmeans_residual", "energy lost");
    kvd_table_add_interval(t, 5, "perplexity", "perplexity");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "top1_share", "top-1 share");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "kl", "KL, nat");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "collect_s", "forward passes, s");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "rows_s", "rows, s");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "kmeans_s", "K-means, s");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "decompose_s", "decomposition, s");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "total_s", "in all, s");
    kvd_table_note(
        t, "Pruned: share of the sequences of every text left out. No centroids: sums over all "
           "rows that are left, which is what streaming moments do. Energy lost: within clusters, "
           "of the sum of squares of the rows. Forward passes: those of all tokens, in proportion "
           "to the tokens that stayed.");
    for (size_t i = 0; i < n; i++) {
        const kvd_calibration_point *x = &point[i];
        const kvd_calibration *c = how(x);
        kvd_table_row(t, x->accuracy->accuracy.rows, x->row, 3);
        kvd_table_real(t, c->prune);
        kvd_table_int(t, (int64_t)x->spectrum->spectrum.n_tokens);
        kvd_table_count(t, c->centroids ? (double)c->centroids : (double)NAN);
        kvd_table_text(t, c->centroids ? c->weighted ? "yes" : "no" : "");
        kvd_table_real(t, c->centroids ? c->kmeans_residual : (double)NAN);
        kvd_table_row(t, x->accuracy->accuracy.rows, x->row, 5);
        kvd_table_reals(t, x->collect_s, c->seconds_rows, c->seconds_kmeans, c->seconds_decompose,
                        x->collect_s + x->calibrate_s);
    }
}

static bool first_use(const kvd_calibration_point *point, const kvd_calibration_point *x)
{
    for (; point < x; point++)
        if (point->spectrum == x->spectrum)
            return false;
    return true;
}

static void curve_row(kvd_table *t, const char *panel, double at,
                      const kvd_calibration_point *point, const kvd_calibration_point *x,
                      bool texts)
{
    char series[KVD_LABEL];
    kvd_calibration_series(x, texts, series, sizeof series);
    kvd_table_text(t, panel);
    kvd_table_text(t, series);
    kvd_table_real(t, at);
    kvd_table_row(t, x->accuracy->accuracy.rows, x->row, 6);
    kvd_table_real(t, first_use(point, x) ? x->calibrate_s : (double)NAN);
}

static size_t others(const kvd_calibration_point *point, size_t n, const kvd_calibration_point *x,
                     bool pruning)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
        found += kvd_calibration_same_rows(&point[i], x, pruning) &&
                 (pruning ? how(&point[i])->prune != how(x)->prune
                          : how(&point[i])->prune == how(x)->prune &&
                                how(&point[i])->centroids != how(x)->centroids);
    return found;
}

/* Adds horizontal lines to figures whose x axis is the number of K-means centroids. Each line shows
 * the result of calibration without clustering. */
static void level_lines(const kvd_calibration_point *point, size_t n, bool texts, kvd_table *t)
{
    for (size_t i = 0; i < n; i++) {
        double least = INFINITY, most = 0;
        if (how(&point[i])->centroids || how(&point[i])->prune > 0)
            continue;
        for (size_t j = 0; j < n; j++)
            if (how(&point[j])->centroids && kvd_calibration_same_choice(&point[i], &point[j])) {
                least = fmin(least, (double)how(&point[j])->centroids);
                most = fmax(most, (double)how(&point[j])->centroids);
            }
        if (most > least) {
            curve_row(t, "centroids", least, point, &point[i], texts);
            curve_row(t, "centroids", most, point, &point[i], texts);
        }
    }
}

static void curves(const kvd_calibration_point *point, size_t n, kvd_section *s)
{
    static const kvd_panel panels[] = {
        {.title = "perplexity", .x = "x", .y = "perplexity"},
        {.title = "KL divergence", .x = "x", .y = "kl"},
        {.title = "seconds", .x = "x", .y = "seconds", .log_y = true, .sparse = true}};
    bool texts = false;
    kvd_table *t = kvd_section_data(s, "calibration-curves", "Fewer rows: quality and time");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "panel", "panel");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "series");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "x", "x");
    kvd_table_add_interval(t, 6, "perplexity", "perplexity");
    kvd_table_add_interval(t, 6, "kl", "KL, nat");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "seconds", "seconds");
    for (size_t i = 1; i < n; i++)
        texts = texts || strcmp(text_of(&point[i], "label"), text_of(&point[0], "label")) != 0;
    for (size_t i = 0; i < n; i++)
        if (others(point, n, &point[i], true) >= 2)
            curve_row(t, "pruned", how(&point[i])->prune, point, &point[i], texts);
    for (size_t i = 0; i < n; i++)
        if (how(&point[i])->centroids && others(point, n, &point[i], false) >= 1)
            curve_row(t, "centroids", (double)how(&point[i])->centroids, point, &point[i], texts);
    level_lines(point, n, texts, t);
    if (t->n_rows == 0)
        return;
    kvd_section_figure(
        s, "zdc-fig26-calibration", "calibration.gp", 900,
        kvd_height_with_key(820, 900, 3, t, 1, SIZE_MAX),
        "Perplexity, KL divergence from the uncompressed model, and seconds of rows, K-means "
        "and decomposition, against the share of sequences pruned and against the number of "
        "centroids per head and tensor (ZDC Fig. 26); bars are 95 % intervals over sequences. "
        "Rows: no K-means, all rows of the tokens that are left.",
        "csv='tables/calibration-curves.csv'");
    kvd_section_panels(s, t, panels, sizeof panels / sizeof *panels);
}

static void spectra(const kvd_results *r, kvd_section *s)
{
    char series[KVD_LABEL];
    size_t k = 0;
    double prune = 2;
    kvd_table *t = kvd_section_spectra(s, "calibration-spectra",
                                       "Average singular values with and without pruning");
    for (size_t i = 0; i < r->n; i++) {
        const kvd_calibration *c = &r->item[i].spectrum.calibration;
        if (r->item[i].kind != KVD_RESULT_SPECTRUM || !(c->prune > 0) ||
            !kvd_calibration_unpruned(r, &r->item[i].spectrum))
            continue;
        if (fabs(c->prune - 0.5) < fabs(prune - 0.5))
            prune = c->prune;
        k = c->centroids > k ? c->centroids : k;
    }
    for (size_t i = 0; i < r->n; i++) {
        const kvd_spectrum *x = &r->item[i].spectrum;
        const kvd_calibration *c = &x->calibration;
        const kvd_spectrum *all = r->item[i].kind == KVD_RESULT_SPECTRUM && c->prune > 0
                                      ? kvd_calibration_unpruned(r, x)
                                      : NULL;
        if (!all || c->prune < prune || c->prune > prune || (c->centroids && c->centroids != k))
            continue;
        const char *kind = c->centroids == 0 ? "rows" : c->weighted ? "weighted" : "centroids";
        snprintf(series, sizeof series, "%s: all", kind);
        kvd_table_spectrum(t, series, all);
        snprintf(series, sizeof series, "%s: %g %% pruned", kind, 100 * c->prune);
        kvd_table_spectrum(t, series, x);
    }
    if (t->n_rows == 0)
        return;
    kvd_section_figure(
        s, "zdc-fig15-pruning", "spectra.gp", 900, kvd_height_with_key(640, 900, 3, t, 0, SIZE_MAX),
        "Average singular value per head dimension with and without pruning (ZDC Fig. 15): of "
        "the rows, of their centroids, and of centroids weighted by the square root of their "
        "rows.",
        "csv='tables/calibration-spectra.csv'; pairs='qk vw'");
    kvd_section_spectra_panels(s, t, KVD_PAIR_QK, KVD_PAIR_VW);
}

static void compare(const kvd_calibration_point *point, size_t n, kvd_text *words)
{
    for (size_t i = 0; i < n; i++) {
        const kvd_calibration_point *best = NULL, *x = &point[i];
        if (how(x)->centroids || how(x)->prune > 0)
            continue;
        for (size_t j = 0; j < n; j++)
            if (how(&point[j])->centroids && !how(&point[j])->weighted &&
                kvd_calibration_same_choice(x, &point[j]) &&
                (!best || point[j].perplexity < best->perplexity))
                best = &point[j];
        if (best)
            kvd_text_add(
                words,
                "<p>%s at p = %.2f: sums over all %zu tokens give perplexity %.4g in %.3g s; the "
                "best of the unweighted centroids (%zu, %g %% pruned) gives %.4g in %.3g s, "
                "forward passes included.</p>\n",
                text_of(x, "method"), x->p, x->spectrum->spectrum.n_tokens, x->perplexity,
                x->collect_s + x->calibrate_s, how(best)->centroids, 100 * how(best)->prune,
                best->perplexity, best->collect_s + best->calibrate_s);
    }
}

int kvd_study_calibration(const kvd_results *r, kvd_report *report, kvd_err *err)
{
    kvd_calibration_point *point = NULL;
    size_t n = 0;
    bool any = false;
    for (size_t i = 0; i < r->n; i++)
        any = any || (r->item[i].kind == KVD_RESULT_SPECTRUM &&
                      kvd_calibration_reduced(&r->item[i].spectrum));
    if (!any)
        return 0;
    if (kvd_calibration_points(r, &point, &n, err)) {
        free(point);
        return -1;
    }
    kvd_section *s = kvd_report_section(report, "calibration", "Calibration on fewer rows");
    kvd_text_raw(
        &s->words,
        "<p>ZDC makes its offline decomposition affordable by dropping sequences and by "
        "replacing the rows of every head by K-means centroids, stacked without regard "
        "to the number of rows that each represents. Sums of products need neither: they take one "
        "pass and a matrix per head.</p>\n");
    compare(point, n, &s->words);
    if (n > 0) {
        curves(point, n, s);
        point_table(point, n, s);
    }
    spectra(r, s);
    free(point);
    return 0;
}

static bool has_p(const kvd_accuracy_entry *e)
{
    return !isnan(kvd_entry_real(e, "p_wanted"));
}

/* Returns true if both results have the same method, the same parameters and the same requested p
 * (fraction of dimensions that is removed). */
static bool same_choice(const kvd_accuracy_entry *a, const kvd_accuracy_entry *b)
{
    return strcmp(a->method, b->method) == 0 &&
           strcmp(kvd_entry_text(a, "settings"), kvd_entry_text(b, "settings")) == 0 &&
           (has_p(a) ? kvd_entry_real(a, "p_wanted") == kvd_entry_real(b, "p_wanted") : !has_p(b));
}

static bool usable(const kvd_accuracy_entry *e)
{
    return !kvd_entry_is_none(e) && (has_p(e) || *kvd_entry_text(e, "calibration")) &&
           !kvd_entry_is_search_point(e);
}

static bool first_of_choice(const kvd_accuracy_entries *all, size_t i)
{
    if (!usable(&all->item[i]))
        return false;
    for (size_t j = 0; j < i; j++)
        if (usable(&all->item[j]) && same_choice(&all->item[j], &all->item[i]))
            return false;
    return true;
}

static const kvd_accuracy_entry *find(const kvd_accuracy_entries *all,
                                      const kvd_accuracy_entry *like, const char *calibration,
                                      const char *label)
{
    for (size_t i = 0; i < all->n; i++) {
        const kvd_accuracy_entry *e = &all->item[i];
        if (usable(e) && same_choice(e, like) &&
            strcmp(kvd_entry_text(e, "calibration"), calibration) == 0 &&
            strcmp(kvd_entry_text(e, "label"), label) == 0)
            return e;
    }
    return NULL;
}

static bool has_value(const kvd_accuracy_entries *all, const kvd_accuracy_entry *like,
                      const char *const *from, size_t n, const char *label)
{
    bool any = false;
    for (size_t a = 0; a < n; a++)
        any = any || find(all, like, from[a], label);
    return any;
}

static void one_matrix(const kvd_accuracy_entries *all, const kvd_accuracy_entry *like,
                       const char *const *from, size_t n, int number, kvd_section *s)
{
    char name[64], choice[KVD_LABEL], title[2 * KVD_LABEL + 160];
    double most = 0;
    snprintf(name, sizeof name, "transfer-accuracy-%d", number);
    if (has_p(like))
        snprintf(choice, sizeof choice, "at p = %.2f", kvd_entry_real(like, "p_wanted"));
    else
        snprintf(choice, sizeof choice, "with %.160s", kvd_entry_text(like, "settings"));
    snprintf(
        title, sizeof title,
        "KL divergence in nats, %s %s: calibrated on the row's text, evaluated on the column's",
        like->method, choice);
    for (size_t a = 0; a < n; a++)
        for (size_t b = 0; b < all->n_labels; b++) {
            const kvd_accuracy_entry *e = find(all, like, from[a], all->label[b]);
            double kl = e ? kvd_entry_real(e, "kl") : (double)NAN;
            most = kl > most ? kl : most;
        }
    kvd_table *t = kvd_section_table(s, name, title);
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "calibrated_on", "calibrated on");
    for (size_t b = 0; b < all->n_labels; b++)
        if (has_value(all, like, from, n, all->label[b])) {
            kvd_table_add_column(t, KVD_CELL_REAL, 3, all->label[b], all->label[b]);
            kvd_table_shade(t, 0, most);
        }
    for (size_t a = 0; a < n; a++) {
        kvd_table_text(t, from[a]);
        for (size_t b = 0; b < all->n_labels; b++)
            if (has_value(all, like, from, n, all->label[b])) {
                const kvd_accuracy_entry *e = find(all, like, from[a], all->label[b]);
                kvd_table_real(t, e ? kvd_entry_real(e, "kl") : (double)NAN);
            }
    }
    kvd_table_note(
        t, "A column's entry under its own name is the control without transfer, measured on the "
           "text it was calibrated on.");
}

static int matrices(const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err)
{
    int number = 0;
    if (all->n_labels < 2)
        return 0;
    const char **from = calloc(all->n, sizeof *from);
    if (!from)
        return kvd_no_memory(err, "calibrations", all->n * sizeof *from);
    for (size_t i = 0; i < all->n; i++) {
        size_t n = 0;
        if (!first_of_choice(all, i))
            continue;
        for (size_t j = 0; j < all->n; j++) {
            const char *calibration = kvd_entry_text(&all->item[j], "calibration");
            bool again = !usable(&all->item[j]) || !same_choice(&all->item[j], &all->item[i]);
            for (size_t k = 0; k < n && !again; k++)
                again = strcmp(from[k], calibration) == 0;
            if (!again)
                from[n++] = calibration;
        }
        if (n >= 2)
            one_matrix(all, &all->item[i], from, n, ++number, s);
    }
    free(from);
    return 0;
}

static size_t tokens_of(const kvd_results *r, const kvd_accuracy_entry *e)
{
    const kvd_result *const from = kvd_calibration_of(r, e->file, e->row);
    return from ? from->spectrum.n_tokens : 0;
}

typedef struct {
    size_t tokens;
    const kvd_accuracy_entry *e;
} counted;

static int by_choice(const void *a, const void *b)
{
    const counted *x = a, *y = b;
    int c = strcmp(kvd_entry_text(x->e, "label"), kvd_entry_text(y->e, "label"));
    if (!c)
        c = strcmp(x->e->method, y->e->method);
    double p = kvd_entry_real(x->e, "p_wanted"), q = kvd_entry_real(y->e, "p_wanted");
    if (!c)
        c = (p > q) - (p < q);
    return c ? c : (x->tokens > y->tokens) - (x->tokens < y->tokens);
}

static int token_curves(const kvd_results *r, const kvd_accuracy_entries *all, kvd_section *s,
                        kvd_err *err)
{
    enum { FEWEST_POINTS = 3 };
    static const kvd_panel panels[] = {
        {.title = "top-1 accuracy / uncompressed", .y = "top1_share"},
        {.title = "KL divergence", .y = "kl"}};
    static const char *const columns[] = {"top1_share", "top1_share_lo", "top1_share_hi",
                                          "kl",         "kl_lo",         "kl_hi"};
    size_t n = 0;
    char series[2 * KVD_LABEL];
    counted *x = calloc(all->n ? all->n : 1, sizeof *x);
    kvd_table *t =
        kvd_section_table(s, "accuracy-tokens", "Quality against the number of calibration tokens");
    if (!x)
        return kvd_no_memory(err, "calibration tokens", all->n * sizeof *x);
    for (size_t i = 0; i < all->n; i++) {
        size_t tokens =
            usable(&all->item[i]) && has_p(&all->item[i]) ? tokens_of(r, &all->item[i]) : 0;
        if (tokens)
            x[n++] = (counted){tokens, &all->item[i]};
    }
    qsort(x, n, sizeof *x, by_choice);
    t->only_files = true;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "series");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "n_tokens", "calibration tokens");
    for (size_t k = 0; k < 6; k++)
        kvd_table_add_column(t, KVD_CELL_REAL, 5, columns[k], columns[k]);
    for (size_t i = 0; i < n;) {
        size_t last = i, distinct = 1;
        while (last + 1 < n && same_choice(x[last + 1].e, x[i].e) &&
               strcmp(kvd_entry_text(x[last + 1].e, "label"), kvd_entry_text(x[i].e, "label")) ==
                   0) {
            distinct += x[last + 1].tokens != x[last].tokens;
            last++;
        }
        for (size_t k = i; k <= last && distinct >= FEWEST_POINTS; k++) {
            snprintf(series, sizeof series, "%s at p = %.2f on %s", x[k].e->method,
                     kvd_entry_real(x[k].e, "p_wanted"), kvd_entry_text(x[k].e, "label"));
            kvd_table_series(t, series);
            kvd_table_int(t, (int64_t)x[k].tokens);
            kvd_table_row(t, x[k].e->rows, x[k].e->row, 6);
        }
        i = last + 1;
    }
    free(x);
    if (t->n_rows == 0)
        return 0;
    kvd_section_figure(s, "accuracy-tokens", "accuracy_tokens.gp", 900,
                       kvd_height_with_key(420, 900, 2, t, 0, SIZE_MAX),
                       "Quality at fixed p against the number of calibration tokens; bars are 95 % "
                       "intervals over sequences.",
                       "csv='tables/accuracy-tokens.csv'");
    kvd_section_panels(s, t, panels, sizeof panels / sizeof *panels);
    return 0;
}

int kvd_study_transfer(const kvd_results *r, const kvd_accuracy_entries *all, kvd_section *s,
                       kvd_err *err)
{
    return kvd_status(matrices(all, s, err) || token_curves(r, all, s, err));
}
