/* Report section for the option --compare, which compares the numbers of two folders of result
 * files. */

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/measures/measures.h"

static void observations_release(kvd_observations *o)
{
    free(o->item);
    *o = (kvd_observations){0};
}

static int add(kvd_observations *o, const kvd_result *x, size_t row, const char *quantity,
               kvd_interval value, kvd_err *err, const char *key, ...) KVD_PRINTF(7, 8);

static int add(kvd_observations *o, const kvd_result *x, size_t row, const char *quantity,
               kvd_interval value, kvd_err *err, const char *key, ...)
{
    if (isnan(value.value))
        return 0;
    kvd_observation *all = realloc(o->item, (o->n + 1) * sizeof *all);
    if (!all)
        return kvd_no_memory(err, "rows to compare", (o->n + 1) * sizeof *all);
    o->item = all;
    kvd_observation *y = &o->item[o->n++];
    *y = (kvd_observation){
        .value = value.value, .lo = value.lo, .hi = value.hi, .file = x, .row = row};
    snprintf(y->quantity, sizeof y->quantity, "%s", quantity);
    va_list args;
    va_start(args, key);
    vsnprintf(y->key, sizeof y->key, key, args);
    va_end(args);
    return 0;
}

static kvd_interval exact(double value)
{
    return (kvd_interval){value, (double)NAN, (double)NAN};
}

static int observe_spectrum(const kvd_result *x, kvd_observations *o, kvd_err *err)
{
    const kvd_spectrum *s = &x->spectrum;
    for (int k = 0; k < KVD_N_PAIRS; k++) {
        kvd_pair p = (kvd_pair)k;
        double mean, sd;
        if (!s->pair[p].present)
            continue;
        if (kvd_top_sigma(s, p, &mean, &sd, err))
            return -1;
        const struct {
            const char *name;
            double value;
        } q[] = {{"largest sigma per square root of rows", kvd_mean_sigma(s, p, 0, true)},
                 {"CV of the largest sigma, %", mean > 0 ? 100 * sd / mean : (double)NAN},
                 {"sum in trailing half, %", 100 * kvd_trailing_share(s, p)}};
        for (size_t i = 0; i < sizeof q / sizeof q[0]; i++)
            if (add(o, x, 0, q[i].name, exact(q[i].value), err, "spectrum, %s, %s", x->name,
                    kvd_pair_name[p]))
                return -1;
    }
    return 0;
}

static int observe_similarity(const kvd_result *file, kvd_observations *o, kvd_err *err)
{
    const kvd_similarity *const s = &file->similarity;
    for (size_t p = 0; p < s->n_pairs; p++)
        for (size_t k = 1; k < s->n_files; k++) {
            const kvd_similarity_pair *x = &s->pair[p];
            const struct {
                const char *name;
                double value;
            } q[] = {{"delta / epsilon, %", 100 * x->delta_ratio[k]},
                     {"signs aligned, %", 100 * x->aligned_ratio[k]},
                     {"overlap of leading halves", x->overlap[k]},
                     {"energy kept by half", x->energy[k]}};
            for (size_t i = 0; i < sizeof q / sizeof q[0]; i++)
                if (add(o, file, 0, q[i].name, exact(q[i].value), err,
                        "similarity, %s, %s against %s, %zu and %zu tokens", kvd_pair_name[x->pair],
                        s->label[k], s->label[0], s->n_tokens[k], s->n_tokens[0]))
                    return -1;
        }
    return 0;
}

static int observe_rates(const kvd_result *x, kvd_observations *o, kvd_err *err)
{
    for (size_t k = 0; k < x->rates.n_points; k++) {
        double r = x->rates.removal_rate[k];
        if (isnan(r) ? add(o, x, 0, "p padded to 16", exact(x->rates.overall_p16[k]), err,
                           "rates, %s, point %zu", x->name, k)
                     : add(o, x, 0, "overall p", exact(x->rates.overall_p[k]), err,
                           "rates, %s, r = %.6g", x->name, r))
            return -1;
    }
    return 0;
}

static int observe_accuracy(const kvd_result *x, kvd_observations *o, kvd_err *err)
{
    static const char *const quantities[] = {
        "perplexity",       "top1",       "top1_share",      "kl",
        "attention_error",  "rouge1",     "edit_similarity", "agree_prefix",
        "reference_rouge1", "needle_nll", "class_correct",   "score"};
    const kvd_rows *rows = x->accuracy.rows;
    char lo[48], hi[48], setting[KVD_LABEL];
    for (size_t i = 0; i < kvd_rows_count(rows); i++)
        for (size_t k = 0;
             kvd_row_is_point(rows, i) && k < sizeof quantities / sizeof quantities[0]; k++) {
            const double p = kvd_row_real(rows, i, "overall_p");
            /* If the fraction p of the cache that was removed is unknown, the method's parameters
             * identify the result. */
            if (isnan(p))
                snprintf(setting, sizeof setting, "%s", kvd_row_text(rows, i, "settings"));
            else
                snprintf(setting, sizeof setting, "p = %.4f", p);
            snprintf(lo, sizeof lo, "%s_lo", quantities[k]);
            snprintf(hi, sizeof hi, "%s_hi", quantities[k]);
            const kvd_interval value = {kvd_row_real(rows, i, quantities[k]),
                                        kvd_row_real(rows, i, lo), kvd_row_real(rows, i, hi)};
            if (add(o, x, i, quantities[k], value, err,
                    "accuracy, %s, %s calibrated on %s, %s, %s cache%s%s",
                    kvd_row_text(rows, i, "label"), kvd_row_text(rows, i, "method"),
                    kvd_row_text(rows, i, "calibration"), kvd_row_text(rows, i, "rule"),
                    kvd_row_text(rows, i, "cache"), *setting ? ", " : "", setting))
                return -1;
        }
    return 0;
}

static int observe(const kvd_results *r, kvd_observations *out, kvd_err *err)
{
    *out = (kvd_observations){0};
    for (size_t i = 0; i < r->n; i++) {
        const kvd_result *x = &r->item[i];
        int status = x->kind == KVD_RESULT_SPECTRUM     ? observe_spectrum(x, out, err)
                     : x->kind == KVD_RESULT_SIMILARITY ? observe_similarity(x, out, err)
                     : x->kind == KVD_RESULT_TASKS      ? observe_accuracy(x, out, err)
                     : x->kind == KVD_RESULT_RATES      ? observe_rates(x, out, err)
                     : x->kind == KVD_RESULT_ACCURACY   ? observe_accuracy(x, out, err)
                                                        : 0;
        if (status) {
            observations_release(out);
            return -1;
        }
    }
    return 0;
}

/* Compares two measured values. Returns "inside" if each value is in the other's 95 % interval,
 * else "outside". If neither value has an interval, returns "equal" or "differs". */
static const char *verdict_of(const kvd_observation *a, const kvd_observation *b)
{
    bool ia = !isnan(a->lo) && !isnan(a->hi), ib = !isnan(b->lo) && !isnan(b->hi);
    if (!ia && !ib)
        return fabs(a->value - b->value) <= 1e-9 * (fabs(a->value) + fabs(b->value)) / 2
                   ? "equal"
                   : "differs";
    bool in_a = !ia || (b->value >= a->lo && b->value <= a->hi);
    bool in_b = !ib || (a->value >= b->lo && a->value <= b->hi);
    return in_a && in_b ? "inside" : "outside";
}

/* Returns the first condition, such as "model", in which two measurements differ, or NULL if their
 * conditions are equal. */
static const char *differ(const kvd_observation *a, const kvd_observation *b)
{
    const kvd_result *const x = a->file, *const y = b->file;
    if (x->kind == KVD_RESULT_ACCURACY || x->kind == KVD_RESULT_TASKS)
        return kvd_rows_differ(x, a->row, y, b->row, "widths");
    if (strcmp(x->model.hash, y->model.hash))
        return "model";
    if (x->kind != KVD_RESULT_SPECTRUM)
        return NULL;
    const kvd_spectrum *const s = &x->spectrum, *const t = &y->spectrum;
    return s->n_tokens != t->n_tokens      ? "n_tokens"
           : s->seq_len != t->seq_len      ? "seq_len"
           : s->pairing != t->pairing      ? "pairing"
           : strcmp(s->rope, t->rope) != 0 ? "rope"
                                           : NULL;
}

/* Returns the value in `y` with the quantity and conditions of *p, or NULL. *other receives a value
 * in `y` with this quantity but different conditions, or NULL. */
static const kvd_observation *match(const kvd_observations *y, const kvd_observation *p,
                                    const kvd_observation **other)
{
    *other = NULL;
    for (size_t j = 0; j < y->n; j++) {
        const kvd_observation *const q = &y->item[j];
        if (q->file->kind != p->file->kind || strcmp(p->key, q->key) ||
            strcmp(p->quantity, q->quantity))
            continue;
        if (!differ(p, q))
            return q;
        *other = *other ? *other : q;
    }
    return NULL;
}

static void distinct(const kvd_results *r, const char *fact, kvd_text *t)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++) {
        const char *v = kvd_fact_get(&r->item[i].provenance, fact);
        bool again = false;
        for (size_t j = 0; j < i; j++)
            again = again || strcmp(kvd_fact_get(&r->item[j].provenance, fact), v) == 0;
        if (!again)
            kvd_text_add(t, "%s%s", n++ ? ", " : "", *v ? v : "not recorded");
    }
}

static void machines(const kvd_results *a, const kvd_results *b, kvd_section *s)
{
    static const char *const facts[][2] = {
        {"gpu", "GPU"}, {"cpu", "CPU"}, {"git_revision", "git revision"}};
    int differing = 0;
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        kvd_text x = {0}, y = {0};
        distinct(a, facts[i][0], &x);
        distinct(b, facts[i][0], &y);
        if (strcmp(kvd_text_get(&x), kvd_text_get(&y)) != 0) {
            differing++;
            kvd_text_add(&s->words, "<p><b>The %s differs</b>: ", facts[i][1]);
            kvd_text_html(&s->words, kvd_text_get(&x));
            kvd_text_raw(&s->words, " here, ");
            kvd_text_html(&s->words, kvd_text_get(&y));
            kvd_text_raw(&s->words, " in the compared set.</p>\n");
        }
        s->failed |= x.failed | y.failed;
        kvd_text_release(&x);
        kvd_text_release(&y);
    }
    if (!differing)
        kvd_text_raw(&s->words, "<p>GPU, CPU and git revision of both sets agree.</p>\n");
}

int kvd_compare_section(const kvd_results *a, const kvd_results *b, kvd_report *report,
                        size_t *n_outside, kvd_err *err)
{
    kvd_observations x = {0}, y = {0};
    const char *condition = NULL; /* first condition in which rows of one name differ */
    size_t matched = 0, n_unlike = 0;
    int status = -1;
    *n_outside = 0;
    if (observe(a, &x, err) || observe(b, &y, err))
        goto done;
    kvd_section *s = kvd_report_section(report, "comparison", "Comparison of two sets");
    kvd_table *t = kvd_section_table(s, "comparison", "Rows that both sets have");
    machines(a, b, s);
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "row", "row");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "quantity", "quantity");
    kvd_table_add_column(t, KVD_CELL_REAL, 5, "here", "here");
    kvd_table_add_column(t, KVD_CELL_REAL, 5, "here_low", "95 % from");
    kvd_table_add_column(t, KVD_CELL_REAL, 5, "here_high", "to");
    kvd_table_add_column(t, KVD_CELL_REAL, 5, "compared", "compared");
    kvd_table_add_column(t, KVD_CELL_REAL, 5, "compared_low", "95 % from");
    kvd_table_add_column(t, KVD_CELL_REAL, 5, "compared_high", "to");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "difference", "compared - here");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "verdict", "verdict");
    kvd_table_note(
        t, "inside: each value is in the other's 95 %% interval; outside: it does not. Without "
           "intervals: equal to nine "
           "digits, or differs.");
    for (size_t i = 0; i < x.n; i++) {
        const kvd_observation *const p = &x.item[i], *unlike, *const q = match(&y, p, &unlike);
        if (!q) {
            n_unlike += unlike != NULL;
            condition = unlike && !condition ? differ(p, unlike) : condition;
            continue;
        }
        const char *verdict = verdict_of(p, q);
        matched++;
        *n_outside += strcmp(verdict, "outside") == 0 || strcmp(verdict, "differs") == 0;
        kvd_table_text(t, p->key);
        kvd_table_text(t, p->quantity);
        kvd_table_reals(t, p->value, p->lo, p->hi, q->value, q->lo, q->hi, q->value - p->value);
        kvd_table_text(t, verdict);
    }
    if (matched == 0) {
        kvd_fail(err,
                 condition ? "no row of the two sets measures the same thing: rows of one label "
                             "and method differ in %s"
                           : "no row of the two sets measures the same thing (labels, methods, "
                             "types of the cache and p must agree)",
                 condition);
        goto done;
    }
    kvd_text_add(
        &s->words,
        "<p>%zu rows match; %zu of them are outside the intervals or differ. %zu rows are only "
        "here, %zu only in the compared set.</p>\n",
        matched, *n_outside, x.n - matched, y.n - matched);
    if (n_unlike)
        kvd_text_add(
            &s->words,
            "<p>%zu of the rows that are only here have a row of the same name in the "
            "compared set that was measured under other conditions, the first in %s.</p>\n",
            n_unlike, condition);
    status = 0;
done:
    observations_release(&x);
    observations_release(&y);
    return status;
}
