/* Tests quantisation methods: their errors, the bits they count, and the properties that define
 * each method. */
#include "code_rows.h"
#include "common/quantise.h"
#include "common/rng.h"
#include "methods/bits/levels.h"

enum { N = 150, D = 48 };
static float x[N * D], y[N * D];
static uint8_t level[N];
static double mass[N], seen[N];

static int setup(void **state)
{
    (void)state;
    kvd_rng r;
    kvd_rng_seed(&r, 4, 1);
    for (size_t i = 0; i < N; i++) {
        for (size_t j = 0; j < D; j++)
            x[i * D + j] = (float)(kvd_rng_normal(&r) * (j == 5 ? 20 : 1));
        level[i] = KVD_LEVEL_HIGH;
        mass[i] = exp(kvd_rng_normal(&r));
        seen[i] = N - (double)i;
    }
    return 0;
}

static double error_of(const char *text, kvd_side side, kvd_bits_count *count)
{
    const kvd_method_setup nothing = {0};
    const kvd_bits_block b = {.side = side,
                              .n = N,
                              .d = D,
                              .x = x,
                              .level = level,
                              .mass = mass,
                              .seen = seen,
                              .prompt = true};
    for (size_t i = 0; i < (size_t)N * D; i++)
        y[i] = NAN;
    code_rows(text, &nothing, b, y, count);
    return sqrt(squares(y, x, N * D) / squares(x, NULL, N * D));
}

TEST(more_bits_lose_less)
{
    const char *const text[][4] = {
        {"kivi,bits=1", "kivi,bits=2", "kivi,bits=4", "kivi,bits=8"},
        {"hetero,k=1,v=1", "hetero,k=2,v=2", "hetero,k=4,v=4", "hetero,k=8,v=8"},
        {"gear,bits=2", "gear,bits=3", "gear,bits=4", "gear,bits=8"},
        {"zipcache,high=1,low=1", "zipcache,high=2,low=2", "zipcache,high=4,low=4",
         "zipcache,high=8,low=8"},
        {"comet,bits=2", "comet,bits=3", "comet,bits=4", "comet,bits=8"}};
    for (size_t m = 0; m < 5; m++)
        for (int side = 0; side < KVD_N_SIDES; side++) {
            double before = 2;
            for (int i = 0; i < 4; i++) {
                kvd_bits_count count;
                const double e = error_of(text[m][i], (kvd_side)side, &count);
                if (!(e < before && e > 0))
                    fail_msg("%s: error %g after %g", text[m][i], e, before);
                assert_true(count.payload ==
                            (double)N * D * ((m == 2 || m == 4) && i < 2 ? i + 2 : 1 << i));
                before = e;
            }
            assert_true(before < 0.02);
        }
    kvd_bits_count count;
    assert_true(error_of("hetero,k=16,v=16", KVD_KEYS, &count) < 1e-3 && count.side == 0 &&
                count.payload == 16.0 * N * D);
}

/* The method kivi quantises keys per channel and values per token. One channel with large numbers
 * therefore worsens other channels of values, but not of keys. */
TEST(channels)
{
    kvd_bits_count count;
    float other[N * D];
    const double per_channel = error_of("kivi,bits=2", KVD_KEYS, &count);
    memcpy(other, y, sizeof y);
    const double per_token = error_of("kivi,bits=2", KVD_VALUES, &count);
    /* squared errors of keys (a) and values (b), without channel 5, which has large numbers */
    double a = 0, b = 0;
    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j < 32; j++)
            if (j != 5) {
                a += pow((double)other[i * D + j] - (double)x[i * D + j], 2);
                b += pow((double)y[i * D + j] - (double)x[i * D + j], 2);
            }
    assert_true(per_channel > 0 && per_token > 0 && b > 4 * a);
    /* Each group of 32 numbers has a scale and a zero point, of 16 bits each. */
    (void)error_of("kivi,bits=2", KVD_KEYS, &count);
    assert_true(count.side == 32.0 * D * 5);
    (void)error_of("kivi,bits=2", KVD_VALUES, &count);
    assert_true(count.side == 32.0 * N * 2);
}

TEST(salient_tokens_lose_less)
{
    kvd_bits_count count;
    for (int side = 0; side < KVD_N_SIDES; side++) {
        (void)error_of("zipcache,share=0.2", (kvd_side)side, &count);
        assert_true(count.payload == D * (30 * 4.0 + 120 * 2.0));
        double of[2] = {0, 0}, norm[2] = {0, 0};
        for (size_t i = 0; i < N; i++) {
            size_t better = 0;
            for (size_t j = 0; j < N; j++)
                better += mass[j] / seen[j] > mass[i] / seen[i];
            of[better < 30] += squares(y + i * D, x + i * D, D);
            norm[better < 30] += squares(x + i * D, NULL, D);
        }
        assert_true(of[1] / norm[1] < 0.2 * of[0] / norm[0]);
    }
}

TEST(outliers_and_low_rank)
{
    kvd_bits_count count, with;
    const double plain = error_of("gear,bits=2,rank=0,outliers=0", KVD_KEYS, &count);
    const double apart = error_of("gear,bits=2,rank=0,outliers=0.04", KVD_KEYS, &with);
    assert_true(apart < plain && with.side - count.side == D * 6.0 * 32);
    const double low = error_of("gear,bits=2,rank=8,outliers=0,iterations=6", KVD_KEYS, &with);
    assert_true(low < plain && with.side - count.side == (N + D) * 8.0 * 16);
    float kept[N * D];
    memcpy(kept, x, sizeof x);
    for (size_t j = 0; j < D; j++) {
        float most = -INFINITY;
        size_t at = 0;
        for (size_t i = 0; i < N; i++)
            if (x[i * D + j] > most) {
                most = x[i * D + j];
                at = i;
            }
        (void)error_of("gear,outliers=0.04", KVD_KEYS, &count);
        assert_true(fabsf(y[at * D + j] - most) < 1e-3f * fabsf(most));
    }
    assert_memory_equal(kept, x, sizeof x);
}

/* The method comet quantises symmetrically to 4 bits, so errors are at most half of max |x| / 7. */
TEST(symmetric_channels)
{
    for (int side = 0; side < KVD_N_SIDES; side++) {
        kvd_bits_count count;
        (void)error_of("comet", (kvd_side)side, &count);
        assert_true(count.side == 16.0 * 2 * D && count.payload == 4.0 * N * D);
        for (size_t j = 0; j < D; j++)
            for (size_t at = 0; at < N; at += 128) {
                float most = 0;
                for (size_t i = at; i < N && i < at + 128; i++)
                    most = fmaxf(most, fabsf(x[i * D + j]));
                for (size_t i = at; i < N && i < at + 128; i++) {
                    const float steps = y[i * D + j] / (most / 7);
                    assert_true(fabsf(y[i * D + j] - x[i * D + j]) < 0.505f * most / 7);
                    assert_true(fabsf(steps - rintf(steps)) < 0.01f);
                }
            }
        (void)error_of("comet,symmetric=0", (kvd_side)side, &count);
        assert_true(count.side == 32.0 * 2 * D);
    }
}

TEST(channels_of_two_bits_and_of_one)
{
    kvd_bits_count count;
    float range[D];
    size_t easy[D], m = 0;
    (void)error_of("vidkv", KVD_KEYS, &count);
    /* In the method vidkv, half of the key channels have 2 bits per number, the other half 1
     * bit. */
    assert_true(count.payload == 1.5 * N * D && count.side == D / 2 * 5 * (32.0 + 16.0) + D);
    for (size_t j = 0; j < D; j++) {
        float lo = INFINITY, hi = -INFINITY;
        for (size_t i = 0; i < N; i++) {
            lo = fminf(lo, x[i * D + j]);
            hi = fmaxf(hi, x[i * D + j]);
        }
        range[j] = hi - lo;
    }
    for (size_t j = 0; j < D; j++) {
        size_t larger = 0;
        for (size_t i = 0; i < D; i++)
            larger += range[i] > range[j];
        if (larger >= D / 2)
            easy[m++] = j;
        for (size_t i = 0; larger < D / 2 && i < N; i++)
            assert_true(fabsf(y[i * D + j] - x[i * D + j]) < 0.51f * range[j] / 3);
    }
    assert_int_equal(m, D / 2);
    /* Quantisation keeps the sign of each token's sum over 1-bit channels, and averages the
     * magnitude over 32 tokens. */
    for (size_t at = 0; at < N; at += 32) {
        const size_t end = at + 32 < N ? at + 32 : N;
        double mean = 0;
        for (int pass = 0; pass < 2; pass++)
            for (size_t i = at; i < end; i++) {
                double sum = 0, read = 0;
                for (size_t k = 0; k < m; k++) {
                    sum += (double)x[i * D + easy[k]];
                    read += (double)y[i * D + easy[k]];
                }
                if (pass == 0)
                    mean += fabs(sum) / (double)(end - at);
                else
                    assert_true(fabs(read - copysign(mean, sum)) < 2e-3 * mean);
            }
    }
    const double one = error_of("vidkv,k=1", KVD_KEYS, &count);
    assert_true(count.payload == (double)N * D);
    assert_true(error_of("vidkv", KVD_KEYS, &count) < one);
    const double two = error_of("vidkv,k=2", KVD_KEYS, &count);
    assert_true(count.payload == 2.0 * N * D && two < one && count.side == 32.0 * 5 * D + D);
}

/* In the method vidkv, values become s, 0 or -s, with the group's mean magnitude s. Five such
 * numbers take 8 bits. */
TEST(ternary_values)
{
    kvd_bits_count count;
    (void)error_of("vidkv", KVD_VALUES, &count);
    assert_true(count.payload == 8.0 * N * D / 5 && count.side == 16.0 * 5 * D);
    for (size_t j = 0; j < D; j++)
        for (size_t at = 0; at < N; at += 32) {
            const size_t end = at + 32 < N ? at + 32 : N;
            float s = 0;
            for (size_t i = at; i < end; i++)
                s += fabsf(x[i * D + j]) / (float)(end - at);
            for (size_t i = at; i < end; i++) {
                const float v = x[i * D + j], want = fabsf(v) < s / 2 ? 0 : copysignf(s, v);
                if (fabsf(fabsf(v) - s / 2) > 1e-2f * s)
                    assert_true(fabsf(y[i * D + j] - want) < 1e-3f * s);
            }
        }
    (void)error_of("vidkv,ternary=0", KVD_VALUES, &count);
    assert_true(count.payload == 2.0 * N * D && count.side == 32.0 * 5 * D);
}

TEST(constants_and_zeros)
{
    float kept[N * D];
    const char *const all[] = {"kivi", "hetero", "gear", "zipcache", "fp8", "mxfp4", "comet"};
    memcpy(kept, x, sizeof x);
    for (int value = 0; value < 2; value++) {
        for (size_t i = 0; i < (size_t)N * D; i++)
            x[i] = value ? 0.25f : 0;
        for (size_t m = 0; m < sizeof all / sizeof *all; m++)
            for (int side = 0; side < KVD_N_SIDES; side++) {
                kvd_bits_count count;
                (void)error_of(all[m], (kvd_side)side, &count);
                for (size_t i = 0; i < (size_t)N * D; i++)
                    assert_true(fabsf(y[i] - x[i]) < 1e-3f);
            }
    }
    memcpy(x, kept, sizeof x);
}

static double loss_of(const double *histogram, int bins, const double *found, int n)
{
    double sum = 0;
    for (int b = 0; b < bins; b++) {
        double best = INFINITY;
        for (int k = 0; k < n; k++)
            best = fmin(best, pow(kvd_level_bin(b, bins) - found[k], 2));
        sum += histogram[b] * best;
    }
    return sum;
}

/* Returns the least squared error with which n levels can represent the histogram's bins `first` ..
 * bins - 1. */
static double least_of(const double *histogram, int bins, int first, int n)
{
    double best = INFINITY, weight = 0, mean = 0, square = 0;
    for (int end = first; end < bins; end++) {
        const double m = kvd_level_bin(end, bins);
        weight += histogram[end];
        mean += histogram[end] * m;
        square += histogram[end] * m * m;
        const double lost = weight > 0 ? square - mean * mean / weight : 0;
        if (end + 1 == bins || n > 1)
            best =
                fmin(best, lost + (end + 1 < bins ? least_of(histogram, bins, end + 1, n - 1) : 0));
    }
    return best;
}

TEST(levels_are_the_best)
{
    enum { BINS = 13 };
    kvd_rng r;
    kvd_err err;
    kvd_rng_seed(&r, 9, 0);
    for (int i = 0; i < 300; i++) {
        double histogram[BINS], found[16], all = 0;
        for (int b = 0; b < BINS; b++) {
            histogram[b] =
                i % 3 == 2 && kvd_rng_uniform(&r) < 0.6 ? 0 : exp(3 * kvd_rng_normal(&r));
            all += histogram[b];
        }
        histogram[i % BINS] += 1;
        for (int n = 1; n <= 5; n++) {
            assert_int_equal(kvd_levels_find(histogram, BINS, n, found, &err), 0);
            for (int k = 0; k < n; k++)
                assert_true(fabs(found[k]) <= 1 && (k == 0 || found[k] >= found[k - 1]));
            const double least = least_of(histogram, BINS, 0, n);
            assert_true(fabs(loss_of(histogram, BINS, found, n) - least) < 1e-12 * (1 + all));
        }
        assert_int_equal(kvd_levels_find(histogram, BINS, 16, found, &err), 0);
        assert_true(loss_of(histogram, BINS, found, 16) < 1e-12 * (1 + all));
    }
}

TEST(nearest_level_of_every_number)
{
    kvd_rng r;
    kvd_rng_seed(&r, 10, 0);
    for (int n = 1; n <= 17; n++) {
        float to[17];
        to[0] = -1;
        for (int k = 1; k < n; k++)
            to[k] = to[k - 1] + (k % 5 ? (float)kvd_rng_uniform(&r) : 0);
        for (float at = -2; at < 18; at += 0.01f) {
            int below = 0;
            for (int k = 0; k + 1 < n; k++)
                below += at > (to[k] + to[k + 1]) / 2;
            assert_int_equal(kvd_level_nearest(to, n, at), below);
        }
    }
}

TEST(groups_lose_half_a_step)
{
    kvd_rng r;
    kvd_rng_seed(&r, 11, 1);
    for (int b = 1; b <= 8; b++)
        for (size_t trial = 0; trial < 50; trial++) {
            float v[64], coded[64], lo = INFINITY, hi = -INFINITY;
            for (size_t i = 0; i < 64; i++)
                v[i] = (float)kvd_rng_normal(&r);
            for (size_t i = 0; i < 64; i += 2) {
                lo = fminf(lo, v[i]);
                hi = fmaxf(hi, v[i]);
            }
            memcpy(coded, v, sizeof coded);
            assert_true(kvd_quantise_group(v, 32, 2, b, coded) == 32.0 * b);
            const float s = (hi - lo) / (float)((1 << b) - 1),
                        slack = 2e-3f * (fabsf(lo) + fabsf(hi));
            for (size_t i = 0; i < 64; i++)
                assert_true(i % 2 ? coded[i] == v[i] : fabsf(coded[i] - v[i]) <= s / 2 + slack);
        }
    float constant[4] = {0.5f, 0.5f, 0.5f, 0.5f}, zero[4] = {0}, back[4];
    kvd_quantise_group(constant, 4, 1, 2, back);
    assert_memory_equal(back, constant, sizeof back);
    kvd_quantise_group(zero, 4, 1, 2, back);
    assert_memory_equal(back, zero, sizeof back);
}

TEST_MAIN(setup, NULL)
