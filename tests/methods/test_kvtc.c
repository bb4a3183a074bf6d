/* Tests the method kvtc, which quantises principal components of all heads together and compresses
 * them with DEFLATE. */
#include <unistd.h>
#include <zlib.h>

#include "calibration_dump.h"
#include "code_rows.h"
#include "common/linalg.h"
#include "common/quantise.h"
#include "methods/bits/bits.h"
#include "methods/bits/streams.h"

enum { N = 600, WIDE = HEADS * D };
static float x[N * WIDE], y[N * WIDE];
static const uint32_t *position; /* NULL: 0, 1, ... */

/* Quantises x as K or V of layer 1 and restores it. Returns the mean squared error. */
static double code(const char *text, kvd_side side, kvd_bits_count *count)
{
    const kvd_method_setup setup = {.config = &config, .calibration = &dump};
    const kvd_bits_block b = {
        .side = side, .layer = 1, .n = N, .d = WIDE, .x = x, .position = position, .prompt = true};
    code_rows(text, &setup, b, y, count);
    return squares(y, x, N * WIDE) / (N * WIDE);
}

static void read_rows(kvd_side side)
{
    rows_side_by_side(side == KVD_KEYS ? KVD_X_K_PRE : KVD_X_V, 1, N, x);
}

TEST(budgets)
{
    const double bits[] = {1, 2, 4, 6, 12};
    for (int side = 0; side < KVD_N_SIDES; side++) {
        double before = INFINITY;
        read_rows((kvd_side)side);
        const double square = squares(x, NULL, N * WIDE) / (N * WIDE);
        for (int i = 0; i < 5; i++) {
            char text[40];
            kvd_bits_count count;
            (void)snprintf(text, sizeof text, "kvtc,bits=%g,sink=0", bits[i]);
            const double off = code(text, (kvd_side)side, &count);
            if (!(off <= before))
                fail_msg("%s: %g after %g", text, off, before);
            assert_true(count.payload + count.side <= 2 * bits[i] * N * WIDE + 200);
            before = off;
        }
        assert_true(before < 1e-3 * square);
    }
}

TEST(sinks)
{
    kvd_bits_count count, with;
    uint32_t other[N];
    read_rows(KVD_VALUES);
    (void)code("kvtc,bits=4,sink=0", KVD_VALUES, &count);
    (void)code("kvtc,bits=4,sink=5", KVD_VALUES, &with);
    for (size_t i = 0; i < 5 * (size_t)WIDE; i++)
        assert_true(y[i] == kvd_round_f16(x[i]));
    for (uint32_t i = 0; i < N; i++)
        other[i] = i ? i : 77;
    position = other;
    (void)code("kvtc,bits=4,sink=5", KVD_VALUES, &with);
    for (size_t i = 0; i < 5 * (size_t)WIDE; i++)
        assert_true((i < WIDE) != (y[i] == kvd_round_f16(x[i])));
    for (size_t i = 0; i < 300; i++)
        other[i] = 0;
    (void)code("kvtc,bits=4,sink=1", KVD_VALUES, &with);
    assert_true(with.payload > 16.0 * 300 * WIDE && with.side < 0.7 * count.side);
    position = NULL;
}

TEST(decorrelation)
{
    kvd_bits_count count, plain;
    read_rows(KVD_VALUES);
    const double off = code("kvtc,bits=5,sink=0", KVD_VALUES, &count);
    float kept[N * WIDE];
    memcpy(kept, x, sizeof x);
    double other = 0;
    for (size_t h = 0; h < HEADS; h++) {
        for (size_t i = 0; i < N; i++)
            memcpy(x + i * D, kept + i * WIDE + h * D, D * sizeof *x);
        const kvd_bits_block b = {.side = KVD_VALUES, .layer = 1, .n = N, .d = D, .x = x};
        code_rows("hetero,v=2", NULL, b, y, &plain);
        other += squares(y, x, N * D) / (N * WIDE);
    }
    if (!(off < other && count.payload + count.side < HEADS * (plain.payload + plain.side)))
        fail_msg("%g at %g bits, per token %g at %g bits", off,
                 (count.payload + count.side) / (N * WIDE), other,
                 (plain.payload + plain.side) / (N * D));
}

TEST(streams)
{
    kvd_bits_count count, same;
    read_rows(KVD_VALUES);
    const double off = code("kvtc,bits=6,sink=0", KVD_VALUES, &count);
    for (size_t i = WIDE; i < (size_t)N * WIDE; i++)
        x[i] = x[i % WIDE];
    const double again = code("kvtc,bits=6,sink=0", KVD_VALUES, &same);
    assert_true(same.payload < 0.05 * count.payload && same.side == count.side);
    assert_true(again < 20 * off);
}

enum { PARTS = 20 };

/* Fills bits [2] with the i-th choice of bits per number in two groups of 8 components. If the
 * second entry is -1, one group has all 16 components. */
static void way(int i, int *bits)
{
    static const int kind[] = {0, 2, 4, 8};
    bits[0] = i < 16 ? kind[i / 4] : kind[i - 16];
    bits[1] = i < 16 ? kind[i % 4] : -1;
}

static double bits_of(const int *bits)
{
    const double one = bits[0] ? 32 + (bits[1] < 0 ? 16 : 8) * bits[0] : 0;
    return one + (bits[1] > 0 ? 32 + 8 * bits[1] : 0);
}

static double error_of(const float *c, const int *bits)
{
    float read[WIDE] = {0};
    double sum = 0;
    if (bits[0])
        (void)kvd_quantise_group(c, bits[1] < 0 ? 16 : 8, 1, bits[0], read);
    if (bits[1] > 0)
        (void)kvd_quantise_group(c + 8, 8, 1, bits[1], read + 8);
    for (size_t j = 0; j < WIDE; j++)
        sum += pow((double)c[j] - (double)read[j], 2);
    return sum;
}

static void measure_ways(kvd_x what, int layer, double *error)
{
    static float rows[N * WIDE];
    double gram[WIDE * WIDE] = {0}, sigma[WIDE], basis[WIDE * WIDE];
    kvd_err err;
    rows_side_by_side(what, layer, N, rows);
    for (size_t j = 0; j < WIDE; j++) {
        double mean = 0;
        for (size_t i = 0; i < N; i++)
            mean += (double)rows[i * WIDE + j] / N;
        for (size_t i = 0; i < N; i++)
            rows[i * WIDE + j] -= (float)mean;
    }
    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j < WIDE; j++)
            for (size_t k = 0; k < WIDE; k++)
                gram[j * WIDE + k] += (double)rows[i * WIDE + j] * (double)rows[i * WIDE + k];
    assert_int_equal(kvd_gram_svd(gram, WIDE, sigma, basis, &err), 0);
    memset(error, 0, PARTS * sizeof *error);
    for (size_t i = 0; i < N; i++) {
        float c[WIDE];
        for (size_t j = 0; j < WIDE; j++) {
            double sum = 0;
            for (size_t k = 0; k < WIDE; k++)
                sum += (double)rows[i * WIDE + k] * basis[k * WIDE + j];
            c[j] = (float)sum;
        }
        for (int p = 0; p < PARTS; p++) {
            int bits[2];
            way(p, bits);
            error[p] += error_of(c, bits) / N;
        }
    }
}

/* Tests how the method kvtc divides the principal components of K or V into groups with different
 * numbers of bits. No other division that takes as few bits may have a 2 % smaller squared
 * error. */
TEST(divisions_are_the_best)
{
    const kvd_method_setup setup = {.config = &config, .calibration = &dump};
    const char *const text[] = {"kvtc,bits=1.5,sink=0", "kvtc,bits=3,sink=0", "kvtc,bits=4,sink=0",
                                "kvtc,bits=6,sink=0", "kvtc,bits=9,sink=0"};
    size_t divisions = 0;
    for (int side = 0; side < KVD_N_SIDES; side++) {
        double error[LAYERS][PARTS];
        for (int l = 0; l < LAYERS; l++)
            measure_ways(side == KVD_KEYS ? KVD_X_K_PRE : KVD_X_V, l, error[l]);
        for (size_t t = 0; t < sizeof text / sizeof *text; t++) {
            const kvd_method m = parsed(text[t]);
            void *self;
            kvd_err err;
            double bits = 0, off = 0, least = INFINITY;
            assert_int_equal(m.plan.bits->open(&m.plan.bits_values, &setup, &self, &err), 0);
            for (int l = 0; l < LAYERS; l++) {
                const kvd_kvtc_group *g;
                const size_t n = kvd_kvtc_groups(self, l, (kvd_side)side, &g);
                size_t covered = 0;
                int chosen = 0, found[2] = {g[0].bits, n == 1 ? -1 : (int)g[1].bits}, one[2];
                for (size_t i = 0; i < n; i++) {
                    assert_int_equal(g[i].first, covered);
                    covered += g[i].size;
                }
                assert_int_equal(covered, WIDE);
                for (way(0, one); one[0] != found[0] || one[1] != found[1]; way(++chosen, one))
                    assert_true(chosen < PARTS);
                bits += bits_of(found);
                off += error[l][chosen];
                divisions += n > 1;
            }
            for (int a = 0; a < PARTS; a++)
                for (int b = 0; b < PARTS; b++) {
                    int first[2], second[2];
                    way(a, first);
                    way(b, second);
                    if (bits_of(first) + bits_of(second) <= bits)
                        least = fmin(least, error[0][a] + error[1][b]);
                }
            assert_true(bits <= m.plan.bits_values.value[0] * LAYERS * WIDE);
            if (!(off <= 1.02 * least))
                fail_msg("%s: error %g with %g bits, %g is possible", text[t], off, bits, least);
            m.plan.bits->close(self);
        }
    }
    assert_true(divisions > 0);
}

/* Packs the quantised components of n tokens of layer 1 in the order that the GPU uses. Returns the
 * size in bytes. */
static size_t pack(const void *self, kvd_side side, size_t n, uint8_t *to)
{
    const kvd_kvtc_group *g;
    const float *mean, *const basis = kvd_kvtc_basis(self, 1, side, &mean);
    const size_t n_groups = kvd_kvtc_groups(self, 1, side, &g);
    uint8_t *at = to;
    for (size_t k = 0; k < n_groups; k++)
        for (size_t t = 0; g[k].bits && t < n; t++) {
            float c[WIDE], scale, zero;
            uint8_t codes[WIDE];
            const size_t each = 8u / g[k].bits;
            for (size_t j = 0; j < g[k].size; j++) {
                double sum = 0;
                for (size_t i = 0; i < WIDE; i++)
                    sum += ((double)x[t * WIDE + i] - (double)mean[i]) *
                           (double)basis[i * WIDE + g[k].first + j];
                c[j] = (float)sum;
            }
            kvd_quantise_codes(c, g[k].size, g[k].bits, codes, &scale, &zero);
            for (size_t j = 0; j < g[k].size; j++) {
                at[j / each] = (uint8_t)(j % each ? at[j / each] : 0);
                at[j / each] |= (uint8_t)(codes[j] << j % each * g[k].bits);
            }
            at += g[k].size / each;
        }
    return (size_t)(at - to);
}

/* Compresses n bytes with DEFLATE, which zlib must restore. The compressor must not write beyond
 * its output buffer. */
static void check_stream(const uint8_t *from, size_t n)
{
    const size_t room = kvd_kvtc_deflate_room(n);
    uint8_t *const to = malloc(room), *const back = malloc(n);
    uLongf size = n;
    assert_true(to && back);
    const size_t small = kvd_kvtc_deflate(from, n, to, room);
    assert_true(small > 0 && small <= room);
    assert_int_equal(uncompress(back, &size, to, small), Z_OK);
    assert_int_equal(size, n);
    assert_memory_equal(back, from, n);
    to[small - 1] = 0xa5;
    assert_int_equal(kvd_kvtc_deflate(from, n, to, small - 1), 0);
    assert_int_equal(to[small - 1], 0xa5);
    free(to);
    free(back);
}

/* Packs quantised components the way the GPU does, and compresses them with DEFLATE. The result
 * must have as many bits as the method counts. */
TEST(deflates_packed_codes)
{
    static const char *const text[] = {"kvtc,bits=1.5,sink=0", "kvtc,bits=4,sink=0"};
    static uint8_t packed[N * WIDE + WIDE];
    const kvd_method_setup setup = {.config = &config, .calibration = &dump};
    for (int i = 0; i < 4; i++) {
        const kvd_side side = (kvd_side)(i % 2);
        kvd_method m;
        void *self;
        kvd_err err;
        kvd_bits_count count;
        double bits = 0;
        read_rows(side);
        (void)code(text[i / 2], side, &count);
        assert_int_equal(kvd_method_parse(text[i / 2], &m, &err), 0);
        assert_int_equal(m.plan.bits->open(&m.plan.bits_values, &setup, &self, &err), 0);
        assert_true(pack(self, side, N, packed) <= N * WIDE);
        assert_int_equal(kvd_kvtc_count(self, 1, side, packed, N, &bits, &err), 0);
        check_stream(packed, pack(self, side, N, packed));
        /* The method sums in float32, so a few of its quantised numbers differ from those that
         * pack() computes in double precision. */
        assert_true(fabs(bits - count.payload - count.side) <= 0.002 * bits);
        m.plan.bits->close(self);
    }
}

TEST(refused)
{
    const kvd_method_setup setup = {.config = &config, .calibration = &dump};
    refuse_plan("h2o+kvtc", 0, &setup, "'kvtc' codes all heads of a layer together");
    refuse_plan("kvtc,sink=1000", 0, &setup,
                "every token of the calibration is one of the first 1000");
}

TEST(lanes_decode_the_same)
{
    static float packed[N * WIDE];
    for (int side = 0; side < KVD_N_SIDES; side++) {
        kvd_bits_count count, lanes;
        read_rows((kvd_side)side);
        (void)code("kvtc,bits=3,sink=5", (kvd_side)side, &count);
        memcpy(packed, y, sizeof y);
        (void)code("kvtc,bits=3,sink=5,lanes=1", (kvd_side)side, &lanes);
        for (size_t i = 0; i < (size_t)N * WIDE; i++)
            assert_true(fabsf(packed[i] - y[i]) <= 1e-5f * (1 + fabsf(y[i])));
        const double blocks = (N + 63) / 64;
        assert_true(fabs(lanes.side - count.side - blocks * KVD_STREAM_HEADER_BITS) < 0.5);
        assert_true(lanes.payload < 1.1 * count.payload);
    }
}

TEST_MAIN_WITH_DUMP(N)
