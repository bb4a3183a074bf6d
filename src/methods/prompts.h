/*
 * Q, K and V of one batch's prompts in all layers, recorded in a first pass of the model, for
 * methods that merge layers or rank tokens over all layers.
 */
#ifndef KVD_METHODS_PROMPTS_H
#define KVD_METHODS_PROMPTS_H

#include "common/memory.h"
#include "methods/plan.h"
#include "model/pass/attention.h"
#include "model/pass/forward.h"

typedef struct {
    /* Attention hook of the first pass: exact attention that records. Must be the first member. */
    kvd_attention hook;
    /* The following fields are private. */
    kvd_dense_attention dense;
    kvd_pool pool;
    const kvd_config *config;
    const kvd_plan *plan;
    /* offset [n_sequences + 1] holds the first token of each prompt. */
    size_t n_sequences, *offset;
    /* [n_sequences] Tokens of each sequence, with those after the prompt. */
    size_t *whole;
    /* [n_layers][tokens][n_kv_heads * d_head] K and V of all prompts */
    float *x[KVD_N_SIDES];
    /*
     * [n_layers][n_sequences] Stored bits of each prompt's K and V divided by the uncompressed
     * bits; NaN if the layer is not merged.
     */
    double *share[KVD_N_SIDES];
    /*
     * Log softmax denominators, or NULL. Prompt s: [layers][tokens] from n_layers * offset[s] on.
     * Here and below, layers with a sliding window shorter than the sequence are left out.
     */
    double *log_denominator;
    /* Numbers that the ranking method computed, by sequence and layer, or NULL. */
    double *observed;
    size_t *observed_at;
    /*
     * KVD_LEVEL_* of prompt tokens. Sequence s: [layers][tokens] from n_layers * offset[s] on or,
     * with `observed`, [layers][n_kv_heads][tokens] from n_kv_heads * n_layers * offset[s] on.
     */
    uint8_t *level;
} kvd_prompts;

/*
 * Allocates prompts of length[s] tokens, which begin sequences of whole[s] tokens. The caller
 * releases *p, also after a failure.
 */
int kvd_prompts_init(kvd_prompts *p, const kvd_config *c, const kvd_plan *plan,
                     const size_t *length, const size_t *whole, size_t n_sequences, kvd_err *err);
void kvd_prompts_release(kvd_prompts *p);

/*
 * Merges the recorded K and V of several layers, or ranks prompt tokens over all layers. whole[s]:
 * length including later tokens, by which RoPE is computed.
 */
int kvd_prompts_finish(kvd_prompts *p, const size_t *whole, kvd_err *err);

/*
 * Fails if a method reads prompts twice and two copies of this one do not fit. `sequence` is used
 * in the message.
 */
int kvd_prompts_check(const kvd_plan *plan, const kvd_config *c, size_t sequence, size_t length,
                      size_t max_len, kvd_err *err);

/*
 * Callback that runs the model over `prompts` with p->hook. kvd_prompts_make calls
 * kvd_prompts_init, `pass`, then kvd_prompts_finish. A prompt is a whole sequence if b->whole,
 * otherwise its first tokens (plan->prompt of them). If a method reads prompts twice, each prompt
 * is followed by a copy. Fails if a prompt exceeds max_len.
 */
typedef int (*kvd_prompts_pass)(void *ctx, const kvd_batch *prompts, kvd_prompts *p, kvd_err *err);
int kvd_prompts_make(kvd_prompts *p, const kvd_config *c, const kvd_plan *plan, const kvd_batch *b,
                     size_t max_len, kvd_prompts_pass pass, void *ctx, kvd_err *err);

bool kvd_prompts_repeated(const kvd_prompts *p);

/* Returns the merged keys (after RoPE) or values [tokens][n_kv_heads * d_head] of a prompt. */
const float *kvd_prompts_rows(const kvd_prompts *p, kvd_side side, int layer, size_t sequence);
/*
 * Returns the stored bits of a prompt in one layer divided by the uncompressed bits; may exceed 1.
 */
double kvd_prompts_share(const kvd_prompts *p, kvd_side side, int layer, size_t sequence);

/*
 * Returns KVD_LEVEL_* of each token of a prompt, [tokens]. NULL in a layer whose sliding window is
 * shorter than the sequence, because no method chooses tokens there.
 */
const uint8_t *kvd_prompts_levels(const kvd_prompts *p, int layer, int kv_head, size_t sequence);

bool kvd_prompts_merged(const kvd_prompts *p, kvd_side side, int layer, size_t sequence);

#endif
