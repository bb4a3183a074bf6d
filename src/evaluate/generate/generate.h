/* Generates tokens after prompts with a compressed cache. The next token has the largest logit or
 * is given.
 *
 * Prompts attend to uncompressed K and V, so the first token never changes. The cache is in host
 * memory (float32) or in the CUDA engine (bf16). */
#ifndef KVD_EVALUATE_GENERATE_GENERATE_H
#define KVD_EVALUATE_GENERATE_GENERATE_H

#include <stdbool.h>

#include "common/half.h"
#include "methods/sequence_cache.h"
#include "model/checkpoint/checkpoint.h"
#include "model/text/tokenizer.h"

/* prompts, and the outputs to generate */
typedef struct {
    size_t n_sequences;
    /* [n_sequences + 1] prompt s is id[offset[s]] .. id[offset[s + 1] - 1], never empty */
    const size_t *offset;
    const uint32_t *id;
    /* [n_sequences + 1] sequence s has output tokens end[s] .. end[s + 1] - 1, at least one */
    const size_t *end;
    /* token to replace the model's choice at each output, or KVD_FREE_TOKEN to keep it; or NULL */
    const uint32_t *forced;
    /* Called after each chosen token[at], or NULL. Returns 0 to continue, 1 to end after feeding
     * the token, 2 to end before, -1 on failure. */
    int (*ended)(void *ctx, size_t sequence, size_t at, const uint32_t *token, kvd_err *err);
    void *ended_ctx;
    /* Reports that n more sequences, or a fraction of one, are done. n is negative if sequences
     * start again after a failure. May be NULL. */
    void (*advanced)(void *ctx, double n);
    void *advanced_ctx;
    /* [n_sequences] true for sequences already generated, or NULL */
    const bool *done;
} kvd_continuations;

/* prompts and outputs while they are built; all zeros mean empty */
typedef struct {
    kvd_ids prompt, forced;
    size_t *offset, *end; /* [n + 1], as in kvd_continuations */
    size_t n;
} kvd_sequences;

/* Ends a sequence. Outputs are the tokens in s->forced; if empty, the model chooses n_new. */
int kvd_sequences_end(kvd_sequences *s, size_t n_new, kvd_err *err);
/* Returns the sequences and empties *s. Free them with kvd_continuations_release. */
kvd_continuations kvd_sequences_take(kvd_sequences *s);
void kvd_sequences_release(kvd_sequences *s);
void kvd_continuations_release(kvd_continuations *c);

/* In `forced`: the model chooses. In kvd_continued.token: not computed. */
#define KVD_FREE_TOKEN UINT32_MAX

typedef struct {
    /* bits of the cache after the prompt and after the last token */
    double prompt_bits, bits;
    /* seconds of the prompt and of decode steps; the time of a pass over several sequences is
     * divided among them in proportion to their tokens */
    double prompt_s, steps_s;
    size_t steps;
} kvd_continued_cost;

/* results for each output token, [end[n_sequences]]; NULL arrays are not filled */
typedef struct {
    /* token with the largest logit, lowest id first; required with kvd_continuations.ended */
    uint32_t *token;
    double *log_p; /* log probability of the token that is fed next */
    /* rank of the token fed next: 1 + tokens with larger logits */
    uint32_t *rank;
    kvd_continued_cost *cost; /* [n_sequences] */
} kvd_continued;

typedef struct {
    bool gpu;
    /* number type of the pass: KVD_F32, or KVD_BF16 on a GPU */
    kvd_dtype compute;
    /* index of the first GPU, and number of GPUs, each with a copy of the model (0 means 1).
     * Without a GPU, n_gpus is the number of CPU threads that generate. */
    int first_gpu, n_gpus;
    /* index of the part of the work that this process does, and number of parts: group i of
     * sequences in call k of kvd_generate belongs to part (k + i) mod n_parts */
    size_t part, n_parts;
    /* largest number of tokens in a forward pass */
    size_t max_tokens;
    /* largest number of tokens of a prompt with its continuation */
    size_t max_len;
} kvd_generator_spec;

typedef struct kvd_generator kvd_generator;

/* Opens a generator of tokens after prompts, or returns NULL. The checkpoint must stay open. */
kvd_generator *kvd_generator_new(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                 kvd_err *err);
void kvd_generator_free(kvd_generator *g);

enum { KVD_GENERATOR_WHY = 160 };
/* Returns the name of the implementation that runs `plan`. `why` receives the reason why this is
 * not the GPU engine, or "". */
const char *kvd_generator_path(const kvd_generator *g, const kvd_plan *plan,
                               char why[KVD_GENERATOR_WHY]);

/* Called when sequences first .. first + n - 1 are done. Stops if it fails. */
typedef int (*kvd_generate_step)(void *ctx, size_t first, size_t n,
                                 const kvd_stepwise_account *account, kvd_err *err);

/* Generates with the methods of `plan`. *account receives cache sizes and bits read. account and
 * step may be NULL.
 *
 * Callbacks come from one thread at a time. Fails after SIGINT or SIGTERM. */
int kvd_generate(kvd_generator *g, const kvd_plan *plan, const kvd_continuations *c,
                 const kvd_continued *out, kvd_stepwise_account *account, kvd_generate_step step,
                 void *ctx, kvd_err *err);

/* Returns device and number type as text. */
const char *kvd_generator_name(const kvd_generator_spec *s);

#endif
