/*
 * Tests of the difference between the compressions at which two methods fall below a target
 * accuracy. p is the fraction of dimensions that is removed.
 */
#include <math.h>
#include <string.h>

#include "common/rng.h"
#include "evaluate/target.h"
#include "unit.h"

TEST(test_crossing_by_hand)
{
    const double p[3] = {0.2, 0.4, 0.6}, falls[3] = {1, 0.98, 0.9}, first[3] = {0.98, 0.99, 0.9},
                 never[3] = {1, 0.995, 0.991}, at[3] = {0.995, 0.99, 0.97},
                 back[3] = {1.01, 0.985, 0.995};
    assert_true(fabs(kvd_target_crossing(p, falls, 3, 0.99) - 0.3) < 1e-15);
    /*
     * Without a p below 0.2, the curve starts at p = 0 with accuracy 1. It crosses the target
     * halfway to p = 0.2.
     */
    assert_true(fabs(kvd_target_crossing(p, first, 3, 0.99) - 0.1) < 1e-15);
    assert_true(kvd_target_crossing(p, never, 3, 0.99) == 0.6);
    assert_true(kvd_target_crossing(p, at, 3, 0.99) == 0.4);
    assert_true(fabs(kvd_target_crossing(p, back, 3, 0.99) - (0.2 + 0.2 * 0.02 / 0.025)) < 1e-15);
    assert_true(kvd_target_crossing(p, falls, 3, 1) == 0.2);
}

enum { SEQUENCES = 60, POINTS = 5 };

/*
 * Simulates the numbers of right predictions of two methods. The accuracy of method b falls half as
 * fast with p as that of a. Both methods share random noise per sequence, which must cancel.
 */
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

/* By construction, method a falls below the target 0.98 at p = 0.2 and method b at p = 0.4. */
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
        assert_int_equal(
            kvd_target_difference(&ca, &cb, reference, first, 2, 0.98, (uint64_t)t, &d, &err), 0);
        assert_true(d.a.lo <= d.a.value && d.a.value <= d.a.hi &&
                    d.difference.value == d.b.value - d.a.value);
        held += d.a.lo <= 0.2 && 0.2 <= d.a.hi;
        if (t)
            continue;
        assert_int_equal(kvd_target_difference(&ca, &ca, reference, first, 2, 0.98, 1, &same, &err),
                         0);
        assert_true(same.difference.value == 0 && same.difference.lo == 0 &&
                    same.difference.hi == 0);
        assert_int_equal(
            kvd_target_difference(&cb, &ca, reference, first, 2, 0.98, 0, &again, &err), 0);
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
    assert_int_equal(kvd_target_difference(&one, &one, wrong, first, 2, 0.9, 1, &d, &err), -1);
    assert_string_equal(err.msg, "the uncompressed model predicts no token of text 1 right");
}

TEST_MAIN(NULL, NULL)
