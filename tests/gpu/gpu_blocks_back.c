/* Compares GPU kernels that compute gradients with references in double precision. The argument
 * "small" selects small cases for compute-sanitizer. */
#include <math.h>
#include <stdbool.h>

#include "model/pass/cuda/blocks_back.h"

#include "gpu_array.h"
#include "worst.h"

static double term_distance(const array *got, const double *want, const double *terms)
{
    float *x = need(2 * got->n * sizeof *x), *const scale = x + got->n;
    for (size_t i = 0; i < got->n; i++) {
        x[i] = (float)want[i];
        scale[i] = (float)fmax(terms[i], fabs(want[i]));
    }
    const double e = distance(got, x, scale);
    free(x);
    return e;
}

/* Computes dx [d], the gradient of a norm's input, from dy [d], the gradient of its output.
 * dy_terms and terms [d]: dy and dx computed with absolute values of all summands, to bound
 * rounding errors. */
static void reference_norm(kvd_norm kind, const float *x, const float *gain, double eps, size_t d,
                           const double *dy, const double *dy_terms, double *dx, double *terms)
{
    double mean = 0, square = 0, level = 0, along = 0, sizes = 0, all_level = 0;
    for (size_t j = 0; j < d && kind == KVD_NORM_LAYER; j++)
        mean += (double)x[j] / (double)d;
    for (size_t j = 0; j < d; j++) {
        const double away = (double)x[j] - mean, g = (double)gain[j];
        square += away * away / (double)d;
        level += kind == KVD_NORM_LAYER ? g * dy[j] / (double)d : 0;
        along += g * dy[j] * away / (double)d;
        all_level += kind == KVD_NORM_LAYER ? fabs(g) * dy_terms[j] / (double)d : 0;
        sizes += fabs(g) * dy_terms[j] * fabs(away) / (double)d;
    }
    const double s = 1 / sqrt(square + eps);
    for (size_t j = 0; j < d; j++) {
        const double g = (double)gain[j];
        dx[j] = s * (g * dy[j] - level - ((double)x[j] - mean) * s * s * along);
        terms[j] = s * (fabs(g) * dy_terms[j] + all_level +
                        (fabs((double)x[j]) + fabs(mean)) * s * s * sizes);
    }
}

static void test_norm(kvd_norm kind, size_t n, size_t d, bool add)
{
    char name[96];
    (void)snprintf(name, sizeof name, "norm back, kind %d, %zu x %zu%s", (int)kind, n, d,
                   add ? ", added" : "");
    array x = values(KVD_F32, n * d, 0, 2), gain = values(KVD_F32, d, 0, 1),
          dy = values(KVD_F32, n * d, 0, 1), dx = values(KVD_F32, n * d, 0, 1);
    double *want = need(4 * n * d * sizeof *want), *const terms = want + n * d,
           *const g = terms + n * d, *const sizes = g + n * d;
    for (size_t i = 0; i < n * d; i++) {
        g[i] = (double)dy.host[i];
        sizes[i] = fabs(g[i]);
    }
    for (size_t i = 0; i < n; i++)
        reference_norm(kind, x.host + i * d, gain.host, 1e-5, d, g + i * d, sizes + i * d,
                       want + i * d, terms + i * d);
    for (size_t i = 0; i < n * d && add; i++) {
        want[i] += (double)dx.host[i];
        terms[i] = fmax(terms[i], fabs((double)dx.host[i]));
    }
    check(kvd_gpu_norm_back(kind, x.dev, gain.dev, 1e-5, n, d, dy.dev, dx.dev, add, NULL), name);
    const bool intact = fetch(&dx);
    verdict(name, term_distance(&dx, want, terms), 1e-6, intact);
    array *all[] = {&x, &gain, &dy, &dx};
    for (size_t i = 0; i < 4; i++)
        array_free(all[i]);
    free(want);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double slope(kvd_activation kind, double x)
{
    const double twice = 2 * sqrt(2 / M_PI), a = 0.044715, s = sigmoid(twice * (x + a * x * x * x));
    switch (kind) {
    case KVD_SWIGLU:
        return sigmoid(x) * (1 + x * (1 - sigmoid(x)));
    case KVD_GELU:
        return 0.5 * erfc(-x / sqrt(2)) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
    case KVD_GELU_TANH:
        return s + x * s * (1 - s) * twice * (1 + 3 * a * x * x);
    case KVD_RELU2:
        return 2 * fmax(x, 0);
    default:
        return x > 0 ? 1 : 0;
    }
}

static void test_activate(kvd_activation kind, kvd_dtype type, size_t n, size_t ffn, bool biased)
{
    char name[96];
    (void)snprintf(name, sizeof name, "activate back, kind %d, %s, %zu x %zu%s", (int)kind,
                   kvd_dtype_name(type), n, ffn, biased ? ", bias" : "");
    const size_t pitch = kind == KVD_SWIGLU ? 2 * ffn : ffn;
    array in = values(type, n * pitch, 0, 2), bias = values(KVD_F32, pitch, 0, 1),
          dy = values(KVD_F32, n * ffn, 0, 1);
    double *want = need(n * pitch * sizeof *want);
    float *both = need(2 * n * pitch * sizeof *both), *scale = both + n * pitch;
    for (size_t i = 0; i < n * ffn; i++) {
        const size_t at = i / ffn * pitch + i % ffn;
        const double x = (double)in.host[at] + (biased ? (double)bias.host[i % ffn] : 0),
                     d = (double)dy.host[i];
        if (kind == KVD_SWIGLU) {
            const double up =
                (double)in.host[at + ffn] + (biased ? (double)bias.host[ffn + i % ffn] : 0);
            want[at] = d * up * slope(kind, x);
            want[at + ffn] = d * x * sigmoid(x);
            scale[at] = (float)(fabs(d * up) + 1e-20);
            scale[at + ffn] = (float)(fabs(d * x) + 1e-20);
        } else {
            want[at] = d * slope(kind, x);
            scale[at] = (float)((fabs(x) + 1) * fabs(d) + 1e-20);
        }
    }
    for (size_t i = 0; i < n * pitch; i++)
        both[i] = (float)want[i];
    check(kvd_gpu_activate_back(kind, type, in.dev, biased ? bias.dev : NULL, n, ffn, dy.dev, NULL),
          name);
    const bool intact = fetch(&in);
    verdict(name, distance(&in, both, scale), 2e-6, intact);
    free(want);
    free(both);
    arrays_free(&in, &bias, &dy);
}

typedef struct {
    kvd_dtype type;
    int heads, kv, d;
    bool bias, norm;
    int rope; /* kvd_rope_layout; -1: no RoPE */
} qkv_case;

/* Computes gradients of a query or key head. Each output has c->d gradients, then c->d magnitudes
 * that bound their rounding errors.
 *
 * - pre: gradient of the vector before RoPE
 * - raw: gradient of the vector before the norm */
static void reference_head(const qkv_case *c, const float *d, const float *taken, const float *bias,
                           const float *gain, const float *cosine, const float *sine, bool turned,
                           double *pre, double *raw)
{
    const int n = c->d, half = n / 2;
    double *const size = pre + n;
    for (int i = 0; i < n; i++) {
        pre[i] = (double)d[i];
        size[i] = fabs(pre[i]);
    }
    for (int p = 0; p < half && turned && c->rope >= 0; p++) {
        const int i = c->rope == KVD_ROPE_HALF ? p : 2 * p,
                  j = c->rope == KVD_ROPE_HALF ? p + half : 2 * p + 1;
        const double x = (double)d[i], y = (double)d[j], u = (double)cosine[p], v = (double)sine[p];
        pre[i] = x * u + y * v;
        pre[j] = y * u - x * v;
        size[i] = fabs(x * u) + fabs(y * v);
        size[j] = fabs(y * u) + fabs(x * v);
    }
    memcpy(raw, pre, 2 * (size_t)n * sizeof *raw);
    if (!gain)
        return;
    float *x = need((size_t)n * sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = taken[i] + (bias ? bias[i] : 0);
    reference_norm(KVD_NORM_RMS, x, gain, 1e-6, (size_t)n, pre, size, raw, raw + n);
    free(x);
}

static void test_qkv(const qkv_case *c)
{
    enum { N = 13, POSITIONS = 40 };
    char name[96];
    (void)snprintf(name, sizeof name,
                   "qkv back, %s, %d and %d heads of %d, bias %d, norm %d, rope %d",
                   kvd_dtype_name(c->type), c->heads, c->kv, c->d, c->bias, c->norm, c->rope);
    const int turned = c->heads + c->kv, all = turned + c->kv;
    const size_t d = (size_t)c->d, width = (size_t)all * d, half = d / 2;
    array product = values(c->type, N * width, 0, 1), bias = values(KVD_F32, width, 0, 1),
          gain_q = values(KVD_F32, d, 0, 1), gain_k = values(KVD_F32, d, 0, 1),
          dev = values(KVD_F32, N * width, 0, 1),
          cosine = values(KVD_F32, POSITIONS * half + 1, 0, 0.5),
          sine = values(KVD_F32, POSITIONS * half + 1, 0, 0.5),
          pre = array_new(KVD_F32, N * (size_t)turned * d, 0),
          raw = array_new(KVD_F32, N * width, 0);
    uint32_t row[N];
    for (size_t t = 0; t < N; t++)
        row[t] = (uint32_t)kvd_rng_below(&rng, POSITIONS);
    uint32_t *dev_row = on_device(row, sizeof row);
    const size_t all_pre = N * (size_t)turned * d, all_raw = N * width;
    double *want_pre = need(2 * all_pre * sizeof *want_pre),
           *want_raw = need(2 * all_raw * sizeof *want_raw),
           *of_pre = need(4 * d * sizeof *of_pre), *const of_raw = of_pre + 2 * d;
    for (size_t t = 0; t < N; t++)
        for (int h = 0; h < all; h++) {
            const size_t at = t * width + (size_t)h * d, table = row[t] * half;
            reference_head(c, dev.host + at, product.host + at,
                           c->bias ? bias.host + (size_t)h * d : NULL,
                           !c->norm || h >= turned ? NULL
                           : h < c->heads          ? gain_q.host
                                                   : gain_k.host,
                           cosine.host + table, sine.host + table, h < turned, of_pre, of_raw);
            for (size_t i = 0; i < 2; i++) {
                memcpy(want_raw + i * all_raw + at, of_raw + i * d, d * sizeof *of_raw);
                if (h < turned)
                    memcpy(want_pre + i * all_pre + (t * (size_t)turned + (size_t)h) * d,
                           of_pre + i * d, d * sizeof *of_pre);
            }
        }
    const kvd_gpu_qkv_back_args a = {.type = c->type,
                                     .n_heads = c->heads,
                                     .n_kv_heads = c->kv,
                                     .d_head = c->d,
                                     .product = c->norm ? product.dev : NULL,
                                     .bias = c->bias ? bias.dev : NULL,
                                     .gain_q = c->norm ? gain_q.dev : NULL,
                                     .gain_k = c->norm ? gain_k.dev : NULL,
                                     .eps = 1e-6,
                                     .cosine = c->rope < 0 ? NULL : cosine.dev,
                                     .sine = c->rope < 0 ? NULL : sine.dev,
                                     .rope_row = dev_row,
                                     .layout =
                                         c->rope < 0 ? KVD_ROPE_HALF : (kvd_rope_layout)c->rope,
                                     .d = dev.dev,
                                     .d_pre = pre.dev,
                                     .d_raw = raw.dev};
    kvd_gpu_bad *bad = bad_new();
    check(kvd_gpu_qkv_back(&a, N, 3, bad, NULL), name);
    bool intact = fetch(&pre);
    intact = fetch(&raw) && intact;
    verdict(name, term_distance(&pre, want_pre, want_pre + all_pre), 1e-6, intact);
    verdict(name, term_distance(&raw, want_raw, want_raw + all_raw), 1e-6, intact);
    expect_bad(name, bad_take(bad), ~0ull);
    dev.host[7 * width + width - 1] = NAN;
    send(&dev);
    bad = bad_new();
    check(kvd_gpu_qkv_back(&a, N, 3, bad, NULL), name);
    expect_bad(name, bad_take(bad), kvd_gpu_bad_at(3, 7));
    arrays_free(&product, &bias, &gain_q, &gain_k, &dev, &cosine, &sine, &pre, &raw);
    check(cudaFree(dev_row), "free");
    host_free(want_pre, want_raw, of_pre);
}

static void test_softmax(kvd_dtype type, size_t rows, size_t keys, size_t ld)
{
    char name[96];
    (void)snprintf(name, sizeof name, "softmax back, %s, %zu rows of %zu, ld %zu",
                   kvd_dtype_name(type), rows, keys, ld);
    array prob = values(KVD_F32, rows * ld, 0, 1), d = values(KVD_F32, rows * ld, 0, 1),
          out = array_new(type, rows * ld, 0), p = array_new(type, rows * ld, 0);
    double *want = need(rows * ld * sizeof *want);
    float *x = need(2 * rows * ld * sizeof *x), *scale = x + rows * ld;
    for (size_t r = 0; r < rows; r++) {
        float *const row = prob.host + r * ld, *const g = d.host + r * ld;
        double sum = 0, along = 0, most = 0;
        for (size_t j = 0; j < ld; j++)
            sum += row[j] = j > keys / 2 && j % 3 == 0 ? 0 : expf(row[j]);
        for (size_t j = 0; j < ld; j++)
            row[j] = j < keys ? (float)((double)row[j] / sum) : NAN;
        for (size_t j = 0; j < keys; j++) {
            along += (double)row[j] * (double)g[j];
            most = fmax(most, fabs((double)g[j]));
        }
        for (size_t j = 0; j < ld; j++) {
            want[r * ld + j] = j < keys ? (double)row[j] * ((double)g[j] - along) * 0.125 : NAN;
            x[r * ld + j] = (float)want[r * ld + j];
            scale[r * ld + j] = j < keys ? (float)((double)row[j] * most * 0.125) : 1;
        }
    }
    send(&prob);
    send(&d);
    check(kvd_gpu_softmax_back(type, prob.dev, d.dev, rows, ld, keys, 0.125F, out.dev, p.dev, NULL),
          name);
    bool intact = fetch(&out);
    intact = fetch(&p) && intact;
    verdict(name, distance(&out, x, scale), 1e-6, intact);
    if (type != KVD_F32)
        verdict(name, distance(&p, prob.host, NULL), 1e-6, intact);
    array *arrays[] = {&prob, &d, &out, &p};
    for (size_t i = 0; i < 4; i++)
        array_free(arrays[i]);
    free(want);
    free(x);
}

/* Returns true if `token` is, up to rounding, the first at which the cumulative probability exceeds
 * the random number u. *sum: sum over the vocabulary of exp(logit - top). */
static bool is_drawn(const float *row, size_t vocab, double top, double u, uint32_t token,
                     double *sum)
{
    double before = 0, after = 0;
    *sum = 0;
    for (size_t j = 0; j < vocab; j++) {
        const double e = exp((double)row[j] - top);
        *sum += e;
        before += j < token ? e : 0;
        after += j <= token ? e : 0;
    }
    return token < vocab && before <= (u + 1e-13) * *sum && after >= (u - 1e-13) * *sum;
}

static void test_logits(kvd_dtype type, size_t n, size_t vocab, bool draws, double sharp)
{
    char name[96];
    (void)snprintf(name, sizeof name, "cross entropy, %s, %zu x %zu%s, logits of %g",
                   kvd_dtype_name(type), n, vocab, draws ? ", drawn" : "", sharp);
    array logits = values(KVD_F32, n * vocab, 0, sharp), d = array_new(type, n * vocab, 0);
    uint32_t *target = need(n * sizeof *target), *got = need(n * sizeof *got);
    double *u = need(n * sizeof *u), *loss = need(n * sizeof *loss), worst = 0;
    float *x = need(2 * n * vocab * sizeof *x), *scale = x + n * vocab;
    for (size_t i = 0; i < n; i++) {
        target[i] = i == 1 ? UINT32_MAX : (uint32_t)kvd_rng_below(&rng, vocab);
        u[i] = i == 0 ? 0 : i == 2 ? 1 - 1e-16 : kvd_rng_uniform(&rng);
    }
    uint32_t *dev_target = on_device(target, n * sizeof *target);
    double *dev_u = on_device(u, n * sizeof *u), *dev_loss = on_device(NULL, n * sizeof *loss);
    check(kvd_gpu_cross_entropy(type, logits.dev, n, vocab, dev_target, draws ? dev_u : NULL, d.dev,
                                dev_loss, NULL),
          name);
    const bool intact = fetch(&d);
    to_host(got, dev_target, n * sizeof *got);
    to_host(loss, dev_loss, n * sizeof *loss);
    for (size_t i = 0; i < n; i++) {
        const float *const row = logits.host + i * vocab;
        double top = -INFINITY, sum;
        for (size_t j = 0; j < vocab; j++)
            top = fmax(top, (double)row[j]);
        const bool fits = is_drawn(row, vocab, top, u[i], got[i], &sum),
                   none = target[i] == UINT32_MAX;
        if (none || !draws ? got[i] != target[i] : !fits)
            worst = INFINITY;
        const uint32_t want = none || !fits || !draws ? target[i] : got[i];
        const double nats = none ? 0 : log(sum) + top - (double)row[want];
        /* Scales the error of the loss by 1e6: the float64 loss must be a million times more
         * accurate than gradients. */
        worst = worse(worst, fabs(loss[i] - nats) / (1 + fabs(nats)) * 1e6);
        for (size_t j = 0; j < vocab; j++) {
            const double p = exp((double)row[j] - top) / sum;
            x[i * vocab + j] = none ? 0 : (float)(j == want ? expm1(-nats) : p);
            /* Errors are divided by the larger of |gradient| and 1e-8 (target token) or 1e-30
             * (other tokens). */
            scale[i * vocab + j] = fmaxf(fabsf(x[i * vocab + j]), j == want ? 1e-8F : 1e-30F);
        }
    }
    /* Exponents reach 40 * sharp and are rounded to float32, so larger values of `sharp` allow
     * larger errors. */
    verdict(name, worse(worst, distance(&d, x, scale)), 1e-6 * (1 + 3 * sharp), intact);
    arrays_free(&logits, &d);
    device_free(dev_target, dev_u, dev_loss);
    host_free(target, got, u, loss, x);
}

static void all_small_blocks(bool small)
{
    static const size_t widths[] = {1, 2, 3, 12, 64, 127, 288, 1000, 4096, 16388};
    static const int heads[][2] = {{1, 1}, {3, 1}, {4, 2}, {32, 8}},
                     d_head[] = {2, 6, 8, 64, 72, 128, 256};
    for (size_t w = 0; w < sizeof widths / sizeof *widths && !(small && widths[w] > 300); w++)
        for (int k = 0; k < 2; k++)
            for (int add = 0; add < 2; add++)
                test_norm(k ? KVD_NORM_LAYER : KVD_NORM_RMS, w % 2 ? 5 : 70, widths[w], add);
    for (int k = KVD_SWIGLU; k <= KVD_RELU2; k++)
        for (int t = 0; t < 2; t++)
            for (int i = 0; i < 4; i++)
                test_activate((kvd_activation)k, pass_types[t], 37, i < 2 ? 31 : 1028, i % 2);
    for (size_t d = 0; d < sizeof d_head / sizeof *d_head; d++)
        for (size_t h = 0; h < (small ? 3 : 4); h++)
            for (int t = 0; t < 2; t++)
                for (int rope = -1; rope < 2; rope++) {
                    const int mix = (int)(d + h) + rope + 1;
                    const qkv_case c = {.type = pass_types[t],
                                        .heads = heads[h][0],
                                        .kv = heads[h][1],
                                        .d = d_head[d],
                                        .bias = mix % 2,
                                        .norm = mix / 2 % 2,
                                        .rope = rope};
                    test_qkv(&c);
                }
}

int main(int argc, char **argv)
{
    if (!gpu_devices("gpu_blocks_back", 1))
        return 0;
    const bool small = argc > 1 && strcmp(argv[1], "small") == 0;
    kvd_rng_seed(&rng, 6, 0);
    all_small_blocks(small);
    for (int t = 0; t < 2; t++) {
        test_softmax(pass_types[t], 19, 1, 8);
        test_softmax(pass_types[t], 19, 77, 80);
        test_softmax(pass_types[t], 5, 1500, 1504);
        for (int draws = 0; draws < 2; draws++) {
            test_logits(pass_types[t], 9, 1, draws, 1);
            test_logits(pass_types[t], 40, 80, draws, 3);
            test_logits(pass_types[t], 40, 4097, draws, 1);
            if (!small) {
                test_logits(pass_types[t], 5, 128256, draws, 1);
                test_logits(pass_types[t], 5, 50272, draws, 4);
            }
        }
    }
    verdict("", 0, 0, true);
    return failed;
}
