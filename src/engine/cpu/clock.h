/* Clock of the CPU engine, which adds up the time of each phase of an iteration. */
#ifndef KVD_ENGINE_CPU_CLOCK_H
#define KVD_ENGINE_CPU_CLOCK_H

#include "common/clock.h"
#include "formats/phases.h"

typedef struct {
    /* receives the time of each phase of an iteration; NULL turns time measurement off */
    kvd_phase_times *times;
    double begin, last;
    /* true to time each phase (kvd_phase) of an iteration, false to time only the whole
     * iteration */
    int parts;
} kvd_cpu_clock;

static inline void kvd_cpu_mark(kvd_cpu_clock *c, kvd_phase part)
{
    if (!c->times || !c->parts)
        return;
    const double now = kvd_clock_s();
    c->times->part[part] += now - c->last;
    c->last = now;
}

#endif
