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

/* Compares rotations calibrated on different numbers of tokens of a text with those of a reference
 * (file 0). The caller frees *points. */
int kvd_token_points(const kvd_results *r, kvd_token_point **points, size_t *n, kvd_err *err);

/* Returns true if files a and b were calibrated on one text: equal labels, or equal text hashes. */
bool kvd_one_text(const kvd_similarity *s, size_t a, size_t b);
/* Returns true for the file with most tokens among those of its label, or the first of several. */
bool kvd_most_tokens(const kvd_similarity *s, size_t i);

/* Returns true if two of the compared files have the same text label, so that they differ in the
 * number of calibration tokens. */
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
    /* device on which the value was measured, such as "NVIDIA H200"; "" if it is not a time */
    char device[64];
    /* score that a search for the strongest compression had to keep; "" if there was no search */
    char metric[48];
    /* true if the queue of requests grows at this rate: the value depends on the run's length */
    bool grows;
    /* true if only the baseline was simulated between this and the next lower request rate */
    bool gap;
    double lo, hi; /* ends of the 95 % interval; NaN if not known */
    /* range expected if the claim is false; NaN if unknown */
    double null_lo, null_hi;
    /* data from which null_lo and null_hi were computed; NULL: the data named in column null of
     * ledger.csv */
    const char *null_name;
    /* request rate / highest rate that the baseline method sustains; NaN without a rate */
    double load;
    /* Index of the curve that the value is a point of. Loads (request rates) rise along a curve. */
    size_t curve;
} kvd_measured_value;

typedef struct {
    kvd_measured_value *value;
    size_t n;
} kvd_measured;

/* Computes a measure from all result files. `name` is "NAME:MATRICES" or "NAME:MATRICES:NUMBER";
 * MATRICES share a rotation (qk, vw, k, ..., all). If no file has the measure, out->n is 0. An
 * unknown name is an error.
 *
 * epsilon: mean absolute element of a rotation matrix; delta: mean absolute difference of two such
 * matrices. D: relative error of the attention output. n_rows: number of decomposed vectors. Null:
 * range of the measure that is expected if a paper's claim is false. Formulas: docs/definitions.md.
 *
 * Singular values, in percent:
 *
 * - trailing-share:k, trailing-share-per-query: kvd_trailing_share of rotations per KV head, per
 *   query head; null: that of random weights if a file has them, else of random vectors
 * - below-one:qk, below-one-normalised: kvd_share_below_one, also after division by sqrt(n_rows)
 * - cv:qk, cv-per-query: coefficient of variation, over KV (query) heads, of a head's largest value
 *
 * Rotations of two texts, in percent:
 *
 * - delta-ratio:qk: delta / epsilon, as in the papers; aligned-ratio:qk: after matching the signs
 *   of columns
 * - energy-ratio:qk: squared norm of one text's vectors in half of the dimensions of the other
 *   text's rotation, divided by that in its own rotation; null: with a random rotation
 * - overlap-half:qk: mean squared cosine of the angles between the leading halves of columns
 * - means-ratio:qk: difference of the mean absolute elements / epsilon
 * - random-NAME:qk: one of these five, with random token ids as one text
 * - tokens-delta:qk:N: delta / epsilon of calibrations on more than N tokens
 * - tokens-fall:qk: delta / epsilon with the most calibration tokens, divided by that with the
 *   fewest
 * - tokens-delta-random, tokens-fall-random: the same for calibration on random token ids only
 *
 * Error of the attention output:
 *
 * - degradation:all: D on another text / D on the calibration text
 * - degradation-half:all: D on NAME-b / D on NAME-a, the two halves of one text, which
 *   degradation:all leaves out
 * - degradation-norm:all, degradation-half-norm:all: these ratios with D as a ratio of norms
 *
 * Calibration on pruned sequences or K-means centroids (no other measure uses them):
 *
 * - prune-spectrum:qk: largest change of mean singular values / sqrt(n_rows) if 0.45 to 0.55 of the
 *   sequences are pruned, in percent
 * - prune-rise:all, prune-time:all: perplexity (seconds) with the largest fraction pruned, divided
 *   by that with the smallest
 * - centroids-fall:all, centroids-time:all: perplexity (seconds) with the most centroids, divided
 *   by that with the fewest
 * - ...-weighted: with weighted centroids; prune-...-rows: without K-means
 *
 * Measures of other functions:
 *
 * - p99-...:TEXT kvd_rate_measure
 * - proposal-over-oracle:all kvd_proposals_measure
 * - serving-...:TRACE kvd_serving_measure
 * - jct-...:SIZES kvd_jct_measure
 * - NAME:all kvd_setting_measure, kvd_token_measure */
int kvd_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);
/* Appends a finite value with a text that says what was measured. */
int kvd_values_put(kvd_measured *v, double value, kvd_err *err, const char *fmt, ...)
    KVD_PRINTF(4, 5);
/* Sets the 95 % interval of the last value. */
void kvd_values_interval(kvd_measured *v, double lo, double hi);
/* Sets, for the value appended last, the range that is expected if the paper's claim is false. */
void kvd_values_null(kvd_measured *v, double lo, double hi);
/* Marks values from index `first` on as times measured on a device. `engine` begins with the
 * device's name, which ends at the first ',' or ';'. */
void kvd_values_timed_on(kvd_measured *v, size_t first, const char *engine);
void kvd_values_release(kvd_measured *v);

/* Returns true if method `text` has the name and parameters of `asked` ("zack,p=0.3") and none that
 * it excludes ("!p"). */
bool kvd_report_is_method(const char *text, const char *asked);

/* Measures of job completion times (JCT) on a GPU, one value per job that matches. The first
 * function returns true if `name` is such a measure, the second computes it.
 *
 * Parts of a name:
 *
 * - METHOD, A, B: as in kvd_report_is_method
 * - PHASES: columns of times without "_s", joined by '+' ("prefill_mlp+decode_mlp")
 * - SIZES: input and output lengths ("100000x256"), joined by '+', or "all"
 *
 * Measures, in percent. Change: (value of A / value of B, in the same file and at equal lengths) -
 * 1.
 *
 * - jct-share-METHOD-PHASES:SIZES: PHASES as a share of the JCT
 * - jct-of-prompts-METHOD-PHASES:SIZES, jct-of-steps-...: PHASES as a share of the time of prompts,
 *   of decode steps
 * - jct-extra-METHOD-PHASES:SIZES: (PHASES - those of the uncompressed cache) as a share of the JCT
 * - jct-change-A-over-B:SIZES: change of the JCT
 * - jct-parts-A-PHASES-over-B:SIZES: change of the time of PHASES
 * - jct-growth-METHOD-PHASES:FIRST+LAST: jct-share at size LAST - jct-share at size FIRST
 * - jct-perplexity-A-over-B:SIZES: change of the perplexity at equal JCT, interpolated between two
 *   settings of B, per text of kvdim-eval. If all settings of one method are slower, each is
 *   compared with the lowest perplexity of the faster method.
 * - jct-shared-METHOD-PHASES:SIZES, jct-shared-change-A-PHASES-over-B:SIZES: jct-share and
 *   jct-parts on GPUs that divide each prompt
 *
 * A job without time in PHASES has no jct-share, jct-of-... or jct-shared. */
bool kvd_jct_measure_known(const char *name);
int kvd_jct_measure(const kvd_results *r, const char *name, const char *sizes, kvd_measured *out,
                    kvd_err *err);

/* Knows two kinds of measures, from searches for the strongest compression (--target):
 *
 * - p99-A:TEXT: largest fraction of the cache that method A can remove and keep 99 % of the score
 * - p99-A-less-B:TEXT: that fraction of A - that of B, both from the same file
 *
 * TEXT is part of the label of the evaluated texts, or of the only task. A may end in "-RULE", the
 * rule that chose kept dimensions. With "-by-METRIC" before the colon, only searches that kept this
 * score count. Scores that compare with the uncompressed model's output never count. */
bool kvd_rate_measure_known(const char *name);
int kvd_rate_measure(const kvd_results *r, const char *name, const char *text, kvd_measured *out,
                     kvd_err *err);

/* Measures that compare settings of methods, one value per accuracy file and text. KL: divergence
 * of predictions from the uncompressed model. Null: value that is expected if the claim is false.
 *
 * - mirror-kl: KL of method hetero with 2 bits for K and 4 for V / KL with 4 and 2; mirror-kl-high:
 *   4 and 8 / 8 and 4
 * - neutral-cache: smallest cache of method leankv, in percent of a 16-bit cache, with at least
 *   0.99 of the uncompressed top-1 accuracy and a 95 % interval that reaches 1
 * - five-percent-cache: smallest cache of leankv with at least 0.95 of that accuracy
 * - v-over-qk: perplexity of method zack if only V loses dimensions / if only Q and K lose them, at
 *   the largest removed fraction that both have
 * - kv-over-weights: perplexity of hetero with 4-bit K and V / of 4-bit weights, - 1, in percent;
 *   kv-over-weights-prompt: the same if prompts attend to uncompressed K and V
 * - h2o-over-sparsity-kl: KL of method h2o / KL of method sparsity (thresholds th = tl) at the same
 *   cache size; null: 1 */
bool kvd_setting_measure_known(const char *name);
int kvd_setting_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

/* Measures of token statistics, one value per kvdim/tokens file of a trained model. A layer's
 * important (unimportant) tokens are the fixed fraction with the highest (lowest) mean attention
 * scores of their queries.
 *
 * - score-range: range of attention scores of the last layer / of the first, in percent
 * - near-unimportant, near-important: percentage of a layer's unimportant (important) tokens that
 *   are so in the next layer too
 * - near-...-as-key: the same with tokens ranked by the mean score of their keys;
 *   near-...-denominator: ranked by softmax denominator
 * - rise-unimportant, rise-important: near-... minus the percentage that the first and the last
 *   layer have in common
 * - received-decades: log10 of (99.9 % quantile / 0.1 % quantile) of received attention, mean over
 *   layers
 * - value-decades: the same of the norms of value vectors, largest over layers
 * - more-decades: decades of received attention minus decades of norms, smallest over layers
 *
 * Critical tokens are the fewest tokens that receive 95 % of the attention. Their number is a mean
 * over requests:
 *
 * - critical-layers: largest number of a layer / smallest
 * - critical-heads: largest number of a KV head / smallest in its layer, mean over layers
 * - critical-requests: standard deviation over requests / mean, in percent
 *
 * The range expected if a paper's claim is false is that of random weights; for critical-layers and
 * critical-heads also the ratios that chance explains. */
bool kvd_token_measure_known(const char *name);
int kvd_token_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

/* parameters that kvdim-fit --regression proposed, and loss and cache size measured with them (ZDC
 * paper, section 8) */

typedef struct {
    const kvd_result *file;     /* kvdim/rates file with the proposed parameters */
    size_t proposal;            /* index of the proposal in `file` */
    const kvd_result *accuracy; /* accuracy file with the measurement in result row `row` */
    size_t row;
    double asked;          /* allowed loss: perplexity / perplexity of the uncompressed model - 1 */
    kvd_interval measured; /* measured loss, and its confidence interval */
    double share;          /* size of the cache as a fraction of a 16-bit cache */
    /* smallest cache, as a fraction of a 16-bit cache, that the method has with parameters not
     * proposed, at a loss of at most `asked`; NaN if none */
    double oracle_asked;
    /* smallest cache (fraction of a 16-bit cache) of parameters that were not proposed, at a loss
     * of at most measured.value */
    double oracle_measured;
    /* smallest caches (fractions of a 16-bit cache) of parameters that were not proposed, at losses
     * of at most measured.lo and measured.hi */
    double oracle_lo, oracle_hi;
} kvd_judged_proposal;

/* Compares parameters that kvdim-fit proposed with the best measured. The caller frees *all. */
int kvd_proposals_judge(const kvd_results *r, kvd_judged_proposal **all, size_t *n, kvd_err *err);

/* Computes by how many percent caches with parameters that kvdim-fit proposed exceed the smallest
 * cache measured at no larger loss. */
int kvd_proposals_measure(const kvd_results *r, kvd_measured *out, kvd_err *err);

/* smallest number of results from which saved bytes at 99 % of the accuracy are read */
enum { KVD_FEWEST_POINTS = 3 };

/* Returns the result of the search for the strongest compression that keeps the fraction `target`
 * of the score, with the method and text of *e, or NULL. */
const kvd_target_result *kvd_entry_search(const kvd_accuracy_entry *e, double target);

/* Reads the bytes saved at 99 % of the accuracy from results first .. last of a method, which are
 * ordered from the largest cache to the smallest. */
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

/* an accuracy result (row `row` of a file), and the calibration file whose rotations it used */
typedef struct {
    const kvd_result *spectrum, *accuracy;
    size_t row;
    double p; /* removed fraction of dimensions that the user asked for */
    /* seconds to record the calibration data, multiplied by the fraction of tokens kept */
    double collect_s;
    /* total seconds of calibration: reading and summing tokens, K-means, decomposition */
    double calibrate_s;
    double perplexity;
} kvd_calibration_point;

/* Lists accuracy results whose calibration file is in *r, ordered by text, method and removed
 * fraction. The list is empty if no calibration was pruned or clustered. The caller frees
 * *points. */
int kvd_calibration_points(const kvd_results *r, kvd_calibration_point **points, size_t *n,
                           kvd_err *err);

/* Returns true for equal methods and removed fractions p. */
bool kvd_calibration_same_choice(const kvd_calibration_point *a, const kvd_calibration_point *b);
/* Returns true if two results have equal methods, removed fractions, kinds of calibration vectors
 * (tokens, centroids or weighted centroids) and, if `centroids`, numbers of K-means centroids. */
bool kvd_calibration_same_rows(const kvd_calibration_point *a, const kvd_calibration_point *b,
                               bool centroids);

int kvd_calibration_spectra(const kvd_results *r, const char *name, kvd_pair pair,
                            kvd_measured *out, kvd_err *err);
int kvd_calibration_ratios(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

/* Writes the name of a figure's curve, such as "uniform on wiki: weighted": method, text (if
 * `texts`), and vectors of the calibration: tokens ("rows"), "centroids" or "weighted" ones. */
void kvd_calibration_series(const kvd_calibration_point *x, bool texts, char *buf, size_t size);

/* Measures "serving-WHAT-A-over-B:TRACE" compare methods A and B in simulated serving of requests;
 * results must agree in all but method and request rate. TRACE: end of the name of the requests. A
 * and B: "zack" means all parameters, "zack,p=0.3" this value of p, "zack,!p" results without p.
 * Load: request rate / highest rate of B within the latency bound, at most 1.
 *
 * WHAT:
 *
 * - ttft, tbt, jct: (mean time of A / mean time of B) - 1 at each load, in percent
 * - rate: rate at which A has the latency that B has at a load, divided by B's rate; 0 if A is
 *   never so fast; with A's highest rate if A is always faster
 * - top: highest rate of A / highest rate of B within the same latency bound
 * - throughput: output tokens per second of A / of B at rates where B is short of memory: its queue
 *   grows, and it runs at most half of max_batch requests
 * - running: mean number of requests that A runs / that B runs, at the rates of throughput
 *
 * Values that differ only in load form a curve. A value has `grows` set if A or B serves less than
 * 0.9 times the arrival rate, or ends its last request late by more than 5 % of the time of
 * arrivals. */
bool kvd_serving_measure_known(const char *name);
int kvd_serving_measure(const kvd_results *r, const char *name, const char *trace,
                        kvd_measured *out, kvd_err *err);

typedef struct {
    /* conditions of a number; only numbers with equal conditions are compared */
    char key[2 * KVD_LABEL + 128];
    char quantity[48];
    /* measured value and ends of its 95 % interval, which are NaN if it has none */
    double value, lo, hi;
    const kvd_result *file; /* borrowed */
    size_t row;             /* row of an accuracy file, else 0 */
} kvd_observation;

typedef struct {
    kvd_observation *item;
    size_t n;
} kvd_observations;

/* Adds to the report a comparison of two sets of files. *n_outside: number of verdicts "outside" or
 * "differs". Fails if the sets have no number in common that was measured under equal
 * conditions. */
int kvd_compare_section(const kvd_results *a, const kvd_results *b, kvd_report *report,
                        size_t *n_outside, kvd_err *err);

#endif
