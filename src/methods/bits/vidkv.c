/* Method vidkv: key channels have 2 bits or 1 bit, values 2 bits or three levels (Tao et al. 2025,
 * arXiv 2503.16257, section 3). Channels with 1 bit store signs of Fourier coefficients. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/stats.h"
#include "methods/bits/bits.h"

enum { KEY_BITS, GROUP, RESIDUAL, TERNARY };
static const kvd_parameter parameters[] = {
    {"k", 1.5, 1, 2, false, "mean bits per number of keys"},
    {"group", 32, 1, 4096, true, "tokens of a channel that share a scale"},
    {"residual", 128, 0, 1 << 20, true, "tokens per block after the prompt; a multiple of group"},
    {"ternary", 1, 0, 1, true, "1: values are ternary; 0: values have 2 bits"},
    {NULL, 0, 0, 0, false, NULL},
};

static void window(const kvd_parameter_values *v, kvd_side side, size_t *newest, size_t *block)
{
    (void)side;
    *newest = 0;
    *block = (size_t)v->value[v->value[RESIDUAL] > 0 ? RESIDUAL : GROUP];
}

static int check(const kvd_parameter_values *v, kvd_err *err)
{
    return (size_t)v->value[RESIDUAL] % (size_t)v->value[GROUP]
               ? kvd_fail(err, "residual %g is not a multiple of group %g", v->value[RESIDUAL],
                          v->value[GROUP])
               : 0;
}

static float mean_magnitude(const float *x, size_t n, size_t stride)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += fabs((double)x[i * stride]);
    return kvd_round_f16((float)(sum / (double)n));
}

static void code_signs(const float *x, size_t n, size_t stride, float *y)
{
    const float scale = mean_magnitude(x, n, stride);
    for (size_t i = 0; i < n; i++)
        y[i * stride] = x[i * stride] < 0 ? -scale : scale;
}

static void code_ternary(const float *x, size_t n, size_t stride, float *y)
{
    const float scale = mean_magnitude(x, n, stride);
    for (size_t i = 0; i < n; i++)
        y[i * stride] = fabsf(x[i * stride]) > scale / 2 ? copysignf(scale, x[i * stride]) : 0;
}

static void code_two_bits(const float *x, size_t n, size_t stride, float *y)
{
    (void)kvd_quantise_group(x, n, stride, 2, y);
}

/* Calls `code` for each group of `group` tokens in one channel of x. Returns the number of
 * groups. */
static size_t code_column(void (*code)(const float *, size_t, size_t, float *), const float *x,
                          size_t n, size_t d, size_t group, float *y)
{
    size_t groups = 0;
    for (size_t at = 0; at < n; at += group, groups++)
        code(x + at * d, n - at < group ? n - at : group, d, y + at * d);
    return groups;
}

/* Writes the Fourier coefficients c of x [m] to y [m], in the order c0, Re c1, Im c1, Re c2, and so
 * on. wave [2][m] has the cosines and sines. */
static void transform(const float *x, size_t m, const double *wave, float *y)
{
    for (size_t k = 0; 2 * k <= m; k++) {
        double real = 0, imaginary = 0;
        for (size_t j = 0; j < m; j++) {
            const size_t at = k * j % m;
            real += (double)x[j] * wave[at];
            imaginary -= (double)x[j] * wave[m + at];
        }
        if (k == 0)
            y[0] = (float)real;
        else
            y[2 * k - 1] = (float)real;
        if (k && 2 * k < m)
            y[2 * k] = (float)imaginary;
    }
}

static void transform_back(const float *y, size_t m, const double *wave, float *x)
{
    for (size_t j = 0; j < m; j++) {
        double sum = (double)y[0];
        for (size_t k = 1; 2 * k <= m; k++) {
            const size_t at = k * j % m;
            sum += 2 * k < m
                       ? 2 * ((double)y[2 * k - 1] * wave[at] - (double)y[2 * k] * wave[m + at])
                       : (double)y[2 * k - 1] * wave[at];
        }
        x[j] = (float)(sum / (double)m);
    }
}

/* Fills `order` with channel numbers: first the channels that get 2 bits, which have the largest
 * ranges, then the channels that get 1 bit. `two`: number of channels that get 2 bits. */
static void sort_channels(const float *x, size_t n, size_t d, size_t two, kvd_ranked *order)
{
    for (size_t j = 0; j < d; j++) {
        float lo = x[j], hi = x[j];
        for (size_t i = 1; i < n; i++) {
            lo = fminf(lo, x[i * d + j]);
            hi = fmaxf(hi, x[i * d + j]);
        }
        order[j] = (kvd_ranked){(double)(hi - lo), j};
    }
    qsort(order, d, sizeof *order, kvd_by_falling_value);
    qsort(order + two, d - two, sizeof *order, kvd_by_index);
}

static int code_keys(const kvd_parameter_values *v, const kvd_bits_block *b, float *decoded,
                     kvd_bits_count *count, kvd_err *err)
{
    const size_t n = b->n, d = b->d, group = (size_t)v->value[GROUP],
                 two = (size_t)((v->value[KEY_BITS] - 1) * (double)d), m = d - two;
    kvd_ranked *const order = malloc(d * sizeof *order);
    float *const easy = malloc((n * m + m + 1) * sizeof *easy), *const line =
                                                                    easy ? easy + n * m : NULL;
    double *const wave = malloc(2 * (m + 1) * sizeof *wave);
    const int status = order && easy && wave
                           ? 0
                           : kvd_no_memory(err, "a block of the cache", n * m * sizeof *easy);
    if (!status) {
        sort_channels(b->x, n, d, two, order);
        for (size_t k = 0; k < two; k++)
            count->side += 32.0 * (double)code_column(code_two_bits, b->x + order[k].index, n, d,
                                                      group, decoded + order[k].index);
        const double turn = 4 * acos(0);
        for (size_t i = 0; i < m; i++) {
            wave[i] = cos(turn * (double)i / (double)m);
            wave[m + i] = sin(turn * (double)i / (double)m);
        }
        for (size_t i = 0; m && i < n; i++) {
            for (size_t k = 0; k < m; k++)
                line[k] = b->x[i * d + order[two + k].index];
            transform(line, m, wave, easy + i * m);
        }
        for (size_t k = 0; k < m; k++)
            count->side += 16.0 * (double)code_column(code_signs, easy + k, n, m, group, easy + k);
        for (size_t i = 0; m && i < n; i++) {
            transform_back(easy + i * m, m, wave, line);
            for (size_t k = 0; k < m; k++)
                decoded[i * d + order[two + k].index] = line[k];
        }
        count->payload = (double)(n * (2 * two + m));
        count->side += (double)d;
    }
    free(wave);
    free(easy);
    free(order);
    return status;
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const kvd_parameter_values *const v = self;
    const bool ternary = v->value[TERNARY] > 0;
    *count = (kvd_bits_count){0, 0};
    if (b->side == KVD_KEYS)
        return code_keys(v, b, decoded, count, err);
    for (size_t j = 0; j < b->d; j++)
        count->side += (ternary ? 16.0 : 32.0) *
                       (double)code_column(ternary ? code_ternary : code_two_bits, b->x + j, b->n,
                                           b->d, (size_t)v->value[GROUP], decoded + j);
    const size_t numbers = b->n * b->d;
    count->payload = (double)(ternary ? 8 * ((numbers + 4) / 5) : 2 * numbers);
    return 0;
}

const kvd_bits_method kvd_bits_vidkv = {
    .info = {.name = "vidkv",
             .summary = "keys of 1 bit, 2 in channels of large range; ternary values",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"k", 2, 1, false, NULL, 0, 0},
             .gpu = &kvd_gpu_packed},
    .window = window,
    .check = check,
    .code = code,
};
