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

/* Prompts, and the outputs to generate after them. */
typedef struct {
    size_t n_sequences;
    /*
     * [n_sequences + 1] The tokens of prompt s are id[offset[s]] .. id[offset[s + 1] - 1]. No
     * prompt is empty.
     */
    const size_t *offset;
    const uint32_t *id;
    /*
     * [n_sequences + 1] Output tokens are counted over all sequences. Sequence s has those from
     * end[s] to end[s + 1] - 1, at least one.
     */
    const size_t *end;
    /*
     * Prescribed input after each output token, or NULL if the model chooses all. At the value
     * KVD_FREE_TOKEN the model chooses. Consecutive free tokens form an answer.
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
    /*
     * [n_sequences] True for sequences that are already generated, or NULL. This does not change
     * how sequences are grouped.
     */
    const bool *done;
} kvd_continuations;

/*
 * Prompts and outputs (kvd_continuations) while they are being built. A zeroed structure is empty.
 */
typedef struct {
    kvd_ids prompt, forced;
    size_t *offset, *end; /* [n + 1], as in kvd_continuations */
    size_t n;
} kvd_sequences;

/*
 * Ends the sequence whose prompt was appended to *s. Its output is prescribed by `forced` or, if
 * that is empty, has n_new free tokens.
 */
int kvd_sequences_end(kvd_sequences *s, size_t n_new, kvd_err *err);
/*
 * Returns the finished sequences and empties *s. The caller frees them with
 * kvd_continuations_release.
 */
kvd_continuations kvd_sequences_take(kvd_sequences *s);
void kvd_sequences_release(kvd_sequences *s);
void kvd_continuations_release(kvd_continuations *c);

/*
 * In `forced`: the model chooses this token. In kvd_continued.token: this token was not computed.
 */
#define KVD_FREE_TOKEN UINT32_MAX

typedef struct {
    /* Bits of the cache after the prompt and after the last token. */
    double prompt_bits, bits;
    /*
     * Seconds for the prompt and for the decode steps. If a pass runs several sequences, its time
     * is divided in proportion to their tokens.
     */
    double prompt_s, steps_s;
    size_t steps;
} kvd_continued_cost;

/* Results per generated token, [end[n_sequences]]. Arrays that are NULL are not filled. */
typedef struct {
    /* First token with the largest logit. Required with kvd_continuations.ended. */
    uint32_t *token;
    double *log_p; /* log probability of the token that is fed next */
    /* Rank of the token that is fed next: 1 + the number of tokens with larger logits. */
    uint32_t *rank;
    kvd_continued_cost *cost; /* [n_sequences] */
} kvd_continued;

typedef struct {
    bool gpu;
    /* Number type of the forward pass: KVD_F32, or KVD_BF16 on a GPU. */
    kvd_dtype compute;
    /*
     * First GPU, and number of GPUs with a copy of the model (0 means 1). Without a GPU, n_gpus is
     * the number of CPU threads.
     */
    int first_gpu, n_gpus;
    /*
     * Part of the work this process does, and the number of parts (0 or 1: all of it). Group i of
     * call k belongs to part (k + i) mod n_parts.
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

/*
 * Returns the name of the implementation that generates text with the compression methods of a
 * plan. `why` receives the reason why the GPU engine cannot, or "".
 */
enum { KVD_GENERATOR_WHY = 160 };
const char *kvd_generator_path(const kvd_generator *g, const kvd_plan *plan,
                               char why[KVD_GENERATOR_WHY]);

/*
 * Called when sequences first .. first + n - 1 are done. To stop, fills *err and returns nonzero.
 */
typedef int (*kvd_generate_step)(void *ctx, size_t first, size_t n,
                                 const kvd_stepwise_account *account, kvd_err *err);

/*
 * Generates text with the open compression methods of `plan`. *account receives sizes of the cache
 * and the bits that decode steps read. account and step may be NULL. plan->prompt is ignored.
 * Callbacks come from one thread at a time. Results do not depend on the number of equal GPUs.
 * After SIGINT or SIGTERM, fails before the next pass.
 */
int kvd_generate(kvd_generator *g, const kvd_plan *plan, const kvd_continuations *c,
                 const kvd_continued *out, kvd_stepwise_account *account, kvd_generate_step step,
                 void *ctx, kvd_err *err);

/* Returns the device and number type of the generator, as text for result files. */
const char *kvd_generator_name(const kvd_generator_spec *s);

#endif
