/*
 * The prompts of one batch in all layers, recorded in a first pass that runs the model over the
 * prompts alone. Methods that merge layers read the recorded K and V. Methods that rank tokens over
 * all layers read the recorded softmax denominators, or compute numbers during the pass.
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
    /* `offset` [n_sequences + 1] is the first token of each prompt. */
    size_t n_sequences, *offset;
    /* [n_layers][tokens][n_kv_heads * d_head] K and V of all prompts. */
    float *x[KVD_N_SIDES];
    /*
     * [n_layers][n_sequences] Stored bits of K and of V of a prompt in one layer, divided by the
     * uncompressed bits. NaN: this layer was not merged.
     */
    double *share[KVD_N_SIDES];
    /*
     * Logarithm of the softmax denominator of every prompt token, for methods that rank tokens;
     * else NULL. The array of sequence s begins at element n_layers * offset[s] and has the shape
     * [n_layers][tokens of prompt s].
     */
    double *log_denominator;
    /*
     * Numbers that the ranking method computed during the first pass, or NULL. The numbers of
     * sequence s begin at observed_at[s], in order of layers.
     */
    double *observed;
    /* [n_sequences + 1] First element of each sequence in `observed`. */
    size_t *observed_at;
    /*
     * Precision level KVD_LEVEL_* of every prompt token. If `observed` is NULL, the levels of
     * sequence s are [n_layers][tokens of prompt s], from element n_layers * offset[s] on.
     * Otherwise, there is a level per KV head: [n_layers][n_kv_heads][tokens of prompt s], from
     * element n_kv_heads * n_layers * offset[s] on.
     */
    uint8_t *level;
} kvd_prompts;

/*
 * Allocates memory for n_sequences prompts of length[s] tokens, for a plan with
 * kvd_plan_first_pass. The caller must release `*p` after a failure too.
 */
int kvd_prompts_init(kvd_prompts *p, const kvd_config *c, const kvd_plan *plan,
                     const size_t *length, size_t n_sequences, kvd_err *err);
void kvd_prompts_release(kvd_prompts *p);

/*
 * Merges the layers of the prompts, or ranks their tokens, after the first pass. RoPE may depend on
 * the length of a sequence, so whole[s] must be the length of sequence s including the tokens after
 * its prompt.
 */
int kvd_prompts_finish(kvd_prompts *p, const size_t *whole, kvd_err *err);

/*
 * Fails if a method of the plan reads prompts twice, and two copies of a prompt of `length` tokens
 * do not fit into max_len tokens or into the positions of the model. The plan need not be open.
 * `sequence` is only a number for the error message.
 */
int kvd_prompts_check(const kvd_plan *plan, const kvd_config *c, size_t sequence, size_t length,
                      size_t max_len, kvd_err *err);

/*
 * kvd_prompts_make initialises `*p` for the prompts of batch b, calls `pass`, and then calls
 * kvd_prompts_finish. `pass` must run the model over the prompts with p->hook. If b->whole is set,
 * the batch holds prompts only; otherwise the first plan->prompt tokens of each sequence are the
 * prompt. If a method reads prompts twice, `pass` receives every prompt twice in a row. `pass` then
 * needs room for twice the number of tokens, in sequences that may be twice as long. Fails if a
 * sequence that `pass` receives is longer than max_len.
 */
typedef int (*kvd_prompts_pass)(void *ctx, const kvd_batch *prompts, kvd_prompts *p, kvd_err *err);
int kvd_prompts_make(kvd_prompts *p, const kvd_config *c, const kvd_plan *plan, const kvd_batch *b,
                     size_t max_len, kvd_prompts_pass pass, void *ctx, kvd_err *err);

/* Returns true if the first pass runs every prompt twice in a row. */
bool kvd_prompts_repeated(const kvd_prompts *p);

/*
 * Returns the merged keys (after RoPE) or values of a prompt in one layer, [tokens][n_kv_heads *
 * d_head].
 */
const float *kvd_prompts_rows(const kvd_prompts *p, kvd_side side, int layer, size_t sequence);
/*
 * Returns the stored bits of a prompt in one layer, divided by the uncompressed bits. The ratio can
 * exceed 1, because merged layers store additional data. It is 1 if the layer was not merged.
 */
double kvd_prompts_share(const kvd_prompts *p, kvd_side side, int layer, size_t sequence);

/* Returns KVD_LEVEL_* of each token of a prompt, [tokens]. */
const uint8_t *kvd_prompts_levels(const kvd_prompts *p, int layer, int kv_head, size_t sequence);

bool kvd_prompts_merged(const kvd_prompts *p, kvd_side side, int layer, size_t sequence);

#endif
