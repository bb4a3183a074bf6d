/*
 * Runs texts through the uncompressed model and through settings of compression methods, and sums
 * the quality of predictions per sequence. The uncompressed run uses dense attention. A compressed
 * setting (kvd_choice) is the same forward pass, in which the attention callback reads a compressed
 * cache. A kvd_model_runner does the passes, on the CPU or on a GPU.
 *
 * For each batch, the evaluator runs the uncompressed model once and every setting once. It then
 * computes logits for a limited number of token positions at a time. At each of them, the
 * uncompressed logits are computed once and compared with those of all settings. Only scored
 * positions have logits: those after the prompt that predict a token of the text.
 *
 * With keep_reference the final hidden states of the uncompressed model stay in memory, and later
 * calls run only the settings. If these states do not fit, the uncompressed model runs again in
 * every call. It also runs again for attention errors, unless kvd_evaluator_keep_attention found
 * room for the attention outputs of all tokens. If the runner supports it and memory allows,
 * settings begin after the prompts, which the uncompressed run has computed.
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
    /*
     * Number of texts that have equal weight in the means (kvd_quality_compare_texts). 0 means that
     * sequences are weighted by their tokens.
     */
    size_t n_texts;
    /* Index of the first sequence of each text: [n_texts + 1], borrowed. */
    const size_t *text_first;
    /* Number of tokens after the prompts, over all sequences. */
    size_t n_steps;
    /*
     * Number of scored predictions: one per token after the prompts, except the last of each
     * sequence, whose next token is unknown.
     */
    size_t n_scored;
    /*
     * Quality of the uncompressed model per sequence, [n_sequences]; set by the first kvd_evaluate.
     */
    kvd_quality *reference;
    bool reference_known;
    /* Seconds of the forward passes of the uncompressed model. */
    double reference_seconds;
    /*
     * Bytes of the uncompressed model's hidden states that did not fit into memory; 0 if they fit.
     */
    size_t bytes_not_kept;
    /* Private fields follow. */
    bool keeps_attention; /* true if the attention outputs of all tokens are in memory */
    enum { KVD_PROMPTS_AGAIN, KVD_PROMPTS_OF_BATCH, KVD_PROMPTS_OF_ALL } keeps_prompts;
    /*
     * Final hidden states of the uncompressed model at the scored positions, [n_scored][d_model];
     * NULL if not kept.
     */
    float *hidden;
    /* Number of prompt tokens in the sequences before each sequence: [n_sequences + 1]. */
    size_t *prompt_at;
    /* Number of scored positions in the sequences before each sequence: [n_sequences + 1]. */
    size_t *scored_at;
    uint32_t *id; /* token ids of one batch */
    size_t *offset;
    /*
     * For each scored position of a batch: the next token of the text, and the index of the
     * sequence.
     */
    uint32_t *target;
    int *sequence;
    float *batch_hidden; /* final hidden states of all tokens of a batch */
    /* Final hidden states of the uncompressed model at the scored positions of a batch. */
    float *batch_scored;
} kvd_evaluator;

/*
 * Initialises an evaluator. Predictions are scored from token `prompt` on; if it is 0, all are.
 * Fails if no sequence is at least two tokens longer than the prompt.
 */
int kvd_evaluator_init(kvd_evaluator *e, kvd_model_runner *runner, kvd_corpus *corpus,
                       size_t prompt, bool keep_reference, kvd_err *err);
/*
 * Keeps the attention outputs of the uncompressed model for all tokens in memory, if they fit.
 * Requires keep_reference; the caller must call it before the first kvd_evaluate.
 */
int kvd_evaluator_keep_attention(kvd_evaluator *e, kvd_err *err);
void kvd_evaluator_release(kvd_evaluator *e);

/*
 * Sample standard deviations, over several random seeds, of the mean results of one setting. NaN
 * for results that were not measured.
 */
typedef struct {
    double nll, top1, kl, agree;
} kvd_seed_spread;

/* One setting of a compression method (its cache plan), and the results of evaluating it. */
typedef struct {
    const char *method; /* name of the method, for messages */
    /* Removed fraction of dimensions p, for messages; exactly 0 if no dimensions are removed. */
    double overall_p;
    /*
     * Cache plan: the compression that the cache applies. It was opened with the evaluator's number
     * of prompt tokens; pointers in it are borrowed.
     */
    kvd_plan plan;
    /*
     * Model runner to use, borrowed; NULL means the evaluator's runner. Another runner must have
     * the same model shape, output head and kind of memory, and may have other weights.
     */
    kvd_model_runner *runner;
    /* Bytes of the weights of the model that ran, for result files. */
    double weight_bytes;
    /* Results of the evaluation follow. */
    kvd_quality *per_sequence; /* prediction quality of each sequence: [n_sequences] */
    /*
     * Change by compression of each scored prediction, relative to the uncompressed model:
     * [n_each], in the order of the sequences. NULL if the results are means over seeds.
     */
    kvd_prediction_change *each;
    size_t n_each;
    kvd_attention_error error; /* errors of attention outputs; zero unless asked for */
    kvd_cache_account account;
    double seconds; /* seconds of the forward passes of this setting */
    /*
     * Number of random seeds over which the results are means, with their spread. 0 or 1 means a
     * single run.
     */
    size_t n_seeds;
    kvd_seed_spread spread;
    /*
     * True if some final hidden value at a scored position differs from that of the uncompressed
     * model.
     */
    bool differs;
    /*
     * True if the setting compresses nothing, so that the results of the uncompressed model were
     * copied.
     */
    bool is_reference;
    /* Name of the engine that computed the attention, such as "CPU, f32". */
    char engine[96];
    /* Private field follows. */
    float *hidden; /* final hidden states at the scored positions of a batch */
} kvd_choice;

/*
 * Evaluates n settings of compression methods over all texts. `first_layer` is the first layer that
 * the settings compress; if they compress all layers, it is 0. If it is above 0, the runs start in
 * that layer, from the residual stream of the uncompressed model. If `attention_errors`, also
 * compares attention outputs.
 *
 * Fails, naming method, p and sequence, in three cases: a number is not finite; a cache missed a
 * layer or sequence, or stored another number of dimensions than the setting keeps; a setting that
 * removes dimensions leaves every prediction exactly as it was. The caller releases each result
 * with kvd_choice_release.
 */
int kvd_evaluate(kvd_evaluator *e, kvd_choice *choice, size_t n, int first_layer,
                 bool attention_errors, kvd_progress *progress, kvd_err *err);
void kvd_choice_release(kvd_choice *c);

/*
 * Makes sure that e->reference has the quality of the uncompressed model. Runs that model if no
 * setting was evaluated before.
 */
int kvd_evaluator_know_reference(kvd_evaluator *e, kvd_err *err);

/*
 * Compares the prediction quality of a setting with that of the uncompressed model. If e->n_texts
 * is above 0, every text has equal weight. If it is 0, sequences are weighted by their tokens.
 */
int kvd_evaluator_compare(const kvd_evaluator *e, const kvd_choice *c, uint64_t seed,
                          kvd_quality_summary *out, kvd_err *err);

/*
 * Checks projections before they are used: if they keep all dimensions, the logits of the first
 * batch must be those of the uncompressed model. Sets *error to max |difference| / rms(uncompressed
 * logits), and fails if *error is above `tolerance`.
 *
 * kvd_full_rank_tolerance returns the tolerance for a method and the number type of the forward
 * pass:
 *
 * float32, rotations: 1e-3. A rotation adds a relative rounding error of about sqrt(d_head) 2^-24,
 * or 1e-6, to each product of a head. If attention scores have the size s, the error of a
 * probability is about s times as large. The errors of the layers add up. The factor of 1000
 * between 1e-6 and the tolerance allows for s and for the number of layers. A real fault, such as a
 * wrong sign, transpose or head, gives an error of order 1.
 *
 * float32, left and right matrices instead of a rotation: 1e-2. Such matrices are computed from X^T
 * X of the Q, K or V of a head. They multiply rounding errors by the condition number of X^T X.
 *
 * bf16: 0.25. Every product is rounded to 2^-9. The error is 0.03 in a model of 6 layers and grows
 * as the square root of the number of layers, so it is about 0.11 at 80 layers.
 */
int kvd_evaluate_full_rank(kvd_evaluator *e, const kvd_dims *full, double tolerance, double *error,
                           kvd_err *err);
double kvd_full_rank_tolerance(const kvd_dims_method *m, kvd_dtype compute);

#endif
