/* Uniform quantisation of a group of numbers to codes of b bits. */
#ifndef KVD_COMMON_QUANTISE_H
#define KVD_COMMON_QUANTISE_H

#include <stddef.h>
#include <stdint.h>

/* number of bits of a group's float16 scale and zero point together */
enum { KVD_GROUP_SIDE_BITS = 32 };

float kvd_round_f16(float x);

/* Quantises n values, `stride` apart, to integers of b bits, 1 .. 16:
 *
 * s = (max - min) / (2^b - 1),   x^ = s round((x - min) / s) + min
 *
 * `decoded` (x^) may be x. Returns how many bits the integers take. */
double kvd_quantise_group(const float *x, size_t n, size_t stride, int b, float *decoded);

/* Quantises n adjacent values to codes of b <= 8 bits. A decoded value is step * code + zero. */
void kvd_quantise_codes(const float *x, size_t n, int b, uint8_t *code, float *step, float *zero);

#endif
