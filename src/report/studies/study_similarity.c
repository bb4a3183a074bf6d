/* Section of the report: how similar the rotation matrices calibrated on different texts are. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/measures/measures.h"
#include "report/studies/studies.h"

static void rows_table(const kvd_results *r, kvd_section *s)
{
    kvd_table *t = kvd_section_table(
        s, "similarity", "Rotations of B against those of A (ZACK Tables 4 and 5, FDC Table 2)");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "reference", "A");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "other", "B");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "pair", "pair");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "reference_tokens", "tokens of A");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "other_tokens", "tokens of B");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "epsilon", "epsilon");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "delta", "delta");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "delta_over_epsilon_percent", "delta / epsilon, %");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "aligned_over_epsilon_percent", "signs aligned, %");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "overlap_half", "overlap of leading halves");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "energy_half", "energy of B kept by half of A");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "energy_half_own", "kept by half of its own");
    kvd_table_note(
        t, "epsilon: mean absolute entry of B's rotations; delta: mean absolute difference to "
           "A's, as the papers print it. Equal rotations with random column signs have delta / "
           "epsilon near 100 %%, unrelated ones near 141 %%. Overlap: mean squared cosine of the "
           "principal angles between the leading halves, 0.5 for unrelated ones. Energy: share of "
           "the squared norm of B's data that a leading half keeps. The last row of a pair is the "
           "control: a random basis in place of A.");
    for (size_t i = 0; i < r->n; i++) {
        const kvd_similarity *x = &r->item[i].similarity;
        if (r->item[i].kind != KVD_RESULT_SIMILARITY)
            continue;
        for (size_t p = 0; p < x->n_pairs; p++) {
            const kvd_similarity_pair *q = &x->pair[p];
            double control[4] = {0}, own = 0, others = (double)(x->n_files - 1);
            for (size_t o = 1; o < x->n_files; o++) {
                kvd_table_text(t, x->label[0]);
                kvd_table_text(t, x->label[o]);
                kvd_table_text(t, kvd_pair_name[q->pair]);
                kvd_table_int(t, (int64_t)x->n_tokens[0]);
                kvd_table_int(t, (int64_t)x->n_tokens[o]);
                kvd_table_reals(t, q->epsilon[o], q->delta[o], 100 * q->delta_ratio[o],
                                100 * q->aligned_ratio[o], q->overlap[o], q->energy[o],
                                q->energy[o * x->n_files + o]);
                for (int k = 0; k < 4; k++)
                    control[k] += q->random[k][o] / others;
                own += q->energy[o * x->n_files + o] / others;
            }
            kvd_table_text(t, "(a random basis)");
            kvd_table_text(t, "mean of the above");
            kvd_table_text(t, kvd_pair_name[q->pair]);
            kvd_table_no_int(t);
            kvd_table_no_int(t);
            kvd_table_reals(t, (double)NAN, (double)NAN, 100 * control[0], 100 * control[1],
                            control[2], control[3], own);
        }
    }
}

static void matrix(const kvd_similarity *x, const kvd_similarity_pair *q, int number,
                   kvd_section *s)
{
    char name[64], title[160 + KVD_LABEL];
    double lowest = 1;
    size_t n = x->n_files;
    for (size_t k = 0; k < n * n; k++) {
        double e = q->energy[k] / q->energy[k % n * n + k % n];
        lowest = e < lowest ? e : lowest;
    }
    snprintf(name, sizeof name, "transfer-%d-%s", number, kvd_pair_name[q->pair]);
    snprintf(title, sizeof title,
             "Energy kept at half width, %s, first text %s: basis of the row's text, data of the "
             "column's, %% of its own basis",
             kvd_pair_name[q->pair], x->label[0]);
    kvd_table *t = kvd_section_table(s, name, title);
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "calibrated_on", "calibrated on");
    for (size_t b = 0; b < n; b++) {
        kvd_table_add_column(t, KVD_CELL_REAL, 4, x->label[b], x->label[b]);
        kvd_table_shade(t, 100 * lowest, 100);
    }
    for (size_t a = 0; a < n; a++) {
        kvd_table_text(t, x->label[a]);
        for (size_t b = 0; b < n; b++)
            kvd_table_real(t, 100 * q->energy[a * n + b] / q->energy[b * n + b]);
    }
    kvd_table_text(t, "(a random basis)");
    for (size_t b = 0; b < n; b++)
        kvd_table_real(t, 100 * q->random[3][b] / q->energy[b * n + b]);
    t->only_files = q->pair != KVD_PAIR_QK && q->pair != KVD_PAIR_VW;
    kvd_table_note(t, "100 on the diagonal by definition: no transfer.");
}

static void transfer(const kvd_similarity *x, int number, kvd_section *s)
{
    char pairs[64] = "", name[64], caption[160 + KVD_LABEL];
    size_t n = x->n_files, n_pairs = 0;
    snprintf(name, sizeof name, "transfer-%d", number);
    kvd_table *data = kvd_section_data(s, name, "Transfer between texts");
    kvd_table_add_column(data, KVD_CELL_TEXT, 0, "pair", "pair");
    kvd_table_add_column(data, KVD_CELL_TEXT, 0, "calibrated_on", "calibrated on");
    kvd_table_add_column(data, KVD_CELL_TEXT, 0, "served", "served");
    kvd_table_add_column(data, KVD_CELL_INT, 0, "row", "row");
    kvd_table_add_column(data, KVD_CELL_INT, 0, "column", "column");
    kvd_table_add_column(data, KVD_CELL_REAL, 4, "energy_percent_of_own", "energy");
    kvd_table_add_column(data, KVD_CELL_REAL, 4, "overlap_half", "overlap");
    kvd_table_add_column(data, KVD_CELL_REAL, 4, "delta_over_epsilon", "delta / epsilon");
    kvd_table_add_column(data, KVD_CELL_REAL, 4, "aligned_over_epsilon", "signs aligned");
    for (size_t p = 0; p < x->n_pairs; p++) {
        const kvd_similarity_pair *q = &x->pair[p];
        for (size_t k = 0; k < n * n; k++) {
            kvd_table_text(data, kvd_pair_name[q->pair]);
            kvd_table_series(data, x->label[k / n]);
            kvd_table_series(data, x->label[k % n]);
            kvd_table_int(data, (int64_t)(k / n));
            kvd_table_int(data, (int64_t)(k % n));
            kvd_table_reals(data, 100 * q->energy[k] / q->energy[k % n * n + k % n], q->overlap[k],
                            q->delta_ratio[k], q->aligned_ratio[k]);
        }
        matrix(x, q, number, s);
        if (n_pairs < 2)
            snprintf(pairs + strlen(pairs), sizeof pairs - strlen(pairs), "%s%s",
                     n_pairs++ ? " " : "", kvd_pair_name[q->pair]);
    }
    snprintf(caption, sizeof caption,
             "Overlap of the leading halves of the bases found on two texts (1: the same subspace, "
             "0.5: unrelated); first text %s.",
             x->label[0]);
    kvd_section_figure(s, name, "transfer.gp", n_pairs == 2 ? 900 : 500, 400, caption,
                       "csv='tables/%s.csv'; pairs='%s'", name, pairs);
    if (number > 1)
        kvd_section_fold(s);
}

static void transfer_study(const kvd_results *r, kvd_section *s)
{
    int number = 0;
    for (size_t i = 0; i < r->n; i++) {
        const kvd_similarity *x = &r->item[i].similarity;
        if (r->item[i].kind == KVD_RESULT_SIMILARITY && x->n_files > 2 && !kvd_of_token_counts(x))
            transfer(x, ++number, s);
    }
}

static int token_study(const kvd_results *r, kvd_section *s, kvd_err *err)
{
    static const kvd_panel panels[] = {
        {.title = "delta / epsilon", .x = "n_tokens", .log_x = true, .y = "delta_over_epsilon"},
        {.title = "leading half", .x = "n_tokens", .log_x = true, .y = "overlap_half"}};
    kvd_token_point *p = NULL;
    size_t n = 0;
    char pairs[64] = "";
    int n_pairs = 0;
    if (kvd_token_points(r, &p, &n, err))
        return -1;
    if (n == 0) {
        free(p);
        return 0;
    }
    kvd_table *t = kvd_section_table(
        s, "token-count",
        "Similarity against the number of calibration tokens (ZACK Fig. 18, FDC Fig. 14)");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "calibration");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "pair", "pair");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "references", "references");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "n_tokens", "tokens");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "delta_over_epsilon", "delta / epsilon");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "aligned_over_epsilon", "signs aligned");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "overlap_half", "overlap of leading halves");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "energy_half", "energy kept by half");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "drawn", "in the figure");
    for (size_t i = 0; i < n; i++) {
        kvd_table_text(t, p[i].series);
        kvd_table_text(t, kvd_pair_name[p[i].pair]);
        kvd_table_int(t, (int64_t)p[i].n_averaged);
        kvd_table_int(t, (int64_t)p[i].n_tokens);
        kvd_table_reals(t, p[i].delta_ratio, p[i].aligned_ratio, p[i].overlap_half,
                        p[i].energy_half);
        kvd_table_text(t, p[i].drawn ? "yes" : "no");
    }
    for (int k = 0; k < KVD_N_PAIRS && n_pairs < 2; k++)
        for (size_t i = 0; i < n; i++)
            if ((int)p[i].pair == k) {
                snprintf(pairs + strlen(pairs), sizeof pairs - strlen(pairs), "%s%s",
                         n_pairs++ ? " " : "", kvd_pair_name[k]);
                break;
            }
    free(p);
    const int width = n_pairs == 2 ? 900 : 560;
    kvd_section_figure(
        s, "zack-fig18-token-count", "tokens.gp", width,
        kvd_height_with_key(640, width, 2, t, 0, 8),
        "How rotations resolve as calibration tokens are added (ZACK Fig. 18, FDC Fig. 14): the "
        "papers' delta / epsilon above; overlap of the leading halves and energy kept below. "
        "If a text is compared with several references, their mean is drawn.",
        "csv='tables/token-count.csv'; pairs='%s'", pairs);
    kvd_section_panels(s, t, panels, sizeof panels / sizeof *panels);
    return 0;
}

static void smallest_and_largest(const kvd_measured *v, double *least, double *most)
{
    *least = *most = v->value[0].value;
    for (size_t i = 1; i < v->n; i++) {
        *least = v->value[i].value < *least ? v->value[i].value : *least;
        *most = v->value[i].value > *most ? v->value[i].value : *most;
    }
}

static int sentences(const kvd_results *r, kvd_section *s, kvd_err *err)
{
    static const struct {
        const char *between, *delta, *aligned, *overlap, *energy;
    } kinds[] = {{"Between texts", "delta-ratio:qk", "aligned-ratio:qk", "overlap-half:qk",
                  "energy-ratio:qk"},
                 {"Between random token ids and texts", "random-delta-ratio:qk",
                  "random-aligned-ratio:qk", "random-overlap-half:qk", "random-energy-ratio:qk"}};
    for (size_t k = 0; k < 2; k++) {
        const char *const names[4] = {kinds[k].delta, kinds[k].aligned, kinds[k].overlap,
                                      kinds[k].energy};
        kvd_measured v[4] = {{0}};
        double lo[4], hi[4];
        int status = 0;
        for (int i = 0; i < 4 && !status; i++) {
            status = kvd_measure(r, names[i], &v[i], err);
            if (!status && v[i].n)
                smallest_and_largest(&v[i], &lo[i], &hi[i]);
        }
        if (!status && v[0].n && v[1].n && v[2].n && v[3].n)
            kvd_text_add(
                &s->words,
                "<p>%s, for the Q-K pair: delta / epsilon as printed is %.3g to %.3g %% (%.3g to "
                "%.3g %% with signs aligned), while the leading halves overlap by %.3g to %.3g %% "
                "and the other basis keeps %.3g to %.3g %% of the energy that the own one keeps "
                "at half width.</p>\n",
                kinds[k].between, lo[0], hi[0], lo[1], hi[1], lo[2], hi[2], lo[3], hi[3]);
        for (int i = 0; i < 4; i++)
            kvd_values_release(&v[i]);
        if (status)
            return -1;
    }
    return 0;
}

int kvd_study_similarity(const kvd_results *r, kvd_report *report, kvd_err *err)
{
    if (!kvd_results_count(r, KVD_RESULT_SIMILARITY))
        return 0;
    kvd_section *s = kvd_report_section(report, "similarity", "Similarity of rotations");
    kvd_text_raw(&s->words,
                 "<p>Do rotations found on one text fit another? The papers compare matrices "
                 "entry by entry (delta / epsilon). That number depends on the sign and the order "
                 "of every column, also of those with nearly equal singular values (Z-7); whether "
                 "a basis serves another text is seen from the overlap of the leading subspaces "
                 "and the energy they keep.</p>\n");
    if (sentences(r, s, err))
        return -1;
    rows_table(r, s);
    transfer_study(r, s);
    return token_study(r, s, err);
}
