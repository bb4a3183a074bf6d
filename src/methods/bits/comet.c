/* Method comet: symmetric quantisation with one scale per channel, s = max |x| / (2^(b - 1) - 1)
 * (Liu et al. 2024, COMET, arXiv 2410.12168, section 3). */
#include <math.h>

#include "methods/bits/bits.h"

enum { BITS, GROUP, SYMMETRIC };
static const kvd_parameter parameters[] = {
    {"bits", 4, 2, 8, true, "bits per number"},
    {"group", 128, 1, 4096, true, "tokens of a channel that share a scale"},
    {"symmetric", 1, 0, 1, true, "1: codes around 0; 0: a zero point per scale"},
    {NULL, 0, 0, 0, false, NULL},
};

static void window(const kvd_parameter_values *v, kvd_side side, size_t *newest, size_t *block)
{
    (void)side;
    *newest = 0;
    *block = (size_t)v->value[GROUP];
}

/* Quantises the n numbers x[0], x[stride], ... with one scale and no zero point, and writes the
 * decoded numbers to y. */
static void code_symmetric(const float *x, size_t n, size_t stride, int bits, float *y)
{
    const float top = (float)((1u << (bits - 1)) - 1);
    float most = 0;
    for (size_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(x[i * stride]));
    const float scale = kvd_round_f16(most / top);
    for (size_t i = 0; i < n; i++)
        y[i * stride] =
            scale > 0 ? scale * fminf(fmaxf(rintf(x[i * stride] / scale), -top), top) : 0;
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const kvd_parameter_values *const v = self;
    const size_t group = (size_t)v->value[GROUP];
    const int bits = (int)v->value[BITS];
    (void)err;
    *count = (kvd_bits_count){0, 0};
    if (!(v->value[SYMMETRIC] > 0)) {
        kvd_bits_code_groups(b->x, b->n, b->d, true, group, bits, decoded, count);
        return 0;
    }
    for (size_t j = 0; j < b->d; j++)
        for (size_t at = 0; at < b->n; at += group) {
            const size_t n = b->n - at < group ? b->n - at : group, first = at * b->d + j;
            code_symmetric(b->x + first, n, b->d, bits, decoded + first);
            count->payload += bits * (double)n;
            count->side += 16;
        }
    return 0;
}

const kvd_bits_method kvd_bits_comet = {
    .info = {.name = "comet",
             .summary = "keys and values per channel in blocks of tokens, symmetric, 4 bits",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"bits", 8, 2, false, NULL, 0, 0},
             .gpu = &kvd_gpu_packed},
    .window = window,
    .code = code,
};
