/*
 * Generates tokens after prompts with a compressed cache. Each next input is the token with the
 * largest logit, or a given one.
 *
 * Prompts attend to uncompressed K and V, so the first token is the same as without compression.
 *
 * There are two paths (generate_path.h): a float32 cache in host memory (methods/sequence_cache.h),
 * or the CUDA engine in bf16.
 */
#ifndef KVD_EVALUATE_GENERATE_GENERATE_H
#define KVD_EVALUATE_GENERATE_GENERATE_H

#include <stdbool.h>

#include "common/half.h"
#include "methods/sequence_cache.h"
#include "model/checkpoint/checkpoint.h"
#include "model/text/tokenizer.h"

/* Prompts, and tokens to generate after each. */
typedef struct {
    size_t n_sequences;
    /* [n_sequences + 1] Prompt s is id[offset[s] .. offset[s+1]-1], not empty. */
    const size_t *offset;
    const uint32_t *id;
    /* [n_sequences + 1] The output of sequence s has indices end[s] .. end[s+1]-1, not empty. */
    const size_t *end;
    /*
     * Inputs at output indices, or NULL if all are free. At KVD_FREE_TOKEN the model chooses.
     * Consecutive free tokens form an answer.
     */
    const uint32_t *forced;
    /*
     * Called after each token[at] that the model chose, or NULL. Returns 0 to continue, 1 to end
     * the answer after feeding the token, 2 to end it without, -1 for a failure.
     */
    int (*ended)(void *ctx, size_t sequence, size_t at, const uint32_t *token, kvd_err *err);
    void *ended_ctx;
    /*
     * Reports progress, or NULL. n is the number of sequences since the last call, perhaps a
     * fraction. A negative n takes back a group that is repeated.
     */
    void (*advanced)(void *ctx, double n);
    void *advanced_ctx;
    /* [n_sequences] True for sequences already generated, or NULL. Does not change groups. */
    const bool *done;
} kvd_continuations;

/* Continuations that are being built. A zeroed structure is empty. */
typedef struct {
    kvd_ids prompt, forced;
    size_t *offset, *end; /* [n + 1], as in kvd_continuations */
    size_t n;
} kvd_sequences;

/*
 * Ends a sequence, whose prompt was appended. Its output ends with `forced` or, if that is empty,
 * has n_new tokens.
 */
int kvd_sequences_end(kvd_sequences *s, size_t n_new, kvd_err *err);
/* Returns the sequences and empties *s. The caller calls kvd_continuations_release. */
kvd_continuations kvd_sequences_take(kvd_sequences *s);
void kvd_sequences_release(kvd_sequences *s);
void kvd_continuations_release(kvd_continuations *c);

/* In `forced`: the model chooses the token. In kvd_continued.token: the token was not computed. */
#define KVD_FREE_TOKEN UINT32_MAX

typedef struct {
    /* Bits of the cache after the prompt and after the last token. */
    double prompt_bits, bits;
    /*
     * Seconds for the prompt and for decode steps. The time of a pass of several sequences is
     * divided by their tokens.
     */
    double prompt_s, steps_s;
    size_t steps;
} kvd_continued_cost;

/* Results per generated token, [end[n_sequences]]. Arrays that are NULL are not filled. */
typedef struct {
    /* First token with the largest logit. Required with kvd_continuations.ended. */
    uint32_t *token;
    double *log_p; /* log probability of the token that is fed next */
    /* 1 + the number of tokens with larger logits than the token that is fed next. */
    uint32_t *rank;
    kvd_continued_cost *cost; /* [n_sequences] */
} kvd_continued;

typedef struct {
    bool gpu;
    /* Number type of the forward pass: KVD_F32, or KVD_BF16 on a GPU. */
    kvd_dtype compute;
    /* First GPU, and number of GPUs with a copy of the model (0 means 1), or of CPU threads. */
    int first_gpu, n_gpus;
    /*
     * Which part of the work this process does, and the number of parts (0 or 1: all of it). Group
     * i of call k belongs to part (k + i) mod n_parts.
     */
    size_t part, n_parts;
    /*
     * Largest number of tokens in a forward pass. Limits the sequences that run together if the
     * cache is in host memory, and the prompts of an iteration in the GPU engine.
     */
    size_t max_tokens;
    /* Largest number of tokens of a prompt with its continuation. */
    size_t max_len;
} kvd_generator_spec;

typedef struct kvd_generator kvd_generator;

/* Creates a generator, for which the checkpoint must stay open. Returns NULL on failure. */
kvd_generator *kvd_generator_new(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                 kvd_err *err);
void kvd_generator_free(kvd_generator *g);

/* Returns which implementation runs a plan. `why` receives why the GPU engine cannot, or "". */
enum { KVD_GENERATOR_WHY = 160 };
const char *kvd_generator_path(const kvd_generator *g, const kvd_plan *plan,
                               char why[KVD_GENERATOR_WHY]);

/*
 * Called when n sequences from `first` on are done, with bytes of their steps. To stop, fills *err
 * and returns nonzero.
 */
typedef int (*kvd_generate_step)(void *ctx, size_t first, size_t n,
                                 const kvd_stepwise_account *account, kvd_err *err);

/*
 * Generates with an open plan. *account gets sizes and bits that steps read. account and step may
 * be NULL. plan->prompt is ignored. Callbacks come from one thread at a time. Results do not depend
 * on the number of equal GPUs. After SIGINT or SIGTERM, fails before the next pass.
 */
int kvd_generate(kvd_generator *g, const kvd_plan *plan, const kvd_continuations *c,
                 const kvd_continued *out, kvd_stepwise_account *account, kvd_generate_step step,
                 void *ctx, kvd_err *err);

/* Returns the device and number type as text for result files. */
const char *kvd_generator_name(const kvd_generator_spec *s);

#endif
