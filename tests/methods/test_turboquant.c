/* Compares errors of the method turboquant with Theorems 1 and 2 of arXiv 2504.19874. */
#include <stdio.h>

#include "code_rows.h"
#include "common/rng.h"

enum { N = 400, D = 128 };
static float x[N * D], y[N * D];

static int set_up(void **state)
{
    kvd_rng r;
    (void)state;
    kvd_rng_seed(&r, 3, 1);
    for (size_t i = 0; i < (size_t)N * D; i++)
        x[i] = (float)(kvd_rng_normal(&r) * pow(0.9, (double)(i % D)) * (1 + (double)(i / D)));
    return 0;
}

static void code(const char *text, kvd_side side, uint64_t seed, size_t n, size_t d,
                 kvd_bits_count *count)
{
    const kvd_config config = {.d_head = D};
    const kvd_method_setup setup = {.config = &config, .seed = seed};
    code_rows(text, &setup, (kvd_bits_block){.side = side, .n = n, .d = d, .x = x}, y, count);
}

/* The method turboquant must have the mean squared error of an optimal quantiser of normally
 * distributed numbers. */
TEST(distortions_of_the_paper)
{
    /* Mean squared errors of optimal quantisers of normally distributed numbers with 1 to 4 bits
     * (Max 1960). The TurboQuant paper rounds these to 0.36, 0.117, 0.03 and 0.009. */
    const double want[] = {0.3634, 0.1175, 0.03454, 0.009497};
    for (int bits = 1; bits <= 4; bits++) {
        char text[40];
        double mean = 0;
        kvd_bits_count count;
        (void)snprintf(text, sizeof text, "turboquant,bits=%d", bits);
        code(text, KVD_VALUES, 1, N, D, &count);
        for (size_t i = 0; i < N; i++) {
            const float *const row = x + i * D;
            mean += squares(y + i * D, row, D) / squares(row, NULL, D) / N;
        }
        if (!(fabs(mean / want[bits - 1] - 1) < 0.03))
            fail_msg("%d bits: %g, not %g", bits, mean, want[bits - 1]);
        assert_true(count.payload == (double)bits * N * D && count.side == 16.0 * N);
    }
}

/* Compares inner products of q and quantised vectors x with exact ones, divided by |q| |x|.
 * Computes the mean error, the mean squared error, and the slope of the regression on exact
 * products. */
static void errors_of(const char *text, size_t seeds, const double *q, double *mean, double *square,
                      double *slope)
{
    enum { ROWS = 20 };
    *mean = *square = *slope = 0;
    double all = 0;
    for (uint64_t seed = 0; seed < seeds; seed++) {
        kvd_bits_count count;
        code(text, KVD_KEYS, seed, ROWS, D, &count);
        for (size_t i = 0; i < ROWS; i++) {
            double dot = 0, read = 0, norm = 0;
            for (size_t j = 0; j < D; j++) {
                dot += q[j] * (double)x[i * D + j];
                read += q[j] * (double)y[i * D + j];
                norm += pow((double)x[i * D + j], 2);
            }
            const double error = (read - dot) / sqrt(norm), n = (double)seeds * ROWS;
            *mean += error / n;
            *square += error * error / n;
            *slope += dot * read / norm;
            all += dot * dot / norm;
        }
    }
    *slope /= all;
}

/* Tests the upper bound on squared errors of inner products in Theorem 2 of the TurboQuant
 * paper. */
TEST(inner_products)
{
    enum { SEEDS = 60 };
    const double most[] = {1.571, 0.571, 0.1845, 0.0543};
    double q[D], norm = 0, mean, square, slope;
    for (size_t j = 0; j < D; j++) { /* the query is correlated with the keys */
        q[j] = (double)x[j] + (double)x[7 * D + j] / 8 + 0.02 * cos((double)j);
        norm += q[j] * q[j];
    }
    for (size_t j = 0; j < D; j++)
        q[j] /= sqrt(norm);
    for (int bits = 1; bits <= 4; bits++) {
        char text[40];
        (void)snprintf(text, sizeof text, "turboquant,bits=%d", bits);
        errors_of(text, SEEDS, q, &mean, &square, &slope);
        if (!(fabs(slope - 1) < 0.02) || !(square < 1.02 * most[bits - 1] / D))
            fail_msg("%d bits: slope %g, squares %g / d", bits, slope, square * D);
        assert_true(fabs(mean) < 4 * sqrt(square / SEEDS));
    }
    errors_of("turboquant,bits=1,qjl=0", 20, q, &mean, &square, &slope);
    assert_true(fabs(slope - 2 / acos(-1)) < 0.02);
}

TEST(widths_and_bytes)
{
    for (size_t d = 1; d <= 40; d += 13) {
        kvd_bits_count count;
        code("turboquant,bits=3", KVD_KEYS, 1, 4, d, &count);
        assert_true(count.payload == 12.0 * (double)d && count.side == 4.0 * 32);
        code("turboquant,bits=8,qjl=0", KVD_KEYS, 1, 4, d, &count);
        assert_true(count.payload == 32.0 * (double)d && count.side == 4.0 * 16);
        for (size_t i = 0; i < 4; i++) {
            const float *const row = x + i * d;
            assert_true(squares(y + i * d, row, d) < 1e-4 * squares(row, NULL, d));
        }
    }
}

TEST(zeros_and_seeds)
{
    static float kept[D], first[D];
    kvd_bits_count count;
    code("turboquant", KVD_KEYS, 5, 1, D, &count);
    memcpy(first, y, sizeof first);
    code("turboquant", KVD_KEYS, 5, 1, D, &count);
    assert_memory_equal(first, y, sizeof first);
    code("turboquant", KVD_KEYS, 6, 1, D, &count);
    assert_memory_not_equal(first, y, sizeof first);
    memcpy(kept, x, sizeof kept);
    memset(x, 0, sizeof kept);
    code("turboquant", KVD_KEYS, 5, 1, D, &count);
    for (size_t j = 0; j < D; j++)
        assert_true(fabsf(y[j]) <= 0);
    memcpy(x, kept, sizeof kept);
}

static double square_of(size_t j, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += pow((double)x[i * D + j], 2);
    return sum;
}

static float *code_columns(const char *text, size_t n, const size_t *channel, size_t m,
                           kvd_bits_count *count)
{
    static float kept[N * D];
    memcpy(kept, x, sizeof kept);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < m; j++)
            x[i * m + j] = kept[i * D + channel[j]];
    code(text, KVD_KEYS, 1, n, m, count);
    memcpy(x, kept, sizeof kept);
    float *const result = unit_alloc(n * m * sizeof *result);
    memcpy(result, y, n * m * sizeof *result);
    return result;
}

/* With 2.25 bits per number, the 32 largest of 128 channels have 3 bits and are quantised
 * separately from the other channels, which have 2. */
TEST(outliers_are_a_code_of_their_own)
{
    enum { ROWS = 40, OUTLIERS = 32 };
    size_t channel[D], n_outliers = 0, n_others = 0;
    kvd_bits_count count, part[2];
    static float kept[N * D], split[ROWS * D];
    memcpy(kept, x, sizeof kept);
    for (size_t i = 0; i < ROWS; i++) /* every fourth channel is large */
        for (size_t j = 0; j < D; j++)
            x[i * D + j] = (float)(sin((double)(i * D + j)) * (j % 4 == 2 ? 9 : 1));
    for (size_t j = 0; j < D; j++) {
        size_t larger = 0;
        for (size_t k = 0; k < D; k++)
            larger += square_of(k, ROWS) > square_of(j, ROWS);
        channel[larger < OUTLIERS ? n_outliers++ : OUTLIERS + n_others++] = j;
    }
    assert_int_equal(n_outliers, OUTLIERS);
    code("turboquant,bits=2.25", KVD_KEYS, 1, ROWS, D, &count);
    memcpy(split, y, sizeof split);
    float *const high = code_columns("turboquant,bits=3", ROWS, channel, OUTLIERS, &part[0]),
                 *const low = code_columns("turboquant,bits=2", ROWS, channel + OUTLIERS,
                                           D - OUTLIERS, &part[1]);
    for (size_t i = 0; i < ROWS; i++)
        for (size_t j = 0; j < D; j++) {
            const float want =
                j < OUTLIERS ? high[i * OUTLIERS + j] : low[i * (D - OUTLIERS) + j - OUTLIERS];
            if (!(fabsf(split[i * D + channel[j]] - want) <= 1e-6f * fabsf(want)))
                fail_msg("row %zu, channel %zu: %g, not %g", i, channel[j],
                         (double)split[i * D + channel[j]], (double)want);
        }
    assert_true(count.payload == 2.25 * ROWS * D);
    assert_true(count.payload == part[0].payload + part[1].payload);
    assert_true(count.side == part[0].side + part[1].side + D);
    memcpy(x, kept, sizeof kept);
}

/* Errors with fractional numbers of bits must be between those with whole numbers. The method
 * turboquant treats 3.001 bits as 3. */
TEST(fractions_lie_between)
{
    static const char *const text[] = {"turboquant,bits=2,qjl=0", "turboquant,bits=2.5,qjl=0",
                                       "turboquant,bits=3,qjl=0", "turboquant,bits=3.5,qjl=0"};
    double last = 1e300;
    size_t newest = 1, block = 0;
    kvd_bits_count count;
    kvd_rng r;
    static float kept[N * D];
    memcpy(kept, x, sizeof kept);
    kvd_rng_seed(&r, 8, 1);
    for (size_t i = 0; i < (size_t)N * D; i++)
        x[i] = (float)kvd_rng_normal(&r);
    for (size_t k = 0; k < sizeof text / sizeof *text; k++) {
        code(text[k], KVD_KEYS, 1, N, D, &count);
        const double off = squares(y, x, N * D);
        if (!(off < 0.9 * last))
            fail_msg("%s: squared error %g after %g", text[k], off, last);
        last = off;
        const kvd_method m = parsed(text[k]);
        m.plan.bits->window(&m.plan.bits_values, KVD_VALUES, &newest, &block);
        assert_true(newest == 0 && block == (k % 2 ? 32 : 1));
    }
    static float whole[N * D];
    code("turboquant,bits=3", KVD_KEYS, 1, N, D, &count);
    memcpy(whole, y, sizeof whole);
    code("turboquant,bits=3.001", KVD_KEYS, 1, N, D, &count);
    assert_memory_equal(whole, y, sizeof whole);
    assert_true(count.payload == 3.0 * N * D);
    memcpy(x, kept, sizeof kept);
}

TEST_MAIN(set_up, NULL)
