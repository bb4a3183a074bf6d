/* Compares the methods fp8, mxfp4, nvfp4, comet and vidkv with PyTorch and torchao
 * (tests/oracle/make_floats.py). */
#include "calibration_dump.h"
#include "code_rows.h"
#include "methods/bits/minifloat.h"
#include "model/checkpoint/safetensors.h"

enum { N = 300 };
static kvd_safetensors *file;

static int set_up(void **state)
{
    kvd_err err;
    (void)state;
    file = kvd_safetensors_open("tests/data/floats.safetensors", &err);
    return open_dump(N) || !file;
}

static int tear_down(void **state)
{
    kvd_safetensors_close(file);
    return close_dump(state);
}

enum { CASTS = 2602 };

static void code(const char *text, kvd_side side, int layer, int head, const float *x, size_t n,
                 size_t d, float *y, kvd_bits_count *count)
{
    const kvd_method_setup setup = {.config = &config, .calibration = &dump};
    const kvd_bits_block b = {
        .side = side, .layer = layer, .kv_head = head, .n = n, .d = d, .x = x};
    code_rows(text, &setup, b, y, count);
}

TEST(casts_of_pytorch)
{
    const struct {
        const char *name;
        const kvd_minifloat *format;
        float scale;
    } all[] = {{"fp8_e4m3", &kvd_e4m3, 1},
               {"fp8_e5m2", &kvd_e5m2, 1},
               {"fp8_e4m3_scaled", &kvd_e4m3, 0.037f},
               {"fp8_e5m2_scaled", &kvd_e5m2, 0.037f}};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        const float *const x = tensor_of(file, "fp8_x", CASTS), *const want = tensor_of(
                                                                    file, all[k].name, CASTS);
        for (size_t i = 0; i < CASTS; i++) {
            const float got =
                kvd_minifloat_round(all[k].format, x[i] / all[k].scale) * all[k].scale;
            if (memcmp(&got, &want[i], sizeof got) != 0)
                fail_msg("%s of %.9g: %.9g, not %.9g", all[k].name, (double)x[i], (double)got,
                         (double)want[i]);
        }
    }
    assert_true(isnan(kvd_minifloat_round(&kvd_e4m3, NAN)));
    assert_true(kvd_minifloat_round(&kvd_e4m3, INFINITY) == 448);
    assert_true(kvd_minifloat_round(&kvd_e5m2, -INFINITY) == -57344);
}

TEST(fp8_is_the_cast)
{
    const char *const names[][2] = {{"fp8", "fp8_e4m3"}, {"fp8,mantissa=2", "fp8_e5m2"}};
    for (int k = 0; k < 2; k++) {
        static float y[CASTS];
        kvd_bits_count count;
        code(names[k][0], KVD_KEYS, 0, 0, tensor_of(file, "fp8_x", CASTS), 1, CASTS, y, &count);
        assert_memory_equal(y, tensor_of(file, names[k][1], CASTS), sizeof y);
        assert_true(count.payload == 8.0 * CASTS && count.side == 0);
    }
}

TEST(blocks_of_torchao)
{
    const struct {
        const char *method, *input, *output;
        /* expected number of bits for the scales of a vector of 96 numbers */
        double side;
    } all[] = {{"mxfp4", "mx_x", "mx", 3 * 8}, {"nvfp4", "nv_x", "nv", 6 * 8}};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        enum { ROWS = 40, WIDE = 96 };
        const float *const x = tensor_of(file, all[k].input, ROWS * WIDE), *const want = tensor_of(
                                                                               file, all[k].output,
                                                                               ROWS * WIDE);
        static float y[ROWS * WIDE];
        kvd_bits_count count;
        code(all[k].method, KVD_VALUES, 0, 0, x, ROWS, WIDE, y, &count);
        for (size_t i = 0; i < (size_t)ROWS * WIDE; i++)
            if (y[i] < want[i] || y[i] > want[i])
                fail_msg("%s, number %zu, %.9g: %.9g, not %.9g", all[k].method, i, (double)x[i],
                         (double)y[i], (double)want[i]);
        assert_true(count.payload == 4.0 * ROWS * WIDE && count.side == all[k].side * ROWS);
    }
}

/* Vectors of 40 numbers are padded: in mxfp4 to 64 numbers with 2 scales, in nvfp4 to 48 with 3. */
TEST(ends_of_rows)
{
    static float x[3 * 40], y[3 * 40];
    kvd_bits_count count;
    for (size_t j = 0; j < 40; j++) {
        x[40 + j] = j % 2 ? 3 : -6;
        x[80 + j] = j < 32 ? 448 : 1;
    }
    code("mxfp4", KVD_KEYS, 0, 0, x, 3, 40, y, &count);
    assert_memory_equal(x, y, sizeof x - 40 * sizeof *x);
    /* In mxfp4, the largest number of a block with scale 64 is 6 * 64, so 448 becomes 384. */
    assert_true(y[80] == 384 && y[119] == 1);
    assert_true(count.payload == 3 * 160 && count.side == 3 * (24 * 4 + 2 * 8));
    code("nvfp4", KVD_KEYS, 0, 0, x, 3, 40, y, &count);
    assert_memory_equal(x, y, sizeof x - 40 * sizeof *x);
    /* In nvfp4, the block's scale 448 / 6 = 74.7 is rounded to 72, so 448 becomes 6 * 72. */
    assert_true(y[80] == 6 * 72 && y[119] > 0.9f && y[119] < 1.1f);
    assert_true(count.payload == 3 * 160 && count.side == 3 * (8 * 4 + 3 * 8));
}

TEST(codes_per_channel)
{
    enum { ROWS = 72, WIDE = 24 };
    const struct {
        const char *method, *output;
        kvd_side side;
    } all[] = {{"vidkv", "vid_keys", KVD_KEYS},
               {"vidkv", "vid_values", KVD_VALUES},
               {"comet", "comet", KVD_KEYS},
               {"comet", "comet", KVD_VALUES}};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        const float *const x = tensor_of(file, "vid_x", ROWS * WIDE), *const want = tensor_of(
                                                                          file, all[k].output,
                                                                          ROWS * WIDE);
        static float y[ROWS * WIDE];
        kvd_bits_count count;
        code(all[k].method, all[k].side, 0, 0, x, ROWS, WIDE, y, &count);
        for (size_t i = 0; i < (size_t)ROWS * WIDE; i++)
            if (!(fabsf(y[i] - want[i]) < 2e-6f * (1 + fabsf(want[i]))))
                fail_msg("%s, number %zu, %.9g: %.9g, not %.9g", all[k].output, i, (double)x[i],
                         (double)y[i], (double)want[i]);
    }
}

/* Returns the largest magnitude in a layer's calibration data, of the KV head `head` or, if this is
 * -1, of all heads. */
static float largest_of(kvd_x what, int layer, int head)
{
    static float rows[N * D];
    float most = 0;
    for (int g = 0; g < HEADS; g++) {
        head_rows(what, layer, g, N, rows);
        for (size_t i = 0; i < (size_t)N * D && (head < 0 || head == g); i++)
            most = fmaxf(most, fabsf(rows[i]));
    }
    return most;
}

TEST(scales_of_calibration)
{
    static float x[4 * D], y[4 * D];
    kvd_bits_count count;
    for (size_t i = 0; i < 4 * (size_t)D; i++)
        x[i] = 0.3f * sinf((float)i);
    for (int per = 1; per <= 2; per++)
        for (int side = 0; side < KVD_N_SIDES; side++)
            for (int head = 0; head < HEADS; head++) {
                char text[40];
                const float largest =
                    largest_of(side == KVD_KEYS ? KVD_X_K : KVD_X_V, 1, per == 1 ? -1 : head);
                (void)snprintf(text, sizeof text, "fp8,scale=%d", per);
                code(text, (kvd_side)side, 1, head, x, 4, D, y, &count);
                for (size_t i = 0; i < 4 * (size_t)D; i++) {
                    const float scale = largest / 448,
                                want = kvd_minifloat_round(&kvd_e4m3, x[i] / scale) * scale;
                    assert_memory_equal(&y[i], &want, sizeof want);
                }
            }
    enum { NV = 40 * 96 };
    static float nv[NV], got[NV];
    const float *const from = tensor_of(file, "nv_x", NV), *const want =
                                                               tensor_of(file, "nv_scaled", NV);
    const float c = largest_of(KVD_X_V, 0, 1) / (6 * 448) / 0.0123f;
    for (size_t i = 0; i < NV; i++)
        nv[i] = from[i] * c;
    code("nvfp4,scale=2", KVD_VALUES, 0, 1, nv, 40, 96, got, &count);
    size_t off = 0;
    for (size_t i = 0; i < NV; i++)
        off += fabsf(got[i] - c * want[i]) > 1e-5f * fabsf(c * want[i]);
    assert_true(off <= NV / 500);
}

TEST(scales_need_calibration)
{
    const kvd_method_setup nothing = {.config = &config};
    const char *const text[] = {"fp8,scale=1", "nvfp4,scale=2", "fp8", "nvfp4"};
    for (int i = 0; i < 4; i++) {
        const kvd_method m = parsed(text[i]);
        assert_true(((kvd_plan_needs(&m.plan) & KVD_NEEDS_ACTIVATIONS) != 0) == (i < 2));
        kvd_plan plan;
        if (i < 2) {
            refuse_plan(text[i], 0, &nothing, "needs activations of calibration text");
            continue;
        }
        open_plan(&plan, text[i], 0, &nothing);
        kvd_plan_close(&plan);
    }
}

TEST_MAIN(set_up, tear_down)
