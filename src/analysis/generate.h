/*
 * Tokens behind prompts, one after another, with K and V of past tokens coming from the cache of a plan as it stores them
 * (methods/running.h): free-running by the largest logit, or along given tokens. On the CPU in float32.
 *
 * A prompt's own rows attend to each other uncompressed, so the first token is the uncompressed model's whatever the plan; what the plan stores is
 * read from the second token on.
 */
#ifndef KVD_ANALYSIS_GENERATE_H
#define KVD_ANALYSIS_GENERATE_H

#include "methods/running.h"
#include "model/checkpoint.h"

/* Prompts, and how many tokens follow each. */
typedef struct {
    size_t n_sequences;
    const size_t *
        offset; /* [n_sequences + 1] the prompt of sequence s is id[offset[s] .. offset[s+1]-1], at least 1 token */
    const uint32_t *id;
    const size_t
        *end; /* [n_sequences + 1] what follows it stands at end[s] .. end[s+1]-1, at least 1 token */
    const uint32_t
        *forced; /* [end[n_sequences]] goes on along these; NULL: free-running                       */
} kvd_continuations;

/* Results, [end[n_sequences]] each; NULL: not wanted. */
typedef struct {
    uint32_t *token; /* by largest logit, of equal ones the first; what goes on when nothing is forced    */
    double *log_p;   /* log of the probability of the token that goes on                                   */
    uint32_t *rank;  /* 1 + how many tokens have a larger logit than the one that goes on                  */
} kvd_continued;

typedef struct kvd_generator kvd_generator;

/*
 * max_tokens: rows of one pass; as many sequences run side by side as have prompts and continuations within it, at least one. max_len: of a
 * prompt with what follows it. The checkpoint is borrowed.
 */
kvd_generator *kvd_generator_new(const kvd_checkpoint *c, size_t max_tokens, size_t max_len, kvd_err *err);
void kvd_generator_free(kvd_generator *g);

/*
 * The plan is open; its `prompt` is not looked at. The account of the steps is added to *account, which may be NULL. step, when not NULL,
 * is called as sequences have come to their ends; it returns non-zero to give up (*err is its own). Fails as kvd_forward_run does,
 * naming sequences by their index here.
 */
int kvd_generate(kvd_generator *g, const kvd_plan *plan, const kvd_continuations *c, const kvd_continued *out,
                 kvd_stepwise_account *account, int (*step)(void *ctx, size_t n_sequences, kvd_err *err),
                 void *ctx, kvd_err *err);

/* For result files: what generated. */
extern const char kvd_generator_engine[];

#endif
