/* Generates tokens after prompts with a compressed cache, in host memory (float32) or in the CUDA
 * engine (bf16). The next token has the largest logit or is given by the caller.
 *
 * Prompts attend to uncompressed K and V, so compression never changes the first token. */
#ifndef KVD_EVALUATE_GENERATE_GENERATE_H
#define KVD_EVALUATE_GENERATE_GENERATE_H

#include <stdbool.h>

#include "common/half.h"
#include "methods/sequence_cache.h"
#include "model/checkpoint/checkpoint.h"
#include "model/text/tokenizer.h"

/* prompts, and the numbers of tokens to generate after them */
typedef struct {
    size_t n_sequences;
    /* [n_sequences + 1] prompt s is id[offset[s]] .. id[offset[s + 1] - 1], never empty */
    const size_t *offset;
    const uint32_t *id;
    /* [n_sequences + 1] sequence s has output tokens end[s] .. end[s + 1] - 1, at least one */
    const size_t *end;
    /* for each output, the token that replaces the model's choice, or KVD_FREE_TOKEN to keep the
     * choice; NULL keeps all choices */
    const uint32_t *forced;
    /* Called after the model has chosen token[at]. Returns 0 to continue the sequence, 1 to end it
     * after the model has also read token[at], 2 to end it without reading token[at], or -1 on
     * failure. May be NULL. */
    int (*ended)(void *ctx, size_t sequence, size_t at, const uint32_t *token, kvd_err *err);
    void *ended_ctx;
    /* Reports that n more sequences, or a fraction of one, are done. n is negative if sequences
     * start again after a failure. May be NULL. */
    void (*advanced)(void *ctx, double n);
    void *advanced_ctx;
    /* [n_sequences] true for sequences that are already generated; NULL if none is */
    const bool *done;
} kvd_continuations;

/* lists of prompts and outputs while they are built; all fields are 0 in empty lists */
typedef struct {
    kvd_ids prompt, forced;
    size_t *offset, *end; /* [n + 1], as in kvd_continuations */
    size_t n;
} kvd_sequences;

/* Completes the next sequence of the list *s, after the caller has appended its prompt to
 * s->prompt. The outputs are the tokens appended to s->forced or, if s->forced is empty, n_new
 * tokens that the model chooses. */
int kvd_sequences_end(kvd_sequences *s, size_t n_new, kvd_err *err);
/* Returns the sequences and empties *s. Free them with kvd_continuations_release. */
kvd_continuations kvd_sequences_take(kvd_sequences *s);
void kvd_sequences_release(kvd_sequences *s);
void kvd_continuations_release(kvd_continuations *c);
/* Returns the number of tokens of the longest prompt with its output. */
size_t kvd_continuations_longest(const kvd_continuations *c);

/* Special value in place of a token id. In inputs, it lets the model choose the token. In outputs,
 * it says that no token was computed. */
#define KVD_FREE_TOKEN UINT32_MAX

typedef struct {
    /* number of bits of the cache after the prompt and after the last token */
    double prompt_bits, bits;
    /* seconds of the prompt and of decode steps; the time of a pass over several sequences is
     * divided among them in proportion to their tokens */
    double prompt_s, steps_s;
    size_t steps;
} kvd_continued_cost;

/* Results of generation. Unless noted, arrays have one element per output token of all sequences.
 * NULL arrays are not filled. */
typedef struct {
    /* token with the largest logit, the lowest id among equals; needed by
     * kvd_continuations.ended */
    uint32_t *token;
    double *log_p; /* log probability of the token that is fed next */
    /* rank of the token that the model reads next: 1 + number of tokens with larger logits */
    uint32_t *rank;
    kvd_continued_cost *cost; /* [n_sequences] */
} kvd_continued;

typedef struct {
    bool gpu;
    /* number type of the forward pass: KVD_F32 or, on a GPU, also KVD_BF16 */
    kvd_dtype compute;
    /* first_gpu: index of the first GPU to use. n_gpus: number of GPUs or, without a GPU, of CPU
     * threads; 0 means 1. */
    int first_gpu, n_gpus;
    /* The work is divided into n_parts parts. This process does part number `part`. */
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
/* Returns the name of the implementation that runs `plan`. `why` receives the reason why the GPU
 * engine does not support `plan`, or "". */
const char *kvd_generator_path(const kvd_generator *g, const kvd_plan *plan,
                               char why[KVD_GENERATOR_WHY]);

/* Called when sequences first .. first + n - 1 are done. If it fails, kvd_generate stops. */
typedef int (*kvd_generate_step)(void *ctx, size_t first, size_t n,
                                 const kvd_stepwise_account *account, kvd_err *err);

/* Generates tokens with the compression methods of `plan`. *account receives sizes of the cache and
 * numbers of bits read from it. account and step may be NULL.
 *
 * Makes one callback at a time, also with several GPUs. Fails after SIGINT or SIGTERM. */
int kvd_generate(kvd_generator *g, const kvd_plan *plan, const kvd_continuations *c,
                 const kvd_continued *out, kvd_stepwise_account *account, kvd_generate_step step,
                 void *ctx, kvd_err *err);

/* Returns the device and number type of the forward pass as text, such as "GPU, bf16". */
const char *kvd_generator_name(const kvd_generator_spec *s);

#endif
