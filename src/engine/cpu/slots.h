/*
 * KV cache of the CPU engine for methods that only reduce head dimensions. Window-attention layers
 * store token t at index t mod window.
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
    /* elements of one slot over all layers and heads */
    size_t elements;
    /* For each slot, layer and KV head: keys [rows][d_qk], then values [rows][d_v]. */
    char *store;
    /* Float32 copy of one layer's K and V, for attention that cannot read `store`. */
    float *decoded;
    size_t decoded_n;
    /* offset in `decoded` of each request */
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
 * Stores projected K and V; a row of k and v holds all KV heads of one token.
 *
 * In window-attention layers a prompt chunk overwrites tokens to which it attends; K and V of these
 * and of the chunk are first copied to `decoded`.
 */
int kvd_cpu_slots_append(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *k,
                         const float *v, kvd_err *err);

/* Converts the K and V that attention reads to float32, unless gathered by kvd_cpu_slots_append. */
void kvd_cpu_slots_decode(kvd_cpu_slots *s, int layer, const kvd_iteration *it);

/*
 * Attention of decode steps (step) and of prompt chunks (prefill). A row of q and o holds a token's
 * query heads at the kept dimensions.
 */
void kvd_cpu_slots_step(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q,
                        float *o);
void kvd_cpu_slots_prefill(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q,
                           float *o);

#endif
