/*
 * Runs models on the CPU or a GPU. Hidden states are float32 [n][d_model] in host or GPU memory,
 * opaque to callers.
 */
#ifndef KVD_EVALUATE_MODEL_RUNNER_H
#define KVD_EVALUATE_MODEL_RUNNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "evaluate/quality.h"
#include "methods/cache.h"
#include "model/pass/attention.h"
#include "model/pass/forward.h"

/*
 * Q, K and V of prompts from the uncompressed run. Prompts attend uncompressed: compressed runs
 * skip them.
 */

typedef struct {
    /* Recorded index of the batch's first prompt token, set by the caller. */
    size_t first;
    /* Private fields follow. */
    /* Puts recorded K and V before the model's tokens, then calls `inner`. */
    kvd_attention hook;
    const kvd_config *config;
    size_t prompt, rows, max_tokens;
    /* [n_layers][rows][...] Recorded Q, K, V, K before RoPE. */
    float *kept[4];
    kvd_attention *inner;
    /* First token of each sequence, prompts included. */
    const size_t *offset;
    /* [n_layers][n_heads] Attention-sink logits; NULL if none. */
    float *sinks;
    /* Q, K, V, K before RoPE, output of one layer. */
    float *whole[4], *out;
} kvd_kept_prompts;

/* Returns the prompt tokens of n tokens: at most n - 1. */
size_t kvd_prompt_rows(size_t prompt, size_t n);
/* Returns the bytes of a prompt token's Q, K and V in all layers. */
size_t kvd_kept_prompts_row_bytes(const kvd_config *c);

/*
 * `rows` prompt tokens, batches of max_tokens. The caller must call kvd_kept_prompts_release, also
 * after a failure.
 */
int kvd_kept_prompts_init(kvd_kept_prompts *p, const kvd_config *c, size_t prompt, size_t rows,
                          size_t max_tokens, kvd_err *err);
void kvd_kept_prompts_release(kvd_kept_prompts *p);

/* Records Q, K, V and K before RoPE. ctx: a kvd_kept_prompts. */
int kvd_kept_prompts_save(void *ctx, const kvd_attention_in *in, kvd_err *err);

/* Passes recorded prompts to `hook`, layer by layer. */
int kvd_kept_prompts_show(kvd_kept_prompts *p, const kvd_batch *prompts, kvd_attention *hook,
                          kvd_err *err);

/*
 * kvd_forward_run for the tokens after recorded prompts, whose rows of hidden [n_tokens][d_model]
 * it sets. `inner` gets whole sequences.
 */
int kvd_kept_prompts_run(kvd_kept_prompts *p, kvd_forward *f, const kvd_batch *b,
                         kvd_attention *inner, float *hidden, kvd_err *err);

#define KVD_NOT_KEPT SIZE_MAX

/* Predictions of n final states. target[i]: true next token; sequence[i]: sequence, or -1. */
typedef struct {
    size_t n;
    const uint32_t *target;
    const int *sequence;
    /* [n] Output: change of each prediction, or NULL. */
    kvd_prediction_change *each;
} kvd_predictions;

typedef struct kvd_model_runner kvd_model_runner;
struct kvd_model_runner {
    const kvd_config *config;
    /* Most tokens in a batch, and in a sequence. */
    size_t max_tokens, max_len;
    /* Most predictions whose logits one call computes. */
    size_t piece;
    kvd_dtype compute;
    /* The batch's first token among kept outputs; set by the caller. */
    size_t kept_row;
    /*
     * The batch's first prompt token in keep_prompts' buffer, set by the caller, or KVD_NOT_KEPT.
     */
    size_t kept_prompt;

    /* spare: bytes that hidden states may take. rows_new: NULL on failure. */
    float *(*rows_new)(kvd_model_runner *r, size_t n, const char *what, kvd_err *err);
    void (*rows_free)(kvd_model_runner *r, float *rows);
    size_t (*spare)(const kvd_model_runner *r);

    /*
     * Outputs of n_tokens tokens, which `reference` keeps from kept_row on; call once.
     * attention_bytes: per token.
     */
    int (*keep_attention)(kvd_model_runner *r, size_t n_tokens, kvd_err *err);
    size_t (*attention_bytes)(const kvd_model_runner *r);
    void (*drop_attention)(kvd_model_runner *r);

    /*
     * Q, K, V of n_rows prompt tokens, which `reference` keeps; call once. Compressed runs then
     * skip prompts. NULL: never. prompt_bytes: per token.
     */
    int (*keep_prompts)(kvd_model_runner *r, size_t prompt, size_t n_rows, kvd_err *err);
    size_t (*prompt_bytes)(const kvd_model_runner *r);

    /*
     * reference: uncompressed model through the final norm. below: only layers before `layer`, into
     * `residual`.
     */
    int (*reference)(kvd_model_runner *r, const kvd_batch *b, float *hidden, kvd_err *err);
    int (*below)(kvd_model_runner *r, const kvd_batch *b, int layer, float *residual, kvd_err *err);

    /*
     * plan_load: copies matrices to the GPU; fails for unsupported plans. plan_unload: also for
     * plans not loaded. NULL: no copies.
     */
    int (*plan_load)(kvd_model_runner *r, kvd_plan *plan, kvd_err *err);
    void (*plan_unload)(kvd_model_runner *r, kvd_plan *plan);
    /* Returns the plan's attention engine; valid until plan_unload. */
    const char *(*plan_engine)(const kvd_plan *plan);
    /*
     * Runs a batch from first_layer and `residual` on, or from the start if 0. Adds to *account and
     * *error (may be NULL). Waits for the end.
     */
    int (*plan_run)(kvd_model_runner *r, const kvd_batch *b, const kvd_plan *plan, int first_layer,
                    const float *residual, float *hidden, kvd_cache_account *account,
                    kvd_attention_error *error, kvd_err *err);

    /*
     * Returns true, with *account and *error as by plan_run, if `plan` compresses nothing and bits
     * equal `reference`. NULL: never. *error requires keep_attention.
     */
    bool (*plan_is_reference)(kvd_model_runner *r, const kvd_batch *b, const kvd_plan *plan,
                              kvd_cache_account *account, kvd_attention_error *error);

    /* `from` and `to` must not overlap. */
    int (*rows_copy)(kvd_model_runner *r, float *to, const float *from, size_t n, kvd_err *err);
    /* Sets *yes if any bit of the n hidden states differs. */
    int (*differ)(kvd_model_runner *r, const float *a, const float *b, size_t n, bool *yes,
                  kvd_err *err);

    /*
     * For n <= piece final states. reference_logits, called first, computes uncompressed logits u.
     * score: adds to per_sequence[sequence[i]]; NULL `rows`: u.
     * logit_change: *largest = max |v - u|, infinite for NaN; *sum2 += sum of u^2.
     */
    int (*reference_logits)(kvd_model_runner *r, const float *rows, size_t n, kvd_err *err);
    int (*score)(kvd_model_runner *r, const float *rows, const kvd_predictions *p,
                 kvd_quality *per_sequence, kvd_err *err);
    int (*logit_change)(kvd_model_runner *r, const float *rows, size_t n, double *largest,
                        double *sum2, kvd_err *err);

    /* For provenance; valid until `free`. */
    const char *(*describe)(const kvd_model_runner *r);
    void (*free)(kvd_model_runner *r);
};

/* Borrows the checkpoint. NULL on failure. */
kvd_model_runner *kvd_runner_cpu(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                                 kvd_err *err);
#ifdef KVD_CUDA
/* On the current GPU; compute: KVD_F32 or KVD_BF16. Borrows the checkpoint. NULL on failure. */
kvd_model_runner *kvd_runner_cuda(const kvd_checkpoint *c, kvd_dtype compute, size_t max_tokens,
                                  size_t max_len, kvd_err *err);
#endif

#endif
