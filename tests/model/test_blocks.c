/* Tests operations of the CPU's forward pass against computations in double precision. */
#include <math.h>
#include <string.h>

#include "model/pass/blocks.h"
#include "model/pass/vector.h"
#include "unit.h"

static uint64_t state = 88172645463325252u;

static double uniform(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) / 4503599627370496.0 - 1.0;
}

static float *random_floats(size_t n, double scale)
{
    float *x = unit_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(scale * (uniform() + uniform() + uniform()));
    return x;
}

static double distance(const float *a, const double *b, size_t n)
{
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        s += b[i] * b[i];
    }
    return s > 0 ? sqrt(d / s) : sqrt(d);
}

/* Returns the error of y in units in the last place of `exact`. */
static double ulps(float y, double exact)
{
    return fabs((double)y - exact) / ldexp(1.0, ilogb(exact) - 23);
}

KVD_CLONES static void all_exponentials(const float *x, float *y, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        y[i] = kvd_expf(x[i]);
}

/* Compares kvd_expf with exp in double precision at every 97th float from -87.3 to 88.37. */
TEST(test_exponential_accuracy)
{
    enum { N = 1024 };
    float x[N], y[N];
    double worst = 0;
    for (int sign = 0; sign < 2; sign++) {
        float end = sign ? -87.3f : 88.37f;
        uint32_t last, bits = sign ? 0x80000000u : 0;
        memcpy(&last, &end, sizeof last);
        while (bits <= last) {
            size_t n = 0;
            for (; n < N && bits <= last; n++, bits += 97)
                memcpy(x + n, &bits, sizeof bits);
            all_exponentials(x, y, n);
            for (size_t i = 0; i < n; i++) {
                const double u = ulps(y[i], exp((double)x[i]));
                worst = u > worst ? u : worst;
            }
        }
    }
    assert_true(worst <= 1.1);
}

TEST(test_exponential_at_the_ends)
{
    const float x[8] = {-INFINITY, -1e30f, -200.0f, -88.0f, 89.0f, 1e30f, INFINITY, NAN};
    float y[8];
    all_exponentials(x, y, 8);
    for (int i = 0; i < 4; i++)
        assert_true(y[i] == 0.0f);
    for (int i = 4; i < 7; i++)
        assert_true(isinf(y[i]) && y[i] > 0);
    assert_true(isnan(y[7]));
    assert_true(kvd_expf(0.0f) == 1.0f);
}

static const size_t sizes[] = {1, 2, 3, 7, 15, 16, 17, 31, 33, 64, 100, 257, 1000, 4096};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

TEST(test_rms_norm)
{
    for (size_t a = 0; a < N_SIZES; a++) {
        const size_t d = sizes[a], n = d < 64 ? 33 : 9;
        float *x = random_floats(n * d, 3), *gain = random_floats(d, 1),
              *y = random_floats(n * d, 1);
        double *exact = unit_alloc(n * d * sizeof *exact);
        for (size_t i = 0; i < n; i++) {
            double square = 0;
            for (size_t j = 0; j < d; j++)
                square += pow((double)x[i * d + j], 2);
            for (size_t j = 0; j < d; j++)
                exact[i * d + j] =
                    (double)x[i * d + j] / sqrt(square / (double)d + 1e-5) * (double)gain[j];
        }
        kvd_rms_norm(x, gain, 1e-5, n, d, y);
        assert_true(distance(y, exact, n * d) < 2e-7);
        kvd_rms_norm(x, gain, 1e-5, n, d, x); /* computed in place */
        assert_memory_equal(x, y, n * d * sizeof *x);
    }
}

TEST(test_rms_norm_of_large_values)
{
    float x[4] = {3e30f, -3e30f, 3e30f, 3e30f}, gain[4] = {1, 1, 1, 2}, y[4];
    kvd_rms_norm(x, gain, 1e-5, 1, 4, y);
    assert_true(fabsf(y[0] - 1) < 1e-6f && fabsf(y[1] + 1) < 1e-6f && fabsf(y[3] - 2) < 1e-6f);
}

TEST(test_linear)
{
    const size_t shapes[][3] = {{1, 1, 1},    {1, 64, 300},    {3, 5, 7},      {17, 33, 9},
                                {100, 64, 1}, {257, 129, 130}, {5, 200, 2000}, {1000, 40, 48}};
    for (size_t a = 0; a < sizeof shapes / sizeof shapes[0]; a++) {
        const size_t n = shapes[a][0], in = shapes[a][1], out = shapes[a][2], ldy = out + 3;
        float *x = random_floats(n * in, 1), *w = random_floats(out * in, 1),
              *y = random_floats(n * out, 1);
        float *wide = random_floats(n * ldy, 1);
        double *exact = unit_alloc(n * out * sizeof *exact),
               *added = unit_alloc(n * out * sizeof *added);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < out; j++) {
                double sum = 0;
                for (size_t m = 0; m < in; m++)
                    sum += (double)x[i * in + m] * (double)w[j * in + m];
                exact[i * out + j] = sum;
                added[i * out + j] = sum + (double)y[i * out + j];
            }
        kvd_linear(x, w, n, in, out, y, 1);
        assert_true(distance(y, added, n * out) < 1e-6);
        kvd_linear(x, w, n, in, out, y, 0);
        assert_true(distance(y, exact, n * out) < 1e-6);
        const float guard = wide[out];
        kvd_linear_columns(x, w, n, in, out, wide, ldy, 0);
        for (size_t i = 0; i < n; i++)
            assert_memory_equal(wide + i * ldy, y + i * out, out * sizeof *y);
        assert_true(wide[out] == guard);
    }
}

TEST(test_layer_norm)
{
    const size_t shapes[][2] = {{1, 1}, {1, 2}, {3, 17}, {7, 64}, {300, 80}};
    for (size_t a = 0; a < 5; a++) {
        const size_t n = shapes[a][0], d = shapes[a][1];
        float *x = random_floats(n * d, 2), *gain = random_floats(d, 1),
              *bias = random_floats(d, 1);
        float *y = random_floats(n * d, 1);
        double *exact = unit_alloc(n * d * sizeof *exact);
        for (size_t i = 0; i < n; i++) {
            double mean = 0, square = 0;
            for (size_t j = 0; j < d; j++) {
                x[i * d + j] += (float)i;
                mean += (double)x[i * d + j] / (double)d;
            }
            for (size_t j = 0; j < d; j++)
                square += pow((double)x[i * d + j] - mean, 2) / (double)d;
            for (size_t j = 0; j < d; j++)
                exact[i * d + j] =
                    ((double)x[i * d + j] - mean) / sqrt(square + 1e-5) * (double)gain[j] +
                    (double)bias[j];
        }
        kvd_layer_norm(x, gain, bias, 1e-5, n, d, y);
        assert_true(distance(y, exact, n * d) < 3e-6);
        kvd_layer_norm(x, gain, bias, 1e-5, n, d, x);
        assert_memory_equal(x, y, n * d * sizeof *x);
    }
}

TEST(test_add_bias)
{
    const size_t shapes[][2] = {{1, 1}, {5, 3}, {1000, 33}};
    for (size_t a = 0; a < 3; a++) {
        const size_t n = shapes[a][0], d = shapes[a][1];
        float *y = random_floats(n * d, 1), *bias = random_floats(d, 1),
              *before = unit_alloc(n * d * sizeof *y);
        memcpy(before, y, n * d * sizeof *y);
        kvd_add_bias(y, bias, n, d);
        for (size_t i = 0; i < n * d; i++)
            assert_true(y[i] == before[i] + bias[i % d]);
    }
}

static kvd_config rope_config(int d_head, kvd_rope_layout layout, kvd_rope_scaling scaling)
{
    kvd_config c = {
        .d_head = d_head, .rope_theta = 10000, .rope_layout = layout, .rope_scaling = scaling};
    c.rope_factor = 8;
    c.rope_low_freq_factor = 1;
    c.rope_high_freq_factor = 4;
    c.rope_original_positions = 256;
    return c;
}

static void rotate(const kvd_config *c, uint32_t position, float *x)
{
    const size_t half = (size_t)c->d_head / 2;
    float *cosine = unit_alloc((position + 1) * half * sizeof *cosine);
    float *sine = unit_alloc((position + 1) * half * sizeof *sine);
    kvd_rope_tables(c, false, 1, position + 1, cosine, sine);
    kvd_rope_apply(c, cosine, sine, &position, 1, 1, x);
}

static double dot(const float *a, const float *b, size_t n)
{
    double s = 0;
    for (size_t i = 0; i < n; i++)
        s += (double)a[i] * (double)b[i];
    return s;
}

/* The score q_m . k_n of vectors rotated by RoPE to positions m and n must depend on m - n
 * alone. */
TEST(test_rope_is_relative)
{
    for (int layout = 0; layout < 2; layout++)
        for (int scaling = 0; scaling < 3; scaling++)
            for (int d = 2; d <= 130; d += d < 10 ? 2 : 24) {
                const kvd_config c =
                    rope_config(d, (kvd_rope_layout)layout, (kvd_rope_scaling)scaling);
                const size_t n = (size_t)d;
                float *q = random_floats(n, 1), *k = random_floats(n, 1), a[130], b[130];
                double first = 0;
                const double norms = sqrt(dot(q, q, n) * dot(k, k, n));
                for (uint32_t shift = 0; shift < 400; shift += 57) {
                    memcpy(a, q, n * sizeof *q);
                    memcpy(b, k, n * sizeof *k);
                    rotate(&c, 13 + shift, a);
                    rotate(&c, 4 + shift, b);
                    assert_true(fabs(dot(a, a, n) / dot(q, q, n) - 1) < 1e-6);
                    if (shift == 0)
                        first = dot(a, b, n);
                    assert_true(fabs(dot(a, b, n) - first) < 1e-6 * norms);
                }
                memcpy(a, q, n * sizeof *q);
                rotate(&c, 0, a);
                assert_memory_equal(a, q, n * sizeof *q);
            }
}

/* The two layouts of RoPE must agree after the permutation 2i -> i, 2i+1 -> i + d/2 of
 * dimensions. */
TEST(test_rope_layouts_agree)
{
    for (int d = 2; d <= 128; d += 14) {
        const size_t half = (size_t)d / 2;
        const kvd_config h = rope_config(d, KVD_ROPE_HALF, KVD_ROPE_DEFAULT);
        const kvd_config i = rope_config(d, KVD_ROPE_INTERLEAVED, KVD_ROPE_DEFAULT);
        float *x = random_floats(2 * half, 1), y[128];
        for (size_t j = 0; j < half; j++) {
            y[2 * j] = x[j];
            y[2 * j + 1] = x[half + j];
        }
        rotate(&h, 29, x);
        rotate(&i, 29, y);
        for (size_t j = 0; j < half; j++)
            assert_true(y[2 * j] == x[j] && y[2 * j + 1] == x[half + j]);
    }
}

TEST(test_rope_of_a_batch)
{
    enum { N = 700, HEADS = 3, D = 34 };
    const kvd_config c = rope_config(D, KVD_ROPE_HALF, KVD_ROPE_LLAMA3);
    float *x = random_floats((size_t)N * HEADS * D, 1), *cosine = random_floats(64 * D / 2, 1);
    float *sine = random_floats(64 * D / 2, 1), *y = unit_alloc((size_t)N * HEADS * D * sizeof *y);
    uint32_t position[N];
    for (uint32_t i = 0; i < N; i++)
        position[i] = (i * 7) % 64;
    memcpy(y, x, (size_t)N * HEADS * D * sizeof *y);
    kvd_rope_tables(&c, false, 1, 64, cosine, sine);
    kvd_rope_apply(&c, cosine, sine, position, N, HEADS, y);
    for (size_t i = 0; i < N * HEADS; i++) {
        rotate(&c, position[i / HEADS], x + i * D);
        assert_memory_equal(x + i * D, y + i * D, D * sizeof *x);
    }
}

TEST(test_rope_frequencies)
{
    kvd_config c = rope_config(64, KVD_ROPE_HALF, KVD_ROPE_LINEAR),
               plain = rope_config(64, KVD_ROPE_HALF, KVD_ROPE_DEFAULT);
    for (size_t i = 0; i < 32; i++) {
        assert_true(fabs(kvd_rope_frequency(&plain, false, 1, i) - pow(10000, -(double)i / 32)) <
                    1e-15);
        assert_true(
            fabs(kvd_rope_frequency(&c, false, 1, i) * 8 / kvd_rope_frequency(&plain, false, 1, i) -
                 1) < 1e-14);
    }
    c.rope_scaling = KVD_ROPE_LLAMA3;
    assert_true(kvd_rope_frequency(&c, false, 1, 0) == kvd_rope_frequency(&plain, false, 1, 0));
    assert_true(kvd_rope_frequency(&c, false, 1, 31) ==
                kvd_rope_frequency(&plain, false, 1, 31) / 8);
    int blended = 0;
    for (size_t i = 1; i < 32; i++) {
        const double ratio =
            kvd_rope_frequency(&c, false, 1, i) / kvd_rope_frequency(&plain, false, 1, i);
        assert_true(kvd_rope_frequency(&c, false, 1, i) < kvd_rope_frequency(&c, false, 1, i - 1));
        blended += ratio < 0.999 && ratio > 0.126;
    }
    assert_true(blended >= 3);
}

/* LongRoPE multiplies cosines and sines by a factor, so it multiplies scores by the factor's
 * square. */
TEST(test_longrope)
{
    enum { D = 20, N = 300 };
    kvd_config c = rope_config(D, KVD_ROPE_HALF, KVD_ROPE_LONGROPE);
    const kvd_config plain = rope_config(D, KVD_ROPE_HALF, KVD_ROPE_DEFAULT);
    for (size_t i = 0; i < D / 2; i++) {
        c.rope_short[i] = 1 + 0.25 * (double)i;
        c.rope_long[i] = 3 + (double)i;
    }
    c.rope_attention_factor = 1.25;
    static float cosine[2][N * D / 2], sine[2][N * D / 2];
    kvd_rope_tables(&c, false, 256, N, cosine[0], sine[0]);
    kvd_rope_tables(&c, false, 257, N, cosine[1], sine[1]);
    for (size_t i = 0; i < D / 2; i++) {
        const double base = kvd_rope_frequency(&plain, false, 1, i);
        assert_true(kvd_rope_frequency(&c, false, 1, i) == base / c.rope_short[i]);
        assert_true(kvd_rope_frequency(&c, false, 256, i) == base / c.rope_short[i]);
        assert_true(kvd_rope_frequency(&c, false, 257, i) == base / c.rope_long[i]);
        for (size_t t = 0; t < N; t++)
            for (int beyond = 0; beyond < 2; beyond++) {
                const double angle = (double)t * base / (beyond ? c.rope_long[i] : c.rope_short[i]);
                assert_true(fabs((double)cosine[beyond][t * D / 2 + i] - 1.25 * cos(angle)) < 1e-7);
                assert_true(fabs((double)sine[beyond][t * D / 2 + i] - 1.25 * sin(angle)) < 1e-7);
            }
    }
}

TEST(test_swiglu)
{
    for (size_t a = 0; a <= N_SIZES; a++) {
        const size_t n = a < N_SIZES ? sizes[a] : 100003;
        float *gate = random_floats(n, 5), *up = random_floats(n, 2);
        double *exact = unit_alloc(n * sizeof *exact);
        for (size_t i = 0; i < n; i++)
            exact[i] = (double)gate[i] / (1 + exp(-(double)gate[i])) * (double)up[i];
        kvd_activate(KVD_SWIGLU, gate, up, n);
        assert_true(distance(gate, exact, n) < 2e-7);
    }
    /* Passing NULL for `up` must have the same effect as passing an array of ones. */
    for (int kind = 0; kind < 2; kind++) {
        const kvd_activation a = kind ? KVD_GEGLU_TANH : KVD_SWIGLU;
        float x[40], gated[40], one[40];
        for (size_t i = 0; i < 40; i++) {
            x[i] = gated[i] = (float)i / 4 - 5;
            one[i] = 1;
        }
        kvd_activate(a, gated, one, 40);
        kvd_activate(a, x, NULL, 40);
        for (size_t i = 0; i < 40; i++)
            assert_true(fabsf(x[i] - gated[i]) <= 1e-6f * fabsf(gated[i]));
    }
    float gate[4] = {-1000, 1000, -0.0f, NAN}, up[4] = {1, 1, 1, 1};
    kvd_activate(KVD_SWIGLU, gate, up, 4);
    assert_true(gate[0] == 0 && gate[1] == 1000 && gate[2] == 0 && isnan(gate[3]));
}

TEST(test_activations)
{
    static const kvd_activation activation[] = {KVD_GELU, KVD_GELU_TANH, KVD_RELU, KVD_RELU2};
    const size_t lengths[] = {1, 3, 16, 31, 40000};
    for (size_t a = 0; a < 5; a++) {
        const size_t n = lengths[a];
        for (int kind = 0; kind < 4; kind++) {
            float *x = random_floats(n, 4);
            double *exact = unit_alloc(n * sizeof *exact);
            for (size_t i = 0; i < n; i++) {
                const double v = (double)x[i];
                exact[i] = kind == 0 ? v * (1 + erf(v / sqrt(2))) / 2
                           : kind == 1
                               ? v * (1 + tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))) / 2
                               : pow(fmax(v, 0), kind - 1);
            }
            kvd_activate(activation[kind], x, NULL, n);
            assert_true(distance(x, exact, n) < 1e-6);
        }
    }
    const float far[] = {0, -0.0f, 60, -60, 1e20f, -1e20f, NAN};
    for (int kind = 0; kind < 3; kind++)
        for (size_t i = 0; i < 7; i++) {
            float x = far[i];
            kvd_activate(activation[kind], &x, NULL, 1);
            assert_true(isnan(far[i]) ? isnan(x) : x == (far[i] > 0 ? far[i] : 0));
        }
}

TEST(test_softmax)
{
    const size_t lengths[] = {1, 2, 3, 15, 16, 17, 100, 301};
    for (size_t a = 0; a < sizeof lengths / sizeof lengths[0]; a++) {
        const size_t n = lengths[a];
        float *s = random_floats(n * n, 20);
        double *exact = memset(unit_alloc(n * n * sizeof *exact), 0, n * n * sizeof *exact);
        for (size_t i = 0; i < n; i++) {
            double sum = 0;
            for (size_t j = 0; j <= i; j++)
                sum += exp(0.3 * (double)s[i * n + j]);
            for (size_t j = 0; j <= i; j++)
                exact[i * n + j] = exp(0.3 * (double)s[i * n + j]) / sum;
        }
        for (size_t i = 0; i < n; i++)
            kvd_softmax_row(s + i * n, 0, i + 1, n, (kvd_scores){.scale = 0.3f});
        assert_true(distance(s, exact, n * n) < 2e-6);
        for (size_t i = 0; i < n; i++) {
            double sum = 0;
            for (size_t j = 0; j < n; j++) {
                assert_true(j <= i ? s[i * n + j] >= 0 : s[i * n + j] == 0);
                sum += (double)s[i * n + j];
            }
            assert_true(fabs(sum - 1) < 1e-5);
        }
    }
}

TEST(test_softmax_of_a_window)
{
    for (size_t from = 0; from < 20; from++)
        for (size_t to = from + 1; to <= 20; to++) {
            float row[20], alone[20];
            for (size_t j = 0; j < 20; j++)
                row[j] = alone[j] = (float)(5 * uniform());
            row[from ? from - 1 : to % 20] += from || to < 20 ? 1000 : 0;
            kvd_softmax_row(row, from, to, 20, (kvd_scores){.scale = 0.5f});
            kvd_softmax_row(alone + from, 0, to - from, to - from, (kvd_scores){.scale = 0.5f});
            for (size_t j = 0; j < 20; j++)
                assert_true(row[j] == (j >= from && j < to ? alone[j] : 0.0f));
        }
}

TEST(test_softcap)
{
    for (size_t a = 0; a <= N_SIZES; a++) {
        const size_t n = a < N_SIZES ? sizes[a] : 100003;
        float *x = random_floats(n, a % 2 ? 3000 : 20);
        double *exact = unit_alloc(n * sizeof *exact);
        for (size_t i = 0; i < n; i++)
            exact[i] = 50 * tanh(0.125 * (double)x[i] / 50);
        kvd_softcap(x, n, 0.125f, 50);
        assert_true(distance(x, exact, n) < 3e-7);
    }
    float edge[5] = {INFINITY, -1e30f, NAN, 0, 1e-30f};
    kvd_softcap(edge, 5, 1, 30);
    assert_true(edge[0] == 30 && edge[1] == -30 && isnan(edge[2]) && edge[3] == 0);
    assert_true(fabsf(edge[4] / 1e-30f - 1) < 1e-6f);
    /* Softmax with a softcap must equal plain softmax after kvd_softcap. */
    float row[20], capped[20];
    for (size_t j = 0; j < 20; j++)
        row[j] = capped[j] = (float)(40 * uniform());
    kvd_softmax_row(row, 2, 17, 20, (kvd_scores){.scale = 0.5f, .softcap = 4});
    kvd_softcap(capped, 20, 0.5f, 4);
    kvd_softmax_row(capped, 2, 17, 20, (kvd_scores){.scale = 1});
    assert_memory_equal(row, capped, sizeof row);
}

TEST(test_geglu)
{
    const size_t n = 1003;
    float *gate = random_floats(n, 5), *up = random_floats(n, 2);
    double *exact = unit_alloc(n * sizeof *exact);
    for (size_t i = 0; i < n; i++) {
        const double x = (double)gate[i];
        exact[i] = x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))) / 2 * (double)up[i];
    }
    kvd_activate(KVD_GEGLU_TANH, gate, up, n);
    assert_true(distance(gate, exact, n) < 3e-7);
}

TEST(test_softmax_of_extremes)
{
    float row[5] = {1e30f, -1e30f, 1e30f, -INFINITY, 7};
    kvd_softmax_row(row, 0, 4, 5, (kvd_scores){.scale = 1.0f});
    assert_true(row[0] == 0.5f && row[1] == 0 && row[2] == 0.5f && row[3] == 0 && row[4] == 0);
    float bad[3] = {0, NAN, 1};
    kvd_softmax_row(bad, 0, 3, 3, (kvd_scores){.scale = 1.0f});
    assert_true(isnan(bad[0]) && isnan(bad[1]) && isnan(bad[2]));
}

TEST(test_first_nonfinite)
{
    const size_t n = 50001;
    float *x = random_floats(n, 1e30);
    assert_int_equal(kvd_first_nonfinite_f32(x, n), n);
    assert_int_equal(kvd_first_nonfinite_f32(x, 0), 0);
    const float bad[3] = {NAN, INFINITY, -INFINITY};
    const size_t at[] = {0, 1, 8191, 8192, 33333, 50000};
    for (size_t i = 6; i-- > 0;) {
        x[at[i]] = bad[i % 3];
        assert_int_equal(kvd_first_nonfinite_f32(x, n), at[i]);
    }
}

TEST_MAIN(NULL, NULL)
