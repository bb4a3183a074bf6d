/* Section of the report: how many dimensions of each head kvdim-fit chose to keep. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/measures/measures.h"
#include "report/studies/studies.h"

static void points_table(const kvd_results *r, kvd_section *s)
{
    kvd_table *t = kvd_section_table(s, "rates", "Points of every rates file");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "widths");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "rule", "rule");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "removal_rate", "removal rate r");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "overall_p", "overall p");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "overall_p16", "p padded to 16");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "qk_kept_least", "d_qk least");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "qk_kept_mean", "d_qk mean");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "qk_kept_most", "d_qk most");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "v_kept_least", "d_v least");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "v_kept_mean", "d_v mean");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "v_kept_most", "d_v most");
    kvd_table_note(
        t, "p: fraction of the stored elements that is removed, 1 - sum(d_qk + d_v) / (2 d_head "
           "n); padded: with every "
           "width rounded up to a multiple of 16, as attention kernels store it.");
    for (size_t i = 0; i < r->n; i++) {
        const kvd_rates *x = &r->item[i].rates;
        for (size_t k = 0; r->item[i].kind == KVD_RESULT_RATES && k < x->n_points; k++) {
            kvd_table_text(t, r->item[i].name);
            kvd_table_text(t, x->rule);
            kvd_table_reals(t, x->removal_rate[k], x->overall_p[k], x->overall_p16[k]);
            for (int side = 0; side < 2; side++) {
                const kvd_widths_range kept = kvd_widths_range_of(&x->widths[k], side);
                kvd_table_int(t, kept.least);
                kvd_table_real(t, kept.mean);
                kvd_table_int(t, kept.most);
            }
        }
    }
}

static void curve_study(const kvd_results *r, kvd_section *s)
{
    enum { MOST_STEPS = 2000 };
    size_t without_r = 0;
    kvd_table *t = kvd_section_data(s, "rates-curve", "Overall p against removal rate");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "widths");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "what", "what");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "removal_rate", "removal rate r");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "overall_p", "overall p");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "overall_p16", "p padded to 16");
    for (size_t i = 0; i < r->n; i++) {
        const kvd_result *x = &r->item[i];
        if (x->kind != KVD_RESULT_RATES)
            continue;
        size_t steps = x->rates.n_table < MOST_STEPS ? x->rates.n_table : MOST_STEPS;
        for (size_t k = 0; k < steps; k++) {
            size_t at = k * x->rates.n_table / steps;
            kvd_table_text(t, x->name);
            kvd_table_text(t, "step");
            kvd_table_reals(t, x->rates.table_r[at], x->rates.table_p[at], (double)NAN);
        }
        for (size_t k = 0; k < x->rates.n_points; k++) {
            if (isnan(x->rates.removal_rate[k])) {
                without_r++;
                continue;
            }
            kvd_table_text(t, x->name);
            kvd_table_text(t, "point");
            kvd_table_reals(t, x->rates.removal_rate[k], x->rates.overall_p[k],
                            x->rates.overall_p16[k]);
        }
    }
    if (t->n_rows == 0)
        return;
    kvd_section_figure(
        s, "rates-p-of-r", "rates.gp", 760, 420,
        "Overall p against removal rate r: steps of F_p as a line, the points of the "
        "files as dots, padded to multiples of 16 as open squares.",
        "csv='tables/rates-curve.csv'");
    if (without_r)
        kvd_section_left_out(
            s, "Left out: %zu points of files whose rule has no removal rate; the table has them.",
            without_r);
}

static size_t nearest(const kvd_rates *x, double p)
{
    size_t best = 0;
    for (size_t k = 1; k < x->n_points; k++)
        if (fabs(x->overall_p[k] - p) < fabs(x->overall_p[best] - p))
            best = k;
    return best;
}

/* Draws maps of how many dimensions the heads of each layer keep, for three values of p (fraction
 * of dimensions that is removed). */
static void heat(const kvd_result *x, int number, kvd_section *s)
{
    static const double wanted[] = {0.25, 0.5, 0.75};
    char name[64];
    size_t chosen[3] = {0}, n = 0;
    for (size_t i = 0; i < 3; i++) {
        size_t k = nearest(&x->rates, wanted[i]);
        if (n == 0 || chosen[n - 1] != k)
            chosen[n++] = k;
    }
    snprintf(name, sizeof name, "rates-kept-%d", number);
    kvd_table *t = kvd_section_data(s, name, "Kept dimensions of every head");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "point", "point");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "removal_rate", "removal rate r");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "overall_p", "overall p");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "side", "side");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "pair", "pair");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "layer", "layer");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "kv_head", "KV head");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "kept", "kept");
    for (size_t c = 0; c < n; c++) {
        const kvd_widths *w = &x->rates.widths[chosen[c]];
        for (int side = 0; side < 2; side++)
            for (int l = 0; l < w->n_layers; l++)
                for (int h = 0; h < w->n_kv_heads; h++) {
                    kvd_table_int(t, (int64_t)c);
                    kvd_table_real(t, x->rates.removal_rate[chosen[c]]);
                    kvd_table_real(t, x->rates.overall_p[chosen[c]]);
                    kvd_table_int(t, side);
                    kvd_table_text(t, kvd_pair_name[x->rates.pair[side]]);
                    kvd_table_int(t, l);
                    kvd_table_int(t, h);
                    kvd_table_int(t, w->kept[side][l * w->n_kv_heads + h]);
                }
    }
    kvd_text caption = {0};
    kvd_text_add(&caption,
                 "Kept dimensions of every KV head, %s, by the rule '%s'; full width is %d.",
                 x->name, x->rates.rule, x->rates.widths[0].d_head);
    const kvd_widths *w = &x->rates.widths[0];
    kvd_section_figure(
        s, name, "kept.gp",
        n == 3   ? 900
        : n == 2 ? 660
                 : 420,
        560, kvd_text_get(&caption),
        "csv='tables/%s.csv'; points=%zu; pairs='%s %s'; layers=%d; heads=%d; d_head=%d", name, n,
        kvd_pair_name[x->rates.pair[0]], kvd_pair_name[x->rates.pair[1]], w->n_layers,
        w->n_kv_heads, w->d_head);
    s->failed |= caption.failed;
    kvd_text_release(&caption);
    kvd_section_fold(s);
}

static void error_study(const kvd_results *r, kvd_section *s)
{
    kvd_table *t = kvd_section_table(
        s, "error-tables", "Cost of cutting one head at a time, nats of KL divergence per token");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "method");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "pair", "pair");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "width", "kept");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "removed", "share removed");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "mean", "mean over heads");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "most", "costliest head");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "sum", "sum over heads");
    for (size_t i = 0; i < r->n; i++) {
        const kvd_error_table *x = &r->item[i].errors;
        if (r->item[i].kind != KVD_RESULT_ERROR_TABLE)
            continue;
        size_t heads = (size_t)x->n_layers * (size_t)x->n_kv_heads;
        for (size_t side = 0; side < 2; side++)
            for (size_t k = 0; k < x->n_widths; k++) {
                double sum = 0, most = -INFINITY;
                for (size_t h = 0; h < heads; h++) {
                    double e = x->error[(side * heads + h) * x->n_widths + k];
                    sum += e;
                    most = e > most ? e : most;
                }
                kvd_table_text(t, r->item[i].name);
                kvd_table_text(t, kvd_pair_name[x->pair[side]]);
                kvd_table_int(t, x->width[k]);
                kvd_table_reals(t, 1 - (double)x->width[k] / x->d_head, sum / (double)heads, most,
                                sum);
            }
    }
    kvd_section_figure(
        s, "error-tables", "errors.gp", 760, 400,
        "Sum over heads of what cutting each head alone costs, against the share of its "
        "dimensions removed.",
        "csv='tables/error-tables.csv'");
    kvd_section_panels(
        s, t, &(kvd_panel){.title = "sum of KL divergences", .y = "sum", .log_y = true}, 1);
}

void kvd_study_rates(const kvd_results *r, kvd_report *report)
{
    enum { MOST_HEATS = 6 };
    const size_t rates = kvd_results_count(r, KVD_RESULT_RATES),
                 errors = kvd_results_count(r, KVD_RESULT_ERROR_TABLE);
    int drawn = 0;
    if (rates + errors == 0)
        return;
    kvd_section *s = kvd_report_section(report, "rates", "Compression rates");
    if (rates) {
        kvd_text_raw(
            &s->words,
            "<p>One removal rate r gives every head its own number of kept dimensions (Eq. 6 of "
            "ZACK, Eq. 1 of FDC); F_p reads the curve the other way, from overall p to r.</p>\n");
        points_table(r, s);
        curve_study(r, s);
        for (size_t i = 0; i < r->n && drawn < MOST_HEATS; i++)
            if (r->item[i].kind == KVD_RESULT_RATES)
                heat(&r->item[i], ++drawn, s);
        if (rates > MOST_HEATS)
            kvd_text_add(&s->words,
                         "<p>Heat maps are drawn for the first %d of %zu rates files.</p>\n",
                         MOST_HEATS, rates);
    }
    if (errors)
        error_study(r, s);
}
