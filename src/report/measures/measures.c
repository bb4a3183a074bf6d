#include "report/measures/measures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "report/rows.h"

void kvd_values_release(kvd_measured *v)
{
    free(v->value);
    *v = (kvd_measured){0};
}

int kvd_values_put(kvd_measured *v, double value, kvd_err *err, const char *fmt, ...)
{
    if (!isfinite(value))
        return 0;
    kvd_measured_value *all = realloc(v->value, (v->n + 1) * sizeof *all);
    if (!all)
        return kvd_no_memory(err, "measured values", (v->n + 1) * sizeof *all);
    v->value = all;
    kvd_measured_value *x = &v->value[v->n++];
    x->value = value;
    x->device[0] = x->metric[0] = '\0';
    x->grows = x->gap = false;
    x->lo = x->hi = x->null_lo = x->null_hi = x->load = (double)NAN;
    x->curve = 0;
    x->null_name = NULL;
    va_list args;
    va_start(args, fmt);
    vsnprintf(x->what, sizeof x->what, fmt, args);
    va_end(args);
    return 0;
}

void kvd_values_interval(kvd_measured *v, double lo, double hi)
{
    if (v->n) {
        v->value[v->n - 1].lo = lo;
        v->value[v->n - 1].hi = hi;
    }
}

void kvd_values_null(kvd_measured *v, double lo, double hi)
{
    if (v->n) {
        v->value[v->n - 1].null_lo = lo;
        v->value[v->n - 1].null_hi = hi;
    }
}

void kvd_values_timed_on(kvd_measured *v, size_t first, const char *engine)
{
    for (size_t i = first; i < v->n; i++)
        snprintf(v->value[i].device, sizeof v->value[i].device, "%.*s", (int)strcspn(engine, ",;"),
                 engine);
}

typedef struct {
    const kvd_results *r;
    kvd_pair pair;
    double number;
} request;

typedef int (*measure)(const request *q, const char *name, kvd_measured *out, kvd_err *err);

/* Returns true if *s has one rotation matrix per query head (if `per_query`) or one per KV head
 * (otherwise). Always true if the model has as many KV heads as query heads. */
static bool paired_as(const kvd_spectrum *s, bool per_query)
{
    return s->model.n_heads == s->model.n_kv_heads || (s->pairing == KVD_PER_QUERY) == per_query;
}

/* Sets the range of values expected for random vectors (Marchenko and Pastur 1967). Value: sum of
 * the smaller half of the singular values, in percent of the sum of all. */
static void flat_spectrum(const kvd_spectrum *s, kvd_pair pair, kvd_measured *out)
{
    const double c = sqrt((double)s->model.d_head / (double)s->pair[pair].n_rows);
    kvd_values_null(out, 100 * fmax(0, 1 - c) / 2, 50);
    if (out->n)
        out->value[out->n - 1].null_name = "a flat spectrum of independent rows";
}

/* Sets the range of values measured in the same model with random weights. Value: sum of the
 * smaller half of the singular values, in percent of the sum of all. Returns false if no result
 * file has such a model. */
static bool untrained_spectra(const request *q, const kvd_spectrum *trained, kvd_measured *out)
{
    double least = INFINITY, most = -INFINITY;
    for (size_t i = 0; i < q->r->n; i++) {
        const kvd_spectrum *s = &q->r->item[i].spectrum;
        if (q->r->item[i].kind != KVD_RESULT_SPECTRUM || !s->pair[q->pair].present ||
            !kvd_model_info_untrained(&s->model) || strcmp(s->model.name, trained->model.name) ||
            s->pairing != trained->pairing || strcmp(s->rope, trained->rope))
            continue;
        const double value = 100 * kvd_trailing_share(s, q->pair);
        least = fmin(least, value);
        most = fmax(most, value);
    }
    if (least > most)
        return false;
    kvd_values_null(out, least, most);
    return true;
}

static int of_spectra(const request *q, const char *name, kvd_measured *out, kvd_err *err)
{
    const bool per_query = strstr(name, "-per-query") != NULL;
    for (size_t i = 0; i < q->r->n; i++) {
        const kvd_result *x = &q->r->item[i];
        const kvd_spectrum *s = &x->spectrum;
        double value, mean, sd;
        if (x->kind != KVD_RESULT_SPECTRUM || !s->pair[q->pair].present ||
            kvd_calibration_compared(q->r, s) || !paired_as(s, per_query) ||
            kvd_model_info_untrained(&s->model))
            continue;
        /* Skips rotations of Q and K computed before RoPE, because the papers compute them after
         * RoPE. */
        if (strcmp(s->rope, "before") == 0 && q->pair != KVD_PAIR_V && q->pair != KVD_PAIR_VW &&
            q->pair != KVD_PAIR_WV)
            continue;
        const bool trailing = strncmp(name, "trailing-share", 14) == 0;
        if (trailing) {
            value = kvd_trailing_share(s, q->pair);
        } else if (strncmp(name, "cv", 2) == 0) {
            if (kvd_top_sigma(s, q->pair, &mean, &sd, err))
                return -1;
            value = mean > 0 && s->n_layers * s->pair[q->pair].n_h > 1 ? sd / mean : (double)NAN;
        } else {
            value = kvd_share_below_one(s, q->pair, strcmp(name, "below-one-normalised") == 0);
        }
        if (kvd_values_put(out, 100 * value, err, "%s", x->name))
            return -1;
        if (trailing && !isnan(value) && !untrained_spectra(q, s, out))
            flat_spectrum(s, q->pair, out);
    }
    return 0;
}

/* Sets the range of values that random rotations give. Value: squared norm of vectors in half of
 * the rotated dimensions, in percent of this squared norm with the calibrated rotation. */
static void unrelated_basis(const kvd_similarity *s, const kvd_similarity_pair *x,
                            kvd_measured *out)
{
    double least = INFINITY, most = -INFINITY;
    for (size_t b = 0; b < s->n_files; b++) {
        const double kept = 100 * x->random[3][b] / x->energy[b * s->n_files + b];
        least = fmin(least, kept);
        most = fmax(most, kept);
    }
    kvd_values_null(out, least, most);
}

bool kvd_of_token_counts(const kvd_similarity *s)
{
    for (size_t a = 0; a < s->n_files; a++)
        for (size_t b = 0; b < a; b++)
            if (strcmp(s->label[a], s->label[b]) == 0)
                return true;
    return false;
}

/* Returns true if result x is ignored: it has several calibrations per text, and another result of
 * the same model has one calibration per text. */
static bool superseded(const kvd_results *r, const kvd_result *x)
{
    bool other = false;
    for (size_t i = 0; i < r->n && !other; i++)
        other = r->item[i].kind == KVD_RESULT_SIMILARITY &&
                strcmp(r->item[i].model.hash, x->model.hash) == 0 &&
                !kvd_of_token_counts(&r->item[i].similarity);
    return other && kvd_of_token_counts(&x->similarity);
}

static size_t index_of(const kvd_similarity *s, const kvd_similarity *t, size_t a)
{
    size_t i = 0;
    while (i < s->n_files &&
           (!s->hash || !t->hash || !*t->hash[a] || !kvd_corpus_hash_same(s->hash[i], t->hash[a]) ||
            s->n_tokens[i] != t->n_tokens[a]))
        i++;
    return i;
}

static bool compared_before(const request *q, size_t i, const kvd_similarity_pair *x, size_t a,
                            size_t b)
{
    const kvd_similarity *const s = &q->r->item[i].similarity;
    for (size_t k = 0; k < i; k++) {
        const kvd_result *const y = &q->r->item[k];
        const kvd_similarity *const t = &y->similarity;
        if (y->kind != KVD_RESULT_SIMILARITY || superseded(q->r, y) ||
            strcmp(y->model.hash, q->r->item[i].model.hash) != 0)
            continue;
        const size_t n = t->n_files, ta = index_of(t, s, a), tb = index_of(t, s, b);
        for (size_t p = 0; p < t->n_pairs && ta < n && tb < n; p++)
            if (t->pair[p].pair == x->pair &&
                fabs(t->pair[p].overlap[ta * n + tb] - x->overlap[a * s->n_files + b]) < 1e-12)
                return true;
    }
    return false;
}

static int of_similarity(const request *q, const char *name, kvd_measured *out, kvd_err *err)
{
    bool want_random = strncmp(name, "random-", 7) == 0;
    const char *what = want_random ? name + 7 : name;
    for (size_t i = 0; i < q->r->n; i++) {
        const kvd_similarity *s = &q->r->item[i].similarity;
        if (q->r->item[i].kind != KVD_RESULT_SIMILARITY || superseded(q->r, &q->r->item[i]))
            continue;
        for (size_t p = 0; p < s->n_pairs; p++)
            for (size_t k = 0; k < s->n_files * s->n_files && s->pair[p].pair == q->pair; k++) {
                const kvd_similarity_pair *x = &s->pair[p];
                size_t a = k / s->n_files, b = k % s->n_files;
                bool ra = kvd_label_random(s->label[a]), rb = kvd_label_random(s->label[b]);
                double value;
                if (kvd_one_text(s, a, b) || (want_random ? ra == rb : ra || rb) ||
                    !kvd_most_tokens(s, a) || !kvd_most_tokens(s, b) ||
                    compared_before(q, i, x, a, b))
                    continue;
                if (strcmp(what, "delta-ratio") == 0)
                    value = x->delta_ratio[k];
                else if (strcmp(what, "aligned-ratio") == 0)
                    value = x->aligned_ratio[k];
                else if (strcmp(what, "overlap-half") == 0)
                    value = x->overlap[k];
                else if (strcmp(what, "means-ratio") == 0)
                    value = x->means ? x->means[k] : (double)NAN;
                /* Skips this ratio of squared norms if the rotated vectors come from random token
                 * ids. */
                else if (want_random && rb)
                    continue;
                else
                    value = x->energy[k] / x->energy[b * s->n_files + b];
                if (kvd_values_put(out, 100 * value, err, "basis of %s, data of %s", s->label[a],
                                   s->label[b]))
                    return -1;
                if (strcmp(what, "energy-ratio") == 0 && !isnan(value))
                    unrelated_basis(s, x, out);
            }
    }
    return 0;
}

/* Appends the values of measure `name`:
 *
 * - tokens-delta: relative difference between rotations calibrated on a text and on a reference
 *   text, for each number of calibration tokens
 * - tokens-fall: this difference with the most tokens, divided by the difference with the fewest
 *   tokens */
static int of_tokens(const request *q, const char *name, kvd_measured *out, kvd_err *err)
{
    kvd_token_point *p = NULL;
    size_t n = 0;
    bool want_random = strstr(name, "-random") != NULL,
         fall = strncmp(name, "tokens-fall", 11) == 0;
    int status = -1;
    if (kvd_token_points(q->r, &p, &n, err))
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (p[i].pair != q->pair || (want_random && !p[i].random))
            continue;
        if (!fall) {
            if ((double)p[i].n_tokens > q->number &&
                kvd_values_put(out, 100 * p[i].delta_ratio, err, "%s, %zu tokens", p[i].series,
                               p[i].n_tokens))
                goto done;
            continue;
        }
        /* Finds the last result of this curve. Results are sorted by curve, then by number of
         * calibration tokens. */
        size_t last = i;
        while (last + 1 < n && p[last + 1].pair == p[i].pair &&
               strcmp(p[last + 1].series, p[i].series) == 0)
            last++;
        if (last > i && kvd_values_put(out, p[last].delta_ratio / p[i].delta_ratio, err,
                                       "%s, %zu tokens against %zu", p[i].series, p[last].n_tokens,
                                       p[i].n_tokens))
            goto done;
        i = last;
    }
    status = 0;
done:
    free(p);
    return status;
}

bool kvd_row_is_point(const kvd_rows *rows, size_t row)
{
    return strcmp(kvd_row_text(rows, row, "purpose"), "seed") != 0;
}

bool kvd_on_calibration_text(const kvd_rows *rows, size_t row)
{
    return strcmp(kvd_row_text(rows, row, "label"), kvd_row_text(rows, row, "calibration")) == 0;
}

bool kvd_other_half(const char *a, const char *b)
{
    const size_t n = strlen(a);
    return n > 2 && strlen(b) == n && !strncmp(a, b, n - 1) && !strcmp(a + n - 2, "-a") &&
           b[n - 1] == 'b';
}

static int of_degradation(const request *q, const char *name, kvd_measured *out, kvd_err *err)
{
    const char *column = strstr(name, "-norm") ? "attention_error" : "attention_error_zdc";
    const bool half = strncmp(name, "degradation-half", 16) == 0;
    for (size_t i = 0; i < q->r->n; i++)
        for (size_t a = 0; q->r->item[i].kind == KVD_RESULT_ACCURACY &&
                           a < kvd_rows_count(q->r->item[i].accuracy.rows);
             a++) {
            const kvd_result *x = &q->r->item[i];
            double d = kvd_row_real(x->accuracy.rows, a, column);
            if (!kvd_on_calibration_text(x->accuracy.rows, a) || isnan(d) || d <= 0)
                continue;
            for (size_t j = 0; j < q->r->n; j++)
                for (size_t b = 0; q->r->item[j].kind == KVD_RESULT_ACCURACY &&
                                   b < kvd_rows_count(q->r->item[j].accuracy.rows);
                     b++) {
                    const kvd_result *y = &q->r->item[j];
                    if (kvd_on_calibration_text(y->accuracy.rows, b) ||
                        kvd_rows_differ(x, a, y, b, "label,sample") ||
                        kvd_other_half(kvd_row_text(x->accuracy.rows, a, "label"),
                                       kvd_row_text(y->accuracy.rows, b, "label")) != half)
                        continue;
                    if (kvd_values_put(out, kvd_row_real(y->accuracy.rows, b, column) / d, err,
                                       "%s at p = %.3f, %s against %s",
                                       kvd_row_text(y->accuracy.rows, b, "method"),
                                       kvd_row_real(y->accuracy.rows, b, "overall_p"),
                                       kvd_row_text(y->accuracy.rows, b, "label"),
                                       kvd_row_text(x->accuracy.rows, a, "label")))
                        return -1;
                }
        }
    return 0;
}

static int of_pruning(const request *q, const char *name, kvd_measured *out, kvd_err *err)
{
    return kvd_calibration_spectra(q->r, name, q->pair, out, err);
}

static int of_fewer_rows(const request *q, const char *name, kvd_measured *out, kvd_err *err)
{
    return kvd_calibration_ratios(q->r, name, out, err);
}

static int of_proposals(const request *q, const char *name, kvd_measured *out, kvd_err *err)
{
    (void)name;
    return kvd_proposals_measure(q->r, out, err);
}

static const struct {
    const char *name;
    measure compute;
} measures[] = {
    {"trailing-share", of_spectra},
    {"below-one", of_spectra},
    {"below-one-normalised", of_spectra},
    {"cv", of_spectra},
    {"trailing-share-per-query", of_spectra},
    {"cv-per-query", of_spectra},
    {"delta-ratio", of_similarity},
    {"aligned-ratio", of_similarity},
    {"energy-ratio", of_similarity},
    {"overlap-half", of_similarity},
    {"means-ratio", of_similarity},
    {"random-means-ratio", of_similarity},
    {"random-delta-ratio", of_similarity},
    {"random-aligned-ratio", of_similarity},
    {"random-energy-ratio", of_similarity},
    {"random-overlap-half", of_similarity},
    {"tokens-delta", of_tokens},
    {"tokens-delta-random", of_tokens},
    {"tokens-fall", of_tokens},
    {"tokens-fall-random", of_tokens},
    {"degradation", of_degradation},
    {"degradation-norm", of_degradation},
    {"degradation-half", of_degradation},
    {"degradation-half-norm", of_degradation},
    {"prune-spectrum", of_pruning},
    {"prune-spectrum-rows", of_pruning},
    {"prune-spectrum-weighted", of_pruning},
    {"prune-rise", of_fewer_rows},
    {"prune-rise-rows", of_fewer_rows},
    {"prune-rise-weighted", of_fewer_rows},
    {"prune-time", of_fewer_rows},
    {"centroids-fall", of_fewer_rows},
    {"centroids-fall-weighted", of_fewer_rows},
    {"centroids-time", of_fewer_rows},
    {"proposal-over-oracle", of_proposals},
};

int kvd_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err)
{
    char word[128], pair[128];
    request q = {.r = r};
    const char *colon = strchr(name, ':');
    const char *second = colon ? strchr(colon + 1, ':') : NULL;
    *out = (kvd_measured){0};
    if (!colon || (size_t)(colon - name) >= sizeof word)
        return kvd_fail(err, "measure '%s' is not NAME:PAIR or NAME:PAIR:NUMBER", name);
    size_t n = second ? (size_t)(second - colon - 1) : strlen(colon + 1);
    if (n >= sizeof pair)
        return kvd_fail(err, "measure '%s': no pair of that name", name);
    memcpy(word, name, (size_t)(colon - name));
    word[colon - name] = '\0';
    memcpy(pair, colon + 1, n);
    pair[n] = '\0';
    int (*const by_text)(const kvd_results *, const char *, const char *, kvd_measured *,
                         kvd_err *) = kvd_serving_measure_known(word) ? kvd_serving_measure
                                      : kvd_jct_measure_known(word)   ? kvd_jct_measure
                                      : kvd_rate_measure_known(word)  ? kvd_rate_measure
                                                                      : NULL;
    if (by_text) {
        if (by_text(r, word, pair, out, err) == 0)
            return 0;
        kvd_values_release(out);
        return kvd_in(err, "measure '%s'", name);
    }
    static const char *const without_pair[] = {"degradation", "prune-rise", "prune-time",
                                               "centroids-", "proposal-over-oracle"};
    const bool of_tokens_file = kvd_token_measure_known(word);
    const bool of_sets = of_tokens_file || kvd_setting_measure_known(word);
    bool all = of_sets && strcmp(pair, "all") == 0;
    for (size_t i = 0; i < sizeof without_pair / sizeof *without_pair; i++)
        all = all || (strncmp(word, without_pair[i], strlen(without_pair[i])) == 0 &&
                      strcmp(pair, "all") == 0);
    int p = all ? 0 : kvd_pair_find(pair);
    if (p < 0)
        return kvd_fail(err, "measure '%s': no pair '%s'", name, pair);
    q.pair = (kvd_pair)p;
    if (second && kvd_arg_double("measure", second + 1, 0, 1e15, &q.number, err))
        return -1;
    if (of_sets && all) {
        if ((of_tokens_file ? kvd_token_measure : kvd_setting_measure)(r, word, out, err) == 0)
            return 0;
        kvd_values_release(out);
        return kvd_in(err, "measure '%s'", name);
    }
    for (size_t i = 0; i < sizeof measures / sizeof measures[0]; i++)
        if (strcmp(measures[i].name, word) == 0) {
            if (measures[i].compute(&q, word, out, err) == 0)
                return 0;
            kvd_values_release(out);
            return kvd_in(err, "measure '%s'", name);
        }
    return kvd_fail(err, "unknown measure '%s'", name);
}
