/* Method hetero: keys have more bits than values, and important tokens (level KVD_LEVEL_HIGH) more
 * bits than others (LeanKV's Hetero-KV, section 4). */

#include "methods/bits/bits.h"

enum { HIGH_K, HIGH_V, LOW_K, LOW_V, BALANCE };
static const kvd_parameter parameters[] = {
    {"k", 8, 1, 16, true, "bits per number of keys"},
    {"v", 4, 1, 16, true, "bits per number of values"},
    {"lk", 4, 1, 16, true, "bits per number of keys at the low level"},
    {"lv", 2, 1, 16, true, "bits per number of values at the low level"},
    {"balance", 0, 0, 1, true,
     "1: keys at the low level are scaled per channel by MiKV's factors from the prompt"},
    {NULL, 0, 0, 0, false, NULL},
};

static bool two_levels(const kvd_parameter_values *v)
{
    return v->value[LOW_K] <= v->value[HIGH_K] && v->value[LOW_V] <= v->value[HIGH_V] &&
           v->value[LOW_K] + v->value[LOW_V] < v->value[HIGH_K] + v->value[HIGH_V];
}

static bool balances(const kvd_parameter_values *v)
{
    return v->value[BALANCE] > 0;
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const kvd_parameter_values *const v = self;
    (void)err;
    *count = (kvd_bits_count){0, 0};
    for (size_t i = 0; i < b->n; i++) {
        const bool low = b->level[i] == KVD_LEVEL_LOW, keys = b->side == KVD_KEYS;
        const int bits = (int)v->value[keys ? (low ? LOW_K : HIGH_K) : (low ? LOW_V : HIGH_V)];
        const float *const x = b->x + i * b->d;
        float *const y = decoded + i * b->d;
        if (bits == 16) {
            for (size_t j = 0; j < b->d; j++)
                y[j] = kvd_round_f16(x[j]);
            count->payload += 16.0 * (double)b->d;
        } else {
            const float *const factor = low && keys ? b->balance : NULL;
            for (size_t j = 0; factor && j < b->d; j++)
                y[j] = x[j] * factor[j];
            count->payload += kvd_quantise_group(factor ? y : x, b->d, 1, bits, y);
            for (size_t j = 0; factor && j < b->d; j++)
                y[j] /= factor[j];
            count->side += 32;
        }
    }
    return 0;
}

const kvd_bits_method kvd_bits_hetero = {
    .info = {.name = "hetero",
             .summary = "keys at more bits than values, per token; two levels",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"k", 8, 1, false, "v", 0, 1},
             .gpu = &kvd_gpu_packed},
    .two_levels = two_levels,
    .low_key = {"lk", "lv", "balance", NULL},
    .balances = balances,
    .code = code,
};
