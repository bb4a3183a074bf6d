/*
 * Generates tokens after prompts, one after another, with K and V of past tokens read from the
 * cache of a plan as it stores them: free-running by the largest logit, or along given tokens.
 *
 * The rows of a prompt attend to each other uncompressed, so the first token is the uncompressed
 * model's under every plan; from the second token on, attention reads the stored cache.
 *
 * There are two paths (generate_path.h). The reference is the path by rows: the cache is on the CPU
 * in float32 (methods/sequence_cache.h), the products are on the CPU in float32, or on a GPU. Plans
 * that the engine of kvdim-jct stores on the GPU run there in bf16.
 */
#ifndef KVD_EVALUATE_GENERATE_GENERATE_H
#define KVD_EVALUATE_GENERATE_GENERATE_H

#include <stdbool.h>

#include "common/half.h"
#include "methods/sequence_cache.h"
#include "model/checkpoint/checkpoint.h"

/* Prompts to continue, and the number of tokens to generate after each. */
typedef struct {
    size_t n_sequences;
    /*
     * [n_sequences + 1] the prompt of sequence s is id[offset[s] .. offset[s+1]-1], at least 1
     * token
     */
    const size_t *offset;
    const uint32_t *id;
    /*
     * [n_sequences + 1] the tokens after the prompt of sequence s have indices end[s] ..
     * end[s+1]-1, at least one of them
     */
    const size_t *end;
    /*
     * [end[n_sequences]] forced tokens, which are fed after the prompts. At an index with
     * KVD_FREE_TOKEN the model's own token is fed. NULL: all tokens are the model's own.
     * Consecutive own tokens are an answer.
     */
    const uint32_t *forced;
    /*
     * Callback after the model's own token at index `at`; `token` holds it and those before it.
     * Returns 1 if the answer ends with it: generation then goes on with the next forced token of
     * the sequence, or ends. Returns 2 if the answer ends and the token is not fed, so that the
     * next forced token replaces it. Returns 0 to continue, or -1 and fills *err. NULL: answers
     * have their full length.
     */
    int (*ended)(void *ctx, size_t sequence, size_t at, const uint32_t *token, kvd_err *err);
    void *ended_ctx;
    /*
     * [n_sequences] true for a sequence that has results from an earlier run. It is not generated,
     * and the others run in the same groups as if it were. NULL: no sequence has.
     */
    const bool *done;
} kvd_continuations;

/*
 * Value in place of a token id: in kvd_continuations.forced, the model chooses the token; in
 * kvd_continued.token, no token was needed there.
 */
#define KVD_FREE_TOKEN UINT32_MAX

/* Cache size and time of one generated sequence. */
typedef struct {
    /* Bits that the cache holds when the prompt is stored, and at the end of the sequence. */
    double prompt_bits, bits;
    /*
     * Seconds of the forward pass over the prompt, and of the decode steps after it. A pass over
     * several sequences is divided among them in proportion to their rows.
     */
    double prompt_s, steps_s;
    size_t steps; /* number of decode steps after the prompt */
} kvd_continued_cost;

/* Results of kvd_generate: arrays of [end[n_sequences]] elements, or NULL if not wanted. */
typedef struct {
    /*
     * Token with the largest logit, the first if several are equal. It is the next input unless a
     * token is forced. Required with kvd_continuations.ended.
     */
    uint32_t *token;
    /* Log of the probability of the next input token. */
    double *log_p;
    /* Rank of the next input token: 1 + the number of tokens with a larger logit. */
    uint32_t *rank;
    kvd_continued_cost *cost; /* [n_sequences] cache size and time of each sequence */
} kvd_continued;

typedef struct {
    bool gpu;          /* true: on a GPU, false: on the CPU */
    kvd_dtype compute; /* type of the products: KVD_F32, or KVD_BF16 on a GPU */
    /*
     * Index of the first GPU, and number of GPUs (0 counts as 1), each of which has the whole
     * model. They divide the groups of sequences that run together. On the CPU, n_gpus threads
     * divide them.
     */
    int first_gpu, n_gpus;
    /*
     * Part of all groups that this process generates, 0 .. n_parts - 1; n_parts 0 or 1: all. Group
     * i of call k of kvd_generate is in part (k + i) mod n_parts.
     */
    size_t part, n_parts;
    /*
     * Number of tokens of one forward pass. In the path by rows it limits how many sequences, with
     * their prompts and continuations, run together, but at least one runs. In the engine it limits
     * the prompts of one iteration.
     */
    size_t max_tokens;
    size_t max_len; /* largest number of tokens of a prompt and its continuation */
} kvd_generator_spec;

typedef struct kvd_generator kvd_generator;

/* Returns a generator, or NULL with *err. The checkpoint is borrowed. */
kvd_generator *kvd_generator_new(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                 kvd_err *err);
void kvd_generator_free(kvd_generator *g);

/*
 * Size of the text `why`. kvd_generator_path returns the name of the path that generates with the
 * plan, and writes to `why` the reason why it is not the engine, or "".
 */
enum { KVD_GENERATOR_WHY = 160 };
const char *kvd_generator_path(const kvd_generator *g, const kvd_plan *plan,
                               char why[KVD_GENERATOR_WHY]);

/*
 * Callback after the group of sequences first .. first + n - 1 has ended; *account is that of its
 * decode steps. Returns non-zero to stop, and then fills *err.
 */
typedef int (*kvd_generate_step)(void *ctx, size_t first, size_t n,
                                 const kvd_stepwise_account *account, kvd_err *err);

/*
 * Generates tokens after the prompts of *c with the cache of the plan, which must be open, and
 * fills *out. The `prompt` of the plan is ignored. Adds the account of the decode steps to
 * *account, which may be NULL. `step` may be NULL. Only one thread at a time calls `step` or
 * c->ended. Fails as kvd_forward_run does, naming sequences by their index in *c. Which sequences
 * run together depends on *c and the memory of a GPU, so results do not depend on the number of
 * equal GPUs.
 */
int kvd_generate(kvd_generator *g, const kvd_plan *plan, const kvd_continuations *c,
                 const kvd_continued *out, kvd_stepwise_account *account, kvd_generate_step step,
                 void *ctx, kvd_err *err);

/* Returns the name of generators with this specification, for result files. */
const char *kvd_generator_name(const kvd_generator_spec *s);

#endif
