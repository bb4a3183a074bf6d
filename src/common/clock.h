#ifndef KVD_COMMON_CLOCK_H
#define KVD_COMMON_CLOCK_H

#include <time.h>

/* Returns the seconds of a clock that is never set back. */
static inline double kvd_clock_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
