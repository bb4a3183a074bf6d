/* Measures how compression of the cache changes a model's predictions. Each sequence begins with a
 * prompt; later predictions are scored. */
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
    /* number of texts if they have equal weight, or 0 if tokens have */
    size_t n_texts;
    /* [n_texts + 1] first sequence of each text, borrowed */
    const size_t *text_first;
    size_t n_steps; /* tokens after the prompts of all sequences */
    /* number of scored predictions; a sequence's last token has none */
    size_t n_scored;
    /* [n_sequences] quality of the uncompressed model, after the first kvd_evaluate */
    kvd_quality *reference;
    bool reference_known;
    /* true if kvd_evaluate sets `inert` instead of failing when compression had no effect */
    bool reports_inert;
    double reference_seconds;
    /* bytes of hidden states that did not fit, so that each evaluation computes them again */
    size_t bytes_not_kept;
    /* [n_sequences + 1] number of prompt tokens in earlier sequences */
    size_t *prompt_at;
    /* Private fields follow. */
    bool keeps_attention;
    enum { KVD_PROMPTS_AGAIN, KVD_PROMPTS_OF_BATCH, KVD_PROMPTS_OF_ALL } keeps_prompts;
    /* [n_scored][d_model] final hidden states of the uncompressed model, or NULL */
    float *hidden;
    /* [n_sequences + 1] number of scored positions in earlier sequences */
    size_t *scored_at;
    uint32_t *id;
    size_t *offset;
    /* next token of each scored position in the batch; `sequence` has the index of its sequence */
    uint32_t *target;
    int *sequence;
    float *batch_hidden;
    float *batch_scored;
} kvd_evaluator;

/* Prepares an evaluation of texts. With keep_reference, keeps the uncompressed model's hidden
 * states if they fit into memory. Fails if no sequence has two tokens after the prompt. */
int kvd_evaluator_init(kvd_evaluator *e, kvd_model_runner *runner, kvd_corpus *corpus,
                       size_t prompt, bool keep_reference, kvd_err *err);
/* Keeps uncompressed attention outputs, if they fit, for kvd_evaluate. Requires keep_reference. */
int kvd_evaluator_keep_attention(kvd_evaluator *e, kvd_err *err);
void kvd_evaluator_release(kvd_evaluator *e);

/* standard deviations of a method's scores over random seeds; NaN with one seed */
typedef struct {
    double nll, top1, kl, agree;
} kvd_seed_spread;

/* A method with its parameters, and its results. */
typedef struct {
    const char *method;
    /* removed fraction of the dimensions of Q, K and V, for messages */
    double overall_p;
    /* opened for the prompt length of the kvd_evaluator that runs it; its pointers are borrowed */
    kvd_plan plan;
    /* code that runs another checkpoint of equal shape, borrowed; NULL: the evaluator's runner */
    kvd_model_runner *runner;
    double weight_bytes;
    /* quality of each sequence's predictions; kvd_evaluate fills this and all later fields */
    kvd_quality *per_sequence; /* [n_sequences] */
    /* [n_each] change of each prediction, or NULL for means over seeds */
    kvd_prediction_change *each;
    size_t n_each;
    kvd_attention_error error; /* errors of attention outputs, zero if not measured */
    kvd_cache_account account;
    double seconds;
    /* number of seeds over which results are means; 0 or 1 for a single run */
    size_t n_seeds;
    kvd_seed_spread spread;
    /* true if the hidden state of any scored prediction differs from the uncompressed model's */
    bool differs;
    /* true if results are copies of the uncompressed model's */
    bool is_reference;
    /* name of the attention implementation, such as "CPU, f32" */
    char engine[96];
    float *hidden;
    /* reason why the results are useless, such as a cache without effect; empty if they are good */
    kvd_err inert;
} kvd_choice;

/* Evaluates n methods. With first_layer > 0, starts at that layer from uncompressed states.
 *
 * Fails if numbers are not finite, if removed dimensions have no effect, or if a layer does not use
 * its cache. The caller releases results with kvd_choice_release. */
int kvd_evaluate(kvd_evaluator *e, kvd_choice *choice, size_t n, int first_layer,
                 bool attention_errors, kvd_progress *progress, kvd_err *err);
void kvd_choice_release(kvd_choice *c);

/* Runs the uncompressed model unless e->reference is known. */
int kvd_evaluator_know_reference(kvd_evaluator *e, kvd_err *err);

/* Compares a method with the uncompressed model. With e->n_texts > 0, texts have equal weight. */
int kvd_evaluator_compare(const kvd_evaluator *e, const kvd_choice *c, uint64_t seed,
                          kvd_quality_summary *out, kvd_err *err);

/* Checks that projections which keep all dimensions keep the logits. *error: max |difference| /
 * rms(uncompressed).
 *
 * kvd_full_rank_tolerance returns a bound that still finds a wrong sign or transpose, whose error
 * is of order 1. */
int kvd_evaluate_full_rank(kvd_evaluator *e, const kvd_dims *full, double tolerance, double *error,
                           kvd_err *err);
double kvd_full_rank_tolerance(const kvd_dims_method *m, kvd_dtype compute);

#endif
