/*
 * What runs the model for kvdim-eval: the uncompressed model, choices of widths, and the operations that touch their rows. One
 * on the CPU (runner_cpu.c), one on a GPU (cuda/runner_cuda.c). evaluate.c decides which batches go through what.
 *
 * "Rows" are [n][d_model] float32 (final hidden rows, or the residual stream) in the runner's memory, the host's or the device's. Callers
 * step through them and hand them back; they never read them. Logits stay with the runner.
 */
#ifndef KVD_ANALYSIS_MODEL_RUNNER_H
#define KVD_ANALYSIS_MODEL_RUNNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "analysis/attention_error.h"
#include "analysis/quality.h"
#include "methods/cache.h"
#include "model/forward.h"

#define KVD_NOT_KEPT SIZE_MAX

/* One plan made ready to run; each runner has its own. */
typedef struct kvd_runner_cut kvd_runner_cut;

/* Rows and what they predict: row i predicts target[i] and counts for sequence[i] of the batch, for none when that is -1. */
typedef struct {
    size_t n;
    const uint32_t *target;
    const int *sequence;
} kvd_predictions;

typedef struct kvd_model_runner kvd_model_runner;
struct kvd_model_runner {
    const kvd_config *config;
    size_t max_tokens, max_len; /* of a batch, of a sequence               */
    size_t piece;               /* rows whose logits exist at one time     */
    kvd_dtype compute;          /* what the pass computes in               */
    size_t
        kept_row; /* of what keep_attention keeps: where the rows of the batch at hand begin; set by the caller */
    size_t kept_prompt; /* likewise of what keep_prompts keeps; KVD_NOT_KEPT: nothing of this batch */

    /* NULL with *err. spare: bytes that rows may take without harm to what comes later. */
    float *(*rows_new)(kvd_model_runner *r, size_t n, const char *what, kvd_err *err);
    void (*rows_free)(kvd_model_runner *r, float *rows);
    size_t (*spare)(const kvd_model_runner *r);

    /* From then on the attention outputs of every `reference` are kept at kept_row of n_tokens rows, for errors of cuts of the same
     * batch. Once. attention_bytes: of a row. */
    int (*keep_attention)(kvd_model_runner *r, size_t n_tokens, kvd_err *err);
    size_t (*attention_bytes)(const kvd_model_runner *r);
    void (*drop_attention)(kvd_model_runner *r);

    /*
     * From then on every `reference` keeps of its prompts (the first `prompt` rows of every sequence, of shorter ones all but the last) what
     * runs of cuts of the same batch need, so that these begin behind them and leave rows of prompts in `hidden` unset; n_rows rows in
     * all. Once; NULL: this runner runs whole sequences. prompt_bytes: of a row.
     */
    int (*keep_prompts)(kvd_model_runner *r, size_t prompt, size_t n_rows, kvd_err *err);
    size_t (*prompt_bytes)(const kvd_model_runner *r);

    /* The uncompressed model to the final norm; and the residual stream that enters `layer`. Messages as kvd_forward_run's. */
    int (*reference)(kvd_model_runner *r, const kvd_batch *b, float *hidden, kvd_err *err);
    int (*below)(kvd_model_runner *r, const kvd_batch *b, int layer, float *residual, kvd_err *err);

    /* The plan is open, and borrowed until cut_free. NULL with *err: also when this runner cannot do what it says. */
    kvd_runner_cut *(*cut_new)(kvd_model_runner *r, const kvd_plan *plan, kvd_err *err);
    void (*cut_free)(kvd_model_runner *r, kvd_runner_cut *cut);
    /* What computes the attention of this cut, for result files; valid until cut_free. */
    const char *(*cut_engine)(const kvd_runner_cut *cut);
    /* A run through a cache, from `residual` at first_layer on when that is not 0. The account is added to; so are the sums of
     * *error when it is not NULL. Returns after the run has ended. */
    int (*cut_run)(kvd_model_runner *r, const kvd_batch *b, kvd_runner_cut *cut, int first_layer,
                   const float *residual, float *hidden, kvd_cache_account *account,
                   kvd_attention_error *error, kvd_err *err);

    /* Whether a cut's run of a batch is that of `reference` to the last bit, since it changes nothing: what cut_run would have added to the
     * account and to *error is added, and nothing runs. The reference's attention is kept where error is not NULL. NULL: never. */
    bool (*cut_is_reference)(kvd_model_runner *r, const kvd_batch *b, const kvd_runner_cut *cut,
                             kvd_cache_account *account, kvd_attention_error *error);

    /* to [n] = from [n]; they do not overlap. */
    int (*rows_copy)(kvd_model_runner *r, float *to, const float *from, size_t n, kvd_err *err);
    /* Whether some bit of n rows differs. */
    int (*differ)(kvd_model_runner *r, const float *a, const float *b, size_t n, bool *yes, kvd_err *err);

    /*
     * Logits of n <= piece rows of the uncompressed model, which stay until the next call; then their quality (rows NULL), or
     * that of other rows against them, added to per_sequence[sequence[i]] as kvd_quality_add does; and how far other
     * rows' logits are from them: max |u' - u|, infinite when one is NaN, and sum u^2, added to *sum2.
     */
    int (*reference_logits)(kvd_model_runner *r, const float *rows, size_t n, kvd_err *err);
    int (*score)(kvd_model_runner *r, const float *rows, const kvd_predictions *p, kvd_quality *per_sequence,
                 kvd_err *err);
    int (*logit_change)(kvd_model_runner *r, const float *rows, size_t n, double *largest, double *sum2,
                        kvd_err *err);

    /* For provenance; valid until free. */
    const char *(*describe)(const kvd_model_runner *r);
    void (*free)(kvd_model_runner *r);
};

/* NULL with *err. The checkpoint is borrowed and must stay open. */
kvd_model_runner *kvd_runner_cpu(const kvd_checkpoint *c, size_t max_tokens, size_t max_len, kvd_err *err);
#ifdef KVD_CUDA
/* On the current device; compute KVD_F32 or KVD_BF16. */
kvd_model_runner *kvd_runner_cuda(const kvd_checkpoint *c, kvd_dtype compute, size_t max_tokens,
                                  size_t max_len, kvd_err *err);
#endif

#endif
