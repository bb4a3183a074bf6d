#include "common/quantise.h"

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

/* Computes the float16 scale and zero point for which codes 0 .. top cover the n numbers. */
static void set_range(const float *x, size_t n, size_t stride, float top, float *step, float *zero)
{
    float lo = x[0], hi = x[0];
    for (size_t i = 1; i < n; i++) {
        const float y = x[i * stride];
        lo = y < lo ? y : lo;
        hi = y > hi ? y : hi;
    }
    *zero = kvd_round_f16(lo);
    *step = kvd_round_f16((hi - lo) / top);
}

static float code_of(float x, float top, float step, float zero)
{
    /* Adding and subtracting 1.5 * 2^23 rounds to a whole number, faster than rintf. */
    const float whole = 0x1.8p23F;
    /* The largest quotient may exceed `top`, because the scale is rounded. */
    float q = step > 0 ? (x - zero) / step : 0;
    q = q < 0 ? 0 : q > top ? top : q;
    return (q + whole) - whole;
}

double kvd_quantise_group(const float *x, size_t n, size_t stride, int b, float *decoded)
{
    const float top = (float)((1u << b) - 1);
    float step, zero;
    set_range(x, n, stride, top, &step, &zero);
    for (size_t i = 0; i < n; i++)
        decoded[i * stride] = step * code_of(x[i * stride], top, step, zero) + zero;
    return (double)n * b;
}

void kvd_quantise_codes(const float *x, size_t n, int b, uint8_t *code, float *step, float *zero)
{
    const float top = (float)((1u << b) - 1);
    set_range(x, n, 1, top, step, zero);
    for (size_t i = 0; i < n; i++)
        code[i] = (uint8_t)code_of(x[i], top, *step, *zero);
}
