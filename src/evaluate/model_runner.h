/*
 * Runs the uncompressed model and compressed models on the CPU or a GPU, for kvdim-eval.
 *
 * Hidden states are float32 vectors [n][d_model], in host or GPU memory; callers pass pointers to
 * them but never read them. Logits are never given to callers.
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
 * Q, K and V of the prompts in all layers, recorded while the uncompressed model ran. Prompt tokens
 * attend to each other uncompressed, so their Q, K and V are the same in a compressed run. A
 * compressed run therefore computes only the tokens after the prompts.
 */

typedef struct {
    /*
     * Position, among the recorded tokens of all prompts, of the first prompt token of the current
     * batch. Set by the caller.
     */
    size_t first;
    /* Private fields follow. */
    /*
     * Attention callback. It puts the recorded K and V of the prompts before the tokens that the
     * model runs, and then calls `inner`.
     */
    kvd_attention hook;
    const kvd_config *config;
    size_t prompt, rows, max_tokens;
    /* Recorded Q, K, V and K before RoPE of the prompts: [n_layers][rows][values per token]. */
    float *kept[4];
    kvd_attention *inner;
    /* Index of the first token of each sequence in the current batch, prompts included. */
    const size_t *offset;
    /* Attention-sink logits, [n_layers][n_heads]; NULL if the model has none. */
    float *sinks;
    /* Q, K, V, K before RoPE and attention output of one layer, for whole sequences. */
    float *whole[4], *out;
} kvd_kept_prompts;

/*
 * Returns the number of prompt tokens of a sequence of n tokens. In a short sequence all tokens but
 * the last are prompt.
 */
size_t kvd_prompt_rows(size_t prompt, size_t n);
/* Returns the bytes of one prompt token's Q, K and V in all layers. */
size_t kvd_kept_prompts_row_bytes(const kvd_config *c);

/*
 * Allocates memory for `rows` prompt tokens, and for batches of max_tokens tokens. The caller must
 * call kvd_kept_prompts_release, also after a failure.
 */
int kvd_kept_prompts_init(kvd_kept_prompts *p, const kvd_config *c, size_t prompt, size_t rows,
                          size_t max_tokens, kvd_err *err);
void kvd_kept_prompts_release(kvd_kept_prompts *p);

/*
 * Attention callback that records Q, K, V and K before RoPE. The forward pass must compute all
 * four. `ctx` is a kvd_kept_prompts.
 */
int kvd_kept_prompts_save(void *ctx, const kvd_attention_in *in, kvd_err *err);

/* Passes the recorded Q, K and V of prompts, layer by layer, to the callback `hook`. */
int kvd_kept_prompts_show(kvd_kept_prompts *p, const kvd_batch *prompts, kvd_attention *hook,
                          kvd_err *err);

/*
 * Runs the sequences *b through the model like kvd_forward_run, but computes only the tokens after
 * the recorded prompts. The callback `inner` receives whole sequences. The function sets only those
 * rows of the array hidden [n_tokens][d_model] whose tokens are after the prompts.
 */
int kvd_kept_prompts_run(kvd_kept_prompts *p, kvd_forward *f, const kvd_batch *b,
                         kvd_attention *inner, float *hidden, kvd_err *err);

#define KVD_NOT_KEPT SIZE_MAX

/*
 * Next-token predictions from n final hidden states. target[i] is the true next token. sequence[i]
 * is the sequence to whose sums prediction i is added; -1 means none.
 */
typedef struct {
    size_t n;
    const uint32_t *target;
    const int *sequence;
    /* Output: change of each prediction from the uncompressed model, [n]; NULL if not wanted. */
    kvd_prediction_change *each;
} kvd_predictions;

typedef struct kvd_model_runner kvd_model_runner;
struct kvd_model_runner {
    const kvd_config *config;
    /* Largest number of tokens in a batch, and in a sequence. */
    size_t max_tokens, max_len;
    /* Largest number of predictions whose logits are computed in one call. */
    size_t piece;
    kvd_dtype compute;
    /* Index of the batch's first token in the buffer of attention outputs; set by the caller. */
    size_t kept_row;
    /*
     * Index, in the buffer that keep_prompts allocated, of the current batch's first prompt token;
     * set by the caller. KVD_NOT_KEPT means that no prompt of this batch is kept.
     */
    size_t kept_prompt;

    /*
     * `rows_new` allocates memory for n hidden states; on failure it returns NULL and fills *err.
     * `rows_free` frees it. `spare` returns how many bytes hidden states may take of the memory
     * that is left.
     */
    float *(*rows_new)(kvd_model_runner *r, size_t n, const char *what, kvd_err *err);
    void (*rows_free)(kvd_model_runner *r, float *rows);
    size_t (*spare)(const kvd_model_runner *r);

    /*
     * keep_attention allocates a buffer for the attention outputs of n_tokens tokens; it may be
     * called once. Later calls of the function `reference` store attention outputs in the buffer,
     * from token number kept_row on. attention_bytes returns the bytes per token. drop_attention
     * frees the buffer.
     */
    int (*keep_attention)(kvd_model_runner *r, size_t n_tokens, kvd_err *err);
    size_t (*attention_bytes)(const kvd_model_runner *r);
    void (*drop_attention)(kvd_model_runner *r);

    /*
     * keep_prompts allocates a buffer for the Q, K and V of n_rows prompt tokens; it may be called
     * once. If the runner always runs whole sequences, the pointer keep_prompts is NULL. Later
     * calls of the function `reference` fill the buffer. Compressed runs then begin after the
     * prompts, and do not set the hidden states of prompts. prompt_bytes returns the bytes per
     * token.
     */
    int (*keep_prompts)(kvd_model_runner *r, size_t prompt, size_t n_rows, kvd_err *err);
    size_t (*prompt_bytes)(const kvd_model_runner *r);

    /*
     * `reference` runs the uncompressed model up to and including the final norm, and writes the
     * hidden states to `hidden`. `below` runs only the layers before layer `layer`, and writes the
     * hidden states that enter this layer to `residual`.
     */
    int (*reference)(kvd_model_runner *r, const kvd_batch *b, float *hidden, kvd_err *err);
    int (*below)(kvd_model_runner *r, const kvd_batch *b, int layer, float *residual, kvd_err *err);

    /*
     * `plan_load` copies the matrices of a compression plan to the GPU, and fails if this runner
     * cannot run the plan. `plan_unload` frees the copies; it accepts plans that were not loaded.
     * Both are NULL if no copies are needed.
     */
    int (*plan_load)(kvd_model_runner *r, kvd_plan *plan, kvd_err *err);
    void (*plan_unload)(kvd_model_runner *r, kvd_plan *plan);
    /* Returns the name of the attention engine that runs the plan; valid until plan_unload. */
    const char *(*plan_engine)(const kvd_plan *plan);
    /*
     * Runs a batch with a compressed cache. If first_layer is not 0, the run starts in that layer,
     * from the hidden states `residual`. Adds cache sizes to *account and, unless `error` is NULL,
     * attention errors to *error. Returns after the run has ended.
     */
    int (*plan_run)(kvd_model_runner *r, const kvd_batch *b, const kvd_plan *plan, int first_layer,
                    const float *residual, float *hidden, kvd_cache_account *account,
                    kvd_attention_error *error, kvd_err *err);

    /*
     * Returns true if `plan` compresses nothing, so that a run would equal `reference` to the last
     * bit. If it returns true, it has added to *account and *error what plan_run would add. The
     * pointer is NULL if the runner cannot guarantee equal bits. If `error` is not NULL, attention
     * outputs must have been kept (keep_attention).
     */
    bool (*plan_is_reference)(kvd_model_runner *r, const kvd_batch *b, const kvd_plan *plan,
                              kvd_cache_account *account, kvd_attention_error *error);

    /* Copies n hidden states; the arrays `from` and `to` must not overlap. */
    int (*rows_copy)(kvd_model_runner *r, float *to, const float *from, size_t n, kvd_err *err);
    /* Sets *yes to true if any bit of the n hidden states differs. */
    int (*differ)(kvd_model_runner *r, const float *a, const float *b, size_t n, bool *yes,
                  kvd_err *err);

    /*
     * These functions work on n <= piece hidden states `rows` after the final norm.
     * reference_logits must be called first: it computes the logits u of the uncompressed model.
     * The other functions use u until reference_logits is called again.
     *
     * `score` adds prediction quality to per_sequence[sequence[i]] like kvd_quality_add. If `rows`
     * is NULL, it scores u, else the logits of the compressed model's hidden states `rows`.
     * logit_change sets *largest to max |v - u| for the logits v of the compressed model, infinite
     * if one is NaN. It adds the sum of u^2 to *sum2.
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

/*
 * Returns a runner on the CPU. On failure returns NULL and fills *err. The checkpoint is borrowed.
 */
kvd_model_runner *kvd_runner_cpu(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                                 kvd_err *err);
#ifdef KVD_CUDA
/*
 * Returns a runner on the current GPU; the number type `compute` is KVD_F32 or KVD_BF16. On failure
 * returns NULL and fills *err. The checkpoint is borrowed.
 */
kvd_model_runner *kvd_runner_cuda(const kvd_checkpoint *c, kvd_dtype compute, size_t max_tokens,
                                  size_t max_len, kvd_err *err);
#endif

#endif
