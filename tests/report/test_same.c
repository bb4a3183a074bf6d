/* Tests which results may be compared with each other. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/measures/measures.h"
#include "report/rows.h"
#include "unit.h"

static const kvd_column accuracy[] = {
    {"label", KVD_COL_TEXT, "1", "l"},        {"calibration", KVD_COL_TEXT, "1", "c"},
    {"method", KVD_COL_TEXT, "1", "m"},       {"settings", KVD_COL_TEXT, "1", "s"},
    {"rule", KVD_COL_TEXT, "1", "r"},         {"pair_qk", KVD_COL_TEXT, "1", "q"},
    {"pair_v", KVD_COL_TEXT, "1", "v"},       {"cache", KVD_COL_TEXT, "1", "c"},
    {"overall_p", KVD_COL_REAL, "1", "p"},    {"overall_p_qk", KVD_COL_REAL, "1", "p"},
    {"overall_p_v", KVD_COL_REAL, "1", "p"},  {"low_p_qk", KVD_COL_REAL, "1", "p"},
    {"low_p_v", KVD_COL_REAL, "1", "p"},      {"prompt", KVD_COL_INT, "1", "p"},
    {"n_tokens", KVD_COL_INT, "1", "n"},      {"n_sequences", KVD_COL_INT, "1", "n"},
    {"n_predictions", KVD_COL_INT, "1", "n"}, {"n_seeds", KVD_COL_INT, "1", "n"},
    {"n_items", KVD_COL_INT, "1", "n"},       {"prompt_tokens", KVD_COL_REAL, "1", "t"},
    {"metric", KVD_COL_TEXT, "1", "m"},       {"score", KVD_COL_REAL, "1", "s"},
    {"purpose", KVD_COL_TEXT, "1", "p"},      {"attention_error_zdc", KVD_COL_REAL, "1", "D"},
    {"perplexity", KVD_COL_REAL, "1", "ppl"}, {"kl", KVD_COL_REAL, "nat", "KL"},
};
enum { N_ACCURACY = sizeof accuracy / sizeof *accuracy, N_CONDITIONS = 21 };

static const kvd_column serving[] = {
    {"kind", KVD_COL_TEXT, "1", "k"},          {"method", KVD_COL_TEXT, "1", "m"},
    {"engine", KVD_COL_TEXT, "1", "e"},        {"trace", KVD_COL_TEXT, "1", "t"},
    {"route", KVD_COL_TEXT, "1", "r"},         {"admission", KVD_COL_TEXT, "1", "a"},
    {"gpus", KVD_COL_INT, "1", "g"},           {"graphs", KVD_COL_INT, "1", "g"},
    {"phases", KVD_COL_INT, "1", "p"},         {"replicas", KVD_COL_INT, "1", "r"},
    {"chunk", KVD_COL_INT, "1", "c"},          {"max_batch", KVD_COL_INT, "1", "b"},
    {"max_tokens", KVD_COL_INT, "1", "t"},     {"memory_bytes", KVD_COL_REAL, "1", "m"},
    {"reserve_bytes", KVD_COL_REAL, "1", "r"}, {"slo_ttft_s", KVD_COL_REAL, "1", "s"},
    {"slo_tbt_s", KVD_COL_REAL, "1", "s"},     {"requests", KVD_COL_INT, "1", "n"},
    {"rate", KVD_COL_REAL, "1", "r"},          {"latency_bound_s", KVD_COL_REAL, "1", "l"},
    {"refused", KVD_COL_INT, "1", "n"},
};
enum { N_SERVING = sizeof serving / sizeof *serving };

static const kvd_column jct[] = {
    {"kind", KVD_COL_TEXT, "1", "k"},     {"method", KVD_COL_TEXT, "1", "m"},
    {"dtype", KVD_COL_TEXT, "1", "t"},    {"engine", KVD_COL_TEXT, "1", "e"},
    {"parallel", KVD_COL_TEXT, "1", "p"}, {"admission", KVD_COL_TEXT, "1", "a"},
    {"gpus", KVD_COL_INT, "1", "g"},      {"graphs", KVD_COL_INT, "1", "g"},
    {"phases", KVD_COL_INT, "1", "p"},    {"chunk", KVD_COL_INT, "1", "c"},
    {"batch", KVD_COL_INT, "1", "b"},     {"input", KVD_COL_INT, "1", "i"},
    {"output", KVD_COL_INT, "1", "o"},
};
enum { N_JCT = sizeof jct / sizeof *jct };

static kvd_rows *table(const kvd_column *columns, int n)
{
    kvd_err err = {""};
    kvd_rows *const rows = kvd_rows_new(columns, n, &err);
    assert_non_null(rows);
    return rows;
}

static void put(kvd_rows *rows, const kvd_column *columns, int n, int odd)
{
    kvd_err err = {""};
    OK(kvd_rows_begin(rows, &err));
    for (int i = 0; i < n; i++)
        if (columns[i].kind == KVD_COL_TEXT)
            kvd_rows_text(rows, columns[i].name, i == odd ? "other, other" : "same, same");
        else if (columns[i].kind == KVD_COL_INT)
            kvd_rows_int(rows, columns[i].name, i == odd ? 257 : 256);
        else
            kvd_rows_real(rows, columns[i].name, i == odd ? 0.501 : 0.5);
}

TEST(test_every_condition)
{
    const struct {
        const kvd_column *columns;
        int n, conditions;
        kvd_result_kind kind;
    } of[] = {{accuracy, N_ACCURACY, N_CONDITIONS, KVD_RESULT_ACCURACY},
              {serving, N_SERVING, N_SERVING, KVD_RESULT_SERVING},
              {jct, N_JCT, N_JCT, KVD_RESULT_JCT}};
    for (int t = 0; t < 3; t++) {
        kvd_rows *const rows = table(of[t].columns, of[t].n);
        kvd_result x = {.kind = of[t].kind};
        put(rows, of[t].columns, of[t].n, -1);
        put(rows, of[t].columns, of[t].n, -1);
        for (int i = 0; i < of[t].conditions; i++)
            put(rows, of[t].columns, of[t].n, i);
        *(of[t].kind == KVD_RESULT_ACCURACY  ? &x.accuracy.rows
          : of[t].kind == KVD_RESULT_SERVING ? &x.serving
                                             : &x.jct) = rows;
        assert_null(kvd_rows_differ(&x, 0, &x, 1, ""));
        for (int i = 0; i < of[t].conditions; i++) {
            const char *const name = of[t].columns[i].name, *const said = kvd_rows_differ(
                                                                &x, 0, &x, (size_t)i + 2, "");
            assert_non_null(said);
            assert_string_equal(said, name);
            assert_null(kvd_rows_differ(&x, 0, &x, (size_t)i + 2, name));
        }
        kvd_result y = x;
        strcpy(y.model.hash, "another");
        assert_string_equal(kvd_rows_differ(&x, 0, &y, 1, ""), "model");
        y = x;
        y.kind = of[t].kind == KVD_RESULT_JCT ? KVD_RESULT_SERVING : KVD_RESULT_JCT;
        assert_string_equal(kvd_rows_differ(&x, 0, &y, 1, ""), "schema");
        kvd_rows_free(rows);
    }
}

TEST(test_older_serving_file)
{
    const kvd_column older[] = {serving[0], serving[1]};
    kvd_result x = {.kind = KVD_RESULT_SERVING, .serving = table(older, 2)}, y = x;
    y.serving = table(serving, 9);
    put(x.serving, older, 2, -1);
    put(y.serving, serving, 9, -1);
    assert_string_equal(kvd_rows_differ(&x, 0, &y, 0, "engine,trace,route,admission"), "gpus");
    assert_null(kvd_rows_differ(&x, 0, &y, 0, "engine,trace,route,admission,gpus"));
    kvd_rows_free(x.serving);
    kvd_rows_free(y.serving);
}

TEST(test_groups)
{
    kvd_rows *const rows = table(accuracy, N_ACCURACY);
    kvd_result x = {.kind = KVD_RESULT_ACCURACY, .accuracy = {.rows = rows}};
    put(rows, accuracy, N_ACCURACY, -1);
    put(rows, accuracy, N_ACCURACY, 10);
    put(rows, accuracy, N_ACCURACY, 14);
    put(rows, accuracy, N_ACCURACY, 1);
    put(rows, accuracy, N_ACCURACY, -1);
    kvd_rows_text(rows, "calibration", "");
    assert_null(kvd_rows_differ(&x, 0, &x, 1, "widths"));
    assert_null(kvd_rows_differ(&x, 0, &x, 2, "label,sample"));
    assert_string_equal(kvd_rows_differ(&x, 0, &x, 1, "sample,width"), "overall_p_v");
    assert_string_equal(kvd_rows_differ(&x, 0, &x, 2, "widths,label"), "n_tokens");
    assert_string_equal(kvd_rows_differ(&x, 0, &x, 3, "bases"), "calibration");
    assert_null(kvd_rows_differ(&x, 0, &x, 4, "bases"));
    assert_string_equal(kvd_rows_differ(&x, 0, &x, 4, "widths"), "calibration");
    kvd_rows_free(rows);
}

/* Results differ if only one of them has a column, such as `overall_p`. A missing column `prompt`,
 * however, equals a `prompt` of 0. */
TEST(test_absent_columns)
{
    static const kvd_column old[] = {{"label", KVD_COL_TEXT, "1", "l"}},
                            with_prompt[] = {{"label", KVD_COL_TEXT, "1", "l"},
                                             {"prompt", KVD_COL_INT, "1", "p"}},
                            with_p[] = {{"label", KVD_COL_TEXT, "1", "l"},
                                        {"overall_p", KVD_COL_REAL, "1", "p"}};
    kvd_rows *const a = table(old, 1), *const b = table(with_prompt, 2),
                    *const c = table(with_p, 2);
    kvd_err err = {""};
    kvd_rows_begin(a, &err);
    kvd_rows_begin(b, &err);
    kvd_rows_begin(b, &err);
    kvd_rows_int(b, "prompt", 12);
    kvd_rows_begin(c, &err);
    kvd_rows_real(c, "overall_p", 0.5);
    const kvd_result x = {.kind = KVD_RESULT_ACCURACY, .accuracy = {.rows = a}},
                     y = {.kind = KVD_RESULT_ACCURACY, .accuracy = {.rows = b}},
                     z = {.kind = KVD_RESULT_ACCURACY, .accuracy = {.rows = c}};
    assert_null(kvd_rows_differ(&x, 0, &y, 0, ""));
    assert_string_equal(kvd_rows_differ(&x, 0, &y, 1, ""), "prompt");
    assert_string_equal(kvd_rows_differ(&x, 0, &z, 0, ""), "overall_p");
    kvd_rows_free(a);
    kvd_rows_free(b);
    kvd_rows_free(c);
}

TEST(test_absent_admission)
{
    static const kvd_column old[] = {{"kind", KVD_COL_TEXT, "1", "k"}},
                            new[] = {{"kind", KVD_COL_TEXT, "1", "k"},
                                     {"admission", KVD_COL_TEXT, "1", "a"}};
    kvd_rows *const a = table(old, 1), *const b = table(new, 2);
    kvd_err err = {""};
    kvd_rows_begin(a, &err);
    kvd_rows_text(a, "kind", "point");
    for (int i = 0; i < 2; i++) {
        kvd_rows_begin(b, &err);
        kvd_rows_text(b, "kind", "point");
        kvd_rows_text(b, "admission", i ? "stored" : "whole");
    }
    const kvd_result x = {.kind = KVD_RESULT_SERVING, .serving = a},
                     y = {.kind = KVD_RESULT_SERVING, .serving = b};
    assert_null(kvd_rows_differ(&x, 0, &y, 0, ""));
    assert_string_equal(kvd_rows_differ(&x, 0, &y, 1, ""), "admission");
    kvd_rows_free(a);
    kvd_rows_free(b);
}

TEST(test_engines)
{
    static const kvd_column columns[] = {{"engine", KVD_COL_TEXT, "1", "e"}};
    static const char *const engine[] = {"card, bf16, kernels", "card, bf16", "card, bf16; latents",
                                         "card, f32, kernels", "cards, bf16, kernels"};
    kvd_rows *const rows = table(columns, 1);
    kvd_err err = {""};
    for (int i = 0; i < 5; i++) {
        kvd_rows_begin(rows, &err);
        kvd_rows_text(rows, "engine", engine[i]);
    }
    const kvd_result x = {.kind = KVD_RESULT_JCT, .jct = rows};
    for (size_t i = 1; i < 5; i++)
        assert_true((kvd_rows_differ(&x, 0, &x, i, "") == NULL) == (i < 3));
    kvd_rows_free(rows);
}

TEST(test_degradation)
{
    kvd_rows *const rows = table(accuracy, N_ACCURACY);
    kvd_err err = {""};
    static const struct {
        const char *label;
        int prompt;
        double D;
    } row[] = {{"a", 0, 1}, {"b", 0, 1.5}, {"b", 12, 9}, {"b", 256, 7}};
    for (size_t i = 0; i < 4; i++) {
        put(rows, accuracy, N_ACCURACY, -1);
        kvd_rows_text(rows, "label", row[i].label);
        kvd_rows_text(rows, "calibration", "a");
        kvd_rows_int(rows, "prompt", row[i].prompt);
        kvd_rows_real(rows, "attention_error_zdc", row[i].D);
    }
    kvd_result x = {.kind = KVD_RESULT_ACCURACY, .accuracy = {.rows = rows}};
    const kvd_results r = {&x, 1};
    kvd_measured v;
    OK(kvd_measure(&r, "degradation:all", &v, &err));
    assert_int_equal(v.n, 1);
    assert_true(v.value[0].value > 1.49 && v.value[0].value < 1.51);
    kvd_values_release(&v);
    kvd_rows_free(rows);
}

/* Tests the comparison of removing V dimensions with removing Q and K dimensions (ZDC, Fig. 25).
 * The removed fractions must be nearly equal. */
TEST(test_pairs_at_equal_p)
{
    static const struct {
        const char *method;
        double p_qk, p_v, perplexity;
    } row[] = {{"none", 0, 0, 10},
               {"zack", 0.77, 0, 20},
               {"zack", 0, 0.831, 28},
               {"zack", 0.8, 0, 24},
               {"zack", 0, 0.801, 24.6}};
    static const struct {
        /* number of results in this test, from the beginning of array `row`, and expected number of
         * compared pairs of results */
        size_t n, pairs;
        /* text appended to column `settings` of results that remove dimensions of V */
        const char *other;
    } want[] = {{3, 0, ""}, {5, 1, ""}, {5, 0, ",zack.online=1"}};
    for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
        const size_t n = want[k].n;
        kvd_rows *const rows = table(accuracy, N_ACCURACY);
        kvd_err err = {""};
        for (size_t i = 0; i < n; i++) {
            put(rows, accuracy, N_ACCURACY, -1);
            kvd_rows_text(rows, "method", row[i].method);
            kvd_rows_text(rows, "label", "text");
            kvd_rows_text(rows, "purpose", "point");
            char settings[64];
            snprintf(settings, sizeof settings, "zack.p.qk=%g,zack.p.v=%g%s", row[i].p_qk,
                     row[i].p_v, row[i].p_v > 0 ? want[k].other : "");
            kvd_rows_text(rows, "settings", settings);
            kvd_rows_real(rows, "overall_p_qk", row[i].p_qk);
            kvd_rows_real(rows, "overall_p_v", row[i].p_v);
            kvd_rows_real(rows, "perplexity", row[i].perplexity);
        }
        kvd_result x = {.kind = KVD_RESULT_ACCURACY, .accuracy = {.rows = rows}};
        const kvd_results r = {&x, 1};
        kvd_measured v;
        OK(kvd_measure(&r, "v-over-qk:all", &v, &err));
        assert_int_equal(v.n, want[k].pairs);
        if (v.n)
            assert_true(v.value[0].value > 1.024 && v.value[0].value < 1.026);
        kvd_values_release(&v);
        kvd_rows_free(rows);
    }
}

/* Results of a method differ if only one of them has a parameter, such as `m.group`. */
TEST(test_keys_of_settings)
{
    static const char *const text[] = {"m.k=2,m.v=4,m.group=32",
                                       "m.k=4,m.v=2,m.group=32",
                                       "m.k=4,m.v=2,m.group=64",
                                       "m.k=4,m.v=2",
                                       "m.group=32",
                                       "m.k=4,,m.group=32",
                                       "m.kk=2,m.group=32"};
    static const struct {
        int a, b;
        const char *but;
        bool same;
    } want[] = {{0, 1, "", false},        {0, 1, "m.k", false},           {0, 1, "m.k,m.v", true},
                {1, 2, "m.k,m.v", false}, {1, 2, "m.group", true},        {1, 3, "m.k,m.v", false},
                {3, 2, "m.group", true},  {0, 4, "m.v,m.k", true},        {4, 5, "m.k", true},
                {4, 6, "m.k", false},     {4, 3, "m.k,m.v", false},       {0, 3, "settings", true},
                {1, 5, "m.v", true},      {4, 3, "m.k,m.v,m.group", true}};
    kvd_rows *const rows = table(accuracy, N_ACCURACY);
    const kvd_result x = {.kind = KVD_RESULT_ACCURACY, .accuracy = {.rows = rows}};
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        put(rows, accuracy, N_ACCURACY, -1);
        kvd_rows_text(rows, "settings", text[i]);
    }
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        if ((kvd_rows_differ(&x, (size_t)want[i].a, &x, (size_t)want[i].b, want[i].but) == NULL) !=
            want[i].same)
            fail_msg("'%s' and '%s' but '%s'", text[want[i].a], text[want[i].b], want[i].but);
    kvd_rows_free(rows);
}

/* Compares a result with 2-bit K and 4-bit V to a result with 4-bit K and 2-bit V (LeanKV, Fig.
 * 7). */
TEST(test_mirrored_bits)
{
    static const struct {
        const char *settings;
        double kl;
    } row[] = {{"hetero.k=2,hetero.v=4,hetero.balance=1", 9},
               {"hetero.k=4,hetero.v=2,hetero.balance=0", 2},
               {"hetero.k=2,hetero.v=4,hetero.balance=0", 3}};
    for (size_t n = 2; n <= 3; n++) {
        kvd_rows *const rows = table(accuracy, N_ACCURACY);
        kvd_err err = {""};
        for (size_t i = 0; i <= n; i++) {
            put(rows, accuracy, N_ACCURACY, -1);
            kvd_rows_text(rows, "method", i ? "hetero" : "none");
            kvd_rows_text(rows, "label", "text");
            kvd_rows_text(rows, "settings", i ? row[i - 1].settings : "");
            kvd_rows_real(rows, "kl", i ? row[i - 1].kl : 0);
        }
        kvd_result x = {.kind = KVD_RESULT_ACCURACY, .accuracy = {.rows = rows}};
        const kvd_results r = {&x, 1};
        kvd_measured v;
        OK(kvd_measure(&r, "mirror-kl:all", &v, &err));
        assert_int_equal(v.n, n == 3);
        if (n == 3)
            assert_true(v.value[0].value > 1.49 && v.value[0].value < 1.51);
        kvd_values_release(&v);
        kvd_rows_free(rows);
    }
}

/* The smallest cache that keeps 99 % of the uncompressed accuracy is found separately for each
 * prompt length. */
TEST(test_smallest_cache)
{
    static const struct {
        const char *method;
        int prompt;
        double top1, cache;
    } row[] = {{"none", 0, 1, 1},         {"leankv", 0, 0.995, 0.5},   {"leankv", 0, 0.99, 0.4},
               {"leankv", 0, 0.9, 0.1},   {"none", 256, 1, 1},         {"leankv", 256, 0.999, 0.3},
               {"leankv", 256, 0.9, 0.2}, {"leankv", 300, 0.999, 0.05}};
    static const kvd_column columns[] = {
        {"label", KVD_COL_TEXT, "1", "l"},      {"method", KVD_COL_TEXT, "1", "m"},
        {"purpose", KVD_COL_TEXT, "1", "p"},    {"prompt", KVD_COL_INT, "1", "p"},
        {"top1_share", KVD_COL_REAL, "1", "t"}, {"top1_share_hi", KVD_COL_REAL, "1", "t"},
        {"cache_share", KVD_COL_REAL, "1", "c"}};
    kvd_rows *const rows = table(columns, sizeof columns / sizeof *columns);
    kvd_err err = {""};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        OK(kvd_rows_begin(rows, &err));
        kvd_rows_text(rows, "label", "text");
        kvd_rows_text(rows, "method", row[i].method);
        kvd_rows_text(rows, "purpose", "point");
        kvd_rows_int(rows, "prompt", row[i].prompt);
        kvd_rows_real(rows, "top1_share", row[i].top1);
        kvd_rows_real(rows, "top1_share_hi", row[i].top1 + 0.01);
        kvd_rows_real(rows, "cache_share", row[i].cache);
    }
    kvd_result x = {.kind = KVD_RESULT_ACCURACY, .accuracy = {.rows = rows}};
    const kvd_results r = {&x, 1};
    kvd_measured v;
    OK(kvd_measure(&r, "neutral-cache:all", &v, &err));
    assert_int_equal(v.n, 2);
    assert_true(fabs(v.value[0].value - 40) < 1e-9 && fabs(v.value[1].value - 30) < 1e-9);
    kvd_values_release(&v);
    kvd_rows_free(rows);
}

static kvd_result spectrum(const char *path, const char *label, const char *hash, size_t tokens)
{
    kvd_result r = {.kind = KVD_RESULT_SPECTRUM, .path = strdup(path)};
    strcpy(r.spectrum.label, label);
    strcpy(r.spectrum.corpus_hash, hash);
    r.spectrum.n_tokens = tokens;
    r.spectrum.seq_len = 512;
    return r;
}

/* Two results may use one name for two texts only if the first bytes of the texts are equal. Texts
 * with equal names and equal lengths must be equal. */
TEST(test_beginnings)
{
    static const struct {
        const char *hash;
        size_t tokens;
        const char *refused;
    } other[] = {{"xxh3:22+bb", 65, "names two texts that begin differently"},
                 {"xxh3:22+aa", 65, NULL},
                 {"xxh3:22+aa", 64, "names two contents of 64 tokens"},
                 {"xxh3:11", 64, NULL},
                 {"xxh3:22", 65, NULL}};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        kvd_result item[2] = {spectrum("first.h5", "novel", "xxh3:11+aa", 64),
                              spectrum("second.h5", "novel", other[i].hash, other[i].tokens)};
        kvd_err err = {""};
        assert_int_equal(kvd_results_same_texts(&(kvd_results){item, 2}, NULL, &err),
                         other[i].refused ? -1 : 0);
        assert_true(!other[i].refused || strstr(err.msg, other[i].refused));
        free(item[0].path);
        free(item[1].path);
    }
}

TEST(test_texts)
{
    static const struct {
        const char *label, *hash;
        size_t tokens;
        bool refused;
    } other[] = {{"novel", "xxh3:11", 64, false},
                 {"novel", "xxh3:11+cc", 64, false},
                 {"novel", "xxh3:22+dd", 65, false},
                 {"novel", "xxh3:22", 64, true},
                 {"novel", "xxh3:22", 65, false},
                 {"essay", "xxh3:22", 64, false},
                 {"novel", "", 64, false}};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        kvd_result item[2] = {
            spectrum("first.h5", "novel", "xxh3:11", 64),
            spectrum("second.h5", other[i].label, other[i].hash, other[i].tokens)};
        const kvd_results both = {item, 2}, one = {item, 1}, two = {item + 1, 1};
        kvd_err err = {""};
        assert_int_equal(kvd_results_same_texts(&both, NULL, &err), other[i].refused ? -1 : 0);
        assert_int_equal(kvd_results_same_texts(&one, &two, &err), other[i].refused ? -1 : 0);
        for (int k = 0; other[i].refused && k < 5; k++)
            assert_non_null(strstr(err.msg, (const char *const[]){"'novel'", "xxh3:11", "xxh3:22",
                                                                  "first.h5", "second.h5"}[k]));
        free(item[0].path);
        free(item[1].path);
    }
    char essay[] = "essay", novel[] = "novel", nine[] = "xxh3:9", other_hash[] = "xxh3:33";
    char *label[2] = {essay, novel}, *hash[2] = {nine, other_hash};
    char name[] = "novel", content[] = "xxh3:44", a[] = "a.h5", b[] = "b.h5";
    size_t tokens[2] = {64, 64};
    kvd_result item[2] = {{.kind = KVD_RESULT_SIMILARITY, .path = a},
                          {.kind = KVD_RESULT_ACCURACY,
                           .path = b,
                           .corpus_label = name,
                           .corpus_hash = content,
                           .corpus_tokens = 64}};
    item[0].similarity =
        (kvd_similarity){.n_files = 2, .label = label, .hash = hash, .n_tokens = tokens};
    const kvd_results both = {item, 2};
    static const kvd_result_kind kinds[] = {KVD_RESULT_ACCURACY, KVD_RESULT_TASKS,
                                            KVD_RESULT_ERROR_TABLE};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        kvd_err err = {""};
        item[1].kind = kinds[i];
        FAILS_WITH(kvd_results_same_texts(&both, NULL, &err),
                   "xxh3:33 in 'a.h5' and xxh3:44 in 'b.h5'");
    }
}

/* Results must be refused if their input files (a trace, or items) have equal names but different
 * contents. */
static void check_files(bool items)
{
    const kvd_column columns[] = {{items ? "label" : "trace", KVD_COL_TEXT, "1", "t"}};
    for (int case_of = 0; case_of < 3; case_of++) {
        char schema[] = "schema", none[] = "", hash[] = "hash", path[] = "path",
             of[2][16] = {"xxh3:1", "xxh3:2"}, at[2][16] = {"a/trace.csv", "b/trace.csv"},
             to[2][16] = {"a/trace", "trace.jsonl"}, file[2][16] = {"a.h5", "b.h5"};
        kvd_fact fact[2][3];
        kvd_facts input[2];
        kvd_result item[2];
        kvd_err err = {""};
        for (int i = 0; i < 2; i++) {
            fact[i][0] = (kvd_fact){schema, none};
            fact[i][1] = (kvd_fact){hash, of[case_of == 1 ? 0 : i]};
            fact[i][2] = (kvd_fact){path, items ? to[i] : at[i]};
            input[i] = (kvd_facts){fact[i], 3};
            kvd_rows *const rows = table(columns, 1);
            OK(kvd_rows_begin(rows, &err));
            kvd_rows_text(rows, columns->name,
                          case_of == 2 && i ? "other.csv"
                          : items           ? "trace"
                                            : "trace.csv");
            item[i] = (kvd_result){.kind = items ? KVD_RESULT_TASKS : KVD_RESULT_SERVING,
                                   .path = file[i],
                                   .input = &input[i],
                                   .n_inputs = 1};
            *(items ? &item[i].accuracy.rows : &item[i].serving) = rows;
        }
        const kvd_results both = {item, 2}, one = {item, 1}, two = {item + 1, 1};
        assert_int_equal(kvd_results_same_texts(&both, NULL, &err), case_of ? 0 : -1);
        assert_int_equal(kvd_results_same_texts(&one, &two, &err), case_of ? 0 : -1);
        for (int k = 0; !case_of && k < 5; k++)
            assert_non_null(strstr(err.msg, (const char *const[]){"'trace", "xxh3:1", "xxh3:2",
                                                                  "'a.h5'", "'b.h5'"}[k]));
        for (int i = 0; i < 2; i++)
            kvd_rows_free(items ? item[i].accuracy.rows : item[i].serving);
    }
}

TEST(test_files)
{
    check_files(false);
    check_files(true);
}

TEST_MAIN(NULL, NULL)
