/* KV cache of the CPU engine for methods that only remove head dimensions. With a window, token t
 * is stored at t mod window. */
#ifndef KVD_ENGINE_CPU_SLOTS_H
#define KVD_ENGINE_CPU_SLOTS_H

#include "common/half.h"
#include "engine/cpu/weights.h"
#include "methods/iteration.h"

typedef struct {
    const kvd_cpu_weights *model;
    kvd_dtype type;
    /* number of slots (one per running request), and of tokens per slot */
    size_t n, tokens;
    /* elements of a slot over all layers and heads */
    size_t elements;
    /* per slot, layer and KV head: keys [tokens][d_qk], then values [tokens][d_v] */
    char *store;
    /* K and V of one layer in float32 */
    float *decoded;
    size_t decoded_n;
    /* index of each request's K and V in `decoded` */
    size_t *decoded_at;
    /* [threads][KVD_ATTEND_ROWS][tokens] attention scores */
    float *scores;
} kvd_cpu_slots;

/* Returns the cache elements that a request of n tokens needs in all layers. */
size_t kvd_cpu_slot_elements(const kvd_cpu_weights *w, size_t n);

int kvd_cpu_slots_init(kvd_cpu_slots *s, const kvd_cpu_weights *w, kvd_dtype type, size_t n,
                       size_t tokens, kvd_err *err);
void kvd_cpu_slots_release(kvd_cpu_slots *s);

/* Stores projected K and V of an iteration's tokens.
 *
 * With a window, a prompt chunk may overwrite tokens that it still reads; these are first copied to
 * `decoded`. */
int kvd_cpu_slots_append(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *k,
                         const float *v, kvd_err *err);

/* Converts cached K and V to float32, unless done before. */
void kvd_cpu_slots_decode(kvd_cpu_slots *s, int layer, const kvd_iteration *it);

/* Compute attention of decode steps, and of prompt chunks. */
void kvd_cpu_slots_step(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q,
                        float *o);
void kvd_cpu_slots_prefill(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q,
                           float *o);

#endif
