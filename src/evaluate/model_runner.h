/* Interface of the code that runs models on CPU or GPU. Hidden states are float32 [n][d_model],
 * possibly in GPU memory, so that callers must not read them. */
#ifndef KVD_EVALUATE_MODEL_RUNNER_H
#define KVD_EVALUATE_MODEL_RUNNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "evaluate/quality.h"
#include "methods/cache.h"
#include "model/pass/attention.h"
#include "model/pass/forward.h"

/* Recorded Q, K and V of prompts. They are the same for all compression methods, because prompt
 * tokens attend to uncompressed K and V. */

typedef struct {
    /* index of the batch's first prompt token in the recorded Q, K and V of all prompts; set by the
     * caller */
    size_t first;
    /* attention function that puts recorded K and V of the prompts before those of later tokens,
     * then calls `inner` */
    kvd_attention hook;
    const kvd_config *config;
    size_t prompt, rows, max_tokens;
    /* [n_layers][tokens][...] recorded Q, K, V, and K before RoPE */
    float *kept[4];
    kvd_attention *inner;
    const size_t *offset; /* first token of each sequence, counting prompts */
    /* [n_layers][n_heads] logits of attention sinks; NULL if the model has none */
    float *sinks;
    /* one layer's Q, K, V, K before RoPE, and attention output, for the prompts and the tokens
     * after them */
    float *whole[4], *out;
} kvd_kept_prompts;

/* Returns how many of a sequence's n tokens belong to its prompt: `prompt`, but at most n - 1. */
size_t kvd_prompt_rows(size_t prompt, size_t n);
/* Returns the bytes of one prompt token's recorded Q, K, V and K before RoPE in all layers. */
size_t kvd_kept_prompts_row_bytes(const kvd_config *c);

/* Allocates memory for Q, K, V and K before RoPE of `rows` prompt tokens. Call
 * kvd_kept_prompts_release afterwards, also on failure. */
int kvd_kept_prompts_init(kvd_kept_prompts *p, const kvd_config *c, size_t prompt, size_t rows,
                          size_t max_tokens, kvd_err *err);
void kvd_kept_prompts_release(kvd_kept_prompts *p);

/* Records Q, K and V of the prompts' tokens in one layer, and K before RoPE. `ctx` points to a
 * kvd_kept_prompts. */
int kvd_kept_prompts_save(void *ctx, const kvd_attention_in *in, kvd_err *err);

/* Calls the attention function `hook` once per layer with the recorded Q, K and V of prompts,
 * without running the model. */
int kvd_kept_prompts_show(kvd_kept_prompts *p, const kvd_batch *prompts, kvd_attention *hook,
                          kvd_err *err);

/* Runs the model on the tokens after the recorded prompts of a batch. Writes only these tokens'
 * rows of `hidden` [n_tokens][d_model]. `inner` computes attention over whole sequences, prompts
 * included. */
int kvd_kept_prompts_run(kvd_kept_prompts *p, kvd_forward *f, const kvd_batch *b,
                         kvd_attention *inner, float *hidden, kvd_err *err);

#define KVD_NOT_KEPT SIZE_MAX

/* n final hidden states to score: state i predicts target[i] of sequence sequence[i], and is
 * skipped if sequence[i] is -1 */
typedef struct {
    size_t n;
    const uint32_t *target;
    const int *sequence;
    /* [n] receives how each prediction differs from the uncompressed model's; NULL if not wanted */
    kvd_prediction_change *each;
} kvd_predictions;

typedef struct kvd_model_runner kvd_model_runner;
struct kvd_model_runner {
    const kvd_config *config;
    /* largest number of tokens in a batch, and in a sequence */
    size_t max_tokens, max_len;
    /* largest number of predictions whose logits one call computes */
    size_t piece;
    kvd_dtype compute;
    /* index of the batch's first token among all tokens whose attention outputs are kept, set by
     * the caller */
    size_t kept_row;
    /* index of the batch's first prompt token in the recorded prompts, or KVD_NOT_KEPT if these are
     * not recorded; set by the caller */
    size_t kept_prompt;

    /* Allocates an array of n hidden states, to be freed with rows_free. Returns NULL on
     * failure. */
    float *(*rows_new)(kvd_model_runner *r, size_t n, const char *what, kvd_err *err);
    void (*rows_free)(kvd_model_runner *r, float *rows);
    /* Returns how many bytes of memory may be used for more hidden states. */
    size_t (*spare)(const kvd_model_runner *r);

    /* Makes later runs of the uncompressed model keep the attention outputs of up to n_tokens
     * tokens. Call keep_attention at most once. */
    int (*keep_attention)(kvd_model_runner *r, size_t n_tokens, kvd_err *err);
    size_t (*attention_bytes)(const kvd_model_runner *r);
    void (*drop_attention)(kvd_model_runner *r);

    /* Makes later runs of the uncompressed model record Q, K and V of n_rows prompt tokens, for use
     * by compressed runs. Call keep_prompts at most once. This pointer is NULL if the runner cannot
     * record prompts. */
    int (*keep_prompts)(kvd_model_runner *r, size_t prompt, size_t n_rows, kvd_err *err);
    size_t (*prompt_bytes)(const kvd_model_runner *r);

    /* Runs the uncompressed model and writes its final hidden states. */
    int (*reference)(kvd_model_runner *r, const kvd_batch *b, float *hidden, kvd_err *err);
    /* Runs the uncompressed layers before layer number `layer`. Writes their output to
     * `residual`. */
    int (*below)(kvd_model_runner *r, const kvd_batch *b, int layer, float *residual, kvd_err *err);

    /* Prepares the compression methods of `plan`. A runner for the GPU copies their matrices to the
     * GPU. */
    int (*plan_load)(kvd_model_runner *r, kvd_plan *plan, kvd_err *err);
    /* Frees what plan_load allocated, if plan_load was called. This pointer is NULL if there is
     * nothing to free. */
    void (*plan_unload)(kvd_model_runner *r, kvd_plan *plan);
    /* Returns the name of the attention implementation; the text is valid until plan_unload. */
    const char *(*plan_engine)(const kvd_plan *plan);
    /* Runs a batch with a compressed cache. If first_layer > 0, runs only the layers from
     * first_layer on, from hidden states `residual`. Adds cache sizes to *account. Adds attention
     * errors to *error, unless `error` is NULL. */
    int (*plan_run)(kvd_model_runner *r, const kvd_batch *b, const kvd_plan *plan, int first_layer,
                    const float *residual, float *hidden, kvd_cache_account *account,
                    kvd_attention_error *error, kvd_err *err);

    /* Returns true if `plan` compresses nothing, so that results equal the uncompressed model's. In
     * this case also adds cache sizes to *account and, unless `error` is NULL, attention errors of
     * 0 to *error. A non-NULL `error` requires an earlier call of keep_attention. */
    bool (*plan_is_reference)(kvd_model_runner *r, const kvd_batch *b, const kvd_plan *plan,
                              kvd_cache_account *account, kvd_attention_error *error);

    /* Copies hidden states. `from` and `to` must not overlap. */
    int (*rows_copy)(kvd_model_runner *r, float *to, const float *from, size_t n, kvd_err *err);
    /* Compares the n hidden states in `a` with the n hidden states in `b`. Sets *yes to true if any
     * bit differs. */
    int (*differ)(kvd_model_runner *r, const float *a, const float *b, size_t n, bool *yes,
                  kvd_err *err);

    /* Computes logits from n hidden states of the uncompressed model, at most r->piece. The
     * functions `score` and `logit_change` compare with these logits. */
    int (*reference_logits)(kvd_model_runner *r, const float *rows, size_t n, kvd_err *err);
    /* Adds the quality of p->n predictions (loss, KL divergence, right tokens) to per_sequence.
     * Computes logits from hidden states `rows`. If `rows` is NULL, uses the logits that
     * reference_logits has computed. */
    int (*score)(kvd_model_runner *r, const float *rows, const kvd_predictions *p,
                 kvd_quality *per_sequence, kvd_err *err);
    /* Compares logits v, computed from n final hidden states `rows`, with the logits u that
     * reference_logits has computed. *largest receives max |v - u|. Adds the sum of u^2 to
     * *sum2. */
    int (*logit_change)(kvd_model_runner *r, const float *rows, size_t n, double *largest,
                        double *sum2, kvd_err *err);

    /* Returns the names of device and number types as text, which is valid until the runner is
     * freed. */
    const char *(*describe)(const kvd_model_runner *r);
    void (*free)(kvd_model_runner *r);
};

/* Creates a runner that runs the model on the CPU. Returns NULL on failure. Borrows the
 * checkpoint. */
kvd_model_runner *kvd_runner_cpu(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                                 kvd_err *err);
#ifdef KVD_CUDA
/* Creates a runner that runs the model on the current GPU. `compute`: KVD_F32 or KVD_BF16. Returns
 * NULL on failure. Borrows the checkpoint. */
kvd_model_runner *kvd_runner_cuda(const kvd_checkpoint *c, kvd_dtype compute, size_t max_tokens,
                                  size_t max_len, kvd_err *err);
#endif

#endif
