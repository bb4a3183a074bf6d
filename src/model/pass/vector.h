/* Helpers for vectorised loops on the CPU. */
#ifndef KVD_MODEL_PASS_VECTOR_H
#define KVD_MODEL_PASS_VECTOR_H

#include <stdint.h>
#include <string.h>

/* Compiles a function three times: for x86-64, AVX2 and AVX-512; the program selects a version by
 * the processor. The function must not contain an OpenMP region. */
#if defined(__x86_64__) && defined(__linux__)
#define KVD_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define KVD_CLONES
#endif

/* Switches off a warning of clang, which cannot vectorise loops under a sanitizer. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

/* Returns e^x within 1.1 units in the last place; 0 below -87.7, infinity above 88.37.
 *
 * Computes e^r with a polynomial (Cephes expf) and multiplies it by 2^n, where x = n ln 2 + r. */
__attribute__((always_inline)) static inline float kvd_expf(float x)
{
    /* Adding this number to a float rounds it to an integer, in the low bits of the sum. */
    const float round_to_int = 12582912.0f;
    /* Masks replace `?:`, which gcc does not vectorise. NaN stays NaN. */
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
