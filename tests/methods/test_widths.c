/* Tests Eq. 6 of the ZACK paper, which chooses how many dimensions each head keeps. Removed
 * singular values may sum to at most r times the sum of all the head's singular values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/widths.h"
#include "unit.h"

static const kvd_pair pairs[2] = {KVD_PAIR_QK, KVD_PAIR_VW};

TEST(test_keep_by_hand)
{
    /* Singular values with the sum 10. The sums of the i-th and all later values, divided by 10,
     * are 1, 0.6, 0.3 and 0.1. */
    const double s[4] = {4, 3, 2, 1};
    const double r[] = {0, 0.09, 0.1, 0.11, 0.29, 0.31, 0.61, nextafter(1, 0), nextafter(0.1, 0)};
    const int kept[] = {4, 4, 3, 3, 3, 2, 1, 1, 4};
    for (int i = 0; i < 9; i++)
        assert_int_equal(kvd_keep(s, 4, r[i], false), kept[i]);
    /* The squares have the sum 30. The sums of the i-th and all later squares, divided by 30, are
     * 1, 14/30, 5/30 and 1/30. */
    assert_int_equal(kvd_keep(s, 4, 0.04, true), 3);
    assert_int_equal(kvd_keep(s, 4, 0.17, true), 2);
    assert_int_equal(kvd_keep(s, 4, 0.47, true), 1);
}

TEST(test_keep_at_the_limits)
{
    const double zeros[3] = {0, 0, 0}, some[4] = {2, 1, 0, 0}, one[1] = {5};
    assert_int_equal(kvd_keep(zeros, 3, 0, false), 1);
    assert_int_equal(kvd_keep(some, 4, 0, false), 2); /* r = 0 removes only singular values of 0 */
    assert_int_equal(kvd_keep(one, 1, 0, false), 1);
    assert_int_equal(kvd_keep(one, 1, 0.999, true), 1);
}

/* Removes as many of the smallest singular values as sum to at most r times the sum of s [d].
 * Returns how many are kept. */
static int keep_dims(const double *s, size_t d, double r)
{
    double all = 0, acc = 0;
    for (size_t i = 0; i < d; i++)
        all += s[d - 1 - i];
    size_t j = d - 1;
    while (j > 0 && (acc + s[j]) / all <= r)
        acc += s[j--];
    return (int)j + 1;
}

static uint64_t seed = 3;
static double uniform(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 11) / 9007199254740992.0;
}

TEST(test_keep_falls_with_r)
{
    enum { D = 64 };
    for (int trial = 0; trial < 50; trial++) {
        double s[D];
        s[0] = 1;
        for (size_t i = 1; i < D; i++)
            s[i] = s[i - 1] * (0.8 + 0.2 * uniform());
        int last = D;
        for (double r = 0; r < 1; r += 1.0 / 128) {
            const int kept = kvd_keep(s, D, r, false);
            assert_int_equal(kept, keep_dims(s, D, r));
            assert_true(kept >= 1 && kept <= last);
            last = kept;
        }
    }
}

enum { L = 3, H = 2, D = 16 };

static void make_spectrum(kvd_spectrum *s)
{
    kvd_err err;
    *s = (kvd_spectrum){.model = {.n_layers = L, .n_heads = 2 * H, .n_kv_heads = H, .d_head = D},
                        .n_layers = L};
    for (int side = 0; side < 2; side++) {
        assert_int_equal(kvd_spectrum_alloc(s, pairs[side], &err), 0);
        for (int l = 0; l < L; l++)
            for (int h = 0; h < H; h++) {
                double *sigma = kvd_spectrum_sigma(s, pairs[side], l, h);
                sigma[0] = 1;
                for (size_t i = 1; i < D; i++)
                    sigma[i] = sigma[i - 1] * (0.5 + 0.5 * uniform());
            }
    }
    memset(kvd_spectrum_sigma(s, KVD_PAIR_QK, 1, 1) + 3, 0, (D - 3) * sizeof(double));
    memset(kvd_spectrum_sigma(s, KVD_PAIR_VW, 2, 0), 0, D * sizeof(double));
}

TEST(test_table_is_exact)
{
    kvd_spectrum s;
    kvd_err err;
    make_spectrum(&s);
    for (int energy = 0; energy < 2; energy++) {
        double *r, *p;
        size_t n;
        assert_int_equal(kvd_rate_table(&s, pairs, energy, &r, &p, &n, &err), 0);
        assert_true(r[0] == 0 && n > 2);
        for (size_t i = 0; i < n; i++) {
            kvd_widths w;
            assert_true(r[i] < 1 && (i == 0 || (r[i] > r[i - 1] && p[i] > p[i - 1])));
            assert_int_equal(kvd_widths_eq6(&s, pairs, r[i], energy, &w, &err), 0);
            assert_true(kvd_widths_p(&w, 0) == p[i]);
            kvd_widths_release(&w);
            /* r[i] must be the smallest value of the parameter r that removes the fraction p[i] of
             * dimensions. */
            if (i > 0) {
                OK(kvd_widths_eq6(&s, pairs, nextafter(r[i], 0), energy, &w, &err));
                assert_true(kvd_widths_p(&w, 0) == p[i - 1]);
                kvd_widths_release(&w);
            }
            double back;
            assert_int_equal(kvd_table_r_for(r, p, n, p[i], &back, &err), 0);
            assert_true(back == r[i]);
            if (i > 0) {
                assert_int_equal(kvd_table_r_for(r, p, n, (p[i - 1] + p[i]) / 2, &back, &err), 0);
                assert_true(back == r[i]);
            }
        }
        assert_true(fabs(p[0] - 28.0 / (2 * L * H * D)) < 1e-15);
        assert_true(fabs(p[n - 1] - (1 - 1.0 / D)) < 1e-15);
        free(r);
        free(p);
    }
    kvd_spectrum_release(&s);
}

TEST(test_wanted_p)
{
    kvd_spectrum s;
    kvd_err err;
    make_spectrum(&s);
    double last_r = 0;
    for (double want = 0; want <= 0.93; want += 0.01) {
        kvd_widths w, below;
        double r;
        assert_int_equal(kvd_widths_for_p(&s, pairs, KVD_BOTH_SIDES, want, false, &r, &w, &err), 0);
        assert_true(kvd_widths_p(&w, 0) >= want - 1e-12 && r >= last_r);
        if (r > 0) {
            assert_int_equal(kvd_widths_eq6(&s, pairs, nextafter(r, 0), false, &below, &err), 0);
            assert_true(kvd_widths_p(&below, 0) < want);
            kvd_widths_release(&below);
        }
        kvd_widths_release(&w);
        last_r = r;
    }
    kvd_widths w;
    double r;
    OK(kvd_widths_for_p(&s, pairs, KVD_BOTH_SIDES, 15.0 / 16, false, &r, &w, &err));
    kvd_widths_release(&w);
    FAILS(kvd_widths_for_p(&s, pairs, KVD_BOTH_SIDES, 0.94, false, &r, &w, &err),
          "no removal rate reaches p = 0.94: the largest attainable is 0.9375, where "
          "one dimension of every head is kept");
    kvd_spectrum_release(&s);
}

TEST(test_one_side)
{
    kvd_spectrum s;
    kvd_err err;
    make_spectrum(&s);
    for (int side = 0; side < 2; side++)
        for (double want = 0; want <= 0.93; want += 0.03) {
            kvd_widths w, at, below;
            double r;
            assert_int_equal(kvd_widths_for_p(&s, pairs, side, want, false, &r, &w, &err), 0);
            assert_int_equal(kvd_widths_eq6(&s, pairs, r, false, &at, &err), 0);
            assert_memory_equal(w.kept[side], at.kept[side], (size_t)(L * H) * sizeof(int32_t));
            assert_true(kvd_widths_side_p(&w, side) >= want - 1e-12 &&
                        kvd_widths_side_p(&w, 1 - side) == 0);
            assert_true(fabs(kvd_widths_p(&w, 0) - kvd_widths_side_p(&w, side) / 2) < 1e-15);
            if (r > 0) {
                OK(kvd_widths_eq6(&s, pairs, nextafter(r, 0), false, &below, &err));
                assert_true(kvd_widths_side_p(&below, side) < want);
                kvd_widths_release(&below);
            }
            kvd_widths_release(&w);
            kvd_widths_release(&at);
        }
    kvd_widths w = {0};
    FAILS(kvd_widths_for_p(&s, pairs, 1, 0.94, false, NULL, &w, &err),
          "pair 'vw': no removal rate reaches p = 0.94: the largest attainable is 0.9375, where "
          "one dimension of every head is kept");
    kvd_spectrum_release(&s);
}

TEST(test_widths_need_kv_heads)
{
    kvd_spectrum s = {.model = {.n_layers = 1, .n_heads = 4, .n_kv_heads = 2, .d_head = 2},
                      .n_layers = 1,
                      .pairing = KVD_PER_QUERY};
    kvd_widths w;
    kvd_err err;
    FAILS(kvd_widths_eq6(&s, pairs, 0, false, &w, &err), "the spectrum has no pair 'qk'");
    assert_int_equal(kvd_spectrum_alloc(&s, KVD_PAIR_QK, &err), 0);
    FAILS(kvd_widths_eq6(&s, pairs, 0, false, &w, &err),
          "pair 'qk' has 4 rotations per layer for 2 KV heads: widths need pairing 'shared', "
          "this spectrum is 'per-query'");
    kvd_spectrum_release(&s);
}

TEST(test_by_loss_is_optimal)
{
    enum { SMALL = 4, HEADS = 4, ALL = SMALL * SMALL * SMALL * SMALL };
    static const kvd_pair fisher[2] = {KVD_PAIR_FQK, KVD_PAIR_FVW};
    kvd_err err;
    kvd_spectrum s = {.model = {.n_layers = 1, .n_heads = 2, .n_kv_heads = 2, .d_head = SMALL},
                      .n_layers = 1};
    double sigma[HEADS][SMALL];
    for (int h = 0; h < HEADS; h++) {
        if (h % 2 == 0)
            assert_int_equal(kvd_spectrum_alloc(&s, fisher[h / 2], &err), 0);
        sigma[h][0] = 1 + uniform();
        for (int j = 1; j < SMALL; j++)
            sigma[h][j] = sigma[h][j - 1] * uniform();
        memcpy(kvd_spectrum_sigma(&s, fisher[h / 2], 0, h % 2), sigma[h], sizeof sigma[h]);
    }
    for (int gone = 0; gone <= HEADS * (SMALL - 1); gone++) {
        double best = INFINITY, loss;
        for (int code = 0; code < ALL; code++) {
            double sum = 0;
            int cut = 0;
            for (int h = 0, rest = code; h < HEADS; h++, rest /= SMALL) {
                const int kept = 1 + rest % SMALL;
                cut += SMALL - kept;
                for (int j = kept; j < SMALL; j++)
                    sum += sigma[h][j] * sigma[h][j] / 2;
            }
            if (cut == gone)
                best = fmin(best, sum);
        }
        kvd_widths w;
        OK(kvd_widths_by_loss(&s, fisher, KVD_BOTH_SIDES, (double)gone / (HEADS * SMALL), &loss, &w,
                              &err));
        assert_true(fabs(loss - best) <= 1e-14 &&
                    kvd_widths_p(&w, 0) == (double)gone / (HEADS * SMALL));
        kvd_widths_release(&w);
    }
    for (int side = 0; side < 2; side++)
        for (int gone = 0; gone <= HEADS / 2 * (SMALL - 1); gone++) {
            kvd_widths one;
            double best = INFINITY, sum = 0;
            for (int first = 1; first <= SMALL; first++) {
                const int second = 2 * SMALL - gone - first;
                double left = 0;
                for (int h = 0; h < 2 && second >= 1 && second <= SMALL; h++)
                    for (int j = h ? second : first; j < SMALL; j++)
                        left += pow(sigma[2 * side + h][j], 2);
                best = second >= 1 && second <= SMALL ? fmin(best, left) : best;
            }
            OK(kvd_widths_by_loss(&s, fisher, side, (double)gone / (HEADS / 2 * SMALL), NULL, &one,
                                  &err));
            for (int h = 0; h < 2; h++)
                for (int j = one.kept[side][h]; j < SMALL; j++)
                    sum += pow(sigma[2 * side + h][j], 2);
            assert_true(fabs(sum - best) <= 1e-14 && kvd_widths_side_p(&one, 1 - side) == 0);
            assert_true(kvd_widths_side_p(&one, side) == (double)gone / (HEADS / 2 * SMALL));
            kvd_widths_release(&one);
        }
    kvd_widths w = {0};
    assert_int_equal(kvd_widths_by_loss(&s, fisher, KVD_BOTH_SIDES, 0.8, NULL, &w, &err), -1);
    assert_non_null(strstr(err.msg, "p = 0.8 is not attainable"));
    assert_int_equal(kvd_widths_by_loss(&s, pairs, KVD_BOTH_SIDES, 0.5, NULL, &w, &err), -1);
    assert_non_null(strstr(err.msg, "it requires pairs fqk and fvw"));
    kvd_spectrum_release(&s);
}

TEST(test_padding)
{
    kvd_err err;
    kvd_widths w;
    assert_int_equal(kvd_pad16(1, 128), 16);
    assert_int_equal(kvd_pad16(16, 128), 16);
    assert_int_equal(kvd_pad16(17, 128), 32);
    assert_int_equal(kvd_pad16(71, 72), 72);
    assert_int_equal(kvd_widths_alloc(&w, 1, 1, 64, &err), 0);
    w.kept[0][0] = 17;
    w.kept[1][0] = 64;
    assert_true(kvd_widths_p(&w, 0) == 1 - 81.0 / 128);
    assert_true(kvd_widths_p(&w, 1) == 1 - 96.0 / 128);
    kvd_widths_release(&w);
}

static double error_of(const kvd_error_table *t, const kvd_widths *w)
{
    double sum = 0;
    for (int h = 0; h < 2; h++)
        for (size_t i = 0; i < t->n_widths; i++)
            if (t->width[i] == w->kept[h][0])
                sum += t->error[(size_t)h * t->n_widths + i];
    return sum;
}

TEST(test_by_error_is_optimal_on_convex_curves)
{
    kvd_err err;
    int32_t width[5] = {1, 2, 3, 4, 5};
    /* Errors with 1 to 5 kept dimensions of Q and K, followed by errors with 1 to 5 kept dimensions
     * of V. The errors are convex, so removing one dimension at a time is optimal. */
    double error[10] = {10, 6, 3, 1, 0, 2, 1.2, 0.6, 0.2, 0};
    kvd_error_table t = {
        .n_layers = 1, .n_kv_heads = 1, .d_head = 5, .n_widths = 5, .width = width, .error = error};
    for (int gone = 0; gone <= 8; gone++) {
        kvd_widths w, all;
        assert_int_equal(kvd_widths_by_error(&t, KVD_BOTH_SIDES, gone / 10.0, &w, &err), 0);
        assert_int_equal(w.kept[0][0] + w.kept[1][0], 10 - gone);
        double best = INFINITY;
        assert_int_equal(kvd_widths_alloc(&all, 1, 1, 5, &err), 0);
        for (all.kept[0][0] = 1; all.kept[0][0] <= 5; all.kept[0][0]++) {
            all.kept[1][0] = 10 - gone - all.kept[0][0];
            if (all.kept[1][0] >= 1 && all.kept[1][0] <= 5)
                best = fmin(best, error_of(&t, &all));
        }
        assert_true(fabs(error_of(&t, &w) - best) < 1e-12);
        kvd_widths_release(&w);
        kvd_widths_release(&all);
    }
    kvd_widths w;
    for (int side = 0; side < 2; side++) {
        assert_int_equal(kvd_widths_by_error(&t, side, 0.55, &w, &err), 0);
        assert_true(w.kept[side][0] == 2 && w.kept[1 - side][0] == 5);
        kvd_widths_release(&w);
    }
    FAILS(kvd_widths_by_error(&t, KVD_BOTH_SIDES, 0.81, &w, &err),
          "p = 0.81 is not attainable: the table's smallest width is 1 of 5, p = 0.8");
}

TEST(test_by_error_walks_the_hull)
{
    kvd_err err;
    int32_t width[3] = {4, 8, 16};
    /* errors with 4, 8 and 16 dimensions of Q and K, followed by errors with 4, 8 and 16 dimensions
     * of V */
    double error[6] = {1.2, 1.1, 0, 9, -0.1, 0};
    kvd_error_table t = {.n_layers = 1,
                         .n_kv_heads = 1,
                         .d_head = 16,
                         .n_widths = 3,
                         .width = width,
                         .error = error};
    const int32_t kept[][2] = {{16, 16}, {16, 8}, {8, 8}, {4, 4}};
    for (int i = 0; i < 4; i++) {
        kvd_widths w;
        assert_int_equal(kvd_widths_by_error(&t, KVD_BOTH_SIDES, i / 4.0, &w, &err), 0);
        assert_int_equal(w.kept[0][0], kept[i][0]);
        assert_int_equal(w.kept[1][0], kept[i][1]);
        kvd_widths_release(&w);
    }
}

TEST_MAIN(NULL, NULL)
