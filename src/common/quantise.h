/*
 * Uniform quantisation of one group of numbers to codes of b bits. Used for K and V by compression
 * methods that store fewer bits per number, and for quantised weights.
 */
#ifndef KVD_COMMON_QUANTISE_H
#define KVD_COMMON_QUANTISE_H

#include <stddef.h>
#include <stdint.h>

/* Number of bits that a group's scale and zero point take: 16 bits each. */
enum { KVD_GROUP_SIDE_BITS = 32 };

/* Returns x rounded to float16, the type in which scales, zero points and outliers are stored. */
float kvd_round_f16(float x);

/*
 * Quantises a group of n values to codes of b bits and writes the decoded values to `decoded`,
 * which may be x. The values of x and of `decoded` are `stride` elements apart. Codes are
 * asymmetric and rounded to the nearest (LeanKV Eq. 2; KIVI section 3). Scale and zero point are
 * rounded to float16.
 *
 * s = (max - min) / (2^b - 1), x^ = s round((x - min) / s) + min
 *
 * A group of equal values is exact up to the rounding of min. n is at least 1, b in 1 .. 16.
 * Returns the total bits of the codes, without the KVD_GROUP_SIDE_BITS of scale and zero point.
 */
double kvd_quantise_group(const float *x, size_t n, size_t stride, int b, float *decoded);

/*
 * Writes the codes of kvd_quantise_group for n adjacent values and b <= 8 bits to code [n], and the
 * group's scale and zero point to *step and *zero. A code is decoded as step * code + zero.
 */
void kvd_quantise_codes(const float *x, size_t n, int b, uint8_t *code, float *step, float *zero);

#endif
