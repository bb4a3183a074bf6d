/*
 * Rounds numbers to floating-point formats of 4 and 8 bits: E4M3 and E5M2 (OCP 8-bit Floating Point
 * Specification 1.0) and E2M1 (OCP Microscaling Formats Specification 1.0).
 */
#ifndef KVD_METHODS_BITS_MINIFLOAT_H
#define KVD_METHODS_BITS_MINIFLOAT_H

typedef struct {
    int bits;     /* bits of a code, including the sign */
    int mantissa; /* stored bits of the mantissa */
    int least;    /* exponent of the smallest normal number */
    float largest;
} kvd_minifloat;

extern const kvd_minifloat kvd_e4m3, kvd_e5m2, kvd_e2m1;

/*
 * Returns x rounded to the nearest number of the format, ties to the even mantissa. Subnormal
 * numbers are kept. Numbers beyond the largest finite number saturate. NaN stays NaN.
 */
float kvd_minifloat_round(const kvd_minifloat *f, float x);

#endif
