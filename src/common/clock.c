#include "common/clock.h"

#include <time.h>

double kvd_clock_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t); /* Linux always has it */
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
