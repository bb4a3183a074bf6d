/* Conversions of single bfloat16 numbers, for plain reference code in tests. */
#ifndef KVD_TESTS_BF16_H
#define KVD_TESTS_BF16_H

#include <string.h>

#include "common/half.h"

/* Returns the bits of x rounded to the nearest bfloat16. */
static inline uint16_t bf16_of(double x)
{
    const float y = (float)x;
    uint16_t h;
    kvd_from_f32(KVD_BF16, &y, &h, 1);
    return h;
}

/* Converts to float; a bfloat16 is the upper half of a float. */
static inline float bf16_wide(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float bf16_rounded(double x)
{
    return bf16_wide(bf16_of(x));
}

#endif
