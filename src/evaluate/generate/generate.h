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
     * The prompt of sequence s is id[offset[s] .. offset[s+1]-1], at least 1 token: [n_sequences
     * + 1].
     */
    const size_t *offset;
    const uint32_t *id;
    /*
     * The tokens of sequence s after its prompt have indices end[s] .. end[s+1]-1 of the output
     * arrays, at least one: [n_sequences + 1].
     */
    const size_t *end;
    /*
     * Tokens to feed to the model at the indices end[s] .. end[s + 1] - 1. KVD_FREE_TOKEN means
     * that the model chooses the token; consecutive tokens that it chooses are called an answer.
     * NULL means that the model chooses all tokens.
     */
    const uint32_t *forced;
    /*
     * Called after each token that the model chose, which is token[at]. The callback must return 0
     * to continue, or 1 to end the answer with this token. Generation then continues at the next
     * prescribed token, or ends if there is none. Returning 2 also ends the answer, but the token
     * is not fed to the model. Returning -1 means failure. If the pointer is NULL, answers have
     * their full length.
     */
    int (*ended)(void *ctx, size_t sequence, size_t at, const uint32_t *token, kvd_err *err);
    void *ended_ctx;
    /*
     * Callback for progress reports, after every pass and, with the cache in host memory, after
     * every layer. `n` is the number of sequences generated since the last call, which can be a
     * fraction. Over all calls for a group of sequences that run together, `n` adds up to the size
     * of the group. If a group must be repeated with more memory, `n` is negative and takes back
     * what was reported for it. May be NULL.
     */
    void (*advanced)(void *ctx, double n);
    void *advanced_ctx;
    /*
     * True for sequences that have results from an earlier run, [n_sequences]. They are not
     * generated. NULL means that no sequence has results. Sequences that run together are chosen as
     * if no sequence had results yet, so that the results equal those of an uninterrupted run.
     */
    const bool *done;
} kvd_continuations;

/*
 * In `forced`, marks a token that the model chooses. In kvd_continued.token, marks a token that was
 * not computed.
 */
#define KVD_FREE_TOKEN UINT32_MAX

typedef struct {
    /* Bits of the sequence in the cache after the prompt, and after the last token. */
    double prompt_bits, bits;
    /*
     * Seconds of the pass over the prompt, and of the steps. If several sequences share a pass, its
     * time is divided among them in proportion to their tokens.
     */
    double prompt_s, steps_s;
    size_t steps;
} kvd_continued_cost;

/* Arrays with one element per generated token, [end[n_sequences]]; NULL if not wanted. */
typedef struct {
    /*
     * Token with the largest logit, the first if several are equal. Required if
     * kvd_continuations.ended is set.
     */
    uint32_t *token;
    /*
     * Natural logarithm of the probability that the model gave to the token fed next (prescribed or
     * chosen).
     */
    double *log_p;
    /*
     * Rank of the token fed next (prescribed or chosen): 1 + the number of tokens with a larger
     * logit.
     */
    uint32_t *rank;
    /* [n_sequences] */
    kvd_continued_cost *cost;
} kvd_continued;

typedef struct {
    bool gpu;
    /* Number type of the forward pass: KVD_F32, or KVD_BF16 on a GPU. */
    kvd_dtype compute;
    /*
     * Index of the first GPU, and number of GPUs, each of which has the whole model. n_gpus = 0
     * means 1 GPU. On the CPU, n_gpus is the number of threads.
     */
    int first_gpu, n_gpus;
    /*
     * Index of this process's part of the sequences, and number of parts. If n_parts is 0 or 1,
     * this process generates all sequences. In call k of kvd_generate, the i-th group of sequences
     * that run together is generated in part (k + i) mod n_parts.
     */
    size_t part, n_parts;
    /*
     * Number of tokens in one forward pass. With the cache in host memory, it limits the number of
     * sequences that run together, which is at least 1. In the GPU engine, it limits the prompts of
     * one iteration.
     */
    size_t max_tokens;
    /* Largest number of tokens of a prompt and its continuation together. */
    size_t max_len;
} kvd_generator_spec;

typedef struct kvd_generator kvd_generator;

/*
 * Opens a generator. The checkpoint must outlive the generator. On failure returns NULL and fills
 * *err.
 */
kvd_generator *kvd_generator_new(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                 kvd_err *err);
void kvd_generator_free(kvd_generator *g);

/*
 * kvd_generator_path returns the name of the implementation that runs a plan. If this is not the
 * CUDA engine, `why` receives the reason, else "".
 */
enum { KVD_GENERATOR_WHY = 160 };
const char *kvd_generator_path(const kvd_generator *g, const kvd_plan *plan,
                               char why[KVD_GENERATOR_WHY]);

/*
 * Called after sequences first .. first + n - 1 have ended. *account holds the bytes that their
 * decode steps stored and read. A return value other than 0 stops the generation; the function must
 * then fill *err.
 */
typedef int (*kvd_generate_step)(void *ctx, size_t first, size_t n,
                                 const kvd_stepwise_account *account, kvd_err *err);

/*
 * Generates with the open plan and fills *out. *account receives cache sizes and the bits that
 * attention read, added over the decode steps. `account` and `step` may be NULL. plan->prompt is
 * ignored. Only one thread at a time calls `step`, c->ended or c->advanced. Errors name sequences
 * by their index in *c. The groups of sequences that run together depend on *c and the memory of a
 * GPU, so results do not depend on the number of equal GPUs. After SIGINT or SIGTERM the function
 * fails before the next pass.
 */
int kvd_generate(kvd_generator *g, const kvd_plan *plan, const kvd_continuations *c,
                 const kvd_continued *out, kvd_stepwise_account *account, kvd_generate_step step,
                 void *ctx, kvd_err *err);

/* Returns device and number type, for result files. */
const char *kvd_generator_name(const kvd_generator_spec *s);

#endif
