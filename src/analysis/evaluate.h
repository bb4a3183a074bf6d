/*
 * Runs a corpus through the uncompressed model and through choices of widths, and sums the quality of
 * predictions per sequence. The uncompressed run is dense attention; a choice is the same forward pass with
 * a cache behind the door. What runs them, on the CPU or on a GPU, is a kvd_model_runner.
 *
 * Per batch: one uncompressed run, one run per choice, then the output head in pieces of rows, the
 * uncompressed logits once for all choices. Only rows that are scored have logits: those behind the prompt that predict a token of the text.
 * With keep_reference the final hidden rows of the uncompressed run that are scored stay in memory, and later calls run only the
 * choices; where they do not fit, it runs again. So it does for attention errors, unless kvd_evaluator_keep_attention found room for the attention
 * outputs of all tokens. Where the runner can and there is room, choices begin behind the prompts, which the uncompressed run has computed.
 */
#ifndef KVD_ANALYSIS_EVALUATE_H
#define KVD_ANALYSIS_EVALUATE_H

#include <stdbool.h>

#include "analysis/free_run.h"
#include "analysis/model_runner.h"
#include "common/progress.h"
#include "model/corpus.h"

typedef struct {
    kvd_model_runner *runner; /* borrowed                                      */
    const kvd_config *config;
    kvd_corpus *corpus;
    size_t prompt; /* rows before this one are the prompt; only predictions of rows after it are scored */
    size_t n_sequences, n_tokens;
    size_t
        n_texts; /* 0: all sequences weigh as their tokens do. Else texts weigh the same (kvd_quality_compare_texts) ... */
    const size_t *text_first; /* ... and these, borrowed, are theirs: [n_texts + 1] */
    size_t n_steps;           /* rows after the prompts */
    size_t n_scored;          /* of them all but the last of each sequence */
    kvd_quality *reference;   /* [n_sequences] of the uncompressed model; set by the first kvd_evaluate */
    bool reference_known;
    double reference_seconds; /* of its forward passes                                         */
    size_t bytes_not_kept;    /* of the rows that keep_reference asked for and that do not fit; 0: they do */
    /* private */
    bool keeps_attention; /* of all tokens */
    enum { KVD_PROMPTS_AGAIN, KVD_PROMPTS_OF_BATCH, KVD_PROMPTS_OF_ALL } keeps_prompts;
    float *hidden;     /* [n_scored] rows after the final norm, or NULL; in the order of the sequences */
    size_t *prompt_at; /* [n_sequences + 1] rows of prompts before each sequence      */
    size_t *scored_at; /* [n_sequences + 1] scored rows before each sequence          */
    uint32_t *id;      /* of one batch                                                */
    size_t *offset;
    uint32_t *target; /* of the scored rows of one batch: what they predict, and whose they are */
    int *sequence;
    float *batch_hidden; /* all rows of one run       */
    float *batch_scored; /* of an uncompressed one    */
} kvd_evaluator;

/* prompt: 0, every row is scored. Fails when no sequence is longer than the prompt by two. */
int kvd_evaluator_init(kvd_evaluator *e, kvd_model_runner *runner, kvd_corpus *corpus, size_t prompt,
                       bool keep_reference, kvd_err *err);
/* With keep_reference, before the first kvd_evaluate: attention outputs of all tokens are kept too, if they fit. */
int kvd_evaluator_keep_attention(kvd_evaluator *e, kvd_err *err);
void kvd_evaluator_release(kvd_evaluator *e);

/* Sample standard deviations of what a point came to under several seeds; NaN where it was not measured. */
typedef struct {
    double nll, top1, kl, agree, measure[KVD_N_FREE_MEASURES];
} kvd_seed_spread;

/* One plan, and what came of it. */
typedef struct {
    const char *method; /* for messages                                       */
    double overall_p;   /* of the dims axis: for messages, and 0 exactly when nothing is cut there */
    kvd_plan plan;      /* open, with the evaluator's prompt; what it points to is borrowed */
    kvd_model_runner *
        runner; /* borrowed; NULL: the evaluator's. Else a model of the same shape, head and memory whose weights are others */
    double weight_bytes; /* of the model, for files */
    /* results */
    kvd_quality *per_sequence; /* [n_sequences]                                      */
    kvd_attention_error error; /* zeroed unless asked for                            */
    kvd_cache_account account;
    double seconds;           /* of the forward passes                              */
    kvd_free_result free_run; /* set by the caller where there is one      */
    size_t n_seeds;           /* 0, 1: of one; else the means over so many (seeds.h), with their spread */
    kvd_seed_spread spread;
    bool differs;      /* some final hidden value of a scored row is not the uncompressed */
    bool is_reference; /* it changes nothing, and was not run */
    char engine[96];   /* what computed its attention                        */
    /* private */
    kvd_runner_cut *cut;
    float *hidden; /* scored rows of one batch                           */
} kvd_choice;

/*
 * Evaluates all choices over the corpus. first_layer: choices cut nothing below it, so their runs start
 * there from the uncompressed stream; 0 in general. Fails, naming method, p and sequence, on non-finite numbers,
 * when a cache's account does not show that every sequence and layer was compressed to the widths, and
 * when a choice that removes dimensions leaves every prediction exactly as it was. Results are allocated;
 * kvd_choice_release.
 */
int kvd_evaluate(kvd_evaluator *e, kvd_choice *choice, size_t n, int first_layer, bool attention_errors,
                 kvd_progress *progress, kvd_err *err);
void kvd_choice_release(kvd_choice *c);

/* e->reference is known afterwards: the uncompressed model runs alone where nothing was evaluated before. */
int kvd_evaluator_know_reference(kvd_evaluator *e, kvd_err *err);

/* A choice against the uncompressed model, with texts weighing as the evaluator says. */
int kvd_evaluator_compare(const kvd_evaluator *e, const kvd_choice *c, uint64_t seed,
                          kvd_quality_summary *out, kvd_err *err);

/*
 * The guard before a method is believed: projections at full width must give the uncompressed logits on
 * the first batch. *error = max |difference| / rms(uncompressed logits); fails above the tolerance.
 *
 * Tolerance in float32: rotating costs each of the four products of a head a relative rounding error of about
 * sqrt(d_head) 2^-24 (1e-6), scores of size s turn that into s 1e-6 of a probability, and layers add up;
 * 1e-3 leaves two orders of room for s and for the layers, and a wrong sign, transpose or head is of order 1.
 * Left and right matrices multiply rounding by the condition of the second moments they come from, for
 * which kvd_full_rank_tolerance allows 1e-2. A pass in bf16 rounds every product to 2^-9, whatever stands behind the door:
 * 0.03 in a model of 6 layers, growing as the square root of their number; 0.25 leaves twice that at 80.
 */
int kvd_evaluate_full_rank(kvd_evaluator *e, const kvd_dims *full, double tolerance, double *error,
                           kvd_err *err);
double kvd_full_rank_tolerance(const kvd_dims_method *m, kvd_dtype compute);

#endif
