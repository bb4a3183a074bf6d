/*
 * KV cache of the CPU engine for methods that only reduce head dimensions. In layers with a window,
 * token t is stored at index t mod window.
 */
#ifndef KVD_ENGINE_CPU_SLOTS_H
#define KVD_ENGINE_CPU_SLOTS_H

#include "common/half.h"
#include "engine/cpu/weights.h"
#include "methods/iteration.h"

typedef struct {
    const kvd_cpu_weights *model;
    kvd_dtype type;
    /* Number of slots (one per running request), and number of tokens per slot. */
    size_t n, tokens;
    /* Number of elements of one slot, over all layers and heads. */
    size_t elements;
    /* For each slot, layer and KV head: keys [rows][d_qk], then values [rows][d_v]. */
    char *store;
    /* Copy of K and V of one layer, converted to float32 for attention. */
    float *decoded;
    size_t decoded_n;
    /* Offset of each request's K and V in `decoded`. */
    size_t *decoded_at;
    /* Attention scores of each thread, [threads][KVD_ATTEND_ROWS][tokens]. */
    float *scores;
} kvd_cpu_slots;

/* Returns the number of cache elements that a request of n tokens needs in all layers. */
size_t kvd_cpu_slot_elements(const kvd_cpu_weights *w, size_t n);

int kvd_cpu_slots_init(kvd_cpu_slots *s, const kvd_cpu_weights *w, kvd_dtype type, size_t n,
                       size_t tokens, kvd_err *err);
void kvd_cpu_slots_release(kvd_cpu_slots *s);

/*
 * Stores the projected K and V of an iteration's tokens.
 *
 * With a window, a prompt chunk may overwrite tokens that it still reads, which are first copied to
 * `decoded`.
 */
int kvd_cpu_slots_append(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *k,
                         const float *v, kvd_err *err);

/* Converts cached K and V to float32 for attention, unless kvd_cpu_slots_append has done so. */
void kvd_cpu_slots_decode(kvd_cpu_slots *s, int layer, const kvd_iteration *it);

/* Compute attention: kvd_cpu_slots_step of decode steps, kvd_cpu_slots_prefill of prompt chunks. */
void kvd_cpu_slots_step(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q,
                        float *o);
void kvd_cpu_slots_prefill(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q,
                           float *o);

#endif
