/* Rounds numbers to the floating-point formats E4M3, E5M2 and E2M1. */
#ifndef KVD_METHODS_BITS_MINIFLOAT_H
#define KVD_METHODS_BITS_MINIFLOAT_H

#include <math.h>

typedef struct {
    int bits;
    int mantissa;
    int least; /* exponent of the smallest normal number */
    float largest;
} kvd_minifloat;

static const kvd_minifloat kvd_e4m3 = {8, 3, -6, 448};
static const kvd_minifloat kvd_e5m2 = {8, 2, -14, 57344};
static const kvd_minifloat kvd_e2m1 = {4, 1, 0, 6};

/* Returns x rounded to format *f, ties to even. Large numbers saturate, NaN stays NaN. */
static inline float kvd_minifloat_round(const kvd_minifloat *f, float x)
{
    int exponent;
    if (!(fabsf(x) < f->largest)) /* also true for NaN */
        return isnan(x) ? x : copysignf(f->largest, x);
    (void)frexpf(x, &exponent);
    exponent = (exponent - 1 > f->least ? exponent - 1 : f->least) - f->mantissa;
    return ldexpf(rintf(ldexpf(x, -exponent)), exponent);
}

#endif
