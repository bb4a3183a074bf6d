/* Computes, from result files, statistics of singular values and differences between calibrated
 * rotation matrices. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/stats.h"
#include "report/measures/measures.h"

static size_t heads_of(const kvd_spectrum *s, kvd_pair pair)
{
    return (size_t)s->n_layers * (size_t)s->pair[pair].n_h;
}

double kvd_mean_sigma(const kvd_spectrum *s, kvd_pair pair, int dim, bool normalised)
{
    const kvd_pair_spectrum *p = &s->pair[pair];
    size_t n = heads_of(s, pair), d = (size_t)s->model.d_head;
    double sum = 0;
    for (size_t h = 0; h < n; h++)
        sum += p->sigma[h * d + (size_t)dim];
    return sum / (double)n / (normalised ? sqrt((double)p->n_rows) : 1);
}

double kvd_trailing_share(const kvd_spectrum *s, kvd_pair pair)
{
    int d = s->model.d_head;
    double all = 0, trailing = 0;
    for (int j = 0; j < d; j++) {
        double x = kvd_mean_sigma(s, pair, j, false);
        all += x;
        trailing += j >= d / 2 ? x : 0;
    }
    return all > 0 ? trailing / all : (double)NAN;
}

double kvd_dims_for_energy(const kvd_spectrum *s, kvd_pair pair, double share)
{
    size_t n = heads_of(s, pair), d = (size_t)s->model.d_head, dims = 0;
    for (size_t h = 0; h < n; h++) {
        const double *sigma = s->pair[pair].sigma + h * d;
        double all = 0, kept = 0;
        for (size_t j = 0; j < d; j++)
            all += sigma[j] * sigma[j];
        for (size_t j = 0; j < d && kept < share * all; j++, dims++)
            kept += sigma[j] * sigma[j];
    }
    return (double)dims / (double)n;
}

double kvd_share_below_one(const kvd_spectrum *s, kvd_pair pair, bool normalised)
{
    const kvd_pair_spectrum *p = &s->pair[pair];
    size_t n = heads_of(s, pair) * (size_t)s->model.d_head, below = 0;
    double limit = normalised ? sqrt((double)p->n_rows) : 1;
    for (size_t i = 0; i < n; i++)
        below += p->sigma[i] < limit;
    return (double)below / (double)n;
}

int kvd_top_sigma(const kvd_spectrum *s, kvd_pair pair, double *mean, double *sd, kvd_err *err)
{
    size_t n = heads_of(s, pair), d = (size_t)s->model.d_head;
    double *top = malloc(n * sizeof *top);
    if (!top)
        return kvd_no_memory(err, "largest singular values", n * sizeof *top);
    for (size_t h = 0; h < n; h++)
        top[h] = s->pair[pair].sigma[h * d];
    *mean = kvd_mean(top, n);
    *sd = kvd_stddev(top, n);
    free(top);
    return 0;
}

bool kvd_one_text(const kvd_similarity *s, size_t a, size_t b)
{
    return !strcmp(s->label[a], s->label[b]) ||
           (s->hash && *s->hash[a] && kvd_corpus_hash_same(s->hash[a], s->hash[b]));
}

bool kvd_most_tokens(const kvd_similarity *s, size_t i)
{
    for (size_t j = 0; j < s->n_files; j++)
        if (strcmp(s->label[j], s->label[i]) == 0 &&
            (s->n_tokens[j] > s->n_tokens[i] || (j < i && s->n_tokens[j] == s->n_tokens[i])))
            return false;
    return true;
}

static bool tokens_vary(const kvd_similarity *s, size_t i)
{
    for (size_t j = 1; j < s->n_files; j++)
        if (strcmp(s->label[j], s->label[i]) == 0 && s->n_tokens[j] != s->n_tokens[i])
            return true;
    return false;
}

typedef struct {
    kvd_token_point p;
    char label[KVD_LABEL];
} labelled;

static int by_series(const void *a, const void *b)
{
    const labelled *x = a, *y = b;
    int c = strcmp(x->label, y->label);
    if (!c)
        c = (int)x->p.pair - (int)y->p.pair;
    if (!c)
        c = (x->p.n_averaged > 1) - (y->p.n_averaged > 1);
    if (!c)
        c = strcmp(x->p.series, y->p.series);
    if (!c)
        c = (x->p.n_tokens > y->p.n_tokens) - (x->p.n_tokens < y->p.n_tokens);
    return c;
}

/* Sets *mean to the mean of the results that differ from all[i] only in the reference text. Returns
 * false if there is only one reference text, or if a reference text lacks a result. */
static bool mean_over_references(const labelled *all, size_t n, size_t i, labelled *mean)
{
    size_t same = 0, series = 0;
    const labelled *x = &all[i];
    *mean = *x;
    kvd_token_point *m = &mean->p;
    m->delta_ratio = m->aligned_ratio = m->overlap_half = m->energy_half = 0;
    for (size_t j = 0; j < n; j++) {
        const labelled *y = &all[j];
        if (strcmp(y->label, x->label) || y->p.pair != x->p.pair)
            continue;
        if (j == 0 || strcmp(all[j - 1].p.series, y->p.series) || all[j - 1].p.pair != y->p.pair)
            series++;
        if (y->p.n_tokens != x->p.n_tokens)
            continue;
        same++;
        m->delta_ratio += y->p.delta_ratio;
        m->aligned_ratio += y->p.aligned_ratio;
        m->overlap_half += y->p.overlap_half;
        m->energy_half += y->p.energy_half;
    }
    m->delta_ratio /= (double)same;
    m->aligned_ratio /= (double)same;
    m->overlap_half /= (double)same;
    m->energy_half /= (double)same;
    m->n_averaged = same;
    snprintf(m->series, sizeof m->series, "%s: mean over %zu references", x->label, same);
    return series > 1 && same == series;
}

int kvd_token_points(const kvd_results *r, kvd_token_point **points, size_t *n, kvd_err *err)
{
    size_t size = 0, first = 0;
    labelled *all = NULL;
    *points = NULL;
    *n = 0;
    for (size_t i = 0; i < r->n; i++)
        if (r->item[i].kind == KVD_RESULT_SIMILARITY)
            size += r->item[i].similarity.n_files * r->item[i].similarity.n_pairs;
    if (size == 0)
        return 0;
    all = calloc(2 * size, sizeof *all);
    if (!all)
        return kvd_no_memory(err, "similarity against tokens", 2 * size * sizeof *all);

    for (size_t i = 0; i < r->n; i++) {
        const kvd_similarity *s = &r->item[i].similarity;
        if (r->item[i].kind != KVD_RESULT_SIMILARITY)
            continue;
        for (size_t o = 1; o < s->n_files; o++)
            for (size_t p = 0; p < s->n_pairs && tokens_vary(s, o); p++) {
                const kvd_similarity_pair *q = &s->pair[p];
                labelled *x = &all[first++];
                snprintf(x->label, sizeof x->label, "%s", s->label[o]);
                snprintf(x->p.series, sizeof x->p.series, "%s against %s", s->label[o],
                         s->label[0]);
                x->p.pair = q->pair;
                x->p.n_tokens = s->n_tokens[o];
                x->p.n_averaged = 1;
                x->p.random = kvd_label_random(s->label[o]);
                x->p.delta_ratio = q->delta_ratio[o];
                x->p.aligned_ratio = q->aligned_ratio[o];
                x->p.overlap_half = q->overlap[o];
                x->p.energy_half = q->energy[o];
            }
    }
    qsort(all, first, sizeof *all, by_series);
    size_t total = first;
    for (size_t i = 0; i < first; i++) {
        /* true unless an earlier spectrum has the same text label, matrix (such as Q-K) and number
         * of tokens */
        bool leads = true;
        for (size_t j = 0; j < i && leads; j++)
            leads = strcmp(all[j].label, all[i].label) || all[j].p.pair != all[i].p.pair ||
                    all[j].p.n_tokens != all[i].p.n_tokens;
        if (leads && mean_over_references(all, first, i, &all[total]))
            total++;
    }
    qsort(all, total, sizeof *all, by_series);
    kvd_token_point *out = malloc((total ? total : 1) * sizeof *out);
    if (!out) {
        free(all);
        return kvd_no_memory(err, "similarity against tokens", total * sizeof *out);
    }
    for (size_t i = 0; i < total; i++) {
        out[i] = all[i].p;
        out[i].drawn = true;
        for (size_t j = 0; j < total; j++)
            if (out[i].n_averaged == 1 && all[j].p.n_averaged > 1 &&
                all[j].p.pair == all[i].p.pair && strcmp(all[j].label, all[i].label) == 0)
                out[i].drawn = false;
    }
    free(all);
    for (size_t i = 0; i < total; i++)
        kvd_series_clean(out[i].series);
    *points = out;
    *n = total;
    return 0;
}
