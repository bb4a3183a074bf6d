/*
 * The compressed caches of sequences that are being generated. They work as in stepwise.h, but call
 * after call, so that a model can continue from its own tokens. The cache is an attention hook for
 * batches with `start` (model/pass/batch.h). The first call for a sequence brings its whole prompt,
 * whatever plan.prompt says. Every later token is a step, which attends to the cached tokens,
 * itself included. K and V of past tokens are never read again: only the compressed tokens remain.
 *
 * The results equal those of running a whole sequence with the same prompt (cache.h), except for
 * rounding: products with one row are summed in another order than products with many rows.
 */
#ifndef KVD_METHODS_SEQUENCE_CACHE_H
#define KVD_METHODS_SEQUENCE_CACHE_H

#include "methods/prompts.h"
#include "methods/stepwise.h"

typedef struct kvd_sequence_cache_slot kvd_sequence_cache_slot;

typedef struct {
    kvd_attention hook;   /* must be the first member */
    const kvd_plan *plan; /* borrowed, open */
    const kvd_config *config;
    /*
     * First-pass prompts, for plans with kvd_plan_first_pass. The caller sets this field when
     * sequences begin: sequence s of the batch is sequence s of the prompts. The prompts must exist
     * until the last of these sequences has ended.
     */
    const kvd_prompts *prompts;
    /* Cache slot of each sequence of the batch, [n_sequences]. NULL: sequence s has slot s. */
    const size_t *slot;
    kvd_stepwise_account account;
    /* The fields from here on are private. */
    kvd_sequence_cache_slot *slots;
    size_t n_slots;
} kvd_sequence_cache;

int kvd_sequence_cache_init(kvd_sequence_cache *r, const kvd_config *config, const kvd_plan *plan,
                            size_t n_slots, kvd_err *err);
/*
 * Returns the number of bits that the sequence in `slot` stores: numbers, scales, tables, indices,
 * importance scores and positions. Returns 0 for a free slot.
 */
double kvd_sequence_cache_bits(const kvd_sequence_cache *r, size_t slot);
/* Frees the memory of the sequence in `slot`, so that another sequence can use the slot. */
void kvd_sequence_cache_end(kvd_sequence_cache *r, size_t slot);
void kvd_sequence_cache_release(kvd_sequence_cache *r);

#endif
