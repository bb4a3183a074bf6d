/*
 * KV cache of the CPU engine for methods that only remove dimensions. A slot of the cache holds K'
 * and V', the keys and values cut to their kept dimensions, of one running request. A slot reserves
 * address space for the longest request; the system gives it memory page by page as tokens are
 * stored. A layer with an attention window stores only the tokens of the window: token t is in row
 * t mod window.
 */
#ifndef KVD_ENGINE_CPU_SLOTS_H
#define KVD_ENGINE_CPU_SLOTS_H

#include "common/half.h"
#include "engine/cpu/weights.h"
#include "methods/iteration.h"

typedef struct {
    const kvd_cpu_weights *model;
    kvd_dtype type;
    /* Number of slots, and number of tokens for which one slot has room. */
    size_t n, tokens;
    /* Number of elements of one slot, over all layers and heads. */
    size_t elements;
    char *store; /* [n][layer][kv_head] K' [rows][d_qk], V' [rows][d_v]; rows of the layer */
    /*
     * K' and V' of an iteration in one layer as float32. Used for cache types that attention does
     * not read directly, and for pieces of prompts in layers with a window.
     */
    float *decoded;
    size_t decoded_n;
    /* Offset in `decoded` of the K' and V' of each slice, [n]. */
    size_t *decoded_at;
    float *scores; /* [threads][KVD_ATTEND_ROWS][tokens] */
} kvd_cpu_slots;

/* Returns the number of elements of K' and V' that the cache stores for a request of n tokens. */
size_t kvd_cpu_slot_elements(const kvd_cpu_weights *w, size_t n);

int kvd_cpu_slots_init(kvd_cpu_slots *s, const kvd_cpu_weights *w, kvd_dtype type, size_t n,
                       size_t tokens, kvd_err *err);
void kvd_cpu_slots_release(kvd_cpu_slots *s);

/*
 * Stores the K' [n_tokens][at_qk] and V' [n_tokens][at_v] of an iteration's rows in the slots of
 * their requests. In a layer with a window, pieces of prompts are first gathered in `decoded`: the
 * window's rows from the slot, then their own rows.
 */
int kvd_cpu_slots_append(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *k,
                         const float *v, kvd_err *err);

/*
 * Converts the stored K' and V' that the attention of the iteration will read to float32, unless
 * kvd_cpu_slots_append has gathered them. Does nothing if the cache is float32.
 */
void kvd_cpu_slots_decode(kvd_cpu_slots *s, int layer, const kvd_iteration *it);

/*
 * Compute the attention of an iteration from its queries q [n_tokens][group at_qk] into o
 * [n_tokens][group at_v]: kvd_cpu_slots_step for decode steps, kvd_cpu_slots_prefill for pieces of
 * prompts.
 */
void kvd_cpu_slots_step(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q,
                        float *o);
void kvd_cpu_slots_prefill(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q,
                           float *o);

#endif
