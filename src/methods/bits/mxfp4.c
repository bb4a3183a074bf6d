/*
 * Method mxfp4: blocks of 32 numbers in E2M1 with a power of two as scale (OCP Microscaling Formats
 * Specification 1.0, 2023, sections 5.2, 5.3.3, 5.4.1 and 6.3). The last block is zero-padded.
 */
#include <math.h>

#include "methods/bits/bits.h"
#include "methods/bits/minifloat.h"

enum { BLOCK = 32, LARGEST_EXPONENT = 2, EXPONENTS = 127 };
static const kvd_parameter parameters[] = {
    {NULL, 0, 0, 0, false, NULL},
};

static float scale_of(const float *x, size_t n)
{
    float most = 0;
    int exponent;
    for (size_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(x[i]));
    if (!(most > 0))
        return 1;
    (void)frexpf(most, &exponent); /* `most` is in [2^(exponent - 1), 2^exponent) */
    exponent -= 1 + LARGEST_EXPONENT;
    exponent = exponent < -EXPONENTS ? -EXPONENTS : exponent > EXPONENTS ? EXPONENTS : exponent;
    return ldexpf(1, exponent);
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const size_t blocks = (b->d + BLOCK - 1) / BLOCK;
    (void)self, (void)err;
    for (size_t i = 0; i < b->n; i++)
        for (size_t at = 0; at < b->d; at += BLOCK) {
            const size_t n = b->d - at < BLOCK ? b->d - at : BLOCK;
            const float *const x = b->x + i * b->d + at, scale = scale_of(x, n);
            for (size_t j = 0; j < n; j++)
                decoded[i * b->d + at + j] = kvd_minifloat_round(&kvd_e2m1, x[j] / scale) * scale;
        }
    *count = (kvd_bits_count){4 * (double)(b->n * b->d),
                              (double)(b->n * (8 * blocks + 4 * (blocks * BLOCK - b->d)))};
    return 0;
}

const kvd_bits_method kvd_bits_mxfp4 = {
    .info = {.name = "mxfp4",
             .summary = "blocks of 32 E2M1 numbers with a power of two as scale (OCP MX)",
             .parameter = parameters,
             .gpu = &kvd_gpu_packed},
    .code = code,
};
