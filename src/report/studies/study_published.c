/* Report section on the rotation matrices R published for the methods ZACK and FDC. epsilon: mean
 * |element| of R. delta: mean |difference| between the elements of R and of the rotation matrix for
 * a reference text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/measures/ledger.h"
#include "report/measures/measures.h"
#include "report/studies/studies.h"

static const char *const eps_delta[] = {"zack_table04_qk_eps_delta", "zack_table05_vwl_eps_delta",
                                        "fdc_table02_qk_eps_delta"};
enum { N_TABLES = sizeof eps_delta / sizeof *eps_delta };

static void name_violators(const kvd_published_model *m, char *buf, size_t size)
{
    size_t times[KVD_MOST_DATASETS] = {0};
    buf[0] = '\0';
    for (size_t a = 0; a < m->n; a++)
        for (size_t b = a + 1; b < m->n; b++)
            if (kvd_published_triangle_of(m, a, b).violated) {
                times[a]++;
                times[b]++;
            }
    for (size_t a = 0; a < m->n; a++)
        if (times[a])
            snprintf(buf + strlen(buf), size - strlen(buf), "%s%s (%zu)", *buf ? ", " : "",
                     m->dataset[a], times[a]);
}

static int models(const char *paper, kvd_section *s, kvd_err *err)
{
    kvd_table *const t =
        kvd_section_table(s, "published-models", "Tables of epsilon and delta, model by model");
    kvd_table *const u =
        kvd_section_table(s, "published-fit", "Is delta a difference of averages?");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "table", "table");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "model", "model");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "pairs", "pairs of datasets");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "violated", "violate the triangle inequality");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "datasets", "datasets of those pairs (how often)");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "one_epsilon", "one epsilon explains all deltas");
    kvd_table_note(
        t, "With delta = mean |R_ref - R| and one R_ref, |epsilon_a - epsilon_b| is at most "
           "delta_a + delta_b. A pair counts as violated beyond what rounding of all four "
           "printed numbers explains.");
    kvd_table_add_column(u, KVD_CELL_TEXT, 0, "table", "table");
    kvd_table_add_column(u, KVD_CELL_INT, 0, "models", "models");
    kvd_table_add_column(u, KVD_CELL_INT, 0, "pairs", "pairs");
    kvd_table_add_column(u, KVD_CELL_INT, 0, "violated", "violated");
    kvd_table_add_column(u, KVD_CELL_INT, 0, "fits", "models with one epsilon");
    kvd_table_add_column(u, KVD_CELL_REAL, 3, "expected", "expected if deltas are shuffled");
    kvd_table_add_column(u, KVD_CELL_REAL, 2, "probability", "probability of as many");
    kvd_table_note(
        u, "A model has one epsilon if some epsilon_ref gives delta = |epsilon_ref - epsilon| "
           "for every dataset within rounding. Shuffled: the deltas of each model in every "
           "order.");
    for (int k = 0; k < N_TABLES; k++) {
        kvd_published_table x;
        size_t pairs = 0, violated = 0;
        char names[200];
        if (kvd_published_load(paper, eps_delta[k], &x, err)) {
            kvd_published_release(&x);
            return -1;
        }
        for (size_t i = 0; i < x.n; i++) {
            const kvd_published_model *const m = &x.model[i];
            size_t n = 0, bad = 0;
            for (size_t a = 0; a < m->n; a++)
                for (size_t b = a + 1; b < m->n; b++) {
                    const kvd_published_triangle one = kvd_published_triangle_of(m, a, b);
                    n += one.pairs;
                    bad += one.violated;
                }
            name_violators(m, names, sizeof names);
            kvd_table_text(t, x.name);
            kvd_table_text(t, m->model);
            kvd_table_int(t, (int64_t)n);
            kvd_table_int(t, (int64_t)bad);
            kvd_table_text(t, names);
            kvd_table_text(t, kvd_published_one_epsilon(m) ? "yes" : "no");
            pairs += n;
            violated += bad;
        }
        const kvd_published_fit f = kvd_published_fit_of(&x);
        kvd_table_text(u, x.name);
        kvd_table_int(u, (int64_t)x.n);
        kvd_table_int(u, (int64_t)pairs);
        kvd_table_int(u, (int64_t)violated);
        kvd_table_int(u, (int64_t)f.fits);
        kvd_table_real(u, f.expected);
        kvd_table_real(u, f.probability);
        kvd_published_release(&x);
    }
    return 0;
}

static int shared_columns(const char *paper, kvd_section *s, kvd_err *err)
{
    kvd_published_twin *twin = NULL;
    kvd_published_double *same = NULL;
    size_t n, n_same;
    int status = -1;
    kvd_table *const t =
        kvd_section_table(s, "published-shared", "Columns that two published tables share");
    kvd_table *const u =
        kvd_section_table(s, "published-doubles", "Models with the numbers of another model");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "table", "table");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "column", "column");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "other_table", "other table");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "other_column", "other column");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "shared", "rows of the same model and dataset");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "equal", "equal digit for digit");
    kvd_table_add_column(u, KVD_CELL_TEXT, 0, "table", "table");
    kvd_table_add_column(u, KVD_CELL_TEXT, 0, "model", "model");
    kvd_table_add_column(u, KVD_CELL_TEXT, 0, "other_table", "other table");
    kvd_table_add_column(u, KVD_CELL_TEXT, 0, "other_model", "other model");
    kvd_table_add_column(u, KVD_CELL_INT, 0, "numbers", "equal numbers");
    if (kvd_published_twins(paper, &twin, &n, err) ||
        kvd_published_doubles(paper, &same, &n_same, err))
        goto done;
    for (size_t i = 0; i < n; i++) {
        for (int k = 0; k < 2; k++) {
            kvd_table_text(t, twin[i].table[k]);
            kvd_table_text(t, twin[i].column[k]);
        }
        kvd_table_int(t, (int64_t)twin[i].shared);
        kvd_table_int(t, (int64_t)twin[i].equal);
    }
    for (size_t i = 0; i < n_same; i++) {
        for (int k = 0; k < 2; k++) {
            kvd_table_text(u, same[i].table[k]);
            kvd_table_text(u, same[i].model[k]);
        }
        kvd_table_int(u, (int64_t)same[i].numbers);
    }
    status = 0;
done:
    free(twin);
    free(same);
    return status;
}

enum { READINGS = 4 };
static const char *const reading_title[READINGS] = {"as printed", "signs of columns matched",
                                                    "difference of averages of each head",
                                                    "difference of averages over all heads"};

static double reading_of(const kvd_similarity_pair *x, int reading, size_t k)
{
    switch (reading) {
    case 0:
        return x->delta_ratio[k];
    case 1:
        return x->aligned_ratio[k];
    case 2:
        return x->head_means ? x->head_means[k] : (double)NAN;
    default:
        return x->means ? x->means[k] : (double)NAN;
    }
}

typedef struct {
    double least, most;
    size_t n;
} range;

static void extend(range *r, double x)
{
    if (isnan(x))
        return;
    r->least = r->n == 0 || x < r->least ? x : r->least;
    r->most = r->n == 0 || x > r->most ? x : r->most;
    r->n++;
}

/* Returns the range, over pairs of texts, of the relative difference between their rotation
 * matrices. random: true if one text of each pair consists of random token ids. */
static range measured(const kvd_results *r, const char *hash, kvd_pair pair, int reading,
                      bool random)
{
    range x = {0};
    for (size_t i = 0; i < r->n; i++) {
        const kvd_similarity *const s = &r->item[i].similarity;
        if (r->item[i].kind != KVD_RESULT_SIMILARITY || strcmp(r->item[i].model.hash, hash))
            continue;
        for (size_t p = 0; p < s->n_pairs; p++)
            for (size_t k = 0; s->pair[p].pair == pair && k < s->n_files * s->n_files; k++) {
                const size_t a = k / s->n_files, b = k % s->n_files;
                const bool ra = kvd_label_random(s->label[a]), rb = kvd_label_random(s->label[b]);
                if (!kvd_one_text(s, a, b) && (random ? ra != rb : !ra && !rb) &&
                    kvd_most_tokens(s, a) && kvd_most_tokens(s, b))
                    extend(&x, reading_of(&s->pair[p], reading, k));
            }
    }
    return x;
}

static void put_reading(kvd_table *t, const char *series, const char *pair, const char *of, range x)
{
    if (x.n == 0)
        return;
    kvd_table_text(t, series);
    kvd_table_text(t, pair);
    kvd_table_text(t, of);
    kvd_table_int(t, (int64_t)x.n);
    kvd_table_real(t, 100 * x.least);
    kvd_table_real(t, 100 * x.most);
}

static int published_range(const char *paper, int k, range *out, kvd_err *err)
{
    kvd_published_table x;
    *out = (range){0};
    const int status = kvd_published_load(paper, eps_delta[k], &x, err);
    for (size_t i = 0; !status && i < x.n; i++)
        for (size_t j = 0; j < x.model[i].n; j++)
            extend(out, x.model[i].delta[j].value / x.model[i].epsilon[j].value);
    kvd_published_release(&x);
    return status;
}

static int readings(const char *paper, const kvd_results *r, kvd_section *s, kvd_err *err)
{
    kvd_table *const t = kvd_section_table(s, "published-readings",
                                           "Readings of delta / epsilon: published and measured");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "reading");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "pair", "pair");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "of", "of");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "values", "values");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "least_percent", "least, %");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "most_percent", "most, %");
    static const char *const pair_of[N_TABLES] = {"qk", "vw", "qk"};
    for (int k = 0; k < N_TABLES; k++) {
        range x;
        if (published_range(paper, k, &x, err))
            return -1;
        put_reading(t, "published", pair_of[k], eps_delta[k], x);
    }
    size_t n_measured = 0;
    for (size_t i = 0; i < r->n; i++) {
        bool first = r->item[i].kind == KVD_RESULT_SIMILARITY;
        for (size_t j = 0; j < i && first; j++)
            first = r->item[j].kind != KVD_RESULT_SIMILARITY ||
                    strcmp(r->item[j].model.hash, r->item[i].model.hash) != 0;
        for (int k = 0; first && k < READINGS; k++)
            for (int p = 0; p < 3; p++) {
                char of[KVD_LABEL];
                const range x = measured(r, r->item[i].model.hash,
                                         p == 1 ? KVD_PAIR_VW : KVD_PAIR_QK, k, p == 2);
                snprintf(of, sizeof of, "%.100s: %s", r->item[i].model.name,
                         p == 2 ? "random ids and texts" : "texts");
                n_measured += x.n;
                put_reading(t, reading_title[k], p == 1 ? "vw" : "qk", of, x);
            }
    }
    if (n_measured == 0)
        return 0;
    kvd_section_figure(
        s, "published-readings", "readings.gp", 900, 420,
        "Readings of delta / epsilon. Bars: from the least to the most of all pairs of texts; "
        "shaded: the range that the papers print. Two unrelated bases of 128 dimensions give 141 % "
        "as printed.",
        "csv='tables/published-readings.csv'");
    return 0;
}

int kvd_study_published(const char *paper, const kvd_results *r, kvd_report *report, kvd_err *err)
{
    kvd_section *const s =
        kvd_report_section(report, "published", "Checks of the published tables");
    kvd_text_raw(
        &s->words,
        "<p>From the printed numbers alone. epsilon is the mean absolute entry of a rotation, delta "
        "the mean absolute difference of two. A mean of absolute differences obeys the triangle "
        "inequality; a difference of two averages is explained by one epsilon of the reference. What "
        "the numbers can mean: a table that breaks the inequality was not computed by the printed "
        "formula from one reference, or holds an error in a digit; equal columns were measured once. "
        "The program that computed them, or two rotations of one head, would decide it.</p>\n");
    return kvd_status(readings(paper, r, s, err) || models(paper, s, err) ||
                      shared_columns(paper, s, err));
}
