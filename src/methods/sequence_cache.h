/*
 * Compressed caches of sequences that are being generated, as an attention hook for batches that
 * set `start`, the position of each sequence's first token (model/pass/batch.h). The first call for
 * a sequence brings its whole prompt; plan.prompt is ignored. Every later token attends to the
 * cached tokens and to itself. The results equal those of cache.h with the same prompt, except for
 * rounding.
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
     * Results of the pass over the prompts, for plans with kvd_plan_first_pass. The caller must set
     * this field when sequences begin: sequence s of the batch is sequence s of the prompts. The
     * prompts must exist until all sequences of the batch have ended.
     */
    const kvd_prompts *prompts;
    /* [n_sequences] Cache slot of each sequence of the batch. NULL: sequence s has slot s. */
    const size_t *slot;
    kvd_stepwise_account account;
    /* The fields from here on are private. `slots` [n_slots] has the cache of each slot. */
    kvd_sequence_cache_slot *slots;
    size_t n_slots;
} kvd_sequence_cache;

int kvd_sequence_cache_init(kvd_sequence_cache *r, const kvd_config *config, const kvd_plan *plan,
                            size_t n_slots, kvd_err *err);
/*
 * Returns the bits that the sequence in `slot` stores, including scales, tables, indices, scores
 * and positions. Returns 0 for a free slot.
 */
double kvd_sequence_cache_bits(const kvd_sequence_cache *r, size_t slot);
/* Frees the memory of the sequence in `slot`, so that another sequence can use the slot. */
void kvd_sequence_cache_end(kvd_sequence_cache *r, size_t slot);
void kvd_sequence_cache_release(kvd_sequence_cache *r);

#endif
