/*
 * Interface of the code that runs models on the CPU or a GPU. Hidden states are float32
 * [n][d_model] in host or GPU memory, which callers must not read.
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
 * Q, K and V of prompts, recorded when the uncompressed model runs. Attention within prompts is
 * never compressed, so runs with compression can use the recording instead of computing prompts.
 */

typedef struct {
    /*
     * Index of the current batch's first prompt token among all recorded tokens. The caller sets
     * it.
     */
    size_t first;
    /* Private fields follow. */
    /*
     * Attention hook that puts recorded K and V of prompts before those of the current tokens, then
     * calls `inner`.
     */
    kvd_attention hook;
    const kvd_config *config;
    size_t prompt, rows, max_tokens;
    /* [n_layers][rows][...] Recorded Q, K, V, and K before RoPE. */
    float *kept[4];
    kvd_attention *inner;
    const size_t *offset; /* first token of each sequence, counting prompts */
    /* [n_layers][n_heads] Attention-sink logits, or NULL if the model has none. */
    float *sinks;
    /* Q, K, V, K before RoPE, and attention output of one layer, for whole sequences. */
    float *whole[4], *out;
} kvd_kept_prompts;

/* Returns how many of a sequence's n tokens belong to the prompt, at most n - 1. */
size_t kvd_prompt_rows(size_t prompt, size_t n);
/* Returns the bytes that recording one prompt token's Q, K and V takes over all layers. */
size_t kvd_kept_prompts_row_bytes(const kvd_config *c);

/*
 * Allocates memory to record `rows` prompt tokens in batches of max_tokens. Requires
 * kvd_kept_prompts_release, also after a failure.
 */
int kvd_kept_prompts_init(kvd_kept_prompts *p, const kvd_config *c, size_t prompt, size_t rows,
                          size_t max_tokens, kvd_err *err);
void kvd_kept_prompts_release(kvd_kept_prompts *p);

/* Records Q, K, V and K before RoPE of one layer. `ctx` is a kvd_kept_prompts. */
int kvd_kept_prompts_save(void *ctx, const kvd_attention_in *in, kvd_err *err);

/* Passes recorded Q, K and V of prompts to `hook`, one layer after the other. */
int kvd_kept_prompts_show(kvd_kept_prompts *p, const kvd_batch *prompts, kvd_attention *hook,
                          kvd_err *err);

/*
 * Runs the tokens after recorded prompts, as kvd_forward_run. Sets their rows of hidden
 * [n_tokens][d_model]. `inner` sees whole sequences.
 */
int kvd_kept_prompts_run(kvd_kept_prompts *p, kvd_forward *f, const kvd_batch *b,
                         kvd_attention *inner, float *hidden, kvd_err *err);

#define KVD_NOT_KEPT SIZE_MAX

/*
 * Input of scoring: n final hidden states. State i predicts token target[i] of sequence[i], or is
 * ignored if sequence[i] is -1.
 */
typedef struct {
    size_t n;
    const uint32_t *target;
    const int *sequence;
    /* [n] receives the change of each prediction against the uncompressed model, or NULL. */
    kvd_prediction_change *each;
} kvd_predictions;

typedef struct kvd_model_runner kvd_model_runner;
struct kvd_model_runner {
    const kvd_config *config;
    /* Largest number of tokens in a batch and in a sequence. */
    size_t max_tokens, max_len;
    /* Largest number of predictions whose logits one call computes. */
    size_t piece;
    kvd_dtype compute;
    /* Index of the current batch's first token among kept attention outputs. The caller sets it. */
    size_t kept_row;
    /*
     * Index of the current batch's first prompt token among the recorded ones (keep_prompts), or
     * KVD_NOT_KEPT.
     */
    size_t kept_prompt;

    /* rows_new allocates n hidden states, or returns NULL. spare: bytes that they may take. */
    float *(*rows_new)(kvd_model_runner *r, size_t n, const char *what, kvd_err *err);
    void (*rows_free)(kvd_model_runner *r, float *rows);
    size_t (*spare)(const kvd_model_runner *r);

    /*
     * Makes `reference` store attention outputs of n_tokens tokens, from kept_row on. May be called
     * once. attention_bytes returns the number of bytes per token.
     */
    int (*keep_attention)(kvd_model_runner *r, size_t n_tokens, kvd_err *err);
    size_t (*attention_bytes)(const kvd_model_runner *r);
    void (*drop_attention)(kvd_model_runner *r);

    /*
     * Makes `reference` store Q, K and V of n_rows prompt tokens, so that runs with compression
     * skip prompts. May be called once. NULL if unsupported. prompt_bytes returns the number of
     * bytes per token.
     */
    int (*keep_prompts)(kvd_model_runner *r, size_t prompt, size_t n_rows, kvd_err *err);
    size_t (*prompt_bytes)(const kvd_model_runner *r);

    /*
     * `reference` runs the uncompressed model with its final norm. `below` runs its layers before
     * `layer` and writes `residual`.
     */
    int (*reference)(kvd_model_runner *r, const kvd_batch *b, float *hidden, kvd_err *err);
    int (*below)(kvd_model_runner *r, const kvd_batch *b, int layer, float *residual, kvd_err *err);

    /*
     * plan_load copies the matrices of compression methods to the GPU and fails for unsupported
     * methods. plan_unload may be called for plans that were not loaded; NULL if there is nothing
     * to free.
     */
    int (*plan_load)(kvd_model_runner *r, kvd_plan *plan, kvd_err *err);
    void (*plan_unload)(kvd_model_runner *r, kvd_plan *plan);
    /*
     * Returns the name of the attention implementation that runs the compression methods of `plan`.
     * The name is valid until plan_unload.
     */
    const char *(*plan_engine)(const kvd_plan *plan);
    /*
     * Runs a batch with the KV cache compressed by the methods of `plan`. Starts at first_layer
     * from `residual`, or from the tokens if first_layer is 0. Adds to *account and *error (may be
     * NULL). Waits for the end.
     */
    int (*plan_run)(kvd_model_runner *r, const kvd_batch *b, const kvd_plan *plan, int first_layer,
                    const float *residual, float *hidden, kvd_cache_account *account,
                    kvd_attention_error *error, kvd_err *err);

    /*
     * Returns true if `plan` compresses nothing, so that its results equal those of `reference` bit
     * for bit. Then fills *account and *error like plan_run. *error requires keep_attention. If
     * NULL, plan_run runs every plan.
     */
    bool (*plan_is_reference)(kvd_model_runner *r, const kvd_batch *b, const kvd_plan *plan,
                              kvd_cache_account *account, kvd_attention_error *error);

    /* Copies n hidden states. `from` and `to` must not overlap. */
    int (*rows_copy)(kvd_model_runner *r, float *to, const float *from, size_t n, kvd_err *err);
    /* Sets *yes if any bit of the n hidden states differs. */
    int (*differ)(kvd_model_runner *r, const float *a, const float *b, size_t n, bool *yes,
                  kvd_err *err);

    /*
     * Functions for n <= piece final hidden states. reference_logits comes first and computes the
     * uncompressed logits u. `score` adds to per_sequence[sequence[i]] and uses u if `rows` is
     * NULL. logit_change sets *largest to max |v - u| (infinite for NaN), and adds the sum
     * of u^2 to *sum2.
     */
    int (*reference_logits)(kvd_model_runner *r, const float *rows, size_t n, kvd_err *err);
    int (*score)(kvd_model_runner *r, const float *rows, const kvd_predictions *p,
                 kvd_quality *per_sequence, kvd_err *err);
    int (*logit_change)(kvd_model_runner *r, const float *rows, size_t n, double *largest,
                        double *sum2, kvd_err *err);

    /* Returns a description of device and number types for result files, valid until `free`. */
    const char *(*describe)(const kvd_model_runner *r);
    void (*free)(kvd_model_runner *r);
};

/* Creates a runner on the CPU. Borrows the checkpoint. Returns NULL on failure. */
kvd_model_runner *kvd_runner_cpu(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                                 kvd_err *err);
#ifdef KVD_CUDA
/*
 * Creates a runner on the current GPU that computes in KVD_F32 or KVD_BF16. Borrows the checkpoint.
 * Returns NULL on failure.
 */
kvd_model_runner *kvd_runner_cuda(const kvd_checkpoint *c, kvd_dtype compute, size_t max_tokens,
                                  size_t max_len, kvd_err *err);
#endif

#endif
