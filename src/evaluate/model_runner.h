/* Interface of the code that runs models on CPU or GPU. Hidden states are float32 [n][d_model],
 * which callers must not read. */
#ifndef KVD_EVALUATE_MODEL_RUNNER_H
#define KVD_EVALUATE_MODEL_RUNNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "evaluate/quality.h"
#include "methods/cache.h"
#include "model/pass/attention.h"
#include "model/pass/forward.h"

/* Q, K and V of prompts, which are never compressed and so need not be computed again */

typedef struct {
    /* index of the batch's first prompt token among all recorded ones, set by the caller */
    size_t first;
    /* Puts recorded K and V of prompts before the current tokens', then calls `inner`. */
    kvd_attention hook;
    const kvd_config *config;
    size_t prompt, rows, max_tokens;
    /* [n_layers][tokens][...] recorded Q, K, V, and K before RoPE */
    float *kept[4];
    kvd_attention *inner;
    const size_t *offset; /* first token of each sequence, counting prompts */
    /* [n_layers][n_heads] sink logits, or NULL */
    float *sinks;
    /* Q, K, V, K before RoPE, and attention output of one layer, for whole sequences */
    float *whole[4], *out;
} kvd_kept_prompts;

/* Returns how many of n tokens belong to the prompt, at most n - 1. */
size_t kvd_prompt_rows(size_t prompt, size_t n);
/* Returns the bytes of a prompt token's recorded Q, K, V and K before RoPE, in all layers. */
size_t kvd_kept_prompts_row_bytes(const kvd_config *c);

/* Allocates memory for `rows` prompt tokens. Call kvd_kept_prompts_release, also on failure. */
int kvd_kept_prompts_init(kvd_kept_prompts *p, const kvd_config *c, size_t prompt, size_t rows,
                          size_t max_tokens, kvd_err *err);
void kvd_kept_prompts_release(kvd_kept_prompts *p);

/* Records Q, K, V and K before RoPE of one layer. `ctx` is a kvd_kept_prompts. */
int kvd_kept_prompts_save(void *ctx, const kvd_attention_in *in, kvd_err *err);

/* Passes recorded Q, K and V of prompts to `hook`, layer by layer. */
int kvd_kept_prompts_show(kvd_kept_prompts *p, const kvd_batch *prompts, kvd_attention *hook,
                          kvd_err *err);

/* Runs the tokens after the recorded prompts of a batch. Writes their rows of hidden
 * [n_tokens][d_model]. `inner` computes attention over whole sequences. */
int kvd_kept_prompts_run(kvd_kept_prompts *p, kvd_forward *f, const kvd_batch *b,
                         kvd_attention *inner, float *hidden, kvd_err *err);

#define KVD_NOT_KEPT SIZE_MAX

/* n final hidden states to score: state i predicts target[i] of sequence sequence[i], and is
 * skipped if sequence[i] is -1 */
typedef struct {
    size_t n;
    const uint32_t *target;
    const int *sequence;
    /* [n] receives each prediction's change by compression, or NULL */
    kvd_prediction_change *each;
} kvd_predictions;

typedef struct kvd_model_runner kvd_model_runner;
struct kvd_model_runner {
    const kvd_config *config;
    /* largest number of tokens in a batch and in a sequence */
    size_t max_tokens, max_len;
    /* largest number of predictions whose logits one call computes */
    size_t piece;
    kvd_dtype compute;
    /* index of the batch's first token in the kept attention outputs, set by the caller */
    size_t kept_row;
    /* index of the batch's first prompt token among those with recorded K, V; or KVD_NOT_KEPT */
    size_t kept_prompt;

    /* Allocates n hidden states, which rows_free frees. Returns NULL on failure. */
    float *(*rows_new)(kvd_model_runner *r, size_t n, const char *what, kvd_err *err);
    void (*rows_free)(kvd_model_runner *r, float *rows);
    /* Returns how many bytes of memory may be used for more hidden states. */
    size_t (*spare)(const kvd_model_runner *r);

    /* Makes function `reference` keep attention outputs of n_tokens tokens. Call at most once. */
    int (*keep_attention)(kvd_model_runner *r, size_t n_tokens, kvd_err *err);
    size_t (*attention_bytes)(const kvd_model_runner *r);
    void (*drop_attention)(kvd_model_runner *r);

    /* Makes the function `reference` record Q, K and V of n_rows prompt tokens, so that compressed
     * runs skip prompts. Call at most once. NULL if unsupported. */
    int (*keep_prompts)(kvd_model_runner *r, size_t prompt, size_t n_rows, kvd_err *err);
    size_t (*prompt_bytes)(const kvd_model_runner *r);

    /* Runs the uncompressed model and writes its final hidden states. */
    int (*reference)(kvd_model_runner *r, const kvd_batch *b, float *hidden, kvd_err *err);
    /* Runs the layers before `layer` and writes their output to `residual`. */
    int (*below)(kvd_model_runner *r, const kvd_batch *b, int layer, float *residual, kvd_err *err);

    /* Copies the methods' matrices to the GPU. */
    int (*plan_load)(kvd_model_runner *r, kvd_plan *plan, kvd_err *err);
    /* Frees what plan_load copied, if it was called. NULL if there is nothing to free. */
    void (*plan_unload)(kvd_model_runner *r, kvd_plan *plan);
    /* Returns the name of the attention implementation, valid until plan_unload. */
    const char *(*plan_engine)(const kvd_plan *plan);
    /* Runs a batch with a compressed cache, from the tokens or, if first_layer > 0, from the hidden
     * states `residual` before that layer. Adds cache sizes to *account and attention errors to
     * *error unless NULL. */
    int (*plan_run)(kvd_model_runner *r, const kvd_batch *b, const kvd_plan *plan, int first_layer,
                    const float *residual, float *hidden, kvd_cache_account *account,
                    kvd_attention_error *error, kvd_err *err);

    /* Returns true if `plan` compresses nothing, so that results equal the uncompressed run's. Then
     * fills *account (cache sizes) and *error, which requires keep_attention. */
    bool (*plan_is_reference)(kvd_model_runner *r, const kvd_batch *b, const kvd_plan *plan,
                              kvd_cache_account *account, kvd_attention_error *error);

    /* Copies hidden states. `from` and `to` must not overlap. */
    int (*rows_copy)(kvd_model_runner *r, float *to, const float *from, size_t n, kvd_err *err);
    /* Sets *yes if any bit of the n hidden states differs. */
    int (*differ)(kvd_model_runner *r, const float *a, const float *b, size_t n, bool *yes,
                  kvd_err *err);

    /* Computes logits of n <= piece uncompressed hidden states, for `score` and `logit_change`. */
    int (*reference_logits)(kvd_model_runner *r, const float *rows, size_t n, kvd_err *err);
    /* Adds the quality of n predictions to per_sequence. Predictions come from hidden states `rows`
     * or, if NULL, from the logits of reference_logits. */
    int (*score)(kvd_model_runner *r, const float *rows, const kvd_predictions *p,
                 kvd_quality *per_sequence, kvd_err *err);
    /* Compares logits v of `rows` with uncompressed u. *largest: max |v - u|; adds u^2 to *sum2. */
    int (*logit_change)(kvd_model_runner *r, const float *rows, size_t n, double *largest,
                        double *sum2, kvd_err *err);

    /* Returns device and number types as text, valid until `free`. */
    const char *(*describe)(const kvd_model_runner *r);
    void (*free)(kvd_model_runner *r);
};

/* Creates a runner of the model on the CPU, or returns NULL. Borrows the checkpoint. */
kvd_model_runner *kvd_runner_cpu(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                                 kvd_err *err);
#ifdef KVD_CUDA
/* Creates a runner on the current GPU (KVD_F32 or KVD_BF16), or NULL. Borrows the checkpoint. */
kvd_model_runner *kvd_runner_cuda(const kvd_checkpoint *c, kvd_dtype compute, size_t max_tokens,
                                  size_t max_len, kvd_err *err);
#endif

#endif
