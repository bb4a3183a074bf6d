/*
 * Measures how KV cache compression changes a model's predictions, on the same texts. Positions
 * after the prompt with a next token are scored.
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
    /* Prompt tokens of each sequence, not scored. */
    size_t prompt;
    size_t n_sequences, n_tokens;
    /* Texts of equal weight; 0: weights are tokens. */
    size_t n_texts;
    /* [n_texts + 1] First sequence of each text, borrowed. */
    const size_t *text_first;
    size_t n_steps; /* tokens after prompts, over all sequences */
    /* Scored predictions; last tokens have none. */
    size_t n_scored;
    /* [n_sequences] Set by the first kvd_evaluate. */
    kvd_quality *reference;
    bool reference_known;
    double reference_seconds;
    /*
     * Bytes of uncompressed states that did not fit; above 0, every call reruns the uncompressed
     * model.
     */
    size_t bytes_not_kept;
    /* [n_sequences + 1] Prompt tokens before sequence i. */
    size_t *prompt_at;
    /* Private fields follow. */
    bool keeps_attention;
    enum { KVD_PROMPTS_AGAIN, KVD_PROMPTS_OF_BATCH, KVD_PROMPTS_OF_ALL } keeps_prompts;
    /* [n_scored][d_model] Uncompressed final hidden states, or NULL. */
    float *hidden;
    /* [n_sequences + 1] Scored positions before sequence i. */
    size_t *scored_at;
    uint32_t *id;
    size_t *offset;
    /* Next token and sequence of a batch's scored positions. */
    uint32_t *target;
    int *sequence;
    float *batch_hidden;
    float *batch_scored;
} kvd_evaluator;

/*
 * keep_reference: keeps uncompressed final hidden states if they fit, so that the model runs once.
 * Fails if no sequence has two tokens after the prompt.
 */
int kvd_evaluator_init(kvd_evaluator *e, kvd_model_runner *runner, kvd_corpus *corpus,
                       size_t prompt, bool keep_reference, kvd_err *err);
/*
 * Keeps uncompressed attention outputs if they fit. Requires keep_reference; call before
 * kvd_evaluate.
 */
int kvd_evaluator_keep_attention(kvd_evaluator *e, kvd_err *err);
void kvd_evaluator_release(kvd_evaluator *e);

/* Standard deviations over seeds; NaN if not measured. */
typedef struct {
    double nll, top1, kl, agree;
} kvd_seed_spread;

/* A setting (method with parameters) and its results. */
typedef struct {
    const char *method;
    /* Removed fraction of dimensions, for messages. */
    double overall_p;
    /* Open with the evaluator's prompt length; its pointers are borrowed. */
    kvd_plan plan;
    /*
     * Borrowed; NULL: kvd_evaluator.runner. Weights may differ, but not shape, output head or
     * memory.
     */
    kvd_model_runner *runner;
    double weight_bytes;
    /* Filled by kvd_evaluate from here on. */
    kvd_quality *per_sequence; /* [n_sequences] */
    /* [n_each] Change of each prediction; NULL for means. */
    kvd_prediction_change *each;
    size_t n_each;
    kvd_attention_error error; /* errors of attention outputs; zero if not measured */
    kvd_cache_account account;
    double seconds;
    /* Seeds of the means; 0 or 1: a single run. */
    size_t n_seeds;
    kvd_seed_spread spread;
    /* True if a scored hidden state differs from the uncompressed one. */
    bool differs;
    /* True if results are copies of the uncompressed ones. */
    bool is_reference;
    /* Name of the attention engine, such as "CPU, f32". */
    char engine[96];
    float *hidden;
} kvd_choice;

/*
 * Evaluates n settings. first_layer > 0: runs start there, from uncompressed states.
 * attention_errors: reruns the uncompressed model unless outputs were kept.
 * Fails for non-finite numbers, removed dimensions without effect, and caches with missed calls or
 * wrong dimensions. The caller releases results with kvd_choice_release.
 */
int kvd_evaluate(kvd_evaluator *e, kvd_choice *choice, size_t n, int first_layer,
                 bool attention_errors, kvd_progress *progress, kvd_err *err);
void kvd_choice_release(kvd_choice *c);

/* Sets e->reference, running the uncompressed model if necessary. */
int kvd_evaluator_know_reference(kvd_evaluator *e, kvd_err *err);

/* e->n_texts > 0: texts have equal weight; 0: sequences are weighted by tokens. */
int kvd_evaluator_compare(const kvd_evaluator *e, const kvd_choice *c, uint64_t seed,
                          kvd_quality_summary *out, kvd_err *err);

/*
 * Checks that projections of all dimensions keep the first batch's logits: *error = max
 * |difference| / rms(uncompressed). Fails above `tolerance`.
 *
 * kvd_full_rank_tolerance, against errors of order 1 by a wrong sign, transpose or head:
 * float32 rotations: 1e-3; products round by about 1e-6.
 * float32 others: 1e-2, for the condition number of X^T X.
 * bf16: 0.25; measured 0.03 in 6 layers, growing as their square root.
 */
int kvd_evaluate_full_rank(kvd_evaluator *e, const kvd_dims *full, double tolerance, double *error,
                           kvd_err *err);
double kvd_full_rank_tolerance(const kvd_dims_method *m, kvd_dtype compute);

#endif
