/*
 * A KV cache as an attention hook. It stores K and V of whole sequences compressed as a plan says
 * (plan.h), and computes attention from the stored numbers. All stored bytes are counted in this
 * file.
 *
 * Plans that only reduce dimensions, or store latents, process a whole sequence at a time. All
 * other plans process one token at a time (stepwise.h). With plan.prompt = 0 every token attends to
 * the cached tokens, itself included (Z-19 of docs/readings.md).
 */
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
    /*
     * Prompts of the current batch; borrowed. If kvd_plan_first_pass(plan) is true, the caller must
     * set this field before each batch.
     */
    const kvd_prompts *prompts;
    kvd_cache_account account;
    /* The fields from here on are private. */
    /* K and V of one layer of one sequence, head after head, in the plan's data type. */
    void *store;
    size_t store_n;
    /* K and V in float32 as attention reads them, then scratch memory of every thread. */
    float *work;
    size_t work_n;
    /*
     * RoPE tables for keys that are stored before RoPE, for rope_len tokens. Tables of
     * sliding-window layers follow.
     */
    float *cosine, *sine;
    uint32_t *position;
    size_t rope_len;
} kvd_cache;

/*
 * Initialises `*c` for sequences of at most max_len tokens. The plan must be open and fit the
 * model. Numbers beyond the range of the plan's data type become infinite; the later check of the
 * logits reports them.
 */
int kvd_cache_init(kvd_cache *c, const kvd_config *config, const kvd_plan *plan, size_t max_len,
                   kvd_err *err);
void kvd_cache_release(kvd_cache *c);

#endif
