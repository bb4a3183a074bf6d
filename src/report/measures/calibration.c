/* Compares KV cache compression calibrated on part of a text's tokens, or on K-means centroids of
 * them, with compression calibrated on all tokens. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/measures/measures.h"
#include "report/rows.h"

bool kvd_calibration_reduced(const kvd_spectrum *s)
{
    return s->calibration.prune > 0 || s->calibration.centroids > 0;
}

static bool same_but_pruning(const kvd_spectrum *a, const kvd_spectrum *b)
{
    const kvd_calibration *x = &a->calibration, *y = &b->calibration;
    return x->centroids == y->centroids && x->weighted == y->weighted && a->pairing == b->pairing &&
           a->seq_len == b->seq_len &&
           a->n_tokens + x->tokens_dropped == b->n_tokens + y->tokens_dropped &&
           strcmp(a->rope, b->rope) == 0 && strcmp(a->model.hash, b->model.hash) == 0 &&
           kvd_corpus_hash_same(a->corpus_hash, b->corpus_hash);
}

const kvd_spectrum *kvd_calibration_unpruned(const kvd_results *r, const kvd_spectrum *s)
{
    for (size_t i = 0; i < r->n; i++) {
        const kvd_spectrum *x = &r->item[i].spectrum;
        if (r->item[i].kind == KVD_RESULT_SPECTRUM && !(x->calibration.prune > 0) &&
            same_but_pruning(x, s))
            return x;
    }
    return NULL;
}

bool kvd_calibration_compared(const kvd_results *r, const kvd_spectrum *s)
{
    bool half = false, pruned = false, other = false;
    for (size_t i = 0; i < r->n; i++) {
        const kvd_spectrum *x = &r->item[i].spectrum;
        if (r->item[i].kind != KVD_RESULT_SPECTRUM || strcmp(x->model.hash, s->model.hash) != 0)
            continue;
        half = half || kvd_other_half(x->label, s->label) || kvd_other_half(s->label, x->label);
        pruned = pruned || (x->calibration.prune > 0 && same_but_pruning(s, x));
        other = other || (x != s && !kvd_calibration_reduced(x));
    }
    return kvd_calibration_reduced(s) || half || (pruned && other);
}

static const char *text_of(const kvd_calibration_point *x, const char *column)
{
    return kvd_row_text(x->accuracy->accuracy.rows, x->row, column);
}

bool kvd_calibration_same_choice(const kvd_calibration_point *a, const kvd_calibration_point *b)
{
    return fabs(a->p - b->p) < 1e-12 &&
           !kvd_rows_differ(a->accuracy, a->row, b->accuracy, b->row, "calibration,widths");
}

/* Returns a code for the vectors from which rotation matrices were computed: 0 for tokens, 1 for
 * K-means centroids, 2 for centroids weighted by cluster size. */
static int kind_of(const kvd_calibration *c)
{
    return c->centroids == 0 ? 0 : c->weighted ? 2 : 1;
}

static int kind_at(const kvd_calibration_point *x)
{
    return kind_of(&x->spectrum->spectrum.calibration);
}

static int kind_wanted(const char *name)
{
    return strstr(name, "-rows") ? 0 : strstr(name, "-weighted") ? 2 : 1;
}

bool kvd_calibration_same_rows(const kvd_calibration_point *a, const kvd_calibration_point *b,
                               bool centroids)
{
    return kvd_calibration_same_choice(a, b) && kind_at(a) == kind_at(b) &&
           (!centroids || a->spectrum->spectrum.calibration.centroids ==
                              b->spectrum->spectrum.calibration.centroids);
}

void kvd_calibration_series(const kvd_calibration_point *x, bool texts, char *buf, size_t size)
{
    static const char *const kind[] = {"rows", "centroids", "weighted"};
    snprintf(buf, size, "%.40s%s%.60s: %s", text_of(x, "method"), texts ? " on " : "",
             texts ? text_of(x, "label") : "", kind[kind_at(x)]);
    kvd_series_clean(buf);
}

static int by_choice(const void *a, const void *b)
{
    const kvd_calibration_point *x = a, *y = b;
    const kvd_calibration *p = &x->spectrum->spectrum.calibration,
                          *q = &y->spectrum->spectrum.calibration;
    int c = strcmp(text_of(x, "label"), text_of(y, "label"));
    if (!c)
        c = strcmp(text_of(x, "method"), text_of(y, "method"));
    if (!c)
        c = (x->p > y->p) - (x->p < y->p);
    if (!c)
        c = kind_at(x) - kind_at(y);
    if (!c)
        c = (p->centroids > q->centroids) - (p->centroids < q->centroids);
    if (!c)
        c = (p->prune > q->prune) - (p->prune < q->prune);
    return c ? c : strcmp(x->accuracy->path, y->accuracy->path);
}

const kvd_result *kvd_calibration_of(const kvd_results *r, const kvd_result *accuracy, size_t row)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->item[i].kind == KVD_RESULT_SPECTRUM &&
            strcmp(r->item[i].spectrum.label,
                   kvd_row_text(accuracy->accuracy.rows, row, "calibration")) == 0 &&
            strcmp(r->item[i].model.hash, accuracy->model.hash) == 0)
            return &r->item[i];
    return NULL;
}

static kvd_calibration_point point_of(const kvd_result *spectrum, const kvd_result *accuracy,
                                      size_t row)
{
    const kvd_spectrum *s = &spectrum->spectrum;
    const kvd_calibration *c = &s->calibration;
    const double left = (double)s->n_tokens / (double)(s->n_tokens + c->tokens_dropped);
    return (kvd_calibration_point){
        .spectrum = spectrum,
        .accuracy = accuracy,
        .row = row,
        .p = kvd_row_real(accuracy->accuracy.rows, row, "p_wanted"),
        .collect_s = c->seconds_collect * left,
        .calibrate_s = c->seconds_rows + c->seconds_kmeans + c->seconds_decompose,
        .perplexity = kvd_row_real(accuracy->accuracy.rows, row, "perplexity")};
}

int kvd_calibration_points(const kvd_results *r, kvd_calibration_point **points, size_t *n,
                           kvd_err *err)
{
    size_t room = 0;
    bool any = false;
    *points = NULL;
    *n = 0;
    for (size_t i = 0; i < r->n; i++) {
        if (r->item[i].kind == KVD_RESULT_ACCURACY)
            room += kvd_rows_count(r->item[i].accuracy.rows);
        any = any || (r->item[i].kind == KVD_RESULT_SPECTRUM &&
                      kvd_calibration_reduced(&r->item[i].spectrum));
    }
    if (!any || !room)
        return 0;
    if (!(*points = calloc(room, sizeof **points)))
        return kvd_no_memory(err, "calibrations", room * sizeof **points);
    for (size_t i = 0; i < r->n; i++)
        for (size_t k = 0;
             r->item[i].kind == KVD_RESULT_ACCURACY && k < kvd_rows_count(r->item[i].accuracy.rows);
             k++) {
            const kvd_rows *rows = r->item[i].accuracy.rows;
            const kvd_result *from = kvd_calibration_of(r, &r->item[i], k);
            if (from && strcmp(kvd_row_text(rows, k, "purpose"), "target-search") != 0 &&
                !isnan(kvd_row_real(rows, k, "p_wanted")))
                (*points)[(*n)++] = point_of(from, &r->item[i], k);
        }
    qsort(*points, *n, sizeof **points, by_choice);
    return 0;
}

/* Compares the singular values of `pair`, averaged over heads, in two calibrations. Returns the
 * largest relative change of a singular value, or NaN if a calibration lacks `pair`. */
static double change_of_spectrum(const kvd_spectrum *from, const kvd_spectrum *to, kvd_pair pair)
{
    double worst = 0;
    if (!from->pair[pair].present || !to->pair[pair].present)
        return (double)NAN;
    for (int j = 0; j < from->model.d_head; j++) {
        const double a = kvd_mean_sigma(to, pair, j, true), b = kvd_mean_sigma(from, pair, j, true);
        if (b > 0)
            worst = fmax(worst, fabs(a / b - 1));
    }
    return worst;
}

/* Compares singular values that were calibrated on the two halves of a text. *lo and *hi receive
 * the smallest and largest change over all texts, in percent, or NaN if no text was calibrated by
 * halves. */
static void change_between_halves(const kvd_results *r, const kvd_spectrum *x, kvd_pair pair,
                                  double *lo, double *hi)
{
    *lo = *hi = (double)NAN;
    for (size_t i = 0; i < r->n; i++)
        for (size_t j = 0; j < r->n; j++) {
            const kvd_spectrum *a = &r->item[i].spectrum, *b = &r->item[j].spectrum;
            if (r->item[i].kind != KVD_RESULT_SPECTRUM || r->item[j].kind != KVD_RESULT_SPECTRUM ||
                !kvd_other_half(a->label, b->label) || strcmp(a->model.hash, x->model.hash) != 0 ||
                strcmp(b->model.hash, x->model.hash) != 0)
                continue;
            const double change = 100 * change_of_spectrum(a, b, pair);
            *lo = fmin(*lo, change); /* fmin and fmax ignore NaN */
            *hi = fmax(*hi, change);
        }
}

/* Computes by how many percent singular values change if rotations are calibrated on about half of
 * the sequences of a text instead of all. */
int kvd_calibration_spectra(const kvd_results *r, const char *name, kvd_pair pair,
                            kvd_measured *out, kvd_err *err)
{
    for (size_t i = 0; i < r->n; i++) {
        const kvd_spectrum *x = &r->item[i].spectrum;
        if (r->item[i].kind != KVD_RESULT_SPECTRUM || !(fabs(x->calibration.prune - 0.5) < 0.051) ||
            !x->pair[pair].present || kind_of(&x->calibration) != kind_wanted(name))
            continue;
        const kvd_spectrum *all = kvd_calibration_unpruned(r, x);
        const double change = all ? change_of_spectrum(all, x, pair) : (double)NAN;
        if (!isfinite(change))
            continue;
        if (kvd_values_put(out, 100 * change, err, "%s", r->item[i].name))
            return -1;
        change_between_halves(r, x, pair, &out->value[out->n - 1].null_lo,
                              &out->value[out->n - 1].null_hi);
    }
    return 0;
}

/* Compares calibrations that differ from calibration i only in the number of K-means centroids:
 * *least has the fewest, *most the most. Returns false if the numbers are equal, or if one such
 * calibration precedes i.
 *
 * - pruning: compares numbers of left-out sequences instead */
static bool ends_of(const kvd_calibration_point *point, size_t n, size_t i, bool pruning,
                    size_t *least, size_t *most)
{
    *least = *most = i;
    for (size_t j = 0; j < n; j++) {
        const kvd_calibration *c = &point[j].spectrum->spectrum.calibration,
                              *x = &point[i].spectrum->spectrum.calibration;
        const bool same =
            pruning ? kvd_calibration_same_rows(&point[j], &point[i], true) && c->prune > 0
                    : kvd_calibration_same_rows(&point[j], &point[i], false) &&
                          !(c->prune < x->prune) && !(c->prune > x->prune);
        if (!same)
            continue;
        if (j < i)
            return false;
        const kvd_calibration *l = &point[*least].spectrum->spectrum.calibration,
                              *m = &point[*most].spectrum->spectrum.calibration;
        *least = (pruning ? c->prune < l->prune : c->centroids < l->centroids) ? j : *least;
        *most = (pruning ? c->prune > m->prune : c->centroids > m->centroids) ? j : *most;
    }
    return *least != *most;
}

/* Divides the perplexity or calibration time with the most K-means centroids by the value with the
 * fewest centroids. Measures named "prune-..." compare the most with the fewest left-out
 * sequences. */
int kvd_calibration_ratios(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err)
{
    const bool pruning = strncmp(name, "prune-", 6) == 0, time = strstr(name, "-time") != NULL;
    kvd_calibration_point *point;
    size_t n, least, most;
    char series[KVD_LABEL];
    int status = 0;
    if (kvd_calibration_points(r, &point, &n, err))
        return -1;
    for (size_t i = 0; i < n && !status; i++) {
        const kvd_calibration *c = &point[i].spectrum->spectrum.calibration;
        if (kind_at(&point[i]) != kind_wanted(name) || (pruning && !(c->prune > 0)) ||
            !ends_of(point, n, i, pruning, &least, &most))
            continue;
        const kvd_calibration_point *a = &point[least], *b = &point[most];
        const kvd_calibration *from = &a->spectrum->spectrum.calibration,
                              *to = &b->spectrum->spectrum.calibration;
        kvd_calibration_series(a, true, series, sizeof series);
        status =
            pruning
                ? kvd_values_put(
                      out, time ? b->calibrate_s / a->calibrate_s : b->perplexity / a->perplexity,
                      err, "%s: %g against %g pruned", series, to->prune, from->prune)
                : kvd_values_put(
                      out, time ? b->calibrate_s / a->calibrate_s : b->perplexity / a->perplexity,
                      err, "%s: %zu against %zu centroids at %g pruned", series, to->centroids,
                      from->centroids, from->prune);
    }
    free(point);
    return status;
}
