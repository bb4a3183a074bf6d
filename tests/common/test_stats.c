#include <math.h>

#include "common/rng.h"
#include "common/stats.h"
#include "unit.h"

/* The PCG authors' demonstration program prints these numbers for seed 42, stream 54. */
TEST(test_published_sequence)
{
    static const uint64_t want[6] = {0x86b1da1d72062b68u, 0x1304aa46c9853d39u, 0xa3670e9e0dd50358u,
                                     0xf9090e529a7dae00u, 0xc85b9fd837996f2cu, 0x606121f8e3919196u};
    kvd_rng r = {.state = 0, .inc = 54u << 1 | 1u};
    (void)kvd_rng_u64(&r);
    r.state += 42u;
    (void)kvd_rng_u64(&r);
    for (int i = 0; i < 6; i++)
        assert_true(kvd_rng_u64(&r) == want[i]);
}

/* The expected numbers were computed with NumPy's PCG64. */
TEST(test_seeding)
{
    static const uint64_t want[4] = {0x37ed2b54a5083b51u, 0x715b4b62b44a5905u, 0x589f405473706604u,
                                     0xc904fe30f155a5bdu};
    kvd_rng r, other;
    kvd_rng_seed(&r, 12345, 7);
    for (int i = 0; i < 4; i++)
        assert_true(kvd_rng_u64(&r) == want[i]);
    for (uint64_t seed = 0; seed < 50; seed++)
        for (uint64_t stream = 0; stream < 2; stream++) {
            kvd_rng_seed(&r, seed, stream);
            kvd_rng_seed(&other, seed + 1 - stream, 1 - stream);
            const uint64_t difference = kvd_rng_u64(&r) ^ kvd_rng_u64(&other);
            const int bits = __builtin_popcountll(difference);
            assert_true(bits > 8 && bits < 56);
        }
}

TEST(test_below)
{
    kvd_rng r;
    kvd_rng_seed(&r, 1, 0);
    for (int i = 0; i < 100; i++)
        assert_int_equal(kvd_rng_below(&r, 1), 0);
    /* Draws N numbers 0 .. 6. Chi-square (6 degrees of freedom) of their counts must be below its
     * 99.99 % quantile, 27.9. */
    enum { N = 70000 };
    double cell[7] = {0}, chi2 = 0;
    for (int i = 0; i < N; i++) {
        const uint64_t k = kvd_rng_below(&r, 7);
        assert_true(k < 7);
        cell[k]++;
    }
    for (int k = 0; k < 7; k++)
        chi2 += (cell[k] - N / 7.0) * (cell[k] - N / 7.0) / (N / 7.0);
    assert_true(chi2 < 27.9);
    /* If random 64-bit numbers were taken modulo n, the lower third of the results would occur
     * twice as often as the others. */
    const uint64_t n = 0xc000000000000000u;
    double sum = 0;
    for (int i = 0; i < N; i++) {
        const uint64_t k = kvd_rng_below(&r, n);
        assert_true(k < n);
        sum += (double)k / (double)n;
    }
    assert_true(fabs(sum / N - 0.5) < 5 * sqrt(1.0 / 12 / N));
}

TEST(test_uniform_and_normal)
{
    enum { N = 200000 };
    kvd_rng r;
    kvd_rng_seed(&r, 2, 0);
    double sum = 0;
    for (int i = 0; i < N; i++) {
        const double u = kvd_rng_uniform(&r);
        assert_true(u >= 0 && u < 1);
        sum += u;
    }
    assert_true(fabs(sum / N - 0.5) < 5 * sqrt(1.0 / 12 / N));
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
    int beyond = 0;
    for (int i = 0; i < N; i++) {
        const double z = kvd_rng_normal(&r);
        m1 += z;
        m2 += z * z;
        m3 += z * z * z;
        m4 += z * z * z * z;
        beyond += fabs(z) > 1.959964;
    }
    assert_true(fabs(m1 / N) < 5 / sqrt(N));
    assert_true(fabs(m2 / N - 1) < 5 * sqrt(2.0 / N));
    assert_true(fabs(m3 / N) < 5 * sqrt(15.0 / N));
    assert_true(fabs(m4 / N - 3) < 5 * sqrt(96.0 / N));
    assert_true(fabs((double)beyond / N - 0.05) < 5 * sqrt(0.05 * 0.95 / N));
}

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
    assert_true(isnan(kvd_cv(x, 1)));
    near(kvd_mad(x, 8), 0.5);
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
    OK(kvd_bootstrap_ratio(num, den, N, 200, 1, &v, &err));
    near(v.value, 0.5);
    near(v.lo, 0.5);
    near(v.hi, 0.5);
    for (size_t n = 1; n < N; n++) {
        OK(kvd_bootstrap_ratio(num, den, n, 200, 1, &v, &err));
        near(v.value, 0.5);
        assert_true(isnan(v.lo) && isnan(v.hi));
    }
    const double other[] = {2, 2, 9, 1, 4, 7, 3, 30};
    OK(kvd_bootstrap_ratio(num, other, N, 500, 3, &v, &err));
    OK(kvd_bootstrap_ratio(num, other, N, 500, 3, &w, &err));
    assert_true(v.lo == w.lo && v.hi == w.hi && v.lo < v.value && v.value < v.hi);
    FAILS(kvd_bootstrap_ratio(num, zero, N, 10, 1, &v, &err), "the ratio 36 / 0 is not a number");
    assert_int_equal(kvd_bootstrap_ratio(num, den, 0, 10, 1, &v, &err), -1);
    OK(kvd_bootstrap_ratio(num, last_one, N, 1000, 1, &v, &err));
    near(v.value, 36);
    assert_true(isnan(v.lo) && isnan(v.hi));
}

/* About 95 of 100 bootstrap confidence intervals must contain the true ratio. */
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
        OK(kvd_bootstrap_ratio(num, den, CLUSTERS, 400, (uint64_t)t, &v, &err));
        inside += v.lo <= 3 && 3 <= v.hi;
    }
    if (inside < 0.90 * TRIALS || inside > 0.985 * TRIALS)
        fail_msg("%d of %d intervals hold the truth", inside, TRIALS);
}

TEST(test_bootstrap_strata)
{
    enum { N = KVD_BOOTSTRAP_CLUSTERS };
    const double num[] = {1, 2, 3, 4, 5, 9, 9, 9}, den[] = {2, 4, 6, 8, 10, 10, 10, 10};
    const double other[] = {2, 2, 9, 1, 7, 10, 10, 10};
    const size_t two[] = {0, 5, N}, one[] = {0, N}, alone[] = {0, 7, N}, hollow[] = {0, 0, N};
    const size_t few[] = {0, 2, N - 1};
    kvd_interval v, w;
    OK(kvd_bootstrap_strata(num, den, two, 2, 300, 1, &v, &err));
    /* mean of the ratios 15 / 30 of the first stratum and 27 / 30 of the second stratum */
    near(v.value, (0.5 + 0.9) / 2);
    near(v.lo, v.value);
    near(v.hi, v.value);
    OK(kvd_bootstrap_strata(num, other, one, 1, 300, 7, &v, &err));
    OK(kvd_bootstrap_ratio(num, other, N, 300, 7, &w, &err));
    assert_true(v.value == w.value && v.lo == w.lo && v.hi == w.hi && v.lo < v.hi);
    OK(kvd_bootstrap_strata(num, den, alone, 2, 300, 1, &v, &err));
    assert_true(isnan(v.lo) && isnan(v.hi));
    near(v.value, (33.0 / 50 + 0.9) / 2);
    OK(kvd_bootstrap_strata(num, den, few, 2, 300, 1, &v, &err));
    assert_true(isfinite(v.value) && isnan(v.lo) && isnan(v.hi));
    FAILS(kvd_bootstrap_strata(num, den, hollow, 2, 300, 1, &v, &err),
          "stratum 0 has no cluster to draw from");
}

TEST_MAIN(NULL, NULL)
