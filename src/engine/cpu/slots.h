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
    /* number of slots, and tokens per slot */
    size_t n, tokens;
    /* elements of one slot over all layers and heads */
    size_t elements;
    /* For each slot, layer and KV head: keys [rows][d_qk], then values [rows][d_v]. */
    char *store;
    /* Float32 copy of K and V of one layer. */
    float *decoded;
    size_t decoded_n;
    /* offset in `decoded` of each request */
    size_t *decoded_at;
    /* [threads][KVD_ATTEND_ROWS][tokens] */
    float *scores;
} kvd_cpu_slots;

/* Returns the number of elements stored for a request of n tokens. */
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

/* Converts K and V for attention to float32, unless kvd_cpu_slots_append has done so. */
void kvd_cpu_slots_decode(kvd_cpu_slots *s, int layer, const kvd_iteration *it);

/* Compute attention: kvd_cpu_slots_step of decode steps, kvd_cpu_slots_prefill of prompt chunks. */
void kvd_cpu_slots_step(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q,
                        float *o);
void kvd_cpu_slots_prefill(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q,
                           float *o);

#endif
