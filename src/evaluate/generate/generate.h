/*
 * Generates tokens after prompts, one after another. K and V of past tokens are read from a
 * compressed cache as it stores them. The next input is the token with the largest logit, or a
 * given token.
 *
 * Tokens of a prompt attend to each other uncompressed, so the first generated token is always that
 * of the uncompressed model. From the second token on, attention reads the stored cache.
 *
 * There are two implementations (generate_path.h). The reference implementation has the cache in
 * host memory in float32 (methods/sequence_cache.h) and the matrix products on the CPU in float32
 * or on a GPU. The other one is the CUDA inference engine (src/engine), in bf16, for the
 * compression methods that it supports.
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
     * Start of each prompt: the prompt of sequence s is id[offset[s] .. offset[s+1]-1], at least 1
     * token. [n_sequences + 1]
     */
    const size_t *offset;
    const uint32_t *id;
    /*
     * Start of each continuation in the output arrays: the tokens after the prompt of sequence s
     * have indices end[s] .. end[s+1]-1, at least one. [n_sequences + 1]
     */
    const size_t *end;
    /*
     * Input tokens that the caller prescribes after the prompts, at the indices end[s] ..
     * end[s+1]-1 of each sequence s. If the element is KVD_FREE_TOKEN, the model's own choice is
     * the input instead. A run of consecutive own choices is called an answer. NULL means that the
     * model chooses all tokens.
     */
    const uint32_t *forced;
    /*
     * Callback after each token that the model chose. `at` is the index of this token; `token` is
     * the array of the output tokens up to it.
     *
     * The callback returns 0 to continue. It returns 1 if the answer ends with this token:
     * generation then continues at the next prescribed token of the sequence (see `forced`), or
     * ends. It returns 2 if the answer ends and this token shall not become an input: the next
     * prescribed token is the input in its place. On failure it returns -1 and fills *err. If the
     * callback is NULL, answers have their full length.
     */
    int (*ended)(void *ctx, size_t sequence, size_t at, const uint32_t *token, kvd_err *err);
    void *ended_ctx;
    /*
     * Callback for progress reports, after every pass and, with the cache in host memory, after
     * every layer. `n` is the number of sequences, a fraction, that was done since the last call;
     * the calls for a group of sequences add up to its number of sequences. May be NULL.
     */
    void (*advanced)(void *ctx, double n);
    void *advanced_ctx;
    /*
     * True for sequences that have results from an earlier run, [n_sequences]. They are not
     * generated. The other sequences are grouped as if all sequences were generated, so that their
     * results are the same. NULL means that no sequence has results.
     */
    const bool *done;
} kvd_continuations;

/*
 * Value in place of a token id. In kvd_continuations.forced it means that the model chooses the
 * token; in kvd_continued.token it means that no token was computed there.
 */
#define KVD_FREE_TOKEN UINT32_MAX

/* Cache size and time of one generated sequence. */
typedef struct {
    /* Bits in the cache of the sequence after its prompt, and after its last token. */
    double prompt_bits, bits;
    /*
     * Seconds of the forward pass over the prompt, and of the decode steps after it. The time of a
     * pass over several sequences is divided among them in proportion to their tokens.
     */
    double prompt_s, steps_s;
    /* Number of decode steps. */
    size_t steps;
} kvd_continued_cost;

/*
 * Results of kvd_generate: arrays with one element per generated token, [end[n_sequences]]. Arrays
 * that are not wanted are NULL.
 */
typedef struct {
    /*
     * Token with the largest logit, the first if several are equal. It is the next input, unless
     * kvd_continuations.forced prescribes another token there. This array is required if
     * kvd_continuations.ended is set.
     */
    uint32_t *token;
    /* Natural logarithm of the probability of the next input token. */
    double *log_p;
    /* Rank of the next input token: 1 + the number of tokens with a larger logit. */
    uint32_t *rank;
    /* Cache size and time of each sequence: [n_sequences]. */
    kvd_continued_cost *cost;
} kvd_continued;

typedef struct {
    bool gpu; /* true: run the model on a GPU; false: on the CPU */
    /* Number type of the matrix products: KVD_F32, or KVD_BF16 on a GPU. */
    kvd_dtype compute;
    /*
     * Index of the first GPU, and number of GPUs (0 counts as 1). Each GPU has the whole model and
     * generates a part of the groups of sequences. On the CPU, n_gpus is the number of threads.
     */
    int first_gpu, n_gpus;
    /*
     * Part of all groups that this process generates, 0 .. n_parts - 1. n_parts 0 or 1 means all
     * groups. Group i of call k of kvd_generate is in part (k + i) mod n_parts.
     */
    size_t part, n_parts;
    /*
     * Number of tokens in one forward pass. With the cache in host memory it limits how many
     * sequences, with their prompts and continuations, run together; at least one runs. In the
     * engine it limits the prompts of one iteration.
     */
    size_t max_tokens;
    /* Largest number of tokens of a prompt and its continuation. */
    size_t max_len;
} kvd_generator_spec;

typedef struct kvd_generator kvd_generator;

/*
 * Returns a generator for a model. On failure returns NULL and fills *err. The checkpoint must
 * outlive the generator.
 */
kvd_generator *kvd_generator_new(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                 kvd_err *err);
void kvd_generator_free(kvd_generator *g);

/*
 * Size of the string `why`. kvd_generator_path returns the name of the implementation that
 * generates with the cache plan (compression setting). If that is not the CUDA engine, `why` gets
 * the reason, else "".
 */
enum { KVD_GENERATOR_WHY = 160 };
const char *kvd_generator_path(const kvd_generator *g, const kvd_plan *plan,
                               char why[KVD_GENERATOR_WHY]);

/*
 * Callback after the group of sequences first .. first + n - 1 has ended. *account has the cache
 * sizes and the bits that attention read, added over the decode steps of the group. Returns 0 to
 * continue; returns another value and fills *err to stop.
 */
typedef int (*kvd_generate_step)(void *ctx, size_t first, size_t n,
                                 const kvd_stepwise_account *account, kvd_err *err);

/*
 * Generates tokens after the prompts of *c, with a cache that compresses as the open plan *plan
 * says, and fills *out. plan->prompt is ignored. *account, if not NULL, receives the cache sizes
 * and the bits that attention read, added over the decode steps. `step`, if not NULL, is called
 * after every group of sequences. Only one thread at a time calls `step`, c->ended or c->advanced.
 * Fails as kvd_forward_run does, naming sequences by their index in *c.
 *
 * The groups that run together depend on *c and the memory of a GPU. Results therefore do not
 * depend on the number of equal GPUs.
 */
int kvd_generate(kvd_generator *g, const kvd_plan *plan, const kvd_continuations *c,
                 const kvd_continued *out, kvd_stepwise_account *account, kvd_generate_step step,
                 void *ctx, kvd_err *err);

/* Returns a description of the generator (device and number type), for result files. */
const char *kvd_generator_name(const kvd_generator_spec *s);

#endif
