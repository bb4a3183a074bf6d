/* Clock by which every duration in a result file is measured. */
#ifndef KVD_COMMON_CLOCK_H
#define KVD_COMMON_CLOCK_H

#include <time.h>

/*
 * Returns the time in seconds since an arbitrary moment before the program started. Unlike the time
 * of day, this clock is never set back.
 */
static inline double kvd_clock_s(void)
{
    struct timespec t;
    /* The call cannot fail, because Linux always has this clock. */
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
