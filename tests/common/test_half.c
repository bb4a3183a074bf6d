/* Tests conversion of all float16 and bf16 patterns to float, and rounding against plain
 * formulas. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/half.h"
#include "common/rng.h"
#include "unit.h"

typedef struct {
    kvd_dtype type;
    int mantissa_bits, exponent_bits, bias;
} format;

static const format formats[] = {{KVD_F16, 10, 5, 15}, {KVD_BF16, 7, 8, 127}};

static double value(const format *f, unsigned bits)
{
    const unsigned ones = (1u << f->exponent_bits) - 1;
    const unsigned mantissa = bits & ((1u << f->mantissa_bits) - 1),
                   exponent = bits >> f->mantissa_bits & ones;
    const double sign = bits >> 15 ? -1 : 1;
    if (exponent == ones)
        return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - f->bias - f->mantissa_bits);
    return sign *
           ldexp(mantissa + (1u << f->mantissa_bits), (int)exponent - f->bias - f->mantissa_bits);
}

/* Rounds x to the nearest number of a 16-bit format, ties to even. */
static double nearest(const format *f, double x)
{
    if (isnan(x) || isinf(x) || x == 0)
        return x;
    int e;
    (void)frexp(x, &e);
    const int lowest = 1 - f->bias, exponent = e - 1 > lowest ? e - 1 : lowest;
    const double unit = ldexp(1, exponent - f->mantissa_bits), scaled = x / unit;
    double r = floor(scaled);
    const double rest = scaled - r;
    if (rest > 0.5 || (rest == 0.5 && fmod(r, 2) != 0))
        r += 1;
    const double largest = ldexp(2 - ldexp(1, -f->mantissa_bits), f->bias);
    return fabs(r * unit) > largest ? copysign(INFINITY, x) : copysign(r * unit, x);
}

static int same(double a, double b)
{
    return (isnan(a) && isnan(b)) || (a == b && !signbit(a) == !signbit(b));
}

TEST(test_every_pattern)
{
    static uint16_t all[65536], back[65536];
    static float x[65536];
    for (unsigned i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    for (size_t k = 0; k < 2; k++) {
        kvd_to_f32(formats[k].type, all, x, 65536);
        kvd_from_f32(formats[k].type, x, back, 65536);
        for (unsigned i = 0; i < 65536; i++) {
            const double want = value(&formats[k], i);
            assert_true(same((double)x[i], want));
            if (isnan(want)) {
                float again;
                kvd_to_f32(formats[k].type, &back[i], &again, 1);
                assert_true(isnan(again));
            } else {
                assert_int_equal(back[i], i);
            }
        }
        for (unsigned i = 0; i < 65536; i++) {
            float one;
            uint16_t half;
            kvd_to_f32(formats[k].type, &all[i], &one, 1);
            assert_memory_equal(&one, &x[i], sizeof one);
            kvd_from_f32(formats[k].type, &one, &half, 1);
            assert_int_equal(half, back[i]);
        }
    }
}

static void check_rounding(const format *f, const float *x, size_t n)
{
    uint16_t half[64], one;
    float back[64];
    assert_true(n <= 64);
    kvd_from_f32(f->type, x, half, n);
    kvd_to_f32(f->type, half, back, n);
    for (size_t i = 0; i < n; i++) {
        if (!same((double)back[i], nearest(f, (double)x[i])))
            fail_msg("%s of %a is %a, not %a", kvd_dtype_name(f->type), (double)x[i],
                     (double)back[i], nearest(f, (double)x[i]));
        kvd_from_f32(f->type, &x[i], &one, 1);
        assert_int_equal(one, half[i]);
    }
}

TEST(test_rounding)
{
    kvd_rng r;
    kvd_rng_seed(&r, 5, 0);
    for (size_t k = 0; k < 2; k++) {
        const format *f = &formats[k];
        /* Rounds the midpoints between neighbouring 16-bit numbers, and the floats next to the
         * midpoints. */
        for (unsigned i = 0; i + 1 < 0x7fff; i++) {
            const double a = value(f, i), b = value(f, i + 1);
            if (isnan(a) || isnan(b))
                continue;
            const float mid = isinf(b) ? (float)ldexp(2 - ldexp(1, -f->mantissa_bits - 1), f->bias)
                                       : (float)(0.5 * (a + b));
            const float x[6] = {mid,  nextafterf(mid, INFINITY),  nextafterf(mid, -INFINITY),
                                -mid, nextafterf(-mid, INFINITY), nextafterf(-mid, -INFINITY)};
            check_rounding(f, x, 6);
        }
        for (int i = 0; i < 20000; i++) {
            float x[16];
            for (int j = 0; j < 16; j++) {
                const uint32_t u = (uint32_t)kvd_rng_u64(&r);
                memcpy(&x[j], &u, sizeof u);
            }
            check_rounding(f, x, 16);
        }
    }
}

TEST(test_specials)
{
    const float x[] = {0.f,       -0.f,      INFINITY,  -INFINITY, 65504.f,  65519.99f,
                       65520.f,   3.4e38f,   -3.4e38f,  0x1p-24f,  0x1p-25f, 0x1.000002p-25f,
                       0x1p-149f, 0x1p-133f, 0x1p-134f, 1.f};
    for (size_t k = 0; k < 2; k++)
        check_rounding(&formats[k], x, sizeof x / sizeof *x);
    for (size_t k = 0; k < 2; k++)
        for (uint32_t sign = 0; sign < 2; sign++) {
            float nans[9], back[9];
            uint16_t half[9];
            const uint32_t u = sign << 31 | 0x7f800001u;
            for (int i = 0; i < 9; i++)
                memcpy(&nans[i], &u, sizeof u);
            kvd_from_f32(formats[k].type, nans, half, 9);
            kvd_to_f32(formats[k].type, half, back, 9);
            for (int i = 0; i < 9; i++) {
                assert_true(isnan(back[i]));
                assert_int_equal(half[i] >> 15, sign);
            }
        }
}

TEST(test_f32_and_lengths)
{
    float x[40], y[41];
    uint16_t half[41];
    for (int i = 0; i < 40; i++)
        x[i] = (float)i - 20.5f;
    for (size_t n = 0; n <= 40; n++)
        for (int t = KVD_F32; t <= KVD_BF16; t++) {
            const float marker = 12345.f;
            for (size_t i = 0; i <= 40; i++)
                y[i] = marker;
            half[n] = 0x1234;
            if (t == KVD_F32) {
                kvd_to_f32(KVD_F32, x, y, n);
            } else {
                kvd_from_f32((kvd_dtype)t, x, half, n);
                kvd_to_f32((kvd_dtype)t, half, y, n);
            }
            assert_int_equal(half[n], 0x1234);
            for (size_t i = 0; i < n; i++)
                assert_true(y[i] == x[i]);
            assert_true(y[n] == marker);
        }
    assert_string_equal(kvd_dtype_name(KVD_BF16), "bf16");
    assert_int_equal(kvd_dtype_bytes(KVD_F32), 4);
    assert_int_equal(kvd_dtype_bytes(KVD_F16), 2);
}

TEST_MAIN(NULL, NULL)
