/* Method zipcache: tokens that receive much attention get more bits than others (He et al.
 * 2024). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/bits/bits.h"
#include "methods/tokens/tokens.h"

enum { HIGH, LOW, SHARE, BLOCK };
static const kvd_parameter parameters[] = {
    {"high", 4, 1, 8, true, "bits per number of salient tokens"},
    {"low", 2, 1, 8, true, "bits per number of other tokens"},
    {"share", 0.6, 0, 1, false, "fraction of tokens that are salient"},
    {"block", 100, 1, 1 << 20, true, "tokens per block after the prompt"},
    {NULL, 0, 0, 0, false, NULL},
};

static void window(const kvd_parameter_values *v, kvd_side side, size_t *newest, size_t *block)
{
    (void)side;
    *newest = 0;
    *block = (size_t)v->value[BLOCK];
}

static int check(const kvd_parameter_values *v, kvd_err *err)
{
    return v->value[HIGH] < v->value[LOW]
               ? kvd_fail(err, "high = %g bits of salient tokens is below low = %g", v->value[HIGH],
                          v->value[LOW])
               : 0;
}

/* Sets salient [n] to KVD_LEVEL_HIGH for the tokens that received most attention, and to
 * KVD_LEVEL_DROPPED for the others. */
static int find_salient(const kvd_parameter_values *v, const kvd_bits_block *b, uint8_t *salient,
                        kvd_err *err)
{
    double *const score = malloc(b->n * sizeof *score);
    if (!score)
        return kvd_no_memory(err, "saliencies", b->n * sizeof *score);
    for (size_t i = 0; i < b->n; i++)
        score[i] = b->seen[i] > 0 ? b->mass[i] / b->seen[i] : 0;
    memset(salient, KVD_LEVEL_HIGH, b->n);
    const int status = kvd_tokens_keep_top(
        score, b->n, (size_t)(v->value[SHARE] * (double)b->n + 0.5), salient, err);
    free(score);
    return status;
}

/* Quantises each key channel with two scales: one for tokens with more bits, one for tokens with
 * fewer bits. */
static void code_keys(const kvd_parameter_values *v, const kvd_bits_block *b,
                      const uint8_t *salient, float *gathered, float *decoded,
                      kvd_bits_count *count)
{
    for (size_t j = 0; j < b->d; j++)
        for (int high = 0; high < 2; high++) {
            size_t n = 0;
            for (size_t i = 0; i < b->n; i++)
                if ((salient[i] == KVD_LEVEL_HIGH) == high)
                    gathered[n++] = b->x[i * b->d + j];
            if (n == 0)
                continue;
            count->payload +=
                kvd_quantise_group(gathered, n, 1, (int)v->value[high ? HIGH : LOW], gathered);
            count->side += 32;
            n = 0;
            for (size_t i = 0; i < b->n; i++)
                if ((salient[i] == KVD_LEVEL_HIGH) == high)
                    decoded[i * b->d + j] = gathered[n++];
        }
}

static void code_values(const kvd_parameter_values *v, const kvd_bits_block *b,
                        const uint8_t *salient, float *channel, float *decoded,
                        kvd_bits_count *count)
{
    for (size_t j = 0; j < b->d; j++) {
        float most = 0;
        for (size_t i = 0; i < b->n; i++)
            most = fmaxf(most, fabsf(b->x[i * b->d + j]));
        channel[j] = most > 0 ? sqrtf(most) : 1;
    }
    count->side += 16 * (double)b->d;
    for (size_t i = 0; i < b->n; i++) {
        float *const y = decoded + i * b->d;
        for (size_t j = 0; j < b->d; j++)
            y[j] = b->x[i * b->d + j] / channel[j];
        count->payload += kvd_quantise_group(
            y, b->d, 1, (int)v->value[salient[i] == KVD_LEVEL_HIGH ? HIGH : LOW], y);
        count->side += 32;
        for (size_t j = 0; j < b->d; j++)
            y[j] *= channel[j];
    }
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const kvd_parameter_values *const v = self;
    const size_t n = b->n > b->d ? b->n : b->d;
    uint8_t *const salient = malloc(b->n);
    float *const scratch = malloc(n * sizeof *scratch);
    *count = (kvd_bits_count){0, (double)b->n};
    int status = salient && scratch
                     ? 0
                     : kvd_no_memory(err, "a block of the cache", n * sizeof *scratch + b->n);
    status = status || find_salient(v, b, salient, err);
    if (!status && b->side == KVD_KEYS)
        code_keys(v, b, salient, scratch, decoded, count);
    else if (!status)
        code_values(v, b, salient, scratch, decoded, count);
    free(scratch);
    free(salient);
    return status ? -1 : 0;
}

const kvd_bits_method kvd_bits_zipcache = {
    .info = {.name = "zipcache",
             .summary = "more bits for salient tokens than for others",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"low", 6, 1, false, "high", 2, 1},
             .needs = KVD_NEEDS_PROBABILITIES,
             .gpu = &kvd_gpu_packed},
    .window = window,
    .check = check,
    .code = code,
};
