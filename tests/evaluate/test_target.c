/* Tests the search for the strongest compression that still keeps a given accuracy. */
#include <math.h>
#include <string.h>

#include "common/rng.h"
#include "evaluate/accuracy_text.h"
#include "evaluate/target.h"
#include "unit.h"

/* Returns a measurement: with parameter x, a method keeps the fraction `share` of the uncompressed
 * accuracy, with confidence interval lo .. hi. */
static kvd_target_sample at(double x, double share, double lo, double hi)
{
    return (kvd_target_sample){x, x, x / 2, {share, lo, hi}, false};
}

TEST(test_monotone)
{
    const kvd_target_sample s[] = {at(0, 1, 1, 1), at(0.1, 0.999, 0.995, 1.003),
                                   at(0.2, 0.995, 0.985, 1.004), at(0.3, 0.985, 0.975, 0.995),
                                   at(0.4, 0.97, 0.95, 0.98)};
    kvd_target t;
    char line[2 * KVD_ACCURACY_LINE];
    kvd_target_read(s, 5, 0.99, &t);
    assert_true(t.kept.value == 0.2 && t.kept.saving == 0.1 && t.misses.value == 0.3 &&
                t.last_kept.value == 0.2 && t.monotone == 1);
    assert_true(t.surely_kept.value == 0.1 && t.surely_lost.value == 0.4 &&
                t.surely_lost.saving == 0.2);
    assert_int_equal(t.n_points, 5);
    assert_string_equal(
        kvd_accuracy_target_line("zack", "p", "the accuracy", &t, line),
        "zack keeps 0.99 of the accuracy up to p = 0.2 (missed at 0.3), 10.0 % of the bytes saved; "
        "surely kept up to 0.1 (5.0 %), surely lost from 0.4 (20.0 %); 5 points");
}

TEST(test_not_monotone)
{
    const kvd_target_sample s[] = {at(0, 1, 1, 1), at(0.1, 0.98, 0.97, 0.992),
                                   at(0.2, 0.995, 0.985, 1.004), at(0.3, 0.97, 0.95, 0.98)};
    kvd_target t;
    char line[2 * KVD_ACCURACY_LINE];
    kvd_target_read(s, 4, 0.99, &t);
    assert_true(t.kept.value == 0 && t.misses.value == 0.1 && t.last_kept.value == 0.2 &&
                t.monotone == 0);
    assert_string_equal(
        kvd_accuracy_target_line("fdc", "p", "the accuracy", &t, line),
        "fdc keeps 0.99 of the accuracy up to p = 0 (missed at 0.1), 0.0 % of the bytes saved; "
        "surely kept up to 0 (0.0 %), surely lost from 0.3 (15.0 %); 4 points\nfdc: not monotone, "
        "kept again beyond the miss, last at p = 0.2");
}

TEST(test_never_missed_and_no_interval)
{
    const kvd_target_sample s[] = {at(0, 1, 1, 1), at(0.5, 0.999, 0.99, 1.01)};
    const kvd_target_sample one[] = {at(0, 1, 1, 1), at(0.5, 0.9, NAN, NAN)};
    const kvd_target_sample never[] = {at(0.1, 0.9, 0.8, 0.95), at(0.5, 0.8, 0.7, 0.9)};
    kvd_target t;
    char line[2 * KVD_ACCURACY_LINE];
    kvd_target_read(s, 2, 0.99, &t);
    assert_true(t.kept.value == 0.5 && isnan(t.misses.value) && t.surely_kept.value == 0.5 &&
                isnan(t.surely_lost.value) && t.monotone == 1);
    kvd_target_read(one, 2, 0.99, &t);
    assert_true(t.kept.value == 0 && t.misses.value == 0.5 && isnan(t.surely_kept.value) &&
                isnan(t.surely_lost.value));
    assert_string_equal(
        kvd_accuracy_target_line("zack", "p", "rouge1", &t, line),
        "zack keeps 0.99 of rouge1 up to p = 0 (missed at 0.5), 0.0 % of the bytes saved; cannot "
        "tell: no 95 % interval limits it; 2 points");
    kvd_target_read(never, 2, 0.99, &t);
    assert_true(isnan(t.kept.value) && t.misses.value == 0.1 && isnan(t.last_kept.value));
    assert_string_equal(
        kvd_accuracy_target_line("h2o", "h2o.heavy", "the accuracy", &t, line),
        "h2o misses 0.99 of the accuracy from the first h2o.heavy = 0.1 on, 5.0 % of the bytes saved");
}

typedef struct {
    double miss;  /* largest x that keeps 0.99 of the accuracy */
    double grain; /* x is a multiple of `grain` */
    double inert; /* compression has no effect at smaller x */
    double dip;   /* a value below `miss` that misses the target; -1: none */
    size_t measured;
    double last[128];
} known;

static int place(void *ctx, double wanted, double *x, kvd_err *err)
{
    const known *const k = ctx;
    (void)err;
    *x = nearbyint(wanted / k->grain) * k->grain;
    return 0;
}

static int measure(void *ctx, double wanted, kvd_target_sample *out, kvd_interval *of_text,
                   kvd_err *err)
{
    known *const k = ctx;
    double x;
    place(ctx, wanted, &x, err);
    for (size_t i = 0; i < k->measured; i++)
        assert_true(fabs(k->last[i] - x) > 1e-9);
    k->last[k->measured++] = x;
    const double share = fabs(x - k->dip) < 1e-9 ? 0.9 : x <= k->miss + 1e-9 ? 1 : 0.95;
    *out = at(x, share, share - 0.02, share + 0.02);
    out->saving = x;
    out->inert = x < k->inert;
    /* Simulates the accuracies on two texts. On text 0, the accuracy drops at a smaller parameter x
     * than on text 1. */
    for (int t = 0; of_text && t < 2; t++) {
        const double one = x <= k->miss + (t ? 0.2 : -0.2) + 1e-9 ? 1 : 0.9;
        of_text[t] = (kvd_interval){one, one, one};
    }
    return 0;
}

static kvd_target_axis axis_of(known *k, double step, bool whole, size_t n_texts)
{
    return (kvd_target_axis){.ctx = k,
                             .largest = 1,
                             .step = step,
                             .whole = whole,
                             .place = place,
                             .measure = measure,
                             .n_texts = n_texts,
                             .method = "known"};
}

TEST(test_search_ends_at_the_crossing)
{
    for (int i = 0; i < 40; i++) {
        known k = {.miss = (i + 0.5) / 40, .grain = 1e-4, .dip = -1};
        const kvd_target_axis axis = axis_of(&k, KVD_TARGET_STEP, i % 2, 0);
        kvd_target t;
        kvd_err err = {""};
        OK(kvd_target_search(&axis, 0.99, &t, NULL, &err));
        assert_true(t.kept.value <= k.miss && t.misses.value > k.miss && t.monotone == 1);
        assert_true(t.misses.value - t.kept.value <= KVD_TARGET_STEP + 2e-4);
        assert_int_equal(t.n_points, k.measured);
    }
}

TEST(test_search_on_few_settings)
{
    for (int i = 0; i < 7; i++) {
        known k = {.miss = i / 7.0, .grain = 1 / 7.0, .dip = -1};
        const kvd_target_axis axis = axis_of(&k, 1.0 / 128, false, 0);
        kvd_target t;
        kvd_err err = {""};
        OK(kvd_target_search(&axis, 0.99, &t, NULL, &err));
        assert_true(fabs(t.kept.value - i / 7.0) < 1e-9 &&
                    fabs(t.misses.value - (i + 1) / 7.0) < 1e-9);
        assert_true(k.measured <= 8);
    }
}

/* If small parameter values have no effect, the search must ignore them and continue with larger
 * values. */
TEST(test_search_beyond_values_without_effect)
{
    for (int i = 0; i < 2; i++) {
        known k = {.miss = i ? 0.2 : 0.7, .inert = 0.4, .grain = 1e-4, .dip = -1};
        const kvd_target_axis axis = axis_of(&k, KVD_TARGET_STEP, false, 0);
        kvd_target t;
        kvd_err err = {""};
        OK(kvd_target_search(&axis, 0.99, &t, NULL, &err));
        assert_true(t.n_points > 0 && t.n_points < k.measured);
        assert_true(i ? isnan(t.kept.value) : t.kept.value > 0.69 && t.kept.value <= 0.7);
        assert_true(i ? t.misses.value >= 0.4 && t.misses.value < 0.41 : t.misses.value > 0.7);
        k = (known){.inert = 2, .grain = 1e-4, .dip = -1};
        OK(kvd_target_search(&axis, 0.99, &t, NULL, &err));
        assert_true(t.n_points == 0 && isnan(t.kept.value) && isnan(t.misses.value));
    }
}

TEST(test_search_of_texts)
{
    known k = {.miss = 0.4567, .grain = 1e-4, .dip = -1};
    const kvd_target_axis axis = axis_of(&k, KVD_TARGET_STEP, true, 2);
    kvd_target t, of_text[2];
    kvd_err err = {""};
    OK(kvd_target_search(&axis, 0.99, &t, of_text, &err));
    assert_true(t.kept.value <= 0.4567 && t.misses.value > 0.4567);
    for (int i = 0; i < 2; i++) {
        const double miss = 0.4567 + (i ? 0.2 : -0.2);
        assert_true(of_text[i].kept.value <= miss + 1e-9 && of_text[i].misses.value > miss);
        assert_true(of_text[i].misses.value - of_text[i].kept.value <= KVD_TARGET_STEP + 2e-4);
        assert_int_equal(of_text[i].n_points, k.measured);
    }
}

typedef struct {
    double least; /* smallest parameter that reaches the target */
    double half;  /* half width of the score's confidence interval */
    size_t n;
} score;

static int evaluate(void *ctx, const kvd_method_target *t, const kvd_point *point,
                    kvd_target_sample *out, kvd_interval *of_text, kvd_err *err)
{
    score *const s = ctx;
    const double value = kvd_method_tradeoff_value(point->method, &t->rate),
                 share = value >= s->least ? 1 : 0.9;
    (void)of_text;
    (void)err;
    s->n++;
    out->saving = 1 - value;
    out->share = (kvd_interval){share, share - s->half, share + s->half};
    return 0;
}

TEST(test_search_of_a_method)
{
    static const char *const text[] = {"h2o", "h2o,heavy=0.3", "h2o,recent=0.1", "none"};
    static kvd_method m[4];
    static kvd_method_target t[4];
    kvd_err err = {""};
    size_t n = 0;
    for (int i = 0; i < 4; i++)
        OK(kvd_method_parse(text[i], &m[i], &err));
    OK(kvd_target_check_methods(m, text, 4, NULL, &err));
    assert_int_equal(kvd_target_check_methods(m + 3, text + 3, 1, NULL, &err), -1);
    assert_non_null(strstr(err.msg, "--target of nothing"));
    for (int i = 0; i < 3; i++)
        OK(kvd_method_target_add(t, &n, &m[i], NULL, &err));
    assert_int_equal(n, 2);
    assert_string_equal(t[0].name, "h2o");
    assert_string_equal(t[1].name, "h2o-2");
    assert_string_equal(t[0].rate.name, "h2o.heavy");
    assert_false(t[0].whole);
    const kvd_point point = {.method = &m[0]};
    score s = {.least = 0.123, .half = 0.02};
    assert_int_equal(kvd_method_target_search(&t[0], NULL, 0.99, 0, NULL, evaluate, &s, &err), -1);
    assert_non_null(strstr(err.msg, "--target searches h2o.heavy"));
    OK(kvd_method_target_search(&t[0], &point, 0.99, 0, NULL, evaluate, &s, &err));
    assert_true(t[0].found.kept.value >= 0.123 && t[0].found.misses.value < 0.123);
    assert_true(t[0].found.kept.value - t[0].found.misses.value <= KVD_TARGET_STEP);
    assert_int_equal(t[0].found.n_points, s.n);
    s = (score){.least = 0.123, .half = 0.2};
    OK(kvd_method_target_search(&t[1], &point, 0.99, 0, NULL, evaluate, &s, &err));
    assert_false(kvd_target_tells(t[1].found.surely_kept.saving, t[1].found.surely_lost.saving));
}

TEST(test_crossing_by_hand)
{
    const double p[3] = {0.2, 0.4, 0.6}, falls[3] = {1, 0.98, 0.9}, first[3] = {0.98, 0.99, 0.9},
                 never[3] = {1, 0.995, 0.991}, meets[3] = {0.995, 0.99, 0.97},
                 back[3] = {1.01, 0.985, 0.995};
    assert_true(fabs(kvd_target_crossing(p, falls, 3, 0.99) - 0.3) < 1e-15);
    /* The accuracy falls linearly from 1 at p = 0 to 0.98 at p = 0.2, so it is 0.99 at p = 0.1. */
    assert_true(fabs(kvd_target_crossing(p, first, 3, 0.99) - 0.1) < 1e-15);
    assert_true(kvd_target_crossing(p, never, 3, 0.99) == 0.6);
    assert_true(kvd_target_crossing(p, meets, 3, 0.99) == 0.4);
    assert_true(fabs(kvd_target_crossing(p, back, 3, 0.99) - (0.2 + 0.2 * 0.02 / 0.025)) < 1e-15);
    assert_true(kvd_target_crossing(p, falls, 3, 1) == 0.2);
}

enum { SEQUENCES = 60, POINTS = 5 };

/* Simulates the number of correct predictions in each sequence, for two methods that remove the
 * fractions p [POINTS] of the cache. Method b loses half as much accuracy as method a. */
static void simulate(kvd_rng *r, double reference[SEQUENCES], double a[POINTS][SEQUENCES],
                     double b[POINTS][SEQUENCES], const double *p)
{
    for (int s = 0; s < SEQUENCES; s++) {
        reference[s] = 100 + (double)kvd_rng_below(r, 100);
        const double noise = 0.02 * kvd_rng_normal(r);
        for (int i = 0; i < POINTS; i++) {
            a[i][s] = reference[s] * (1 - 0.1 * p[i] + p[i] * noise);
            b[i][s] =
                reference[s] * (1 - 0.05 * p[i] + p[i] * noise + 0.002 * p[i] * kvd_rng_normal(r));
        }
    }
}

/* The accuracy, relative to no compression, falls to 0.98 at p = 0.2 for method a and at p = 0.4
 * for method b, where p is the fraction that is removed of the cache. */
TEST(test_pairing_and_coverage)
{
    enum { TRIALS = 60 };
    const double p[POINTS] = {0.1, 0.3, 0.5, 0.7, 0.9};
    const size_t first[3] = {0, SEQUENCES / 3, SEQUENCES};
    double reference[SEQUENCES], a[POINTS][SEQUENCES], b[POINTS][SEQUENCES];
    const double *ra[POINTS], *rb[POINTS];
    kvd_rng r;
    kvd_rng_seed(&r, 5, 0);
    int held = 0;
    for (int i = 0; i < POINTS; i++) {
        ra[i] = a[i];
        rb[i] = b[i];
    }
    const kvd_target_curve ca = {POINTS, p, ra}, cb = {POINTS, p, rb};
    for (int t = 0; t < TRIALS; t++) {
        kvd_target_difference_result d, same, again;
        kvd_err err;
        simulate(&r, reference, a, b, p);
        OK(kvd_target_difference(&ca, &cb, reference, first, 2, 0.98, (uint64_t)t, &d, &err));
        assert_true(d.a.lo <= d.a.value && d.a.value <= d.a.hi &&
                    d.difference.value == d.b.value - d.a.value);
        held += d.a.lo <= 0.2 && 0.2 <= d.a.hi;
        if (t)
            continue;
        OK(kvd_target_difference(&ca, &ca, reference, first, 2, 0.98, 1, &same, &err));
        assert_true(same.difference.value == 0 && same.difference.lo == 0 &&
                    same.difference.hi == 0);
        OK(kvd_target_difference(&cb, &ca, reference, first, 2, 0.98, 0, &again, &err));
        assert_true(again.difference.value == -d.difference.value && again.a.lo == d.b.lo);
        assert_true(fabs(again.difference.lo + d.difference.hi) < 1e-12);
    }
    assert_in_range(held, TRIALS * 85 / 100, TRIALS);
}

TEST(test_refuses)
{
    const double p[1] = {0.5}, right[2] = {1, 1}, wrong[2] = {1, 0};
    const double *const row[1] = {right};
    const size_t first[3] = {0, 1, 2};
    const kvd_target_curve one = {1, p, row}, none = {0};
    kvd_target_difference_result d;
    kvd_err err;
    assert_int_equal(kvd_target_difference(&one, &none, right, first, 2, 0.9, 1, &d, &err), -1);
    assert_non_null(strstr(err.msg, "no point of a method was evaluated"));
    FAILS(kvd_target_difference(&one, &one, wrong, first, 2, 0.9, 1, &d, &err),
          "the uncompressed model predicts no token of text 1 right");
}

TEST_MAIN(NULL, NULL)
