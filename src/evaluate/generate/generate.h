/*
 * Generates tokens after prompts; K and V of past tokens are read from a compressed cache as
 * stored. The next input is the token with the largest logit, or a given one.
 *
 * Prompt tokens attend to each other uncompressed, so the first token equals the uncompressed
 * model's.
 *
 * Two implementations (generate_path.h): cache in float32 host memory (methods/sequence_cache.h)
 * with products on CPU or GPU; and the CUDA engine (src/engine) in bf16.
 */
#ifndef KVD_EVALUATE_GENERATE_GENERATE_H
#define KVD_EVALUATE_GENERATE_GENERATE_H

#include <stdbool.h>

#include "common/half.h"
#include "methods/sequence_cache.h"
#include "model/checkpoint/checkpoint.h"

/* Prompts to continue, and tokens to generate after each. */
typedef struct {
    size_t n_sequences;
    /* [n_sequences + 1] Prompt s is id[offset[s] .. offset[s+1]-1], at least 1 token. */
    const size_t *offset;
    const uint32_t *id;
    /*
     * [n_sequences + 1] Tokens after prompt s have output indices end[s] .. end[s+1]-1, at least
     * one.
     */
    const size_t *end;
    /*
     * Tokens to feed at indices end[s] .. end[s + 1] - 1. KVD_FREE_TOKEN: the model chooses;
     * consecutive chosen tokens are an answer. NULL: the model chooses all.
     */
    const uint32_t *forced;
    /*
     * Called after each chosen token token[at]. Return 0: continue; 1: end the answer with this
     * token and go on with the next given token; 2: the same without feeding it; -1: failure. NULL:
     * answers have full length.
     */
    int (*ended)(void *ctx, size_t sequence, size_t at, const uint32_t *token, kvd_err *err);
    void *ended_ctx;
    /*
     * Progress callback after every pass and, with host memory, every layer; may be NULL. n:
     * sequences since the last call, perhaps a fraction; negative takes back a group that is
     * repeated.
     */
    void (*advanced)(void *ctx, double n);
    void *advanced_ctx;
    /*
     * [n_sequences] True: has results and is not generated. NULL: none. Groups are formed as
     * without results, so that they equal an uninterrupted run's.
     */
    const bool *done;
} kvd_continuations;

/* In `forced`: a token that the model chooses; in kvd_continued.token: not computed. */
#define KVD_FREE_TOKEN UINT32_MAX

typedef struct {
    /* Bits of the sequence in the cache after the prompt, after the last token. */
    double prompt_bits, bits;
    /* Seconds of the prompt's pass and of steps; shared passes are divided by tokens. */
    double prompt_s, steps_s;
    size_t steps;
} kvd_continued_cost;

/* Arrays [end[n_sequences]], one element per generated token; NULL if not wanted. */
typedef struct {
    /* Token with the largest logit, first of equals. Required with kvd_continuations.ended. */
    uint32_t *token;
    /* ln of the probability of the token fed next (given or chosen). */
    double *log_p;
    /* Rank of the token fed next: 1 + tokens with larger logits. */
    uint32_t *rank;
    /* [n_sequences] */
    kvd_continued_cost *cost;
} kvd_continued;

typedef struct {
    bool gpu;
    /* Type of the forward pass: KVD_F32, or KVD_BF16 on a GPU. */
    kvd_dtype compute;
    /* First GPU; number of GPUs with the whole model each (0: 1), or of CPU threads. */
    int first_gpu, n_gpus;
    /*
     * This process's part, and number of parts (0 or 1: all). Call k of kvd_generate gives its i-th
     * group to part (k + i) mod n_parts.
     */
    size_t part, n_parts;
    /*
     * Tokens of a forward pass. Limits sequences that run together (host memory; at least 1) or an
     * iteration's prompts (engine).
     */
    size_t max_tokens;
    /* Most tokens of a prompt with its continuation. */
    size_t max_len;
} kvd_generator_spec;

typedef struct kvd_generator kvd_generator;

/* The checkpoint must outlive the generator. On failure returns NULL and fills *err. */
kvd_generator *kvd_generator_new(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                 kvd_err *err);
void kvd_generator_free(kvd_generator *g);

/* Returns the implementation that runs a plan; why: reason why not the CUDA engine, else "". */
enum { KVD_GENERATOR_WHY = 160 };
const char *kvd_generator_path(const kvd_generator *g, const kvd_plan *plan,
                               char why[KVD_GENERATOR_WHY]);

/*
 * Called after sequences first .. first + n - 1; *account: bytes that their steps stored and read.
 * Nonzero stops, with *err filled.
 */
typedef int (*kvd_generate_step)(void *ctx, size_t first, size_t n,
                                 const kvd_stepwise_account *account, kvd_err *err);

/*
 * Generates with the open plan into *out. *account receives sizes and read bits, summed over steps;
 * account and step may be NULL. plan->prompt is ignored. One thread at a time calls step, c->ended
 * or c->advanced. Results do not depend on the number of equal GPUs. Fails before the next pass
 * after SIGINT or SIGTERM.
 */
int kvd_generate(kvd_generator *g, const kvd_plan *plan, const kvd_continuations *c,
                 const kvd_continued *out, kvd_stepwise_account *account, kvd_generate_step step,
                 void *ctx, kvd_err *err);

/* Returns device and number type, for result files. */
const char *kvd_generator_name(const kvd_generator_spec *s);

#endif
