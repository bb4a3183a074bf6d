/*
 * Measures how much compression of the KV cache changes the predictions of a model. Runs the same
 * texts through the uncompressed model and through compressed models, and compares the logits.
 *
 * A position is scored if it is after the prompt and has a next token.
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
    /* Number of prompt tokens of each sequence; only predictions after the prompt are scored. */
    size_t prompt;
    size_t n_sequences, n_tokens;
    /* Number of texts that have equal weight in the means; 0 weights sequences by their tokens. */
    size_t n_texts;
    /* Index of the first sequence of each text: [n_texts + 1], borrowed. */
    const size_t *text_first;
    size_t n_steps; /* number of tokens after the prompts, over all sequences */
    /*
     * Number of scored predictions. The last token of a sequence is not scored, because its next
     * token is unknown.
     */
    size_t n_scored;
    /*
     * Prediction quality of the uncompressed model, [n_sequences]; set by the first kvd_evaluate.
     */
    kvd_quality *reference;
    bool reference_known;
    double reference_seconds;
    /*
     * Bytes of the uncompressed model's hidden states that did not fit into memory. If it is above
     * 0, every call runs the uncompressed model again.
     */
    size_t bytes_not_kept;
    /* Number of prompt tokens in all sequences before sequence i: [n_sequences + 1]. */
    size_t *prompt_at;
    /* Private fields follow. */
    bool keeps_attention;
    enum { KVD_PROMPTS_AGAIN, KVD_PROMPTS_OF_BATCH, KVD_PROMPTS_OF_ALL } keeps_prompts;
    /*
     * Final hidden states of the uncompressed model at the scored positions, [n_scored][d_model];
     * NULL if not kept.
     */
    float *hidden;
    /* Number of scored positions in all sequences before sequence i: [n_sequences + 1]. */
    size_t *scored_at;
    uint32_t *id;
    size_t *offset;
    /* Next token in the text, and index of the sequence, for each scored position of a batch. */
    uint32_t *target;
    int *sequence;
    float *batch_hidden;
    float *batch_scored;
} kvd_evaluator;

/*
 * Initialises an evaluator. Only predictions after the first `prompt` tokens of a sequence are
 * scored. If keep_reference is true, the final hidden states of the uncompressed model stay in
 * memory if they fit, and later calls of kvd_evaluate do not run it again. Fails if no sequence has
 * at least two tokens more than the prompt.
 */
int kvd_evaluator_init(kvd_evaluator *e, kvd_model_runner *runner, kvd_corpus *corpus,
                       size_t prompt, bool keep_reference, kvd_err *err);
/*
 * Keeps the attention outputs of the uncompressed model for all tokens in memory, if they fit.
 * Requires keep_reference. The caller must call it before the first kvd_evaluate.
 */
int kvd_evaluator_keep_attention(kvd_evaluator *e, kvd_err *err);
void kvd_evaluator_release(kvd_evaluator *e);

/* Standard deviations over random seeds of the mean results; NaN if not measured. */
typedef struct {
    double nll, top1, kl, agree;
} kvd_seed_spread;

/* A compression setting (method with parameters) and its results. */
typedef struct {
    const char *method;
    /* Removed fraction of the dimensions, for messages; exactly 0 if the method removes none. */
    double overall_p;
    /*
     * Compression plan: how the cache compresses. It must be open with the evaluator's number of
     * prompt tokens. Pointers in the plan are borrowed.
     */
    kvd_plan plan;
    /*
     * Borrowed runner of the model for this setting. NULL means the runner of the evaluator
     * (kvd_evaluator.runner). Another runner may have other weights, but must have the same model
     * shape, output head and kind of memory (host or GPU).
     */
    kvd_model_runner *runner;
    double weight_bytes;
    /* The fields from here on are filled by kvd_evaluate. */
    kvd_quality *per_sequence; /* prediction quality of each sequence: [n_sequences] */
    /*
     * Change of each scored prediction from the uncompressed model, [n_each]; NULL if the results
     * are means over seeds.
     */
    kvd_prediction_change *each;
    size_t n_each;
    kvd_attention_error error; /* errors of attention outputs; zero if not measured */
    kvd_cache_account account;
    double seconds;
    /* Number of random seeds over which the results are means; 0 or 1 means a single run. */
    size_t n_seeds;
    kvd_seed_spread spread;
    /*
     * True if a final hidden state at a scored position differs from that of the uncompressed
     * model.
     */
    bool differs;
    /*
     * True if nothing is compressed, and the results are copies of those of the uncompressed model.
     */
    bool is_reference;
    /* Name of the engine that computed the attention, such as "CPU, f32". */
    char engine[96];
    float *hidden;
} kvd_choice;

/*
 * Evaluates n compression settings over all texts. `first_layer` is the first compressed layer. If
 * it is above 0, the runs start in that layer, from the hidden states of the uncompressed model.
 * `attention_errors` asks for errors of attention outputs; the uncompressed model then runs again
 * unless kvd_evaluator_keep_attention kept its outputs.
 *
 * Fails if a number is not finite, or if removing dimensions changes no prediction at all. Fails
 * also if a cache was not called for a layer or sequence, or kept a wrong number of dimensions. The
 * caller releases each result with kvd_choice_release.
 */
int kvd_evaluate(kvd_evaluator *e, kvd_choice *choice, size_t n, int first_layer,
                 bool attention_errors, kvd_progress *progress, kvd_err *err);
void kvd_choice_release(kvd_choice *c);

/* Makes sure that e->reference is set. Runs the uncompressed model if necessary. */
int kvd_evaluator_know_reference(kvd_evaluator *e, kvd_err *err);

/*
 * Compares the prediction quality of a setting with that of the uncompressed model. If e->n_texts
 * is above 0, every text has equal weight. If it is 0, sequences are weighted by their tokens.
 */
int kvd_evaluator_compare(const kvd_evaluator *e, const kvd_choice *c, uint64_t seed,
                          kvd_quality_summary *out, kvd_err *err);

/*
 * Checks projections that keep all dimensions: for the first batch they must give the same logits
 * as the uncompressed model, apart from rounding. Sets *error to max |difference| /
 * rms(uncompressed logits). Fails if *error is above `tolerance`.
 *
 * kvd_full_rank_tolerance returns a suitable tolerance. A wrong sign, transpose or head gives an
 * error of order 1.
 * float32, rotations: 1e-3, because a rotation adds a rounding error of about 1e-6 to each product.
 * float32, other matrices: 1e-2. They multiply rounding errors by the condition number of X^T X.
 * bf16: 0.25. The measured error is 0.03 in 6 layers and grows as the square root of the layers.
 */
int kvd_evaluate_full_rank(kvd_evaluator *e, const kvd_dims *full, double tolerance, double *error,
                           kvd_err *err);
double kvd_full_rank_tolerance(const kvd_dims_method *m, kvd_dtype compute);

#endif
