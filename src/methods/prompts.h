/*
 * The prompts of one batch in all layers, from a first pass over the prompts alone. Layers methods
 * store several layers together: the pass records K and V, which are merged, and the run takes the
 * entries of its prompts from here. Tokens methods that rank in all layers choose levels from the
 * softmax denominators that the pass records, or from what they observe in it.
 */
#ifndef KVD_METHODS_PROMPTS_H
#define KVD_METHODS_PROMPTS_H

#include "methods/plan.h"
#include "model/pass/attention.h"
#include "model/pass/forward.h"

typedef struct {
    kvd_attention hook; /* attention hook of the first pass, exact attention; first member */
    /* private */
    kvd_dense_attention dense;
    const kvd_config *config;
    const kvd_plan *plan;
    size_t n_sequences, *offset; /* [n_sequences + 1] first row of each prompt */
    float *x[KVD_N_SIDES];       /* K and V, [n_layers][rows][n_kv_heads * d_head] */
    /*
     * [n_layers][n_sequences] ratio of stored bits to the bits of uncompressed rows; NaN: not
     * merged
     */
    double *share[KVD_N_SIDES];
    /*
     * Logarithms of the softmax denominators, for methods that rank tokens; else NULL. The rows of
     * sequence s begin at n_layers * offset[s] and have the shape [n_layers][rows of s].
     */
    double *log_denominator;
    /*
     * Numbers that an observing method wrote: [n_layers] records for sequence s, from
     * observed_at[s] on; NULL for other methods.
     */
    double *observed;
    /* [n_sequences + 1] index of each sequence's first number in `observed` */
    size_t *observed_at;
    /*
     * KVD_LEVEL_* of every row of the prompts, in the layout of log_denominator. With `observed`
     * there are n_kv_heads times as many, [n_kv_heads][rows of s] per layer.
     */
    uint8_t *level;
} kvd_prompts;

/*
 * Allocates memory for prompts of the given lengths [n_sequences], for a plan with
 * kvd_plan_first_pass. The caller releases *p after a failure too.
 */
int kvd_prompts_init(kvd_prompts *p, const kvd_config *c, const kvd_plan *plan,
                     const size_t *length, size_t n_sequences, kvd_err *err);
void kvd_prompts_release(kvd_prompts *p);

/*
 * Merges or ranks the prompts after their first pass. whole [n_sequences] are the lengths of the
 * sequences including the tokens after the prompt, on which RoPE may depend.
 */
int kvd_prompts_finish(kvd_prompts *p, const size_t *whole, kvd_err *err);

/*
 * Initialises *p for the prompts of batch b, calls `pass`, which runs the model over them with
 * p->hook, and finishes. If b->whole is set, the rows of the batch are prompts as they are;
 * otherwise the first plan->prompt rows of each sequence. If a method of the plan reads prompts
 * twice, `pass` needs room for them: for twice the tokens in a batch with b->whole, whose sequences
 * may then have twice the length of their prompts.
 */
typedef int (*kvd_prompts_pass)(void *ctx, const kvd_batch *prompts, kvd_prompts *p, kvd_err *err);
int kvd_prompts_make(kvd_prompts *p, const kvd_config *c, const kvd_plan *plan, const kvd_batch *b,
                     kvd_prompts_pass pass, void *ctx, kvd_err *err);

/* Returns true if the first pass runs every prompt followed by a second copy of itself. */
bool kvd_prompts_repeated(const kvd_prompts *p);

/*
 * Returns the merged rows of the prompt of a sequence, [rows][n_kv_heads * d_head], keys after
 * RoPE.
 */
const float *kvd_prompts_rows(const kvd_prompts *p, kvd_side side, int layer, size_t sequence);
/*
 * Returns the ratio of stored bits to the bits of uncompressed rows, for a prompt in one layer. It
 * can exceed 1.
 */
double kvd_prompts_share(const kvd_prompts *p, kvd_side side, int layer, size_t sequence);

/* Returns the levels [rows] that the ranking method chose for a KV head of a prompt. */
const uint8_t *kvd_prompts_levels(const kvd_prompts *p, int layer, int kv_head, size_t sequence);

bool kvd_prompts_merged(const kvd_prompts *p, kvd_side side, int layer, size_t sequence);

#endif
