/*
 * The prompts of one batch in all layers, recorded in a first pass that runs the model over the
 * prompts alone. Two kinds of methods need this pass. Methods that merge layers store several
 * layers together: the pass records K and V, which are then merged, and the later run takes its
 * cached prompt tokens from here. Methods that rank tokens over all layers choose precision levels
 * from the softmax denominators that the pass records, or from numbers that they compute during the
 * pass.
 */
#ifndef KVD_METHODS_PROMPTS_H
#define KVD_METHODS_PROMPTS_H

#include "methods/plan.h"
#include "model/pass/attention.h"
#include "model/pass/forward.h"

typedef struct {
    /*
     * Attention hook of the first pass: exact attention that also records. Must be the first
     * member.
     */
    kvd_attention hook;
    /* The fields from here on are private. */
    kvd_dense_attention dense;
    const kvd_config *config;
    const kvd_plan *plan;
    /* First row of each prompt in the batch of prompts, [n_sequences + 1]. */
    size_t n_sequences, *offset;
    /* K and V of all prompts, each [n_layers][rows][n_kv_heads * d_head]. */
    float *x[KVD_N_SIDES];
    /*
     * Stored bits of a prompt in one layer divided by the bits of the same rows uncompressed,
     * [n_layers][n_sequences] for K and for V. NaN: this layer of the prompt was not merged.
     */
    double *share[KVD_N_SIDES];
    /*
     * Logarithm of the softmax denominator of every prompt token, for methods that rank tokens;
     * else NULL. The numbers of sequence s begin at n_layers * offset[s] and are [n_layers][tokens
     * of prompt s].
     */
    double *log_denominator;
    /*
     * Numbers that the ranking method computed during the first pass. The numbers of sequence s
     * begin at observed_at[s], with one record per layer. NULL: the method computes none.
     */
    double *observed;
    /* Index of each sequence's first number in `observed`, [n_sequences + 1]. */
    size_t *observed_at;
    /*
     * Precision level (KVD_LEVEL_*) that the ranking method chose for every prompt token. The
     * levels of sequence s begin at n_layers * offset[s] and are [n_layers][tokens of prompt s]. If
     * the method computes numbers in `observed`, it chooses a level per KV head. The levels of
     * sequence s then begin at n_kv_heads * n_layers * offset[s] and are
     * [n_layers][n_kv_heads][tokens of prompt s].
     */
    uint8_t *level;
} kvd_prompts;

/*
 * Allocates memory for n_sequences prompts, prompt s having length[s] tokens, for a plan with
 * kvd_plan_first_pass. The caller releases *p after a failure too.
 */
int kvd_prompts_init(kvd_prompts *p, const kvd_config *c, const kvd_plan *plan,
                     const size_t *length, size_t n_sequences, kvd_err *err);
void kvd_prompts_release(kvd_prompts *p);

/*
 * Merges the layers of the prompts, or ranks their tokens, after the first pass. whole[s] is the
 * length of sequence s including the tokens after its prompt, on which RoPE may depend.
 */
int kvd_prompts_finish(kvd_prompts *p, const size_t *whole, kvd_err *err);

/*
 * Makes *p for the prompts of batch b: initialises it, calls `pass`, which must run the model over
 * the prompts with p->hook, and finishes it. If b->whole is set, the rows of the batch are the
 * prompts; otherwise the first plan->prompt rows of each sequence are. If a method of the plan
 * reads prompts twice, `pass` receives every prompt twice in a row. It then needs room for twice
 * the tokens, in sequences that may be twice as long as their prompts.
 */
typedef int (*kvd_prompts_pass)(void *ctx, const kvd_batch *prompts, kvd_prompts *p, kvd_err *err);
int kvd_prompts_make(kvd_prompts *p, const kvd_config *c, const kvd_plan *plan, const kvd_batch *b,
                     kvd_prompts_pass pass, void *ctx, kvd_err *err);

/* Returns true if the first pass runs every prompt followed by a second copy of itself. */
bool kvd_prompts_repeated(const kvd_prompts *p);

/*
 * Returns the merged keys (after RoPE) or values of the prompt of a sequence in one layer: one row
 * of n_kv_heads * d_head floats per prompt token.
 */
const float *kvd_prompts_rows(const kvd_prompts *p, kvd_side side, int layer, size_t sequence);
/*
 * Returns the stored bits of a prompt in one layer divided by the bits of the same rows
 * uncompressed. The ratio can exceed 1.
 */
double kvd_prompts_share(const kvd_prompts *p, kvd_side side, int layer, size_t sequence);

/*
 * Returns the precision level (KVD_LEVEL_*) that the ranking method chose for each token of a
 * prompt, for one KV head.
 */
const uint8_t *kvd_prompts_levels(const kvd_prompts *p, int layer, int kv_head, size_t sequence);

bool kvd_prompts_merged(const kvd_prompts *p, kvd_side side, int layer, size_t sequence);

#endif
