/* Tests the method minicache, which merges two layers, and the method xkv, which decomposes several
 * layers together. */
#include <lapacke.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "methods/layers/layers.h"
#include "unit.h"
#include "worst.h"

enum { LAYERS = 3, N = 40, HEADS = 2, D = 12, WIDTH = HEADS * D, WIDE = LAYERS * WIDTH };
static float before[LAYERS][N * WIDTH], after[LAYERS][N * WIDTH];

static void fill(void)
{
    kvd_rng r;
    kvd_rng_seed(&r, 3, 1);
    for (size_t i = 0; i < (size_t)N * WIDTH; i++) {
        before[0][i] = (float)kvd_rng_normal(&r);
        for (size_t l = 1; l < LAYERS; l++) /* each layer resembles the preceding one */
            before[l][i] = before[l - 1][i] * 1.5f + (float)kvd_rng_normal(&r);
    }
    memset(before[0] + 5 * D, 0, D * sizeof(float)); /* a zero vector has no direction */
    for (size_t i = 7 * D; i < 8 * D; i++)           /* opposite directions in both layers */
        before[1][i] = -2 * before[0][i];
}

static kvd_layers_count merge(const kvd_layers_method *m, kvd_parameter_values v, kvd_side side,
                              size_t n, int n_layers)
{
    float *x[LAYERS];
    kvd_layers_count count = {NAN, NAN};
    kvd_err err = {""};
    fill();
    memcpy(after, before, sizeof before);
    for (int l = 0; l < LAYERS; l++)
        x[l] = after[l];
    const kvd_layers_block b = {
        .side = side, .n_layers = n_layers, .n = n, .heads = HEADS, .d = D, .x = x};
    OK(m->merge(&v, &b, &count, &err));
    return count;
}

static double length(const float *x)
{
    double s = 0;
    for (size_t i = 0; i < D; i++)
        s += (double)x[i] * (double)x[i];
    return sqrt(s);
}

static double turn(const float *x, const float *y)
{
    const double a = length(x), b = length(y);
    double most = 0;
    for (size_t i = 0; a > 0 && b > 0 && i < D; i++)
        most = worse(most, fabs((double)x[i] / a - (double)y[i] / b));
    return most;
}

/* The method minicache merges the directions of two layers' vectors but keeps their lengths. The
 * parameter gamma = 0 merges all vectors. */
TEST(lengths_are_kept)
{
    for (int i = 0; i <= 10; i++) {
        const kvd_parameter_values v = {.value = {0.5, i / 10.0, 0}};
        const kvd_layers_count c = merge(&kvd_layers_minicache, v, KVD_KEYS, N, 2);
        assert_true(c.numbers == (double)N * HEADS * (D + 2) && c.bits == (double)N * HEADS);
        for (size_t j = 0; j < (size_t)N * HEADS; j++)
            for (size_t l = 0; l < 2; l++) {
                const float *const was = before[l] + j * D, *const is = after[l] + j * D;
                assert_true(fabs(length(is) - length(was)) < 1e-5 * (1 + length(was)));
                if (l == 0 && j != 5)
                    assert_true(turn(is, after[1] + j * D) < 1e-5);
            }
    }
}

TEST(ends_of_the_arc)
{
    for (int t = 0; t < 2; t++) {
        const kvd_parameter_values v = {.value = {0.5, t, 0}};
        (void)merge(&kvd_layers_minicache, v, KVD_VALUES, N, 2);
        for (size_t j = 0; j < (size_t)N * HEADS; j++)
            assert_true(j == 5 || turn(after[1 - t] + j * D, before[t] + j * D) < 1e-5);
    }
    const kvd_parameter_values v = {.value = {0.5, 0.5, 0}};
    (void)merge(&kvd_layers_minicache, v, KVD_VALUES, N, 2);
    for (size_t j = 0; j < (size_t)N * HEADS; j++) {
        double dot[3] = {0, 0, 0};
        const float *const a = before[0] + j * D, *const b = before[1] + j * D,
                           *const e = after[1] + j * D;
        for (size_t i = 0; i < D; i++) {
            dot[0] += (double)a[i] * (double)b[i];
            dot[1] += (double)a[i] * (double)e[i];
            dot[2] += (double)b[i] * (double)e[i];
        }
        if (j == 5 || j == 7)
            continue;
        const double whole = acos(dot[0] / length(a) / length(b));
        assert_true(fabs(acos(dot[1] / length(a) / length(e)) - whole / 2) < 1e-3);
        assert_true(fabs(acos(dot[2] / length(b) / length(e)) - whole / 2) < 1e-3);
    }
}

TEST(the_widest_angles_stay)
{
    double angle[N * HEADS], lo = INFINITY, hi = -INFINITY;
    fill();
    for (size_t j = 0; j < (size_t)N * HEADS; j++) {
        double dot = 0;
        for (size_t i = 0; i < D; i++)
            dot += (double)before[0][j * D + i] * (double)before[1][j * D + i];
        angle[j] = j == 5 ? 0 : acos(dot / length(before[0] + j * D) / length(before[1] + j * D));
        lo = fmin(lo, angle[j]);
        hi = fmax(hi, angle[j]);
    }
    for (int g = 0; g <= 4; g++) {
        const kvd_parameter_values v = {.value = {0.5, 0.6, g / 4.0}};
        const kvd_layers_count c = merge(&kvd_layers_minicache, v, KVD_KEYS, N, 2);
        size_t kept = 0;
        for (size_t j = 0; j < (size_t)N * HEADS; j++) {
            const bool same = !memcmp(after[0] + j * D, before[0] + j * D, D * sizeof(float));
            if (angle[j] > hi - g / 4.0 * (hi - lo) + 1e-9)
                assert_true(same);
            else if (angle[j] < hi - g / 4.0 * (hi - lo) - 1e-9 && j != 5)
                assert_false(same);
            kept += !memcmp(after[0] + j * D, before[0] + j * D, D * sizeof(float)) &&
                    !memcmp(after[1] + j * D, before[1] + j * D, D * sizeof(float));
        }
        /* At the strictest limit on angles (g = 4), only the pair of vectors with the smallest
         * angle may be merged. */
        assert_true(g < 4 || kept + 1 >= (size_t)N * HEADS);
        assert_true(g > 0 || kept <= 1);
        const double merged = (2.0 * D * N * HEADS - c.numbers) / (D - 2);
        assert_true(fabs(merged - rint(merged)) < 1e-9 && merged >= 0);
    }
}

TEST(groups_of_layers)
{
    const kvd_config c = {.n_layers = 7};
    const kvd_parameter_values deep = {.value = {0.5, 0.6, 0.05}}, all = {.value = {0, 0.6, 0.05}},
                               four = {.value = {4}};
    const int want_deep[] = {1, 1, 1, 1, 2, 1, 1}, want_all[] = {2, 1, 2, 1, 2, 1, 1};
    for (int l = 0; l < 7; l++) {
        assert_int_equal(kvd_layers_minicache.group(&deep, &c, l), want_deep[l]);
        assert_int_equal(kvd_layers_minicache.group(&all, &c, l), want_all[l]);
    }
    assert_int_equal(kvd_layers_xkv.group(&four, &c, 0), 4);
    assert_int_equal(kvd_layers_xkv.group(&four, &c, 4), 3);
}

/* Computes the singular values of the matrix with a row per token and a column per dimension of all
 * heads and layers. */
static void singular_values(size_t n, double *sigma)
{
    double x[N * WIDE], superb[WIDE];
    for (size_t t = 0; t < n; t++)
        for (size_t l = 0; l < LAYERS; l++)
            for (size_t j = 0; j < WIDTH; j++)
                x[t * WIDE + l * WIDTH + j] = (double)before[l][t * WIDTH + j];
    assert_int_equal(LAPACKE_dgesvd(LAPACK_ROW_MAJOR, 'N', 'N', (lapack_int)n, WIDE, x, WIDE, sigma,
                                    NULL, 1, NULL, 1, superb),
                     0);
}

static double error2(size_t n)
{
    double sum = 0;
    for (size_t l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < n * WIDTH; i++)
            sum += pow((double)after[l][i] - (double)before[l][i], 2);
    return sum;
}

/* Tests that xkv has the least possible squared error at its rank: the sum of the removed squared
 * singular values. */
TEST(the_tail_is_lost)
{
    for (size_t n = 10; n <= N; n += 30) {
        double sigma[N];
        fill();
        singular_values(n, sigma);
        for (size_t r = 1; r <= n; r += 3) {
            const kvd_parameter_values v = {.value = {LAYERS, (double)r, (double)r}};
            const kvd_layers_count c =
                merge(&kvd_layers_xkv, v, r % 2 ? KVD_KEYS : KVD_VALUES, n, LAYERS);
            double tail = 0, all = 0;
            for (size_t i = 0; i < n; i++) {
                all += sigma[i] * sigma[i];
                tail += i >= r ? sigma[i] * sigma[i] : 0;
            }
            assert_true(c.numbers == (double)(n * r + r * WIDE) && c.bits == 0);
            assert_true(fabs(error2(n) - tail) < 1e-6 * all);
        }
    }
}

TEST(full_rank_is_the_identity)
{
    const kvd_parameter_values whole = {.value = {LAYERS, 1000, 1000}},
                               share = {.value = {LAYERS, 0.999, 0.999}};
    (void)merge(&kvd_layers_xkv, whole, KVD_KEYS, N, LAYERS);
    assert_true(error2(N) < 1e-8 * N * WIDE);
    (void)merge(&kvd_layers_xkv, share, KVD_VALUES, N, LAYERS);
    assert_true(error2(N) < 1e-8 * N * WIDE);
}

/* If the matrix X of the method xkv has fewer columns than rows, xkv decomposes X^T X instead of X
 * X^T. */
TEST(one_narrow_layer)
{
    const kvd_parameter_values v = {.value = {1, 5, 5}};
    (void)merge(&kvd_layers_xkv, v, KVD_KEYS, N, 1);
    double x[N * WIDTH], sigma[WIDTH], superb[WIDTH], tail = 0, lost = 0;
    for (size_t i = 0; i < (size_t)N * WIDTH; i++) {
        x[i] = (double)before[0][i];
        lost += pow((double)after[0][i] - x[i], 2);
    }
    assert_int_equal(LAPACKE_dgesvd(LAPACK_ROW_MAJOR, 'N', 'N', N, WIDTH, x, WIDTH, sigma, NULL, 1,
                                    NULL, 1, superb),
                     0);
    for (size_t i = 5; i < WIDTH; i++)
        tail += sigma[i] * sigma[i];
    assert_true(fabs(lost - tail) < 1e-5 * tail);
}

TEST_MAIN(NULL, NULL)
