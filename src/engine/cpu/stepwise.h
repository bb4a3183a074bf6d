/*
 * Cache of the CPU engine for plans that work row by row (methods/sequence_cache.h). A prompt is
 * processed in one piece, attends to itself, and is then compressed; every decode step attends to
 * the compressed cache.
 */
#ifndef KVD_ENGINE_CPU_STEPWISE_H
#define KVD_ENGINE_CPU_STEPWISE_H

#include "engine/cpu/clock.h"
#include "engine/cpu/layers.h"
#include "methods/sequence_cache.h"

typedef struct {
    kvd_sequence_cache running;
    /* Number of tokens reserved for a request that does not give its length. */
    size_t tokens;
    /* Number of slots. */
    size_t n;
    /* arrays of an iteration: offset is [n + 1], the others are [n] */
    size_t *offset, *start, *whole, *slot;
} kvd_cpu_stepwise;

/*
 * Fails with the method's name if the plan needs the prompts of all layers at once, or if it needs
 * several rows of a prompt at a time.
 */
int kvd_cpu_stepwise_init(kvd_cpu_stepwise *s, const kvd_config *c, const kvd_plan *plan,
                          size_t slots, size_t tokens, size_t chunk, kvd_err *err);
void kvd_cpu_stepwise_release(kvd_cpu_stepwise *s);

/*
 * Runs one layer of an iteration that holds only steps or only prompts: reads q, k and v of its
 * rows, writes o. The threads process one KV head each, in parallel. The time of the layer is
 * divided among the phases rotate, append, attention and compress in proportion to the threads'
 * times.
 */
int kvd_cpu_stepwise_run(kvd_cpu_stepwise *s, int layer, const kvd_iteration *it,
                         kvd_cpu_rows *rows, kvd_cpu_clock *clock, kvd_err *err);

/* Call it after each iteration. Frees the slots of requests that received their last token. */
void kvd_cpu_stepwise_end(kvd_cpu_stepwise *s, const kvd_iteration *it);

double kvd_cpu_stepwise_bytes(const kvd_cpu_stepwise *s);

#endif
