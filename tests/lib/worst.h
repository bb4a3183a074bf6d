/* Maximum that, unlike fmax, keeps a NaN, so that a later comparison with a bound fails. */
#ifndef WORST_H
#define WORST_H

#include <math.h>

static inline double worse(double worst, double e)
{
    return isnan(worst) || e <= worst ? worst : e;
}

#endif
