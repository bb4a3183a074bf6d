/*
 * The cache of the CPU engine for plans of the dims axis alone: K' and V' of every running request in the type of the plan, and attention
 * on them. A slot is address space for the longest request; pages of it are taken when tokens are put there.
 */
#ifndef KVD_SERVING_CPU_SLOTS_H
#define KVD_SERVING_CPU_SLOTS_H

#include "common/half.h"
#include "serving/batching.h"
#include "serving/cpu/weights.h"

typedef struct {
    const kvd_cpu_weights *model;
    kvd_dtype type;
    size_t n, tokens; /* slots, tokens that one holds                         */
    size_t elements;  /* of one slot                                          */
    char *store;      /* [n][layer][kv_head] K' [tokens][d_qk], V' [tokens][d_v] */
    /* of types that are read as float32: K' and V' of the slices of an iteration in one layer, decoded */
    float *decoded;
    size_t decoded_n;
    size_t *decoded_at; /* [n] by slice */
    float *scores;      /* [threads][KVD_ATTEND_ROWS][tokens] */
} kvd_cpu_slots;

/* Elements of one token in the cache of all layers. */
size_t kvd_cpu_token_elements(const kvd_cpu_weights *w);

int kvd_cpu_slots_init(kvd_cpu_slots *s, const kvd_cpu_weights *w, kvd_dtype type, size_t n, size_t tokens,
                       kvd_err *err);
void kvd_cpu_slots_release(kvd_cpu_slots *s);

/* K' [n_tokens][at_qk] and V' [n_tokens][at_v] of the rows of an iteration, behind what the slots hold. */
void kvd_cpu_slots_append(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *k,
                          const float *v);

/* Decodes what the slices will read; nothing for float32. */
int kvd_cpu_slots_decode(kvd_cpu_slots *s, int layer, const kvd_iteration *it, kvd_err *err);

/* Attention of the steps, and of the pieces of prompts: q [n_tokens][group at_qk] -> o [n_tokens][group at_v]. */
void kvd_cpu_slots_step(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q, float *o);
void kvd_cpu_slots_prefill(kvd_cpu_slots *s, int layer, const kvd_iteration *it, const float *q, float *o);

#endif
