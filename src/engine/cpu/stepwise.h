/*
 * KV cache of the CPU engine for methods that compress token by token (methods/sequence_cache.h). A
 * prompt attends to itself uncompressed, and is then compressed. Decode steps attend to the
 * compressed cache.
 */
#ifndef KVD_ENGINE_CPU_STEPWISE_H
#define KVD_ENGINE_CPU_STEPWISE_H

#include "engine/cpu/clock.h"
#include "engine/cpu/layers.h"
#include "methods/sequence_cache.h"

typedef struct {
    kvd_sequence_cache running;
    /* Number of tokens to reserve for a request that does not state its length. */
    size_t tokens;
    size_t n;
    /*
     * For each of n requests: `offset` [n + 1] is its first token in the batch, `start` its number
     * of cached tokens, `whole` the number of tokens to reserve, and `slot` its slot.
     */
    size_t *offset, *start, *whole, *slot;
} kvd_cpu_stepwise;

/*
 * Fails, naming the method, if the method needs the K and V of all layers to compress a prompt.
 * Also fails if `chunk`, the number of tokens into which prompts are split, is not 0.
 */
int kvd_cpu_stepwise_init(kvd_cpu_stepwise *s, const kvd_config *c, const kvd_plan *plan,
                          size_t slots, size_t tokens, size_t chunk, kvd_err *err);
void kvd_cpu_stepwise_release(kvd_cpu_stepwise *s);

/*
 * Runs the attention of one layer. The iteration must hold only decode steps or only prompts. Reads
 * queries, keys and values from *rows, and writes the attention output to rows->o. Divides the time
 * among the phases rotate, append, attention and compress in proportion to the times of the
 * threads.
 */
int kvd_cpu_stepwise_run(kvd_cpu_stepwise *s, int layer, const kvd_iteration *it,
                         kvd_cpu_rows *rows, kvd_cpu_clock *clock, kvd_err *err);

/*
 * Frees the caches of requests that received their last token. Must be called after each iteration.
 */
void kvd_cpu_stepwise_end(kvd_cpu_stepwise *s, const kvd_iteration *it);

double kvd_cpu_stepwise_bytes(const kvd_cpu_stepwise *s);

#endif
