/*
 * Interface of kvdim-eval to the models: runs the uncompressed model and compressed settings on the
 * CPU (runner_cpu.c) or on a GPU (cuda/runner_cuda.c). evaluate.c decides which batches run through
 * which settings.
 *
 * "Rows" are float32 vectors [n][d_model], one per token: final hidden states, or the residual
 * stream. They are in host or GPU memory. Callers compute addresses of rows and pass them back;
 * they never read them. Logits stay inside the runner.
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
 * Q, K and V of the prompts in all layers, recorded from the uncompressed model. Prompt tokens
 * attend to each other uncompressed in every setting, so their Q, K and V are the same in a
 * compressed run. A compressed run therefore computes only the tokens after the prompts. The
 * recorded tensors are put in front of theirs, so that the attention callback of the run sees whole
 * sequences.
 */

typedef struct {
    /* Index of the first recorded prompt token of the current batch; set by the caller. */
    size_t first;
    /* Private fields follow. */
    /*
     * Attention callback of a run that begins after the prompts. It puts the recorded Q, K and V of
     * the prompts in front of those of the run, and calls `inner`.
     */
    kvd_attention hook;
    const kvd_config *config;
    size_t prompt, rows, max_tokens;
    /* Recorded Q, K, V and K before RoPE: [n_layers][rows][values per token]. */
    float *kept[4];
    kvd_attention *inner;
    /* Index of the first token of each sequence within the current batch, prompts included. */
    const size_t *offset;
    /* Attention-sink logits, [n_layers][n_heads]; NULL if the model has none. */
    float *sinks;
    /*
     * Q, K, V and K before RoPE of one layer, and its attention output, for the sequences of a
     * batch with their prompts.
     */
    float *whole[4], *out;
} kvd_kept_prompts;

/*
 * Returns the number of prompt tokens of a sequence of n tokens. A short sequence is all prompt
 * except its last token.
 */
size_t kvd_prompt_rows(size_t prompt, size_t n);
/* Returns the bytes of memory for Q, K and V of one prompt token in all layers. */
size_t kvd_kept_prompts_row_bytes(const kvd_config *c);

/*
 * Allocates memory for `rows` prompt tokens and for batches of max_tokens. The caller must call
 * kvd_kept_prompts_release after a failure too.
 */
int kvd_kept_prompts_init(kvd_kept_prompts *p, const kvd_config *c, size_t prompt, size_t rows,
                          size_t max_tokens, kvd_err *err);
void kvd_kept_prompts_release(kvd_kept_prompts *p);

/*
 * Callback that records Q, K and V of a layer of the uncompressed run, which must also have K
 * before RoPE. `ctx` is a kvd_kept_prompts.
 */
int kvd_kept_prompts_save(void *ctx, const kvd_attention_in *in, kvd_err *err);

/*
 * Passes the recorded Q, K and V of a batch's prompts, layer by layer, to the attention callback
 * `hook`, which expects prompts only.
 */
int kvd_kept_prompts_show(kvd_kept_prompts *p, const kvd_batch *prompts, kvd_attention *hook,
                          kvd_err *err);

/*
 * Runs a batch through the layers and the final norm, as kvd_forward_run does, but computes only
 * the tokens after the prompts, which must have been recorded. *b describes the whole sequences.
 * The attention callback `inner` is called with whole sequences. Only the rows of hidden
 * [n_tokens][d_model] after the prompts are set.
 */
int kvd_kept_prompts_run(kvd_kept_prompts *p, kvd_forward *f, const kvd_batch *b,
                         kvd_attention *inner, float *hidden, kvd_err *err);

#define KVD_NOT_KEPT SIZE_MAX

/*
 * Predictions of the next token from n final hidden states. For the hidden state at index i,
 * target[i] is the right next token, and sequence[i] is the sequence of the batch that the
 * prediction counts for; -1 means none.
 */
typedef struct {
    size_t n;
    const uint32_t *target;
    const int *sequence;
    /*
     * Change of each prediction from the uncompressed model, [n], set by the function `score` for
     * compressed settings; NULL if not wanted.
     */
    kvd_prediction_change *each;
} kvd_predictions;

typedef struct kvd_model_runner kvd_model_runner;
struct kvd_model_runner {
    const kvd_config *config;
    /* Largest number of tokens of a batch, and of a sequence. */
    size_t max_tokens, max_len;
    /* Largest number of token positions whose logits are in memory at one time. */
    size_t piece;
    /* Number type in which the forward pass computes. */
    kvd_dtype compute;
    /*
     * Index of the current batch's first token in the buffer of attention outputs that
     * keep_attention has allocated for several batches. Set by the caller.
     */
    size_t kept_row;
    /*
     * Index of the current batch's first prompt token in the buffer that the function keep_prompts
     * (below) has allocated for the Q, K and V of several batches' prompts. KVD_NOT_KEPT means that
     * no prompt of this batch is kept. Set by the caller.
     */
    size_t kept_prompt;

    /*
     * rows_new returns memory for n hidden states, which rows_free frees; on failure it returns
     * NULL and fills *err. spare returns the number of bytes that hidden states may take without
     * exhausting the memory that later calls need.
     */
    float *(*rows_new)(kvd_model_runner *r, size_t n, const char *what, kvd_err *err);
    void (*rows_free)(kvd_model_runner *r, float *rows);
    size_t (*spare)(const kvd_model_runner *r);

    /*
     * keep_attention allocates a buffer for the attention outputs of n_tokens tokens. From then on
     * every run of the uncompressed model (`reference`) writes its attention outputs there, from
     * token number kept_row of the buffer on. Compressed runs of the same batch are compared with
     * them. May be called once. attention_bytes returns the size of the buffer per token;
     * drop_attention frees it.
     */
    int (*keep_attention)(kvd_model_runner *r, size_t n_tokens, kvd_err *err);
    size_t (*attention_bytes)(const kvd_model_runner *r);
    void (*drop_attention)(kvd_model_runner *r);

    /*
     * keep_prompts allocates a buffer for the Q, K and V of n_rows prompt tokens. From then on
     * every run of the uncompressed model (`reference`) stores those of its prompts there. A prompt
     * is the first `prompt` tokens of a sequence; all but the last token if the sequence is
     * shorter. Compressed runs of the same batch then begin after the prompts, and do not set the
     * elements of `hidden` that belong to prompts. May be called once. NULL if the runner always
     * runs whole sequences.
     *
     * prompt_bytes returns the size of the buffer per token.
     */
    int (*keep_prompts)(kvd_model_runner *r, size_t prompt, size_t n_rows, kvd_err *err);
    size_t (*prompt_bytes)(const kvd_model_runner *r);

    /*
     * `reference` runs the uncompressed model up to the final norm. `below` writes the residual
     * stream that enters `layer` of the uncompressed model. Error messages are those of
     * kvd_forward_run.
     */
    int (*reference)(kvd_model_runner *r, const kvd_batch *b, float *hidden, kvd_err *err);
    int (*below)(kvd_model_runner *r, const kvd_batch *b, int layer, float *residual, kvd_err *err);

    /*
     * plan_load makes an open cache plan (compression setting) ready to run: it checks that this
     * runner can run the plan, and copies the plan's matrices to the GPU. plan_unload frees the
     * copies, and accepts plans that were not loaded. Both are NULL if plans need no copies.
     */
    int (*plan_load)(kvd_model_runner *r, kvd_plan *plan, kvd_err *err);
    void (*plan_unload)(kvd_model_runner *r, kvd_plan *plan);
    /*
     * Returns the name of the engine that computes attention with the cache of a plan (compression
     * setting); valid until plan_unload.
     */
    const char *(*plan_engine)(const kvd_plan *plan);
    /*
     * Runs a batch with the compressed cache of a plan (compression setting). If first_layer is not
     * 0, starts at that layer from the hidden states `residual`. Adds cache sizes to *account and,
     * unless `error` is NULL, attention errors to *error. Returns after the run has ended.
     */
    int (*plan_run)(kvd_model_runner *r, const kvd_batch *b, const kvd_plan *plan, int first_layer,
                    const float *residual, float *hidden, kvd_cache_account *account,
                    kvd_attention_error *error, kvd_err *err);

    /*
     * Returns true if the cache plan (compression setting) compresses nothing, so that its run
     * would equal that of `reference` to the last bit. The caller then need not run it: cache sizes
     * are added to *account and attention errors to *error, as plan_run would. If `error` is not
     * NULL, the attention outputs of the uncompressed model must be kept. A runner that never gives
     * such a guarantee has a NULL pointer here.
     */
    bool (*plan_is_reference)(kvd_model_runner *r, const kvd_batch *b, const kvd_plan *plan,
                              kvd_cache_account *account, kvd_attention_error *error);

    /* Copies n hidden states from `from` to `to`, which must not overlap. */
    int (*rows_copy)(kvd_model_runner *r, float *to, const float *from, size_t n, kvd_err *err);
    /* Sets *yes to true if any bit of the n hidden states `a` differs from those of `b`. */
    int (*differ)(kvd_model_runner *r, const float *a, const float *b, size_t n, bool *yes,
                  kvd_err *err);

    /*
     * Functions on n <= piece final hidden states. The caller calls reference_logits first, then
     * the others any number of times.
     *
     * reference_logits computes the logits of the uncompressed model and keeps them until its next
     * call.
     *
     * `score` adds prediction quality to per_sequence[sequence[i]], as kvd_quality_add does. If
     * `rows` is NULL, it scores the kept logits. Otherwise `rows` are hidden states of a compressed
     * run: `score` computes their logits and compares them with the kept ones.
     *
     * logit_change also compares logits u' of a compressed run with the kept logits u. It sets
     * *largest to max |u' - u| (infinite if one is NaN), and adds the sum of u^2 to *sum2.
     */
    int (*reference_logits)(kvd_model_runner *r, const float *rows, size_t n, kvd_err *err);
    int (*score)(kvd_model_runner *r, const float *rows, const kvd_predictions *p,
                 kvd_quality *per_sequence, kvd_err *err);
    int (*logit_change)(kvd_model_runner *r, const float *rows, size_t n, double *largest,
                        double *sum2, kvd_err *err);

    /* Returns a description of the runner for provenance; valid until `free`. */
    const char *(*describe)(const kvd_model_runner *r);
    void (*free)(kvd_model_runner *r);
};

/*
 * Returns a model runner on the CPU. On failure returns NULL and fills *err. The checkpoint is
 * borrowed and must stay open.
 */
kvd_model_runner *kvd_runner_cpu(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                                 kvd_err *err);
#ifdef KVD_CUDA
/*
 * Returns a model runner on the current GPU; `compute` is KVD_F32 or KVD_BF16. On failure returns
 * NULL and fills *err. The checkpoint is borrowed and must stay open.
 */
kvd_model_runner *kvd_runner_cuda(const kvd_checkpoint *c, kvd_dtype compute, size_t max_tokens,
                                  size_t max_len, kvd_err *err);
#endif

#endif
