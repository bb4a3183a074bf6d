/* Tests GPU kernels for activations, softmax and type conversion against model/pass/blocks.h. */
#include <math.h>
#include <stdbool.h>

#include "model/pass/blocks.h"
#include "model/pass/cuda/blocks.h"
#include "model/pass/layer.h"

#include "gpu_array.h"

static void test_activate(kvd_activation kind, kvd_dtype type, size_t n, size_t ffn, bool biased,
                          size_t shift)
{
    char name[128];
    (void)snprintf(name, sizeof name, "activate, kind %d, %s, %zu x %zu, bias %d, shift %zu",
                   (int)kind, kvd_dtype_name(type), n, ffn, biased, shift);
    const bool gated = kind == KVD_SWIGLU || kind == KVD_GEGLU_TANH;
    const size_t pitch = gated ? 2 * ffn : ffn;
    array in = values(type, n * pitch, shift, 2), bias = values(KVD_F32, pitch, shift, 1),
          y = array_new(type, n * ffn, shift);
    in.host[0] = NAN;
    in.host[(n - 1) * pitch] = -90;
    if (ffn > 2 && (kind == KVD_RELU || kind == KVD_RELU2 || kind == KVD_GELU)) {
        in.host[1] = INFINITY;
        in.host[2] = -INFINITY;
    }
    send(&in);
    float *want = need(n * ffn * sizeof *want), *up = need(n * ffn * sizeof *up),
          *scale = need(n * ffn * sizeof *scale);
    for (size_t i = 0; i < n * ffn; i++) {
        const size_t at = i / ffn * pitch + i % ffn;
        want[i] = in.host[at] + (biased ? bias.host[i % ffn] : 0);
        up[i] = gated ? in.host[at + ffn] + (biased ? bias.host[ffn + i % ffn] : 0) : 1;
        scale[i] = isfinite(want[i]) ? want[i] * up[i] : 1;
    }
    kvd_activate(kind, want, up, n * ffn);
    check(kvd_gpu_activate(kind, type, in.dev, biased ? bias.dev : NULL, n, ffn, y.dev, NULL),
          name);
    const bool intact = fetch(&y);
    verdict(name, distance(&y, want, scale), 1e-6, intact);
    host_free(want, up, scale);
    arrays_free(&in, &bias, &y);
}

static void test_activate_plain(kvd_activation kind, size_t n, size_t shift)
{
    char name[128];
    (void)snprintf(name, sizeof name, "activate without a gate, kind %d, %zu numbers, shift %zu",
                   (int)kind, n, shift);
    array x = values(KVD_F32, n, shift, 2);
    float *want = need(n * sizeof *want), *scale = need(n * sizeof *scale);
    x.host[0] = NAN;
    x.host[n - 1] = -90;
    send(&x);
    for (size_t i = 0; i < n; i++) {
        want[i] = x.host[i];
        scale[i] = isfinite(want[i]) ? want[i] : 1;
    }
    kvd_activate(kind, want, NULL, n);
    check(kvd_gpu_activate_plain(kind, x.dev, n, NULL), name);
    const bool intact = fetch(&x);
    verdict(name, distance(&x, want, scale), 1e-6, intact);
    host_free(want, scale);
    arrays_free(&x);
}

typedef struct {
    size_t heads, rows, ld, first, n_keys, window, shift;
    /* standard deviation of the attention scores; bound of the scores' softcap (0: no softcap) */
    double sharp, softcap;
    bool sinks;
} softmax_case;

/* Returns the sink logit of head `head`. The tested array starts with head 1 and ends with head
 * 0. */
static float sink_of(size_t head)
{
    return 1.5F - 2.0F * (float)head;
}

static double score_of(const softmax_case *c, float product, double scale)
{
    const double s = (double)product * scale;
    return c->softcap > 0 ? c->softcap * tanh(s / c->softcap) : s;
}

/* Computes the expected attention probabilities. Marks masked keys with -0, and unused elements
 * after the last key with NaN. */
static void reference_softmax(const softmax_case *c, const float *scores, double scale, float *want)
{
    for (size_t r = 0; r < c->heads * c->rows; r++) {
        const size_t to = c->first + r % c->rows + 1;
        const size_t from = c->window && to > c->window ? to - c->window : 0;
        const float *row = scores + r * c->ld;
        double top = -INFINITY, sum = 0;
        for (size_t j = from; j < to; j++)
            top = fmax(top, score_of(c, row[j], scale));
        for (size_t j = from; j < to; j++)
            sum += exp(score_of(c, row[j], scale) - top);
        if (c->sinks)
            sum += exp((double)sink_of((r / c->rows + 1) % c->heads) - top);
        for (size_t j = 0; j < c->ld; j++)
            want[r * c->ld + j] = j >= c->n_keys ? NAN
                                  : j < from || j >= to
                                      ? -0.0F
                                      : (float)(exp(score_of(c, row[j], scale) - top) / sum);
    }
}

static void test_softmax(kvd_dtype type, const softmax_case *c, bool in_place)
{
    char name[160];
    (void)snprintf(
        name, sizeof name,
        "softmax, %s, %zu x %zu rows of %zu from %zu, ld %zu, window %zu, shift %zu, cap "
        "%g%s%s",
        kvd_dtype_name(type), c->heads, c->rows, c->n_keys, c->first, c->ld, c->window, c->shift,
        c->softcap, c->sinks ? ", sinks" : "", in_place ? ", in place" : "");
    const size_t n = c->heads * c->rows * c->ld;
    array scores = values(KVD_F32, n, c->shift, c->sharp), prob = array_new(type, n, c->shift);
    /* Scores of keys after the query must not be used, so they are set to NaN. */
    for (size_t i = 0; i < n; i++) {
        const size_t j = i % c->ld;
        if (j > c->first + i / c->ld % c->rows)
            scores.host[i] = NAN;
    }
    send(&scores);
    float *want = need(n * sizeof *want);
    const double scale = 0.125;
    reference_softmax(c, scores.host, scale, want);
    array sinks = array_new(KVD_F32, c->heads, 0);
    for (size_t h = 0; h < c->heads; h++)
        sinks.host[h] = sink_of(h);
    send(&sinks);
    const kvd_gpu_scores model = {.scale = (float)scale,
                                  .softcap = (float)c->softcap,
                                  .sinks = c->sinks ? (const float *)sinks.dev : NULL,
                                  .first = 1,
                                  .n_heads = c->heads};
    check(kvd_gpu_softmax(type, scores.dev, c->heads, c->rows, c->ld, c->first, c->n_keys,
                          c->window, &model, in_place ? scores.dev : prob.dev, NULL),
          name);
    array_free(&sinks);
    const bool intact = fetch(&scores) && fetch(&prob);
    array *const got = in_place ? &scores : &prob;
    /* Divides errors by the probability or, if it is smaller, by 1e-6; tiny probabilities have
     * larger relative errors. */
    float *floor = need(n * sizeof *floor);
    for (size_t i = 0; i < n; i++)
        floor[i] = fabsf(want[i]) > 1e-6F ? want[i] : 1e-6F;
    verdict(name, distance(got, want, floor), 5e-6, intact);
    for (size_t i = 0; i < n; i++)
        if (signbit(want[i]) && got->host[i] != 0.0F)
            failed = printf("not ok %s: hidden keys are not 0\n", name) > 0;
    free(want);
    free(floor);
    arrays_free(&scores, &prob);
}

static void test_softmax_nan(void)
{
    enum { KEYS = 40 };
    array s = values(KVD_F32, 2 * KEYS, 0, 1);
    s.host[7] = NAN;
    s.host[KEYS + 7] = INFINITY;
    send(&s);
    check(kvd_gpu_softmax(KVD_F32, s.dev, 1, 2, KEYS, 20, KEYS, 0, &(kvd_gpu_scores){.scale = 1},
                          s.dev, NULL),
          "softmax");
    (void)fetch(&s);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < KEYS; j++)
            if (j <= 20 + i ? !isnan(s.host[i * KEYS + j]) : s.host[i * KEYS + j] != 0.0F)
                failed = printf("not ok softmax of a row with NaN or infinity: %g at %d\n",
                                (double)s.host[i * KEYS + j], j) > 0;
    array_free(&s);
}

static void test_convert(kvd_dtype from, kvd_dtype to, size_t n, size_t shift)
{
    static const float special[] = {0,      -0.0F,   INFINITY, -INFINITY,  NAN,
                                    1e-40F, 65504,   65519.9F, 65520.F,    3.4e38F,
                                    1e-8F,  6.1e-5F, 5.9e-8F,  1.00390625F};
    char name[96];
    (void)snprintf(name, sizeof name, "convert, %s to %s, %zu, shift %zu", kvd_dtype_name(from),
                   kvd_dtype_name(to), n, shift);
    array a = values(from, n, shift, 100), b = array_new(to, n, shift);
    for (size_t i = 0; i < n && i < sizeof special / sizeof *special; i++)
        a.host[i] = special[i];
    send(&a);
    char *want = need(n * kvd_dtype_bytes(to));
    float *wide = need((n + 1) * sizeof *wide);
    kvd_from_f32(to, a.host, want, n);
    kvd_to_f32(to, want, wide, n);
    check(kvd_gpu_convert(from, a.dev, to, b.dev, n, NULL), name);
    bool same = fetch(&b);
    for (size_t i = 0; i < n; i++)
        same = same && (isnan(wide[i]) ? isnan(b.host[i])
                                       : memcmp(&wide[i], &b.host[i], sizeof *wide) == 0);
    verdict(name, same ? 0 : 1, 0, same);
    free(want);
    free(wide);
    arrays_free(&a, &b);
}

static void all_elementwise(bool small)
{
    static const size_t ffn[] = {1, 3, 8, 12, 100, 688, 1000, 3072, 14336};
    static const size_t lengths[] = {1, 7, 8, 63, 1000, 100003};
    for (size_t f = 0; f < sizeof ffn / sizeof *ffn; f++)
        for (int t = 0; t < 2; t++)
            for (int k = 0; k <= KVD_RELU2; k++)
                if (!small || ffn[f] <= 100)
                    test_activate((kvd_activation)k, pass_types[t], f == 1 ? 300 : 5, ffn[f],
                                  (f + (size_t)k) % 2, (f + (size_t)k) % 3 == 2);
    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++)
        for (int k = 0; k <= KVD_RELU2; k++)
            if (!small || lengths[n] <= 1000)
                test_activate_plain((kvd_activation)k, lengths[n], (n + (size_t)k) % 2);
    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++)
        for (int from = 0; from < 3; from++)
            for (int to = 0; to < 3; to++)
                if (!small || lengths[n] <= 1000)
                    test_convert((kvd_dtype)from, (kvd_dtype)to, lengths[n], n % 2);
}

static void all_softmaxes(bool small)
{
    static const softmax_case cases[] = {
        {1, 1, 1, 0, 1, 0, 0, 1, 0, false},
        {3, 5, 8, 0, 5, 0, 0, 1, 0, false},
        {2, 7, 12, 0, 7, 3, 0, 4, 0, false},
        {3, 9, 40, 20, 29, 0, 0, 20, 0, false},
        {3, 9, 40, 20, 29, 6, 0, 20, 0, false},
        {2, 9, 31, 20, 29, 6, 1, 4, 0, false},
        {2, 130, 1024, 893, 1023, 0, 0, 9, 0, false},
        {2, 130, 1024, 894, 1024, 0, 0, 9, 0, false},
        {2, 130, 1024, 894, 1024, 77, 0, 9, 0, false},
        {1, 60, 2051, 1990, 2050, 0, 1, 3, 0, false},
        {2, 64, 4096, 4032, 4096, 0, 0, 100, 0, false},
        {2, 64, 4096, 4032, 4096, 1500, 0, 2, 0, false},
        {1, 3, 131072, 131069, 131072, 0, 0, 2, 0, false},
        {1, 3, 131072, 131069, 131072, 70001, 0, 2, 0, false},
        {1, 600, 600, 0, 600, 0, 0, 5, 0, false},
        {3, 9, 40, 20, 29, 6, 0, 20, 5, true},
        {2, 9, 31, 20, 29, 6, 1, 4, 5, true},
        {2, 130, 1024, 894, 1024, 77, 0, 9, 5, false},
        {3, 60, 1024, 900, 960, 0, 0, 9, 0, true},
        {2, 64, 4096, 4032, 4096, 1500, 0, 2, 5, true},
        {2, 3, 131072, 131069, 131072, 70001, 0, 2, 5, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (small && cases[i].ld > 2000)
            continue;
        test_softmax(KVD_F32, &cases[i], true);
        test_softmax(KVD_F32, &cases[i], false);
        test_softmax(KVD_BF16, &cases[i], false);
    }
    test_softmax_nan();
}

int main(int argc, char **argv)
{
    if (!gpu_devices("gpu_elementwise", 1))
        return 0;
    const bool small = argc > 1 && strcmp(argv[1], "small") == 0;
    kvd_rng_seed(&rng, 5, 0);
    all_elementwise(small);
    all_softmaxes(small);
    verdict("", 0, 0, true);
    return failed;
}
