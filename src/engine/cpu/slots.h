/*
 * KV cache of the CPU engine for methods that only reduce head dimensions. A slot of the cache
 * holds the keys and values of one running request, cut to their kept dimensions. A slot reserves
 * address space for the longest request; the system gives it memory page by page as tokens are
 * stored. A layer with an attention window stores only the tokens of the window: token t is stored
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
    /* Number of slots, and number of tokens for which one slot has room. */
    size_t n, tokens;
    /* Number of elements of one slot, over all layers and heads. */
    size_t elements;
    /*
     * All slots: for each slot, layer and KV head, the keys of the stored tokens [rows][d_qk], then
     * their values [rows][d_v]. d_qk and d_v are the head's kept dimensions. `rows` is the number
     * of tokens for which the slot has room in that layer.
     */
    char *store;
    /*
     * K and V, cut to their kept dimensions, of an iteration in one layer as float32. Used if
     * attention cannot read the cache's number type directly, and for chunks of prompts in layers
     * with an attention window.
     */
    float *decoded;
    size_t decoded_n;
    /* For each of the n requests of the iteration, the offset in `decoded` of its K and V. */
    size_t *decoded_at;
    /* Attention scores, [threads][KVD_ATTEND_ROWS][tokens]. */
    float *scores;
} kvd_cpu_slots;

/*
 * Returns the number of elements of K and V, cut to their kept dimensions, that the cache stores
 * for a request of n tokens.
 */
size_t kvd_cpu_slot_elements(const kvd_cpu_weights *w, size_t n);

int kvd_cpu_slots_init(kvd_cpu_slots *s, const kvd_cpu_weights *w, kvd_dtype type, size_t n,
                       size_t tokens, kvd_err *err);
void kvd_cpu_slots_release(kvd_cpu_slots *s);

/*
 * Stores K and V of an iteration's tokens in the slots of their requests. Each token has one row in
 * k and one in v, with all KV heads, already cut to their kept dimensions.
 *
 * In a layer with an attention window, storing a chunk of a prompt overwrites older tokens to which
 * the chunk still attends. The function therefore first copies K and V of these older tokens, and
 * after them those of the chunk, to `decoded`.
 */
int kvd_cpu_slots_append(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *k,
                         const float *v, kvd_err *err);

/*
 * Converts the stored K and V that the attention of the iteration will read to float32, unless
 * kvd_cpu_slots_append has gathered them. Does nothing if the cache is float32.
 */
void kvd_cpu_slots_decode(kvd_cpu_slots *s, int layer, const kvd_iteration *it);

/*
 * These functions compute the attention of an iteration from its projected queries q into o:
 * kvd_cpu_slots_step for decode steps, kvd_cpu_slots_prefill for chunks of prompts. q and o have
 * one row per token of the iteration, with all query heads at the kept dimensions of their KV
 * heads.
 */
void kvd_cpu_slots_step(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q,
                        float *o);
void kvd_cpu_slots_prefill(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q,
                           float *o);

#endif
