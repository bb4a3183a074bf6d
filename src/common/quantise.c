#include "common/quantise.h"

#include <math.h>
#include <stdint.h>

#include "common/half.h"

float kvd_round_f16(float x)
{
    uint16_t h;
    float y;
    kvd_from_f32(KVD_F16, &x, &h, 1);
    kvd_to_f32(KVD_F16, &h, &y, 1);
    return y;
}

double kvd_quantise_group(const float *x, size_t n, size_t stride, int b, float *decoded)
{
    float lo = x[0], hi = x[0];
    for (size_t i = 1; i < n; i++) {
        const float y = x[i * stride];
        lo = y < lo ? y : lo;
        hi = y > hi ? y : hi;
    }
    const float top = (float)((1u << b) - 1), zero = kvd_round_f16(lo), step = kvd_round_f16((hi - lo) / top);
    for (size_t i = 0; i < n; i++) {
        /* The rounded scale may put the largest number one code too high. */
        float q = step > 0 ? rintf((x[i * stride] - zero) / step) : 0;
        q = q < 0 ? 0 : q > top ? top : q;
        decoded[i * stride] = step * q + zero;
    }
    return (double)n * b;
}
