/*
 * Measures how compression of the KV cache changes a model's predictions, by comparing logits on
 * the same texts. Positions after the prompt with a next token are scored.
 */
#ifndef KVD_EVALUATE_EVALUATE_H
#define KVD_EVALUATE_EVALUATE_H

#include <stdbool.h>

#include "common/progress.h"
#include "evaluate/model_runner.h"
#include "model/text/corpus.h"

typedef struct {
    kvd_model_runner *runner;
    const kvd_config *config;
    kvd_corpus *corpus;
    /* Prompt tokens of each sequence; predictions after them are scored. */
    size_t prompt;
    size_t n_sequences, n_tokens;
    /* Texts of equal weight in means; 0 weights sequences by tokens. */
    size_t n_texts;
    /* [n_texts + 1] First sequence of each text, borrowed. */
    const size_t *text_first;
    size_t n_steps; /* tokens after prompts, over all sequences */
    /* Scored predictions; a sequence's last token has none. */
    size_t n_scored;
    /* [n_sequences] Uncompressed prediction quality, set by the first kvd_evaluate. */
    kvd_quality *reference;
    bool reference_known;
    double reference_seconds;
    /*
     * Bytes of uncompressed hidden states that did not fit; above 0, every call reruns the
     * uncompressed model.
     */
    size_t bytes_not_kept;
    /* [n_sequences + 1] Prompt tokens in all sequences before i. */
    size_t *prompt_at;
    /* Private fields follow. */
    bool keeps_attention;
    enum { KVD_PROMPTS_AGAIN, KVD_PROMPTS_OF_BATCH, KVD_PROMPTS_OF_ALL } keeps_prompts;
    /* [n_scored][d_model] Uncompressed final hidden states; NULL if not kept. */
    float *hidden;
    /* [n_sequences + 1] Scored positions in all sequences before i. */
    size_t *scored_at;
    uint32_t *id;
    size_t *offset;
    /* Next token, and sequence, of each scored position of a batch. */
    uint32_t *target;
    int *sequence;
    float *batch_hidden;
    float *batch_scored;
} kvd_evaluator;

/*
 * Scores predictions after the first `prompt` tokens. keep_reference: keeps uncompressed final
 * hidden states if they fit, so that the model runs once. Fails if no sequence has two tokens after
 * the prompt.
 */
int kvd_evaluator_init(kvd_evaluator *e, kvd_model_runner *runner, kvd_corpus *corpus,
                       size_t prompt, bool keep_reference, kvd_err *err);
/*
 * Keeps uncompressed attention outputs in memory, if they fit. Requires keep_reference; call before
 * the first kvd_evaluate.
 */
int kvd_evaluator_keep_attention(kvd_evaluator *e, kvd_err *err);
void kvd_evaluator_release(kvd_evaluator *e);

/* Standard deviations of means over random seeds; NaN if not measured. */
typedef struct {
    double nll, top1, kl, agree;
} kvd_seed_spread;

/* A compression setting (method with parameters) and its results. */
typedef struct {
    const char *method;
    /* Removed fraction of dimensions, for messages; 0 if none is removed. */
    double overall_p;
    /* Compression plan, open with the evaluator's prompt length. Its pointers are borrowed. */
    kvd_plan plan;
    /*
     * Borrowed; NULL: kvd_evaluator.runner. Other weights are allowed, with equal shape, output
     * head and kind of memory.
     */
    kvd_model_runner *runner;
    double weight_bytes;
    /* The fields from here on are filled by kvd_evaluate. */
    kvd_quality *per_sequence; /* [n_sequences] */
    /* [n_each] Change of each scored prediction; NULL for means over seeds. */
    kvd_prediction_change *each;
    size_t n_each;
    kvd_attention_error error; /* errors of attention outputs; zero if not measured */
    kvd_cache_account account;
    double seconds;
    /* Seeds over which results are means; 0 or 1: a single run. */
    size_t n_seeds;
    kvd_seed_spread spread;
    /* True if a scored final hidden state differs from the uncompressed one. */
    bool differs;
    /* True if nothing is compressed and results are copies of the uncompressed ones. */
    bool is_reference;
    /* Name of the attention engine, such as "CPU, f32". */
    char engine[96];
    float *hidden;
} kvd_choice;

/*
 * Evaluates n settings over all texts. first_layer > 0: runs start there, from uncompressed hidden
 * states. attention_errors: reruns the uncompressed model unless kvd_evaluator_keep_attention kept
 * outputs.
 * Fails for non-finite numbers, for removed dimensions without any effect, and for caches that
 * missed calls or kept wrong dimensions. The caller releases each result with kvd_choice_release.
 */
int kvd_evaluate(kvd_evaluator *e, kvd_choice *choice, size_t n, int first_layer,
                 bool attention_errors, kvd_progress *progress, kvd_err *err);
void kvd_choice_release(kvd_choice *c);

/* Makes sure that e->reference is set, running the uncompressed model if necessary. */
int kvd_evaluator_know_reference(kvd_evaluator *e, kvd_err *err);

/*
 * Compares a setting with the uncompressed model. e->n_texts > 0: texts have equal weight; 0:
 * sequences are weighted by tokens.
 */
int kvd_evaluator_compare(const kvd_evaluator *e, const kvd_choice *c, uint64_t seed,
                          kvd_quality_summary *out, kvd_err *err);

/*
 * Checks that projections of all dimensions keep the first batch's logits. *error: max |difference|
 * / rms(uncompressed logits). Fails above `tolerance`.
 *
 * kvd_full_rank_tolerance: a wrong sign, transpose or head gives errors of order 1.
 * float32 rotations: 1e-3, since rotating rounds products by about 1e-6.
 * float32 others: 1e-2, for the condition number of X^T X.
 * bf16: 0.25; measured 0.03 in 6 layers, growing as their square root.
 */
int kvd_evaluate_full_rank(kvd_evaluator *e, const kvd_dims *full, double tolerance, double *error,
                           kvd_err *err);
double kvd_full_rank_tolerance(const kvd_dims_method *m, kvd_dtype compute);

#endif
