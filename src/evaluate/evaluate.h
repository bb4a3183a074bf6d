/*
 * Runs a corpus through the uncompressed model and through choices of widths, and sums the quality
 * of predictions per sequence. The uncompressed run is dense attention; a choice is the same
 * forward pass with a cache in the attention hook. A kvd_model_runner runs them, on the CPU or on a
 * GPU.
 *
 * For each batch, the evaluator runs the uncompressed model once and every choice once. It then
 * computes the output head in pieces of rows, the uncompressed logits once for all choices. Only
 * rows that are scored have logits: the rows after the prompt that predict a token of the text.
 * With keep_reference the scored final hidden rows of the uncompressed run stay in memory, and
 * later calls run only the choices; if they do not fit, the uncompressed model runs again. It also
 * runs again for attention errors, unless kvd_evaluator_keep_attention found room for the attention
 * outputs of all tokens. If the runner supports it and memory allows, choices begin after the
 * prompts, which the uncompressed run has computed.
 */
#ifndef KVD_EVALUATE_EVALUATE_H
#define KVD_EVALUATE_EVALUATE_H

#include <stdbool.h>

#include "common/progress.h"
#include "evaluate/model_runner.h"
#include "model/text/corpus.h"

typedef struct {
    kvd_model_runner *runner; /* borrowed */
    const kvd_config *config;
    kvd_corpus *corpus;
    /* number of prompt tokens of each sequence; only predictions after the prompt are scored */
    size_t prompt;
    size_t n_sequences, n_tokens;
    /*
     * Number of texts that have equal weight (kvd_quality_compare_texts); 0 means sequences are
     * weighted by their tokens.
     */
    size_t n_texts;
    /* [n_texts + 1] First sequence of each text; borrowed. */
    const size_t *text_first;
    /* Number of tokens after the prompts, over all sequences. */
    size_t n_steps;
    /*
     * Number of scored rows: the tokens after the prompts, except the last of each sequence, whose
     * next token is unknown.
     */
    size_t n_scored;
    /* quality of the uncompressed model, [n_sequences]; set by the first kvd_evaluate */
    kvd_quality *reference;
    bool reference_known;
    /* Seconds of the uncompressed model's forward passes. */
    double reference_seconds;
    /*
     * Bytes of the uncompressed hidden rows that keep_reference could not keep in memory; 0 if they
     * fit.
     */
    size_t bytes_not_kept;
    /* private */
    bool keeps_attention; /* true if the attention outputs of all tokens are kept */
    enum { KVD_PROMPTS_AGAIN, KVD_PROMPTS_OF_BATCH, KVD_PROMPTS_OF_ALL } keeps_prompts;
    /* hidden rows of the uncompressed model after the final norm, [n_scored][d_model], or NULL */
    float *hidden;
    size_t *prompt_at; /* [n_sequences + 1] rows of prompts before each sequence */
    size_t *scored_at; /* [n_sequences + 1] scored rows before each sequence */
    uint32_t *id;      /* token ids of one batch */
    size_t *offset;
    uint32_t *target; /* targets of the scored rows of one batch, and the sequences of these rows */
    int *sequence;
    float *batch_hidden; /* hidden rows of all tokens of one run */
    float *batch_scored; /* scored rows of the uncompressed run */
} kvd_evaluator;

/*
 * Initialises an evaluator. If prompt is 0, every row is scored. Fails if no sequence is at least
 * two tokens longer than the prompt.
 */
int kvd_evaluator_init(kvd_evaluator *e, kvd_model_runner *runner, kvd_corpus *corpus,
                       size_t prompt, bool keep_reference, kvd_err *err);
/*
 * Keeps the uncompressed attention outputs of all tokens in memory, if they fit. Requires
 * keep_reference; call it before the first kvd_evaluate.
 */
int kvd_evaluator_keep_attention(kvd_evaluator *e, kvd_err *err);
void kvd_evaluator_release(kvd_evaluator *e);

/*
 * Sample standard deviations of the results of a point under several seeds; NaN for results that
 * were not measured.
 */
typedef struct {
    double nll, top1, kl, agree;
} kvd_seed_spread;

/* One setting of a compression method (its cache plan), and the results of evaluating it. */
typedef struct {
    const char *method; /* name for messages */
    /* Overall p of the dims axis, for messages; 0 exactly if the plan removes no dimensions. */
    double overall_p;
    /* open plan, with the prompt of the evaluator; the plan's pointers are borrowed */
    kvd_plan plan;
    /*
     * Model runner that runs this choice, borrowed; NULL means the evaluator's runner. Another
     * runner must be of the same shape, output head and kind of memory, and may have other weights.
     */
    kvd_model_runner *runner;
    double weight_bytes; /* bytes of the weights of the model that ran, for result files */
    /* results */
    kvd_quality *per_sequence; /* [n_sequences] */
    /* [n_each] of all scored rows in the order of the sequences; NULL in means over seeds */
    kvd_prediction_change *each;
    size_t n_each;
    kvd_attention_error error; /* zeroed unless asked for */
    kvd_cache_account account;
    double seconds; /* seconds of the forward passes */
    /*
     * Number of seeds over which the results are means (eval_rows.c), with their spread; 0 or 1: a
     * single run.
     */
    size_t n_seeds;
    kvd_seed_spread spread;
    /* True if some final hidden value of a scored row differs from the uncompressed model's. */
    bool differs;
    /* True if the plan equals the uncompressed cache; the choice was then not run. */
    bool is_reference;
    /* Name of the engine that computed the attention of this choice, such as "CPU, f32". */
    char engine[96];
    /* private */
    float *hidden; /* scored rows of one batch */
} kvd_choice;

/*
 * Evaluates all choices over the corpus. first_layer: choices cut nothing below it, so their runs
 * start there from the uncompressed stream; 0 in general. Fails, naming method, p and sequence, on
 * non-finite numbers, when a cache's account does not show that every sequence and layer was
 * compressed to the widths, and when a choice that removes dimensions leaves every prediction
 * exactly as it was. Results are allocated; kvd_choice_release.
 */
int kvd_evaluate(kvd_evaluator *e, kvd_choice *choice, size_t n, int first_layer,
                 bool attention_errors, kvd_progress *progress, kvd_err *err);
void kvd_choice_release(kvd_choice *c);

/*
 * Fills e->reference, the scores of the uncompressed model. Runs that model if no choice was
 * evaluated before.
 */
int kvd_evaluator_know_reference(kvd_evaluator *e, kvd_err *err);

/*
 * Compares the prediction quality of a choice with that of the uncompressed model. Texts are
 * weighted as the evaluator specifies.
 */
int kvd_evaluator_compare(const kvd_evaluator *e, const kvd_choice *c, uint64_t seed,
                          kvd_quality_summary *out, kvd_err *err);

/*
 * Checks a method before it is evaluated: projections at full width must give the uncompressed
 * logits on the first batch. Sets *error to max |difference| / rms(uncompressed logits) and fails
 * if it is above the tolerance.
 *
 * Tolerance in float32: rotating costs each of the four products of a head a relative rounding
 * error of about sqrt(d_head) 2^-24 (1e-6); scores of size s turn that into a relative error of s
 * 1e-6 of a probability, and the errors of the layers add up. 1e-3 leaves two orders of magnitude
 * for s and for the layers, and a wrong sign, transpose or head gives an error of order 1. Left and
 * right matrices multiply rounding by the condition of the second moments they come from, for which
 * kvd_full_rank_tolerance allows 1e-2. A pass in bf16 rounds every product to 2^-9, whatever the
 * hook computes: the error is 0.03 in a model of 6 layers and grows as the square root of their
 * number; 0.25 leaves twice that at 80 layers.
 */
int kvd_evaluate_full_rank(kvd_evaluator *e, const kvd_dims *full, double tolerance, double *error,
                           kvd_err *err);
double kvd_full_rank_tolerance(const kvd_dims_method *m, kvd_dtype compute);

#endif
