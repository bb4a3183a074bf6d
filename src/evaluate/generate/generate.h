/*
 * Generates tokens after prompts, with K and V read from a compressed cache. The next input is the
 * largest logit's token or a given one.
 *
 * Prompts attend uncompressed, so the first token is the uncompressed model's.
 *
 * Two paths (generate_path.h): float32 cache in host memory (methods/sequence_cache.h), or the CUDA
 * engine in bf16.
 */
#ifndef KVD_EVALUATE_GENERATE_GENERATE_H
#define KVD_EVALUATE_GENERATE_GENERATE_H

#include <stdbool.h>

#include "common/half.h"
#include "methods/sequence_cache.h"
#include "model/checkpoint/checkpoint.h"

/* Prompts, and tokens to generate after each. */
typedef struct {
    size_t n_sequences;
    /* [n_sequences + 1] Prompt s: id[offset[s] .. offset[s+1]-1], not empty. */
    const size_t *offset;
    const uint32_t *id;
    /* [n_sequences + 1] Output of sequence s: indices end[s] .. end[s+1]-1, not empty. */
    const size_t *end;
    /*
     * Inputs at output indices. KVD_FREE_TOKEN: the model chooses; consecutive ones are an answer.
     * NULL: all are free.
     */
    const uint32_t *forced;
    /*
     * Called after each chosen token[at]. Returns 0: continue; 1: end the answer, feeding the
     * token; 2: end without feeding; -1: failure. NULL: full length.
     */
    int (*ended)(void *ctx, size_t sequence, size_t at, const uint32_t *token, kvd_err *err);
    void *ended_ctx;
    /*
     * Progress, or NULL. n: sequences since the last call, perhaps a fraction; negative takes back
     * a repeated group.
     */
    void (*advanced)(void *ctx, double n);
    void *advanced_ctx;
    /* [n_sequences] True: already generated. NULL: none. Groups do not depend on this. */
    const bool *done;
} kvd_continuations;

/* In `forced`: the model chooses. In kvd_continued.token: not computed. */
#define KVD_FREE_TOKEN UINT32_MAX

typedef struct {
    /* Cache bits after the prompt, after the last token. */
    double prompt_bits, bits;
    /* Seconds of prompt and steps; shared passes are divided by tokens. */
    double prompt_s, steps_s;
    size_t steps;
} kvd_continued_cost;

/* Per generated token, [end[n_sequences]]; NULL: not wanted. */
typedef struct {
    /* Largest logit's token, first of equals. Required with kvd_continuations.ended. */
    uint32_t *token;
    /* ln p of the token fed next. */
    double *log_p;
    /* 1 + number of tokens with larger logits than the token fed next. */
    uint32_t *rank;
    /* [n_sequences] */
    kvd_continued_cost *cost;
} kvd_continued;

typedef struct {
    bool gpu;
    /* KVD_F32, or KVD_BF16 on a GPU. */
    kvd_dtype compute;
    /* First GPU; GPUs with a model copy each (0: 1), or CPU threads. */
    int first_gpu, n_gpus;
    /*
     * Part of this process, number of parts (0, 1: all). Group i of call k belongs to part (k + i)
     * mod n_parts.
     */
    size_t part, n_parts;
    /*
     * Tokens of a forward pass; limits sequences together (host memory) or an iteration's prompts
     * (engine).
     */
    size_t max_tokens;
    /* Most tokens of a prompt with its continuation. */
    size_t max_len;
} kvd_generator_spec;

typedef struct kvd_generator kvd_generator;

/* The checkpoint must outlive the generator. Returns NULL on failure. */
kvd_generator *kvd_generator_new(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                 kvd_err *err);
void kvd_generator_free(kvd_generator *g);

/* Returns the implementation for a plan; why: reason against the CUDA engine, or "". */
enum { KVD_GENERATOR_WHY = 160 };
const char *kvd_generator_path(const kvd_generator *g, const kvd_plan *plan,
                               char why[KVD_GENERATOR_WHY]);

/*
 * Called after sequences first .. first + n - 1; *account: bytes of their steps. Nonzero stops,
 * with *err filled.
 */
typedef int (*kvd_generate_step)(void *ctx, size_t first, size_t n,
                                 const kvd_stepwise_account *account, kvd_err *err);

/*
 * Generates with the open plan. *account: sizes and bits read by steps. account, step: may be NULL.
 * plan->prompt is ignored. Callbacks come from one thread at a time. Results do not depend on the
 * number of equal GPUs. SIGINT or SIGTERM fail before the next pass.
 */
int kvd_generate(kvd_generator *g, const kvd_plan *plan, const kvd_continuations *c,
                 const kvd_continued *out, kvd_stepwise_account *account, kvd_generate_step step,
                 void *ctx, kvd_err *err);

/* Returns device and number type, for result files. */
const char *kvd_generator_name(const kvd_generator_spec *s);

#endif
