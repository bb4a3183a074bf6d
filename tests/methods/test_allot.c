/* Tests the method allot, which gives dimensions different numbers of bits by water-filling. */
#include "calibration_dump.h"
#include "code_rows.h"

enum { N = 2000, PLACES = LAYERS * HEADS };

static float x[N * D], y[N * D];
static kvd_bits_count count;

/* Makes each head project Q, K and V by the same matrix `a` [D][D]. qk, v: decompositions whose
 * singular values determine the number of bits per dimension. */
static void project_with(kvd_dims *d, kvd_dims_head *head, float *a, kvd_pair qk, kvd_pair v)
{
    for (int i = 0; i < PLACES; i++)
        head[i] = (kvd_dims_head){.d_qk = D, .d_v = D, .a_q = a, .a_k = a, .a_v = a, .b_v = a};
    *d = (kvd_dims){.pair = {qk, v},
                    .n_layers = LAYERS,
                    .n_kv_heads = HEADS,
                    .d_head = D,
                    .heads = 1,
                    .head = head};
}

static void code(const char *text, const kvd_dims *dims, const kvd_spectrum *spectrum,
                 kvd_side side, int layer, int head)
{
    const kvd_method_setup setup = {
        .config = &config, .calibration = &dump, .dims = dims, .spectrum = spectrum};
    static float rows[N * D];
    head_rows(side == KVD_VALUES ? KVD_X_V : dims ? KVD_X_K : KVD_X_K_PRE, layer, head, N, rows);
    for (size_t t = 0; t < N; t++)
        for (size_t j = 0; j < D; j++) {
            double sum = dims ? 0 : (double)rows[t * D + j];
            for (size_t i = 0; dims && i < D; i++)
                sum += (double)rows[t * D + i] * (double)dims->head[0].a_k[i * D + j];
            x[t * D + j] = (float)sum;
        }
    const kvd_bits_block b = {
        .side = side, .layer = layer, .kv_head = head, .n = N, .d = D, .x = x, .prompt = true};
    code_rows(text, &setup, b, y, &count);
}

static double error_of(size_t j, double *variance)
{
    double sum = 0, mean = 0, square = 0;
    for (size_t t = 0; t < N; t++) {
        mean += (double)x[t * D + j] / N;
        sum += pow((double)y[t * D + j] - (double)x[t * D + j], 2);
    }
    for (size_t t = 0; t < N; t++)
        square += pow((double)x[t * D + j] - mean, 2);
    *variance = square / N;
    return sum / N;
}

static size_t distinct(size_t j)
{
    float found[300] = {0};
    size_t n = 0;
    for (size_t t = 0; t < N; t++) {
        size_t k = 0;
        while (k < n && (found[k] < y[t * D + j] || found[k] > y[t * D + j]))
            k++;
        if (k == n && n < 300)
            found[n++] = y[t * D + j];
    }
    return n;
}

/* Sets a [D][D] to the diagonal matrix with the elements 1, ratio, ratio^2, ... */
static void falling(float *a, double ratio)
{
    memset(a, 0, D * D * sizeof *a);
    for (size_t j = 0; j < D; j++)
        a[j * D + j] = (float)pow(ratio, (double)j);
}

TEST(errors_are_alike)
{
    float a[D * D];
    kvd_dims_head head[PLACES];
    kvd_dims dims;
    falling(a, 0.4);
    project_with(&dims, head, a, KVD_PAIR_QK, KVD_PAIR_VW);
    for (int side = 0; side < KVD_N_SIDES; side++) {
        double lo = INFINITY, hi = 0, largest_without = 0, sum = 0, plain = 0, variance;
        size_t without = 0;
        code("allot,bits=2,sink=0", &dims, NULL, (kvd_side)side, 1, 0);
        assert_true(count.side == 0 && count.payload <= 2.0 * N * D &&
                    count.payload >= (2.0 * D - 2) * N);
        for (size_t j = 0; j < D; j++) {
            const double e = error_of(j, &variance);
            sum += e;
            if (distinct(j) == 1) {
                without++;
                largest_without = fmax(largest_without, variance);
                assert_true(fabs(e / variance - 1) < 1e-3);
            } else {
                lo = fmin(lo, e);
                hi = fmax(hi, e);
            }
        }
        assert_true(without > 0 && without < D && hi < 6 * lo && largest_without < 2 * hi);
        code("kvquant,bits=2,outliers=0,sink=0", &dims, NULL, (kvd_side)side, 1, 0);
        for (size_t j = 0; j < D; j++)
            plain += error_of(j, &variance);
        assert_true(sum < plain / 2);
    }
}

TEST(more_bits_lose_less)
{
    for (int side = 0; side < KVD_N_SIDES; side++) {
        double last = INFINITY;
        for (int k = 1; k <= 12; k++) {
            char text[64];
            double sum = 0, variance;
            snprintf(text, sizeof text, "allot,bits=%g,sink=0", 0.5 * k);
            code(text, NULL, NULL, (kvd_side)side, 0, 1);
            for (size_t j = 0; j < D; j++)
                sum += error_of(j, &variance);
            assert_true(sum < 0.8 * last);
            assert_true(count.payload <= 0.5 * k * N * D && count.payload > (0.5 * k * D - 2) * N);
            last = sum;
        }
    }
    code("allot,bits=1,sink=5", NULL, NULL, KVD_KEYS, 0, 1);
    for (size_t i = 0; i < (size_t)5 * D; i++)
        assert_true(fabsf(y[i] - x[i]) <= 1e-3f * fabsf(x[i]));
}

/* Tests that dimensions with larger singular values get more bits. Here the singular values tell
 * how much the model's loss rises if a dimension is removed. */
TEST(singular_values_decide)
{
    float a[D * D];
    kvd_dims_head head[PLACES];
    kvd_dims dims;
    kvd_err err = {""};
    kvd_spectrum s = {.model = dump.model, .n_layers = LAYERS, .pairing = KVD_SHARED};
    assert_int_equal(kvd_spectrum_alloc(&s, KVD_PAIR_FQK, &err), 0);
    assert_int_equal(kvd_spectrum_alloc(&s, KVD_PAIR_FVW, &err), 0);
    for (int l = 0; l < LAYERS; l++)
        for (int h = 0; h < HEADS; h++)
            for (int side = 0; side < 2; side++) {
                double *const sigma =
                    kvd_spectrum_sigma(&s, side ? KVD_PAIR_FVW : KVD_PAIR_FQK, l, h);
                for (size_t j = 0; j < D; j++)
                    sigma[j] = (l == 1 && h == 0 && side == 0 ? 1e3 : 1) * pow(0.5, (double)j);
            }
    falling(a, 2);
    project_with(&dims, head, a, KVD_PAIR_FQK, KVD_PAIR_FVW);
    code("allot,bits=1,sink=0", &dims, &s, KVD_KEYS, 1, 0);
    assert_true(count.payload > 6.0 * N * D);
    code("allot,bits=1,sink=0", &dims, &s, KVD_KEYS, 0, 0);
    assert_true(count.payload < 1.0 * N * D);
    for (size_t j = 1; j < D; j++)
        assert_true(distinct(j) <= distinct(j - 1));
    assert_true(distinct(0) > 1 && distinct(D - 1) == 1);
    for (int i = 0; i < PLACES; i++)
        head[i].a_v = head[i].b_v = NULL;
    code("allot,bits=1,sink=0", &dims, &s, KVD_KEYS, 1, 0);
    assert_true(count.payload <= 1.0 * N * D);
    kvd_spectrum_release(&s);
}

TEST_MAIN_WITH_DUMP(N)
