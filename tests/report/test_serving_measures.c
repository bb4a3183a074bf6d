#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report/measures/ledger.h"
#include "report/measures/measures.h"
#include "report/rows.h"
#include "unit.h"

static const kvd_column columns[] = {
    {"kind", KVD_COL_TEXT, "1", "kind"},
    {"method", KVD_COL_TEXT, "1", "method"},
    {"engine", KVD_COL_TEXT, "1", "engine"},
    {"trace", KVD_COL_TEXT, "1", "trace"},
    {"gpus", KVD_COL_INT, "1", "gpus"},
    {"replicas", KVD_COL_INT, "1", "replicas"},
    {"chunk", KVD_COL_INT, "token", "chunk"},
    {"rate", KVD_COL_REAL, "1/s", "rate"},
    {"ttft_mean_s", KVD_COL_REAL, "s", "TTFT"},
    {"latency_mean_s", KVD_COL_REAL, "s", "per token"},
    {"latency_bound_s", KVD_COL_REAL, "s", "bound"},
    {"served_per_s", KVD_COL_REAL, "1/s", "served"},
    {"max_batch", KVD_COL_INT, "1", "limit"},
    {"running_mean", KVD_COL_REAL, "1", "at once"},
    {"tokens_per_s", KVD_COL_REAL, "token/s", "tokens"},
    {"memory_bytes", KVD_COL_REAL, "byte", "memory"},
    {"admission", KVD_COL_TEXT, "1", "rule"},
    {"requests", KVD_COL_INT, "1", "requests"},
    {"refused", KVD_COL_INT, "1", "refused"},
    {"drain_s", KVD_COL_REAL, "s", "drain"},
    {"wait_mean_s", KVD_COL_REAL, "s", "wait"},
    {"jct_mean_s", KVD_COL_REAL, "s", "JCT"},
};

/* table of simulated servers' results, to which each test adds rows */
typedef struct {
    kvd_rows *rows;
    kvd_result item;
    kvd_results r;
} file;

static kvd_rows *begin(file *x)
{
    static char name[] = "a";
    kvd_err err = {""};
    x->rows = kvd_rows_new(columns, sizeof columns / sizeof *columns, &err);
    assert_non_null(x->rows);
    x->item = (kvd_result){
        .kind = KVD_RESULT_SERVING, .name = name, .has_model = true, .serving = x->rows};
    x->r = (kvd_results){.item = &x->item, .n = 1};
    return x->rows;
}

static void add(kvd_rows *r, const char *kind, const char *method, int gpus, double rate,
                double ttft)
{
    kvd_err err;
    OK(kvd_rows_begin(r, &err));
    kvd_rows_text(r, "kind", kind);
    kvd_rows_text(r, "method", method);
    kvd_rows_text(r, "engine", "a card, bf16");
    kvd_rows_text(r, "trace", "poisson:2 of arxiv");
    kvd_rows_int(r, "gpus", gpus);
    kvd_rows_int(r, "replicas", 1);
    kvd_rows_int(r, "chunk", 0);
    kvd_rows_real(r, "rate", rate);
    kvd_rows_real(r, "served_per_s", rate < 3 ? rate : 0.8 * rate);
    kvd_rows_real(r, "ttft_mean_s", ttft);
    kvd_rows_real(r, "latency_mean_s", 0.01 * ttft);
    kvd_rows_real(r, "latency_bound_s", strcmp(kind, "point") ? 0.02 : (double)NAN);
}

static kvd_measured measured(const kvd_results *r, const char *name, const char *trace)
{
    kvd_err err = {""};
    kvd_measured v = {0};
    if (kvd_serving_measure(r, name, trace, &v, &err))
        fail_msg("%s: %s", name, err.msg);
    return v;
}

static void is(const kvd_results *r, const char *name, const char *trace, size_t n,
               const double *want)
{
    kvd_measured v = measured(r, name, trace);
    if (v.n != n)
        fail_msg("%s: %zu values, not %zu", name, v.n, n);
    for (size_t i = 0; i < n; i++)
        if (!(fabs(v.value[i].value - want[i]) < 1e-9))
            fail_msg("%s, value %zu: %.12g, not %.12g", name, i, v.value[i].value, want[i]);
    kvd_values_release(&v);
}

/* Checks measures that compare the method zack with the uncompressed cache, on made-up serving
 * results.
 *
 * - own: highest request rate of the uncompressed cache
 * - load [n]: expected request rates / own */
static void check(double own, size_t n, const double *load, const double *ttft, const double *rate)
{
    file x;
    kvd_rows *const rows = begin(&x);
    for (int i = 0; i < 2; i++) {
        const char *const method = i ? "zack,p=0.5" : "none";
        add(rows, "point", method, 1, 2, i ? 1 : 1.2);
        add(rows, "point", method, 1, 1, i ? 0.9 : 1);
        add(rows, "point", method, 1, 2.4, i ? 1.2 : 2);
        add(rows, "max-rate", method, 1, i ? 1.5 * own : own, 1);
    }
    is(&x.r, "serving-top-zack-over-none", "arxiv", 1, (const double[]){1.5});
    is(&x.r, "serving-ttft-zack-over-none", "arxiv", n, ttft);
    is(&x.r, "serving-rate-zack-over-none", "arxiv", n, rate);
    is(&x.r, "serving-ttft-zack-over-none", "imdb", 0, NULL);
    is(&x.r, "serving-ttft-fdc-over-none", "arxiv", 0, NULL);
    kvd_measured v = measured(&x.r, "serving-ttft-zack-over-none", "arxiv");
    for (size_t i = 0; i < v.n; i++) {
        assert_true(fabs(v.value[i].load - load[i]) < 1e-9);
        assert_int_equal(v.value[i].curve, 0);
    }
    kvd_values_release(&v);
    kvd_rows_free(rows);
}

/* Mean times to the first token at 1, 2, 2.4 requests/s are 1, 1.2, 2 s without compression, and
 * 0.9, 1, 1.2 s with method zack. */
TEST(test_loads)
{
    check(2, 2, (const double[]){0.5, 1}, (const double[]){-10, 100 * (1 / 1.2 - 1)},
          (const double[]){2, 1.2});
    /* A request rate of 2 counts, although the uncompressed cache sustains 0.27 % less. */
    check(2 / 1.0027, 2, (const double[]){0.50135, 1.0027},
          (const double[]){-10, 100 * (1 / 1.2 - 1)}, (const double[]){2, 1.2});
    /* Times to the first token at 2.2 requests/s are interpolated between results at 2 and 2.4
     * requests/s. */
    check(2.2, 3, (const double[]){1 / 2.2, 2 / 2.2, 1},
          (const double[]){-10, 100 * (1 / 1.2 - 1), (100 * (1 / 1.2 - 1) - 40) / 2},
          (const double[]){2, 1.2, 1.1});
}

/* Sets `column` to `value` only in the result of method zack. Returns true if this result is still
 * compared with the uncompressed result. */
static bool has_uncompressed(const char *column, int value)
{
    kvd_err err = {""};
    file x;
    kvd_rows *const rows = begin(&x);
    for (int i = 0; i < 2; i++) {
        add(rows, "point", i ? "zack,p=0.5" : "none", 1, 2, 1);
        kvd_rows_int(rows, "requests", 100);
        kvd_rows_int(rows, "refused", 0);
        kvd_rows_int(rows, "max_batch", 8);
    }
    kvd_rows_int(rows, column, value);
    kvd_report_rows all;
    OK(kvd_serving_collect(&x.r, &all, &err));
    bool found = false;
    for (size_t i = 0; i < all.n; i++)
        if (strcmp(all.item[i].series, "none"))
            found = kvd_serving_uncompressed(&all, &all.item[i]) != NULL;
    kvd_report_rows_release(&all);
    kvd_rows_free(rows);
    return found;
}

TEST(test_uncompressed_of_equal_conditions)
{
    assert_true(has_uncompressed("requests", 100));
    assert_false(has_uncompressed("requests", 99));
    assert_false(has_uncompressed("refused", 1));
    assert_false(has_uncompressed("max_batch", 4));
}

/* Without a result of zack at 1.5 requests/s, no value is interpolated between 1 and 2
 * requests/s. */
TEST(test_missing_load)
{
    for (int all = 0; all < 2; all++) {
        file x;
        kvd_rows *const rows = begin(&x);
        for (int i = 0; i < 2; i++) {
            const char *const method = i ? "zack,p=0.5" : "none";
            for (int k = 1; k <= 4; k++)
                if (!i || k != 3 || all)
                    add(rows, "point", method, 1, 0.5 * k, i ? 0.5 : 1);
            add(rows, "max-rate", method, 1, 2, 1);
        }
        kvd_measured v = measured(&x.r, "serving-ttft-zack-over-none", "arxiv");
        assert_int_equal(v.n, 3 + all);
        const double share = kvd_share_of_loads(v.value, v.n, -60, -40);
        assert_true(fabs(share - (all ? 0.75 : 0.25) / 0.9) < 1e-9);
        kvd_values_release(&v);
        kvd_rows_free(rows);
    }
}

TEST(test_costs_of_a_cpu)
{
    file x;
    kvd_rows *const rows = begin(&x);
    add(rows, "max-rate", "none", 0, 2, 1);
    add(rows, "max-rate", "zack,p=0.5", 0, 4, 1);
    is(&x.r, "serving-top-zack-over-none", "arxiv", 0, NULL);
    kvd_rows_free(rows);
}

/* If less than 90 % of the arriving requests per second are served, the queue of requests counts as
 * growing. */
TEST(test_queue)
{
    for (int i = 0; i < 2; i++) {
        file x;
        kvd_rows *const rows = begin(&x);
        add(rows, "max-rate", "none", 1, 2, 1);
        add(rows, "max-rate", "zack,p=0.5", 1, i ? 4 : 2.5, 1);
        kvd_measured v = measured(&x.r, "serving-top-zack-over-none", "arxiv");
        assert_int_equal(v.n, 1);
        assert_int_equal(v.value[0].grows, i);
        kvd_values_release(&v);
        kvd_rows_free(rows);
    }
}

/* The queue counts as growing if the last completion is too long after the last arrival: longer
 * than 5 s plus a request's mean service time (time without waiting). */
TEST(test_queue_of_few_percent)
{
    static const struct {
        double drain, wait, jct;
        bool grows;
    } of[] = {{8, 1, 9.5, false}, {8, 7, 9, true}, {5.5, 4, 5, false}, {6.5, 4, 5, true}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        file x;
        kvd_rows *const rows = begin(&x);
        for (int k = 0; k < 2; k++) {
            add(rows, "max-rate", k ? "zack,p=0.5" : "none", 1, 10, 1);
            kvd_rows_int(rows, "requests", 1000);
            kvd_rows_int(rows, "refused", 0);
            kvd_rows_real(rows, "drain_s", of[i].drain);
            kvd_rows_real(rows, "wait_mean_s", of[i].wait);
            kvd_rows_real(rows, "jct_mean_s", of[i].jct);
            kvd_rows_real(rows, "served_per_s", 1000 / (100 + of[i].drain));
        }
        kvd_measured v = measured(&x.r, "serving-top-zack-over-none", "arxiv");
        assert_int_equal(v.n, 1);
        assert_int_equal(v.value[0].grows, of[i].grows);
        kvd_values_release(&v);
        kvd_rows_free(rows);
    }
}

TEST(test_keys)
{
    file x;
    kvd_rows *const rows = begin(&x);
    add(rows, "max-rate", "fdc,p=0.65", 1, 2, 1);
    add(rows, "max-rate", "palu,p=0.55", 1, 1, 1);
    add(rows, "max-rate", "fdc,explicit=1,p=0.65", 1, 0.5, 1);
    add(rows, "max-rate", "palu,heads=1,search=3,p=0.65", 1, 1.6, 1);
    is(&x.r, "serving-top-palu-over-fdc", "arxiv", 2, (const double[]){0.5, 0.8});
    is(&x.r, "serving-top-palu,heads=1,search=3-over-fdc", "arxiv", 1, (const double[]){0.8});
    is(&x.r, "serving-top-palu,p=0.55-over-fdc,p=0.65", "arxiv", 1, (const double[]){0.5});
    is(&x.r, "serving-top-fdc,explicit=1-over-fdc", "arxiv", 1, (const double[]){0.25});
    is(&x.r, "serving-top-fdc,online=1-over-fdc", "arxiv", 0, NULL);
    is(&x.r, "serving-top-fdc-over-palu,!search", "arxiv", 1, (const double[]){2});
    is(&x.r, "serving-top-palu,p=0.5-over-fdc", "arxiv", 0, NULL);
    is(&x.r, "serving-top-palu,search-over-fdc", "arxiv", 0, NULL);
    is(&x.r, "serving-top-palu,!sear-over-fdc", "arxiv", 2, (const double[]){0.5, 0.8});
    kvd_rows_free(rows);
}

/* Throughputs of two methods are compared only at equal memory and equal admission rules. An
 * admission rule decides when the server starts a waiting request. */
TEST(test_short_memory)
{
    static const struct {
        const char *method, *admission;
        double rate, running, tokens, memory;
        /* two results per line: without compression, then with the method leankv */
    } row[] = {{"none", "whole", 9, 5, NAN, 22},   {"leankv", "whole", 9, 5, NAN, 22},
               {"none", "whole", 9, 5, 0, 24},     {"leankv", "whole", 9, 5, 50, 24},
               {"none", "", 9, 20, 100, 18},       {"leankv", "whole", 9, 50, 150, 18},
               {"none", "stored", 9, 25, 110, 18}, {"leankv", "stored", 9, 60, 132, 18},
               {"none", "stored", 9, 33, 160, 48}, {"leankv", "stored", 9, 60, 132, 48},
               {"none", "stored", 2, 5, 50, 20},   {"leankv", "stored", 2, 5, 50, 20}};
    file x;
    kvd_rows *const rows = begin(&x);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        add(rows, "point", row[i].method, 1, row[i].rate, 1);
        kvd_rows_int(rows, "max_batch", 64);
        kvd_rows_text(rows, "admission", row[i].admission);
        kvd_rows_real(rows, "running_mean", row[i].running);
        kvd_rows_real(rows, "tokens_per_s", row[i].tokens);
        kvd_rows_real(rows, "memory_bytes", row[i].memory);
    }
    is(&x.r, "serving-throughput-leankv-over-none", "arxiv", 2, (const double[]){1.5, 1.2});
    is(&x.r, "serving-running-leankv-over-none", "arxiv", 4, (const double[]){1, 1, 2.5, 2.4});
    kvd_rows_free(rows);
}

static kvd_verdict judged(const kvd_verdict_rule *rule, const kvd_measured *value,
                          const kvd_measured *trend)
{
    kvd_verdict verdict;
    kvd_err err = {""};
    OK(kvd_verdict_judge(rule, value, trend, &verdict, &err));
    return verdict;
}

TEST(test_share_of_loads)
{
    static const struct {
        double load, value;
        bool grows;
    } at[] = {{0.1, 0, false}, {0.4, -30, false}, {0.7, -30, false}, {1, -30, true}};
    kvd_measured_value v[4];
    for (int i = 0; i < 4; i++)
        v[i] = (kvd_measured_value){.value = at[i].value,
                                    .load = at[i].load,
                                    .grows = at[i].grows,
                                    .lo = NAN,
                                    .hi = NAN,
                                    .null_lo = NAN,
                                    .null_hi = NAN};
    assert_true(fabs(kvd_share_of_loads(v, 3, -INFINITY, -10) - 5 / 9.0) < 1e-9);
    assert_true(fabs(kvd_share_of_loads(v, 4, -INFINITY, -10) - 5 / 9.0) < 1e-9);
    assert_true(fabs(kvd_share_of_loads(v, 4, -20, -10) - 1 / 9.0) < 1e-9);
    assert_true(fabs(kvd_share_of_loads(v, 1, -INFINITY, 10)) < 1e-12);
    v[3].grows = false;
    assert_true(fabs(kvd_share_of_loads(v, 4, -INFINITY, 0) - 1) < 1e-9);

    kvd_measured all = {v, 4}, none = {0};
    kvd_verdict_rule rule = {"loads-at-most", "-10", "loads-at-most", "0", -40, -10};
    assert_int_equal(judged(&rule, &all, &all), KVD_TREND_HOLDS);
    rule.limit = "0";
    assert_int_equal(judged(&rule, &all, &all), KVD_REPRODUCED);
    v[3].grows = true;
    assert_int_equal(judged(&rule, &all, &all), KVD_CANNOT_TELL);
    rule.limit = rule.trend_limit = "-10";
    assert_int_equal(judged(&rule, &all, &all), KVD_NOT_REPRODUCED);
    rule.limit = rule.trend_limit = "0";
    v[2].load = 0.995;
    assert_int_equal(judged(&rule, &all, &all), KVD_CANNOT_TELL);
    v[2].load = 0.7;
    const kvd_measured single = {v + 1, 1};
    assert_int_equal(judged(&rule, &single, &single), KVD_CANNOT_TELL);
    rule.limit = rule.trend_limit = "-40";
    assert_int_equal(judged(&rule, &single, &single), KVD_NOT_REPRODUCED);
    rule.limit = rule.trend_limit = "0";
    assert_int_equal(judged(&rule, &none, &none), KVD_NOT_MEASURED);
    v[3].grows = false;
    const kvd_measured late = {v + 1, 3};
    rule.trend_limit = "-40";
    assert_int_equal(judged(&rule, &late, &late), KVD_CANNOT_TELL);

    /* rules that compare a measured value with the range expected under the null hypothesis */
    const kvd_verdict_rule below = {"below-null", "", "", "", NAN, NAN},
                           below_at_loads = {"loads-below-null", "", "", "", NAN, NAN},
                           above_at_loads = {"loads-above-null", "", "", "", NAN, NAN};
    assert_int_equal(judged(&below_at_loads, &all, &none), KVD_CANNOT_TELL);
    for (int i = 0; i < 4; i++)
        v[i].null_lo = v[i].null_hi = 0;
    assert_int_equal(judged(&below, &late, &none), KVD_HOLDS);
    /* Without results at low request rates, a claim about every request rate cannot be judged. */
    assert_int_equal(judged(&below_at_loads, &late, &none), KVD_CANNOT_TELL);
    assert_int_equal(judged(&below_at_loads, &all, &none), KVD_HOLDS);
    assert_int_equal(judged(&above_at_loads, &all, &none), KVD_DOES_NOT_HOLD);
    double least, most;
    assert_int_equal(kvd_verdict_loads(&below_at_loads, &late, &least, &most), 1);
    assert_true(fabs(least - 2 / 3.0) < 1e-9 && fabs(most - 2 / 3.0) < 1e-9);
    v[1].value = 0;
    assert_int_equal(judged(&below_at_loads, &all, &none), KVD_DOES_NOT_HOLD);
    v[1].value = -30;
    v[3].grows = true;
    assert_int_equal(judged(&below, &late, &none), KVD_CANNOT_TELL);
    assert_int_equal(judged(&below_at_loads, &all, &none), KVD_CANNOT_TELL);
}

TEST(test_intervals)
{
    static const struct {
        double lo, hi;
        bool grows;
        kvd_verdict verdict;
    } want[] = {{0.55, 0.6, false, KVD_REPRODUCED},
                {0.45, 0.6, false, KVD_CANNOT_TELL},
                {0.3, 0.45, false, KVD_NOT_REPRODUCED},
                {0.55, 0.6, true, KVD_CANNOT_TELL}};
    const kvd_verdict_rule rule = {"within", "0", "", "", 0.5, 0.65};
    for (size_t i = 0; i < 4; i++) {
        kvd_measured_value v = {.value = (want[i].lo + want[i].hi) / 2,
                                .lo = want[i].lo,
                                .hi = want[i].hi,
                                .grows = want[i].grows,
                                .null_lo = NAN,
                                .null_hi = NAN};
        const kvd_measured one = {&v, 1}, none = {0};
        assert_string_equal(kvd_verdict_name[judged(&rule, &one, &none)],
                            kvd_verdict_name[want[i].verdict]);
    }
}

TEST_MAIN(NULL, NULL)
