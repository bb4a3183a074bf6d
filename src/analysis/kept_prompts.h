/*
 * Q, K and V of the prompts of uncompressed runs, in all layers. The rows of a prompt attend to each other uncompressed under every
 * plan, so a run of a plan needs no more of them than this: it goes on behind the prompts, and its door sees whole sequences.
 */
#ifndef KVD_ANALYSIS_KEPT_PROMPTS_H
#define KVD_ANALYSIS_KEPT_PROMPTS_H

#include "model/attention.h"
#include "model/forward.h"

typedef struct {
    size_t first; /* where the prompts of the batch at hand begin; set by the caller */
    /* private */
    kvd_attention door; /* that `inner` stands behind while a run goes on */
    const kvd_config *config;
    size_t prompt, rows, max_tokens;
    float *kept[4]; /* q, k, v, k before RoPE: [n_layers][rows][their width] */
    kvd_attention *inner;
    const size_t *offset;  /* of the whole batch */
    float *whole[4], *out; /* rows of one layer of whole sequences, and what came of them */
} kvd_kept_prompts;

/* Rows of the prompt of a sequence of n tokens: of short ones all but the last. */
size_t kvd_prompt_rows(size_t prompt, size_t n);
/* What a row of a prompt takes. */
size_t kvd_kept_prompts_row_bytes(const kvd_config *c);

/* Room for `rows` rows of prompts, and for batches of max_tokens. kvd_kept_prompts_release after failure too. */
int kvd_kept_prompts_init(kvd_kept_prompts *p, const kvd_config *c, size_t prompt, size_t rows,
                          size_t max_tokens, kvd_err *err);
void kvd_kept_prompts_release(kvd_kept_prompts *p);

/* kvd_tap's `record` of an uncompressed run, which has k_pre; ctx a kvd_kept_prompts. */
int kvd_kept_prompts_save(void *ctx, const kvd_attention_in *in, kvd_err *err);

/* Shows the kept rows of a batch, all layers, to a door that is made for its prompts alone. */
int kvd_kept_prompts_show(kvd_kept_prompts *p, const kvd_batch *prompts, kvd_attention *door, kvd_err *err);

/*
 * kvd_forward_run of a batch of whole sequences whose prompts are kept, to the final norm: rows of hidden [n_tokens][d_model] that belong
 * to prompts are not set. `inner` gets whole sequences.
 */
int kvd_kept_prompts_run(kvd_kept_prompts *p, kvd_forward *f, const kvd_batch *b, kvd_attention *inner,
                         float *hidden, kvd_err *err);

#endif
