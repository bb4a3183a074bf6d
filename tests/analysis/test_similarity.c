#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/similarity.h"
#include "common/linalg.h"
#include "common/rng.h"
#include "unit.h"

enum { D = 64 };

static void basis(uint64_t stream, double *R)
{
    kvd_err err;
    OK(kvd_random_basis(D, 11, stream, R, &err));
    assert_true(kvd_orthogonality(R, D) < 1e-12);
}

static void random_signs(const double *A, double *B)
{
    kvd_rng rng;
    kvd_rng_seed(&rng, 5, 0);
    for (size_t j = 0; j < D; j++) {
        const double sign = kvd_rng_below(&rng, 2) ? 1 : -1;
        for (size_t i = 0; i < D; i++)
            B[i * D + j] = sign * A[i * D + j];
    }
}

TEST(test_identical)
{
    static double A[D * D];
    double overlap[D], sigma[D], energy[D];
    kvd_err err;
    basis(1, A);
    assert_true(kvd_delta(A, A, D) == 0 && kvd_delta_aligned(A, A, D) == 0);
    OK(kvd_overlap(A, A, D, overlap, &err));
    double all = 0, sum = 0;
    for (size_t i = 0; i < D; i++) {
        sigma[i] = pow(0.9, (double)i);
        all += sigma[i] * sigma[i];
    }
    OK(kvd_energy_kept(A, A, sigma, D, energy, &err));
    for (size_t m = 0; m < D; m++) {
        sum += sigma[m] * sigma[m];
        assert_true(fabs(overlap[m] - 1) < 1e-12);
        assert_true(fabs(energy[m] - sum / all) < 1e-12);
    }
}

TEST(test_mean_abs_by_hand)
{
    const double A[4] = {0.6, 0.8, 0.8, -0.6}, B[4] = {0.6, -0.8, 0.8, 0.6};
    assert_true(fabs(kvd_mean_abs(A, 2) - 0.7) < 1e-15);
    assert_true(fabs(kvd_delta(A, B, 2) - 0.7) < 1e-15);
    assert_true(fabs(kvd_delta_aligned(A, B, 2)) < 1e-15);
    const double I[4] = {1, 0, 0, 1}, swap[4] = {0, 1, 1, 0};
    double overlap[2], energy[2];
    const double sigma[2] = {2, 1};
    kvd_err err;
    OK(kvd_overlap(I, swap, 2, overlap, &err));
    assert_true(fabs(overlap[0]) < 1e-15 && fabs(overlap[1] - 1) < 1e-15);
    OK(kvd_energy_kept(I, swap, sigma, 2, energy, &err));
    assert_true(fabs(energy[0] - 0.2) < 1e-15 && fabs(energy[1] - 1) < 1e-15);
    const double none[2] = {0, 0};
    OK(kvd_energy_kept(I, swap, none, 2, energy, &err));
    assert_true(energy[0] == 1 && energy[1] == 1);
}

/* Compares a rotation (orthogonal matrix) with itself under random signs of its columns, and with
 * an unrelated rotation. */
TEST(test_signs_and_unrelated)
{
    static double A[D * D], B[D * D], C[D * D];
    double overlap[D];
    kvd_err err;
    basis(1, A);
    random_signs(A, B);
    const double epsilon = kvd_mean_abs(A, D);
    assert_true(fabs(kvd_mean_abs(B, D) - epsilon) < 1e-15);
    assert_true(fabs(kvd_delta(A, B, D) / epsilon - 1) < 0.25);
    assert_true(kvd_delta_aligned(A, B, D) < 1e-15);
    OK(kvd_overlap(A, B, D, overlap, &err));
    for (size_t m = 0; m < D; m++)
        assert_true(fabs(overlap[m] - 1) < 1e-12);

    basis(2, C);
    assert_true(fabs(kvd_delta(A, C, D) / epsilon - sqrt(2)) < 0.05);
    assert_true(kvd_delta_aligned(A, C, D) < kvd_delta(A, C, D));
    OK(kvd_overlap(A, C, D, overlap, &err));
    assert_true(fabs(overlap[D / 2 - 1] - 0.5) < 0.05);
    assert_true(fabs(overlap[D - 1] - 1) < 1e-12);
}

TEST(test_energy_is_that_of_the_data)
{
    enum { N = 200, d = 5 };
    double X[N * d], sigma[d], R[d * d], A[d * d], energy[d], s[d];
    kvd_rng rng;
    kvd_err err;
    kvd_rng_seed(&rng, 1, 1);
    for (size_t i = 0; i < N * d; i++)
        X[i] = kvd_rng_normal(&rng) * (double)(1 + i % d);
    OK(kvd_svd_right(X, N, d, sigma, R, &err));
    for (size_t i = 0; i < d * d; i++)
        A[i] = kvd_rng_normal(&rng);
    double Z[d * d];
    memcpy(Z, A, sizeof Z);
    OK(kvd_svd_right(Z, d, d, s, A, &err));
    OK(kvd_energy_kept(A, R, sigma, d, energy, &err));
    double all = 0, kept = 0;
    for (size_t i = 0; i < N * d; i++)
        all += X[i] * X[i];
    for (size_t j = 0; j < d; j++) {
        for (size_t i = 0; i < N; i++) {
            double y = 0;
            for (size_t c = 0; c < d; c++)
                y += X[i * d + c] * A[c * d + j];
            kept += y * y;
        }
        assert_true(fabs(energy[j] - kept / all) < 1e-12);
        assert_true(energy[j] <= 1 + 1e-12);
    }
}

static void make_spectrum(kvd_spectrum *s, uint64_t stream)
{
    kvd_err err;
    *s = (kvd_spectrum){.model = {.n_layers = 2, .n_heads = 3, .n_kv_heads = 3, .d_head = D},
                        .n_layers = 2};
    snprintf(s->rope, sizeof s->rope, "after");
    OK(kvd_spectrum_alloc(s, KVD_PAIR_K, &err));
    for (int l = 0; l < 2; l++)
        for (int h = 0; h < 3; h++) {
            double *sigma = kvd_spectrum_sigma(s, KVD_PAIR_K, l, h);
            for (size_t i = 0; i < D; i++)
                sigma[i] = pow(0.9, (double)i);
            basis(stream + (uint64_t)(l * 3 + h), kvd_spectrum_R(s, KVD_PAIR_K, l, h));
        }
}

TEST(test_compare)
{
    kvd_spectrum s[3];
    kvd_comparison c, again;
    kvd_err err;
    make_spectrum(&s[0], 100);
    make_spectrum(&s[1], 100);
    make_spectrum(&s[2], 200);
    /* Gives the second spectrum the first spectrum's rotations, with the signs of random columns
     * flipped. */
    for (int h = 0; h < 3; h++) {
        static double A[D * D];
        for (int l = 0; l < 2; l++) {
            memcpy(A, kvd_spectrum_R(&s[0], KVD_PAIR_K, l, h), sizeof A);
            random_signs(A, kvd_spectrum_R(&s[1], KVD_PAIR_K, l, h));
        }
    }
    const char *path[3] = {"a", "b", "c"};
    OK(kvd_comparable(s, path, 3, &err));
    OK(kvd_compare(s, 3, KVD_PAIR_K, 1, &c, &err));
    assert_true(c.n_others == 2 && c.n_files == 3 && c.d == D);
    assert_true(fabs(c.delta[0] / c.epsilon[0] - 1) < 0.1 && c.delta_aligned[0] < 1e-12);
    assert_true(fabs(c.delta[1] / c.epsilon[1] - sqrt(2)) < 0.05);
    assert_true(fabs(c.overlap[D / 2 - 1] - 1) < 1e-12 &&
                fabs(c.overlap[D + D / 2 - 1] - 0.5) < 0.05);

    double own = 0, all = 0;
    for (size_t i = 0; i < D; i++)
        all += pow(0.81, (double)i);
    for (size_t i = 0; i < D / 2; i++)
        own += pow(0.81, (double)i) / all;
    for (size_t a = 0; a < 3; a++) {
        assert_true(fabs(c.energy_kept_half[a * 3 + a] - own) < 1e-12);
        assert_true(c.delta_over_epsilon[a * 3 + a] == 0 &&
                    fabs(c.overlap_half[a * 3 + a] - 1) < 1e-12);
        assert_true(fabs(c.random[0][a] - sqrt(2)) < 0.05 && fabs(c.random[2][a] - 0.5) < 0.05);
        assert_true(fabs(c.random[3][a] - 0.5) < 0.1);
        for (size_t b = 0; b < 3; b++) {
            assert_true(fabs(c.overlap_half[a * 3 + b] - c.overlap_half[b * 3 + a]) < 1e-12);
            assert_true(c.energy_kept_half[a * 3 + b] <= own + 1e-12);
        }
    }
    assert_true(fabs(c.energy_own[D / 2 - 1] - own) < 1e-12);
    assert_true(c.delta_over_epsilon[0 * 3 + 2] == c.delta[1] / c.epsilon[1]);
    assert_true(fabs(c.energy_kept[D + D / 2 - 1] - c.energy_kept_half[0 * 3 + 2]) < 1e-12);
    double mean = 0;
    for (size_t i = 0; i < 6; i++)
        mean += c.head_delta[6 + i] / 6;
    assert_true(fabs(mean - c.delta[1]) < 1e-15);

    OK(kvd_compare(s, 3, KVD_PAIR_K, 1, &again, &err));
    assert_memory_equal(again.energy_kept_half, c.energy_kept_half, 9 * sizeof(double));
    kvd_comparison_release(&again);
    kvd_comparison_release(&c);

    s[2].pairing = KVD_PER_QUERY;
    FAILS(kvd_comparable(s, path, 3, &err), "'a' has pairing shared, 'c' per-query");
    s[2].pairing = KVD_SHARED;
    snprintf(s[1].rope, sizeof s[1].rope, "before");
    FAILS(kvd_comparable(s, path, 3, &err), "'a' has Q and K after RoPE, 'b' before");
    s[1].model.d_head = 32;
    FAILS_WITH(kvd_comparable(s, path, 3, &err), "d_head is 64 and 32");
    s[1].model.d_head = D;
    for (int i = 0; i < 3; i++)
        kvd_spectrum_release(&s[i]);
}

TEST_MAIN(NULL, NULL)
