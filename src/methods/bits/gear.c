/* Method gear: quantised numbers, outliers stored exactly, and a low-rank approximation of the
 * quantisation error (Kang 2024). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/stats.h"
#include "methods/bits/bits.h"
#include "methods/bits/gear.h"

enum { BITS, GROUP, RANK, RANK2, OUTLIERS, BUFFER, ITERATIONS };
static const kvd_parameter parameters[] = {
    {"bits", 2, 1, 8, true, "bits per number"},
    {"group", 64, 1, 4096, true, "numbers per scale"},
    {"rank", 4, 0, 64, true, "rank of the low-rank part of the prompt"},
    {"rank2", 2, 0, 64, true, "rank of the low-rank part of later blocks"},
    {"outliers", 0.02, 0, 0.5, false, "fraction of numbers stored apart as outliers"},
    {"buffer", 20, 1, 1 << 20, true, "tokens per block after the prompt"},
    {"iterations", 2, 1, 100, true, "iterations of the power method"},
    {NULL, 0, 0, 0, false, NULL},
};

static void window(const kvd_parameter_values *v, kvd_side side, size_t *newest, size_t *block)
{
    (void)side;
    *newest = 0;
    *block = (size_t)v->value[BUFFER];
}

kvd_gear kvd_gear_of(const kvd_parameter_values *v)
{
    return (kvd_gear){.bits = (int32_t)v->value[BITS],
                      .group = (int32_t)v->value[GROUP],
                      .rank = (int32_t)v->value[RANK],
                      .rank_later = (int32_t)v->value[RANK2],
                      .buffer = (int32_t)v->value[BUFFER],
                      .iterations = (int32_t)v->value[ITERATIONS],
                      .outliers = v->value[OUTLIERS]};
}

double kvd_gear_side_bits(const kvd_gear *s, bool keys, int n, int d, bool prompt)
{
    const double lines = keys ? d : n;
    const int along = keys ? n : d;
    return lines * (kvd_gear_pieces(along, s->group) * (double)KVD_GROUP_SIDE_BITS +
                    2 * kvd_gear_apart(s, along) * (16 + 16)) +
           (double)(n + d) * kvd_gear_rank(s, n, d, prompt) * 16;
}

/* Replaces the k smallest and k largest of n numbers, which are stored as outliers, by the mean of
 * the others. */
static void take_outliers(float *x, size_t n, size_t stride, size_t k, kvd_ranked *order,
                          float *exact)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        order[i] = (kvd_ranked){(double)x[i * stride], i};
    qsort(order, n, sizeof *order, kvd_by_rising_value);
    for (size_t i = k; i + k < n; i++)
        sum += order[i].value;
    const float middle = n > 2 * k ? (float)(sum / (double)(n - 2 * k)) : 0;
    for (size_t i = 0; i < n; i++)
        if (i < k || i + k >= n) {
            exact[order[i].index * stride] = kvd_round_f16((float)order[i].value);
            x[order[i].index * stride] = middle;
        }
}

/* Makes the columns of a [n][r] orthonormal. Columns that depend linearly on earlier ones become
 * 0. */
static void orthonormalise(float *a, size_t n, size_t r)
{
    for (size_t c = 0; c < r; c++) {
        for (size_t p = 0; p < c; p++) {
            double dot = 0;
            for (size_t i = 0; i < n; i++)
                dot += (double)a[i * r + c] * (double)a[i * r + p];
            for (size_t i = 0; i < n; i++)
                a[i * r + c] -= (float)dot * a[i * r + p];
        }
        double square = 0;
        for (size_t i = 0; i < n; i++)
            square += (double)a[i * r + c] * (double)a[i * r + c];
        const float scale = square > 1e-30 ? (float)(1 / sqrt(square)) : 0;
        for (size_t i = 0; i < n; i++)
            a[i * r + c] *= scale;
    }
}

static void round_all(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = kvd_round_f16(x[i]);
}

/* Adds an approximation of rank r of the quantisation error e [n][d] to y [n][d]. */
static void add_low_rank(const float *e, size_t n, size_t d, size_t r, int iterations, float *a,
                         float *b, float *y)
{
    for (size_t i = 0; i < d * r; i++)
        b[i] = (float)cos((double)(i / r) * (double)(i % r + 1) + 0.5);
    orthonormalise(b, d, r);
    for (int it = 0; it < iterations; it++) {
        memset(a, 0, n * r * sizeof *a);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < d; j++)
                for (size_t c = 0; c < r; c++)
                    a[i * r + c] += e[i * d + j] * b[j * r + c];
        orthonormalise(a, n, r);
        memset(b, 0, d * r * sizeof *b);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < d; j++)
                for (size_t c = 0; c < r; c++)
                    b[j * r + c] += e[i * d + j] * a[i * r + c];
        if (it + 1 < iterations)
            orthonormalise(b, d, r);
    }
    round_all(a, n * r);
    round_all(b, d * r);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < d; j++)
            for (size_t c = 0; c < r; c++)
                y[i * d + j] += a[i * r + c] * b[j * r + c];
}

static int code(const void *self, const kvd_bits_block *block, float *decoded,
                kvd_bits_count *count, kvd_err *err)
{
    const kvd_gear s = kvd_gear_of(self);
    const size_t n = block->n, d = block->d, size = n * d, group = (size_t)s.group;
    const bool keys = block->side == KVD_KEYS;
    const size_t lines = keys ? d : n, along = keys ? n : d, next_line = keys ? 1 : d,
                 next = keys ? d : 1;
    const size_t k = (size_t)kvd_gear_apart(&s, (int)along),
                 r = (size_t)kvd_gear_rank(&s, (int)n, (int)d, block->prompt);
    *count = (kvd_bits_count){0, kvd_gear_side_bits(&s, keys, (int)n, (int)d, block->prompt)};
    float *const work = malloc((2 * size + (n + d) * r + 1) * sizeof *work);
    kvd_ranked *const order = malloc(along * sizeof *order);
    if (!work || !order) {
        free(order);
        free(work);
        return kvd_no_memory(err, "a block of the cache", 2 * size * sizeof *work);
    }
    float *const rest = work, *const exact = work + size, *const a = exact + size,
                 *const b = a + n * r;
    memcpy(rest, block->x, size * sizeof *rest);
    for (size_t i = 0; i < size; i++)
        exact[i] = NAN;
    for (size_t l = 0; l < lines; l++) {
        if (k)
            take_outliers(rest + l * next_line, along, next, k, order, exact + l * next_line);
        for (size_t at = 0; at < along; at += group) {
            const size_t m = along - at < group ? along - at : group,
                         first = l * next_line + at * next;
            count->payload += kvd_quantise_group(rest + first, m, next, s.bits, decoded + first);
        }
    }
    if (r) {
        for (size_t i = 0; i < size; i++)
            rest[i] = isnan(exact[i]) ? rest[i] - decoded[i] : 0;
        add_low_rank(rest, n, d, r, s.iterations, a, b, decoded);
    }
    for (size_t i = 0; i < size; i++)
        if (!isnan(exact[i]))
            decoded[i] = exact[i];
    free(order);
    free(work);
    return 0;
}

const kvd_bits_method kvd_bits_gear = {
    .info = {.name = "gear",
             .summary = "quantised, plus a low-rank part and outliers",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"bits", 8, 1, false, NULL, 0, 0},
             .gpu = &kvd_gpu_packed},
    .window = window,
    .code = code,
};
