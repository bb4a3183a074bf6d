#include <math.h>

#include "common/rng.h"
#include "unit.h"

/* Numbers that the demonstration program of PCG's authors prints, with seed 42 and stream 54. */
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

/* Numbers of NumPy's PCG64 from the state that splitmix64 gives for seed 12345 and stream 7. */
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
    /* 99.99 % of chi-square values with 6 degrees of freedom are below 27.9. */
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
    /*
     * n is three quarters of the range of 64 bits. If results were remainders modulo n, those in
     * the lower third would be twice as frequent.
     */
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

TEST_MAIN(NULL, NULL)
