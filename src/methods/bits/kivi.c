/*
 * Method kivi: keys per channel, `residual` tokens at a time; values per token; the newest
 * `residual` tokens stay exact (Liu et al. 2024, "KIVI: A Tuning-Free Asymmetric 2bit Quantization
 * for KV Cache", section 3, and its public code).
 */
#include "methods/bits/bits.h"

enum { BITS, GROUP, RESIDUAL };
static const kvd_parameter parameters[] = {
    {"bits", 2, 1, 8, true, "bits per number"},
    {"group", 32, 1, 4096, true, "numbers per scale"},
    {"residual", 128, 0, 1 << 20, true, "number of newest tokens kept exact; a multiple of group"},
    {NULL, 0, 0, 0, false, NULL},
};
static const kvd_tradeoff tradeoff = {"bits", 8, 1, false, NULL, 0, 0};

static void window(const kvd_parameter_values *v, kvd_side side, size_t *newest, size_t *block)
{
    const size_t residual = (size_t)v->value[RESIDUAL];
    *newest = side == KVD_KEYS ? 0 : residual;
    *block = side == KVD_VALUES ? 1 : residual > 0 ? residual : (size_t)v->value[GROUP];
}

static int open(const kvd_parameter_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    (void)s;
    if ((size_t)v->value[RESIDUAL] % (size_t)v->value[GROUP])
        return kvd_fail(err, "residual %g is not a multiple of group %g", v->value[RESIDUAL],
                        v->value[GROUP]);
    *self = (void *)(uintptr_t)v;
    return 0;
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const kvd_parameter_values *const v = self;
    const size_t group = (size_t)v->value[GROUP];
    const int bits = (int)v->value[BITS];
    (void)err;
    *count = (kvd_bits_count){0, 0};
    const bool keys = b->side == KVD_KEYS;
    const size_t lines = keys ? b->d : b->n, along = keys ? b->n : b->d;
    const size_t next_line = keys ? 1 : b->d, next = keys ? b->d : 1;
    for (size_t l = 0; l < lines; l++)
        for (size_t at = 0; at < along; at += group) {
            const size_t n = along - at < group ? along - at : group,
                         first = l * next_line + at * next;
            count->payload += kvd_quantise_group(b->x + first, n, next, bits, decoded + first);
            count->side += 32;
        }
    return 0;
}

const kvd_bits_method kvd_bits_kivi = {
    .info = {.name = "kivi",
             .summary = "keys quantised per channel, values per token, newest exact",
             .parameter = parameters,
             .tradeoff = &tradeoff,
             .gpu = &kvd_gpu_packed},
    .window = window,
    .open = open,
    .code = code,
};
