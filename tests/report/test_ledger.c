/* Tests the table of the papers' claims, and the verdicts on them from measured results. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/measures/ledger.h"
#include "report/measures/measures.h"
#include "temp_folder.h"
#include "unit.h"

static const char heading[] =
    "id,source,claim,published_table,published_column,published_low,published_high,unit,measure,test,limit,"
    "trend_measure,trend_test,trend_limit,beside,null,setting,rule,needs,cannot\n";

/* Writes a file that contains text a followed by text b. */
static void put_file(const char *name, const char *a, const char *b)
{
    char *all = NULL;
    assert_true(asprintf(&all, "%s%s", a, b) >= 0);
    unit_write_text(temp_file(name), all);
    free(all);
}

static size_t lines_in(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

/* Writes a CSV file with the text a, the text b, and a last row "end,N", where N is the number of
 * lines before it. */
static void put_closed(const char *name, const char *a, const char *b)
{
    char rows[512];
    snprintf(rows, sizeof rows, "%send,%zu\n", b, lines_in(a) + lines_in(b));
    put_file(name, a, rows);
}

static int make_figures(void **state)
{
    (void)state;
    put_closed("figures.csv", "figure,title,because\n", "");
    return 0;
}

/* four singular values of each of two heads; the heads' largest values have mean 8 and standard
 * deviation 2 sqrt 2 */
static double sigma_k[] = {6, 2, 1, 0.5, 10, 2, 1, 0.5};

static kvd_result spectrum(char *name)
{
    kvd_result r = {.kind = KVD_RESULT_SPECTRUM, .name = name, .has_model = true};
    r.spectrum.model = r.model =
        (kvd_model_info){.name = "m", .n_layers = 1, .n_heads = 2, .n_kv_heads = 2, .d_head = 4};
    r.spectrum.n_layers = 1;
    r.spectrum.n_tokens = 4;
    strcpy(r.spectrum.rope, "after");
    r.spectrum.pair[KVD_PAIR_K] =
        (kvd_pair_spectrum){.present = true, .n_rows = 4, .n_h = 2, .sigma = sigma_k};
    return r;
}

static double expected_cv(void)
{
    return 100 * 2 * sqrt(2) / 8;
}

/* Writes ledger.csv with the claim `row`, or with no claim if `row` is "". Unless `row` ends with a
 * newline, adds the columns that all tests share. */
static void put_claim(const char *row)
{
    char line[200];
    snprintf(line, sizeof line, !*row || strchr(row, '\n') ? "%s" : "i,s,c,%s,w,r,n,\n", row);
    put_closed("ledger.csv", heading, line);
}

static void judge_one(const char *row, const kvd_results *r, kvd_ledger *l)
{
    kvd_err err = {""};
    put_claim(row);
    OK(kvd_ledger_judge(temp_folder(), r, l, &err));
    assert_int_equal(l->n, 1);
}

static void expect_verdict(const char *row, const kvd_results *r, kvd_verdict verdict)
{
    kvd_ledger l = {0};
    judge_one(row, r, &l);
    assert_string_equal(kvd_verdict_name[l.entry[0].verdict], kvd_verdict_name[verdict]);
    kvd_ledger_release(&l);
}

static void expect_words(const char *row, const kvd_results *r, const char *text)
{
    kvd_ledger l = {0};
    judge_one(row, r, &l);
    if (!strstr(l.entry[0].ours.s, text))
        fail_msg("'%s' does not say '%s'", l.entry[0].ours.s, text);
    kvd_ledger_release(&l);
}

static void expect_error(const char *row, const kvd_results *r, const char *text)
{
    kvd_err err = {""};
    kvd_ledger l = {0};
    put_claim(row);
    FAILS_WITH(kvd_ledger_judge(temp_folder(), r, &l, &err), text);
}

static void measure(const kvd_results *r, const char *name, size_t n, kvd_measured *v)
{
    kvd_err err = {""};
    if (kvd_measure(r, name, v, &err))
        fail_msg("%s: %s", name, err.msg);
    if (v->n != n)
        fail_msg("%s: %zu values, wanted %zu", name, v->n, n);
}

static void assert_near(double x, double y)
{
    if (!(fabs(x - y) < 1e-9))
        fail_msg("%.12g, wanted %.12g", x, y);
}

TEST(test_measures)
{
    char name[] = "text";
    kvd_result item = spectrum(name);
    const kvd_results r = {&item, 1};
    kvd_measured v;
    kvd_err err = {""};
    static const struct {
        const char *name;
        double value;
        /* coefficient of variation, in percent, of the heads' largest singular values, 6 and 10 */
    } want[] = {{"cv:k", 35.35533905932738},
                {"trailing-share:k", 100 * 1.5 / 11.5},
                /* Percentage of singular values below 1: in each head, one of four (0.5). */
                {"below-one:k", 25},
                /* 50 % of the singular values are below 1 after division by 2, the square root of
                 * the number of tokens */
                {"below-one-normalised:k", 50}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        measure(&r, want[i].name, 1, &v);
        assert_true(fabs(v.value[0].value - want[i].value) < 1e-12 * want[i].value);
        assert_string_equal(v.value[0].what, "text");
        kvd_values_release(&v);
    }
    assert_near(expected_cv(), want[0].value);
    measure(&r, "cv:qk", 0, &v);
    /* Squared singular values are 36, 4, 1, 0.25 in head 0 and 100, 4, 1, 0.25 in head 1. For 95 %
     * of the sum, head 0 needs 2 of them, head 1 only 1. */
    assert_true(kvd_dims_for_energy(&item.spectrum, KVD_PAIR_K, 0.95) == (2 + 1) / 2.0);
    assert_true(kvd_dims_for_energy(&item.spectrum, KVD_PAIR_K, 0.99) == 3);
    static const char *const bad[][2] = {
        {"cv", "is not NAME:PAIR"},
        {"cv:zz", "no pair 'zz'"},
        {"height:k", "unknown measure 'height:k'"},
        {"tokens-delta:k:many", "many"},
        {"cv:abcdefghijklmnopqrst", "no pair 'abcdefghijklmnopqrst'"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        FAILS_WITH(kvd_measure(&r, bad[i][0], &v, &err), bad[i][1]);
    }
}

TEST(test_before_rope_is_no_measure_of_k)
{
    char name[] = "text";
    kvd_result item = spectrum(name);
    strcpy(item.spectrum.rope, "before");
    const kvd_results r = {&item, 1};
    kvd_measured v;
    measure(&r, "cv:k", 0, &v);
}

TEST(test_verdicts)
{
    char a[] = "a", b[] = "b";
    kvd_result items[] = {spectrum(a), spectrum(b)};
    const kvd_results r = {items, 2}, nothing = {NULL, 0};
    put_file("tables.csv", "t,model,x_percent,y_percent\n", "t,m,30,36\nt,n,N/A,41\nend,3\n");
    /* The measured coefficient of variation (measure cv:k) is 35.36 %. */
    expect_verdict("t,*_percent,,,%,cv:k,within,0,,,,,", &r, KVD_REPRODUCED);
    expect_verdict("t,y_percent,,,%,cv:k,within,0.5,,,,,", &r, KVD_NOT_REPRODUCED);
    expect_verdict("t,y_percent,,,%,cv:k,within,0.7,,,,,", &r, KVD_REPRODUCED);
    expect_verdict("t,y_percent,,,%,cv:k,at-least,high,cv:k,at-least,20,,", &r, KVD_TREND_HOLDS);
    expect_verdict("t,y_percent,,,%,cv:k,at-most,high,,,,,", &r, KVD_REPRODUCED);
    expect_verdict("t,y_percent,,,%,cv:k,at-most,low,,,,,", &r, KVD_REPRODUCED);
    expect_verdict("t,x_percent,,,%,cv:k,at-most,low,,,,,", &r, KVD_NOT_REPRODUCED);
    expect_verdict(",,35,36,%,cv:k,between,35:36,,,,,", &r, KVD_REPRODUCED);
    /* If a claim does not say how to compare with the paper's number, its verdict is never
     * "reproduced". */
    expect_verdict(",,35,,%,cv:k,,,cv:k,at-most,99,,", &r, KVD_TREND_HOLDS);
    expect_verdict(",,35,,%,cv:k,,,,,,,", &r, KVD_NOT_REPRODUCED);
    /* The measured value, 13 %, is within the range that a flat spectrum can give, 0 to 50 %. */
    expect_verdict(",,,,%,trailing-share:k,below-null,,,,,,flat", &r, KVD_CANNOT_TELL);
    /* Without a result for a model with random weights, the text must name the range for a flat
     * spectrum. */
    expect_words(",,,,%,trailing-share:k,below-null,,,,,,the same model with random weights", &r,
                 "; null: 0 to 50 % (a flat spectrum of independent rows)");
    expect_words(",,,,%,cv:k,below-null,,,,,,36:37 words", &r, "; null: 36 to 37 % (words)");
    expect_verdict(",,,,%,cv:k,below-null,,,,,,36:37 words", &r, KVD_HOLDS);
    expect_verdict(",,,,%,cv:k,above-null,,,,,,36:37 words", &r, KVD_DOES_NOT_HOLD);
    expect_verdict(",,,,%,cv:k,above-null,,,,,,35:36 words", &r, KVD_CANNOT_TELL);
    expect_verdict(",,,,%,cv:k,above-null,,,,,,words", &r, KVD_CANNOT_TELL);
    expect_verdict("i,s,c,,,,,%,,,,,,,,,w,r,n,too large\n", &r, KVD_NOT_MEASURED);
    expect_verdict("t,*_percent,,,%,cv:k,within,0,,,,,", &nothing, KVD_NOT_MEASURED);
    expect_verdict(",,99,,%,cv:qk,at-most,99,cv:k,at-most,99,,", &r, KVD_NOT_MEASURED);
}

/* Tests a claim with two measures: one is compared with the published number, the other only with
 * the claimed trend. The text of the result must name the second measure. */
TEST(test_trend_is_shown)
{
    char name[] = "text", shown[160];
    kvd_result item = spectrum(name);
    const kvd_results r = {&item, 1};
    kvd_ledger l = {0};
    put_file("tables.csv", "t,model,x_percent\n", "t,m,30\n");
    judge_one(",,44,44,%,below-one:k,within,5,below-one-normalised:k,at-least,25,"
              "cv:k below-one-normalised:k,",
              &r, &l);
    assert_int_equal(l.entry[0].verdict, KVD_TREND_HOLDS);
    assert_string_equal(kvd_text_get(&l.entry[0].ours),
                        "25 %; per KV head 35.36 %; trend (per square root of rows): 50 %");
    kvd_ledger_ours(&l.entry[0], shown, sizeof shown);
    assert_string_equal(shown, "25 %; trend 50 %");
    kvd_ledger_release(&l);
    judge_one(",,25,25,%,below-one:k,within,5,below-one-normalised:k,at-least,25,"
              "below-one-normalised:k,",
              &r, &l);
    assert_int_equal(l.entry[0].verdict, KVD_REPRODUCED);
    kvd_ledger_ours(&l.entry[0], shown, sizeof shown);
    assert_string_equal(shown, "25 %");
    kvd_ledger_release(&l);
}

TEST(test_all_values_count)
{
    char a[] = "a", b[] = "b";
    double flat[] = {6, 6, 6, 6, 6, 6, 6, 6};
    kvd_result items[] = {spectrum(a), spectrum(b)};
    items[1].spectrum.pair[KVD_PAIR_K].sigma = flat;
    const kvd_results r = {items, 2};
    expect_verdict(",,1,,%,cv:k,at-least,1,,,,,", &r, KVD_NOT_REPRODUCED);
    kvd_ledger l = {0};
    judge_one(",,1,,%,trailing-share:k,,,,,,cv:k=points,", &r, &l);
    assert_int_equal(l.entry[0].n_values, 2);
    assert_near(l.entry[0].most, 50);
    assert_string_equal(kvd_text_get(&l.entry[0].ours),
                        "13.04 to 50 % (2 values); per KV head 0 to 35.36 points (2 values)");
    kvd_ledger_release(&l);
}

static kvd_result similar(char **label, size_t *n_tokens, size_t n, kvd_similarity_pair *pair)
{
    return (kvd_result){.kind = KVD_RESULT_SIMILARITY,
                        .similarity = {.n_files = n,
                                       .d_head = 4,
                                       .n_pairs = 1,
                                       .label = label,
                                       .n_tokens = n_tokens,
                                       .pair = pair}};
}

TEST(test_similarity)
{
    char *labels[3] = {"a", "b", "random"};
    size_t tokens[3] = {10, 10, 10};
    double delta[] = {0, 1.3, 1.4, 1.2, 0, 1.41, 1.4, 1.41, 0},
           aligned[] = {0, 1.1, 1.2, 1.1, 0, 1.2, 1.2, 1.2, 0};
    double overlap[] = {1, 0.9, 0.8, 0.9, 1, 0.8, 0.8, 0.8, 1},
           energy[] = {0.9, 0.72, 0.6, 0.81, 0.8, 0.6, 0.75, 0.7, 0.95};
    double random[3] = {0};
    kvd_similarity_pair pair = {.pair = KVD_PAIR_QK,
                                .epsilon = random,
                                .delta = random,
                                .delta_ratio = delta,
                                .aligned_ratio = aligned,
                                .overlap = overlap,
                                .energy = energy,
                                .random = {random, random, random, random}};
    static char *counts[] = {"a", "t", "t"};
    static double far[9] = {5, 5, 5, 5, 5, 5, 5, 5, 5};
    static size_t few[] = {1000, 1000, 2000};
    kvd_similarity_pair far_pair = pair;
    far_pair.delta_ratio = far_pair.aligned_ratio = far_pair.energy = far;
    static char *twice[] = {"a", "copy of a"}, same[] = "xxh3:1", *hashes[] = {same, same};
    static double equal[4] = {0};
    kvd_similarity_pair equal_pair = pair;
    equal_pair.delta_ratio = equal_pair.aligned_ratio = equal_pair.energy = equal;
    kvd_result item[] = {similar(labels, tokens, 3, &pair), similar(counts, few, 3, &far_pair),
                         similar(twice, tokens, 2, &equal_pair), similar(labels, tokens, 3, &pair)};
    static char *contents[] = {"xxh3:2", "xxh3:3", "xxh3:4"};
    item[0].similarity.hash = item[3].similarity.hash = contents;
    item[2].similarity.hash = hashes;
    const kvd_results r = {item, 4};
    static const struct {
        const char *name;
        size_t n;
        double least, most;
    } want[] = {{"delta-ratio:qk", 2, 120, 130},
                {"aligned-ratio:qk", 2, 110, 110},
                /* ratio, in percent, of the squared norms kept by projections from another text and
                 * from the evaluated text */
                {"energy-ratio:qk", 2, 90, 90},
                {"random-delta-ratio:qk", 4, 140, 141},
                /* ratio, in percent, of the squared norms kept by projections from random tokens
                 * and from the evaluated text */
                {"random-energy-ratio:qk", 2, 100 * 0.75 / 0.9, 100 * 0.7 / 0.8},
                {"delta-ratio:vw", 0, 0, 0}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        kvd_measured v;
        double least = INFINITY, most = -INFINITY;
        measure(&r, want[i].name, want[i].n, &v);
        for (size_t k = 0; k < v.n; k++) {
            least = fmin(least, v.value[k].value);
            most = fmax(most, v.value[k].value);
        }
        if (v.n) {
            assert_near(least, want[i].least);
            assert_near(most, want[i].most);
        }
        kvd_values_release(&v);
    }
}

TEST(test_tokens)
{
    /* texts of four calibrations; text `t` was used with 4000, 1000 and 2000 tokens */
    char *labels[4] = {"ref", "t", "t", "t"}, *labels2[4] = {"other", "t", "t", "t"};
    size_t tokens[4] = {99, 4000, 1000, 2000};
    double delta[16] = {0, 0.3, 1.2, 0.6}, delta2[16] = {0, 0.6, 2.4, 1.2}, rest[16] = {0};
    kvd_similarity_pair pair[2] = {{.pair = KVD_PAIR_QK,
                                    .epsilon = rest,
                                    .delta = rest,
                                    .delta_ratio = delta,
                                    .aligned_ratio = rest,
                                    .overlap = rest,
                                    .energy = rest,
                                    .random = {rest, rest, rest, rest}}};
    pair[1] = pair[0];
    pair[1].delta_ratio = delta2;
    kvd_result items[] = {similar(labels, tokens, 4, &pair[0]),
                          similar(labels2, tokens, 4, &pair[1])};
    const kvd_results r = {items, 2};
    kvd_token_point *p;
    size_t n, means = 0;
    kvd_err err = {""};
    OK(kvd_token_points(&r, &p, &n, &err));
    assert_int_equal(n, 9);
    for (size_t i = 0; i < n; i++) {
        if (i % 3)
            assert_true(p[i].n_tokens > p[i - 1].n_tokens &&
                        strcmp(p[i].series, p[i - 1].series) == 0);
        if (p[i].n_averaged == 2) {
            means++;
            assert_string_equal(p[i].series, "t: mean over 2 references");
            assert_near(p[i].delta_ratio, 1.5 * (p[i].n_tokens == 1000   ? 1.2
                                                 : p[i].n_tokens == 2000 ? 0.6
                                                                         : 0.3));
        }
    }
    assert_int_equal(means, 3);
    free(p);
    kvd_measured v;
    measure(&r, "tokens-fall:qk", 3, &v);
    assert_near(v.value[0].value, 0.25);
    kvd_values_release(&v);
    measure(&r, "tokens-delta:qk:1500", 6, &v);
    kvd_values_release(&v);
    measure(&r, "tokens-delta-random:qk:0", 0, &v);
}

/* Makes a test result: a spectrum from 100 tokens, of which the fraction `prune` was dropped. k:
 * number of k-means centroids, or 0; sigma: factor applied to all singular values. */
static kvd_result fewer(char *label, double prune, size_t k, bool weighted, double sigma,
                        double seconds)
{
    kvd_result r = spectrum(label);
    strcpy(r.spectrum.label, label);
    strcpy(r.spectrum.corpus_hash, "xxh3:1");
    r.spectrum.n_tokens = (size_t)(100 * (1 - prune) + 0.5);
    r.spectrum.pair[KVD_PAIR_K].sigma = calloc(8, sizeof(double));
    assert_non_null(r.spectrum.pair[KVD_PAIR_K].sigma);
    for (int i = 0; i < 8; i++)
        r.spectrum.pair[KVD_PAIR_K].sigma[i] = sigma * sigma_k[i];
    r.spectrum.calibration = (kvd_calibration){.prune = prune,
                                               .tokens_dropped = 100 - r.spectrum.n_tokens,
                                               .centroids = k,
                                               .weighted = weighted,
                                               .seconds_collect = 10,
                                               .seconds_kmeans = seconds,
                                               .seconds_decompose = 1};
    return r;
}

TEST(test_fewer_rows)
{
    static const kvd_column columns[] = {
        {"method", KVD_COL_TEXT, "1", "m"},      {"label", KVD_COL_TEXT, "1", "l"},
        {"calibration", KVD_COL_TEXT, "1", "c"}, {"purpose", KVD_COL_TEXT, "1", "p"},
        {"p_wanted", KVD_COL_REAL, "1", "p"},    {"perplexity", KVD_COL_REAL, "1", "p"}};
    static char label[8][8] = {"all", "a2", "a8", "a5", "b5", "w2", "w8", "r5"};
    static const double perplexity[8] = {10, 12, 18, 15, 30, 11, 12, 10.5};
    kvd_result item[9] = {
        fewer(label[0], 0, 0, false, 1, 0),    fewer(label[1], 0.2, 64, false, 1, 8),
        fewer(label[2], 0.8, 64, false, 1, 2), fewer(label[3], 0.5, 64, false, 1, 5),
        fewer(label[4], 0.5, 8, false, 1, 1),  fewer(label[5], 0.2, 64, true, 1, 8),
        fewer(label[6], 0.8, 64, true, 1, 2),  fewer(label[7], 0.5, 0, false, 1.25, 0)};
    kvd_err err = {""};
    kvd_rows *rows = kvd_rows_new(columns, 6, &err);
    assert_non_null(rows);
    for (int i = 0; i < 8; i++) {
        OK(kvd_rows_begin(rows, &err));
        kvd_rows_text(rows, "method", "zack");
        kvd_rows_text(rows, "label", "text");
        kvd_rows_text(rows, "calibration", label[i]);
        kvd_rows_text(rows, "purpose", "point");
        kvd_rows_real(rows, "p_wanted", 0.4);
        kvd_rows_real(rows, "perplexity", perplexity[i]);
    }
    item[8] = (kvd_result){.kind = KVD_RESULT_ACCURACY, .path = label[0]};
    item[8].accuracy.rows = rows;
    const kvd_results r = {item, 9};
    static const struct {
        const char *name;
        size_t n;
        double value;
    } want[] = {{"prune-rise:all", 1, 18.0 / 12},
                {"prune-rise-weighted:all", 1, 12.0 / 11},
                {"prune-rise-rows:all", 0, 0},
                {"prune-time:all", 1, 3.0 / 9},
                {"centroids-fall:all", 1, 15.0 / 30},
                {"centroids-fall-weighted:all", 0, 0},
                {"centroids-time:all", 1, 6.0 / 2},
                /* Singular values of K from half of the tokens are 25 % larger than from all
                 * tokens. */
                {"prune-spectrum-rows:k", 1, 25},
                {"prune-spectrum:k", 0, 0},
                {"prune-spectrum:qk", 0, 0},
                {"cv:k", 1, 35.35533905932738}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        kvd_measured v;
        OK(kvd_measure(&r, want[i].name, &v, &err));
        if (v.n != want[i].n || (v.n && fabs(v.value[0].value - want[i].value) > 1e-9))
            fail_msg("%s: %zu values, %.12g", want[i].name, v.n, v.n ? v.value[0].value : 0);
        kvd_values_release(&v);
    }
    for (int i = 0; i < 8; i++)
        free(item[i].spectrum.pair[KVD_PAIR_K].sigma);
    kvd_rows_free(rows);
}

TEST(test_halves)
{
    static char label[6][8] = {"all", "half", "t-a", "t-b", "u-b", "text"};
    kvd_result item[6] = {
        fewer(label[0], 0, 64, false, 1, 9), fewer(label[1], 0.5, 64, false, 1.1, 5),
        fewer(label[2], 0, 0, false, 1, 0),  fewer(label[3], 0, 0, false, 1.25, 0),
        fewer(label[4], 0, 0, false, 3, 0),  fewer(label[5], 0, 0, false, 2, 0)};
    kvd_measured v;
    for (int i = 2; i < 6; i++)
        item[i].spectrum.corpus_hash[5] = (char)('0' + i);
    const kvd_results with = {item, 6}, without = {item, 3};
    measure(&with, "prune-spectrum:k", 1, &v);
    assert_near(v.value[0].value, 10);
    assert_near(v.value[0].null_lo, 25);
    assert_near(v.value[0].null_hi, 25);
    kvd_values_release(&v);
    measure(&without, "prune-spectrum:k", 1, &v);
    assert_true(isnan(v.value[0].null_lo) && isnan(v.value[0].null_hi));
    kvd_values_release(&v);
    expect_verdict(",,,,%,prune-spectrum:k,below-null,,,,,,halves", &with, KVD_HOLDS);
    expect_verdict(",,,,%,prune-spectrum:k,below-null,,,,,,halves", &without, KVD_CANNOT_TELL);
    measure(&with, "cv:k", 2, &v);
    kvd_values_release(&v);
    for (int i = 0; i < 6; i++)
        free(item[i].spectrum.pair[KVD_PAIR_K].sigma);
}

TEST(test_pruning)
{
    static const kvd_column columns[] = {
        {"method", KVD_COL_TEXT, "1", "m"},      {"label", KVD_COL_TEXT, "1", "l"},
        {"settings", KVD_COL_TEXT, "1", "s"},    {"purpose", KVD_COL_TEXT, "1", "p"},
        {"cache_share", KVD_COL_REAL, "1", "c"}, {"kl", KVD_COL_REAL, "1", "k"},
        {"kl_lo", KVD_COL_REAL, "1", "k"},       {"kl_hi", KVD_COL_REAL, "1", "k"}};
    static const struct {
        const char *method, *settings;
        double share, kl, lo, hi;
    } point[] = {{"none", "", 1, 0, 0, 0},
                 {"h2o", "h2o.heavy=0.1", 0.2, 0.09, 0.08, 0.1},
                 {"h2o", "h2o.heavy=0.3", 0.6, 0.01, 0.008, 0.0125},
                 {"h2o", "h2o.heavy=0.7", 0.9, 0.001, 0.0005, 0.002},
                 {"sparsity", "sparsity.th=0.2,sparsity.tl=0.2", 0.4, 0.02, 0.016, 0.025},
                 {"sparsity", "sparsity.th=0.5,sparsity.tl=0.2", 0.4, 0.5, 0.4, 0.6},
                 {"sparsity", "sparsity.th=0.01,sparsity.tl=0.01", 0.95, 0.001, 0.0005, 0.002}};
    enum { N = sizeof point / sizeof *point };
    char path[] = "levels.h5";
    kvd_err err = {""};
    kvd_rows *rows = kvd_rows_new(columns, 8, &err);
    assert_non_null(rows);
    for (int i = 0; i < N; i++) {
        OK(kvd_rows_begin(rows, &err));
        kvd_rows_text(rows, "method", point[i].method);
        kvd_rows_text(rows, "label", "text");
        kvd_rows_text(rows, "settings", point[i].settings);
        kvd_rows_text(rows, "purpose", "point");
        kvd_rows_real(rows, "cache_share", point[i].share);
        kvd_rows_real(rows, "kl", point[i].kl);
        kvd_rows_real(rows, "kl_lo", point[i].lo);
        kvd_rows_real(rows, "kl_hi", point[i].hi);
    }
    kvd_result item = {.kind = KVD_RESULT_ACCURACY, .path = path};
    item.accuracy.rows = rows;
    const kvd_results r = {&item, 1};
    kvd_measured v;
    OK(kvd_measure(&r, "h2o-over-sparsity-kl:all", &v, &err));
    assert_int_equal(v.n, 1);
    assert_near(v.value[0].value, 0.03 / 0.02);
    assert_near(v.value[0].lo, sqrt(0.08 * 0.008) / 0.025);
    assert_near(v.value[0].hi, sqrt(0.1 * 0.0125) / 0.016);
    assert_near(v.value[0].null_lo, 1);
    assert_near(v.value[0].null_hi, 1);
    kvd_values_release(&v);
    kvd_rows_free(rows);
}

TEST(test_hostile_ledgers)
{
    char a[] = "a";
    kvd_result item = spectrum(a);
    const kvd_results r = {&item, 1};
    kvd_err err = {""};
    kvd_ledger l = {0};
    put_file("tables.csv", "t,model,x\n", "t,m,abc\nend,2\n");
    expect_error("i,s,c\n", &r, "3 fields, wanted 20");
    expect_error(",,,,%,speed:k,,,,,,,", &r, "unknown measure 'speed:k'");
    expect_error(",,1,,%,cv:k,near,1,,,,,", &r, "unknown test 'near'");
    expect_error(",,1,,%,cv:k,at-most,high,,,,,", &r, "limit 'high' without a published number");
    expect_error(",,,1,%,cv:k,within,1,,,,,", &r, "'within' without a published range");
    expect_error(",,1,,%,cv:k,within,1,,,,,", &r, "'within' without a published range");
    expect_error(",,1,,%,cv:k,between,7,,,,,", &r, "is not A:B");
    expect_error(",,ten,,%,cv:k,,,,,,,", &r, "ten");
    expect_error("absent,x,,,%,cv:k,,,,,,,", &r, "no table 'absent'");
    expect_error("t,x,,,%,cv:k,,,,,,,", &r, "abc");
    expect_error("t,y,,,%,cv:k,,,,,,,", &r, "no number in a column 'y'");
    expect_error(",,,,%,cv:k,at-most,7,,,,,", &r, "the test must be above-null or below-null");
    expect_error(",,,,%,,,,,,,,", &r, "neither a measure nor a reason");
    expect_error("", &r, "has no entry");
    put_closed("figures.csv", "figure,title,because\n", "F 1,t,\n");
    expect_error("F 10 (a),s,c,,,1,,%,cv:k,,,,,,,,w,r,n,\n", &r,
                 "'F 1' has neither a row of the ledger nor a reason");
    put_closed("figures.csv", "figure,title,because\n", "F 1,t,a drawing\n");
    expect_error("F 1 (a),s,c,,,1,,%,cv:k,,,,,,,,w,r,n,\n", &r,
                 "'F 1' has a row of the ledger and a reason for none");
    put_closed("figures.csv", "figure,title,because\n", "");
    put_closed("ledger.csv", "id,claim\n", "");
    assert_int_equal(kvd_ledger_judge(temp_folder(), &r, &l, &err), -1);
    put_closed(
        "ledger.csv",
        "di,source,claim,published_table,published_column,published_low,published_high,unit,measure,test,"
        "limit,",
        "trend_measure,trend_test,trend_limit,beside,null,setting,rule,needs,cannot\n");
    FAILS_WITH(kvd_ledger_judge(temp_folder(), &r, &l, &err),
               "column 1 is called 'di', wanted 'id'");
}

/* Truncates the file `name` to each shorter length. Every truncated file must be refused. */
static void expect_cuts_refused(const char *name, const kvd_results *r)
{
    char path[128], text[1024];
    snprintf(path, sizeof path, "%s/%s", temp_folder(), name);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    const size_t whole = fread(text, 1, sizeof text - 1, f);
    assert_int_equal(fclose(f), 0);
    text[whole] = '\0';
    for (size_t len = whole - 1; len-- > 0;) {
        kvd_err err = {""};
        kvd_ledger l = {0};
        text[len] = '\0';
        put_file(name, text, "");
        if (kvd_ledger_judge(temp_folder(), r, &l, &err) != -1 || !strstr(err.msg, name))
            fail_msg("%s, %zu of %zu bytes: '%s'", name, len, whole, err.msg);
    }
}

TEST(test_cut_files)
{
    static const char rows[] = "F 1 (a),s,c,,,1,,%,cv:k,at-most,7,,,,,,w,r,n,\n"
                               "F 2 (a),s,c,,,1,,%,cv:k,at-most,7,,,,,,w,r,n,\n";
    char a[] = "a";
    kvd_result item = spectrum(a);
    const kvd_results r = {&item, 1};
    kvd_ledger l = {0};
    kvd_err err = {""};
    put_closed("ledger.csv", heading, rows);
    expect_cuts_refused("ledger.csv", &r);
    put_closed("ledger.csv", heading, rows);
    put_closed("figures.csv", "figure,title,because\n",
               "F 1,t,\nF 2,t,\nF 3,t,a drawing\nF 4,t,a drawing without numbers\n");
    OK(kvd_ledger_judge(temp_folder(), &r, &l, &err));
    assert_int_equal(l.figures.n, 4);
    kvd_ledger_release(&l);
    expect_cuts_refused("figures.csv", &r);
    put_closed("figures.csv", "figure,title,because\n", "");
}

TEST(test_shipped_ledger)
{
    const kvd_results nothing = {NULL, 0};
    kvd_ledger l = {0};
    kvd_err err = {""};
    static const char *const wanted[] = {
        "ZACK Fig. 5 (K)", "ZACK Fig. 10 (Q-K)", "ZACK Fig. 18 (Q-K)", "ZACK Table 4",
        "ZACK Table 5", "ZACK Table 6", "ZACK Table 7", "FDC Fig. 3", "FDC Fig. 14", "FDC Table 2",
        "FDC Table 3", "FDC Table 4", "ZDC Fig. 13 (a)", "ZDC Fig. 13 (b)", "ZDC Fig. 14",
        /* claims about a single data set, which is named in parentheses */
        "FDC Fig. 12, AC (arXiv)", "FDC Fig. 12, AC (Cocktail)", "FDC Fig. 12, AC (HumanEval)",
        "FDC Fig. 12, AC (PG-19)", "FDC Fig. 13, AC (Cocktail)",
        "ZACK Fig. 14, Keyformer-Z (HumanEval)", "ZACK Fig. 15, Keyformer-Z (HumanEval)",
        "ZACK Fig. 15, KVQuant (IMDb)"};
    OK(kvd_ledger_judge("data/paper", &nothing, &l, &err));
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        size_t k = 0;
        while (k < l.n && strcmp(l.entry[k].id, wanted[i]))
            k++;
        if (k == l.n)
            fail_msg("no entry '%s'", wanted[i]);
    }
    for (size_t k = 0; k < l.n; k++) {
        assert_int_equal(l.entry[k].verdict, KVD_NOT_MEASURED);
        assert_true(strlen(l.entry[k].rule) >= 11);
        assert_true(strlen(l.entry[k].needs) > 10 && strlen(l.entry[k].claim) > 10);
        /* The command must set SHAPE, the dimensions of a model. Without SHAPE it would measure on
         * the CPU. */
        if (strstr(l.entry[k].needs, "make -C experiments/serving"))
            assert_non_null(strstr(l.entry[k].needs, "SHAPE=llama-3.1-8b TRACES="));
        if (strcmp(l.entry[k].id, "ZACK Table 4") == 0) {
            assert_near(l.entry[k].low, 0.0657);
            assert_near(l.entry[k].high, 0.3512);
        }
        if (strcmp(l.entry[k].id, "ZDC Fig. 20 (H2O)") == 0)
            assert_true(l.entry[k].low == -32 && l.entry[k].high == -25);
        if (strcmp(l.entry[k].id, "FDC Table 3") == 0)
            assert_true(l.entry[k].low == 49.55 && l.entry[k].high == 59.2);
    }
    /* number of figures and tables in the papers on ZACK, FDC, ZDC and LeanKV */
    assert_int_equal(l.figures.n, 104);
    assert_int_equal(l.figures.measured, 0);
    assert_int_equal(l.figures.unmeasured + l.figures.cannot + l.figures.nothing, 104);
    kvd_ledger_release(&l);
}

TEST(test_rates_at_99)
{
    char label[] = "IMDb_sample", other[] = "wiki";
    kvd_target_result target[] = {
        {.name = "fdc",
         .metric = "rouge1",
         .target = 0.99,
         .saving = 0.5,
         .saving_lo = 0.4,
         .saving_hi = 0.6},
        {.name = "palu",
         .target = 0.99,
         .saving = NAN,
         .value = 0.3,
         .value_lo = 0.2,
         .value_hi = NAN},
        {.name = "zack", .own = true, .target = 0.99, .saving = 0.1},
        {.name = "fdc", .target = 0.9, .saving = 0.7, .saving_lo = 0.7, .saving_hi = 0.7}};
    /* the only column of a made-up table of task results: `label`, the name of the task */
    static const kvd_column columns[] = {{"label", KVD_COL_TEXT, "1", "l"}};
    kvd_err err = {""};
    kvd_rows *const rows = kvd_rows_new(columns, 1, &err);
    char file[] = "benchmark";
    assert_non_null(rows);
    OK(kvd_rows_begin(rows, &err));
    kvd_rows_text(rows, "label", "cloze-IMDb_sample");
    kvd_result item[2] = {{.kind = KVD_RESULT_ACCURACY,
                           .corpus_label = label,
                           .accuracy = {.target = target, .n_targets = 4}},
                          {.kind = KVD_RESULT_TASKS,
                           .corpus_label = other,
                           .accuracy = {.target = target, .n_targets = 1}}};
    const kvd_results r = {item, 2};
    static const struct {
        const char *name;
        size_t n;
        double value, lo, hi;
    } want[] = {{"p99-fdc:imdb", 1, 0.5, 0.4, 0.6},
                {"p99-palu:imdb", 1, 0.3, 0.2, 1},
                {"p99-fdc-less-palu:imdb", 1, 0.2, -0.6, 0.4},
                {"p99-fdc:wiki", 1, 0.5, 0.4, 0.6},
                {"p99-fdc-less-palu:wiki", 0, 0, 0, 0},
                {"p99-fdc-by-rouge1:wiki", 1, 0.5, 0.4, 0.6},
                {"p99-fdc-by-top1:wiki", 0, 0, 0, 0},
                {"p99-fdc-less-palu-by-rouge1:imdb", 0, 0, 0, 0},
                {"p99-zack:imdb", 0, 0, 0, 0}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        kvd_measured v;
        measure(&r, want[i].name, want[i].n, &v);
        if (v.n) {
            assert_near(v.value[0].value, want[i].value);
            assert_near(v.value[0].lo, want[i].lo);
            assert_near(v.value[0].hi, want[i].hi);
        }
        if (!strcmp(want[i].name, "p99-fdc:wiki"))
            assert_string_equal(v.value[0].metric, "rouge1");
        kvd_values_release(&v);
    }
    kvd_ledger l = {0};
    target[0].saving = 0.7;
    target[0].saving_hi = 0.8;
    kvd_target_result low = target[0];
    low.saving = 0.3;
    low.saving_lo = 0.25;
    item[1].corpus_label = file;
    item[1].accuracy.rows = rows;
    item[1].accuracy.target = &low;
    judge_one(",,0.5,0.6,,p99-fdc:imdb,within,0,,,,,", &r, &l);
    assert_string_equal(kvd_text_get(&l.entry[0].ours),
                        "0.3 to 0.7 (2 values, intervals 0.25 to 0.8) by rouge1");
    kvd_ledger_release(&l);
    kvd_rows_free(rows);
}

TEST_MAIN(make_figures, NULL)
