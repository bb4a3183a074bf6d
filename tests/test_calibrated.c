/* Methods made from a dump of calibration rows: palu against LAPACK, kvquant against what its definition implies. */
#include <lapacke.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "calibration_dump.h"
#include "methods/presets.h"

enum { N = 300, WIDE = HEADS * D };
static char fisher_path[64];

static int set_up(void **state)
{
    (void)state;
    return open_dump(N);
}

static int tear_down(void **state)
{
    (void)state;
    close_dump();
    return 0;
}

/* Rows of both heads side by side [N][WIDE]. */
static void rows_of(kvd_x x, int layer, float *rows)
{
    float one[N * D];
    kvd_err err;
    for (int h = 0; h < HEADS; h++) {
        assert_int_equal(kvd_activations_rows(&dump, x, layer, h, 0, N, one, NULL, &err), 0);
        for (size_t t = 0; t < N; t++)
            memcpy(rows + t * WIDE + (size_t)h * D, one + t * D, D * sizeof(float));
    }
}

/* The tail of the squared singular values beyond the first r, and all of them. */
static double tail_of(const float *rows, size_t width, size_t r, double *all)
{
    double x[N * WIDE], sigma[WIDE], superb[WIDE], tail = 0;
    for (size_t i = 0; i < N * width; i++)
        x[i] = (double)rows[i];
    assert_int_equal(LAPACKE_dgesvd(LAPACK_ROW_MAJOR, 'N', 'N', N, (lapack_int)width, x, (lapack_int)width,
                                    sigma, NULL, 1, NULL, 1, superb),
                     0);
    *all = 0;
    for (size_t i = 0; i < width; i++) {
        *all += sigma[i] * sigma[i];
        tail += i >= r ? sigma[i] * sigma[i] : 0;
    }
    return tail;
}

/* What a head reads of the rows through its latents, against its own rows: squared error. */
static double rebuilt_error(const kvd_dims_head *h, kvd_side side, const float *rows, size_t wide, size_t at)
{
    const float *const a = side == KVD_KEYS ? h->a_k : h->a_v, *const b = side == KVD_KEYS ? h->b_k : h->b_v;
    const size_t r = (size_t)(side == KVD_KEYS ? h->d_qk : h->d_v);
    double sum = 0;
    for (size_t t = 0; t < N; t++) {
        double latent[WIDE] = {0};
        for (size_t j = 0; j < r; j++)
            for (size_t i = 0; i < wide; i++)
                latent[j] += (double)rows[t * wide + i] * (double)a[i * r + j];
        for (size_t i = 0; i < D; i++) {
            double y = 0;
            for (size_t j = 0; j < r; j++)
                y += latent[j] * (double)b[j * D + i];
            sum += pow(y - (double)rows[t * wide + at + i], 2);
        }
    }
    return sum;
}

/* The heads of a group stand side by side in their order, and together lose the tail and no more. */
static void palu_is_the_best_of_its_rank(void **state)
{
    (void)state;
    const char *const text[] = {"palu,p=0.5", "palu,p=0.25", "palu,p=0.75,heads=2", "palu,p=0"};
    const size_t rank[] = {8, 12, 4, 16};
    const kvd_method_setup setup = {.config = &config, .calibration = &dump};
    for (size_t i = 0; i < 4; i++) {
        kvd_method m;
        kvd_plan plan = {.type = KVD_F32};
        kvd_err err;
        assert_int_equal(kvd_method_parse(text[i], &m, &err), 0);
        kvd_method_plan(&m, &plan);
        if (kvd_plan_open(&plan, &setup, &err))
            fail_msg("%s", err.msg);
        assert_int_equal(plan.dims->heads, HEADS); /* four were asked for, there are two */
        for (int l = 0; l < LAYERS; l++)
            for (int side = 0; side < KVD_N_SIDES; side++) {
                float rows[N * WIDE];
                double all, lost = 0;
                rows_of(side == KVD_KEYS ? KVD_X_K_PRE : KVD_X_V, l, rows);
                const double tail = tail_of(rows, WIDE, rank[i], &all);
                for (size_t h = 0; h < HEADS; h++) {
                    const kvd_dims_head *const one = &plan.dims->head[(size_t)l * HEADS + h];
                    assert_int_equal(side == KVD_KEYS ? one->d_qk : one->d_v, rank[i]);
                    lost += rebuilt_error(one, (kvd_side)side, rows, WIDE, h * D);
                }
                assert_true(fabs(lost - tail) < 1e-5 * all);
            }
        kvd_plan_close(&plan);
    }
}

static void palu_of_single_heads(void **state)
{
    (void)state;
    const kvd_method_setup setup = {.config = &config, .calibration = &dump};
    kvd_method m;
    kvd_plan plan = {.type = KVD_F32};
    kvd_err err;
    assert_int_equal(kvd_method_parse("palu,p=0.5,heads=1", &m, &err), 0);
    kvd_method_plan(&m, &plan);
    assert_int_equal(kvd_plan_open(&plan, &setup, &err), 0);
    for (int h = 0; h < HEADS; h++) {
        float rows[N * D];
        double all;
        assert_int_equal(kvd_activations_rows(&dump, KVD_X_K_PRE, 1, h, 0, N, rows, NULL, &err), 0);
        const double tail = tail_of(rows, D, D / 2, &all);
        assert_true(fabs(rebuilt_error(&plan.dims->head[HEADS + h], KVD_KEYS, rows, D, 0) - tail) <
                    1e-5 * all);
    }
    kvd_plan_close(&plan);
}

/* ---- kvquant -------------------------------------------------------------------------------------------- */

static float x[N * D], y[N * D];

static double code(const char *text, kvd_side side, int layer, int head, kvd_bits_count *count)
{
    const kvd_method_setup setup = {.config = &config, .calibration = &dump};
    static uint32_t position[N];
    static uint8_t level[N];
    kvd_method m;
    void *self = NULL;
    kvd_err err = {""};
    double sum = 0;
    for (uint32_t t = 0; t < N; t++) {
        position[t] = t;
        level[t] = KVD_LEVEL_HIGH;
    }
    assert_int_equal(kvd_activations_rows(&dump, side == KVD_KEYS ? KVD_X_K_PRE : KVD_X_V, layer, head, 0, N,
                                          x, NULL, &err),
                     0);
    assert_int_equal(kvd_method_parse(text, &m, &err), 0);
    if (m.bits->open(&m.bits_values, &setup, &self, &err))
        fail_msg("%s", err.msg);
    const kvd_bits_block b = {.side = side,
                              .layer = layer,
                              .kv_head = head,
                              .n = N,
                              .d = D,
                              .x = x,
                              .level = level,
                              .position = position,
                              .prompt = true};
    assert_int_equal(m.bits->code(self, &b, y, count, &err), 0);
    m.bits->close(self);
    for (size_t i = 0; i < (size_t)N * D; i++)
        sum += pow((double)y[i] - (double)x[i], 2);
    return sum;
}

static int by_size(const void *a, const void *b)
{
    const float p = *(const float *)a, q = *(const float *)b;
    return (p > q) - (p < q);
}

/* A channel of keys has 2^bits numbers beside its outliers, and each number the nearest of them. */
static void keys_have_levels(void **state)
{
    (void)state;
    for (int bits = 1; bits <= 4; bits++)
        for (int outliers = 0; outliers < 2; outliers++) {
            char text[64];
            kvd_bits_count count;
            snprintf(text, sizeof text, "kvquant,bits=%d,outliers=%g,sink=0", bits, outliers * 0.04);
            (void)code(text, KVD_KEYS, 1, 1, &count);
            assert_true(count.payload == (double)bits * N * D);
            size_t apart = 0;
            for (size_t j = 0; j < D; j++) {
                float sorted[N], found[N] = {0};
                size_t n = 0;
                for (size_t t = 0; t < N; t++)
                    sorted[t] = x[t * D + j];
                qsort(sorted, N, sizeof *sorted, by_size);
                /* numpy.quantile(c, 0.02), (c, 0.98): between the 6th and 7th of 300 */
                const double at = outliers * 0.02 * (N - 1), part = at - floor(at);
                const size_t i = (size_t)at;
                const double lo = (1 - part) * (double)sorted[i] + part * (double)sorted[i + 1],
                             hi = (1 - part) * (double)sorted[N - 1 - i] + part * (double)sorted[N - 2 - i];
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
                        assert_true(fabs(v - (double)y[t * D + j]) <= fabs(v - (double)found[k]) + 1e-5);
                }
            }
            /* The ends of a range without outliers may round to either side of it. */
            assert_true(fabs(count.side - 32.0 * (double)apart) <= (outliers ? 0 : 64.0 * D));
        }
}

/* Of a value vector of 8 one number at each end stays, with 16 bits and an index of 16. */
static void values_keep_both_ends(void **state)
{
    (void)state;
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
    /* Half of a vector at each end is all that can be asked for: something is left between. */
    (void)code("kvquant,bits=2,outliers=0.2,sink=0", KVD_VALUES, 0, 1, &count);
    assert_true(count.side == N * (32.0 + 2 * 32));
}

static void more_bits_lose_less(void **state)
{
    (void)state;
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

/* With qnorm the normalised numbers have the mean and deviation they had before; without they have less spread. */
static void qnorm_keeps_moments(void **state)
{
    (void)state;
    double off[2];
    for (int norm = 0; norm < 2; norm++) {
        double square = 0, square_q = 0;
        for (int head = 0; head < HEADS; head++) {
            kvd_bits_count count;
            (void)code(norm ? "kvquant,bits=2,outliers=0,sink=0,qnorm=1" : "kvquant,bits=2,outliers=0,sink=0",
                       KVD_KEYS, 0, head, &count);
            for (size_t j = 0; j < D; j++) {
                float lo = INFINITY, hi = -INFINITY;
                for (size_t t = 0; t < N; t++) {
                    lo = fminf(lo, x[t * D + j]);
                    hi = fmaxf(hi, x[t * D + j]);
                }
                for (size_t t = 0; t < N; t++) {
                    const double half = ((double)hi - (double)lo) / 2, middle = ((double)hi + (double)lo) / 2;
                    square += pow(((double)x[t * D + j] - middle) / half, 2);
                    square_q += pow(((double)y[t * D + j] - middle) / half, 2);
                }
            }
        }
        off[norm] = fabs(square_q / square - 1);
    }
    assert_true(off[1] < 1e-2 && off[0] > 3 * off[1]);
}

/* ---- squared gradients --------------------------------------------------------------------------------------- */

/* Squared gradients of the dump's tokens, `of` a token, its head and dimension; n_rows of them. */
static void write_fisher(size_t n_rows, const char *hash, float (*of)(size_t token, int head, size_t dim))
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
    if (kvd_fisher_create(&f, fisher_path, &run, &err))
        fail_msg("%s", err.msg);
    for (int h = 0; h < HEADS; h++)
        for (size_t t = 0; t < n_rows; t++)
            for (size_t j = 0; j < D; j++)
                rows[((size_t)h * n_rows + t) * D + j] = of(t, h, j);
    for (int l = 0; l < LAYERS; l++)
        for (int side = 0; side < KVD_F_SIDES; side++)
            for (size_t first = 0; first < n_rows; first += 100) { /* in pieces */
                static float piece[HEADS * N * D];
                const size_t some = n_rows - first < 100 ? n_rows - first : 100;
                for (size_t h = 0; h < HEADS; h++)
                    memcpy(piece + h * some * D, rows + (h * n_rows + first) * D, some * D * sizeof *piece);
                assert_int_equal(kvd_fisher_put_rows(&f, side, l, first, some, piece, &err), 0);
            }
    f.sum[KVD_F_V][D + 1] = 3;
    f.weight[1][HEADS] = 4;
    f.root[0][1] = 0.5;
    f.loss = 7.5;
    if (kvd_fisher_finish(&f, &err))
        fail_msg("%s", err.msg);
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

static void fisher_file_is_read_as_written(void **state)
{
    (void)state;
    kvd_fisher f;
    kvd_err err = {""};
    float rows[20 * D];
    write_fisher(N, dump.corpus_hash, as_its_place);
    if (kvd_fisher_open(&f, fisher_path, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(f.n_rows, N);
    assert_int_equal(f.n_predicted, N - dump.n_sequences);
    assert_true(f.sum[KVD_F_V][D + 1] == 3 && f.weight[1][HEADS] == 4 && f.root[0][1] == 0.5 &&
                f.loss == 7.5);
    assert_int_equal(kvd_fisher_rows(&f, 1, 1, 1, 130, 20, rows, &err), 0);
    for (size_t i = 0; i < (size_t)20 * D; i++)
        assert_true(rows[i] == as_its_place(130 + i / D, 1, i % D));
    assert_int_equal(kvd_fisher_rows(&f, 1, 1, 1, N - 19, 20, rows, &err), -1);
    assert_non_null(strstr(err.msg, "has squared gradients of 300 tokens one by one, 301 are wanted"));
    kvd_fisher_close(&f);
    write_fisher(N, dump.corpus_hash, negative);
    assert_int_equal(kvd_fisher_open(&f, fisher_path, &err), 0);
    assert_int_equal(kvd_fisher_rows(&f, 0, 0, 1, 30, 20, rows, &err), -1);
    assert_non_null(strstr(err.msg, "/tokens/k_pre[0][1][40][2] is -1, no squared gradient"));
    kvd_fisher_close(&f);
}

/* Weighted or not, what a read finds: y of every head and side one behind the other. */
static void code_all(const char *text, kvd_fisher *f, bool use, float *all, char *settings)
{
    static uint32_t position[N];
    static uint8_t level[N];
    const kvd_method_setup setup = {.config = &config, .calibration = &dump, .fisher = f};
    kvd_method m;
    void *self = NULL;
    kvd_err err = {""};
    assert_int_equal(kvd_method_parse(text, &m, &err), 0);
    if (use)
        kvd_method_with_fisher(&m);
    strcpy(settings, m.settings);
    if (m.bits->open(&m.bits_values, &setup, &self, &err))
        fail_msg("%s", err.msg);
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
            assert_int_equal(
                kvd_activations_rows(&dump, side ? KVD_X_V : KVD_X_K_PRE, 1, h, 0, N, x, NULL, &err), 0);
            for (uint32_t t = 0; t < N; t++)
                position[t] = t;
            assert_int_equal(m.bits->code(self, &b, all + (side * HEADS + h) * N * D, &count, &err), 0);
        }
    m.bits->close(self);
}

/* The squared error of keys that weigh something, and of those that do not. */
static void errors_of_keys(const float *all, double error[2])
{
    kvd_err err;
    error[0] = error[1] = 0;
    for (int h = 0; h < HEADS; h++) {
        assert_int_equal(kvd_activations_rows(&dump, KVD_X_K_PRE, 1, h, 0, N, x, NULL, &err), 0);
        for (size_t i = 0; i < (size_t)N * D; i++)
            error[of_large_keys(i / D, h, 0) < 1e-6f] +=
                pow((double)all[(size_t)h * N * D + i] - (double)x[i], 2);
    }
}

static void kvquant_weighs_numbers(void **state)
{
    (void)state;
    static float plain[2 * HEADS * N * D], weighted[2 * HEADS * N * D];
    char settings[sizeof((kvd_method *)0)->settings];
    double before[2], after[2];
    kvd_fisher f;
    kvd_err err = {""};
    code_all("kvquant,bits=2,sink=0", NULL, false, plain, settings);
    assert_non_null(strstr(settings, "kvquant.weights=0"));
    write_fisher(N, dump.corpus_hash, equal);
    assert_int_equal(kvd_fisher_open(&f, fisher_path, &err), 0);
    code_all("kvquant,bits=2,sink=0", &f, true, weighted, settings); /* equal weights are none */
    assert_non_null(strstr(settings, "kvquant.weights=1"));
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        assert_true(fabsf(weighted[i] - plain[i]) <= 1e-6f * (1 + fabsf(plain[i])));
    kvd_fisher_close(&f);

    write_fisher(N, dump.corpus_hash, of_large_keys);
    assert_int_equal(kvd_fisher_open(&f, fisher_path, &err), 0);
    code_all("kvquant,bits=2,sink=0,weights=0", &f, true, weighted, settings); /* given, so it stays */
    assert_non_null(strstr(settings, "kvquant.weights=0"));
    assert_memory_equal(plain, weighted, sizeof plain);
    code_all("kvquant,bits=2,sink=0,weights=2", &f, true, weighted, settings);
    errors_of_keys(plain, before);
    errors_of_keys(weighted, after);
    assert_true(after[0] < before[0] && after[1] > before[1]);
    kvd_fisher_close(&f);
}

static void assert_open_fails(const char *text, kvd_fisher *f, const kvd_dims *dims, const char *message)
{
    const kvd_method_setup setup = {.config = &config, .calibration = &dump, .fisher = f, .dims = dims};
    kvd_method m;
    kvd_plan plan = {.type = KVD_F32, .dims = dims};
    kvd_err err = {""};
    assert_int_equal(kvd_method_parse(text, &m, &err), 0);
    kvd_method_plan(&m, &plan);
    assert_int_equal(kvd_plan_open(&plan, &setup, &err), -1);
    if (!strstr(err.msg, message))
        fail_msg("'%s' lacks '%s'", err.msg, message);
}

static void squared_gradients_that_do_not_serve(void **state)
{
    (void)state;
    kvd_fisher f;
    kvd_err err;
    assert_open_fails("kvquant,weights=1", NULL, NULL, "weights=1 needs squared gradients: give --fisher");
    assert_open_fails("palu,search=1", NULL, NULL, "search=1 needs squared gradients: give --fisher");
    write_fisher(0, dump.corpus_hash, equal);
    assert_int_equal(kvd_fisher_open(&f, fisher_path, &err), 0);
    assert_open_fails(
        "kvquant,weights=1", &f, NULL,
        "squared gradients of 0 tokens one by one, 300 are read: collect them with --fisher-rows 300");
    assert_open_fails("palu+kvquant,weights=1", &f, NULL, "squared gradients are of whole heads");
    kvd_fisher_close(&f);
    write_fisher(N, "xxh3:5", equal);
    assert_int_equal(kvd_fisher_open(&f, fisher_path, &err), 0);
    assert_open_fails("kvquant,weights=1", &f, NULL,
                      "the squared gradients are of other tokens than the calibration");
    memset(f.root[0], 0, LAYERS * HEADS * sizeof(double));
    assert_open_fails("palu,search=1", &f, NULL, "every squared gradient of W_K and W_V is 0");
    f.n_layers = 1;
    assert_open_fails("palu,search=1", &f, NULL, "of layers 0 to 0, the model has 2");
    kvd_fisher_close(&f);
}

/* Ranks of a search: of every group and side; returns their sum. */
static int searched(const char *text, kvd_fisher *f, int rank[LAYERS][HEADS][KVD_N_SIDES])
{
    const kvd_method_setup setup = {.config = &config, .calibration = &dump, .fisher = f};
    kvd_method m;
    kvd_plan plan = {.type = KVD_F32};
    kvd_err err = {""};
    int sum = 0;
    assert_int_equal(kvd_method_parse(text, &m, &err), 0);
    kvd_method_plan(&m, &plan);
    if (kvd_plan_open(&plan, &setup, &err))
        fail_msg("%s", err.msg);
    for (int i = 0; i < LAYERS * HEADS; i++) {
        rank[i / HEADS][i % HEADS][KVD_KEYS] = plan.dims->head[i].d_qk;
        rank[i / HEADS][i % HEADS][KVD_VALUES] = plan.dims->head[i].d_v;
        sum += plan.dims->head[i].d_qk + plan.dims->head[i].d_v;
    }
    kvd_plan_close(&plan);
    return sum;
}

static void palu_gives_ranks_by_information(void **state)
{
    (void)state;
    double keys[LAYERS * HEADS] = {1, 1, 1, 1}, values[LAYERS * HEADS] = {1, 1, 1, 1},
                         none[LAYERS * HEADS] = {0};
    kvd_fisher f = {.n_layers = LAYERS, .root = {keys, values}, .weight = {none, none}};
    int rank[LAYERS][HEADS][KVD_N_SIDES];
    /* Equal information, equal ranks. */
    assert_int_equal(searched("palu,p=0.5,heads=1,search=1", &f, rank), 4 * LAYERS * HEADS * 2);
    for (int i = 0; i < LAYERS * HEADS * 2; i++)
        assert_int_equal(((int *)rank)[i], 4);
    /* In proportion: 32 dimensions to shares of 1 1 1 1 and 1 3 3 5 of 16. */
    values[1] = values[2] = 3;
    values[3] = 5;
    assert_int_equal(searched("palu,p=0.5,heads=1,search=1", &f, rank), 32);
    assert_int_equal(rank[0][0][KVD_KEYS] + rank[0][1][KVD_KEYS] + rank[1][0][KVD_KEYS] +
                         rank[1][1][KVD_KEYS] + rank[0][0][KVD_VALUES],
                     12); /* five shares of 2, and the two dimensions that the whole head does not take */
    assert_int_equal(rank[1][1][KVD_VALUES], 8); /* a whole head, of 10 */
    /* Whatever the information: as many in all, none without, none above its width; groups share theirs. */
    const char *const text[] = {"palu,p=0.1,heads=1,search=1", "palu,p=0.7,heads=1,search=1",
                                "palu,p=0.95,heads=1,search=1", "palu,p=0.6,heads=2,search=1"};
    const int each[] = {7, 2, 1, 6};
    kvd_rng rng;
    kvd_rng_seed(&rng, 4, 0);
    for (int i = 0; i < 40; i++) {
        for (int j = 0; j < LAYERS * HEADS; j++) {
            keys[j] = exp(3 * kvd_rng_normal(&rng));
            values[j] = exp(3 * kvd_rng_normal(&rng));
        }
        /* Both heads of a group have its rank. */
        assert_int_equal(searched(text[i % 4], &f, rank), each[i % 4] * LAYERS * HEADS * 2);
        for (int j = 0; j < LAYERS * HEADS * 2; j++)
            assert_in_range(((int *)rank)[j], 1, i % 4 == 3 ? WIDE : D);
        for (int l = 0; i % 4 == 3 && l < LAYERS; l++)
            for (int side = 0; side < KVD_N_SIDES; side++)
                assert_int_equal(rank[l][0][side], rank[l][1][side]);
    }
}

/* Of the rows of one head, by dgesvd. */
static void singular_values(int layer, int head, int side, double *sigma)
{
    static float rows[N * D];
    static double wide[N * D];
    double superb[D];
    kvd_err err;
    assert_int_equal(kvd_activations_rows(&dump, side == KVD_KEYS ? KVD_X_K_PRE : KVD_X_V, layer, head, 0, N,
                                          rows, NULL, &err),
                     0);
    for (size_t i = 0; i < (size_t)N * D; i++)
        wide[i] = (double)rows[i];
    assert_int_equal(
        LAPACKE_dgesvd(LAPACK_ROW_MAJOR, 'N', 'N', N, D, wide, D, sigma, NULL, 1, NULL, 1, superb), 0);
}

/* Eq. 6 with one r: as many dimensions as equal ranks, or a step of r fewer; what is last is not needed, what is kept is. */
static void palu_gives_ranks_by_eq6(void **state)
{
    (void)state;
    const char *const text[] = {"palu,p=0.5,heads=1,search=3", "palu,p=0.25,heads=1,search=3",
                                "palu,p=0.9,heads=1,search=3"};
    const int each[] = {4, 6, 1};
    int rank[LAYERS][HEADS][KVD_N_SIDES];
    for (int i = 0; i < 3; i++) {
        const int most = each[i] * LAYERS * HEADS * 2, sum = searched(text[i], NULL, rank);
        double kept = 0, dropped = 1;
        assert_in_range(sum, most - LAYERS * HEADS * 2, most);
        for (int l = 0; l < LAYERS; l++)
            for (int h = 0; h < HEADS; h++)
                for (int side = 0; side < KVD_N_SIDES; side++) {
                    double sigma[D], all = 0, tail = 0;
                    const int r = rank[l][h][side];
                    singular_values(l, h, side, sigma);
                    for (int j = D - 1; j >= 0; j--)
                        all += sigma[j];
                    for (int j = r; j < D; j++)
                        tail += sigma[j];
                    kept = fmax(kept, tail / all); /* of all: r is at least this */
                    if (r > 1)
                        dropped = fmin(dropped, (tail + sigma[r - 1]) / all);
                }
        assert_true(kept < dropped + 1e-9);
    }
}

/* ---- rotatekv: with dense matrices ------------------------------------------------------------------------- */

/* The Walsh-Hadamard matrix: the sign of (i, j) is that of the number of common bits. */
static void multiply(const double *v, size_t n, size_t each, double *w)
{
    for (size_t i = 0; i < n; i++) {
        w[i] = 0;
        for (size_t j = 0; j < each; j++) {
            const int sign = __builtin_popcountll((i % each) & j) % 2 ? -1 : 1;
            w[i] += sign * v[i - i % each + j] / sqrt((double)each);
        }
    }
}

static void quantise(double *v, size_t n, int bits, double clip)
{
    double lo = INFINITY, hi = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        lo = fmin(lo, v[i]);
        hi = fmax(hi, v[i]);
    }
    const double s = clip * (hi - lo) / ((1 << bits) - 1), z = rint(-clip * lo / s);
    for (size_t i = 0; i < n; i++)
        v[i] = s * (fmin(fmax(rint(v[i] / s) + z, 0), (1 << bits) - 1) - z);
}

static size_t rotated_apart(const char *text, kvd_side side, size_t heads, size_t group, int bits,
                            double clip, kvd_bits_count *count, double *error)
{
    const kvd_method_setup setup = {.config = &config, .calibration = &dump};
    static float rows[N * WIDE], decoded[N * WIDE];
    static uint32_t position[N];
    double sum[WIDE] = {0}, rotated[WIDE];
    kvd_method m;
    void *self = NULL;
    kvd_err err = {""};
    size_t apart = 0;
    rows_of(side == KVD_KEYS ? KVD_X_K_PRE : KVD_X_V, 1, rows);
    for (uint32_t t = 0; t < N; t++) {
        position[t] = t;
        for (size_t j = 0; j < WIDE; j++)
            sum[j] += (double)rows[t * WIDE + j];
    }
    multiply(sum, WIDE, heads * D, rotated);
    assert_int_equal(kvd_method_parse(text, &m, &err), 0);
    if (m.bits->open(&m.bits_values, &setup, &self, &err))
        fail_msg("%s", err.msg);
    const kvd_bits_block b = {
        .side = side, .layer = 1, .n = N, .d = WIDE, .x = rows, .position = position, .prompt = true};
    assert_int_equal(m.bits->code(self, &b, decoded, count, &err), 0);
    m.bits->close(self);
    *error = 0;
    for (size_t t = 0; t < N; t++) {
        double v[WIDE], w[WIDE], ordered[WIDE];
        for (size_t j = 0; j < WIDE; j++)
            v[j] = (double)rows[t * WIDE + j];
        multiply(v, WIDE, heads * D, w);
        size_t place[WIDE];
        for (size_t j = 0; j < WIDE; j++) {
            place[j] = 0;
            for (size_t i = 0; i < WIDE; i++)
                place[j] += rotated[i] < rotated[j];
            place[j] = side == KVD_KEYS ? place[j] : j;
            ordered[place[j]] = w[j];
        }
        for (size_t at = 0; at < WIDE; at += group)
            quantise(ordered + at, group, bits, clip);
        for (size_t j = 0; j < WIDE; j++)
            w[j] = ordered[place[j]];
        multiply(w, WIDE, heads * D, v);
        double diff = 0, norm = 0;
        for (size_t j = 0; j < WIDE; j++) {
            diff += pow((double)decoded[t * WIDE + j] - v[j], 2);
            norm += v[j] * v[j];
            *error += pow((double)decoded[t * WIDE + j] - (double)rows[t * WIDE + j], 2);
        }
        apart += diff > 1e-5 * norm; /* scales have 11 bits */
    }
    return apart;
}

/* A number between two codes may fall to either side of the rounded scale; few tokens have one. */
static void rotations(void **state)
{
    (void)state;
    kvd_bits_count count;
    double error[4];
    assert_true(rotated_apart("rotatekv,bits=4,sink=0", KVD_KEYS, 2, 16, 4, 1, &count, &error[0]) < N / 20);
    assert_true(count.payload == 4.0 * N * WIDE && count.side == 32.0 * N);
    assert_true(rotated_apart("rotatekv,bits=4,sink=0,group=8", KVD_KEYS, 2, 8, 4, 1, &count, &error[1]) <
                N / 20);
    assert_true(count.side == 64.0 * N && error[1] < error[0]);
    assert_true(rotated_apart("rotatekv,bits=2,sink=0,heads=1", KVD_KEYS, 1, 16, 2, 0.8, &count, &error[2]) <
                N / 20);
    assert_true(error[2] > error[0]);
    assert_true(rotated_apart("rotatekv,bits=3,sink=0", KVD_VALUES, 1, 8, 3, 1, &count, &error[0]) < N / 20);
    assert_true(count.payload == 3.0 * N * WIDE && count.side == 64.0 * N);
    (void)rotated_apart("rotatekv,bits=8,sink=0", KVD_KEYS, 2, 16, 8, 1, &count, &error[3]);
    assert_true(error[3] < 1e-3 * error[2]);
    (void)rotated_apart("rotatekv,bits=3,sink=300", KVD_KEYS, 2, 16, 3, 1, &count, &error[3]);
    assert_true(count.side == 0 && count.payload == 16.0 * N * WIDE && error[3] < 1e-4 * error[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(palu_is_the_best_of_its_rank),
                                       cmocka_unit_test(palu_of_single_heads),
                                       cmocka_unit_test(keys_have_levels),
                                       cmocka_unit_test(values_keep_both_ends),
                                       cmocka_unit_test(more_bits_lose_less),
                                       cmocka_unit_test(qnorm_keeps_moments),
                                       cmocka_unit_test(fisher_file_is_read_as_written),
                                       cmocka_unit_test(kvquant_weighs_numbers),
                                       cmocka_unit_test(squared_gradients_that_do_not_serve),
                                       cmocka_unit_test(palu_gives_ranks_by_information),
                                       cmocka_unit_test(palu_gives_ranks_by_eq6),
                                       cmocka_unit_test(rotations)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
