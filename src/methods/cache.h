/* A compressed KV cache as an attention hook, which also counts stored bytes. */
#ifndef KVD_METHODS_CACHE_H
#define KVD_METHODS_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "common/half.h"
#include "methods/account.h"
#include "methods/plan.h"
#include "methods/prompts.h"
#include "model/pass/attention.h"

typedef struct {
    kvd_attention hook;
    const kvd_plan *plan; /* borrowed, open */
    /* Prompts of the batch, borrowed. Required if a method must see all prompts before it
     * compresses (kvd_plan_first_pass). */
    const kvd_prompts *prompts;
    kvd_cache_account account;
    /* The following fields are private. */
    /* K and V of one layer of one sequence, as numbers of type plan->type. */
    void *store;
    size_t store_n;
    /* K and V in float32 as attention reads them, then scratch memory of every thread. */
    float *work;
    size_t work_n;
    /* Cosines and sines of RoPE for rope_len positions, then those for layers with a sliding
     * window. */
    float *cosine, *sine;
    uint32_t *position;
    size_t rope_len;
} kvd_cache;

/* Initialises the cache *c for sequences of at most max_len tokens. The compression methods must be
 * open. Stored numbers beyond the range of type plan->type become infinite. */
int kvd_cache_init(kvd_cache *c, const kvd_config *config, const kvd_plan *plan, size_t max_len,
                   kvd_err *err);
void kvd_cache_release(kvd_cache *c);

#endif
