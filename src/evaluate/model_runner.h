/*
 * Runner interface of kvdim-eval: runs the uncompressed model and choices of widths, and does the
 * operations on their rows, on the CPU (runner_cpu.c) or on a GPU (cuda/runner_cuda.c). evaluate.c
 * decides which batches run through which choices.
 *
 * "Rows" are [n][d_model] float32 (final hidden rows, or the residual stream) in the runner's
 * memory, the host's or the device's. Callers compute addresses of rows and pass them back; they
 * never read them. Logits stay with the runner.
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
 * Q, K and V of the prompts of uncompressed runs, in all layers. Under every plan, the rows of a
 * prompt attend to each other uncompressed, so a plan's run needs only these tensors of its
 * prompts: it continues after the prompts, and its hook sees whole sequences.
 */

typedef struct {
    /* Index of the first kept row of the current batch's prompts; set by the caller. */
    size_t first;
    /* private */
    /* Attention hook of the run; calls the hook `inner` with whole sequences. */
    kvd_attention hook;
    const kvd_config *config;
    size_t prompt, rows, max_tokens;
    float *kept[4]; /* q, k, v, k before RoPE: [n_layers][rows][their width] */
    kvd_attention *inner;
    const size_t *offset; /* offsets of the sequences of the whole batch */
    float *sinks;         /* [n_layers][n_heads]; NULL: the model has none */
    /* Rows of one layer of whole sequences, and their attention output. */
    float *whole[4], *out;
} kvd_kept_prompts;

/*
 * Returns the number of prompt rows of a sequence of n tokens; short sequences have all rows but
 * the last.
 */
size_t kvd_prompt_rows(size_t prompt, size_t n);
/* Returns the bytes of memory that one kept prompt token takes. */
size_t kvd_kept_prompts_row_bytes(const kvd_config *c);

/*
 * Allocates room for `rows` rows of prompts and for batches of max_tokens. The caller must call
 * kvd_kept_prompts_release after a failure too.
 */
int kvd_kept_prompts_init(kvd_kept_prompts *p, const kvd_config *c, size_t prompt, size_t rows,
                          size_t max_tokens, kvd_err *err);
void kvd_kept_prompts_release(kvd_kept_prompts *p);

/*
 * Callback for `record` of kvd_capture in an uncompressed run, which must have k_pre; ctx is a
 * kvd_kept_prompts.
 */
int kvd_kept_prompts_save(void *ctx, const kvd_attention_in *in, kvd_err *err);

/*
 * Passes the kept Q, K and V of a batch's prompts, layer by layer, to an attention hook that
 * expects the prompts only.
 */
int kvd_kept_prompts_show(kvd_kept_prompts *p, const kvd_batch *prompts, kvd_attention *hook,
                          kvd_err *err);

/*
 * Runs a batch of whole sequences whose prompts are kept, up to the final norm, as kvd_forward_run
 * does. Rows of hidden [n_tokens][d_model] that belong to prompts are not set. `inner` is called
 * with whole sequences.
 */
int kvd_kept_prompts_run(kvd_kept_prompts *p, kvd_forward *f, const kvd_batch *b,
                         kvd_attention *inner, float *hidden, kvd_err *err);

#define KVD_NOT_KEPT SIZE_MAX

/*
 * Final hidden rows with the tokens to predict: row i predicts target[i] and counts for sequence[i]
 * of the batch, or for no sequence if that is -1.
 */
typedef struct {
    size_t n;
    const uint32_t *target;
    const int *sequence;
    kvd_prediction_change *each; /* [n] set by `score` of other rows; NULL: not wanted */
} kvd_predictions;

typedef struct kvd_model_runner kvd_model_runner;
struct kvd_model_runner {
    const kvd_config *config;
    size_t max_tokens, max_len; /* largest number of tokens of a batch, and of a sequence */
    /* Number of rows whose logits are in memory at one time. */
    size_t piece;
    /* Number type in which the forward pass computes. */
    kvd_dtype compute;
    /*
     * Row of the outputs kept by keep_attention at which the current batch begins; set by the
     * caller.
     */
    size_t kept_row;
    /*
     * Row of the prompts kept by keep_prompts at which the current batch begins; KVD_NOT_KEPT: no
     * prompt of this batch is kept. Set by the caller.
     */
    size_t kept_prompt;

    /*
     * rows_new returns memory for n rows, which rows_free frees; on failure it returns NULL and
     * fills *err. spare returns the number of bytes that rows may take without exhausting the
     * memory that later calls need.
     */
    float *(*rows_new)(kvd_model_runner *r, size_t n, const char *what, kvd_err *err);
    void (*rows_free)(kvd_model_runner *r, float *rows);
    size_t (*spare)(const kvd_model_runner *r);

    /*
     * After this call the attention outputs of every `reference` are kept, at row kept_row of
     * n_tokens rows, for the errors of plans that run the same batch. May be called once.
     * attention_bytes returns the bytes of a row.
     */
    int (*keep_attention)(kvd_model_runner *r, size_t n_tokens, kvd_err *err);
    size_t (*attention_bytes)(const kvd_model_runner *r);
    void (*drop_attention)(kvd_model_runner *r);

    /*
     * After this call every `reference` keeps the K and V of its prompts: the first `prompt` rows
     * of every sequence, or all rows but the last of a shorter one; n_rows rows in all. Plans that
     * run the same batch then begin after the prompts and leave the prompts' rows of `hidden`
     * unset. May be called once. NULL if the runner always runs whole sequences. prompt_bytes
     * returns the bytes of a row.
     */
    int (*keep_prompts)(kvd_model_runner *r, size_t prompt, size_t n_rows, kvd_err *err);
    size_t (*prompt_bytes)(const kvd_model_runner *r);

    /*
     * `reference` runs the uncompressed model up to the final norm; `below` writes the residual
     * stream that enters `layer`. Messages are those of kvd_forward_run.
     */
    int (*reference)(kvd_model_runner *r, const kvd_batch *b, float *hidden, kvd_err *err);
    int (*below)(kvd_model_runner *r, const kvd_batch *b, int layer, float *residual, kvd_err *err);

    /*
     * Makes an open plan ready to run: checks that this runner can run it, and copies its matrices
     * to the device. plan_unload frees the copies; NULL means plans need none. It accepts plans
     * that were not loaded.
     */
    int (*plan_load)(kvd_model_runner *r, kvd_plan *plan, kvd_err *err);
    void (*plan_unload)(kvd_model_runner *r, kvd_plan *plan);
    /*
     * Returns the name of the engine that computes the attention of the plan; valid until
     * plan_unload.
     */
    const char *(*plan_engine)(const kvd_plan *plan);
    /*
     * Runs a batch through the cache of the plan, from `residual` at first_layer on unless that is
     * 0. Adds to the account, and to the sums of *error unless it is NULL. Returns after the run
     * has ended.
     */
    int (*plan_run)(kvd_model_runner *r, const kvd_batch *b, const kvd_plan *plan, int first_layer,
                    const float *residual, float *hidden, kvd_cache_account *account,
                    kvd_attention_error *error, kvd_err *err);

    /*
     * Returns true if the plan changes nothing, so that its run of a batch would equal that of
     * `reference` to the last bit. Nothing runs then; the account and *error receive what plan_run
     * would have added. If error is not NULL, the reference's attention must be kept. NULL means
     * never.
     */
    bool (*plan_is_reference)(kvd_model_runner *r, const kvd_batch *b, const kvd_plan *plan,
                              kvd_cache_account *account, kvd_attention_error *error);

    /* Copies `from` [n] to `to` [n]; they do not overlap. */
    int (*rows_copy)(kvd_model_runner *r, float *to, const float *from, size_t n, kvd_err *err);
    /* Sets *yes to true if any bit of a [n] differs from that of b [n]. */
    int (*differ)(kvd_model_runner *r, const float *a, const float *b, size_t n, bool *yes,
                  kvd_err *err);

    /*
     * reference_logits computes the logits of n <= piece rows of the uncompressed model, which stay
     * until the next call. score adds the quality of these logits (rows NULL), or of other rows'
     * logits against them, to per_sequence[sequence[i]], as kvd_quality_add does. logit_change sets
     * *largest to max |u' - u| between other rows' logits u' and the uncompressed logits u,
     * infinite if one is NaN, and adds sum u^2 to *sum2.
     */
    int (*reference_logits)(kvd_model_runner *r, const float *rows, size_t n, kvd_err *err);
    int (*score)(kvd_model_runner *r, const float *rows, const kvd_predictions *p,
                 kvd_quality *per_sequence, kvd_err *err);
    int (*logit_change)(kvd_model_runner *r, const float *rows, size_t n, double *largest,
                        double *sum2, kvd_err *err);

    /* Returns a description of the runner for provenance; valid until free. */
    const char *(*describe)(const kvd_model_runner *r);
    void (*free)(kvd_model_runner *r);
};

/*
 * Returns a runner on the CPU. On failure returns NULL and fills *err. The checkpoint is borrowed
 * and must stay open.
 */
kvd_model_runner *kvd_runner_cpu(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                                 kvd_err *err);
#ifdef KVD_CUDA
/*
 * Returns a runner on the current device; `compute` is KVD_F32 or KVD_BF16. On failure returns NULL
 * and fills *err. The checkpoint is borrowed and must stay open.
 */
kvd_model_runner *kvd_runner_cuda(const kvd_checkpoint *c, kvd_dtype compute, size_t max_tokens,
                                  size_t max_len, kvd_err *err);
#endif

#endif
