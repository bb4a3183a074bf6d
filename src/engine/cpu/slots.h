/*
 * KV cache of the CPU engine for methods that only reduce head dimensions. A slot holds the
 * projected keys and values of one running request. A layer with an attention window stores token t
 * at index t mod window.
 */
#ifndef KVD_ENGINE_CPU_SLOTS_H
#define KVD_ENGINE_CPU_SLOTS_H

#include "common/half.h"
#include "engine/cpu/weights.h"
#include "methods/iteration.h"

typedef struct {
    const kvd_cpu_weights *model;
    kvd_dtype type;
    /* number of slots, and tokens per slot */
    size_t n, tokens;
    /* number of elements of one slot, over all layers and heads */
    size_t elements;
    /*
     * The cache. For each slot, layer and KV head: keys [rows][d_qk], then values [rows][d_v].
     * `rows` is the number of tokens for which the slot has room in the layer.
     */
    char *store;
    /*
     * Projected K and V of one layer as float32. Used only in iterations in which attention cannot
     * read the cache directly.
     */
    float *decoded;
    size_t decoded_n;
    /* offset in `decoded` of each request of the iteration */
    size_t *decoded_at;
    /* [threads][KVD_ATTEND_ROWS][tokens] */
    float *scores;
} kvd_cpu_slots;

/* Returns the number of elements that the cache stores for a request of n tokens. */
size_t kvd_cpu_slot_elements(const kvd_cpu_weights *w, size_t n);

int kvd_cpu_slots_init(kvd_cpu_slots *s, const kvd_cpu_weights *w, kvd_dtype type, size_t n,
                       size_t tokens, kvd_err *err);
void kvd_cpu_slots_release(kvd_cpu_slots *s);

/*
 * Stores the projected K and V of an iteration's tokens. A row of k and v holds all KV heads of one
 * token.
 *
 * In a layer with an attention window, storing a chunk of a prompt overwrites older tokens to which
 * the chunk attends. Before it stores the chunk, the function therefore copies K and V of these
 * older tokens and of the chunk to `decoded`.
 */
int kvd_cpu_slots_append(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *k,
                         const float *v, kvd_err *err);

/*
 * Converts the stored K and V that attention will read to float32, except those that
 * kvd_cpu_slots_append gathered. Does nothing if the cache is float32.
 */
void kvd_cpu_slots_decode(kvd_cpu_slots *s, int layer, const kvd_iteration *it);

/*
 * kvd_cpu_slots_step computes attention for decode steps, and kvd_cpu_slots_prefill for chunks of
 * prompts. A row of q and o holds all query heads of one token, at the kept dimensions of their KV
 * heads.
 */
void kvd_cpu_slots_step(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q,
                        float *o);
void kvd_cpu_slots_prefill(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q,
                           float *o);

#endif
