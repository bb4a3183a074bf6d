/* Finds each method's strongest compression that keeps the share of the uncompressed model's
 * accuracy given by --target. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "evaluate/accuracy_text.h"
#include "evaluate/eval_run.h"

/* A method's results at several values of the parameter that option --target varies, from most to
 * fewest stored bytes. */
typedef struct {
    size_t n, *row;
    double *x; /* [n] varied parameter, as a position within its range */
    const double **top1;
} curve;

static void release(curve *c)
{
    free(c->row);
    free(c->x);
    free((void *)c->top1);
    memset(c, 0, sizeof *c);
}

static bool is_text(const kvd_rows *r, size_t row, const char *column, const char *text)
{
    return !strcmp(kvd_row_text(r, row, column), text);
}

/* Returns the compression method whose result is in table row `row`, if it equals t->method apart
 * from the parameter that --target varies; else NULL. */
static const kvd_method *maker_of(const kvd_eval_run *v, const kvd_method_target *t, size_t row)
{
    const kvd_eval_options *const cfg = v->cfg;
    const kvd_method *const base = t->method;
    const kvd_rows *const r = v->accuracy.rows;
    if (row >= t->first_row && row < t->end_row)
        return base;
    if (!is_text(r, row, "purpose", "point") || !is_text(r, row, "method", kvd_method_name(base)) ||
        (base->dims && !is_text(r, row, "rule",
                                base->dims->one_p ? "uniform" : kvd_width_rule_name[base->ranks])))
        return NULL;
    for (size_t i = 0; i < cfg->in.n_methods; i++)
        if (is_text(r, row, "settings", cfg->in.method[i].settings) &&
            kvd_method_same_but_key(&cfg->in.method[i], base, &t->rate))
            return &cfg->in.method[i];
    return NULL;
}

static double value_of(const kvd_eval_run *v, const kvd_method_target *t, const kvd_method *m,
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
    if (at < c->n && c->x[at] <= x)
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

static int curve_of(const kvd_eval_run *v, const kvd_method_target *t, curve *c, kvd_err *err)
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

/* Finds the strongest compression with which the model keeps the fraction --target of its accuracy,
 * among table rows of t->method and of methods that differ from it only in the varied parameter.
 * Stores it in t->found. Evaluates nothing. */
static int read_points(const kvd_eval_run *v, kvd_method_target *t, kvd_err *err)
{
    const kvd_method *const base = t->method;
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
        const bool reads = kvd_method_selects(base);
        sample[0] = (kvd_target_sample){.share = {1, 1, 1}};
        for (size_t i = 0; i < c.n; i++)
            sample[i + whole] =
                (kvd_target_sample){.x = c.x[i],
                                    .value = value_of(v, t, maker_of(v, t, c.row[i]), c.row[i]),
                                    .saving = kvd_accuracy_saving(&v->accuracy, c.row[i], reads),
                                    .share = kvd_accuracy_top1_share(&v->accuracy, c.row[i])};
        kvd_target_read(sample, c.n + whole, v->cfg->in.target, &t->found);
        t->found.n_points -= whole;
        t->found.reads = reads;
    }
    free(sample);
    release(&c);
    return status;
}

/* Returns the uncompressed model's number of correct predictions in each sequence. The caller frees
 * the array. */
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

static int compare_targets(kvd_eval_run *v, const kvd_method_target *first,
                           const kvd_method_target *t, kvd_err *err)
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
                              e->n_texts ? e->n_texts : 1, v->cfg->in.target, v->in.run.seed, &d,
                              err))
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

static int text_shares(kvd_eval_run *v, size_t row, kvd_interval *of_text, kvd_err *err)
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

static int measure(void *ctx, const kvd_method_target *t, const kvd_point *point,
                   kvd_target_sample *out, kvd_interval *of_text, kvd_err *err)
{
    kvd_eval_run *const v = ctx;
    size_t row;
    if (kvd_eval_one(v, "target-search", point, v->full_rank_error[t->method - v->cfg->in.method],
                     &row, err))
        return kvd_inputs_pass_value(&v->in, t, point, out, err);
    out->saving = kvd_accuracy_saving(&v->accuracy, row, kvd_method_selects(t->method));
    out->share = kvd_accuracy_top1_share(&v->accuracy, row);
    return of_text ? text_shares(v, row, of_text, err) : 0;
}

static int resolve_texts(kvd_eval_run *v, const kvd_method_target *t, const kvd_target *of_text,
                         kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    char line[2 * KVD_ACCURACY_LINE], label[64];
    for (size_t i = 0; !cfg->in.common.quiet && !cfg->in.common.json && i < v->evaluator.n_texts;
         i++) {
        const kvd_corpus_spec one = {.text = cfg->in.text + i, .n_text = 1};
        kvd_corpus_label(&one, NULL, label, sizeof label);
        printf("  %s: %s\n", label,
               kvd_accuracy_target_line(t->name, t->rate.name, "the accuracy", &of_text[i], line));
    }
    return kvd_accuracy_write_target_texts(&v->file, t->name, of_text, v->evaluator.n_texts, err);
}

/* Prints and writes the strongest compression that option --target found: t->found for all texts
 * and, unless of_text is NULL, of_text[i] for text i alone. */
static int resolve(kvd_eval_run *v, kvd_method_target *t, const kvd_target *of_text, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    if (!cfg->in.common.quiet && !cfg->in.common.json) {
        char line[2 * KVD_ACCURACY_LINE];
        puts(kvd_accuracy_target_line(t->name, t->rate.name, "the accuracy", &t->found, line));
    }
    if (kvd_method_target_write(&v->file, t, KVD_TARGET_TOP1, false, err) ||
        (of_text && resolve_texts(v, t, of_text, err)))
        return -1;
    for (const kvd_method_target *first = v->target; t->whole && first < t; first++)
        if (first->whole && !first->failed)
            return v->evaluator.n_sequences > 1 ? compare_targets(v, first, t, err) : 0;
    return 0;
}

/* Searches for one method's strongest compression that keeps the fraction --target of the accuracy.
 * If the search varies the removed fraction of dimensions, also searches for each text alone. */
static int measure_target(kvd_eval_run *v, kvd_method_target *t, kvd_err *err)
{
    const size_t i = (size_t)(t->method - v->cfg->in.method);
    const size_t n = t->rate.p ? v->evaluator.n_texts : 0;
    kvd_target *of_text = NULL;
    if (n && !(of_text = calloc(n, sizeof *of_text)))
        return kvd_no_memory(err, "targets of the texts", n * sizeof *of_text);
    t->first_row = kvd_rows_count(v->accuracy.rows);
    int status = kvd_method_target_search(t, v->in.n_points[i] ? v->in.point[i] : NULL,
                                          v->cfg->in.target, n, of_text, measure, v, err);
    t->end_row = kvd_rows_count(v->accuracy.rows);
    status = kvd_inputs_end_search(&v->in, t, status, err);
    if (!status && !t->failed)
        status = resolve(v, t, of_text, err);
    free(of_text);
    return status ? -1 : 0;
}

static int search_one(kvd_eval_run *v, size_t i, kvd_err *err)
{
    kvd_method_target *const t = &v->target[v->n_targets];
    if (kvd_method_target_add(v->target, &v->n_targets, &v->cfg->in.method[i],
                              v->cfg->in.target_key, err))
        return -1;
    if (t == &v->target[v->n_targets])
        return 0;
    if (!v->cfg->points_only)
        return measure_target(v, t, err);
    return read_points(v, t, err) || resolve(v, t, NULL, err) ? -1 : 0;
}

int kvd_eval_search(kvd_eval_run *v, kvd_err *err)
{
    int status = 0;
    v->evaluator.reports_inert = true;
    for (size_t i = 0; !status && i < v->cfg->in.n_methods; i++)
        if (!kvd_method_is_none(&v->cfg->in.method[i]) && !v->in.left_out[i])
            status = search_one(v, i, err);
    v->evaluator.reports_inert = false;
    return status || kvd_inputs_check_searched(&v->in, v->target, v->n_targets, err) ? -1 : 0;
}
