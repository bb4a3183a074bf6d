#include "model/pass/blocks.h"

#include <assert.h>
#include <cblas.h>
#include <limits.h>
#include <math.h>

#include "common/threads.h"
#include "model/pass/vector.h"

/* WORTH_THREADS: number of elements from which several threads are faster; CHUNK: number of
 * elements that a thread processes at a time */
enum { WORTH_THREADS = 16384, CHUNK = 8192 };

KVD_CLONES static void norm_row(const float *x, const float *gain, double eps, size_t d, float *y)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t j = 0; j < d; j++)
        sum += (double)x[j] * (double)x[j];
    const float scale = (float)(1.0 / sqrt(sum / (double)d + eps));
#pragma omp simd
    for (size_t j = 0; j < d; j++)
        y[j] = x[j] * scale * gain[j];
}

void kvd_rms_norm(const float *x, const float *gain, double eps, size_t n, size_t d, float *y)
{
#pragma omp parallel for schedule(static) if (n * d >= WORTH_THREADS)
    for (size_t i = 0; i < n; i++)
        norm_row(x + i * d, gain, eps, d, y + i * d);
}

KVD_CLONES static void layer_norm_row(const float *x, const float *gain, const float *bias,
                                      double eps, size_t d, float *y)
{
    double sum = 0, square = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t j = 0; j < d; j++)
        sum += (double)x[j];
    const double mean = sum / (double)d;
#pragma omp simd reduction(+ : square)
    for (size_t j = 0; j < d; j++)
        square += ((double)x[j] - mean) * ((double)x[j] - mean);
    const float scale = (float)(1.0 / sqrt(square / (double)d + eps)), middle = (float)mean;
#pragma omp simd
    for (size_t j = 0; j < d; j++)
        y[j] = (x[j] - middle) * scale * gain[j] + (bias ? bias[j] : 0);
}

void kvd_layer_norm(const float *x, const float *gain, const float *bias, double eps, size_t n,
                    size_t d, float *y)
{
#pragma omp parallel for schedule(static) if (n * d >= WORTH_THREADS)
    for (size_t i = 0; i < n; i++)
        layer_norm_row(x + i * d, gain, bias, eps, d, y + i * d);
}

/* Divides 0 .. n into `parts` ranges that begin at multiples of `step`. Returns the start of range
 * i. */
static size_t cut(size_t n, size_t i, size_t parts, size_t step)
{
    const size_t units = (n + step - 1) / step;
    const size_t at = (units * i / parts) * step;
    return at < n ? at : n;
}

void kvd_linear_columns(const float *x, const float *w, size_t n, size_t in, size_t out, float *y,
                        size_t ldy, int add)
{
    assert(n <= INT_MAX && in <= INT_MAX && ldy <= INT_MAX && out <= ldy);
    if (n == 0 || out == 0)
        return;
    size_t threads = (size_t)(int)kvd_thread_count();
    if ((double)n * (double)in * (double)out < 1e6)
        threads = 1;

    /* numbers of parts into which rows and columns of y are divided, so that each thread computes a
     * rectangle; chosen so that BLAS copies little */
    size_t by_row = threads, by_column = 1;
    for (size_t c = 1; c <= threads; c++)
        if (threads % c == 0 && n * c / threads + out / c < n / by_row + out / by_column) {
            by_column = c;
            by_row = threads / c;
        }

    const int saved = kvd_blas_serial();
#pragma omp parallel for schedule(static) if (threads > 1)
    for (size_t piece = 0; piece < by_row * by_column; piece++) {
        const size_t r = piece / by_column, c = piece % by_column;
        const size_t i0 = cut(n, r, by_row, 16), i1 = cut(n, r + 1, by_row, 16);
        const size_t j0 = cut(out, c, by_column, 16), j1 = cut(out, c + 1, by_column, 16);
        if (i0 < i1 && j0 < j1)
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)(i1 - i0), (int)(j1 - j0),
                        (int)in, 1.0f, x + i0 * in, (int)in, w + j0 * in, (int)in,
                        add ? 1.0f : 0.0f, y + i0 * ldy + j0, (int)ldy);
    }
    kvd_blas_restore(saved);
}

void kvd_linear(const float *x, const float *w, size_t n, size_t in, size_t out, float *y, int add)
{
    kvd_linear_columns(x, w, n, in, out, y, out, add);
}

KVD_CLONES static void add_row(float *restrict y, const float *restrict bias, size_t d)
{
#pragma omp simd
    for (size_t j = 0; j < d; j++)
        y[j] += bias[j];
}

void kvd_scale(float *x, size_t n, float factor)
{
#pragma omp parallel for simd schedule(static) if (n >= WORTH_THREADS)
    for (size_t i = 0; i < n; i++)
        x[i] *= factor;
}

void kvd_add_bias(float *y, const float *bias, size_t n, size_t d)
{
#pragma omp parallel for schedule(static) if (n * d >= WORTH_THREADS)
    for (size_t i = 0; i < n; i++)
        add_row(y + i * d, bias, d);
}

/* Scales a RoPE frequency as in Llama 3.1: divides low frequencies by rope_factor, keeps high
 * ones. */
static double llama3_frequency(const kvd_config *c, double frequency)
{
    const double original = (double)c->rope_original_positions;
    const double wavelength = 2 * M_PI / frequency;
    if (wavelength < original / c->rope_high_freq_factor)
        return frequency;
    if (wavelength > original / c->rope_low_freq_factor)
        return frequency / c->rope_factor;
    const double keep = (original / wavelength - c->rope_low_freq_factor) /
                        (c->rope_high_freq_factor - c->rope_low_freq_factor);
    return (1 - keep) * frequency / c->rope_factor + keep * frequency;
}

/* Returns the index, a real number, of the RoPE frequency that makes `turns` turns in
 * rope_original_positions tokens. */
static double pair_of(const kvd_config *c, double turns)
{
    const double original = (double)c->rope_original_positions;
    return (double)kvd_config_rope_dims(c) * log(original / (turns * 2 * M_PI)) /
           (2 * log(c->rope_theta));
}

/* Scales RoPE frequency i as in YaRN: keeps high frequencies (small i), divides low ones (large
 * i). */
static double yarn_frequency(const kvd_config *c, double frequency, size_t i)
{
    const double last = (double)kvd_config_rope_dims(c) - 1;
    double low = pair_of(c, c->rope_beta_fast), high = pair_of(c, c->rope_beta_slow);
    if (c->rope_truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, last);
    high += high <= low ? 0.001 : 0;
    const double keep = 1 - fmin(1, fmax(0, ((double)i - low) / (high - low)));
    return (1 - keep) * frequency / c->rope_factor + keep * frequency;
}

bool kvd_rope_local(const kvd_config *c, int layer)
{
    if (isinf(c->rope_local_theta))
        return kvd_config_unrotated(c, layer);
    return c->rope_local_theta > 0 && kvd_config_window(c, layer) > 0;
}

double kvd_rope_frequency(const kvd_config *c, bool local, size_t seq_len, size_t i)
{
    const double dims = (double)kvd_config_rope_dims(c),
                 theta = local ? c->rope_local_theta : c->rope_theta,
                 plain = pow(theta, -2.0 * (double)i / dims);
    if (2 * i >= kvd_config_rope_dims(c) || isinf(theta))
        return 0;
    if (local)
        return plain;
    switch (c->rope_scaling) {
    case KVD_ROPE_LINEAR:
        return plain / c->rope_factor;
    case KVD_ROPE_LLAMA3:
        return llama3_frequency(c, plain);
    case KVD_ROPE_YARN:
        return yarn_frequency(c, plain, i);
    case KVD_ROPE_LONGROPE:
        return plain /
               (seq_len > (size_t)c->rope_original_positions ? c->rope_long : c->rope_short)[i];
    case KVD_ROPE_DEFAULT:
    default:
        return plain;
    }
}

void kvd_rope_tables(const kvd_config *c, bool local, size_t seq_len, size_t n_positions,
                     float *cosine, float *sine)
{
    const size_t half = (size_t)c->d_head / 2;
    const size_t turned = kvd_config_rope_dims(c) / 2;
    const bool scaled = c->rope_scaling == KVD_ROPE_LONGROPE || c->rope_scaling == KVD_ROPE_YARN;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < half; i++) {
        const double frequency = kvd_rope_frequency(c, local, seq_len, i),
                     scale = scaled && !local && i < turned ? c->rope_attention_factor : 1;
        for (size_t t = 0; t < n_positions; t++) {
            const double angle = (double)t * frequency;
            cosine[t * half + i] = (float)(scale * cos(angle));
            sine[t * half + i] = (float)(scale * sin(angle));
        }
    }
}

KVD_CLONES static void rotate_half_split(const float *restrict cosine, const float *restrict sine,
                                         size_t half, size_t d_head, size_t n_heads,
                                         float *restrict x)
{
    for (size_t h = 0; h < n_heads; h++, x += d_head) {
#pragma omp simd
        for (size_t i = 0; i < half; i++) {
            const float a = x[i], b = x[half + i];
            x[i] = a * cosine[i] - b * sine[i];
            x[half + i] = b * cosine[i] + a * sine[i];
        }
    }
}

KVD_CLONES static void rotate_interleaved(const float *restrict cosine, const float *restrict sine,
                                          size_t half, size_t d_head, size_t n_heads,
                                          float *restrict x)
{
    for (size_t h = 0; h < n_heads; h++, x += d_head) {
#pragma omp simd
        for (size_t i = 0; i < half; i++) {
            const float a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = a * cosine[i] - b * sine[i];
            x[2 * i + 1] = b * cosine[i] + a * sine[i];
        }
    }
}

void kvd_rope_apply(const kvd_config *c, const float *cosine, const float *sine,
                    const uint32_t *position, size_t n, size_t n_heads, float *x)
{
    const size_t d_head = (size_t)c->d_head, width = n_heads * d_head,
                 half = kvd_config_rope_dims(c) / 2;
#pragma omp parallel for schedule(static) if (n * width >= WORTH_THREADS)
    for (size_t i = 0; i < n; i++) {
        const size_t at = (size_t)position[i] * (d_head / 2);
        if (c->rope_layout == KVD_ROPE_INTERLEAVED)
            rotate_interleaved(cosine + at, sine + at, half, d_head, n_heads, x + i * width);
        else
            rotate_half_split(cosine + at, sine + at, half, d_head, n_heads, x + i * width);
    }
}

KVD_CLONES static void swiglu_chunk(float *restrict gate, const float *restrict up, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        gate[i] = gate[i] / (1.0f + kvd_expf(-gate[i])) * up[i];
}

KVD_CLONES static void geglu_tanh_chunk(float *restrict gate, const float *restrict up, size_t n)
{
    /* gelu_tanh(x) = x / (1 + exp(-twice * (x + 0.044715 x^3))), twice = 2 sqrt(2 / pi). */
    const float twice = 1.59576912f;
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        const float x = gate[i];
        gate[i] = x / (1.0f + kvd_expf(-twice * (x + 0.044715f * x * x * x))) * up[i];
    }
}

KVD_CLONES static void swiglu_clamped_chunk(float *restrict gate, const float *restrict up,
                                            size_t n, float alpha, float limit)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        const float g = gate[i] > limit ? limit : gate[i];
        float u = up[i] > limit ? limit : up[i];
        u = u < -limit ? -limit : u;
        gate[i] = g / (1.0f + kvd_expf(-alpha * g)) * (1.0f + u);
    }
}

void kvd_swiglu_clamped(float *gate, const float *up, size_t n, float alpha, float limit)
{
#pragma omp parallel for schedule(static) if (n >= WORTH_THREADS)
    for (size_t i = 0; i < n; i += CHUNK)
        swiglu_clamped_chunk(gate + i, up + i, n - i < CHUNK ? n - i : CHUNK, alpha, limit);
}

static void silu_chunk(float *x, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        x[i] /= 1.0f + kvd_expf(-x[i]);
}

static void gelu_chunk(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= 0.5f * (1.0f + erff(x[i] * 0.70710678f));
}

KVD_CLONES static void gelu_tanh_chunk(float *restrict x, size_t n)
{
    /* gelu_tanh(x) = x / (1 + exp(-twice * (x + 0.044715 x^3))), twice = 2 sqrt(2 / pi). */
    const float twice = 1.59576912f;
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        x[i] = x[i] / (1.0f + kvd_expf(-twice * (x[i] + 0.044715f * x[i] * x[i] * x[i])));
}

/* Replaces x by max(x, 0), or by max(x, 0)^2 if `twice`. NaN stays NaN. */
static void relu_chunk(float *x, size_t n, bool twice)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        x[i] = x[i] < 0.0f ? 0.0f : twice ? x[i] * x[i] : x[i];
}

static void activate_chunk(kvd_activation a, float *x, const float *up, size_t n)
{
    switch (a) {
    case KVD_SWIGLU:
        up ? swiglu_chunk(x, up, n) : silu_chunk(x, n);
        break;
    case KVD_GEGLU_TANH:
        up ? geglu_tanh_chunk(x, up, n) : gelu_tanh_chunk(x, n);
        break;
    case KVD_GELU:
        gelu_chunk(x, n);
        break;
    case KVD_GELU_TANH:
        gelu_tanh_chunk(x, n);
        break;
    case KVD_RELU:
    case KVD_RELU2:
        relu_chunk(x, n, a == KVD_RELU2);
    }
}

void kvd_activate(kvd_activation a, float *x, const float *up, size_t n)
{
#pragma omp parallel for schedule(static) if (n >= WORTH_THREADS)
    for (size_t i = 0; i < n; i += CHUNK)
        activate_chunk(a, x + i, up ? up + i : NULL, n - i < CHUNK ? n - i : CHUNK);
}

KVD_CLONES static void softmax_seen(float *row, size_t seen, float scale, const float *sink)
{
    float top = row[0];
#pragma omp simd reduction(max : top)
    for (size_t j = 0; j < seen; j++)
        top = row[j] > top ? row[j] : top;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t j = 0; j < seen; j++) {
        row[j] = kvd_expf((row[j] - top) * scale);
        sum += row[j];
    }
    if (sink)
        /* Adds the exponential of the attention sink's logit. If this overflows, 1 / sum is 0,
         * which is correct. */
        sum += kvd_expf(*sink - top * scale);
    const float inverse = 1.0f / sum;
#pragma omp simd
    for (size_t j = 0; j < seen; j++)
        row[j] *= inverse;
}

/* Replaces x by softcap * tanh(scale x / softcap), as in Cephes tanhf. NaN stays NaN. */
KVD_CLONES static void softcap_chunk(float *x, size_t n, float scale, float softcap)
{
    const float inner = scale / softcap;
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        const float y = x[i] * inner, z = y * y;
        float p = -5.70498872745e-3f;
        p = p * z + 2.06390887954e-2f;
        p = p * z - 5.37397155531e-2f;
        p = p * z + 1.33314422036e-1f;
        p = p * z - 3.33332819422e-1f;
        const float near = p * z * y + y, far = 1.0f - 2.0f / (kvd_expf(2.0f * y) + 1.0f);
        x[i] = softcap * (z < 0.390625f ? near : far);
    }
}

void kvd_softcap(float *x, size_t n, float scale, float softcap)
{
#pragma omp parallel for schedule(static) if (n >= WORTH_THREADS)
    for (size_t i = 0; i < n; i += CHUNK)
        softcap_chunk(x + i, n - i < CHUNK ? n - i : CHUNK, scale, softcap);
}

void kvd_softmax_row(float *row, size_t from, size_t to, size_t n, kvd_scores scores)
{
    assert(from < to && to <= n && scores.scale >= 0);
    if (scores.softcap > 0)
        softcap_chunk(row + from, to - from, scores.scale, scores.softcap);
    softmax_seen(row + from, to - from, scores.softcap > 0 ? 1.0f : scores.scale, scores.sink);
    memset(row, 0, from * sizeof *row);
    memset(row + to, 0, (n - to) * sizeof *row);
}

/* Returns the bit pattern of the largest |x[i]|. All exponent bits are 1 if any x[i] is infinite or
 * NaN. */
KVD_CLONES static uint32_t largest_magnitude(const float *x, size_t n)
{
    uint32_t top = 0;
#pragma omp simd reduction(max : top)
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    return top;
}

size_t kvd_first_nonfinite_f32(const float *x, size_t n)
{
    size_t bad = n;
#pragma omp parallel for schedule(static) reduction(min : bad) if (n >= WORTH_THREADS)
    for (size_t i = 0; i < n; i += CHUNK) {
        const size_t m = n - i < CHUNK ? n - i : CHUNK;
        if (i < bad && largest_magnitude(x + i, m) >= 0x7f800000u) {
            size_t j = i;
            while (isfinite(x[j]))
                j++;
            bad = j;
        }
    }
    return bad;
}
