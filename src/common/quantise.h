/* Uniform quantisation of one group of numbers to codes of b bits, for K, V and weights. */
#ifndef KVD_COMMON_QUANTISE_H
#define KVD_COMMON_QUANTISE_H

#include <stddef.h>
#include <stdint.h>

/* Bits that a scale and a zero point take together, 16 each. */
enum { KVD_GROUP_SIDE_BITS = 32 };

/* Rounds to float16, the type of scales, zero points and outliers. */
float kvd_round_f16(float x);

/*
 * Quantises n values to asymmetric codes of b bits, rounded to the nearest code (LeanKV Eq. 2; KIVI
 * section 3). Writes the decoded values to `decoded`, which may be x:
 *
 * s = (max - min) / (2^b - 1),   x^ = s round((x - min) / s) + min
 *
 * s and min are rounded to float16. The values of x and of `decoded` are `stride` elements apart; n
 * is at least 1, b in 1 .. 16. If all n values are equal, the decoded values differ from them only
 * by the rounding of min. Returns the bits of the codes, without KVD_GROUP_SIDE_BITS.
 */
double kvd_quantise_group(const float *x, size_t n, size_t stride, int b, float *decoded);

/* Quantises n adjacent values to codes, with b <= 8. The decoded value is step * code + zero. */
void kvd_quantise_codes(const float *x, size_t n, int b, uint8_t *code, float *step, float *zero);

#endif
