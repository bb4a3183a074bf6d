/* Declares measures: numbers computed from result files, for the report's tables and for verdicts
 * on the papers' claims. */
#ifndef KVD_REPORT_MEASURES_MEASURES_H
#define KVD_REPORT_MEASURES_MEASURES_H

#include "report/report.h"
#include "report/results.h"
#include "report/rows.h"

/* Returns singular value number `dim`, averaged over heads. If `normalised`, it is divided by the
 * square root of the number of decomposed vectors. */
double kvd_mean_sigma(const kvd_spectrum *s, kvd_pair pair, int dim, bool normalised);
/* Averages each singular value over heads, and returns the sum of the smaller half / sum of all. */
double kvd_trailing_share(const kvd_spectrum *s, kvd_pair pair);
/* Returns the smallest number of dimensions whose squared singular values sum to at least `share`
 * of the sum of all, averaged over heads. */
double kvd_dims_for_energy(const kvd_spectrum *s, kvd_pair pair, double share);
/* Returns the fraction of all heads' singular values that are below 1 (ZDC paper, Fig. 13). If
 * `normalised`, they are first divided by the square root of the number of decomposed vectors. */
double kvd_share_below_one(const kvd_spectrum *s, kvd_pair pair, bool normalised);
/* Computes the mean and the standard deviation, over heads, of a head's largest singular value. */
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

/* Lists, for each file that compares calibrations, how rotations calibrated on different numbers of
 * tokens of a text differ from those of a reference text, the first in the file. The caller frees
 * *points. */
int kvd_token_points(const kvd_results *r, kvd_token_point **points, size_t *n, kvd_err *err);

/* Returns true if calibrations a and b used the same text: their labels or their text hashes are
 * equal. */
bool kvd_one_text(const kvd_similarity *s, size_t a, size_t b);
/* Returns true if no calibration with the same text label as calibration i used more tokens. Among
 * several with the most tokens, returns true only for the first. */
bool kvd_most_tokens(const kvd_similarity *s, size_t i);

/* Returns true if two of the compared calibrations have the same text label. Such calibrations
 * differ in their number of tokens. */
bool kvd_of_token_counts(const kvd_similarity *s);

/* Returns false if the result row was measured with one of several random seeds, and another row
 * has the mean over the seeds. */
bool kvd_row_is_point(const kvd_rows *rows, size_t row);
/* Returns true if a result was measured with quantised weights and an uncompressed KV cache. */
bool kvd_row_is_weights(const kvd_rows *rows, size_t row);
/* Returns true if a result's method was calibrated on the text on which it was evaluated. */
bool kvd_on_calibration_text(const kvd_rows *rows, size_t row);
/* Returns true if `a` is "NAME-a" and `b` is "NAME-b", the labels of the two halves of one text. */
bool kvd_other_half(const char *a, const char *b);

typedef struct {
    double value;
    /* description of the measured value, such as the name of its result file */
    char what[2 * KVD_LABEL + 64];
    /* device on which the value was measured, such as "NVIDIA H200"; "" if it is not a time */
    char device[64];
    /* For a value from a search for the strongest compression that keeps a score: name of this
     * score. "" for other values. */
    char metric[48];
    /* True if requests arrive faster than they are served, so that their queue grows. The value
     * then depends on how long the simulation ran. */
    bool grows;
    /* true if, between the request rates of the preceding value and of this one, the baseline was
     * simulated at a rate at which the compared method was not */
    bool gap;
    double lo, hi; /* ends of the 95 % interval; NaN if not known */
    /* null range: range of values that is expected if the paper's claim is false; NaN if unknown */
    double null_lo, null_hi;
    /* Description of the data from which the null range was computed. If NULL, the column `null` of
     * ledger.csv describes it. */
    const char *null_name;
    /* Load of a simulated server: request rate / highest rate that the baseline method sustains.
     * NaN if the value has no request rate. */
    double load;
    /* Index of the curve that the value is a point of. Along a curve, the request rates rise. */
    size_t curve;
} kvd_measured_value;

typedef struct {
    kvd_measured_value *value;
    size_t n;
} kvd_measured;

/* Computes the values of a measure from all result files. `name` is "MEASURE:PAIR" or
 * "MEASURE:PAIR:NUMBER". PAIR names the matrices that share a rotation (qk: Q and K; vw: V and W_O;
 * k; ...), or is "all". If no result file has data for the measure, out->n is 0. An unknown name is
 * an error. docs/definitions.md has the formulas.
 *
 * Null range: range of values that is expected if a paper's claim is false.
 *
 * Measures of singular values, in percent:
 *
 * - trailing-share, trailing-share-per-query: sum of the smaller half / sum of all, for rotations
 *   per KV head, or per query head; null range: that of the model with random weights or, without a
 *   file of it, of random vectors
 * - below-one, below-one-normalised: fraction of singular values below 1, before and after division
 *   by the square root of the number of decomposed vectors
 * - cv, cv-per-query: standard deviation / mean, over KV (query) heads, of a head's largest
 *   singular value
 *
 * Measures of the rotations R and S of two texts, in percent. epsilon: mean |R_ij|; delta: mean
 * |R_ij - S_ij|.
 *
 * - delta-ratio: delta / epsilon, as in the papers; aligned-ratio: the same after the signs of
 *   columns were matched
 * - energy-ratio: squared norm of one text's vectors in half of the dimensions of the other text's
 *   rotation / the same in its own rotation; null range: with a random rotation
 * - overlap-half: mean squared cosine of the angles between the leading halves of columns
 * - means-ratio: difference between mean |R_ij| and mean |S_ij|, / epsilon
 * - random-delta-ratio and so on: these five, if one of the texts is random token ids
 * - tokens-delta:PAIR:N: delta / epsilon for each calibration on more than N tokens
 * - tokens-fall: delta / epsilon with the most calibration tokens / with the fewest
 * - tokens-delta-random, tokens-fall-random: the same for calibration on random token ids only
 *
 * Measures of D, the relative error of the attention output (PAIR is "all"):
 *
 * - degradation: D on another text / D on the calibration text
 * - degradation-half: the same if these are the halves NAME-b and NAME-a of one text, which
 *   degradation leaves out
 * - degradation-norm, degradation-half-norm: these ratios with D as a ratio of norms
 *
 * Measures of calibration on a part of the sequences, or on K-means centroids:
 *
 * - prune-spectrum: largest change of a mean singular value / sqrt(number of vectors) if 0.45 to
 *   0.55 of the sequences are left out, in percent
 * - prune-rise:all, prune-time:all: perplexity, or calibration time, with the largest fraction of
 *   sequences left out / with the smallest
 * - centroids-fall:all, centroids-time:all: perplexity, or calibration time, with the most
 *   centroids / with the fewest
 * - the same with suffix -weighted: for weighted centroids; with suffix -rows: without K-means
 *
 * Measures of other functions: p99-... (kvd_rate_measure), serving-... (kvd_serving_measure),
 * jct-... (kvd_jct_measure), proposal-over-oracle:all (kvd_proposals_measure), and others with PAIR
 * "all" (kvd_setting_measure, kvd_token_measure). */
int kvd_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);
/* Appends a measured value with a formatted text that describes it. Ignores values that are not
 * finite. */
int kvd_values_put(kvd_measured *v, double value, kvd_err *err, const char *fmt, ...)
    KVD_PRINTF(4, 5);
/* Sets the 95 % confidence interval of the value appended last. */
void kvd_values_interval(kvd_measured *v, double lo, double hi);
/* Sets the null range of the value appended last: the range that is expected if the paper's claim
 * is false. */
void kvd_values_null(kvd_measured *v, double lo, double hi);
/* Records for the values from index `first` on that they are times, and on which device they were
 * measured. `engine` begins with the device's name, which ends at the first ',' or ';'. */
void kvd_values_timed_on(kvd_measured *v, size_t first, const char *engine);
void kvd_values_release(kvd_measured *v);

/* Returns true if `text`, a method with its parameters, matches `asked`. "zack" matches all
 * settings of zack; "zack,p=0.3" those with p = 0.3; "zack,!p" those without parameter p. */
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

/* Measures from searches for the strongest compression that keeps 99 % of a score (option
 * --target). kvd_rate_measure_known returns true if `name` is such a measure:
 *
 * - p99-A:TEXT: largest fraction of the cache that method A can remove
 * - p99-A-less-B:TEXT: that fraction of method A - that of method B, both from the same file
 *
 * TEXT is part of the label of the evaluated texts, or of the only task. A may end in "-RULE", the
 * rule that chose the kept dimensions. With "-by-METRIC" before the colon, only searches that kept
 * the score METRIC count. Scores that compare with the uncompressed model's output never count. */
bool kvd_rate_measure_known(const char *name);
int kvd_rate_measure(const kvd_results *r, const char *name, const char *text, kvd_measured *out,
                     kvd_err *err);

/* Measures that compare settings of methods, one value per accuracy file and text. KL: divergence
 * of predictions from the uncompressed model. Null: value that is expected if the claim is false.
 *
 * - mirror-kl: KL of method hetero with 2 bits for K and 4 for V / KL with 4 and 2; mirror-kl-high:
 *   the same ratio with 4 and 8 bits / with 8 and 4
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
 *   are also unimportant (important) in the next layer
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

/* Parameters that kvdim-fit --regression proposed for an allowed loss, and the loss and cache size
 * that were measured with these parameters (ZDC paper, section 8). */

typedef struct {
    const kvd_result *file;     /* kvdim/rates file with the proposed parameters */
    size_t proposal;            /* index of the proposal in `file` */
    const kvd_result *accuracy; /* accuracy file with the measurement in result row `row` */
    size_t row;
    double asked;          /* allowed loss: perplexity / perplexity of the uncompressed model - 1 */
    kvd_interval measured; /* measured loss, and its confidence interval */
    double share;          /* size of the cache as a fraction of a 16-bit cache */
    /* Smallest cache, as a fraction of a 16-bit cache, among results whose parameters kvdim-fit did
     * not propose and whose loss is at most `asked`. NaN if there is no such result. */
    double oracle_asked;
    /* Smallest cache, as a fraction of a 16-bit cache, among results whose parameters kvdim-fit did
     * not propose and whose loss is at most measured.value, the loss with the proposed parameters.
     * NaN if there is no such result. */
    double oracle_measured;
    /* Smallest caches, as fractions of a 16-bit cache, among results whose parameters kvdim-fit did
     * not propose: with a loss of at most measured.lo, and of at most measured.hi. NaN if there is
     * no such result. */
    double oracle_lo, oracle_hi;
} kvd_judged_proposal;

/* Lists measured results with parameters that kvdim-fit proposed, each with the smallest cache that
 * other parameters reached at no larger loss. The caller frees *all. */
int kvd_proposals_judge(const kvd_results *r, kvd_judged_proposal **all, size_t *n, kvd_err *err);

/* Computes by how many percent the cache with parameters that kvdim-fit proposed is larger than the
 * smallest cache measured with other parameters at no larger loss. */
int kvd_proposals_measure(const kvd_results *r, kvd_measured *out, kvd_err *err);

/* With fewer results of a method than this, the bytes that it saves while keeping 99 % of the
 * accuracy are not estimated. */
enum { KVD_FEWEST_POINTS = 3 };

/* Finds the search for the strongest compression that keeps the fraction `target` of the score,
 * with the method of result *e and in the same file. Returns NULL if there was none. */
const kvd_target_result *kvd_entry_search(const kvd_accuracy_entry *e, double target);

/* Estimates how many bytes a method saves while keeping 99 % of the accuracy, from its results
 * first to last (inclusive) in *all, which are ordered from the largest cache to the smallest. */
void kvd_target_from_points(const kvd_accuracy_entries *all, size_t first, size_t last,
                            kvd_target_result *x);

/* Returns true if the calibration left out sequences of its text, or replaced tokens by K-means
 * centroids. */
bool kvd_calibration_reduced(const kvd_spectrum *s);
/* Returns true if a calibration file serves only to compare ways of calibrating (ZDC paper, Fig. 15
 * and 26), so that other measures do not use it. */
bool kvd_calibration_compared(const kvd_results *r, const kvd_spectrum *s);

/* Returns the calibration that equals *s except that it used all sequences of the text, or NULL if
 * there is none. */
const kvd_spectrum *kvd_calibration_unpruned(const kvd_results *r, const kvd_spectrum *s);

/* Returns the calibration file with the model and the label that an accuracy result names, or NULL
 * if *r has no such file. */
const kvd_result *kvd_calibration_of(const kvd_results *r, const kvd_result *accuracy, size_t row);

/* accuracy result in row `row` of a file, and the file of the calibration that it used */
typedef struct {
    const kvd_result *spectrum, *accuracy;
    size_t row;
    double p; /* removed fraction of dimensions that the user asked for */
    /* Seconds in which the model's activations were recorded for calibration, multiplied by the
     * fraction of tokens that were not left out. */
    double collect_s;
    /* Seconds of calibration after the model's activations were recorded: summing over tokens,
     * K-means, and singular value decomposition. */
    double calibrate_s;
    double perplexity;
} kvd_calibration_point;

/* Lists accuracy results whose calibration file is in *r, ordered by text, method and removed
 * fraction. Lists none unless a calibration left out sequences or used K-means centroids. The
 * caller frees *points. */
int kvd_calibration_points(const kvd_results *r, kvd_calibration_point **points, size_t *n,
                           kvd_err *err);

/* Returns true if two results have the same method and remove the same fraction p of the
 * dimensions, under equal conditions. */
bool kvd_calibration_same_choice(const kvd_calibration_point *a, const kvd_calibration_point *b);
/* Returns true if two results have equal methods, removed fractions and kinds of calibration
 * vectors: tokens, centroids or weighted centroids. If `centroids`, the numbers of K-means
 * centroids must be equal too. */
bool kvd_calibration_same_rows(const kvd_calibration_point *a, const kvd_calibration_point *b,
                               bool centroids);

int kvd_calibration_spectra(const kvd_results *r, const char *name, kvd_pair pair,
                            kvd_measured *out, kvd_err *err);
int kvd_calibration_ratios(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

/* Writes the name of a curve in a figure, such as "uniform on wiki: weighted". It consists of the
 * method, the text (if `texts`) and the calibration vectors: tokens ("rows"), "centroids" or
 * "weighted" centroids. */
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
    /* Conditions of the measurement as text. Only values with equal conditions are compared. */
    char key[2 * KVD_LABEL + 128];
    char quantity[48];
    /* measured value, and the ends of its 95 % interval; the ends are NaN if the value has none */
    double value, lo, hi;
    const kvd_result *file; /* borrowed */
    size_t row;             /* row of an accuracy file, else 0 */
} kvd_observation;

typedef struct {
    kvd_observation *item;
    size_t n;
} kvd_observations;

/* Adds to the report a comparison of two sets of result files. *n_outside: number of comparisons
 * with the verdict "outside" or "differs". Fails if no value of one set was also measured in the
 * other, under equal conditions. */
int kvd_compare_section(const kvd_results *a, const kvd_results *b, kvd_report *report,
                        size_t *n_outside, kvd_err *err);

#endif
