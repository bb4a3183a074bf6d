/*
 * Runs uncompressed and compressed models on the CPU or a GPU. Hidden states are float32
 * [n][d_model], in host or GPU memory, opaque to callers, who never get logits.
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
 * Q, K and V of prompts in all layers, from the uncompressed run. Prompts attend uncompressed, so
 * compressed runs compute only later tokens.
 */

typedef struct {
    /* Index, among recorded tokens, of the batch's first prompt token; set by the caller. */
    size_t first;
    /* Private fields follow. */
    /* Puts recorded K and V before the tokens of the model, then calls `inner`. */
    kvd_attention hook;
    const kvd_config *config;
    size_t prompt, rows, max_tokens;
    /* [n_layers][rows][values per token] Recorded Q, K, V and K before RoPE. */
    float *kept[4];
    kvd_attention *inner;
    /* First token of each sequence in the batch, prompts included. */
    const size_t *offset;
    /* [n_layers][n_heads] Attention-sink logits; NULL if none. */
    float *sinks;
    /* Q, K, V, K before RoPE and output of one layer, whole sequences. */
    float *whole[4], *out;
} kvd_kept_prompts;

/* Returns the prompt tokens of a sequence of n tokens; short sequences: all but the last. */
size_t kvd_prompt_rows(size_t prompt, size_t n);
/* Returns the bytes of a prompt token's Q, K and V in all layers. */
size_t kvd_kept_prompts_row_bytes(const kvd_config *c);

/*
 * Allocates `rows` prompt tokens and batches of max_tokens. The caller must call
 * kvd_kept_prompts_release, also after a failure.
 */
int kvd_kept_prompts_init(kvd_kept_prompts *p, const kvd_config *c, size_t prompt, size_t rows,
                          size_t max_tokens, kvd_err *err);
void kvd_kept_prompts_release(kvd_kept_prompts *p);

/*
 * Records Q, K, V and K before RoPE, which the forward pass must compute. ctx: a kvd_kept_prompts.
 */
int kvd_kept_prompts_save(void *ctx, const kvd_attention_in *in, kvd_err *err);

/* Passes the recorded Q, K and V of prompts, layer by layer, to `hook`. */
int kvd_kept_prompts_show(kvd_kept_prompts *p, const kvd_batch *prompts, kvd_attention *hook,
                          kvd_err *err);

/*
 * Like kvd_forward_run, but computes only tokens after the recorded prompts, whose rows of hidden
 * [n_tokens][d_model] it sets. `inner` receives whole sequences.
 */
int kvd_kept_prompts_run(kvd_kept_prompts *p, kvd_forward *f, const kvd_batch *b,
                         kvd_attention *inner, float *hidden, kvd_err *err);

#define KVD_NOT_KEPT SIZE_MAX

/*
 * Next-token predictions of n final hidden states. target[i]: true next token; sequence[i]:
 * sequence of prediction i, or -1.
 */
typedef struct {
    size_t n;
    const uint32_t *target;
    const int *sequence;
    /* [n] Output: change of each prediction; NULL if not wanted. */
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
    /* The batch's first token in the attention output buffer; set by the caller. */
    size_t kept_row;
    /*
     * The batch's first prompt token in keep_prompts' buffer; set by the caller. KVD_NOT_KEPT: none
     * is kept.
     */
    size_t kept_prompt;

    /*
     * rows_new: memory for n hidden states, NULL on failure. rows_free: frees them. spare: bytes
     * that hidden states may take.
     */
    float *(*rows_new)(kvd_model_runner *r, size_t n, const char *what, kvd_err *err);
    void (*rows_free)(kvd_model_runner *r, float *rows);
    size_t (*spare)(const kvd_model_runner *r);

    /*
     * keep_attention (once): buffer for outputs of n_tokens tokens, which `reference` fills from
     * kept_row on. attention_bytes: bytes per token. drop_attention: frees the buffer.
     */
    int (*keep_attention)(kvd_model_runner *r, size_t n_tokens, kvd_err *err);
    size_t (*attention_bytes)(const kvd_model_runner *r);
    void (*drop_attention)(kvd_model_runner *r);

    /*
     * keep_prompts (once; NULL: whole sequences always run): buffer for Q, K, V of n_rows prompt
     * tokens, which `reference` fills. Compressed runs then skip prompts and their hidden states.
     * prompt_bytes: bytes per token.
     */
    int (*keep_prompts)(kvd_model_runner *r, size_t prompt, size_t n_rows, kvd_err *err);
    size_t (*prompt_bytes)(const kvd_model_runner *r);

    /*
     * reference: runs the uncompressed model through the final norm into `hidden`. below: only
     * layers before `layer`, into `residual`.
     */
    int (*reference)(kvd_model_runner *r, const kvd_batch *b, float *hidden, kvd_err *err);
    int (*below)(kvd_model_runner *r, const kvd_batch *b, int layer, float *residual, kvd_err *err);

    /*
     * plan_load: copies a plan's matrices to the GPU; fails if the runner cannot run it.
     * plan_unload: accepts plans not loaded. NULL: no copies needed.
     */
    int (*plan_load)(kvd_model_runner *r, kvd_plan *plan, kvd_err *err);
    void (*plan_unload)(kvd_model_runner *r, kvd_plan *plan);
    /* Returns the plan's attention engine; valid until plan_unload. */
    const char *(*plan_engine)(const kvd_plan *plan);
    /*
     * Runs a batch with a compressed cache, from first_layer and `residual` unless 0. Adds sizes to
     * *account and attention errors to *error (may be NULL). Returns after the run has ended.
     */
    int (*plan_run)(kvd_model_runner *r, const kvd_batch *b, const kvd_plan *plan, int first_layer,
                    const float *residual, float *hidden, kvd_cache_account *account,
                    kvd_attention_error *error, kvd_err *err);

    /*
     * Returns true if `plan` compresses nothing and bits would equal `reference`; then adds to
     * *account and *error as plan_run would. NULL: no guarantee. Non-NULL error requires
     * keep_attention.
     */
    bool (*plan_is_reference)(kvd_model_runner *r, const kvd_batch *b, const kvd_plan *plan,
                              kvd_cache_account *account, kvd_attention_error *error);

    /* `from` and `to` must not overlap. */
    int (*rows_copy)(kvd_model_runner *r, float *to, const float *from, size_t n, kvd_err *err);
    /* Sets *yes if any bit of the n hidden states differs. */
    int (*differ)(kvd_model_runner *r, const float *a, const float *b, size_t n, bool *yes,
                  kvd_err *err);

    /*
     * For n <= piece final hidden states `rows`. reference_logits, called first, computes
     * uncompressed logits u for the others.
     * score: adds quality to per_sequence[sequence[i]]; NULL `rows` scores u.
     * logit_change: *largest = max |v - u|, infinite for NaN; *sum2 += sum of u^2.
     */
    int (*reference_logits)(kvd_model_runner *r, const float *rows, size_t n, kvd_err *err);
    int (*score)(kvd_model_runner *r, const float *rows, const kvd_predictions *p,
                 kvd_quality *per_sequence, kvd_err *err);
    int (*logit_change)(kvd_model_runner *r, const float *rows, size_t n, double *largest,
                        double *sum2, kvd_err *err);

    /* Description of the runner for provenance; valid until `free`. */
    const char *(*describe)(const kvd_model_runner *r);
    void (*free)(kvd_model_runner *r);
};

/* Returns a runner on the CPU; borrows the checkpoint. On failure returns NULL. */
kvd_model_runner *kvd_runner_cpu(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                                 kvd_err *err);
#ifdef KVD_CUDA
/*
 * Returns a runner on the current GPU; compute: KVD_F32 or KVD_BF16. Borrows the checkpoint. On
 * failure returns NULL.
 */
kvd_model_runner *kvd_runner_cuda(const kvd_checkpoint *c, kvd_dtype compute, size_t max_tokens,
                                  size_t max_len, kvd_err *err);
#endif

#endif
