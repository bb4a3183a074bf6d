/* A maximum that, unlike fmax, is NaN if one of the two numbers is NaN. */
#ifndef WORST_H
#define WORST_H

#include <math.h>

static inline double worse(double worst, double e)
{
    return isnan(worst) || e <= worst ? worst : e;
}

#endif
