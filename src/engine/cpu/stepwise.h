/* KV cache of the CPU engine for methods that compress token by token, such as quantisation. */
#ifndef KVD_ENGINE_CPU_STEPWISE_H
#define KVD_ENGINE_CPU_STEPWISE_H

#include "engine/cpu/clock.h"
#include "engine/cpu/layers.h"
#include "methods/sequence_cache.h"

typedef struct {
    kvd_sequence_cache running;
    /* number of tokens to reserve for a request whose final length is unknown */
    size_t tokens;
    size_t n;
    /* For each request of the iteration: index of its first new token in the batch, number of
     * cached tokens, number of tokens to reserve, and slot of its cache. */
    size_t *offset, *start, *whole, *slot;
} kvd_cpu_stepwise;

/* Prepares caches for `slots` requests. Fails if the compression method reads each prompt twice, or
 * if prompts may be split (`chunk` is not 0). */
int kvd_cpu_stepwise_init(kvd_cpu_stepwise *s, const kvd_config *c, const kvd_plan *plan,
                          size_t slots, size_t tokens, size_t chunk, kvd_err *err);
void kvd_cpu_stepwise_release(kvd_cpu_stepwise *s);

/* Computes one layer's attention, and writes it to rows->o. The iteration must contain only decode
 * steps or only prompts. */
int kvd_cpu_stepwise_run(kvd_cpu_stepwise *s, int layer, const kvd_iteration *it,
                         kvd_cpu_rows *rows, kvd_cpu_clock *clock, kvd_err *err);

/* Frees the caches of requests that finished in iteration `it`. The caller must call it after each
 * iteration. */
void kvd_cpu_stepwise_end(kvd_cpu_stepwise *s, const kvd_iteration *it);

double kvd_cpu_stepwise_bytes(const kvd_cpu_stepwise *s);

#endif
