#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/measures.h"
#include "report/studies.h"

static int rows_table(const kvd_results *r, kvd_section *s, kvd_err *err)
{
    kvd_table *t = kvd_section_table(s, "similarity", "Rotations of B against those of A (ZACK Tables 4 and 5, FDC Table 2)", err);
    if (!t)
        return -1;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "reference", "A");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "reference_tokens", "tokens of A");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "other", "B");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "other_tokens", "tokens of B");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "pair", "pair");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "epsilon", "epsilon");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "delta", "delta");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "delta_over_epsilon_percent", "delta / epsilon, %");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "aligned_over_epsilon_percent", "signs aligned, %");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "overlap_half", "overlap of leading halves");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "energy_half", "energy of B kept by half of A");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "energy_half_own", "kept by half of its own");
    kvd_table_note(t, "epsilon: mean absolute entry of B's rotations; delta: mean absolute difference to A's, as the papers "
                      "print it. Two unrelated rotations have delta / epsilon near 141 %%, equal ones with random column "
                      "signs near 100 %%. Overlap: mean squared cosine of the principal angles between the leading halves, 0.5 "
                      "for unrelated ones. Energy: share of the squared norm of B's data that the leading half keeps.");
    for (size_t i = 0; i < r->n; i++) {
        const kvd_similarity *x = &r->item[i].similarity;
        if (r->item[i].kind != KVD_RESULT_SIMILARITY)
            continue;
        for (size_t p = 0; p < x->n_pairs; p++)
            for (size_t o = 0; o < x->n_others; o++) {
                const kvd_similarity_pair *q = &x->pair[p];
                size_t half = o * x->d_head + x->d_head / 2 - 1;
                kvd_table_text(t, x->reference);
                kvd_table_int(t, (int64_t)x->reference_tokens);
                kvd_table_text(t, x->other[o]);
                kvd_table_int(t, (int64_t)x->other_tokens[o]);
                kvd_table_text(t, kvd_pair_name[q->pair]);
                kvd_table_real(t, q->epsilon[o]);
                kvd_table_real(t, q->delta[o]);
                kvd_table_real(t, 100 * q->delta[o] / q->epsilon[o]);
                kvd_table_real(t, 100 * q->delta_aligned[o] / q->epsilon[o]);
                kvd_table_real(t, q->overlap[half]);
                kvd_table_real(t, q->energy[half]);
                kvd_table_real(t, q->energy_own[half]);
            }
    }
    return 0;
}

/* ---- the A by B matrix --------------------------------------------------------------------------- */

typedef struct {
    const char **label;
    size_t n;
} labels;

static int add_label(labels *l, const char *label, kvd_err *err)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->label[i], label) == 0)
            return 0;
    const char **all = realloc(l->label, (l->n + 1) * sizeof *all);
    if (!all)
        return kvd_no_memory(err, "labels", (l->n + 1) * sizeof *all);
    l->label = all;
    l->label[l->n++] = label;
    return 0;
}

/* Energy of B kept by the leading half of A, relative to what B's own leading half keeps; NaN when no file says.
 * B's own share does not depend on A: any file that compares B has it. */
static double transfer(const kvd_results *r, const char *a, const char *b, kvd_pair pair, double *overlap)
{
    *overlap = strcmp(a, b) == 0 ? 1 : (double)NAN;
    if (strcmp(a, b) == 0)
        return 1;
    for (size_t i = 0; i < r->n; i++) {
        const kvd_similarity *x = &r->item[i].similarity;
        if (r->item[i].kind != KVD_RESULT_SIMILARITY || strcmp(x->reference, a))
            continue;
        for (size_t p = 0; p < x->n_pairs; p++)
            for (size_t o = 0; o < x->n_others; o++)
                if (x->pair[p].pair == pair && strcmp(x->other[o], b) == 0 && kvd_most_tokens(x, o)) {
                    size_t half = o * x->d_head + x->d_head / 2 - 1;
                    *overlap = x->pair[p].overlap[half];
                    return x->pair[p].energy[half] / x->pair[p].energy_own[half];
                }
    }
    return (double)NAN;
}

static int matrix(const kvd_results *r, kvd_section *s, const labels *from, const labels *to, kvd_pair pair,
                  kvd_table *data, size_t *n_values, kvd_err *err)
{
    char name[64], title[160];
    double lowest = 1;
    size_t n = 0;
    for (size_t a = 0; a < from->n; a++)
        for (size_t b = 0; b < to->n; b++) {
            double overlap, e = transfer(r, from->label[a], to->label[b], pair, &overlap);
            lowest = e < lowest ? e : lowest;
            n += !isnan(e) && strcmp(from->label[a], to->label[b]) != 0;
        }
    *n_values = n;
    if (n == 0)
        return 0;
    snprintf(name, sizeof name, "transfer-%s", kvd_pair_name[pair]);
    snprintf(title, sizeof title, "Calibrated on the row's text, serving the column's: energy kept at half width, %s, %% of "
                                  "what the column's own calibration keeps", kvd_pair_name[pair]);
    kvd_table *t = kvd_section_table(s, name, title, err);
    if (!t)
        return -1;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "calibrated_on", "calibrated on");
    for (size_t b = 0; b < to->n; b++) {
        kvd_table_add_column(t, KVD_CELL_REAL, 4, to->label[b], to->label[b]);
        kvd_table_shade(t, 100 * lowest, 100);
    }
    for (size_t a = 0; a < from->n; a++) {
        kvd_table_text(t, from->label[a]);
        for (size_t b = 0; b < to->n; b++) {
            double overlap, e = transfer(r, from->label[a], to->label[b], pair, &overlap);
            kvd_table_real(t, 100 * e);
            kvd_table_text(data, kvd_pair_name[pair]);
            kvd_table_text(data, from->label[a]);
            kvd_table_text(data, to->label[b]);
            kvd_table_int(data, (int64_t)a);
            kvd_table_int(data, (int64_t)b);
            kvd_table_real(data, 100 * e);
            kvd_table_real(data, overlap);
        }
    }
    kvd_table_note(t, "100 on the diagonal by definition: the no-transfer control.");
    return 0;
}

static int transfer_study(const kvd_results *r, kvd_section *s, kvd_err *err)
{
    labels from = {0}, to = {0};
    char pairs[64] = "";
    int status = -1, n_pairs = 0;
    for (size_t i = 0; i < r->n; i++) {
        const kvd_similarity *x = &r->item[i].similarity;
        if (r->item[i].kind != KVD_RESULT_SIMILARITY)
            continue;
        if (add_label(&from, x->reference, err))
            goto done;
        for (size_t o = 0; o < x->n_others; o++)
            if (add_label(&to, x->other[o], err))
                goto done;
    }
    if (from.n < 2) { /* one row is the similarity table again */
        status = 0;
        goto done;
    }
    kvd_table *data = kvd_section_table(s, "transfer", "Transfer between texts", err);
    if (!data)
        goto done;
    data->only_files = data->no_markdown = true;
    kvd_table_add_column(data, KVD_CELL_TEXT, 0, "pair", "pair");
    kvd_table_add_column(data, KVD_CELL_TEXT, 0, "calibrated_on", "calibrated on");
    kvd_table_add_column(data, KVD_CELL_TEXT, 0, "served", "served");
    kvd_table_add_column(data, KVD_CELL_INT, 0, "row", "row");
    kvd_table_add_column(data, KVD_CELL_INT, 0, "column", "column");
    kvd_table_add_column(data, KVD_CELL_REAL, 4, "energy_percent_of_own", "energy");
    kvd_table_add_column(data, KVD_CELL_REAL, 4, "overlap_half", "overlap");
    for (int p = 0; p < KVD_N_PAIRS; p++) {
        size_t n;
        if (matrix(r, s, &from, &to, (kvd_pair)p, data, &n, err))
            goto done;
        if (n && n_pairs < 2) {
            snprintf(pairs + strlen(pairs), sizeof pairs - strlen(pairs), "%s%s", n_pairs ? " " : "", kvd_pair_name[p]);
            n_pairs++;
        }
    }
    status = n_pairs == 0 ? 0
                          : kvd_section_figure(s, "transfer-matrix", "transfer.gp", n_pairs == 2 ? 900 : 500, 400,
                                               "Overlap of the leading halves of the bases found on two texts (1: the same "
                                               "subspace, 0.5: unrelated).",
                                               err, "csv='tables/transfer.csv'; pairs='%s'", pairs);
done:
    free(from.label);
    free(to.label);
    return status;
}

/* ---- token counts -------------------------------------------------------------------------------- */

static int token_study(const kvd_results *r, kvd_section *s, kvd_err *err)
{
    kvd_token_point *p = NULL;
    size_t n = 0;
    char pairs[64] = "";
    int status = -1, n_pairs = 0;
    if (kvd_token_points(r, &p, &n, err))
        return -1;
    if (n == 0) {
        status = 0;
        goto done;
    }
    kvd_table *t = kvd_section_table(s, "token-count", "Similarity against the number of calibration tokens (ZACK Fig. 18, FDC Fig. 14)", err);
    if (!t)
        goto done;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "calibration");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "pair", "pair");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "n_tokens", "tokens");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "delta_over_epsilon", "delta / epsilon");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "aligned_over_epsilon", "signs aligned");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "overlap_half", "overlap of leading halves");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "energy_half", "energy kept by half");
    for (size_t i = 0; i < n; i++) {
        kvd_table_text(t, p[i].series);
        kvd_table_text(t, kvd_pair_name[p[i].pair]);
        kvd_table_int(t, (int64_t)p[i].n_tokens);
        kvd_table_real(t, p[i].delta_ratio);
        kvd_table_real(t, p[i].aligned_ratio);
        kvd_table_real(t, p[i].overlap_half);
        kvd_table_real(t, p[i].energy_half);
    }
    for (int k = 0; k < KVD_N_PAIRS && n_pairs < 2; k++)
        for (size_t i = 0; i < n; i++)
            if ((int)p[i].pair == k) {
                snprintf(pairs + strlen(pairs), sizeof pairs - strlen(pairs), "%s%s", n_pairs++ ? " " : "", kvd_pair_name[k]);
                break;
            }
    status = kvd_section_figure(s, "zack-fig18-token-count", "tokens.gp", n_pairs == 2 ? 900 : 560, 640,
                                "How rotations settle as calibration tokens are added (ZACK Fig. 18, FDC Fig. 14): the papers' "
                                "delta / epsilon above; overlap of the leading halves and energy kept below.",
                                err, "csv='tables/token-count.csv'; pairs='%s'", pairs);
done:
    free(p);
    return status;
}

int kvd_study_similarity(const kvd_results *r, kvd_report *report, kvd_err *err)
{
    bool any = false;
    for (size_t i = 0; i < r->n; i++)
        any = any || r->item[i].kind == KVD_RESULT_SIMILARITY;
    if (!any)
        return 0;
    kvd_section *s = kvd_report_section(report, "similarity", "Similarity of rotations", err);
    if (!s)
        return -1;
    kvd_text_raw(&s->words,
                 "<p>Do rotations found on one text fit another? The papers compare matrices entry by entry (delta / epsilon). "
                 "That number depends on the sign and the order of every column, also of those with nearly equal singular "
                 "values (Z-7); whether a basis serves another text is seen from the overlap of the leading subspaces and the "
                 "energy they keep.</p>\n");
    return rows_table(r, s, err) || transfer_study(r, s, err) || token_study(r, s, err) ? -1 : 0;
}
