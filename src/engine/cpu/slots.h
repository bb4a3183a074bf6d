/* KV cache of the CPU engine for methods that only remove dimensions of heads. In layers with a
 * sliding window of w tokens, token t is stored at place t mod w. */
#ifndef KVD_ENGINE_CPU_SLOTS_H
#define KVD_ENGINE_CPU_SLOTS_H

#include "common/half.h"
#include "engine/cpu/weights.h"
#include "methods/iteration.h"

typedef struct {
    const kvd_cpu_weights *model;
    kvd_dtype type;
    /* number of slots, each the cache of one running request, and number of tokens per slot */
    size_t n, tokens;
    /* number of K and V elements in a slot, over all layers and heads */
    size_t elements;
    /* K and V of all requests. For each slot, layer and KV head: keys [tokens][d_qk], then values
     * [tokens][d_v]. */
    char *store;
    /* K and V of one layer for all requests of an iteration, in float32 */
    float *decoded;
    size_t decoded_n;
    /* [requests] index in `decoded` at which K and V of each request begin */
    size_t *decoded_at;
    /* [threads][KVD_ATTEND_ROWS][tokens] attention scores that each thread is computing */
    float *scores;
} kvd_cpu_slots;

/* Returns how many K and V elements the cache stores, in all layers, for a request of n tokens. */
size_t kvd_cpu_slot_elements(const kvd_cpu_weights *w, size_t n);

int kvd_cpu_slots_init(kvd_cpu_slots *s, const kvd_cpu_weights *w, kvd_dtype type, size_t n,
                       size_t tokens, kvd_err *err);
void kvd_cpu_slots_release(kvd_cpu_slots *s);

/* Stores the projected K and V of an iteration's new tokens in the cache of a layer.
 *
 * With a sliding window, the new tokens of a prompt can overwrite tokens to which they attend. Such
 * tokens are first copied to `decoded`. */
int kvd_cpu_slots_append(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *k,
                         const float *v, kvd_err *err);

/* Converts K and V of an iteration's requests from the cache to float32 in `decoded`, unless
 * kvd_cpu_slots_append did so. */
void kvd_cpu_slots_decode(kvd_cpu_slots *s, int layer, const kvd_iteration *it);

/* Compute attention: kvd_cpu_slots_step for decode steps, kvd_cpu_slots_prefill for prompts. */
void kvd_cpu_slots_step(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q,
                        float *o);
void kvd_cpu_slots_prefill(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q,
                           float *o);

#endif
