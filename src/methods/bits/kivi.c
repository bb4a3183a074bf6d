/* Method kivi: keys are quantised per channel, values per token, and the newest `residual` tokens
 * stay exact (Liu et al. 2024, KIVI, section 3). */
#include "methods/bits/bits.h"

enum { BITS, GROUP, RESIDUAL };
static const kvd_parameter parameters[] = {
    {"bits", 2, 1, 8, true, "bits per number"},
    {"group", 32, 1, 4096, true, "numbers per scale"},
    {"residual", 128, 0, 1 << 20, true, "number of newest tokens kept exact; a multiple of group"},
    {NULL, 0, 0, 0, false, NULL},
};

static void window(const kvd_parameter_values *v, kvd_side side, size_t *newest, size_t *block)
{
    const size_t residual = (size_t)v->value[RESIDUAL];
    *newest = side == KVD_KEYS ? 0 : residual;
    *block = side == KVD_VALUES ? 1 : residual > 0 ? residual : (size_t)v->value[GROUP];
}

static int check(const kvd_parameter_values *v, kvd_err *err)
{
    return (size_t)v->value[RESIDUAL] % (size_t)v->value[GROUP]
               ? kvd_fail(err, "residual %g is not a multiple of group %g", v->value[RESIDUAL],
                          v->value[GROUP])
               : 0;
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const kvd_parameter_values *const v = self;
    (void)err;
    *count = (kvd_bits_count){0, 0};
    kvd_bits_code_groups(b->x, b->n, b->d, b->side == KVD_KEYS, (size_t)v->value[GROUP],
                         (int)v->value[BITS], decoded, count);
    return 0;
}

const kvd_bits_method kvd_bits_kivi = {
    .info = {.name = "kivi",
             .summary = "keys quantised per channel, values per token, newest exact",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"bits", 8, 1, false, NULL, 0, 0},
             .gpu = &kvd_gpu_packed},
    .window = window,
    .check = check,
    .code = code,
};
