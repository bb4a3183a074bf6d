/*
 * A KV cache as an attention hook. It takes K and V of whole sequences, stores them as a plan says
 * (plan.h), and computes attention from what it stored. The cache alone counts stored bytes.
 *
 * With plan.prompt = 0 every row is a step: it attends to the stored entries, its own included
 * (Z-19 of docs/readings.md). Plans that only cut dims, or store latents, do not depend on the
 * order of rows and run in blocks. All other plans run row by row (stepwise.h), over sequences and
 * KV heads in parallel.
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
     * First-pass prompts of the current batch; borrowed. If kvd_plan_first_pass(plan), the caller
     * sets this field before it runs a batch.
     */
    const kvd_prompts *prompts;
    kvd_cache_account account;
    /* private */
    void *store; /* K' and V' of one layer of one sequence, one head after another */
    size_t store_n;
    float *work; /* K' and V' as float32, then scratch memory of every thread */
    size_t work_n;
    /*
     * RoPE tables for keys that are stored before RoPE, for sequences of rope_len rows. The tables
     * of window layers that have their own RoPE parameters follow.
     */
    float *cosine, *sine;
    uint32_t *position;
    size_t rope_len;
} kvd_cache;

/*
 * Initialises *c for sequences of at most max_len rows. The plan must be open and fit the model.
 * Numbers beyond the range of the plan's data type become infinite, which the check of the logits
 * reports.
 */
int kvd_cache_init(kvd_cache *c, const kvd_config *config, const kvd_plan *plan, size_t max_len,
                   kvd_err *err);
void kvd_cache_release(kvd_cache *c);

#endif
