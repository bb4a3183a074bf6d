/* Tests the method xquant, which stores quantised layer inputs and computes K and V from them. */
#include <lapacke.h>
#include <stdio.h>

#include "code_rows.h"
#include "common/rng.h"
#include "model/checkpoint/weights.h"

enum { N = 24, MOST = 512, LAYER = 1 };
static float input[N * MOST], unused[N * MOST], y[N * MOST];

typedef struct {
    kvd_checkpoint *checkpoint;
    const kvd_config *config;
    size_t d, wide;
    float w[KVD_N_SIDES][MOST * MOST], bias[KVD_N_SIDES][MOST];
} model;

static void read_part(const model *m, kvd_part part, bool bias, float *to, size_t n)
{
    kvd_weight w;
    kvd_err err = {""};
    memset(to, 0, n * sizeof *to);
    assert_int_equal(kvd_weight_find(m->checkpoint, part, bias, LAYER, &w, &err), 0);
    assert_true(w.n == n || (bias && w.n == 0));
    if (w.n)
        kvd_weight_read(&w, 0, w.n, to);
}

static model *open_model(const char *path)
{
    kvd_err err = {""};
    kvd_rng r;
    model *const m = calloc(1, sizeof *m);
    assert_non_null(m);
    OK(!(m->checkpoint = kvd_checkpoint_open(path, &err)));
    m->config = kvd_checkpoint_config(m->checkpoint);
    m->d = (size_t)m->config->d_model;
    m->wide = (size_t)m->config->n_kv_heads * (size_t)m->config->d_head;
    assert_true(m->d <= MOST && m->wide <= MOST);
    read_part(m, KVD_PART_K, false, m->w[KVD_KEYS], m->wide * m->d);
    read_part(m, KVD_PART_V, false, m->w[KVD_VALUES], m->wide * m->d);
    read_part(m, KVD_PART_K, true, m->bias[KVD_KEYS], m->wide);
    read_part(m, KVD_PART_V, true, m->bias[KVD_VALUES], m->wide);
    kvd_rng_seed(&r, 4, 1);
    for (size_t i = 0; i < N * m->d; i++) /* channels of unequal magnitude */
        input[i] = (float)(kvd_rng_normal(&r) * (1 + (double)(i % m->d % 7)));
    return m;
}

static void close_model(model *m)
{
    kvd_checkpoint_close(m->checkpoint);
    free(m);
}

static void code(const model *m, const char *text, kvd_side side, kvd_bits_count *count)
{
    const kvd_method_setup setup = {.config = m->config, .checkpoint = m->checkpoint};
    const kvd_bits_block b = {
        .side = side, .layer = LAYER, .n = N, .d = m->wide, .x = unused, .input = input};
    code_rows(text, &setup, b, y, count);
}

/* Quantises and restores n numbers x[0], x[next], x[2 next], ... by the formula of the XQuant
 * paper. */
static void quantise(double *x, size_t n, size_t next, int bits)
{
    double lo = x[0], hi = x[0];
    for (size_t i = 1; i < n; i++) {
        lo = fmin(lo, x[i * next]);
        hi = fmax(hi, x[i * next]);
    }
    const double step = (double)kvd_round_f16((float)((hi - lo) / (pow(2, bits) - 1))),
                 zero = (double)kvd_round_f16((float)lo);
    for (size_t i = 0; i < n; i++)
        x[i * next] =
            step * fmin(fmax(nearbyint((x[i * next] - zero) / step), 0), pow(2, bits) - 1) + zero;
}

/* Compares the dequantised K or V in array y with the exact K or V, x W^T + b. Returns the relative
 * squared error. */
static double error_of(const model *m, int side, const double *x)
{
    double off = 0, all = 0;
    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j < m->wide; j++) {
            double want = 0;
            for (size_t k = 0; k < m->d; k++)
                want += x[i * m->d + k] * (double)m->w[side][j * m->d + k];
            off += pow((double)y[i * m->wide + j] - want - (double)m->bias[side][j], 2);
            all += want * want;
        }
    return off / all;
}

static void copy_input(const model *m, double *x)
{
    for (size_t i = 0; i < N * m->d; i++)
        x[i] = (double)input[i];
}

static const char *const grouped = "tests/data/families/llama-biases",
                         *const heads = "tests/data/families/opt-before";

TEST(many_bits_are_the_model)
{
    static double x[N * MOST];
    const char *const path[] = {grouped, heads};
    for (size_t i = 0; i < 2; i++) {
        model *const m = open_model(path[i]);
        kvd_bits_count count;
        copy_input(m, x);
        for (int side = 0; side < KVD_N_SIDES; side++) {
            code(m, "xquant,bits=16,group=8", (kvd_side)side, &count);
            assert_true(error_of(m, side, x) < 1e-6);
            assert_true(count.payload == 16.0 * N * (double)(m->wide < m->d ? m->wide : m->d));
        }
        if (2 * m->wide >= m->d)
            for (int side = 0; side < KVD_N_SIDES; side++) {
                code(m, "xquant,bits=16,group=8,latent=0", (kvd_side)side, &count);
                assert_true(error_of(m, side, x) < 1e-6);
                assert_true(count.payload == 8.0 * N * (double)m->d);
            }
        close_model(m);
    }
}

TEST(an_input_is_quantised_once)
{
    static double x[N * MOST];
    enum { GROUP = 8 };
    model *const m = open_model(heads);
    kvd_bits_count count[KVD_N_SIDES];
    assert_int_equal(m->wide, m->d);
    assert_int_equal(m->d % GROUP, 0);
    copy_input(m, x);
    code(m, "xquant,bits=3,group=8,latent=0", KVD_KEYS, &count[0]);
    assert_true(error_of(m, KVD_KEYS, x) > 1e-4);
    for (size_t at = 0; at < N * m->d; at += GROUP)
        quantise(x + at, GROUP, 1, 3);
    assert_true(error_of(m, KVD_KEYS, x) < 1e-8);
    code(m, "xquant,bits=3,group=8,latent=0", KVD_VALUES, &count[1]);
    assert_true(error_of(m, KVD_VALUES, x) < 1e-8);
    assert_true(count[0].payload + count[1].payload == 3.0 * N * (double)m->d);
    assert_true(count[0].side + count[1].side == 32.0 * N * (double)(m->d / GROUP));
    close_model(m);
}

/* With latent=1, the method xquant quantises X U per channel, with the layer inputs X and the SVD
 * W_K^T = U S B^T. Keys are then computed as (X U) (U^T W_K^T). */
TEST(keys_are_read_from_a_latent)
{
    static double a[MOST * MOST], u[MOST * MOST], sigma[MOST], vt[MOST * MOST], superb[MOST],
        latent[N * MOST], x[N * MOST];
    enum { GROUP = 8, BITS = 4 };
    model *const m = open_model(grouped);
    const size_t d = m->d, r = m->wide;
    kvd_bits_count count;
    assert_true(r < d && N % GROUP == 0);
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < r; j++)
            a[i * r + j] = (double)m->w[KVD_KEYS][j * d + i];
    assert_int_equal(LAPACKE_dgesvd(LAPACK_ROW_MAJOR, 'S', 'S', (lapack_int)d, (lapack_int)r, a,
                                    (lapack_int)r, sigma, u, (lapack_int)r, vt, (lapack_int)r,
                                    superb),
                     0);
    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j < r; j++) {
            latent[i * r + j] = 0;
            for (size_t k = 0; k < d; k++)
                latent[i * r + j] += (double)input[i * d + k] * u[k * r + j];
        }
    for (size_t j = 0; j < r; j++)
        for (size_t i = 0; i < N; i += GROUP)
            quantise(latent + i * r + j, GROUP, r, BITS);
    for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < d; k++) {
            x[i * d + k] = 0;
            for (size_t j = 0; j < r; j++)
                x[i * d + k] += latent[i * r + j] * u[k * r + j];
        }
    code(m, "xquant,bits=4,group=8", KVD_KEYS, &count);
    const double rounding = error_of(m, KVD_KEYS, x);
    copy_input(m, x);
    const double coded = error_of(m, KVD_KEYS, x);
    if (!(rounding < 1e-5 && coded > 1e-3))
        fail_msg("error %g against the definition, %g against the model", rounding, coded);
    assert_true(count.payload == (double)BITS * N * (double)r);
    assert_true(count.side == 32.0 * (N / GROUP) * (double)r);
    close_model(m);
}

TEST(refusals)
{
    model *const m = open_model("tests/data/families/falcon-40b");
    const kvd_method_setup setup = {.config = m->config, .checkpoint = m->checkpoint};
    refuse_plan("xquant,latent=0", 0, &setup, "latent=0 stores");
    refuse_plan("xquant,latent=0", 0, &setup, "give latent=1");
    close_model(m);
}

TEST_MAIN(NULL, NULL)
