
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

static int add(kvd_observations *o, const char *quantity, double value, double lo, double hi,
               kvd_err *err, const char *key, ...) KVD_PRINTF(7, 8);

static int add(kvd_observations *o, const char *quantity, double value, double lo, double hi,
               kvd_err *err, const char *key, ...)
{
    if (isnan(value))
        return 0;
    kvd_observation *all = realloc(o->item, (o->n + 1) * sizeof *all);
    if (!all)
        return kvd_no_memory(err, "rows to compare", (o->n + 1) * sizeof *all);
    o->item = all;
    kvd_observation *x = &o->item[o->n++];
    *x = (kvd_observation){.value = value, .lo = lo, .hi = hi};
    snprintf(x->quantity, sizeof x->quantity, "%s", quantity);
    va_list args;
    va_start(args, key);
    vsnprintf(x->key, sizeof x->key, key, args);
    va_end(args);
    return 0;
}

static const double none = (double)NAN;

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
                 {"CV of the largest sigma, %", mean > 0 ? 100 * sd / mean : none},
                 {"sum in trailing half, %", 100 * kvd_trailing_share(s, p)}};
        for (size_t i = 0; i < sizeof q / sizeof q[0]; i++)
            if (add(o, q[i].name, q[i].value, none, none, err, "spectrum, %s, %s", x->name,
                    kvd_pair_name[p]))
                return -1;
    }
    return 0;
}

static int observe_similarity(const kvd_similarity *s, kvd_observations *o, kvd_err *err)
{
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
                if (add(o, q[i].name, q[i].value, none, none, err,
                        "similarity, %s, %s against %s, %zu tokens", kvd_pair_name[x->pair],
                        s->label[k], s->label[0], s->n_tokens[k]))
                    return -1;
        }
    return 0;
}

static int observe_rates(const kvd_result *x, kvd_observations *o, kvd_err *err)
{
    for (size_t k = 0; k < x->rates.n_points; k++) {
        double r = x->rates.removal_rate[k];
        if (isnan(r) ? add(o, "p padded to 16", x->rates.overall_p16[k], none, none, err,
                           "rates, %s, point %zu", x->name, k)
                     : add(o, "overall p", x->rates.overall_p[k], none, none, err,
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
            /* The removed fraction p is NaN if the method removes no dimensions. */
            if (isnan(p))
                snprintf(setting, sizeof setting, "%s", kvd_row_text(rows, i, "settings"));
            else
                snprintf(setting, sizeof setting, "p = %.4f", p);
            snprintf(lo, sizeof lo, "%s_lo", quantities[k]);
            snprintf(hi, sizeof hi, "%s_hi", quantities[k]);
            if (add(o, quantities[k], kvd_row_real(rows, i, quantities[k]),
                    kvd_row_real(rows, i, lo), kvd_row_real(rows, i, hi), err,
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
        int status = x->kind == KVD_RESULT_SPECTRUM ? observe_spectrum(x, out, err)
                     : x->kind == KVD_RESULT_SIMILARITY
                         ? observe_similarity(&x->similarity, out, err)
                     : x->kind == KVD_RESULT_TASKS    ? observe_accuracy(x, out, err)
                     : x->kind == KVD_RESULT_RATES    ? observe_rates(x, out, err)
                     : x->kind == KVD_RESULT_ACCURACY ? observe_accuracy(x, out, err)
                                                      : 0;
        if (status) {
            observations_release(out);
            return -1;
        }
    }
    return 0;
}

const char *kvd_compare_verdict(const kvd_observation *a, const kvd_observation *b)
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

static int machines(const kvd_results *a, const kvd_results *b, kvd_section *s, kvd_err *err)
{
    static const char *const facts[][2] = {
        {"gpu", "GPU"}, {"cpu", "CPU"}, {"git_revision", "git revision"}};
    int status = 0, differing = 0;
    for (size_t i = 0; i < sizeof facts / sizeof facts[0] && !status; i++) {
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
        status = kvd_text_check(&x, err) || kvd_text_check(&y, err) ? -1 : 0;
        kvd_text_release(&x);
        kvd_text_release(&y);
    }
    if (!differing)
        kvd_text_raw(&s->words, "<p>GPU, CPU and git revision of both sets agree.</p>\n");
    return status;
}

int kvd_compare_section(const kvd_results *a, const kvd_results *b, kvd_report *report,
                        size_t *n_outside, kvd_err *err)
{
    kvd_observations x = {0}, y = {0};
    size_t matched = 0;
    int status = -1;
    *n_outside = 0;
    if (observe(a, &x, err) || observe(b, &y, err))
        goto done;
    kvd_section *s = kvd_report_section(report, "comparison", "Comparison of two sets", err);
    kvd_table *t = s ? kvd_section_table(s, "comparison", "Rows that both sets have", err) : NULL;
    if (!t || machines(a, b, s, err))
        goto done;
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
    for (size_t i = 0; i < x.n; i++)
        for (size_t j = 0; j < y.n; j++) {
            const kvd_observation *p = &x.item[i], *q = &y.item[j];
            if (strcmp(p->key, q->key) || strcmp(p->quantity, q->quantity))
                continue;
            const char *verdict = kvd_compare_verdict(p, q);
            matched++;
            *n_outside += strcmp(verdict, "outside") == 0 || strcmp(verdict, "differs") == 0;
            kvd_table_text(t, p->key);
            kvd_table_text(t, p->quantity);
            kvd_table_real(t, p->value);
            kvd_table_real(t, p->lo);
            kvd_table_real(t, p->hi);
            kvd_table_real(t, q->value);
            kvd_table_real(t, q->lo);
            kvd_table_real(t, q->hi);
            kvd_table_real(t, q->value - p->value);
            kvd_table_text(t, verdict);
            break;
        }
    if (matched == 0) {
        kvd_fail(
            err,
            "no row of the two sets measures the same thing (labels, methods and p must agree)");
        goto done;
    }
    kvd_text_add(
        &s->words,
        "<p>%zu rows match; %zu of them are outside the intervals or differ. %zu rows are only "
        "here, %zu only in the compared set.</p>\n",
        matched, *n_outside, x.n - matched, y.n - matched);
    status = 0;
done:
    observations_release(&x);
    observations_release(&y);
    return status;
}
