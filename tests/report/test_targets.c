/* Tests the comparison of two methods' cache bytes at equal loss. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/rng.h"
#include "report/measures/measures.h"
#include "report/studies/studies.h"
#include "unit.h"

static const kvd_column columns[] = {
    {"method", KVD_COL_TEXT, "1", "method"},
    {"settings", KVD_COL_TEXT, "1", "settings"},
    {"label", KVD_COL_TEXT, "1", "text"},
    {"calibration", KVD_COL_TEXT, "1", "calibration"},
    {"purpose", KVD_COL_TEXT, "1", "purpose"},
    {"rule", KVD_COL_TEXT, "1", "rule"},
    {"rate_key", KVD_COL_TEXT, "1", "key"},
    {"rate_value", KVD_COL_REAL, "1", "value"},
    {"overall_p", KVD_COL_REAL, "1", "p"},
    {"cache_share", KVD_COL_REAL, "1", "bytes"},
    {"prompt", KVD_COL_INT, "1", "prompt"},
    {"n_predictions", KVD_COL_INT, "1", "predictions"},
    {"top1_share", KVD_COL_REAL, "1", "share"},
    {"top1_share_lo", KVD_COL_REAL, "1", "share"},
    {"top1_share_hi", KVD_COL_REAL, "1", "share"},
    {"element_bytes", KVD_COL_INT, "byte", "bytes"},
    {"stored_element_bytes", KVD_COL_INT, "byte", "bytes"},
    {"bytes_per_token_dense", KVD_COL_REAL, "byte", "bytes"},
    {"bytes_per_token_stored", KVD_COL_REAL, "byte", "bytes"},
};

typedef struct {
    const char *settings;
    /* rate: value of the method's parameter; saving: saved fraction of bytes; share: fraction of
     * the uncompressed accuracy */
    double rate, saving, share;
    int prompt, predictions;
} point;

static kvd_rows *rows_of(const char *method, const char *key, const point *p, size_t n)
{
    kvd_err err = {""};
    kvd_rows *const r = kvd_rows_new(columns, sizeof columns / sizeof *columns, &err);
    assert_non_null(r);
    for (size_t i = 0; i < n; i++) {
        OK(kvd_rows_begin(r, &err));
        kvd_rows_text(r, "method", method);
        kvd_rows_text(r, "settings", p[i].settings);
        kvd_rows_text(r, "label", "text");
        kvd_rows_text(r, "purpose", "point");
        kvd_rows_text(r, "rule", "none");
        kvd_rows_text(r, "rate_key", key);
        kvd_rows_real(r, "rate_value", p[i].rate);
        kvd_rows_real(r, "overall_p", strcmp(key, "p") ? 0 : p[i].rate);
        kvd_rows_real(r, "cache_share", 1 - p[i].saving);
        kvd_rows_int(r, "prompt", p[i].prompt);
        kvd_rows_int(r, "n_predictions", p[i].predictions ? p[i].predictions : 100);
        kvd_rows_real(r, "top1_share", p[i].share);
        kvd_rows_real(r, "top1_share_lo", p[i].share - 0.02);
        kvd_rows_real(r, "top1_share_hi", p[i].share + 0.02);
        kvd_rows_int(r, "element_bytes", 2);
        kvd_rows_int(r, "stored_element_bytes", 2);
        kvd_rows_real(r, "bytes_per_token_dense", 1000);
        kvd_rows_real(r, "bytes_per_token_stored", 1000 * (1 - p[i].saving));
    }
    return r;
}

/* Returns the fraction of bytes that method m saves at 99 % of the uncompressed accuracy, from n
 * results in which parameter `key` has different values. */
static kvd_target_result read_off(const char *key, const point *p, size_t n)
{
    kvd_err err = {""};
    kvd_result file = {
        .kind = KVD_RESULT_ACCURACY, .path = (char *)"a", .accuracy.rows = rows_of("m", key, p, n)};
    const kvd_results all = {.item = &file, .n = 1};
    kvd_accuracy_entries entries = {0};
    kvd_target_result x;
    OK(kvd_accuracy_collect(&all, &entries, &err));
    assert_int_equal(entries.item[0].last, n - 1);
    kvd_target_from_points(&entries, 0, n - 1, &x);
    kvd_accuracy_entries_release(&entries);
    kvd_rows_free(file.accuracy.rows);
    return x;
}

TEST(line)
{
    static const point with[] = {{"m.heavy=0.4,m.recent=0.4,m.seed=1", 0.4, 0.2, 1.02, 0, 0},
                                 {"m.heavy=0.3,m.recent=0.3,m.seed=1", 0.3, 0.4, 0.995, 0, 0},
                                 {"m.heavy=0.2,m.recent=0.2,m.seed=1", 0.2, 0.6, 0.98, 0, 0},
                                 {"m.heavy=0.1,m.recent=0.1,m.seed=1", 0.1, 0.8, 0.995, 0, 0}};
    const kvd_target_result x = read_off("m.heavy", with, 4);
    assert_true(!x.grid && !x.monotone && x.n_points == 4);
    assert_true(fabs(x.saving - 0.4) < 1e-9 && fabs(x.value - 0.3) < 1e-9);
    assert_true(fabs(x.saving_lo - 0.2) < 1e-9 && fabs(x.saving_misses - 0.6) < 1e-9);
}

TEST(no_share)
{
    /* The uncompressed model predicts no token correctly, so accuracies divided by the uncompressed
     * accuracy are undefined. */
    static const point p[] = {
        {"", 0.2, 0.2, NAN, 0, 0}, {"", 0.4, 0.4, NAN, 0, 0}, {"", 0.6, 0.6, NAN, 0, 0}};
    const kvd_target_result x = read_off("p", p, 3);
    assert_true(isnan(x.value) && isnan(x.saving) && isnan(x.value_lo) && isnan(x.saving_lo));
    assert_true(isnan(x.value_misses) && isnan(x.saving_hi) && x.n_points == 3);
}

TEST(grid)
{
    /* Two parameters, m.a and m.b, vary in these results, so the search must consider all of
     * them. */
    static const point two[] = {{"m.a=1,m.b=1,m.c=5", 0.1, 0.1, 0.90, 0, 0},
                                {"m.a=2,m.b=1,m.c=5", 0.2, 0.5, 1.02, 0, 0},
                                {"m.a=1,m.b=2,m.c=5", 0.3, 0.6, 0.995, 0, 0},
                                {"m.a=2,m.b=2,m.c=5", 0.4, 0.7, 0.98, 0, 0},
                                {"m.a=3,m.b=2,m.c=5", 0.5, 0.9, 0.5, 0, 0}};
    static const point same[] = {{"m.heads=1", 0.5, 0.5, 1.00, 0, 0},
                                 {"m.heads=4", 0.5, 0.55, 0.9, 0, 0},
                                 {"m.heads=1", 0.6, 0.6, 1.00, 0, 0}};
    kvd_target_result x = read_off("p", two, 5);
    assert_true(x.grid && x.n_points == 5 && isnan(x.value));
    assert_true(fabs(x.saving - 0.6) < 1e-9 && fabs(x.saving_lo - 0.5) < 1e-9);
    assert_true(fabs(x.saving_hi - 0.9) < 1e-9);
    x = read_off("p", same, 3);
    assert_true(x.grid && fabs(x.saving - 0.6) < 1e-9);
}

TEST(scored_apart)
{
    static const point a[] = {{"", 0.1, 0.1, 1, 0, 0}, {"", 0.2, 0.2, 1, 0, 0}},
                       b[] = {{"", 0.1, 0.1, 1, 256, 0}, {"", 0.2, 0.2, 1, 256, 0}},
                       c[] = {{"", 0.1, 0.1, 1, 0, 700}};
    const struct {
        const point *other;
        size_t n;
        const char *name[2];
    } cases[] = {{b, 2, {"m (prompt 0)", "m (prompt 256)"}},
                 {c, 1, {"m (100 predictions)", "m (700 predictions)"}}};
    for (size_t i = 0; i < 2; i++) {
        kvd_err err = {""};
        kvd_result file[2] = {{.kind = KVD_RESULT_ACCURACY,
                               .path = (char *)"a",
                               .accuracy.rows = rows_of("m", "p", a, 2)},
                              {.kind = KVD_RESULT_ACCURACY,
                               .path = (char *)"b",
                               .accuracy.rows = rows_of("m", "p", cases[i].other, cases[i].n)}};
        const kvd_results all = {.item = file, .n = 2};
        kvd_accuracy_entries entries = {0};
        OK(kvd_accuracy_collect(&all, &entries, &err));
        assert_int_equal(entries.item[0].last, 1);
        assert_string_equal(entries.item[0].series, cases[i].name[0]);
        assert_string_equal(entries.item[2].method, cases[i].name[1]);
        kvd_accuracy_entries_release(&entries);
        kvd_rows_free(file[0].accuracy.rows);
        kvd_rows_free(file[1].accuracy.rows);
    }
}

enum { SEQUENCES = 12, SETTINGS = 4 };

/* KL divergences [method][parameter value][sequence], and each sequence's number of predictions */
typedef struct {
    double predictions[SEQUENCES], kl[2][SETTINGS][SEQUENCES];
    kvd_paired_setting setting[2][SETTINGS];
    kvd_paired_curve curve[2];
} made_up;

static void make_up(made_up *m)
{
    kvd_rng r;
    kvd_rng_seed(&r, 7, 0);
    for (size_t s = 0; s < SEQUENCES; s++) {
        const double hard = exp(kvd_rng_normal(&r));
        m->predictions[s] = (double)(100 + kvd_rng_below(&r, 300));
        for (int c = 0; c < 2; c++)
            for (int i = 0; i < SETTINGS; i++)
                m->kl[c][i][s] = m->predictions[s] * hard * 0.0005 * pow(4 + c, i) *
                                 (1 + 0.2 * kvd_rng_uniform(&r));
    }
    for (int c = 0; c < 2; c++) {
        for (int i = 0; i < SETTINGS; i++)
            m->setting[c][i] = (kvd_paired_setting){0.4 * (1 + c) - 0.1 * i, m->kl[c][i], NULL};
        m->curve[c] = (kvd_paired_curve){m->setting[c], SETTINGS};
    }
}

/* Returns the cache bytes at which method c has the KL divergence `wanted`, by bisection. Returns
 * NaN if no bytes give this KL divergence. */
static double bisected(const made_up *m, int c, const size_t *list, double wanted)
{
    double log_kl[SETTINGS], lo = 0, hi = SETTINGS - 1;
    for (int i = 0; i < SETTINGS; i++) {
        double sum = 0, n = 0;
        for (size_t k = 0; k < SEQUENCES; k++) {
            sum += m->kl[c][i][list[k]];
            n += m->predictions[list[k]];
        }
        log_kl[i] = log(sum / n);
    }
    if (log_kl[0] > log(wanted) || log_kl[SETTINGS - 1] <= log(wanted))
        return NAN;
    for (int k = 0; k < 100; k++) {
        const double at = (lo + hi) / 2;
        const int i = (int)at;
        const double kl = log_kl[i] + (at - i) * (log_kl[i + 1] - log_kl[i]);
        *(kl > log(wanted) ? &hi : &lo) = at;
    }
    return m->setting[c][0].bytes - 0.1 * lo;
}

static void near(double a, double b)
{
    if (!(fabs(a - b) < 1e-9))
        fail_msg("%.12g is not %.12g", a, b);
}

TEST(equal_kl)
{
    static double x[3][KVD_PAIRED_DRAWS];
    made_up m;
    kvd_paired_bytes got;
    kvd_rng r;
    kvd_err err = {""};
    make_up(&m);
    size_t list[SEQUENCES];
    kvd_rng_seed(&r, 1, 0);
    for (size_t k = 0; k < KVD_PAIRED_DRAWS; k++) {
        for (size_t s = 0; s < SEQUENCES; s++)
            list[s] = (size_t)kvd_rng_below(&r, SEQUENCES);
        x[0][k] = bisected(&m, 0, list, 0.01);
        x[1][k] = bisected(&m, 1, list, 0.01);
        x[2][k] = x[0][k] / x[1][k];
    }
    for (size_t s = 0; s < SEQUENCES; s++)
        list[s] = s;
    OK(kvd_paired_bytes_at(&m.curve[0], &m.curve[1], m.predictions, SEQUENCES, 0.01, &got, &err));
    const kvd_interval *const all[] = {&got.a, &got.b, &got.ratio};
    const double value[] = {bisected(&m, 0, list, 0.01), bisected(&m, 1, list, 0.01),
                            bisected(&m, 0, list, 0.01) / bisected(&m, 1, list, 0.01)};
    for (int i = 0; i < 3; i++) {
        near(all[i]->value, value[i]);
        near(all[i]->lo, kvd_quantile(x[i], KVD_PAIRED_DRAWS, 0.025));
        near(all[i]->hi, kvd_quantile(x[i], KVD_PAIRED_DRAWS, 0.975));
    }
    assert_int_equal(got.n_reached, KVD_PAIRED_DRAWS);
    assert_true(got.ratio.lo < got.ratio.value && got.ratio.value < got.ratio.hi);
}

TEST(draws_are_paired)
{
    made_up m;
    kvd_paired_bytes got;
    kvd_err err = {""};
    make_up(&m);
    kvd_paired_setting twice[SETTINGS];
    for (int i = 0; i < SETTINGS; i++)
        twice[i] = (kvd_paired_setting){2 * m.setting[0][i].bytes, m.kl[0][i], NULL};
    const kvd_paired_curve other = {twice, SETTINGS};
    OK(kvd_paired_bytes_at(&m.curve[0], &other, m.predictions, SEQUENCES, 0.01, &got, &err));
    assert_true(got.a.hi - got.a.lo > 0.02);
    near(got.ratio.lo, 0.5);
    near(got.ratio.hi, 0.5);
}

TEST(not_reached)
{
    made_up m;
    kvd_paired_bytes got;
    kvd_err err = {""};
    make_up(&m);
    const double beyond[] = {1e-5, 10};
    for (size_t i = 0; i < 2; i++) {
        OK(kvd_paired_bytes_at(&m.curve[0], &m.curve[1], m.predictions, SEQUENCES, beyond[i], &got,
                               &err));
        assert_true(isnan(got.a.value) && isnan(got.b.value) && isnan(got.ratio.value));
        assert_int_equal(got.n_reached, 0);
    }
    double sum = 0, n = 0;
    for (size_t s = 0; s < SEQUENCES; s++) {
        sum += m.kl[0][1][s];
        n += m.predictions[s];
    }
    const kvd_paired_curve two = {m.setting[0] + 1, SETTINGS - 1};
    OK(kvd_paired_bytes_at(&two, &m.curve[1], m.predictions, SEQUENCES, 1.01 * sum / n, &got,
                           &err));
    assert_true(got.ratio.value > 0);
    assert_true(isnan(got.ratio.lo) && isnan(got.ratio.hi));
    assert_true(got.n_reached > 0 && got.n_reached < KVD_PAIRED_DRAWS);
    OK(kvd_paired_bytes_at(&m.curve[0], &m.curve[1], m.predictions, KVD_BOOTSTRAP_CLUSTERS - 1,
                           0.01, &got, &err));
    assert_true(!isnan(got.ratio.value) && isnan(got.ratio.lo));
}

TEST_MAIN(NULL, NULL)
