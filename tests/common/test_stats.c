#include <math.h>

#include "common/rng.h"
#include "common/stats.h"
#include "unit.h"

static kvd_err err;

static void near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-12 * (1 + fabs(b))))
        fail_msg("%.17g is not %.17g", a, b);
}

TEST(test_known_answers)
{
    const double x[] = {2, 4, 4, 4, 5, 5, 7, 9};
    near(kvd_mean(x, 8), 5);
    near(kvd_stddev(x, 8), sqrt(32.0 / 7));
    near(kvd_cv(x, 8), sqrt(32.0 / 7) / 5);
    near(kvd_stddev(x, 1), 0);
    near(kvd_mad(x, 8), 0.5);
    /* Equal numbers far from zero must have standard deviation 0. */
    const double c[] = {1e9 + 0.5, 1e9 + 0.5, 1e9 + 0.5};
    near(kvd_stddev(c, 3), 0);
    const double u[] = {3, 1, 2, 4};
    near(kvd_quantile(u, 4, 0), 1);
    near(kvd_quantile(u, 4, 1), 4);
    near(kvd_quantile(u, 4, 0.5), 2.5);
    near(kvd_quantile(u, 4, 0.25), 1.75);
    near(kvd_quantile(u, 1, 0.7), 3);
    assert_true(u[0] == 3);
}

TEST(test_not_numbers)
{
    const double x[] = {1, NAN, 3};
    assert_true(isnan(kvd_quantile(x, 3, 0.5)));
    assert_true(isnan(kvd_mad(x, 3)));
    assert_true(isnan(kvd_mean(x, 3)));
    assert_true(isnan(kvd_quantile(x, 0, 0.5)));
    assert_true(isnan(kvd_quantile(x, 1, 1.5)));
    assert_true(isnan(kvd_mean(x, 0)));
}

TEST(test_bootstrap_shape)
{
    enum { N = KVD_BOOTSTRAP_CLUSTERS };
    const double num[] = {1, 2, 3, 4, 5, 6, 7, 8}, den[] = {2, 4, 6, 8, 10, 12, 14, 16};
    const double zero[N] = {0}, last_one[N] = {[N - 1] = 1};
    kvd_interval v, w;
    /* All clusters have the same ratio, so both ends of the interval must equal it. */
    assert_int_equal(kvd_bootstrap_ratio(num, den, N, 200, 1, &v, &err), 0);
    near(v.value, 0.5);
    near(v.lo, 0.5);
    near(v.hi, 0.5);
    /* With fewer than KVD_BOOTSTRAP_CLUSTERS clusters the interval must be NaN. */
    for (size_t n = 1; n < N; n++) {
        assert_int_equal(kvd_bootstrap_ratio(num, den, n, 200, 1, &v, &err), 0);
        near(v.value, 0.5);
        assert_true(isnan(v.lo) && isnan(v.hi));
    }
    const double other[] = {2, 2, 9, 1, 4, 7, 3, 30};
    assert_int_equal(kvd_bootstrap_ratio(num, other, N, 500, 3, &v, &err), 0);
    assert_int_equal(kvd_bootstrap_ratio(num, other, N, 500, 3, &w, &err), 0);
    assert_true(v.lo == w.lo && v.hi == w.hi && v.lo < v.value && v.value < v.hi);
    assert_int_equal(kvd_bootstrap_ratio(num, zero, N, 10, 1, &v, &err), -1);
    assert_string_equal(err.msg, "the ratio 36 / 0 is not a number");
    assert_int_equal(kvd_bootstrap_ratio(num, den, 0, 10, 1, &v, &err), -1);
    /* A resample without the last cluster has the denominator 0. */
    assert_int_equal(kvd_bootstrap_ratio(num, last_one, N, 1000, 1, &v, &err), 0);
    near(v.value, 36);
    assert_true(isnan(v.lo) && isnan(v.hi));
}

/* About 95 of 100 intervals must contain the true value, although tokens are correlated. */
TEST(test_bootstrap_coverage)
{
    enum { TRIALS = 400, CLUSTERS = 60 };
    kvd_rng r;
    kvd_rng_seed(&r, 11, 0);
    int inside = 0;
    for (int t = 0; t < TRIALS; t++) {
        double num[CLUSTERS], den[CLUSTERS];
        kvd_interval v;
        for (int i = 0; i < CLUSTERS; i++) {
            den[i] = 50 + (double)kvd_rng_below(&r, 101);
            num[i] = den[i] * (3 + 0.5 * kvd_rng_normal(&r));
        }
        assert_int_equal(kvd_bootstrap_ratio(num, den, CLUSTERS, 400, (uint64_t)t, &v, &err), 0);
        inside += v.lo <= 3 && 3 <= v.hi;
    }
    if (inside < 0.90 * TRIALS || inside > 0.985 * TRIALS)
        fail_msg("%d of %d intervals hold the truth", inside, TRIALS);
}

/* The result must be the mean of the strata's ratios, whatever the sizes of the strata. */
TEST(test_bootstrap_strata)
{
    enum { N = KVD_BOOTSTRAP_CLUSTERS };
    const double num[] = {1, 2, 3, 4, 5, 9, 9, 9}, den[] = {2, 4, 6, 8, 10, 10, 10, 10};
    const double other[] = {2, 2, 9, 1, 7, 10, 10, 10};
    const size_t two[] = {0, 5, N}, one[] = {0, N}, alone[] = {0, 7, N}, hollow[] = {0, 0, N};
    const size_t few[] = {0, 2, N - 1};
    kvd_interval v, w;
    assert_int_equal(kvd_bootstrap_strata(num, den, two, 2, 300, 1, &v, &err), 0);
    /* The strata have the ratios 0.5 and 0.9. One ratio over all clusters would be 42 / 60. */
    near(v.value, (0.5 + 0.9) / 2);
    /* All clusters of a stratum have the same ratio, so the interval has no width. */
    near(v.lo, v.value);
    near(v.hi, v.value);
    assert_int_equal(kvd_bootstrap_strata(num, other, one, 1, 300, 7, &v, &err), 0);
    assert_int_equal(kvd_bootstrap_ratio(num, other, N, 300, 7, &w, &err), 0);
    assert_true(v.value == w.value && v.lo == w.lo && v.hi == w.hi && v.lo < v.hi);
    assert_int_equal(kvd_bootstrap_strata(num, den, alone, 2, 300, 1, &v, &err), 0);
    assert_true(isnan(v.lo) && isnan(v.hi));
    near(v.value, (33.0 / 50 + 0.9) / 2);
    assert_int_equal(kvd_bootstrap_strata(num, den, few, 2, 300, 1, &v, &err), 0);
    assert_true(isfinite(v.value) && isnan(v.lo) && isnan(v.hi));
    assert_int_equal(kvd_bootstrap_strata(num, den, hollow, 2, 300, 1, &v, &err), -1);
    assert_string_equal(err.msg, "stratum 0 has no cluster to draw from");
}

TEST_MAIN(NULL, NULL)
