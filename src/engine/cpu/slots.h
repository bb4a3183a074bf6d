/*
 * Cache of the CPU engine for plans that only remove dimensions: K' and V' of every running request
 * in the type of the plan, and attention on them. A slot reserves address space for the longest
 * request; the system gives it memory page by page as tokens are stored. A layer with a window has
 * room for the tokens of the window alone: token t is in row t mod window.
 */
#ifndef KVD_ENGINE_CPU_SLOTS_H
#define KVD_ENGINE_CPU_SLOTS_H

#include "common/half.h"
#include "engine/cpu/weights.h"
#include "methods/iteration.h"

typedef struct {
    const kvd_cpu_weights *model;
    kvd_dtype type;
    /* Number of slots, and number of tokens that one slot holds. */
    size_t n, tokens;
    /* Number of elements of one slot. */
    size_t elements;
    char *store; /* [n][layer][kv_head] K' [rows][d_qk], V' [rows][d_v]; rows of the layer */
    /*
     * K' and V' of the slices of an iteration in one layer as float32; used for cache types that
     * attention does not read directly, and for pieces of prompts in layers with a window.
     */
    float *decoded;
    size_t decoded_n;
    /* [n] Offset of each slice in `decoded`. */
    size_t *decoded_at;
    float *scores; /* [threads][KVD_ATTEND_ROWS][tokens] */
} kvd_cpu_slots;

/* Returns the number of elements that a request of n tokens has in the cache. */
size_t kvd_cpu_slot_elements(const kvd_cpu_weights *w, size_t n);

int kvd_cpu_slots_init(kvd_cpu_slots *s, const kvd_cpu_weights *w, kvd_dtype type, size_t n,
                       size_t tokens, kvd_err *err);
void kvd_cpu_slots_release(kvd_cpu_slots *s);

/*
 * Appends K' [n_tokens][at_qk] and V' [n_tokens][at_v] of the rows of an iteration to the contents
 * of their slots. Pieces of prompts in layers with a window are gathered first, for attention: the
 * window of the slot, then their own rows.
 */
int kvd_cpu_slots_append(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *k,
                         const float *v, kvd_err *err);

/* Decodes the other K' and V' that the slices will read. Does nothing if the cache is float32. */
void kvd_cpu_slots_decode(kvd_cpu_slots *s, int layer, const kvd_iteration *it);

/*
 * Compute attention from q [n_tokens][group at_qk] into o [n_tokens][group at_v]:
 * kvd_cpu_slots_step for decode steps, kvd_cpu_slots_prefill for pieces of prompts.
 */
void kvd_cpu_slots_step(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q,
                        float *o);
void kvd_cpu_slots_prefill(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q,
                           float *o);

#endif
