/* Helpers of the vectorised loops of blocks.c. */
#ifndef KVD_MODEL_PASS_VECTOR_H
#define KVD_MODEL_PASS_VECTOR_H

#include <stdint.h>
#include <string.h>

/*
 * KVD_CLONES compiles a function for the baseline, AVX2 and AVX-512; the loader picks one version.
 * The function must contain the loop itself, and no OpenMP parallel region: the compiler makes the
 * body of such a region a separate function and compiles it for the baseline only.
 */
#if defined(__x86_64__) && defined(__linux__)
#define KVD_CLONES __attribute__((target_clones("default", "arch=haswell", "avx512f")))
#else
#define KVD_CLONES
#endif

/* Under a sanitizer, clang cannot vectorise `omp simd` loops and would warn about it. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

/*
 * Returns e^x within 1.1 units in the last place on [-87.3, 88.37]. Below -87.7, where the result
 * is subnormal, returns 0; above 88.37 returns infinity. NaN gives NaN.
 *
 * Method: x = n ln 2 + r with |r| <= ln 2 / 2. A polynomial gives e^r (Cephes expf, S. L. Moshier),
 * and 2^n enters through the exponent bits. ln 2 is split into two parts, the first with so few
 * bits that its product with n is exact.
 */
__attribute__((always_inline)) static inline float kvd_expf(float x)
{
    /*
     * The number 1.5 * 2^23 rounds a float that is added to it: the low bits of x / ln 2 +
     * round_to_int hold the integer n of x = n ln 2 + r.
     */
    const float round_to_int = 12582912.0f;
    /*
     * Clamps x to [-88, 89] with bit masks, which keep NaN. The operator `?:` would also do, but
     * gcc does not vectorise a loop with it.
     */
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
