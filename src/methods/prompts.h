/*
 * Prompts of one batch in all layers, recorded in a first pass over the prompts, for methods that
 * merge layers or rank tokens over all layers.
 */
#ifndef KVD_METHODS_PROMPTS_H
#define KVD_METHODS_PROMPTS_H

#include "methods/plan.h"
#include "model/pass/attention.h"
#include "model/pass/forward.h"

typedef struct {
    /* Attention hook of the first pass: exact attention that records. Must be the first member. */
    kvd_attention hook;
    /* The following fields are private. */
    kvd_dense_attention dense;
    const kvd_config *config;
    const kvd_plan *plan;
    /* offset [n_sequences + 1]: first token of each prompt */
    size_t n_sequences, *offset;
    /* [n_layers][tokens][n_kv_heads * d_head] K and V of all prompts */
    float *x[KVD_N_SIDES];
    /* [n_layers][n_sequences] stored bits of K and V / uncompressed bits; NaN: not merged. */
    double *share[KVD_N_SIDES];
    /*
     * Log softmax denominators [n_layers][tokens of prompt s], for sequence s from n_layers *
     * offset[s] on, or NULL.
     */
    double *log_denominator;
    /* Numbers computed by the ranking method, by sequence (observed_at) and layer, or NULL. */
    double *observed;
    size_t *observed_at;
    /*
     * KVD_LEVEL_* of every prompt token.
     * observed NULL: [n_layers][tokens of prompt s] from n_layers * offset[s] on.
     * Else [n_layers][n_kv_heads][tokens of prompt s] from n_kv_heads * n_layers * offset[s] on.
     */
    uint8_t *level;
} kvd_prompts;

/*
 * Allocates memory for n_sequences prompts of length[s] tokens, for a plan with
 * kvd_plan_first_pass. The caller must release `*p`, also after a failure.
 */
int kvd_prompts_init(kvd_prompts *p, const kvd_config *c, const kvd_plan *plan,
                     const size_t *length, size_t n_sequences, kvd_err *err);
void kvd_prompts_release(kvd_prompts *p);

/*
 * Merges the layers of the prompts, or ranks their tokens, after the first pass. whole[s]: length
 * of sequence s including later tokens, for RoPE.
 */
int kvd_prompts_finish(kvd_prompts *p, const size_t *whole, kvd_err *err);

/*
 * Fails if a method reads prompts twice, and two copies of `length` tokens exceed max_len or the
 * model's positions. The plan need not be open. sequence: number for the message.
 */
int kvd_prompts_check(const kvd_plan *plan, const kvd_config *c, size_t sequence, size_t length,
                      size_t max_len, kvd_err *err);

/*
 * Callback of kvd_prompts_make: must run the model over `prompts` with p->hook.
 * kvd_prompts_make: initialises `*p`, calls `pass`, then kvd_prompts_finish. The prompt is the
 * whole sequence if b->whole, else its first plan->prompt tokens; it comes twice in a row if a
 * method reads prompts twice. Fails if a sequence is longer than max_len.
 */
typedef int (*kvd_prompts_pass)(void *ctx, const kvd_batch *prompts, kvd_prompts *p, kvd_err *err);
int kvd_prompts_make(kvd_prompts *p, const kvd_config *c, const kvd_plan *plan, const kvd_batch *b,
                     size_t max_len, kvd_prompts_pass pass, void *ctx, kvd_err *err);

bool kvd_prompts_repeated(const kvd_prompts *p);

/*
 * Returns the merged keys (after RoPE) or values of a prompt in one layer, [tokens][n_kv_heads *
 * d_head].
 */
const float *kvd_prompts_rows(const kvd_prompts *p, kvd_side side, int layer, size_t sequence);
/*
 * Returns the stored bits of a prompt in one layer, divided by the uncompressed bits; 1 if not
 * merged, may exceed 1.
 */
double kvd_prompts_share(const kvd_prompts *p, kvd_side side, int layer, size_t sequence);

/* Returns KVD_LEVEL_* of each token of a prompt, [tokens]. */
const uint8_t *kvd_prompts_levels(const kvd_prompts *p, int layer, int kv_head, size_t sequence);

bool kvd_prompts_merged(const kvd_prompts *p, kvd_side side, int layer, size_t sequence);

#endif
