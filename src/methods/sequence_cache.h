/* Compressed caches of sequences that are being generated, as an attention hook. The first call for
 * a sequence must contain its whole prompt. */
#ifndef KVD_METHODS_SEQUENCE_CACHE_H
#define KVD_METHODS_SEQUENCE_CACHE_H

#include "methods/account.h"
#include "methods/prompts.h"
#include "model/pass/attention.h"

typedef struct kvd_sequence_cache_slot kvd_sequence_cache_slot;

typedef struct {
    kvd_attention hook;   /* must be first */
    const kvd_plan *plan; /* borrowed, open */
    const kvd_config *config;
    /* Prompts of the sequences, required if a method must see all prompts before it compresses
     * (kvd_plan_first_pass). Must outlive the sequences. */
    const kvd_prompts *prompts;
    /* [n_sequences] Slot of each sequence in the cache. NULL means slot s for sequence s. */
    const size_t *slot;
    kvd_stepwise_account account;
    /* The following fields are private. */
    kvd_sequence_cache_slot *slots;
    size_t n_slots;
} kvd_sequence_cache;

int kvd_sequence_cache_init(kvd_sequence_cache *r, const kvd_config *config, const kvd_plan *plan,
                            size_t n_slots, kvd_err *err);
/* Returns the number of bits of the sequence in `slot`, including scales, scores and positions. */
double kvd_sequence_cache_bits(const kvd_sequence_cache *r, size_t slot);
void kvd_sequence_cache_end(kvd_sequence_cache *r, size_t slot);
void kvd_sequence_cache_release(kvd_sequence_cache *r);

#endif
