/*
 * The caches of running sequences: what stepwise.h does with a whole sequence at once, call by call, so that a model can go on
 * from its own tokens. An attention door for batches with `start` (model/batch.h). The first call for a sequence brings its prompt, whole,
 * whatever plan.prompt says; every row after it is a step, which attends to what is stored, itself included. Rows that were seen are never seen
 * again: K and V of past tokens are what the plan stored of them.
 *
 * Rows that a whole sequence with that prompt would have (cache.h) are the same but for rounding: products with one row are
 * summed in another order than products with many.
 */
#ifndef KVD_METHODS_RUNNING_H
#define KVD_METHODS_RUNNING_H

#include "methods/prompts.h"
#include "methods/stepwise.h"

typedef struct kvd_running_slot kvd_running_slot;

typedef struct {
    kvd_attention door;   /* first */
    const kvd_plan *plan; /* borrowed, open */
    const kvd_config *config;
    /*
     * Of a plan with kvd_plan_first_pass, set when sequences begin: sequence s of the batch is sequence s of the prompts, which
     * must stay until the sequence has ended.
     */
    const kvd_prompts *prompts;
    const size_t *slot; /* [n_sequences] which running sequence each of the batch is; NULL: s itself   */
    kvd_stepwise_account account;
    /* private */
    kvd_running_slot *slots;
    size_t n_slots;
} kvd_running;

int kvd_running_init(kvd_running *r, const kvd_config *config, const kvd_plan *plan, size_t n_slots,
                     kvd_err *err);
/* Forgets a sequence, so that its slot can begin another. */
void kvd_running_end(kvd_running *r, size_t slot);
void kvd_running_release(kvd_running *r);

#endif
