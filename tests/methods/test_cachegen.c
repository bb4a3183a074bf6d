/* Tests the method cachegen, which entropy-codes the differences of tokens from the first token of
 * their group. */
#include "calibration_dump.h"
#include "code_rows.h"
#include "methods/bits/rans.h"

enum { N = 2000, GROUP = 10 };
static float x[N * D], y[N * D];

static const kvd_method_setup *setup(void)
{
    static kvd_method_setup s;
    s = (kvd_method_setup){.config = &config, .calibration = &dump};
    return &s;
}

static kvd_bits_count code(const char *text, kvd_side side, int layer, int head)
{
    kvd_bits_count count;
    head_rows(side == KVD_KEYS ? KVD_X_K : KVD_X_V, layer, head, N, x);
    const kvd_bits_block b = {
        .side = side, .layer = layer, .kv_head = head, .n = N, .d = D, .x = x, .prompt = true};
    code_rows(text, setup(), b, y, &count);
    return count;
}

static double spread_of(size_t j)
{
    double sum = 0;
    for (size_t i = 0; i < N; i++)
        sum += pow((double)x[i * D + j] - (double)x[(i - i % GROUP) * D + j], 2);
    return sqrt(sum / (N - N / GROUP));
}

/* Normally distributed numbers take 3.047 bits each in layer 0, whose quantisation steps are half
 * the standard deviation, and 2.047 bits in layer 1, whose steps are the whole deviation. */
TEST(steps_and_bits)
{
    for (int side = 0; side < KVD_N_SIDES; side++)
        for (int layer = 0; layer < LAYERS; layer++) {
            const kvd_bits_count count = code("cachegen", (kvd_side)side, layer, 1);
            double most[D] = {0}, anchor = 0;
            for (size_t i = 0; i < N; i++) {
                float lo = INFINITY, hi = -INFINITY;
                for (size_t j = 0; j < D; j++) {
                    const double off = fabs((double)y[i * D + j] - (double)x[i * D + j]);
                    lo = fminf(lo, x[i * D + j]);
                    hi = fmaxf(hi, x[i * D + j]);
                    if (i % GROUP)
                        most[j] = fmax(most[j], off);
                    else
                        anchor = fmax(anchor, off);
                }
                if (i % GROUP == 0)
                    assert_true(anchor < 0.51 * (double)(hi - lo) / 255 + 2e-3 * fabs((double)lo));
                anchor = 0;
            }
            for (size_t j = 0; j < D; j++) {
                const double step = (layer + 1) * 0.5 * spread_of(j);
                assert_true(most[j] < 0.51 * step && most[j] > 0.45 * step);
            }
            const double mean = count.payload / (N * D), of_normal = layer ? 2.047 : 3.047;
            if (!(mean > 0.9 * of_normal + 0.5 && mean < 0.9 * (of_normal + 0.1) + 0.8))
                fail_msg("%g bits per number", mean);
            assert_true(count.side == 32.0 * N / GROUP);
        }
}

TEST(wider_steps_lose_more_and_store_less)
{
    const char *const text[] = {"cachegen,bin=0.1", "cachegen,bin=0.5", "cachegen,bin=1.5",
                                "cachegen,bin=6"};
    double before = 0, stored = INFINITY;
    for (int i = 0; i < 4; i++) {
        const kvd_bits_count count = code(text[i], KVD_VALUES, 1, 0);
        const double off = squares(y, x, N * D) / squares(x, NULL, N * D);
        assert_true(off > before && count.payload < stored && (i || off < 0.002));
        before = off;
        stored = count.payload;
    }
    assert_true(stored < 1.2 * N * D); /* Nine of ten numbers need much less than one bit. */
}

TEST(lanes_decode_the_same)
{
    static float single[N * D];
    for (int side = 0; side < KVD_N_SIDES; side++) {
        const kvd_bits_count one = code("cachegen,group=8,groups=8", (kvd_side)side, 1, 1);
        memcpy(single, y, sizeof y);
        const kvd_bits_count lanes =
            code("cachegen,group=8,groups=8,lanes=1", (kvd_side)side, 1, 1);
        assert_memory_equal(single, y, sizeof y);
        const double blocks = (N + 63) / 64;
        assert_true(fabs(lanes.side - (32.0 * N / 8 + blocks * KVD_STREAM_HEADER_BITS)) < 0.5);
        assert_true(lanes.payload < one.payload && lanes.payload > 0.8 * one.payload);
    }
    refuse_plan("cachegen,own=1,lanes=1", 0, setup(), "use lanes=0");
}

/* If all blocks have the same distribution, separate coding tables per block must change the length
 * of the coded numbers little. */
TEST(blocks_with_tables_of_their_own)
{
    kvd_bits_count count, own;
    for (int side = 0; side < KVD_N_SIDES; side++) {
        count = code("cachegen", (kvd_side)side, 1, 1);
        own = code("cachegen,own=1", (kvd_side)side, 1, 1);
        const double tables = own.side - count.side - 16.0 * D;
        assert_true(tables > 20 && tables <= 8.0 * KVD_RANS_TABLE_ROOM);
        assert_true(own.payload > 0.98 * count.payload && own.payload < 1.2 * count.payload);
        for (size_t j = 0; j < D; j++) {
            const double step = spread_of(j);
            for (size_t i = 0; i < N; i++)
                if (i % GROUP)
                    assert_true(fabs((double)y[i * D + j] - (double)x[i * D + j]) < 0.51 * step);
        }
    }
    const kvd_method_setup without = {.config = &config};
    kvd_plan plan;
    open_plan(&plan, "cachegen,own=1", 0, &without);
    kvd_plan_close(&plan);
    refuse_plan("cachegen", 0, &without, "needs activations of calibration text");
}

TEST(other_numbers)
{
    kvd_bits_count count;
    enum { ROWS = 13 };
    for (size_t i = 0; i < ROWS * (size_t)D; i++)
        x[i] = i % 3 ? 1e4f * sinf((float)i) : 0;
    const kvd_bits_block b = {.side = KVD_KEYS, .n = ROWS, .d = D, .x = x};
    code_rows("cachegen", setup(), b, y, &count);
    for (size_t i = 0; i < ROWS * (size_t)D; i++)
        assert_true(isfinite(y[i]));
    assert_true(count.side == 64 && count.payload < 16 * ROWS * D + 32);
}

TEST(a_stream_loses_no_entry)
{
    kvd_plan plan;
    open_plan(&plan, "snapkv+cachegen", 40, setup());
    kvd_plan_close(&plan);
    refuse_plan("h2o+cachegen", 40, setup(), "'cachegen' codes a block of entries as one stream");
}

TEST_MAIN_WITH_DUMP(N)
