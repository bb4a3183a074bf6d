/* Uniform quantisation of one group of numbers: what methods of the bits axis and weights of few bits share. */
#ifndef KVD_COMMON_QUANTISE_H
#define KVD_COMMON_QUANTISE_H

#include <stddef.h>

/* Scale and zero point of a group, 16 bits each. */
enum { KVD_GROUP_SIDE_BITS = 32 };

/* x as float16 holds it: what scales, zero points and outliers are stored as. */
float kvd_round_f16(float x);

/*
 * n values `stride` apart to b bits (LeanKV Eq. 2; KIVI section 3), asymmetric, to the nearest, scale and zero point rounded to float16:
 * s = (max - min) / (2^b - 1), x^ = s round((x - min) / s) + min; a constant group is exact to the rounding of min. n >= 1, b in 1 .. 16.
 * decoded may be x. Returns the bits of codes; side information is KVD_GROUP_SIDE_BITS.
 */
double kvd_quantise_group(const float *x, size_t n, size_t stride, int b, float *decoded);

#endif
