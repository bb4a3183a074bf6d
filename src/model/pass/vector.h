/* Helpers for the vectorised loops of the CPU's forward pass (blocks.c). */
#ifndef KVD_MODEL_PASS_VECTOR_H
#define KVD_MODEL_PASS_VECTOR_H

#include <stdint.h>
#include <string.h>

/*
 * Attribute that compiles a function three times, for x86-64's baseline, AVX2 and AVX-512. The
 * function must not contain an OpenMP parallel region, whose body would be compiled for the
 * baseline only.
 */
#if defined(__x86_64__) && defined(__linux__)
#define KVD_CLONES __attribute__((target_clones("default", "arch=haswell", "avx512f")))
#else
#define KVD_CLONES
#endif

/* Turns off a warning of clang, which cannot vectorise loops under a sanitizer. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

/*
 * Returns e^x within 1.1 units in the last place on [-87.3, 88.37]; 0 below -87.7, infinity above
 * 88.37.
 *
 * x = n ln 2 + r with |r| <= ln 2 / 2; a polynomial gives e^r (Cephes expf, S. L. Moshier), the
 * exponent bits give 2^n.
 */
__attribute__((always_inline)) static inline float kvd_expf(float x)
{
    /* Adding 1.5 * 2^23 rounds a number to an integer, which is then in the low bits of the sum. */
    const float round_to_int = 12582912.0f;
    /* Bit masks are used instead of `?:`, which gcc does not vectorise. They keep NaN. */
    const uint32_t low = (uint32_t) - (x < -88.0f), high = (uint32_t) - (x > 89.0f);
    const float limits[2] = {-88.0f, 89.0f};
    uint32_t bits, limit_bits[2];
    memcpy(&bits, &x, sizeof bits);
    memcpy(limit_bits, limits, sizeof limit_bits);
    bits = (bits & ~(low | high)) | (limit_bits[0] & low) | (limit_bits[1] & high);
    memcpy(&x, &bits, sizeof x);
    const float t = x * 1.44269504f + round_to_int;
    const float n = t - round_to_int;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits + 127u) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

#endif
