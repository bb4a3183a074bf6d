/*
 * KV cache of the CPU engine for methods that compress token by token (methods/sequence_cache.h). A
 * prompt is processed as a whole, attends to itself uncompressed, and is then compressed. Every
 * decode step attends to the compressed cache.
 */
#ifndef KVD_ENGINE_CPU_STEPWISE_H
#define KVD_ENGINE_CPU_STEPWISE_H

#include "engine/cpu/clock.h"
#include "engine/cpu/layers.h"
#include "methods/sequence_cache.h"

typedef struct {
    kvd_sequence_cache running;
    /* Number of tokens for which memory is reserved if a request does not state its length. */
    size_t tokens;
    /* Number of slots, each for one running request. */
    size_t n;
    /*
     * Arguments of the attention hook for the n requests of one iteration. offset [n + 1]: index of
     * each request's first token in the batch. start [n]: number of tokens of the request that are
     * cached already. whole [n]: number of tokens for which its cache reserves memory. slot [n]:
     * its slot.
     */
    size_t *offset, *start, *whole, *slot;
} kvd_cpu_stepwise;

/*
 * Prepares the cache. Fails with a message that names the method if the method can compress a
 * prompt only when it has the K and V of all layers. Also fails if prompts are split into chunks of
 * `chunk` tokens (0: not split).
 */
int kvd_cpu_stepwise_init(kvd_cpu_stepwise *s, const kvd_config *c, const kvd_plan *plan,
                          size_t slots, size_t tokens, size_t chunk, kvd_err *err);
void kvd_cpu_stepwise_release(kvd_cpu_stepwise *s);

/*
 * Runs the attention of one layer for an iteration that holds only decode steps or only prompts:
 * reads the queries, keys and values in *rows, writes rows->o. Each thread processes one KV head at
 * a time. The time is divided among the phases rotate, append, attention and compress in proportion
 * to the threads' times.
 */
int kvd_cpu_stepwise_run(kvd_cpu_stepwise *s, int layer, const kvd_iteration *it,
                         kvd_cpu_rows *rows, kvd_cpu_clock *clock, kvd_err *err);

/*
 * Frees the caches of requests that received their last token in the iteration. Must be called
 * after each iteration.
 */
void kvd_cpu_stepwise_end(kvd_cpu_stepwise *s, const kvd_iteration *it);

double kvd_cpu_stepwise_bytes(const kvd_cpu_stepwise *s);

#endif
