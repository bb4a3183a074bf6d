/* Measures how compression of the KV cache changes a model's predictions. The first tokens of each
 * sequence are a prompt; predictions after the prompt are scored. */
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
    /* number of texts if each text has equal weight in mean scores; 0 if each token has equal
     * weight */
    size_t n_texts;
    /* [n_texts + 1] index of each text's first sequence, borrowed */
    const size_t *text_first;
    size_t n_steps; /* tokens after the prompts of all sequences */
    /* number of scored predictions; the prediction after a sequence's last token is not scored */
    size_t n_scored;
    /* [n_sequences] prediction quality of the uncompressed model, filled by the first call of
     * kvd_evaluate */
    kvd_quality *reference;
    bool reference_known;
    /* true if kvd_evaluate, when compression had no effect, stores the reason in kvd_choice.inert
     * and does not fail */
    bool reports_inert;
    double reference_seconds;
    /* bytes of the uncompressed model's hidden states if these do not fit into memory, so that each
     * evaluation computes them again; else 0 */
    size_t bytes_not_kept;
    /* [n_sequences + 1] element s: number of prompt tokens in sequences 0 .. s - 1 */
    size_t *prompt_at;
    /* Private fields follow. */

    /* true if the uncompressed model's attention outputs are kept for every evaluated text */
    bool keeps_attention;
    enum { KVD_PROMPTS_AGAIN, KVD_PROMPTS_OF_BATCH, KVD_PROMPTS_OF_ALL } keeps_prompts;
    /* [n_scored][d_model] final hidden states of the uncompressed model; NULL if they are not
     * kept */
    float *hidden;
    /* [n_sequences + 1] element s: number of scored positions in sequences 0 .. s - 1 */
    size_t *scored_at;
    uint32_t *id;
    size_t *offset;
    /* token after each scored position of the batch; `sequence`: index of the sequence in which
     * that position is */
    uint32_t *target;
    int *sequence;
    float *batch_hidden;
    float *batch_scored;
} kvd_evaluator;

/* Prepares an evaluation of the texts in `corpus`. With keep_reference, keeps the uncompressed
 * model's hidden states for later calls, if they fit into memory. Fails if no sequence has two
 * tokens after the prompt. */
int kvd_evaluator_init(kvd_evaluator *e, kvd_model_runner *runner, kvd_corpus *corpus,
                       size_t prompt, bool keep_reference, kvd_err *err);
/* Makes kvd_evaluate keep the uncompressed model's attention outputs, if they fit into memory, to
 * compare methods with them. `e` must be initialised with keep_reference. */
int kvd_evaluator_keep_attention(kvd_evaluator *e, kvd_err *err);
void kvd_evaluator_release(kvd_evaluator *e);

/* standard deviations of a method's scores over runs with different random seeds; NaN with one
 * seed */
typedef struct {
    double nll, top1, kl, agree;
} kvd_seed_spread;

/* A method with its parameters, and its results. */
typedef struct {
    const char *method;
    /* removed fraction of all dimensions of Q, K and V, shown in messages */
    double overall_p;
    /* Compression method to evaluate, which the caller closes. plan.prompt must equal
     * kvd_evaluator.prompt. */
    kvd_plan plan;
    /* runner (code that runs a model) of another checkpoint of equal shape, borrowed; NULL to use
     * the evaluator's runner */
    kvd_model_runner *runner;
    double weight_bytes;
    /* prediction quality in each sequence; kvd_evaluate fills this field and all later ones */
    kvd_quality *per_sequence; /* [n_sequences] */
    /* [n_each] how each prediction differs from the uncompressed model's; NULL if results are means
     * over seeds */
    kvd_prediction_change *each;
    size_t n_each;
    kvd_attention_error error; /* errors of attention outputs, zero if not measured */
    kvd_cache_account account;
    double seconds;
    /* number of random seeds if results are means over seeds; 0 or 1 for a single run */
    size_t n_seeds;
    kvd_seed_spread spread;
    /* true if the hidden state of any scored prediction differs from the uncompressed model's */
    bool differs;
    /* true if the method compresses nothing, so that its results are copies of the uncompressed
     * model's */
    bool is_reference;
    /* name of the attention implementation, such as "CPU, f32" */
    char engine[96];
    float *hidden;
    /* reason why the results are useless, such as compression that changed no prediction; empty if
     * the results are good */
    kvd_err inert;
} kvd_choice;

/* Evaluates n methods. With first_layer > 0, runs only layers from first_layer on, from the
 * uncompressed model's hidden states. Release each choice[i] with kvd_choice_release.
 *
 * Fails if a result is not finite. Also fails if compression was not applied: if removing
 * dimensions changes no prediction, or if a layer does not read its cache. */
int kvd_evaluate(kvd_evaluator *e, kvd_choice *choice, size_t n, int first_layer,
                 bool attention_errors, kvd_progress *progress, kvd_err *err);
void kvd_choice_release(kvd_choice *c);

/* Runs the uncompressed model, unless its prediction quality, e->reference, is already known. */
int kvd_evaluator_know_reference(kvd_evaluator *e, kvd_err *err);

/* Compares a method's prediction quality with the uncompressed model's. If e->n_texts > 0, each
 * text has equal weight, else each token. */
int kvd_evaluator_compare(const kvd_evaluator *e, const kvd_choice *c, uint64_t seed,
                          kvd_quality_summary *out, kvd_err *err);

/* Checks that a method's projections do not change the logits if they keep all dimensions. *error:
 * largest change of a logit / root mean square of the uncompressed logits.
 *
 * kvd_full_rank_tolerance returns the largest allowed error. A wrong sign or transpose gives about
 * 1. */
int kvd_evaluate_full_rank(kvd_evaluator *e, const kvd_dims *full, double tolerance, double *error,
                           kvd_err *err);
double kvd_full_rank_tolerance(const kvd_dims_method *m, kvd_dtype compute);

#endif
