/* KV cache of the CPU engine for methods that compress token by token. */
#ifndef KVD_ENGINE_CPU_STEPWISE_H
#define KVD_ENGINE_CPU_STEPWISE_H

#include "engine/cpu/clock.h"
#include "engine/cpu/layers.h"
#include "methods/sequence_cache.h"

typedef struct {
    kvd_sequence_cache running;
    /* tokens to reserve for a request of unknown length */
    size_t tokens;
    size_t n;
    /* per request: index of its first token, cached tokens, tokens to reserve, slot of its cache */
    size_t *offset, *start, *whole, *slot;
} kvd_cpu_stepwise;

/* Prepares caches of `slots` requests. Fails if the method must first read prompts through all
 * layers, or if `chunk` (tokens above which prompts are split) is not 0. */
int kvd_cpu_stepwise_init(kvd_cpu_stepwise *s, const kvd_config *c, const kvd_plan *plan,
                          size_t slots, size_t tokens, size_t chunk, kvd_err *err);
void kvd_cpu_stepwise_release(kvd_cpu_stepwise *s);

/* Computes one layer's attention into rows->o. Steps and prompts need separate calls. */
int kvd_cpu_stepwise_run(kvd_cpu_stepwise *s, int layer, const kvd_iteration *it,
                         kvd_cpu_rows *rows, kvd_cpu_clock *clock, kvd_err *err);

/* Frees the caches of finished requests. Call after each iteration. */
void kvd_cpu_stepwise_end(kvd_cpu_stepwise *s, const kvd_iteration *it);

double kvd_cpu_stepwise_bytes(const kvd_cpu_stepwise *s);

#endif
