/*
 * The cache of the CPU engine for plans that go row by row (methods/running.h): a prompt comes in one piece, attends to itself, and is
 * compressed; every step attends to what is stored.
 */
#ifndef KVD_SERVING_CPU_STEPWISE_H
#define KVD_SERVING_CPU_STEPWISE_H

#include "methods/running.h"
#include "serving/batching.h"
#include "serving/cpu/clock.h"
#include "serving/cpu/layers.h"

typedef struct {
    kvd_running running;
    size_t tokens;                         /* of a request that does not say how many */
    size_t n;                              /* slots                                         */
    size_t *offset, *start, *whole, *slot; /* of an iteration: [n + 1], then [n] of each    */
} kvd_cpu_stepwise;

/* Refuses by name what needs the prompts of all layers at once, or several rows of a prompt at a time. */
int kvd_cpu_stepwise_init(kvd_cpu_stepwise *s, const kvd_config *c, const kvd_plan *plan, size_t slots,
                          size_t tokens, size_t chunk, kvd_err *err);
void kvd_cpu_stepwise_release(kvd_cpu_stepwise *s);

/*
 * One layer of an iteration of steps alone or of prompts alone: q, k, v of rows -> o. The parts are done by threads side by side, a KV head each:
 * the time of the layer is divided among rotate, append, attention and compress as the threads' time is.
 */
int kvd_cpu_stepwise_run(kvd_cpu_stepwise *s, int layer, const kvd_iteration *it, kvd_cpu_rows *rows,
                         kvd_cpu_clock *clock, kvd_err *err);

/* After an iteration: requests that had their last token leave. */
void kvd_cpu_stepwise_end(kvd_cpu_stepwise *s, const kvd_iteration *it);

double kvd_cpu_stepwise_bytes(const kvd_cpu_stepwise *s);

#endif
