#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "report/measures/measures.h"

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
    /*
     * Value of the varied parameter, saved fraction of the cache's bytes, and accuracy relative to
     * the uncompressed cache. The interval of the accuracy extends 0.02 below and above `share`.
     */
    double rate, saving, share;
    int prompt, predictions;
} point;

static kvd_rows *rows_of(const char *method, const char *key, const point *p, size_t n)
{
    kvd_err err = {""};
    kvd_rows *const r = kvd_rows_new(columns, sizeof columns / sizeof *columns, &err);
    assert_non_null(r);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(kvd_rows_begin(r, &err), 0);
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

/*
 * Returns the bytes saved at 99 % of the accuracy, read from n results that differ in the parameter
 * `key`.
 */
static kvd_target_result read_off(const char *key, const point *p, size_t n)
{
    kvd_err err = {""};
    kvd_result file = {
        .kind = KVD_RESULT_ACCURACY, .path = (char *)"a", .accuracy.rows = rows_of("m", key, p, n)};
    const kvd_results all = {.item = &file, .n = 1};
    kvd_accuracy_entries entries = {0};
    kvd_target_result x;
    assert_int_equal(kvd_accuracy_collect(&all, &entries, &err), 0);
    assert_int_equal(kvd_entry_last(&entries, 0), n - 1);
    kvd_target_from_points(&entries, 0, n - 1, &x);
    kvd_accuracy_entries_release(&entries);
    kvd_rows_free(file.accuracy.rows);
    return x;
}

static void line(void **state)
{
    (void)state;
    static const point with[] = {{"m.heavy=0.4,m.recent=0.4,m.seed=1", 0.4, 0.2, 1.02, 0, 0},
                                 {"m.heavy=0.3,m.recent=0.3,m.seed=1", 0.3, 0.4, 0.995, 0, 0},
                                 {"m.heavy=0.2,m.recent=0.2,m.seed=1", 0.2, 0.6, 0.98, 0, 0},
                                 {"m.heavy=0.1,m.recent=0.1,m.seed=1", 0.1, 0.8, 0.995, 0, 0}};
    const kvd_target_result x = read_off("m.heavy", with, 4);
    assert_true(!x.grid && !x.monotone && x.n_points == 4);
    /* Results after the first that misses 99 % of the accuracy must not count. */
    assert_true(fabs(x.saving - 0.4) < 1e-9 && fabs(x.value - 0.3) < 1e-9);
    assert_true(fabs(x.saving_lo - 0.2) < 1e-9 && fabs(x.saving_misses - 0.6) < 1e-9);
}

static void grid(void **state)
{
    (void)state;
    /* If two parameters vary, results after one that misses the accuracy must count too. */
    static const point two[] = {{"m.a=1,m.b=1,m.c=5", 0.1, 0.1, 0.90, 0, 0},
                                {"m.a=2,m.b=1,m.c=5", 0.2, 0.5, 1.02, 0, 0},
                                {"m.a=1,m.b=2,m.c=5", 0.3, 0.6, 0.995, 0, 0},
                                {"m.a=2,m.b=2,m.c=5", 0.4, 0.7, 0.98, 0, 0},
                                {"m.a=3,m.b=2,m.c=5", 0.5, 0.9, 0.5, 0, 0}};
    /*
     * Two results have p = 0.5 and different values of `heads`, so p is not the only varied
     * parameter.
     */
    static const point same[] = {{"m.heads=1", 0.5, 0.5, 1.00, 0, 0},
                                 {"m.heads=4", 0.5, 0.55, 0.9, 0, 0},
                                 {"m.heads=1", 0.6, 0.6, 1.00, 0, 0}};
    kvd_target_result x = read_off("p", two, 5);
    assert_true(x.grid && x.n_points == 5 && isnan(x.value));
    assert_true(fabs(x.saving - 0.6) < 1e-9 && fabs(x.saving_lo - 0.5) < 1e-9);
    /*
     * The result that saves 0.7 of the bytes has an accuracy between 0.96 and 1.00, so it may reach
     * 0.99. The result that saves 0.9 cannot reach 0.99.
     */
    assert_true(fabs(x.saving_hi - 0.9) < 1e-9);
    x = read_off("p", same, 3);
    assert_true(x.grid && fabs(x.saving - 0.6) < 1e-9);
}

/* Results that were evaluated on different tokens must not form one series. */
static void scored_apart(void **state)
{
    (void)state;
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
        assert_int_equal(kvd_accuracy_collect(&all, &entries, &err), 0);
        assert_int_equal(kvd_entry_last(&entries, 0), 1);
        assert_string_equal(entries.item[0].series, cases[i].name[0]);
        assert_string_equal(entries.item[2].method, cases[i].name[1]);
        kvd_accuracy_entries_release(&entries);
        kvd_rows_free(file[0].accuracy.rows);
        kvd_rows_free(file[1].accuracy.rows);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(line), cmocka_unit_test(grid),
                                       cmocka_unit_test(scored_apart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
