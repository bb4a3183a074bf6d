/*
 * Measures on given texts how KV cache compression changes a model's predictions. The first tokens
 * of each sequence are its prompt. Predictions after it are scored.
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
    size_t prompt; /* number of prompt tokens of each sequence, not scored */
    size_t n_sequences, n_tokens;
    /*
     * Number of texts if all texts have equal weight, or 0 if a text's weight is its number of
     * tokens.
     */
    size_t n_texts;
    /* [n_texts + 1] First sequence of each text. Borrowed. */
    const size_t *text_first;
    size_t n_steps; /* tokens after the prompts of all sequences */
    /* Number of scored predictions. A sequence's last token has none. */
    size_t n_scored;
    /* [n_sequences] Quality of the uncompressed model, known after the first kvd_evaluate. */
    kvd_quality *reference;
    bool reference_known;
    double reference_seconds;
    /*
     * Bytes of the uncompressed model's hidden states that did not fit into memory. If above 0,
     * every evaluation computes these states again.
     */
    size_t bytes_not_kept;
    /* [n_sequences + 1] Number of prompt tokens in sequences before i. */
    size_t *prompt_at;
    /* Private fields follow. */
    bool keeps_attention;
    enum { KVD_PROMPTS_AGAIN, KVD_PROMPTS_OF_BATCH, KVD_PROMPTS_OF_ALL } keeps_prompts;
    /*
     * [n_scored][d_model] Final hidden states of the uncompressed model, or NULL if they are not
     * kept.
     */
    float *hidden;
    /* [n_sequences + 1] Number of scored positions in sequences before i. */
    size_t *scored_at;
    uint32_t *id;
    size_t *offset;
    /* Next token and sequence of each scored position in the current batch. */
    uint32_t *target;
    int *sequence;
    float *batch_hidden;
    float *batch_scored;
} kvd_evaluator;

/*
 * With keep_reference, keeps the final hidden states of the uncompressed model if they fit, so that
 * this model runs once. Fails if no sequence has two tokens after the prompt.
 */
int kvd_evaluator_init(kvd_evaluator *e, kvd_model_runner *runner, kvd_corpus *corpus,
                       size_t prompt, bool keep_reference, kvd_err *err);
/*
 * Keeps the attention outputs of the uncompressed model if they fit into memory. Requires
 * keep_reference. Must be called before kvd_evaluate.
 */
int kvd_evaluator_keep_attention(kvd_evaluator *e, kvd_err *err);
void kvd_evaluator_release(kvd_evaluator *e);

/* Standard deviations over seeds of the qualities, or NaN if there is one seed. */
typedef struct {
    double nll, top1, kl, agree;
} kvd_seed_spread;

/* A method with its parameters, and the results of its evaluation. */
typedef struct {
    const char *method;
    /* Fraction of all dimensions of Q, K and V that compression removes, for messages. */
    double overall_p;
    /*
     * Compression methods with their parameters, opened for the evaluator's prompt length. Pointers
     * in it are borrowed.
     */
    kvd_plan plan;
    /*
     * Runner of the model, borrowed, or NULL for that of the evaluator. Its model may have other
     * weights, but the same shape, output head and memory.
     */
    kvd_model_runner *runner;
    double weight_bytes;
    /* [n_sequences] Sums of prediction quality. kvd_evaluate fills this and all later fields. */
    kvd_quality *per_sequence; /* [n_sequences] */
    /*
     * [n_each] Change of each prediction against the uncompressed model, or NULL for means over
     * seeds.
     */
    kvd_prediction_change *each;
    size_t n_each;
    kvd_attention_error error; /* errors of attention outputs, zero if not measured */
    kvd_cache_account account;
    double seconds;
    /* Number of seeds over which the results are means; 0 or 1 for a single run. */
    size_t n_seeds;
    kvd_seed_spread spread;
    /* True if a scored hidden state differs from the uncompressed model's. */
    bool differs;
    /* True if the results are copies of the uncompressed model's. */
    bool is_reference;
    /* Name of the attention implementation, such as "CPU, f32". */
    char engine[96];
    float *hidden;
} kvd_choice;

/*
 * Evaluates n methods with parameters. With first_layer > 0, runs start at that layer from
 * uncompressed states. With attention_errors, the uncompressed model runs again unless its outputs
 * were kept. Fails if numbers are not finite, if removed dimensions have no effect, or if a layer
 * does not use its cache or the cache has wrong dimensions. The caller releases results with
 * kvd_choice_release.
 */
int kvd_evaluate(kvd_evaluator *e, kvd_choice *choice, size_t n, int first_layer,
                 bool attention_errors, kvd_progress *progress, kvd_err *err);
void kvd_choice_release(kvd_choice *c);

/*
 * Makes sure that e->reference holds the uncompressed model's quality. Runs this model if
 * necessary.
 */
int kvd_evaluator_know_reference(kvd_evaluator *e, kvd_err *err);

/*
 * Compares a method's results with those of the uncompressed model. If e->n_texts > 0, texts have
 * equal weight, otherwise each sequence counts by its tokens.
 */
int kvd_evaluator_compare(const kvd_evaluator *e, const kvd_choice *c, uint64_t seed,
                          kvd_quality_summary *out, kvd_err *err);

/*
 * Checks that projections which keep all dimensions also keep the first batch's logits. Sets *error
 * to max |difference| / rms(uncompressed), or to 0 if all logits are 0, and fails if it is above
 * `tolerance`.
 *
 * kvd_full_rank_tolerance returns a bound that still detects a wrong sign, transpose or head, whose
 * error is of order 1. float32 rotations: 1e-3, as products round by about 1e-6. Other float32
 * projections: 1e-2, for the condition number of X^T X. bf16: 0.25, as 0.03 was measured in 6
 * layers and grows with the square root of their number.
 */
int kvd_evaluate_full_rank(kvd_evaluator *e, const kvd_dims *full, double tolerance, double *error,
                           kvd_err *err);
double kvd_full_rank_tolerance(const kvd_dims_method *m, kvd_dtype compute);

#endif
