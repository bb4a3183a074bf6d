/* Numbers computed from result files, for tables and claims. */
#ifndef KVD_REPORT_MEASURES_MEASURES_H
#define KVD_REPORT_MEASURES_MEASURES_H

#include "report/report.h"
#include "report/results.h"
#include "report/rows.h"

/* Returns the mean over heads of singular value `dim`, divided by sqrt(n_rows) if normalised. */
double kvd_mean_sigma(const kvd_spectrum *s, kvd_pair pair, int dim, bool normalised);
/* Returns the share of the smaller half of singular values in their sum, mean over heads. */
double kvd_trailing_share(const kvd_spectrum *s, kvd_pair pair);
/* Returns how many dimensions hold the fraction `share` of sum(sigma^2), mean over heads. */
double kvd_dims_for_energy(const kvd_spectrum *s, kvd_pair pair, double share);
/* Returns the fraction of singular values, / sqrt(n_rows) if normalised, below 1 (ZDC, Fig. 13). */
double kvd_share_below_one(const kvd_spectrum *s, kvd_pair pair, bool normalised);
/* mean and standard deviation over heads of the largest singular value */
int kvd_top_sigma(const kvd_spectrum *s, kvd_pair pair, double *mean, double *sd, kvd_err *err);

typedef struct {
    /* name of the curve in figures, such as "TEXT against REFERENCE" */
    char series[2 * KVD_LABEL + 16];
    kvd_pair pair;
    size_t n_tokens;
    size_t n_averaged; /* number of reference texts over which the values are averaged */
    bool drawn;
    bool random;
    double delta_ratio, aligned_ratio, overlap_half, energy_half;
} kvd_token_point;

/* Compares rotations by the number of calibration tokens. The caller frees *points. */
int kvd_token_points(const kvd_results *r, kvd_token_point **points, size_t *n, kvd_err *err);

/* Returns true if two files were calibrated on one text, by label or content. */
bool kvd_one_text(const kvd_similarity *s, size_t a, size_t b);
/* Returns true for the file with most tokens among those of its label, or the first of several. */
bool kvd_most_tokens(const kvd_similarity *s, size_t i);

/* Returns true if two files have one label, so that token counts are compared. */
bool kvd_of_token_counts(const kvd_similarity *s);

/* Returns true unless the result is of a single random seed. */
bool kvd_row_is_point(const kvd_rows *rows, size_t row);
/* Returns true for quantised weights with an uncompressed cache. */
bool kvd_row_is_weights(const kvd_rows *rows, size_t row);
/* Returns true if the method was calibrated on the evaluated text. */
bool kvd_on_calibration_text(const kvd_rows *rows, size_t row);
/* Returns true for NAME-a and NAME-b, two halves of one text. */
bool kvd_other_half(const char *a, const char *b);

typedef struct {
    double value;
    /* says what was measured, with the file's name */
    char what[2 * KVD_LABEL + 64];
    /* name of the device of a time, such as "NVIDIA H200"; else "" */
    char device[64];
    /* score that a search had to keep; "" without a search */
    char metric[48];
    /* true if the queue of requests grows at this rate: the value depends on the duration */
    bool grows;
    /* true if between this load and the one below, only the baseline was simulated */
    bool gap;
    double lo, hi; /* ends of the 95 % interval; NaN if not known */
    /* range expected if the claim is false; NaN if unknown */
    double null_lo, null_hi;
    /* request rate / highest rate of the baseline; NaN without a rate */
    double load;
    /* number of the curve that the value belongs to; loads rise along a curve */
    size_t curve;
} kvd_measured_value;

typedef struct {
    kvd_measured_value *value;
    size_t n;
} kvd_measured;

/*
 * Computes a measure from all result files. `name`: "NAME:MATRICES[:NUMBER]", MATRICES share a
 * rotation (qk, vw, k, ..., all). out->n is 0 without the measure. An unknown name is an error.
 *
 * epsilon: mean absolute element of a rotation; delta: mean absolute difference of two. D: relative
 * error of the attention output. n_rows: decomposed vectors. Formulas: docs/definitions.md.
 *
 * Singular values, percent. Null range: random weights, else random vectors.
 *
 * - trailing-share:k, trailing-share-per-query: kvd_trailing_share of rotations per KV head, per
 *   query head
 * - below-one:qk, below-one-normalised: kvd_share_below_one, also after division by sqrt(n_rows)
 * - cv:qk, cv-per-query: coefficient of variation of each KV (query) head's largest value
 *
 * Rotations of two texts, percent:
 *
 * - delta-ratio:qk, aligned-ratio:qk: delta / epsilon, as in the papers and after aligning column
 *   signs
 * - energy-ratio:qk: energy in half of the dimensions of the other text's rotation / of the own;
 *   null: a random rotation
 * - overlap-half:qk: mean squared cosine of the angles between the leading halves of columns
 * - means-ratio:qk: difference of the mean absolute elements / epsilon
 * - random-NAME:qk: one of these five, with random token ids as one text
 * - tokens-delta:qk:N: delta / epsilon for more than N calibration tokens
 * - tokens-fall:qk: delta / epsilon for the most calibration tokens / for the fewest
 * - tokens-...-random: for random calibration texts only
 *
 * Error of the attention output:
 *
 * - degradation:all: D on another text / on the calibration text
 * - degradation-half:all: D on NAME-b / on NAME-a, halves of one text, which degradation:all leaves
 *   out
 * - degradation-norm:all, degradation-half-norm:all: D as a ratio of norms
 *
 * Calibration on pruned sequences or K-means centroids (no other measure uses them):
 *
 * - prune-spectrum:qk: largest change of mean singular values / sqrt(n_rows) if 0.45 to 0.55 of the
 *   sequences are pruned, percent
 * - prune-rise:all, prune-time:all: perplexity, seconds at the largest fraction pruned / at the
 *   smallest
 * - centroids-fall:all, centroids-time:all: perplexity, seconds with the most centroids / the
 *   fewest
 * - ...-weighted: with weighted centroids; prune-...-rows: without K-means
 *
 * Measures of other functions:
 *
 * - p99-...:TEXT kvd_rate_measure
 * - proposal-over-oracle:all kvd_proposals_measure
 * - serving-...:TRACE kvd_serving_measure
 * - jct-...:SIZES kvd_jct_measure
 * - NAME:all kvd_setting_measure, kvd_token_measure
 */
int kvd_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);
/* Appends a finite value with a text that says what was measured. */
int kvd_values_put(kvd_measured *v, double value, kvd_err *err, const char *fmt, ...)
    KVD_PRINTF(4, 5);
/* Sets the 95 % interval of the last value. */
void kvd_values_interval(kvd_measured *v, double lo, double hi);
/* Sets the range of the last value that is expected if the claim is false. */
void kvd_values_null(kvd_measured *v, double lo, double hi);
/* Marks values from `first` on as times measured on the device that `engine` begins with. */
void kvd_values_timed_on(kvd_measured *v, size_t first, const char *engine);
void kvd_values_release(kvd_measured *v);

/*
 * Returns true if method `text` has the name and parameters of `asked` ("zack,p=0.3") and none that
 * it excludes ("!p").
 */
bool kvd_report_is_method(const char *text, const char *asked);

/*
 * Measures of job completion times (JCT) on a GPU, one value per matching job. Change: value of A /
 * of B - 1, at the same file and lengths.
 *
 * - METHOD, A, B: as in kvd_report_is_method
 * - PHASES: columns of times without "_s", joined by '+' ("prefill_mlp+decode_mlp")
 * - SIZES: input and output lengths ("100000x256"), joined by '+', or "all"
 *
 * In percent:
 *
 * - jct-share-METHOD-PHASES:SIZES: PHASES of the JCT
 * - jct-of-prompts-METHOD-PHASES:SIZES, jct-of-steps-...: PHASES of the time of prompts, of decode
 *   steps
 * - jct-extra-METHOD-PHASES:SIZES: PHASES less those of the uncompressed cache, of the JCT
 * - jct-change-A-over-B:SIZES: change of the JCT
 * - jct-parts-A-PHASES-over-B:SIZES: change of PHASES
 * - jct-growth-METHOD-PHASES:FIRST+LAST: jct-share at size LAST less that at FIRST
 * - jct-perplexity-A-over-B:SIZES: change of the perplexity at equal JCT, interpolated between two
 *   settings of B, per text of kvdim-eval. If all settings of one method are slower, each is
 *   compared with the lowest perplexity of the faster method.
 * - jct-shared-METHOD-PHASES:SIZES, jct-shared-change-A-PHASES-over-B:SIZES: jct-share and
 *   jct-parts on GPUs that divide each prompt
 *
 * A job without time in PHASES has no jct-share, jct-of-... or jct-shared.
 */
bool kvd_jct_measure_known(const char *name);
int kvd_jct_measure(const kvd_results *r, const char *name, const char *sizes, kvd_measured *out,
                    kvd_err *err);

/*
 * Knows measures "p99-A:TEXT": the largest fraction of the cache that method A can remove with 99 %
 * of the score (--target), and p99-A-less-B:TEXT, a difference in one file. TEXT is part of the
 * label of the texts or of the only task. A may end in "-RULE", the rule of kept dimensions. With
 * "-by-METRIC" before the colon, only searches by that score count. Scores against the uncompressed
 * output never count.
 */
bool kvd_rate_measure_known(const char *name);
int kvd_rate_measure(const kvd_results *r, const char *name, const char *text, kvd_measured *out,
                     kvd_err *err);

/*
 * Measures that compare parameters of methods, one value per accuracy file and text. KL: divergence
 * of predictions from the uncompressed model.
 *
 * - mirror-kl: KL of hetero with 2 bits for K and 4 for V / with 4 and 2; mirror-kl-high: 4 and 8 /
 *   8 and 4
 * - neutral-cache: smallest cache of leankv with 0.99 of the top-1 accuracy and an interval that
 *   reaches 1, in percent of a 16-bit cache; five-percent-cache: with 0.95
 * - v-over-qk: perplexity of zack without dimensions of V only / of Q and K only, at the largest
 *   common fraction
 * - kv-over-weights: perplexity of hetero with 4-bit K and V / of 4-bit weights, less 1, in
 *   percent; kv-over-weights-prompt: prompts attend to uncompressed K and V
 * - h2o-over-sparsity-kl: KL of h2o / of sparsity (th = tl) at the same cache size; null: 1
 */
bool kvd_setting_measure_known(const char *name);
int kvd_setting_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

/*
 * Measures of token statistics, one value per kvdim/tokens file of a trained model. A layer's
 * important (unimportant) tokens: a fixed fraction with highest (lowest) mean scores as queries.
 *
 * - score-range: range of attention scores of the last layer / of the first, percent
 * - near-unimportant: percentage of unimportant tokens that neighbouring layers share. Suffix
 *   -as-key: tokens ranked by mean score as keys; -denominator: by softmax denominator.
 *   near-important...: the percentage of important tokens
 * - rise-unimportant, rise-important: near-... minus the percentage that first and last layer share
 * - received-decades: log10 of the 99.9 % / the 0.1 % quantile of received attention, mean over
 *   layers
 * - value-decades: log10 of these quantiles' ratio for norms of value vectors, largest over layers
 * - more-decades: decades of received attention minus decades of norms, smallest over layers
 *
 * Critical tokens, the fewest with 95 % of the attention, mean over requests:
 *
 * - critical-layers: largest / smallest number over layers; critical-heads: over KV heads, mean
 *   over layers
 * - critical-requests: standard deviation over requests / mean, percent
 *
 * Range if the claim is false: that of random weights; for critical-layers and critical-heads also
 * ratios by chance.
 */
bool kvd_token_measure_known(const char *name);
int kvd_token_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

/* parameters that kvdim-fit --regression proposed, and their result (ZDC paper, section 8) */

typedef struct {
    const kvd_result *file;     /* kvdim/rates file with the proposed parameters */
    size_t proposal;            /* index of the proposal in `file` */
    const kvd_result *accuracy; /* accuracy file with the measurement in result row `row` */
    size_t row;
    double asked;          /* allowed loss: perplexity / perplexity of the uncompressed model - 1 */
    kvd_interval measured; /* measured loss, and its confidence interval */
    double share;          /* size of the cache as a fraction of a 16-bit cache */
    /* smallest cache that other parameters have at a loss of at most `asked`; NaN if none */
    double oracle_asked;
    /* smallest cache that other parameters have at a loss of at most measured.value */
    double oracle_measured;
    /*
     * smallest caches that other parameters have at losses of at most measured.lo and measured.hi
     */
    double oracle_lo, oracle_hi;
} kvd_judged_proposal;

/* Compares parameters that kvdim-fit proposed with the best measured. The caller frees *all. */
int kvd_proposals_judge(const kvd_results *r, kvd_judged_proposal **all, size_t *n, kvd_err *err);

/* Computes by how many percent caches with kvdim-fit's parameters exceed the smallest measured. */
int kvd_proposals_measure(const kvd_results *r, kvd_measured *out, kvd_err *err);

/* smallest number of results from which saved bytes at 99 % of the accuracy are read */
enum { KVD_FEWEST_POINTS = 3 };

/* Returns the search that keeps the fraction `target` with this method and text, or NULL. */
const kvd_target_result *kvd_entry_search(const kvd_accuracy_entry *e, double target);

/* Reads the bytes saved at 99 % of the accuracy from a method's results, largest bytes first. */
void kvd_target_from_points(const kvd_accuracy_entries *all, size_t first, size_t last,
                            kvd_target_result *x);

/* Returns true if sequences were left out or tokens replaced by K-means centroids. */
bool kvd_calibration_reduced(const kvd_spectrum *s);
/* Returns true for files that serve only to compare calibrations (ZDC paper, Fig. 15 and 26). */
bool kvd_calibration_compared(const kvd_results *r, const kvd_spectrum *s);

/* Returns the file calibrated like *s but on all sequences, or NULL. */
const kvd_spectrum *kvd_calibration_unpruned(const kvd_results *r, const kvd_spectrum *s);

/* Returns the file with which a result was calibrated, by label and model, or NULL. */
const kvd_result *kvd_calibration_of(const kvd_results *r, const kvd_result *accuracy, size_t row);

/* a result, and the file of the rotations that it used */
typedef struct {
    const kvd_result *spectrum, *accuracy;
    size_t row;
    double p; /* removed fraction of dimensions that the user asked for */
    /* seconds to record the calibration data, times the fraction of tokens kept */
    double collect_s;
    /* seconds to read and sum tokens, for K-means and the decomposition */
    double calibrate_s;
    double perplexity;
} kvd_calibration_point;

/* Lists calibrated results by text, method and removed fraction. The caller frees *points. */
int kvd_calibration_points(const kvd_results *r, kvd_calibration_point **points, size_t *n,
                           kvd_err *err);

/* Returns true for equal methods and removed fractions p. */
bool kvd_calibration_same_choice(const kvd_calibration_point *a, const kvd_calibration_point *b);
/* Returns true for equal methods, fractions, vectors and, if `centroids`, numbers of centroids. */
bool kvd_calibration_same_rows(const kvd_calibration_point *a, const kvd_calibration_point *b,
                               bool centroids);

int kvd_calibration_spectra(const kvd_results *r, const char *name, kvd_pair pair,
                            kvd_measured *out, kvd_err *err);
int kvd_calibration_ratios(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

/* Writes a curve's name, such as "uniform: weighted": method, text if `texts`, kind of vectors. */
void kvd_calibration_series(const kvd_calibration_point *x, bool texts, char *buf, size_t size);

/*
 * "serving-WHAT-A-over-B:TRACE" compares methods A and B in simulated serving, where only method
 * and rate differ. "zack": all parameters; "zack,p=0.3": one; "zack,!p": rows without p. Load:
 * request rate / highest rate of B, at most 1. WHAT:
 *
 * - ttft, tbt, jct: mean time of A / of B, less 1, in percent, per load
 * - rate: rate of A / of B at the latency that B has at a load; 0 if A is never so fast; A's
 *   highest rate if A is always faster
 * - top: highest rate of A / of B under the same latency bound
 * - throughput: output tokens per second of A / of B where memory is short: B serves less than
 *   arrives and runs at most half of max_batch
 * - running: mean requests that A runs / B runs, at those rates
 *
 * Values of equal conditions form a curve by rising load. `grows`: A or B serves less than 0.9
 * times the arrival rate, or its last request ends late by more than 5 % of the time of arrivals.
 */
bool kvd_serving_measure_known(const char *name);
int kvd_serving_measure(const kvd_results *r, const char *name, const char *trace,
                        kvd_measured *out, kvd_err *err);

typedef struct {
    /* conditions of a number; only numbers with equal conditions are compared */
    char key[2 * KVD_LABEL + 128];
    char quantity[48];
    /* value and 95 % interval; NaN if it has none */
    double value, lo, hi;
    const kvd_result *file; /* borrowed */
    size_t row;             /* row of an accuracy file, else 0 */
} kvd_observation;

typedef struct {
    kvd_observation *item;
    size_t n;
} kvd_observations;

/*
 * Adds the comparison of two sets of files. *n_outside: verdicts "outside" or "differs". Fails if
 * no number of one set matches one of the other.
 */
int kvd_compare_section(const kvd_results *a, const kvd_results *b, kvd_report *report,
                        size_t *n_outside, kvd_err *err);

#endif
