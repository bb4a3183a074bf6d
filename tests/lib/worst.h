/* Maximum that, unlike fmax, is NaN if one number is. */
#ifndef WORST_H
#define WORST_H

#include <math.h>

static inline double worse(double worst, double e)
{
    return isnan(worst) || e <= worst ? worst : e;
}

#endif
