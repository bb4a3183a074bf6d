/* Implements --target: searches the strongest compression that keeps the target accuracy. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "evaluate/accuracy_text.h"
#include "evaluate/eval_run.h"

/*
 * Quantity that a search varies: the removed fraction of dimensions, p, or another parameter. The
 * coordinate is p itself, or the position, 0 to 1, in the range of the other parameter.
 */
typedef struct {
    kvd_eval_run *v;
    size_t method;
    const kvd_method *base;
    const kvd_method_tradeoff *rate;
} axis;

/*
 * A method with its parameters, and its projections (`point`), which are borrowed unless `owned`.
 */
typedef struct {
    kvd_method method;
    kvd_point point;
    bool owned;
} setting;

static int set_at(const axis *a, double wanted, setting *s, kvd_err *err)
{
    s->owned = false;
    if (!a->rate->p) {
        kvd_method_tradeoff_set(a->base, a->rate, kvd_method_tradeoff_at(a->rate, wanted),
                                &s->method);
        s->point = a->v->in.point[a->method][0];
        s->point.method = &s->method;
        return 0;
    }
    kvd_method_tradeoff_set(a->base, a->rate, wanted, &s->method);
    /*
     * If only p is varied, the method keeps its own p, because results list p in a separate column.
     */
    if (!*a->rate->with) {
        s->method.p = a->base->p;
        s->method.r = a->base->r;
    }
    s->owned = true;
    return kvd_point_at(&s->method, wanted, &s->point, err);
}

static void drop(setting *s)
{
    if (s->owned)
        kvd_point_release(&s->point);
}

static int place(void *ctx, double wanted, double *x, kvd_err *err)
{
    const axis *const a = ctx;
    setting s;
    if (!a->rate->p) {
        *x = kvd_method_tradeoff_share(a->rate, kvd_method_tradeoff_at(a->rate, wanted));
        return 0;
    }
    const int status = set_at(a, wanted, &s, err);
    *x = status ? NAN : s.point.overall_p;
    drop(&s);
    return status;
}

static int measure(void *ctx, double wanted, kvd_target_sample *out, kvd_interval *of_text,
                   kvd_err *err)
{
    const axis *const a = ctx;
    setting s;
    size_t row;
    int status = set_at(a, wanted, &s, err);
    if (!status)
        status = kvd_eval_one(a->v, "target-search", &s.point, a->v->full_rank_error[a->method],
                              &row, err);
    if (!status)
        *out = (kvd_target_sample){
            .value = a->rate->p ? s.point.overall_p : kvd_method_tradeoff_value(&s.method, a->rate),
            .saving = kvd_accuracy_saving(&a->v->accuracy, row),
            .share = kvd_accuracy_top1_share(&a->v->accuracy, row)};
    if (!status && of_text)
        status = kvd_eval_text_shares(a->v, row, of_text, err);
    drop(&s);
    return status;
}

/*
 * Writes the largest removed fraction p that the search may try. If another parameter changes
 * together with p, the range of that parameter also limits p.
 */
static int largest_p(const axis *a, double *p, kvd_err *err)
{
    if (kvd_point_largest(a->base, p, err))
        return -1;
    *p = *a->rate->with && a->rate->least < *p ? a->rate->least : *p;
    return 0;
}

static bool only_p(const kvd_method *m, const kvd_method_tradeoff *r)
{
    return r->p && !kvd_plan_beyond_widths(&m->plan);
}

static bool repeats(const kvd_eval_run *v, const kvd_method *base, const kvd_method_tradeoff *rate)
{
    for (size_t i = 0; i < v->n_targets; i++) {
        const kvd_eval_target *const t = &v->target[i];
        if (!strcmp(t->rate.name, rate->name) &&
            kvd_eval_same_but_key(&v->cfg->in.method[t->method], base, rate))
            return true;
    }
    return false;
}

static void name_target(const kvd_eval_run *v, const kvd_method *m, char *name, size_t size)
{
    int same = 1;
    const bool plain = m->ranks == KVD_WIDTH_RULE_EQ6;
    snprintf(name, size, "%s%s%s", kvd_method_name(m), plain ? "" : "-",
             plain ? "" : kvd_width_rule_name[m->ranks]);
    const size_t used = strlen(name);
    for (size_t i = 0; i < v->n_targets; i++)
        if (!strcmp(v->target[i].name, name)) {
            snprintf(name + used, size - used, "-%d", ++same);
            /* The name has changed, so i++ restarts the comparison with the first name. */
            i = (size_t)-1;
        }
}

static int resolve_texts(kvd_eval_run *v, const kvd_eval_target *t, const kvd_target *of_text,
                         kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    char line[2 * KVD_ACCURACY_LINE], label[64];
    for (size_t i = 0; !cfg->in.common.quiet && !cfg->in.common.json && i < v->evaluator.n_texts;
         i++) {
        const kvd_corpus_spec one = {.text = cfg->in.text + i, .n_text = 1};
        kvd_corpus_label(&one, NULL, label, sizeof label);
        printf("  %s: %s\n", label,
               kvd_accuracy_target_line(t->name, t->rate.name, &of_text[i], line));
    }
    return kvd_accuracy_write_target_texts(&v->file, t->name, of_text, v->evaluator.n_texts, err);
}

/*
 * Prints and writes the result of a search. `of_text` has the results of searches on single texts,
 * or is NULL.
 */
static int resolve(kvd_eval_run *v, kvd_eval_target *t, const kvd_target *of_text, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    const kvd_method *const base = &cfg->in.method[t->method];
    name_target(v, base, t->name, sizeof t->name);
    v->n_targets++;
    if (!cfg->in.common.quiet && !cfg->in.common.json) {
        char line[2 * KVD_ACCURACY_LINE];
        puts(kvd_accuracy_target_line(t->name, t->rate.name, &t->found, line));
    }
    if (kvd_accuracy_write_target(&v->file, t->name, base, t->rate.name, &t->found, err) ||
        (of_text && resolve_texts(v, t, of_text, err)))
        return -1;
    for (const kvd_eval_target *first = v->target; t->whole && first < t; first++)
        if (first->whole)
            return v->evaluator.n_sequences > 1 ? kvd_eval_compare_targets(v, first, t, err) : 0;
    return 0;
}

/*
 * Searches with new measurements. A search for the removed fraction p is repeated for each single
 * text.
 */
static int measure_target(kvd_eval_run *v, kvd_eval_target *t, kvd_err *err)
{
    const kvd_method *const base = &v->cfg->in.method[t->method];
    axis a = {.v = v, .method = t->method, .base = base, .rate = &t->rate};
    kvd_target_axis what = {.ctx = &a,
                            .largest = 1,
                            .step = t->rate.p ? KVD_TARGET_STEP : 1.0 / 128,
                            .whole = t->whole,
                            .place = place,
                            .measure = measure,
                            .n_texts = v->evaluator.n_texts,
                            .method = kvd_method_name(base)};
    kvd_target *of_text = NULL;
    if (!t->rate.p && !v->in.n_points[t->method])
        return kvd_fail(err, "method '%s': --target searches %s, so dims need p= or r=", base->name,
                        t->rate.name);
    if (t->rate.p && what.n_texts && !(of_text = calloc(what.n_texts, sizeof *of_text)))
        return kvd_no_memory(err, "targets of the texts", what.n_texts * sizeof *of_text);
    t->first_row = kvd_rows_count(v->accuracy.rows);
    int status = t->rate.p ? largest_p(&a, &what.largest, err) : 0;
    if (!status)
        status = kvd_target_search(&what, v->cfg->target, &t->found, of_text, err);
    t->end_row = kvd_rows_count(v->accuracy.rows);
    if (!status)
        status = resolve(v, t, of_text, err);
    free(of_text);
    return status ? -1 : 0;
}

static int search_one(kvd_eval_run *v, size_t i, kvd_err *err)
{
    const kvd_method *const base = &v->cfg->in.method[i];
    kvd_eval_target *const t = &v->target[v->n_targets];
    t->method = i;
    if (kvd_method_tradeoff_find(base, v->cfg->target_key, &t->rate, err))
        return -1;
    if (repeats(v, base, &t->rate))
        return 0;
    t->whole = only_p(base, &t->rate);
    if (!v->cfg->points_only)
        return measure_target(v, t, err);
    return kvd_eval_read_points(v, t, err) || resolve(v, t, NULL, err) ? -1 : 0;
}

int kvd_eval_search(kvd_eval_run *v, kvd_err *err)
{
    for (size_t i = 0; i < v->cfg->in.n_methods; i++)
        if (!kvd_method_is_none(&v->cfg->in.method[i]) && search_one(v, i, err))
            return -1;
    return 0;
}

/* Results of one method, from most to fewest stored bytes. */
typedef struct {
    size_t n, *row;
    /* Position of each result in the range of the searched parameter, [n]. */
    double *x;
    const double **top1;
} curve;

static void release(curve *c)
{
    free(c->row);
    free(c->x);
    free((void *)c->top1);
    memset(c, 0, sizeof *c);
}

static bool equal(double a, double b)
{
    return isnan(a) ? isnan(b) : a <= b && a >= b;
}

bool kvd_eval_same_but_key(const kvd_method *a, const kvd_method *b,
                           const kvd_method_tradeoff *rate)
{
    kvd_method x, y;
    if (strcmp(a->name, b->name) != 0)
        return false;
    kvd_method_tradeoff_set(a, rate, rate->most, &x);
    kvd_method_tradeoff_set(b, rate, rate->most, &y);
    return !strcmp(x.settings, y.settings) && x.ranks == y.ranks && equal(x.p, y.p) &&
           equal(x.r, y.r) &&
           /* x.settings and y.settings already contain the fractions removed from K or from V. */
           equal(x.p_low, y.p_low);
}

static bool is_text(const kvd_rows *r, size_t row, const char *column, const char *text)
{
    return !strcmp(kvd_row_text(r, row, column), text);
}

/*
 * Returns the method whose result is row `row`. Returns NULL if that method differs from the one
 * searched for in more than the parameter that the search varies.
 */
static const kvd_method *maker_of(const kvd_eval_run *v, const kvd_eval_target *t, size_t row)
{
    const kvd_eval_options *const cfg = v->cfg;
    const kvd_method *const base = &cfg->in.method[t->method];
    const kvd_rows *const r = v->accuracy.rows;
    if (row >= t->first_row && row < t->end_row)
        return base;
    if (!is_text(r, row, "purpose", "point") || !is_text(r, row, "method", kvd_method_name(base)) ||
        (base->dims && !is_text(r, row, "rule",
                                base->dims->one_p ? "uniform" : kvd_width_rule_name[base->ranks])))
        return NULL;
    for (size_t i = 0; i < cfg->in.n_methods; i++)
        if (is_text(r, row, "settings", cfg->in.method[i].settings) &&
            kvd_eval_same_but_key(&cfg->in.method[i], base, &t->rate))
            return &cfg->in.method[i];
    return NULL;
}

static double value_of(const kvd_eval_run *v, const kvd_eval_target *t, const kvd_method *m,
                       size_t row)
{
    const kvd_rows *const r = v->accuracy.rows;
    return t->rate.p ? kvd_row_real(r, row, "overall_p") : kvd_method_tradeoff_value(m, &t->rate);
}

static void insert(curve *c, double x, size_t row, const double *top1)
{
    size_t at = 0;
    while (at < c->n && c->x[at] < x)
        at++;
    if (at < c->n && equal(c->x[at], x))
        return;
    memmove(c->x + at + 1, c->x + at, (c->n - at) * sizeof *c->x);
    memmove(c->row + at + 1, c->row + at, (c->n - at) * sizeof *c->row);
    memmove((void *)(c->top1 + at + 1), (const void *)(c->top1 + at),
            (c->n - at) * sizeof *c->top1);
    c->x[at] = x;
    c->row[at] = row;
    c->top1[at] = top1;
    c->n++;
}

static int curve_of(const kvd_eval_run *v, const kvd_eval_target *t, curve *c, kvd_err *err)
{
    const size_t rows = kvd_rows_count(v->accuracy.rows), room = rows + 1;
    *c = (curve){0, malloc(room * sizeof *c->row), malloc(room * sizeof *c->x),
                 malloc(room * sizeof *c->top1)};
    if (!c->row || !c->x || !c->top1) {
        release(c);
        return kvd_no_memory(err, "points of a method", room * sizeof *c->x);
    }
    for (size_t i = 0; i < rows; i++) {
        const kvd_method *const m = maker_of(v, t, i);
        const double value = m ? value_of(v, t, m, i) : NAN;
        const double x = t->rate.p ? value : kvd_method_tradeoff_share(&t->rate, value);
        if (isnan(x) || (t->whole && !(x > 0)))
            continue;
        insert(c, x, i, kvd_rows_samples(v->accuracy.rows, KVD_ACCURACY_TOP1, i));
    }
    return 0;
}

int kvd_eval_read_points(const kvd_eval_run *v, kvd_eval_target *t, kvd_err *err)
{
    const kvd_method *const base = &v->cfg->in.method[t->method];
    curve c;
    if (curve_of(v, t, &c, err))
        return -1;
    kvd_target_sample *const sample = malloc((c.n + 1) * sizeof *sample);
    int status = sample ? 0 : kvd_no_memory(err, "points of a method", (c.n + 1) * sizeof *sample);
    if (!status && !c.n)
        status = kvd_fail(err, "method '%s': --points-only, and there is no point along %s",
                          base->name, t->rate.name);
    if (!status) {
        const size_t whole = t->whole;
        sample[0] = (kvd_target_sample){0, 0, 0, {1, 1, 1}};
        for (size_t i = 0; i < c.n; i++)
            sample[i + whole] =
                (kvd_target_sample){.x = c.x[i],
                                    .value = value_of(v, t, maker_of(v, t, c.row[i]), c.row[i]),
                                    .saving = kvd_accuracy_saving(&v->accuracy, c.row[i]),
                                    .share = kvd_accuracy_top1_share(&v->accuracy, c.row[i])};
        kvd_target_read(sample, c.n + whole, v->cfg->target, &t->found);
        t->found.n_points -= whole;
    }
    free(sample);
    release(&c);
    return status;
}

/*
 * Returns the number of correct predictions of the uncompressed model in each sequence. Runs this
 * model if necessary. The caller frees the array.
 */
static double *reference_of(kvd_eval_run *v, kvd_err *err)
{
    kvd_evaluator *const e = &v->evaluator;
    if (kvd_evaluator_know_reference(e, err))
        return NULL;
    double *const top1 = malloc(e->n_sequences * sizeof *top1);
    if (!top1)
        kvd_no_memory(err, "predictions of the uncompressed model", e->n_sequences * sizeof *top1);
    for (size_t s = 0; top1 && s < e->n_sequences; s++)
        top1[s] = e->reference[s].top1;
    return top1;
}

int kvd_eval_compare_targets(kvd_eval_run *v, const kvd_eval_target *first,
                             const kvd_eval_target *t, kvd_err *err)
{
    const kvd_evaluator *const e = &v->evaluator;
    const size_t all[2] = {0, e->n_sequences};
    double *const reference = reference_of(v, err);
    curve a = {0}, b = {0};
    kvd_target_difference_result d;
    int status = -1;
    if (!reference || curve_of(v, first, &a, err) || curve_of(v, t, &b, err))
        goto done;
    const kvd_target_curve ca = {a.n, a.x, a.top1}, cb = {b.n, b.x, b.top1};
    if (kvd_target_difference(&ca, &cb, reference, e->n_texts ? e->text_first : all,
                              e->n_texts ? e->n_texts : 1, v->cfg->target, v->in.run.seed, &d, err))
        goto done;
    if (!v->cfg->in.common.quiet && !v->cfg->in.common.json)
        printf(
            "%s against %s: p = %.4f [%.4f, %.4f] against %.4f [%.4f, %.4f], %+.4f [%+.4f, %+.4f]\n",
            t->name, first->name, d.b.value, d.b.lo, d.b.hi, d.a.value, d.a.lo, d.a.hi,
            d.difference.value, d.difference.lo, d.difference.hi);
    status = kvd_accuracy_write_difference(&v->file, t->name, first->name, &d, err);
done:
    release(&a);
    release(&b);
    free(reference);
    return status;
}

int kvd_eval_text_shares(kvd_eval_run *v, size_t row, kvd_interval *of_text, kvd_err *err)
{
    kvd_evaluator *const e = &v->evaluator;
    const kvd_accuracy *const a = &v->accuracy;
    const size_t *const first = e->text_first;
    if (kvd_evaluator_know_reference(e, err))
        return -1;
    kvd_quality *const q = malloc(e->n_sequences * sizeof *q);
    if (!q)
        return kvd_no_memory(err, "sums per sequence", e->n_sequences * sizeof *q);
    for (size_t s = 0; s < e->n_sequences; s++) {
        const kvd_rows *const r = a->rows;
        q[s] = (kvd_quality){.n = a->predictions[s],
                             .nll = kvd_rows_samples(r, KVD_ACCURACY_NLL, row)[s],
                             .top1 = kvd_rows_samples(r, KVD_ACCURACY_TOP1, row)[s],
                             .kl = kvd_rows_samples(r, KVD_ACCURACY_KL, row)[s],
                             .agree = kvd_rows_samples(r, KVD_ACCURACY_AGREE, row)[s]};
    }
    int status = 0;
    for (size_t t = 0; !status && t < e->n_texts; t++) {
        kvd_quality_summary one;
        status = kvd_quality_compare(q + first[t], e->reference + first[t], first[t + 1] - first[t],
                                     v->in.run.seed, &one, err);
        if (!status)
            of_text[t] = one.top1_share;
    }
    free(q);
    return status;
}
