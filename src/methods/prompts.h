/* Data of a batch's prompts that some methods need before they compress the cache: K and V of all
 * layers, or scores of tokens. The model runs over the prompts once to record them. */
#ifndef KVD_METHODS_PROMPTS_H
#define KVD_METHODS_PROMPTS_H

#include "common/memory.h"
#include "methods/plan.h"
#include "model/pass/attention.h"
#include "model/pass/forward.h"

typedef struct {
    /* Attention hook that records prompts before they are compressed: their K and V, or scores by
     * which a method ranks their tokens. Must be the first member. */
    kvd_attention hook;
    /* The following fields are private. */
    kvd_dense_attention dense;
    kvd_pool pool;
    const kvd_config *config;
    const kvd_plan *plan;
    /* `offset` [n_sequences + 1] has the first token of each prompt. */
    size_t n_sequences, *offset;
    /* [n_sequences] Number of tokens of each sequence, including those after the prompt. */
    size_t *whole;
    /* [n_layers][tokens][n_kv_heads * d_head] K and V of all prompts. */
    float *x[KVD_N_SIDES];
    /* [n_layers][n_sequences] Stored bits divided by uncompressed bits. NaN for layers that are not
     * merged with other layers. */
    double *share[KVD_N_SIDES];
    /* Log of the sum, over heads, of each prompt token's softmax denominators. NULL if the method
     * does not need it. Prompt s has an array [layers][tokens] at index n_layers * offset[s]. The
     * array has no rows for layers with a sliding window shorter than the sequence. */
    double *log_denominator;
    /* Numbers by which the compression method ranks prompt tokens, for each sequence and layer, or
     * NULL. */
    double *observed;
    size_t *observed_at;
    /* Precision levels of the prompt tokens. Each prompt has an array [n_layers][tokens] or, if
     * `observed` is not NULL, [n_layers][n_kv_heads][tokens]. Layers with a sliding window shorter
     * than the sequence have no rows in it. */
    uint8_t *level;
} kvd_prompts;

/* Allocates room for n_sequences prompts of length[s] tokens each. The caller releases *p, even
 * after a failure. */
int kvd_prompts_init(kvd_prompts *p, const kvd_config *c, const kvd_plan *plan,
                     const size_t *length, const size_t *whole, size_t n_sequences, kvd_err *err);
void kvd_prompts_release(kvd_prompts *p);

/* Merges the prompts' layers or chooses the precision of their tokens, as the method requires.
 * whole [n_sequences]: number of tokens of each sequence, prompt and output together. */
int kvd_prompts_finish(kvd_prompts *p, const size_t *whole, kvd_err *err);

/* Fails if the compression method reads each prompt twice, and 2 * length exceeds max_len or the
 * model's context length. length: tokens of the prompt. */
int kvd_prompts_check(const kvd_plan *plan, const kvd_config *c, size_t sequence, size_t length,
                      size_t max_len, kvd_err *err);

/* Callback that runs the model over `prompts` with p->hook, for kvd_prompts_make. If a method reads
 * prompts twice, each prompt is followed by a copy. Fails if a prompt exceeds max_len. */
typedef int (*kvd_prompts_pass)(void *ctx, const kvd_batch *prompts, kvd_prompts *p, kvd_err *err);
int kvd_prompts_make(kvd_prompts *p, const kvd_config *c, const kvd_plan *plan, const kvd_batch *b,
                     size_t max_len, kvd_prompts_pass pass, void *ctx, kvd_err *err);

bool kvd_prompts_repeated(const kvd_prompts *p);

/* Returns a prompt's keys (after RoPE) or values in one layer, [tokens][n_kv_heads * d_head], as
 * changed by methods that merge layers. */
const float *kvd_prompts_rows(const kvd_prompts *p, kvd_side side, int layer, size_t sequence);
/* Returns the number of stored bits of a prompt in one layer, divided by the number without
 * compression. */
double kvd_prompts_share(const kvd_prompts *p, kvd_side side, int layer, size_t sequence);

/* Returns each token's precision level; NULL if the layer's window is shorter than the sequence. */
const uint8_t *kvd_prompts_levels(const kvd_prompts *p, int layer, int kv_head, size_t sequence);

bool kvd_prompts_merged(const kvd_prompts *p, kvd_side side, int layer, size_t sequence);

#endif
