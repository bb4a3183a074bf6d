/* Tests the method waterfill, which chooses the number of bits of each principal component from
 * squared gradients. */
#include <unistd.h>

#include "calibration_dump.h"
#include "code_rows.h"
#include "common/rng.h"
#include "methods/bits/streams.h"

enum { N = 600, WIDE = HEADS * D };
static float x[N * WIDE], y[N * WIDE], again[N * WIDE];
static uint32_t position[N];
static double moment[KVD_F_SIDES][LAYERS * WIDE * WIDE];
static kvd_fisher fisher = {.n_layers = LAYERS, .n_tokens = 10};

/* Makes random gradients g, whose elements have unequal variances, and sums g g^T over them. */
static void draw_moments(void)
{
    kvd_rng r;
    kvd_rng_seed(&r, 7, 1);
    memset(moment, 0, sizeof moment);
    for (int side = 0; side < KVD_F_SIDES; side++) {
        for (int l = 0; l < LAYERS; l++)
            for (int t = 0; t < 3 * WIDE; t++) {
                double g[WIDE] = {0};
                for (int i = 0; i < WIDE; i++)
                    g[i] = (kvd_rng_uniform(&r) - 0.5) * (1 + i % 5) + (i ? g[i - 1] / 2 : 0);
                for (int i = 0; i < WIDE * WIDE; i++)
                    moment[side][l * WIDE * WIDE + i] += g[i / WIDE] * g[i % WIDE];
            }
        fisher.moment[side] = moment[side];
    }
}

static int set_up(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N; i++)
        position[i] = i;
    draw_moments();
    return open_dump(N);
}

/* Quantises and restores x by the method `text`. Returns the mean over tokens of e F e^T, where e
 * is the token's error and F the gradients' second moment. */
static double code(const char *text, kvd_side side, size_t each, float *to, kvd_bits_count *sum)
{
    const kvd_method_setup setup = {.config = &config, .calibration = &dump, .fisher = &fisher};
    const double *const f = moment[side] + WIDE * WIDE;
    double trace = 0, loss = 0;
    uint32_t stream[KVD_LANES] = {0};
    const kvd_method m = parsed(text);
    void *self = NULL;
    kvd_err err = {""};
    OK(m.plan.bits->open(&m.plan.bits_values, &setup, &self, &err));
    *sum = (kvd_bits_count){0, 0};
    for (size_t i = 0; i < N; i += each) {
        kvd_bits_count count;
        const kvd_bits_block b = {.side = side,
                                  .layer = 1,
                                  .n = N - i < each ? N - i : each,
                                  .d = WIDE,
                                  .x = x + i * WIDE,
                                  .position = position + i,
                                  .state = stream};
        OK(m.plan.bits->code(self, &b, to + i * WIDE, &count, &err));
        sum->payload += count.payload;
        sum->side += count.side;
    }
    m.plan.bits->close(self);
    for (int i = 0; i < WIDE; i++)
        trace += f[i * WIDE + i];
    for (size_t t = 0; t < N; t++)
        for (int i = 0; i < WIDE * WIDE; i++) {
            const size_t a = t * WIDE + (size_t)i / WIDE, b = t * WIDE + (size_t)i % WIDE;
            loss += ((double)to[a] - (double)x[a]) * ((double)to[b] - (double)x[b]) *
                    (f[i] + (a == b ? 1e-3 * trace / WIDE : 0)) / (double)fisher.n_tokens / N;
        }
    return loss;
}

static void read_rows(kvd_side side)
{
    rows_side_by_side(side == KVD_KEYS ? KVD_X_K_PRE : KVD_X_V, 1, N, x);
}

/* With small quantisation steps, the mean squared error of each component must be step^2 / 12. */
TEST(the_step_predicts_the_loss)
{
    const double steps[] = {1e-3, 1e-2, 5e-2};
    for (int side = 0; side < KVD_N_SIDES; side++) {
        double bits = INFINITY;
        read_rows((kvd_side)side);
        for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
            char text[60];
            kvd_bits_count count;
            (void)snprintf(text, sizeof text, "waterfill,step=%g,sink=0", steps[i]);
            const double loss = code(text, (kvd_side)side, N, y, &count),
                         predicted = WIDE * steps[i] * steps[i] / 12;
            if (!(fabs(loss / predicted - 1) < 0.05))
                fail_msg("%s: loss %g, predicted %g", text, loss, predicted);
            assert_true(count.payload < bits);
            bits = count.payload;
        }
    }
}

TEST(streams_continue)
{
    const char *const text[] = {"waterfill,step=0.1,sink=0", "waterfill,step=0.5,sink=3",
                                "waterfill,step=1e-6,sink=0"};
    for (int side = 0; side < KVD_N_SIDES; side++)
        for (int i = 0; i < 3; i++) {
            kvd_bits_count whole, rows;
            read_rows((kvd_side)side);
            (void)code(text[i], (kvd_side)side, N, y, &whole);
            (void)code(text[i], (kvd_side)side, 1, again, &rows);
            for (size_t j = 0; j < (size_t)N * WIDE; j++)
                assert_true(fabs((double)y[j] - (double)again[j]) <=
                            1e-5 * (1 + fabs((double)y[j])));
            assert_true(whole.side <= 32 && rows.side <= 32);
            if (!(fabs(rows.payload - whole.payload) <= 16 + 0.002 * whole.payload))
                fail_msg("%s: %g bits row by row, %g as a block", text[i], rows.payload,
                         whole.payload);
        }
}

TEST(blocks_grow)
{
    const size_t blocks[] = {1, 10, 64, 1000};
    for (int side = 0; side < KVD_N_SIDES; side++) {
        kvd_bits_count one, whole, rows;
        read_rows((kvd_side)side);
        const double loss = code("waterfill,step=0.1,sink=3", (kvd_side)side, N, y, &one);
        for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
            char text[60];
            (void)snprintf(text, sizeof text, "waterfill,step=0.1,sink=3,block=%zu", blocks[i]);
            const double whole_loss = code(text, (kvd_side)side, N, y, &whole),
                         rows_loss = code(text, (kvd_side)side, 1, again, &rows);
            const size_t n = (N - 1) / blocks[i] - 3 / blocks[i] + 1;
            assert_true(fabs(whole.side - (double)(n * KVD_STREAM_HEADER_BITS)) < 0.5);
            assert_true(fabs(rows.side - whole.side) < 0.5);
            if (!(fabs(rows.payload - whole.payload) <= 64 + 0.002 * whole.payload))
                fail_msg("%s: %g bits row by row, %g together", text, rows.payload, whole.payload);
            if (!(whole.payload < 1.08 * one.payload))
                fail_msg("%s: %g bits, %g as a stream", text, whole.payload, one.payload);
            assert_true(fabs(whole_loss / loss - 1) < 0.02 && fabs(rows_loss / loss - 1) < 0.02);
        }
    }
}

/* Checks that the method waterfill spends no bits if the loss hardly depends on V. The mean V then
 * replaces all tokens except the two attention sinks. */
TEST(sinks_and_no_rate)
{
    kvd_bits_count count;
    read_rows(KVD_VALUES);
    memset(moment[KVD_VALUES], 0, sizeof moment[KVD_VALUES]);
    for (int i = 0; i < LAYERS * WIDE; i++)
        moment[KVD_VALUES][i * WIDE + i % WIDE] = 1e-6;
    (void)code("waterfill,step=1,sink=2", KVD_VALUES, N, y, &count);
    draw_moments();
    for (size_t i = 0; i < 2 * (size_t)WIDE; i++)
        assert_true(fabs((double)y[i] - (double)x[i]) <= 1e-3 * (1 + fabs((double)x[i])));
    for (size_t i = 2 * (size_t)WIDE; i < (size_t)N * WIDE; i++)
        assert_true(fabs((double)y[i] - (double)y[2 * WIDE + i % WIDE]) < 1e-6);
    assert_true(count.payload - 16.0 * 2 * WIDE < 0.01 * N * WIDE);
}

/* Adds up, over all tokens and components, the bits that the GPU counts. The sum must be the length
 * of the coded stream. */
TEST(bits_of_one_stream)
{
    const kvd_method_setup setup = {.config = &config, .calibration = &dump, .fisher = &fisher};
    for (int i = 0; i < 4; i++) {
        kvd_bits_count count;
        kvd_stream_coder c;
        kvd_plan p;
        double bits = 32;
        const char *const text = i < 2 ? "waterfill,step=0.05,sink=0" : "waterfill,step=0.5,sink=0";
        read_rows((kvd_side)(i % 2));
        /* Makes some integers larger than any in the calibration data, so that they need escape
         * codes. */
        for (size_t j = 0; j < (size_t)N * WIDE; j++)
            x[j] *= j / WIDE % 3 ? 1 : 4;
        (void)code(text, (kvd_side)(i % 2), N, y, &count);
        open_plan(&p, text, 1, &setup);
        kvd_waterfill_coder_of(p.bits_self, 1, i % 2, &c);
        for (size_t t = 0; t < N; t++)
            for (size_t j = 0; j < WIDE; j++) {
                double sum = 0;
                for (size_t k = 0; k < WIDE; k++)
                    sum += ((double)x[t * WIDE + k] - (double)c.mean[k]) *
                           (double)c.to[k * c.to_pitch + j];
                const int32_t q = (int32_t)kvd_stream_multiple(sum, c.step);
                const kvd_stream_component of = c.streams.component[j];
                const bool has = kvd_stream_has(of, q);
                const uint16_t *const start = c.streams.start + of.at + ((has ? q : 0) - of.least);
                bits +=
                    KVD_STREAM_SHIFT - log2(start[1] - start[0]) + (has ? 0 : c.escape[j] / 16.0);
            }
        kvd_plan_close(&p);
        if (!(fabs(bits - count.payload - count.side) < 2e-3 * bits))
            fail_msg("%s: %g bits, in the stream %g", text, bits, count.payload + count.side);
    }
}

TEST(refused)
{
    kvd_fisher without = fisher;
    const kvd_method_setup setup = {.config = &config, .calibration = &dump, .fisher = &without},
                           none = {.config = &config, .calibration = &dump};
    refuse_plan("h2o+waterfill", 0, &setup, "'waterfill' codes all heads of a layer together");
    refuse_plan("waterfill", 0, &none, "--fisher");
    without.moment[KVD_VALUES] = NULL;
    refuse_plan("waterfill", 0, &setup, "--fisher has no /moment/k_pre and /moment/v");
}

TEST_MAIN(set_up, close_dump)
