/* Tests the method kvquant with calibration data and with squared gradients as weights of
 * errors. */
#include <unistd.h>

#include "calibration_dump.h"
#include "code_rows.h"
#include "common/quantise.h"
#include "common/rng.h"

enum { N = 300 };
static char fisher_path[64];

static float x[N * D], y[N * D];

static double code(const char *text, kvd_side side, int layer, int head, kvd_bits_count *count)
{
    const kvd_method_setup setup = {.config = &config, .calibration = &dump};
    head_rows(side == KVD_KEYS ? KVD_X_K_PRE : KVD_X_V, layer, head, N, x);
    const kvd_bits_block b = {
        .side = side, .layer = layer, .kv_head = head, .n = N, .d = D, .x = x, .prompt = true};
    code_rows(text, &setup, b, y, count);
    return squares(y, x, N * D);
}

static int by_size(const void *a, const void *b)
{
    const float p = *(const float *)a, q = *(const float *)b;
    return (p > q) - (p < q);
}

/* In the method kvquant, each key channel has at most 2^bits levels, and each key becomes the
 * nearest level. */
TEST(keys_have_levels)
{
    for (int bits = 1; bits <= 4; bits++)
        for (int outliers = 0; outliers < 2; outliers++) {
            char text[64];
            kvd_bits_count count;
            snprintf(text, sizeof text, "kvquant,bits=%d,outliers=%g,sink=0", bits,
                     outliers * 0.04);
            (void)code(text, KVD_KEYS, 1, 1, &count);
            assert_true(count.payload == (double)bits * N * D);
            size_t apart = 0;
            for (size_t j = 0; j < D; j++) {
                float sorted[N], found[N] = {0};
                size_t n = 0;
                for (size_t t = 0; t < N; t++)
                    sorted[t] = x[t * D + j];
                qsort(sorted, N, sizeof *sorted, by_size);
                /* Outliers are numbers outside of the quantiles 0.02 .. 0.98 of their channel,
                 * computed as by numpy.quantile. */
                const double at = outliers * 0.02 * (N - 1), part = at - floor(at);
                const size_t i = (size_t)at;
                const double lo = (1 - part) * (double)sorted[i] + part * (double)sorted[i + 1],
                             hi = (1 - part) * (double)sorted[N - 1 - i] +
                                  part * (double)sorted[N - 2 - i];
                for (size_t t = 0; t < N; t++) {
                    const double v = (double)x[t * D + j], w = (double)y[t * D + j];
                    if (outliers && (v < lo || v > hi)) {
                        assert_true(fabs(v - w) <= 1e-3 * fabs(v));
                        apart++;
                        continue;
                    }
                    size_t k = 0;
                    while (k < n && fabs((double)found[k] - w) > 1e-6)
                        k++;
                    if (k == n)
                        found[n++] = (float)w;
                }
                assert_true(n <= 1u << bits);
                for (size_t t = 0; t < N; t++) {
                    const double v = (double)x[t * D + j];
                    for (size_t k = 0; v >= lo && v <= hi && k < n; k++)
                        assert_true(fabs(v - (double)y[t * D + j]) <=
                                    fabs(v - (double)found[k]) + 1e-5);
                }
            }
            assert_true(fabs(count.side - 32.0 * (double)apart) <= (outliers ? 0 : 64.0 * D));
        }
}

TEST(values_keep_both_ends)
{
    kvd_bits_count count;
    const double plain = code("kvquant,bits=2,outliers=0,sink=0", KVD_VALUES, 0, 1, &count);
    assert_true(count.side == 32.0 * N && count.payload == 2.0 * N * D);
    const double apart = code("kvquant,bits=2,outliers=0.01,sink=0", KVD_VALUES, 0, 1, &count);
    assert_true(apart < plain && count.side == N * (32.0 + 2 * 32));
    for (size_t t = 0; t < N; t++) {
        size_t lo = 0, hi = 0;
        for (size_t j = 1; j < D; j++) {
            lo = x[t * D + j] < x[t * D + lo] ? j : lo;
            hi = x[t * D + j] > x[t * D + hi] ? j : hi;
        }
        assert_true(fabsf(y[t * D + lo] - x[t * D + lo]) <= 1e-3f * fabsf(x[t * D + lo]));
        assert_true(fabsf(y[t * D + hi] - x[t * D + hi]) <= 1e-3f * fabsf(x[t * D + hi]));
    }
    (void)code("kvquant,bits=2,outliers=0.2,sink=0", KVD_VALUES, 0, 1, &count);
    assert_true(count.side == N * (32.0 + 2 * 32));
}

/* The k smallest and the k largest numbers of a row are stored in 16 bits, even if other numbers of
 * the row equal them. */
TEST(many_outliers_of_wide_rows)
{
    enum { WIDE = 96, ROWS = 50, K = 10 /* rounded up from 0.1 * WIDE */ };
    const kvd_config wide = {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .d_head = WIDE};
    const kvd_method_setup setup = {.config = &wide, .drawn = true};
    static float in[ROWS * WIDE], out[ROWS * WIDE];
    kvd_rng r;
    kvd_bits_count count;
    kvd_rng_seed(&r, 3, 0);
    for (size_t i = 0; i < ROWS * WIDE; i++)
        in[i] = i / WIDE % 2 ? (float)kvd_rng_normal(&r) : (float)kvd_rng_below(&r, 7) - 3;
    const kvd_bits_block b = {.side = KVD_VALUES, .n = ROWS, .d = WIDE, .x = in, .prompt = true};
    code_rows("kvquant,bits=2,outliers=0.2,sink=0", &setup, b, out, &count);
    assert_true(count.side == ROWS * (32.0 + 32 * 2 * K));
    for (size_t t = 0; t < ROWS; t++) {
        float sorted[WIDE];
        size_t exact = 0;
        memcpy(sorted, in + t * WIDE, sizeof sorted);
        qsort(sorted, WIDE, sizeof *sorted, by_size);
        for (size_t i = t * WIDE; i < (t + 1) * WIDE; i++) {
            const bool inside = in[i] >= sorted[K] && in[i] <= sorted[WIDE - 1 - K];
            assert_true(inside || out[i] == kvd_round_f16(in[i]));
            exact += out[i] == kvd_round_f16(in[i]);
            assert_true(!inside ||
                        (out[i] >= sorted[K] - 1e-2f && out[i] <= sorted[WIDE - 1 - K] + 1e-2f));
        }
        assert_true(exact >= 2 * K);
    }
}

TEST(more_bits_lose_less)
{
    for (int side = 0; side < KVD_N_SIDES; side++) {
        double last = INFINITY;
        for (int bits = 1; bits <= 6; bits++) {
            char text[64];
            kvd_bits_count count;
            snprintf(text, sizeof text, "kvquant,bits=%d,sink=0", bits);
            const double e = code(text, (kvd_side)side, 0, 0, &count);
            assert_true(e < 0.6 * last);
            last = e;
        }
    }
    kvd_bits_count count, all;
    (void)code("kvquant,bits=2,sink=0", KVD_KEYS, 0, 0, &all);
    (void)code("kvquant,bits=2,sink=5", KVD_KEYS, 0, 0, &count);
    assert_true(count.payload == all.payload + 5 * D * (16 - 2));
    for (size_t i = 0; i < (size_t)5 * D; i++)
        assert_true(fabsf(y[i] - x[i]) <= 1e-3f * fabsf(x[i]));
}

TEST(qnorm_keeps_moments)
{
    double off[2];
    for (int norm = 0; norm < 2; norm++) {
        double square = 0, square_q = 0;
        for (int head = 0; head < HEADS; head++) {
            kvd_bits_count count;
            (void)code(norm ? "kvquant,bits=2,outliers=0,sink=0,qnorm=1"
                            : "kvquant,bits=2,outliers=0,sink=0",
                       KVD_KEYS, 0, head, &count);
            for (size_t j = 0; j < D; j++) {
                float lo = INFINITY, hi = -INFINITY;
                for (size_t t = 0; t < N; t++) {
                    lo = fminf(lo, x[t * D + j]);
                    hi = fmaxf(hi, x[t * D + j]);
                }
                for (size_t t = 0; t < N; t++) {
                    const double half = ((double)hi - (double)lo) / 2,
                                 middle = ((double)hi + (double)lo) / 2;
                    square += pow(((double)x[t * D + j] - middle) / half, 2);
                    square_q += pow(((double)y[t * D + j] - middle) / half, 2);
                }
            }
        }
        off[norm] = fabs(square_q / square - 1);
    }
    assert_true(off[1] < 1e-2 && off[0] > 3 * off[1]);
}

/* Writes a file of squared gradients of K and V. The function `of` returns the element of a token,
 * head and dimension. */
static void write_fisher(size_t n_rows, const char *hash,
                         float (*of)(size_t token, int head, size_t dim))
{
    static float rows[HEADS * N * D];
    kvd_err err = {""};
    kvd_fisher f = {.model = dump.model,
                    .label = "text",
                    .n_tokens = dump.n_tokens,
                    .n_sequences = dump.n_sequences,
                    .seq_len = dump.seq_len,
                    .n_layers = LAYERS,
                    .n_rows = n_rows};
    snprintf(fisher_path, sizeof fisher_path, "%s/f.h5", temp_folder());
    snprintf(f.corpus_hash, sizeof f.corpus_hash, "%s", hash);
    OK(kvd_fisher_create(&f, fisher_path, test_run(), &err));
    for (int h = 0; h < HEADS; h++)
        for (size_t t = 0; t < n_rows; t++)
            for (size_t j = 0; j < D; j++)
                rows[((size_t)h * n_rows + t) * D + j] = of(t, h, j);
    for (int l = 0; l < LAYERS; l++)
        for (int side = 0; side < KVD_F_SIDES; side++)
            for (size_t first = 0; first < n_rows; first += 100) {
                static float piece[HEADS * N * D];
                const size_t some = n_rows - first < 100 ? n_rows - first : 100;
                for (size_t h = 0; h < HEADS; h++)
                    memcpy(piece + h * some * D, rows + (h * n_rows + first) * D,
                           some * D * sizeof *piece);
                assert_int_equal(kvd_fisher_put_rows(&f, side, l, first, some, piece, &err), 0);
            }
    f.sum[KVD_F_V][D + 1] = 3;
    f.weight[1][HEADS] = 4;
    f.root[0][1] = 0.5;
    f.loss = 7.5;
    OK(kvd_fisher_finish(&f, &err));
    kvd_fisher_close(&f);
}

static float as_its_place(size_t token, int head, size_t dim)
{
    return (float)token + 1000 * (float)head + 0.125f * (float)dim;
}

static float equal(size_t token, int head, size_t dim)
{
    (void)token, (void)head, (void)dim;
    return 3e-7f;
}

static float of_large_keys(size_t token, int head, size_t dim)
{
    (void)dim;
    return (token + (size_t)head) % 7 ? 1e-9f : 1e-3f;
}

static float negative(size_t token, int head, size_t dim)
{
    (void)head;
    return token == 40 && dim == 2 ? -1 : 1;
}

TEST(fisher_file_is_read_as_written)
{
    kvd_fisher f;
    kvd_err err = {""};
    float rows[20 * D];
    write_fisher(N, dump.corpus_hash, as_its_place);
    OK(kvd_fisher_open(&f, fisher_path, &err));
    assert_int_equal(f.n_rows, N);
    assert_int_equal(f.n_predicted, N - dump.n_sequences);
    assert_true(f.sum[KVD_F_V][D + 1] == 3 && f.weight[1][HEADS] == 4 && f.root[0][1] == 0.5 &&
                f.loss == 7.5);
    assert_int_equal(kvd_fisher_rows(&f, 1, 1, 1, 130, 20, rows, &err), 0);
    for (size_t i = 0; i < (size_t)20 * D; i++)
        assert_true(rows[i] == as_its_place(130 + i / D, 1, i % D));
    assert_int_equal(kvd_fisher_rows(&f, 1, 1, 1, N - 19, 20, rows, &err), -1);
    assert_non_null(
        strstr(err.msg, "has squared gradients of 300 tokens one by one, 301 are wanted"));
    kvd_fisher_close(&f);
    write_fisher(N, dump.corpus_hash, negative);
    assert_int_equal(kvd_fisher_open(&f, fisher_path, &err), 0);
    assert_int_equal(kvd_fisher_rows(&f, 0, 0, 1, 30, 20, rows, &err), -1);
    assert_non_null(strstr(err.msg, "/tokens/k_pre[0][1][40][2] is -1, no squared gradient"));
    kvd_fisher_close(&f);
}

/* Quantises and restores K and V of all tokens. If `use`, the squared gradients f weight the
 * errors. */
static void code_all(const char *text, kvd_fisher *f, bool use, float *all, char *settings)
{
    static uint32_t position[N];
    static uint8_t level[N];
    const kvd_method_setup setup = {.config = &config, .calibration = &dump, .fisher = f};
    kvd_method m = parsed(text);
    void *self = NULL;
    kvd_err err = {""};
    if (use)
        kvd_method_with_fisher(&m);
    strcpy(settings, m.settings);
    OK(m.plan.bits->open(&m.plan.bits_values, &setup, &self, &err));
    for (int side = 0; side < KVD_N_SIDES; side++)
        for (int h = 0; h < HEADS; h++) {
            kvd_bits_count count;
            const kvd_bits_block b = {.side = (kvd_side)side,
                                      .layer = 1,
                                      .kv_head = h,
                                      .n = N,
                                      .d = D,
                                      .x = x,
                                      .level = level,
                                      .position = position,
                                      .prompt = true};
            head_rows(side ? KVD_X_V : KVD_X_K_PRE, 1, h, N, x);
            for (uint32_t t = 0; t < N; t++)
                position[t] = t;
            OK(m.plan.bits->code(self, &b, all + (side * HEADS + h) * N * D, &count, &err));
        }
    m.plan.bits->close(self);
}

/* Sums squared quantisation errors: over keys with squared gradient 1e-3 into error[0], over keys
 * with squared gradient 1e-9 into error[1]. */
static void errors_of_keys(const float *all, double error[2])
{
    error[0] = error[1] = 0;
    for (int h = 0; h < HEADS; h++) {
        head_rows(KVD_X_K_PRE, 1, h, N, x);
        for (size_t i = 0; i < (size_t)N * D; i++)
            error[of_large_keys(i / D, h, 0) < 1e-6f] +=
                pow((double)all[(size_t)h * N * D + i] - (double)x[i], 2);
    }
}

TEST(kvquant_weighs_numbers)
{
    static float plain[2 * HEADS * N * D], weighted[2 * HEADS * N * D];
    char settings[sizeof((kvd_method *)0)->settings];
    double before[2], after[2];
    kvd_fisher f;
    kvd_err err = {""};
    code_all("kvquant,bits=2,sink=0", NULL, false, plain, settings);
    assert_non_null(strstr(settings, "kvquant.weights=0"));
    write_fisher(N, dump.corpus_hash, equal);
    assert_int_equal(kvd_fisher_open(&f, fisher_path, &err), 0);
    code_all("kvquant,bits=2,sink=0", &f, true, weighted, settings);
    assert_non_null(strstr(settings, "kvquant.weights=1"));
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        assert_true(fabsf(weighted[i] - plain[i]) <= 1e-6f * (1 + fabsf(plain[i])));
    kvd_fisher_close(&f);

    write_fisher(N, dump.corpus_hash, of_large_keys);
    assert_int_equal(kvd_fisher_open(&f, fisher_path, &err), 0);
    code_all("kvquant,bits=2,sink=0,weights=0", &f, true, weighted,
             settings); /* weights=0, which the user set, must not change */
    assert_non_null(strstr(settings, "kvquant.weights=0"));
    assert_memory_equal(plain, weighted, sizeof plain);
    code_all("kvquant,bits=2,sink=0,weights=2", &f, true, weighted, settings);
    errors_of_keys(plain, before);
    errors_of_keys(weighted, after);
    assert_true(after[0] < before[0] && after[1] > before[1]);
    kvd_fisher_close(&f);
}

static void assert_open_fails(const char *text, kvd_fisher *f, const char *message)
{
    const kvd_method_setup setup = {.config = &config, .calibration = &dump, .fisher = f};
    refuse_plan(text, 0, &setup, message);
}

TEST(squared_gradients_that_do_not_serve)
{
    kvd_fisher f;
    kvd_err err;
    assert_open_fails("kvquant,weights=1", NULL,
                      "weights=1 needs squared gradients: give --fisher");
    assert_open_fails("palu,search=1", NULL, "search=1 needs squared gradients: give --fisher");
    write_fisher(0, dump.corpus_hash, equal);
    assert_int_equal(kvd_fisher_open(&f, fisher_path, &err), 0);
    assert_open_fails("kvquant,weights=1", &f,
                      "squared gradients of 0 tokens one by one, 300 are read: collect them with "
                      "--fisher-rows 300");
    assert_open_fails("palu+kvquant,weights=1", &f, "squared gradients are of whole heads");
    kvd_fisher_close(&f);
    write_fisher(N, "xxh3:5", equal);
    assert_int_equal(kvd_fisher_open(&f, fisher_path, &err), 0);
    assert_open_fails("kvquant,weights=1", &f,
                      "the squared gradients are of other tokens than the calibration");
    memset(f.root[0], 0, LAYERS * HEADS * sizeof(double));
    assert_open_fails("palu,search=1", &f, "every squared gradient of W_K and W_V is 0");
    f.n_layers = 1;
    assert_open_fails("palu,search=1", &f, "of layers 0 to 0, the model has 2");
    kvd_fisher_close(&f);
}

TEST_MAIN_WITH_DUMP(N)
