/* Numbers that are computed from result files, for the tables and the ledger of claims. */
#ifndef KVD_REPORT_MEASURES_MEASURES_H
#define KVD_REPORT_MEASURES_MEASURES_H

#include "report/report.h"
#include "report/results.h"
#include "report/rows.h"

/*
 * Returns singular value number `dim`, averaged over all layers and heads. If `normalised`, divides
 * it by sqrt(n_rows) (Z-10 in docs/readings.md).
 */
double kvd_mean_sigma(const kvd_spectrum *s, kvd_pair pair, int dim, bool normalised);
/*
 * Returns the sum of the trailing half of the singular values / the sum of all, averaged over
 * heads; 0.5 if all are equal.
 */
double kvd_trailing_share(const kvd_spectrum *s, kvd_pair pair);
/*
 * Returns the number of leading dimensions that hold the fraction `share` of the energy (sum of
 * squared singular values), averaged over heads.
 */
double kvd_dims_for_energy(const kvd_spectrum *s, kvd_pair pair, double share);
/*
 * Returns the fraction of singular values below 1 (ZDC Fig. 13). If `normalised`, divides them by
 * sqrt(n_rows) first (D-22 in docs/readings.md).
 */
double kvd_share_below_one(const kvd_spectrum *s, kvd_pair pair, bool normalised);
/* Computes mean and sample standard deviation, over heads, of a head's largest singular value. */
int kvd_top_sigma(const kvd_spectrum *s, kvd_pair pair, double *mean, double *sd, kvd_err *err);

typedef struct {
    /*
     * Name of the curve: "TEXT against REFERENCE", or, for the mean over reference texts, a name
     * that says so.
     */
    char series[2 * KVD_LABEL + 16];
    kvd_pair pair;
    size_t n_tokens;
    /* Number of reference texts over which the values are averaged. */
    size_t n_averaged;
    /*
     * True if the figures of the report draw this curve. False if they draw only the mean of such
     * curves over all reference texts.
     */
    bool drawn;
    /* True if the calibration text is random token ids. */
    bool random;
    double delta_ratio, aligned_ratio, overlap_half, energy_half;
} kvd_token_point;

/*
 * Compares the rotations of a calibration text, computed from different numbers of tokens, with the
 * rotation of a reference text (ZACK Fig. 18, FDC Fig. 14). Calibration texts with only one number
 * of tokens are left out. If there are several reference texts, *points also has their mean. It is
 * computed at each number of tokens for which every reference text has a value. The elements are
 * ordered by calibration text, kind of rotation, reference text and number of tokens. The caller
 * frees *points.
 */
int kvd_token_points(const kvd_results *r, kvd_token_point **points, size_t *n, kvd_err *err);

/* Returns true if two files of a comparison have one text, by its label or its content. */
bool kvd_one_text(const kvd_similarity *s, size_t a, size_t b);
/*
 * Returns true if text i has the most tokens among the texts with its label. If several have the
 * most, only the first of them counts.
 */
bool kvd_most_tokens(const kvd_similarity *s, size_t i);

/*
 * Returns false if the result row belongs to a single random seed. The mean over the seeds has its
 * own result row.
 */
bool kvd_row_is_point(const kvd_rows *rows, size_t row);
/*
 * Returns true if the result row is about a model with quantised weights and an uncompressed cache.
 */
bool kvd_row_is_weights(const kvd_rows *rows, size_t row);
/* Returns true if the evaluated text is also the calibration text of the method. */
bool kvd_on_calibration_text(const kvd_rows *rows, size_t row);
/* Returns true if the labels are NAME-a and NAME-b, the two halves of one text. */
bool kvd_other_half(const char *a, const char *b);

typedef struct {
    double value;
    /* Text that says what was measured, with the name of the file. */
    char what[2 * KVD_LABEL + 64];
    /* Device on which a time was measured, such as "NVIDIA H200"; "" for other numbers. */
    char device[64];
    /*
     * Score that had to keep the share --target (kvd_target_result); "" if the value is no result
     * of --target.
     */
    char metric[48];
    /*
     * True if the queue of requests grows at this request rate, so that a longer simulation would
     * give another value.
     */
    bool grows;
    double lo, hi; /* ends of the 95 % interval; NaN if not known */
    /* Range in which the value is expected if the claim is false; NaN if not known. */
    double null_lo, null_hi;
    /* Request rate / highest rate of the baseline; NaN without a rate. */
    double load;
    /* Number of the curve (values by rising load) to which the value belongs. */
    size_t curve;
} kvd_measured_value;

typedef struct {
    kvd_measured_value *value;
    size_t n;
} kvd_measured;

/*
 * Computes the values of a measure from all result files. `name` is "NAME:MATRICES" or
 * "NAME:MATRICES:NUMBER", where MATRICES names the matrices that share a rotation (qk, vw, k, ...,
 * or all). If no file has the measure, out->n is 0. An unknown name is an error.
 *
 * A rotation is the orthogonal matrix of the right singular vectors of a head. epsilon is the mean
 * absolute element of a rotation, delta the mean absolute difference of two rotations. D is the
 * relative error of the attention output. n_rows is the number of decomposed vectors. If the claim
 * is false, trailing-share has the value of random weights or, without such files, of random
 * vectors; energy-ratio has that of a random rotation. docs/definitions.md has the formulas.
 *
 * Singular values:
 *
 *   trailing-share:k       kvd_trailing_share of rotations per KV head, percent
 *                          trailing-share-per-query: of rotations per query head
 *   below-one:qk           kvd_share_below_one, percent
 *                          below-one-normalised: after division by sqrt(n_rows)
 *   cv:qk                  coefficient of variation of each KV head's largest value, percent
 *                          cv-per-query: of each query head
 *
 * Similarity of the rotations of two texts:
 *
 *   delta-ratio:qk         delta / epsilon as the papers define them, percent
 *   aligned-ratio:qk       delta / epsilon after aligning the signs of columns, percent
 *   energy-ratio:qk        energy that half of the dimensions of the other text's rotation keep /
 *                          energy that those of the text's own rotation keep, percent
 *   overlap-half:qk        mean squared cosine of the angles between the leading halves of the
 *                          columns of two rotations, percent
 *   means-ratio:qk         difference of the mean absolute elements / epsilon, percent
 *   random-NAME:qk         one of the five measures above, with random token ids as one text
 *   tokens-delta:qk:N      delta / epsilon for calibrations with more than N tokens, percent
 *   tokens-fall:qk         delta / epsilon for the most calibration tokens / for the fewest
 *   tokens-...-random      the same for random calibration texts only
 *
 * Error of the attention output:
 *
 *   degradation:all        D on another text / D on the calibration text
 *   degradation-half:all   D on text NAME-b / D on text NAME-a, the halves of one text, which
 *                          degradation:all leaves out
 *   degradation-norm:all, degradation-half-norm:all
 *                          the same with D as a ratio of norms
 *
 * Calibration on fewer vectors, with pruned sequences or K-means centroids:
 *
 *   prune-spectrum:qk      largest change of the mean singular values / sqrt(n_rows) if half (0.45
 *                          to 0.55) of the sequences are pruned, over head dimensions, percent
 *   prune-rise:all         perplexity at the largest fraction pruned / at the smallest
 *   prune-time:all         seconds at the largest fraction pruned / at the smallest
 *   centroids-fall:all     perplexity with the most centroids / with the fewest
 *   centroids-time:all     seconds with the most centroids / with the fewest
 *   ...-weighted           the same with weighted centroids
 *   prune-...-rows         the same without K-means
 *
 * Calibrations on pruned sequences or centroids have no other measure.
 *
 * Measures that other functions compute:
 *
 *   p99-...:TEXT              kvd_rate_measure
 *   proposal-over-oracle:all  kvd_proposals_measure
 *   serving-...:TRACE         kvd_serving_measure
 *   jct-...:SIZES             kvd_jct_measure
 *   NAME:all                  kvd_setting_measure, kvd_token_measure
 */
int kvd_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);
/*
 * Appends a value to *v. The formatted text says what was measured. If `value` is NaN, appends
 * nothing.
 */
int kvd_values_put(kvd_measured *v, double value, kvd_err *err, const char *fmt, ...)
    KVD_PRINTF(4, 5);
/*
 * Set the 95 % interval (kvd_values_interval), or the range expected if the claim is false
 * (kvd_values_null), of the value that was appended last. If no value was appended, they do
 * nothing.
 */
void kvd_values_interval(kvd_measured *v, double lo, double hi);
void kvd_values_null(kvd_measured *v, double lo, double hi);
/*
 * Marks the values from index `first` to the last as times. `engine` begins with the name of the
 * device on which they were measured.
 */
void kvd_values_timed_on(kvd_measured *v, size_t first, const char *engine);
void kvd_values_release(kvd_measured *v);

/*
 * Measures of job completion times (JCT) on a GPU, with one value for each job that matches.
 * "change" means (value of A / value of B) - 1, for the same file and lengths.
 *
 *   METHOD, A, B   a method as in kvd_report_is_method
 *   PHASES         columns of times without "_s", joined by '+' ("prefill_mlp+decode_mlp")
 *   SIZES          input and output lengths ("100000x256"), joined by '+', or "all"
 *
 *   jct-share-METHOD-PHASES:SIZES              PHASES in percent of the JCT
 *   jct-of-prompts-METHOD-PHASES:SIZES         PHASES in percent of the time of prompts
 *   jct-of-steps-METHOD-PHASES:SIZES           PHASES in percent of the time of decode steps
 *   jct-extra-METHOD-PHASES:SIZES              time in PHASES less that of the uncompressed
 *                                              cache, in percent of the JCT
 *   jct-change-A-over-B:SIZES                  change of the JCT in percent
 *   jct-parts-A-PHASES-over-B:SIZES            change of PHASES in percent
 *   jct-growth-METHOD-PHASES:FIRST+LAST        jct-share at size LAST less that at size FIRST
 *   jct-perplexity-A-over-B:SIZES              change of the perplexity at equal JCT in percent:
 *                                              perplexity of each setting of A over that of B,
 *                                              interpolated at the same JCT between two settings of
 *                                              B, for each text of kvdim-eval with this model
 *   jct-shared-METHOD-PHASES:SIZES             as jct-share, on GPUs that divide each prompt
 *   jct-shared-change-A-PHASES-over-B:SIZES    as jct-parts, on GPUs that divide each prompt
 *
 * A job without time in PHASES has no value of jct-share, jct-of-... and jct-shared.
 */
/*
 * Returns true if the method `text` has the name and all parameters in `asked`, such as
 * "zack,p=0.3", and no parameter that `asked` excludes ("!p"). If the method has the parameter
 * online=1 or explicit=1, it matches only if `asked` contains that parameter too.
 */
bool kvd_report_is_method(const char *text, const char *asked);

bool kvd_jct_measure_known(const char *name);
int kvd_jct_measure(const kvd_results *r, const char *name, const char *sizes, kvd_measured *out,
                    kvd_err *err);

/*
 * Measures "p99-...": the largest fraction of the cache that a method can remove while it keeps 99
 * % of the top-1 accuracy. In files of kvdim-tasks another score takes the place of accuracy. The
 * fraction is the result of the search --target. p99-A:TEXT is the fraction of method A,
 * p99-A-less-B:TEXT the fraction of A minus the fraction of B in the same file. Labels of the files
 * must contain TEXT. A may end in "-RULE", the name of the rule that chose its kept dimensions per
 * head. Scores against the output of the uncompressed model are left out, because the papers score
 * answers.
 */
bool kvd_rate_measure_known(const char *name);
int kvd_rate_measure(const kvd_results *r, const char *name, const char *text, kvd_measured *out,
                     kvd_err *err);

/*
 * Measures that compare parameters of methods, with one value per accuracy file and text. KL is the
 * KL divergence of the predictions from those of the uncompressed model.
 *
 *   mirror-kl               KL of hetero (quantisation) with 2 bits for K and 4 for V / with 4 bits
 *                           for K and 2 for V
 *                           mirror-kl-high: with 4 and 8 bits / with 8 and 4
 *   neutral-cache           smallest cache of leankv that keeps 0.99 of the top-1 accuracy, in
 *                           percent of a 16-bit cache; the 95 % interval must reach 1
 *   five-percent-cache      the same with 0.95 and any interval
 *   v-over-qk               perplexity of zack with dimensions removed from V only / from Q and K
 *                           only, at the largest removed fraction that both have
 *   kv-over-weights         perplexity of hetero with 4-bit K and V / of 4-bit weights, less 1, in
 *                           percent
 *                           kv-over-weights-prompt: prompts attend to uncompressed K and V
 *   h2o-over-sparsity-kl    KL of h2o / KL of sparsity (with th = tl) at the same cache size; 1 is
 *                           expected if the claim is false
 */
bool kvd_setting_measure_known(const char *name);
int kvd_setting_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

/*
 * Measures of token statistics, with one value per kvdim/tokens file of a trained model. In each
 * layer, a fixed fraction of the tokens with the highest mean scores as queries is important, and
 * the same fraction with the lowest scores unimportant.
 *
 *   score-range          range of attention scores of the last layer / of the first, percent
 *   near-unimportant     unimportant tokens that neighbouring layers have in common, percent
 *                        near-unimportant-as-key: ranked by the mean score as a key
 *                        near-unimportant-denominator: ranked by the softmax denominator
 *                        near-important...: the same three for important tokens
 *   rise-unimportant     near-unimportant less the percentage that the first and last layer have in
 *                        common
 *                        rise-important: the same for important tokens
 *   received-decades     powers of ten between the 0.1 % and 99.9 % quantile of the attention that
 *                        tokens receive, mean over layers
 *   value-decades        the same for norms of value vectors, largest over layers
 *   more-decades         received attention less value norms, smallest over layers
 *
 * Critical tokens are the fewest tokens that receive 95 % of the attention, mean over requests:
 *
 *   critical-layers      number of critical tokens in the layer with the most / with the fewest
 *   critical-heads       number in the KV head with the most / with the fewest, mean over layers
 *   critical-requests    standard deviation over requests / mean of the number, percent
 *
 * If the claim is false, the values of the same model with random weights are expected. For
 * critical-layers and critical-heads, ratios that chance produces are expected as well.
 */
bool kvd_token_measure_known(const char *name);
int kvd_token_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

/*
 * Parameters that kvdim-fit --regression proposed for an allowed loss of quality, and a measurement
 * with them. The Oracle is the best choice of parameters in hindsight on the same text (ZDC section
 * 8).
 */

typedef struct {
    /* The kvdim/rates file in which kvdim-fit stored the proposed parameters. */
    const kvd_result *file;
    size_t proposal;            /* index of the proposal in `file` */
    const kvd_result *accuracy; /* accuracy file with the measurement in result row `row` */
    size_t row;
    /* Allowed loss: perplexity / perplexity of the uncompressed model - 1. */
    double asked;
    /* Measured loss, and its confidence interval. */
    kvd_interval measured;
    /* Size of the cache, as a fraction of a 16-bit cache. */
    double share;
    /*
     * Smallest cache measured with other parameters whose loss is at most `asked`, the loss allowed
     * by the user. As a fraction of a 16-bit cache; NaN if there is none.
     */
    double oracle_asked;
    /*
     * Smallest cache measured with other parameters and a loss of at most measured.value; NaN if
     * there is none.
     */
    double oracle_measured;
    /*
     * Smallest caches measured with other parameters and a loss of at most measured.lo and
     * measured.hi; NaN if there are none.
     */
    double oracle_lo, oracle_hi;
} kvd_judged_proposal;

/*
 * Fills *all with every measurement of proposed parameters. Each is compared with the Oracle, the
 * best parameters in hindsight. The Oracle is chosen among the result rows that have the same
 * model, text, tokens, prompt and method but did not measure a proposal. The caller frees *all.
 */
int kvd_proposals_judge(const kvd_results *r, kvd_judged_proposal **all, size_t *n, kvd_err *err);

/*
 * Computes "proposal-over-oracle": by how many percent the cache with proposed parameters is larger
 * than with the best parameters in hindsight (the Oracle). The regression must have been fitted to
 * the same model, and the allowed loss must be within the fitted losses. The interval is computed
 * from the confidence interval of the measured loss.
 */
int kvd_proposals_measure(const kvd_results *r, kvd_measured *out, kvd_err *err);

/* Fewest result rows that suffice to read from them the bytes saved at 99 % of the accuracy. */
enum { KVD_FEWEST_POINTS = 3 };

/*
 * Returns the strongest compression with the fraction `target` of the accuracy that kvdim-eval
 * --target found for the method of result row `e`, or NULL.
 */
const kvd_target_result *kvd_entry_search(const kvd_accuracy_entry *e, double target);

/*
 * Reads the bytes saved at 99 % of the top-1 accuracy from result rows first .. last: one method
 * with different parameters on one text, from many bytes to few.
 *
 * If the rows differ in one parameter (or in two that always rise or fall together), the result is
 * the row before the first row that misses the target.
 *
 * Otherwise the parameters form a grid. x->saving is the largest saving of a row whose accuracy
 * meets the target. For x->saving_lo the whole confidence interval must meet the target. A row
 * surely misses the target if its whole interval is below the target. x->saving_hi is the smallest
 * saving of such a row, provided that every row that may meet the target saves less.
 */
void kvd_target_from_points(const kvd_accuracy_entries *all, size_t first, size_t last,
                            kvd_target_result *x);

/*
 * Returns true if sequences were pruned or vectors replaced by K-means centroids. The report shows
 * such results in a section of their own.
 */
bool kvd_calibration_reduced(const kvd_spectrum *s);
/*
 * Returns true if the file serves only the comparison of calibrations (ZDC Fig. 15 and 26). There
 * are three such cases. First, the file was reduced by pruning or centroids. Second, it is of one
 * half of a text, and the other half is among the results. Third, it is the unpruned file with
 * which files of pruned sequences are compared, and the results have another unpruned file of the
 * model.
 */
bool kvd_calibration_compared(const kvd_results *r, const kvd_spectrum *s);

/* Returns the file that was calibrated like `s`, but without pruning, or NULL. */
const kvd_spectrum *kvd_calibration_unpruned(const kvd_results *r, const kvd_spectrum *s);

/*
 * Returns the kvdim/spectrum file that result row `row` of an accuracy file names as its
 * calibration, by label and model, or NULL.
 */
const kvd_result *kvd_calibration_of(const kvd_results *r, const kvd_result *accuracy, size_t row);

/*
 * A result row of an accuracy file, and the kvdim/spectrum file with which its model was
 * compressed.
 */
typedef struct {
    const kvd_result *spectrum, *accuracy;
    size_t row;
    double p; /* removed fraction of dimensions that was asked for */
    /* Seconds for recording the input, multiplied by the fraction of tokens that were kept. */
    double collect_s;
    /* Seconds for reading and summing vectors, K-means and decomposition. */
    double calibrate_s;
    double perplexity;
} kvd_calibration_point;

/*
 * Fills *points with the result rows of accuracy files whose removed fraction p was given on the
 * command line. If no calibration used pruned sequences or centroids, sets *n to 0. The elements
 * are ordered by text, method and p, then by kind of vectors, number of centroids and fraction
 * pruned. The caller frees *points.
 */
int kvd_calibration_points(const kvd_results *r, kvd_calibration_point **points, size_t *n,
                           kvd_err *err);

/*
 * Returns true if both points have the same method and removed fraction p. The kept dimensions of
 * single heads may differ.
 */
bool kvd_calibration_same_choice(const kvd_calibration_point *a, const kvd_calibration_point *b);
/*
 * Returns true if kvd_calibration_same_choice holds and both points used the same kind of vectors
 * (token vectors, centroids or weighted centroids). If `centroids`, their number of centroids must
 * be equal too.
 */
bool kvd_calibration_same_rows(const kvd_calibration_point *a, const kvd_calibration_point *b,
                               bool centroids);

/*
 * Compute the measures "prune-..." and "centroids-...": effects of calibrating on fewer vectors
 * (see kvd_measure).
 */
int kvd_calibration_spectra(const kvd_results *r, const char *name, kvd_pair pair,
                            kvd_measured *out, kvd_err *err);
int kvd_calibration_ratios(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

/*
 * Writes the name of a curve, such as "uniform: weighted": the method, the text if `texts`, and the
 * kind of vectors.
 */
void kvd_calibration_series(const kvd_calibration_point *x, bool texts, char *buf, size_t size);

/*
 * Measures "serving-WHAT-A-over-B:TRACE" compare methods A and B in simulated serving. "zack"
 * matches all parameters of zack, "zack,p=0.3" one value of p, and "zack,!p" rows without p.
 * Results of A and B are compared if only method and request rate differ (report/rows.h). A load is
 * a request rate / the highest rate of B; loads above 1 are left out. WHAT is one of:
 *
 *   ttft, tbt, jct   mean time of A / of B, less 1, in percent; one value per load
 *   rate             (rate of A / rate of B) at equal latency: the latency that B has at a load;
 *                    one value per load; 0 if A never has so low a latency, and the highest
 *                    rate of A counts if its latency is lower at all rates
 *   top              highest rate of A / of B under the same bound on latency
 *   throughput       output tokens per second of A / of B at rates at which memory is short: B
 *                    serves less than arrives and runs at most half of max_batch at once
 *   running          mean number of requests that A runs / that B runs, at the rates that count for
 *                    `throughput`
 *
 * The values under one set of conditions form a curve by rising load. A value is marked (`grows`)
 * if A or B serves less than 0.9 times the rate at which requests arrive, or if its last request
 * ends later than its time of service explains, by more than 5 % of the time of arrivals.
 */
bool kvd_serving_measure_known(const char *name);
int kvd_serving_measure(const kvd_results *r, const char *name, const char *trace,
                        kvd_measured *out, kvd_err *err);

typedef struct {
    /*
     * Conditions of the measurement: kind of file, labels, method, removed fraction p and others.
     * Only numbers with equal `key` are compared.
     */
    char key[2 * KVD_LABEL + 128];
    char quantity[48];
    /* Value and its 95 % interval; lo and hi are NaN without an interval. */
    double value, lo, hi;
} kvd_observation;

typedef struct {
    kvd_observation *item;
    size_t n;
} kvd_observations;

/*
 * Returns "inside" if each value is in the interval of the other measurement, else "outside". If
 * only one measurement has an interval, only the value of the other must be inside. If neither has
 * one, returns "equal" (to nine digits) or "differs".
 */
const char *kvd_compare_verdict(const kvd_observation *a, const kvd_observation *b);

/*
 * Adds the section that compares two sets of result files. *n_outside is the number of verdicts
 * "outside" or "differs". Fails if no number of one set matches a number of the other.
 */
int kvd_compare_section(const kvd_results *a, const kvd_results *b, kvd_report *report,
                        size_t *n_outside, kvd_err *err);

#endif
