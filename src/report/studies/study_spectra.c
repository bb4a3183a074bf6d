/* Section of the report: singular values. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/measures/measures.h"
#include "report/studies/studies.h"

/* largest number of curves in a figure; more would merge and make the file very large */
enum { MOST_CURVES = 512 };

/* Returns true if the result is a spectrum computed from all tokens of its calibration text. */
static bool is_shown(const kvd_result *x)
{
    return x->kind == KVD_RESULT_SPECTRUM && !kvd_calibration_reduced(&x->spectrum);
}

static bool has_pair(const kvd_result *x, kvd_pair pair)
{
    return is_shown(x) && x->spectrum.pair[pair].present;
}

static bool any_pair(const kvd_results *r, kvd_pair pair)
{
    for (size_t i = 0; i < r->n; i++)
        if (has_pair(&r->item[i], pair))
            return true;
    return false;
}

kvd_table *kvd_section_spectra(kvd_section *s, const char *name, const char *title)
{
    kvd_table *const t = kvd_section_data(s, name, title);
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "series");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "pair", "pair");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "dim", "dimension");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "mean_sigma", "average singular value");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "mean_sigma_normalised", "per square root of rows");
    return t;
}

void kvd_table_spectrum(kvd_table *t, const char *series, const kvd_spectrum *x)
{
    for (int p = 0; p < KVD_N_PAIRS; p++)
        for (int j = 0; x->pair[p].present && j < x->model.d_head; j++) {
            kvd_table_text(t, series);
            kvd_table_text(t, kvd_pair_name[p]);
            kvd_table_int(t, j);
            kvd_table_real(t, kvd_mean_sigma(x, (kvd_pair)p, j, false));
            kvd_table_real(t, kvd_mean_sigma(x, (kvd_pair)p, j, true));
        }
}

void kvd_section_spectra_panels(kvd_section *s, const kvd_table *t, kvd_pair a, kvd_pair b)
{
    const kvd_pair pair[] = {a, b};
    kvd_panel panel[4];
    char title[4][64];
    for (int i = 0; i < 4; i++) {
        const char *const name = kvd_pair_name[pair[i / 2]];
        snprintf(title[i], sizeof title[i], "%s%s", name, i % 2 ? ", per square root of rows" : "");
        panel[i] = (kvd_panel){.title = title[i],
                               .y = i % 2 ? "mean_sigma_normalised" : "mean_sigma",
                               .log_y = true,
                               .where = "pair",
                               .is = name};
    }
    kvd_section_panels(s, t, panel, 4);
}

static void mean_figure(const kvd_results *r, kvd_section *s, const kvd_table *means,
                        const char *name, kvd_pair a, kvd_pair b, const char *caption)
{
    char pairs[32];
    bool has_a = any_pair(r, a), has_b = any_pair(r, b);
    if (!has_a && !has_b)
        return;
    snprintf(pairs, sizeof pairs, "%s%s%s", has_a ? kvd_pair_name[a] : "",
             has_a && has_b ? " " : "", has_b ? kvd_pair_name[b] : "");
    const int width = has_a && has_b ? 900 : 560;
    kvd_section_figure(s, name, "spectra.gp", width,
                       kvd_height_with_key(640, width, 3, means, 0, SIZE_MAX), caption,
                       "csv='tables/spectra-mean.csv'; pairs='%s'", pairs);
    kvd_section_spectra_panels(s, means, a, b);
}

static void summary_table(const kvd_results *r, kvd_section *s)
{
    kvd_table *t = kvd_section_table(s, "spectra", "Spectra: means over layers and heads");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "calibration");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "pair", "pair");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "n_heads", "matrices");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "n_tokens", "tokens");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "n_rows", "rows of each");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "mean_sigma_first", "largest sigma");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "mean_sigma_middle", "middle sigma");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "mean_sigma_last", "smallest sigma");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "trailing_half_percent", "sum in trailing half, %");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "dims_for_90_percent", "dims for 90 % energy");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "dims_for_99_percent", "dims for 99 % energy");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "below_one_percent", "sigma < 1, %");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "below_one_normalised_percent",
                         "sigma / sqrt(rows) < 1, %");
    kvd_table_note(
        t,
        "A flat spectrum has 50 %% of its sum in the trailing half. The share of singular values "
        "below 1 (ZDC Fig. 13) grows or falls with the number of rows and the scale of the model; "
        "only the share after division by the square root of the number of rows compares between "
        "files (D-22).");
    for (size_t i = 0; i < r->n; i++)
        for (int k = 0; k < KVD_N_PAIRS; k++) {
            kvd_pair p = (kvd_pair)k;
            const kvd_spectrum *x = &r->item[i].spectrum;
            if (!has_pair(&r->item[i], p))
                continue;
            int d = x->model.d_head;
            kvd_table_text(t, r->item[i].name);
            kvd_table_text(t, kvd_pair_name[p]);
            kvd_table_int(t, (int64_t)x->n_layers * x->pair[p].n_h);
            kvd_table_int(t, (int64_t)x->n_tokens);
            kvd_table_int(t, (int64_t)x->pair[p].n_rows);
            kvd_table_reals(t, kvd_mean_sigma(x, p, 0, false), kvd_mean_sigma(x, p, d / 2, false),
                            kvd_mean_sigma(x, p, d - 1, false), 100 * kvd_trailing_share(x, p),
                            kvd_dims_for_energy(x, p, 0.9), kvd_dims_for_energy(x, p, 0.99),
                            100 * kvd_share_below_one(x, p, false),
                            100 * kvd_share_below_one(x, p, true));
        }
}

static int cv_table(const kvd_results *r, kvd_section *s, kvd_err *err)
{
    kvd_table *t = kvd_section_table(s, "largest-singular-value-cv",
                                     "Spread of the largest singular value over heads "
                                     "(ZACK Tables 6 and 7, FDC Tables 3 and 4)");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "calibration");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "pair", "pair");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "n_heads", "matrices");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "mean", "mean");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "standard_deviation", "standard deviation");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "cv_percent", "CV, %");
    kvd_table_note(
        t,
        "CV: sample standard deviation over mean, over all layers and heads (Z-11). The spectrum "
        "of wv is that of the weights alone: no text can change it, though FDC Table 4 lists it "
        "per dataset (F-6).");
    for (size_t i = 0; i < r->n; i++)
        for (int p = 0; p < KVD_N_PAIRS; p++) {
            double mean, sd;
            if (!has_pair(&r->item[i], (kvd_pair)p))
                continue;
            const kvd_spectrum *x = &r->item[i].spectrum;
            if (kvd_top_sigma(x, (kvd_pair)p, &mean, &sd, err))
                return -1;
            kvd_table_text(t, r->item[i].name);
            kvd_table_text(t, kvd_pair_name[p]);
            kvd_table_int(t, (int64_t)x->n_layers * x->pair[p].n_h);
            kvd_table_reals(t, mean, sd,
                            mean > 0 && x->n_layers * x->pair[p].n_h > 1 ? 100 * sd / mean
                                                                         : (double)NAN);
        }
    return 0;
}

/* Adds a table of singular values with one column per head, for at most MOST_CURVES heads. *drawn:
 * number of heads in the table; *zeros: number of singular values in the table that are 0. */
static void heads_table(const kvd_result *x, kvd_pair pair, kvd_section *s, size_t *drawn,
                        size_t *zeros)
{
    char name[64], heading[48];
    const kvd_spectrum *sp = &x->spectrum;
    size_t per_layer = (size_t)sp->pair[pair].n_h, n = (size_t)sp->n_layers * per_layer;
    size_t d = (size_t)sp->model.d_head;
    *drawn = n < MOST_CURVES ? n : MOST_CURVES;
    snprintf(name, sizeof name, "spectra-heads-%s", kvd_pair_name[pair]);
    kvd_table *t = kvd_section_data(s, name, "Singular values of every head");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "dim", "dimension");
    for (size_t c = 0; c < *drawn; c++) {
        size_t h = c * n / *drawn;
        snprintf(heading, sizeof heading, "layer%zu_head%zu",
                 (size_t)sp->first_layer + h / per_layer, h % per_layer);
        kvd_table_add_column(t, KVD_CELL_REAL, 6, heading, heading);
    }
    for (size_t j = 0; j < d; j++) {
        kvd_table_int(t, (int64_t)j);
        for (size_t c = 0; c < *drawn; c++) {
            const double sigma = sp->pair[pair].sigma[c * n / *drawn * d + j];
            kvd_table_real(t, sigma);
            *zeros += !(sigma > 0);
        }
    }
}

static void heads_figure(const kvd_results *r, kvd_section *s)
{
    const kvd_result *best = NULL;
    for (size_t i = 0; i < r->n; i++) {
        const kvd_result *x = &r->item[i];
        if ((has_pair(x, KVD_PAIR_QK) || has_pair(x, KVD_PAIR_VW)) &&
            strcmp(x->spectrum.rope, "before") != 0 &&
            (!best || x->spectrum.n_tokens > best->spectrum.n_tokens))
            best = x;
    }
    if (!best)
        return;
    char pairs[32] = "", csvs[128] = "";
    kvd_text caption = {0};
    int n = 0;
    size_t values = 0, zeros = 0;
    kvd_text_add(
        &caption,
        "Singular values of single heads, coloured by layer, calibrated on %s (%zu tokens); the "
        "dashed line marks 1 (ZDC Fig. 13).",
        best->name, best->spectrum.n_tokens);
    for (int k = 0; k < 2; k++) {
        kvd_pair p = k ? KVD_PAIR_VW : KVD_PAIR_QK;
        size_t drawn;
        if (!has_pair(best, p))
            continue;
        heads_table(best, p, s, &drawn, &zeros);
        values += drawn * (size_t)best->spectrum.model.d_head;
        size_t all = (size_t)best->spectrum.n_layers * (size_t)best->spectrum.pair[p].n_h;
        kvd_text_add(
            &caption,
            " Pair %s: %zu of %zu heads drawn, %.0f %% of all singular values below 1, %.0f %% per "
            "square root of rows.",
            kvd_pair_name[p], drawn, all, 100 * kvd_share_below_one(&best->spectrum, p, false),
            100 * kvd_share_below_one(&best->spectrum, p, true));
        snprintf(pairs + strlen(pairs), sizeof pairs - strlen(pairs), "%s%s", n ? " " : "",
                 kvd_pair_name[p]);
        snprintf(csvs + strlen(csvs), sizeof csvs - strlen(csvs), "%stables/spectra-heads-%s.csv",
                 n ? " " : "", kvd_pair_name[p]);
        n++;
    }
    const int first = best->spectrum.first_layer;
    kvd_section_figure(s, "zdc-fig13-heads", "heads.gp", n == 2 ? 900 : 520, 400,
                       kvd_text_get(&caption),
                       "csvs='%s'; pairs='%s'; first_layer=%d; last_layer=%d", csvs, pairs, first,
                       first + best->spectrum.n_layers - 1);
    s->failed |= caption.failed;
    kvd_text_release(&caption);
    kvd_section_fold(s);
    if (zeros)
        kvd_section_left_out(
            s,
            "Left out: %zu of %zu singular values that are 0, which a logarithmic axis cannot "
            "show.",
            zeros, values);
    if (zeros == values)
        kvd_section_not_drawn(s, "all %zu singular values are 0", values);
}

int kvd_study_spectra(const kvd_results *r, kvd_report *report, kvd_err *err)
{
    bool any = false;
    for (size_t i = 0; i < r->n; i++)
        any = any || is_shown(&r->item[i]);
    if (!any)
        return 0;
    kvd_section *s = kvd_report_section(report, "spectra", "Spectra");
    kvd_text_raw(
        &s->words,
        "<p>Singular values of what shares one rotation, per layer and head: queries stacked on "
        "keys after RoPE (<b>qk</b>), values stacked on the output projection (<b>vw</b>), keys "
        "and values alone, the columns of W_V (<b>wv</b>). A head whose curve falls early can "
        "give up its trailing dimensions.</p>\n");
    kvd_table *const means =
        kvd_section_spectra(s, "spectra-mean", "Average singular value per head dimension");
    for (size_t i = 0; i < r->n; i++)
        if (is_shown(&r->item[i]))
            kvd_table_spectrum(means, r->item[i].name, &r->item[i].spectrum);
    mean_figure(
        r, s, means, "zack-fig05-k-v", KVD_PAIR_K, KVD_PAIR_V,
        "Average singular value per head dimension of K and V (ZACK Fig. 5): raw, and divided "
        "by the square root of the number of rows so that texts of different length compare "
        "(Z-10).");
    mean_figure(r, s, means, "zack-fig10-qk-vw", KVD_PAIR_QK, KVD_PAIR_VW,
                "Average singular value per head dimension of the Q-K pair and of V with W_O (ZACK "
                "Fig. 10; the Q-K panels are FDC Fig. 3).");
    heads_figure(r, s);
    summary_table(r, s);
    return cv_table(r, s, err);
}
