/* Numbers that are computed from result files, for the tables and the ledger. */
#ifndef KVD_REPORT_MEASURES_MEASURES_H
#define KVD_REPORT_MEASURES_MEASURES_H

#include "report/report.h"
#include "report/results.h"
#include "report/rows.h"

/* ---- measures of singular values over all layers and heads ----------------------------------- */

/*
 * Returns the singular value number `dim`, averaged over all layers and heads. If `normalised`,
 * divides the mean by sqrt(n_rows) (Z-10 in docs/readings.md).
 */
double kvd_mean_sigma(const kvd_spectrum *s, kvd_pair pair, int dim, bool normalised);
/*
 * Returns the sum of the trailing half of the singular values / the sum of all, averaged over
 * heads; 0.5 if all singular values are equal.
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
/*
 * Computes the mean and the sample standard deviation, over heads, of the largest singular value of
 * a head. Returns -1 if memory runs out.
 */
int kvd_top_sigma(const kvd_spectrum *s, kvd_pair pair, double *mean, double *sd, kvd_err *err);

/* ---- similarity of rotations against calibration tokens (ZACK Fig. 18, FDC Fig. 14) --------- */

typedef struct {
    /* Name of the curve: "LABEL against REFERENCE", or the mean over reference texts. */
    char series[2 * KVD_LABEL + 16];
    kvd_pair pair;
    size_t n_tokens;
    size_t n_averaged; /* number of reference texts in the mean; 1 if the entry is not a mean */
    /* False if a figure draws the mean instead of this single reference text. */
    bool drawn;
    /* True if the calibration text whose token count varies is random token ids. */
    bool random;
    double delta_ratio, aligned_ratio, overlap_half, energy_half;
} kvd_token_point;

/*
 * Fills *points from similarity files in which one calibration text appears with two or more token
 * counts: one element for each token count and reference text with which the rotation is compared.
 * Also adds, for each calibration text and kind of rotation, the mean over all reference texts, at
 * the token counts that have a value for each of them. The elements are ordered by calibration
 * text, kind of rotation, reference text and token count. The caller frees *points.
 */
int kvd_token_points(const kvd_results *r, kvd_token_point **points, size_t *n, kvd_err *err);

/*
 * Returns true if no other text in this similarity file with the label of text i has more tokens.
 * Of texts with equal token counts, this is true for the first.
 */
bool kvd_most_tokens(const kvd_similarity *s, size_t i);

/* ---- kinds of lines in accuracy results ---- */

/*
 * Returns false if the results line belongs to a single random seed. The mean over the seeds is in
 * an earlier line.
 */
bool kvd_row_is_point(const kvd_rows *rows, size_t row);
/*
 * Returns true if the results line is about a model with quantised weights. Such a line says
 * nothing about a method that compresses the cache (study_settings.c).
 */
bool kvd_row_is_weights(const kvd_rows *rows, size_t row);
/*
 * Returns true if the text that was evaluated in this results line is also the calibration text of
 * the method.
 */
bool kvd_on_calibration_text(const kvd_rows *rows, size_t row);
/* Returns true if the labels are NAME-a and NAME-b, which name the two halves of one text. */
bool kvd_other_half(const char *a, const char *b);

/* ---- measured values, which the ledger of claims asks for by name ---------------------------- */

typedef struct {
    double value;
    /* Description of the measurement and the name of its file. */
    char what[2 * KVD_LABEL + 64];
    /* Device on which a time was measured, such as "NVIDIA H200"; "" for other numbers. */
    char device[64];
    /*
     * True if the queue of requests grows at this request rate, so that a longer simulation would
     * give another value.
     */
    bool grows;
    double lo, hi; /* ends of the value's 95 % interval; NaN if not known */
    /* Range in which the value is expected if the claim is false; NaN if not known. */
    double null_lo, null_hi;
    /*
     * Load to which the value belongs: request rate / the baseline's highest rate. NaN if the value
     * was not measured at a request rate.
     */
    double load;
    /*
     * Number of the curve to which the value belongs. A curve has one value per load (request rate
     * / the baseline's highest rate).
     */
    size_t curve;
} kvd_measured_value;

typedef struct {
    kvd_measured_value *value;
    size_t n;
} kvd_measured;

/*
 * Computes the values of a measure from all result files. `name` is "NAME:PAIR" or
 * "NAME:PAIR:NUMBER", where PAIR names the rotated matrices (qk, vw, k, ...). epsilon is the mean
 * absolute element of a rotation, delta the mean absolute difference of two rotations, and D the
 * relative error of the attention output (docs/notation.md).
 *
 *   trailing-share:k       kvd_trailing_share, percent, of rotations per KV head. If the claim is
 *                          false, the value of equal singular values is expected.
 *                          trailing-share-per-query: of rotations per query head
 *   below-one:qk           kvd_share_below_one, percent
 *                          below-one-normalised: after division by sqrt(n_rows)
 *   cv:qk                  100 * sd / mean of the largest singular value of each KV head
 *                          cv-per-query: of each query head
 *   delta-ratio:qk         100 * delta / epsilon of two texts, as the papers print them
 *   aligned-ratio:qk       100 * delta / epsilon after aligning the signs of columns
 *   energy-ratio:qk        100 * energy kept at half of the dimensions by the rotation of another
 *                          text / energy kept by the rotation of the text itself. If the claim is
 *                          false, the energy kept by a random rotation is expected.
 *   overlap-half:qk        overlap of the leading halves of two rotations, percent
 *   means-ratio:qk         100 * difference of the mean absolute elements over all heads / epsilon
 *   random-...:qk          the five measures before, of a text and random token ids
 *   tokens-delta:qk:N      100 * delta / epsilon for calibrations with more than N tokens
 *   tokens-fall:qk         delta / epsilon for the most calibration tokens, divided by delta /
 *                          epsilon for the fewest
 *   tokens-...-random      tokens-delta and tokens-fall for random calibration texts only
 *   degradation:all        D on another text / D on the calibration text, under equal conditions
 *   degradation-half:all   D on text NAME-b / D on text NAME-a, the two halves of one text, which
 *                          degradation:all leaves out
 *   degradation-norm:all, degradation-half-norm:all
 *                          the two measures before, with D as a ratio of norms
 *   prune-spectrum:qk      largest change over head dimensions, in percent, of the mean singular
 *                          values / sqrt(n_rows) if half of the sequences (0.45 to 0.55) are
 *                          pruned, for unweighted centroids of equal number
 *   prune-rise:all         perplexity at the largest fraction pruned / at the smallest
 *   prune-time:all         seconds at the largest fraction pruned / at the smallest
 *   centroids-fall:all     perplexity with the most K-means centroids / with the fewest, at equal
 *                          fraction pruned
 *   centroids-time:all     seconds with the most centroids / with the fewest
 *   p99-...:TEXT           kvd_rate_measure
 *   proposal-over-oracle:all
 *                          kvd_proposals_measure
 *   NAME:all               kvd_token_measure
 *   serving-...:TRACE      kvd_serving_measure
 *   jct-...:SIZES          kvd_jct_measure
 *
 * The names prune-... and centroids-... may end in -weighted for weighted centroids, the names
 * prune-... also in -rows for calibration without K-means. Calibrations on pruned or clustered
 * vectors count only for these measures. If no file has the measure, out->n is 0. An unknown name
 * is an error.
 */
int kvd_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);
/*
 * Appends a measured value with a text that says what was measured and where. If `value` is NaN,
 * appends nothing.
 */
int kvd_values_put(kvd_measured *v, double value, kvd_err *err, const char *fmt, ...)
    KVD_PRINTF(4, 5);
/*
 * Complete the value appended last: kvd_values_interval sets its 95 % interval, kvd_values_null the
 * range that is expected if the claim is false. If no value was appended, they do nothing.
 */
void kvd_values_interval(kvd_measured *v, double lo, double hi);
void kvd_values_null(kvd_measured *v, double lo, double hi);
/*
 * Marks the values from index `first` on as times measured on a device, whose name is at the start
 * of the text `engine`.
 */
void kvd_values_timed_on(kvd_measured *v, size_t first, const char *engine);
void kvd_values_release(kvd_measured *v);

/* ---- measures of kvdim/jct files (job completion times) -------------------------------------- */

/*
 * Measures of the job completion times (JCT) of jobs that ran on a GPU. In the names, METHOD is a
 * method, which covers all its settings, or a method with parameters ("zack,p=0.3"), which covers
 * one. PART is a column of phase times without "_s" ("decode_restore"). SIZES is "100000x256", the
 * numbers of input and output tokens, several of them joined by plus signs, or "all".
 *
 *   jct-share-METHOD-PART[+PART]...:SIZES
 *     the phases in percent of the JCT; a job without any of them does not count, because another
 *     phase may do their work
 *   jct-of-prompts-METHOD-PART[+PART]...:SIZES
 *     the phases in percent of the time of prompts
 *   jct-of-steps-METHOD-PART[+PART]...:SIZES
 *     the phases in percent of the time of decode steps
 *   jct-extra-METHOD-PART[+PART]...:SIZES
 *     the phases less those of the uncompressed cache (method none) in the same file and sizes, in
 *     percent of the JCT
 *   jct-change-A-over-B:SIZES
 *     JCT of A / JCT of B in the same file and sizes, less 1, in percent
 *   jct-parts-METHOD-PART[+PART]...-over-OTHER:SIZES
 *     time of the phases / that with method OTHER in the same file and sizes, less 1, in percent
 *   jct-shared-METHOD-PART[+PART]...:SIZES
 *     as jct-share, for jobs on several GPUs that divide each prompt by its tokens
 *   jct-shared-change-METHOD-PART[+PART]...-over-OTHER:SIZES
 *     as jct-parts, for those jobs
 */
bool kvd_jct_measure_known(const char *name);
int kvd_jct_measure(const kvd_results *r, const char *name, const char *sizes, kvd_measured *out,
                    kvd_err *err);

/*
 * Measures of how much of the cache a method removes at 99 % of the uncompressed accuracy, as found
 * by kvdim-eval --target, for the ledger of claims.
 */

/*
 * Measures of the fraction of the cache that methods remove at 99 % of the uncompressed top-1
 * accuracy. p99-A:TEXT is the fraction that A removes, with its 95 % interval. p99-A-less-B:TEXT is
 * the difference of the fractions of A and B in one file; its interval is the widest that the two
 * intervals allow.
 *
 * There is one value per accuracy file that has a search of A (kvdim-eval --target) and whose label
 * contains TEXT, ignoring upper and lower case. A is the name of a search: a method, with "-RULE"
 * if its kept dimensions follow another rule than its default.
 */
bool kvd_rate_measure_known(const char *name);
int kvd_rate_measure(const kvd_results *r, const char *name, const char *text, kvd_measured *out,
                     kvd_err *err);

/* ---- measures that compare several settings of a method -------------------------------------- */

/*
 * Measures that compare settings of methods in accuracy files. There is one value per file and
 * evaluated text:
 *
 *   mirror-kl               KL divergence of method hetero (quantisation) with 2 bits for K and 4
 *                           for V, divided by that with 4 bits for K and 2 for V
 *                           mirror-kl-high: with 4 and 8 bits, divided by that with 8 and 4
 *   neutral-cache           smallest cache, in percent of a 16-bit cache, among leankv settings
 *                           that keep at least 0.99 of top-1 accuracy, with an interval that
 *                           reaches 1
 *   five-percent-cache      as neutral-cache, for settings that keep at least 0.95 of top-1
 *                           accuracy
 *   v-over-qk               perplexity of zack if it removes dimensions of V only, divided by its
 *                           perplexity if it removes dimensions of Q and K only, at the largest
 *                           removed fraction p that both have
 *   kv-over-weights         perplexity of hetero with 4 bits for keys and values / that of the
 *                           model with 4-bit weights, less 1, in percent; all tokens read the
 *                           compressed cache
 *                           kv-over-weights-prompt: prompts attend to uncompressed K and V
 *   h2o-over-sparsity-kl    KL divergence of h2o / that of sparsity at the same cache size, one
 *                           value per setting of sparsity. Both methods drop tokens. Settings of
 *                           sparsity that keep some tokens at lower precision (its thresholds th
 *                           and tl differ) are left out. 1 is expected if the claim is false.
 *
 * A file without the results that a measure compares has no value of it.
 */
bool kvd_setting_measure_known(const char *name);
int kvd_setting_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

/* ---- measures of kvdim/tokens files ---------------------------------------------------------- */

/*
 * Measures of token statistics, with one value per kvdim/tokens file of a trained model:
 *
 *   score-range             range of the attention scores (largest less smallest) of the last layer
 *                           / that of the first, in percent
 *   near-unimportant        percentage of the unimportant tokens that neighbouring layers have in
 *                           common: mean over neighbours, with its interval over requests. Tokens
 *                           are ranked by their mean score as a query.
 *                           near-unimportant-as-key: ranked by the mean score as a key
 *                           near-unimportant-denominator: ranked by softmax denominators
 *                           near-important...: the same three for the important tokens
 *   rise-unimportant        near-unimportant less the percentage that the first and the last layer
 *                           have in common
 *                           rise-important: the same for the important tokens
 *   received-decades        powers of ten between the 0.1 % and 99.9 % quantiles of the mean
 *                           attention received by a token, mean over layers
 *   value-decades           powers of ten between the same quantiles of the norms of value vectors,
 *                           largest over layers
 *   more-decades            decades of received attention less decades of value norms in one layer,
 *                           smallest over layers
 *   critical-layers         number of critical tokens (the fewest tokens that receive 95 % of the
 *                           attention, mean over requests) of the layer with the most / of the
 *                           layer with the fewest
 *   critical-heads          number of critical tokens of the KV head with the most / of the KV head
 *                           with the fewest, mean of this ratio over layers
 *   critical-requests       standard deviation over requests / mean of the number of critical
 *                           tokens of a KV head, mean over heads, in percent
 *
 * A file of one layer (of one KV head) has no value of measures that compare layers (heads).
 *
 * The range expected if the claim is false is that of the measure in files of the same model and
 * seq_len with random weights. For critical-layers and critical-heads the range is from 1 to a
 * largest ratio. It is the larger of two: the largest ratio with random weights, and the ratio that
 * chance produces. Chance produces a ratio above 1 even if all layers (heads) have equal means,
 * because requests differ.
 */
bool kvd_token_measure_known(const char *name);
int kvd_token_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

/*
 * A setting that kvdim-fit --regression proposed for an allowed loss, and that was then measured.
 * It is compared with the Oracle, the best setting in hindsight, on the same text (ZDC section 8).
 */

typedef struct {
    const kvd_result *file; /* kvdim/rates file with the proposal */
    /* Index, in the table of proposed settings of `file`, of the proposed setting. */
    size_t proposal;
    /* Accuracy file that measured the proposal. */
    const kvd_result *accuracy;
    /* Index of the results line in `accuracy` that measured the proposal. */
    size_t row;
    /*
     * Allowed loss for which the setting was proposed: perplexity / perplexity of the uncompressed
     * model - 1.
     */
    double asked;
    kvd_interval measured; /* loss measured with the proposal, and its interval */
    /* Bytes that the proposal stores / bytes of a 16-bit cache. */
    double share;
    /*
     * Smallest stored size, as a fraction of a 16-bit cache, among the measured settings that are
     * not proposals and whose loss is at most `asked`; NaN if there is none.
     */
    double oracle_asked;
    /*
     * Smallest stored size, as a fraction of a 16-bit cache, among the measured settings that are
     * not proposals and whose loss is at most the measured loss of the proposal; NaN if there is
     * none.
     */
    double oracle_measured;
    /*
     * As oracle_measured, if the measured loss of the proposal is replaced by the lower end (lo) or
     * by the upper end (hi) of its confidence interval; NaN if no setting has so small a loss.
     */
    double oracle_lo, oracle_hi;
} kvd_judged_proposal;

/*
 * Fills *all with every proposed setting that was measured, once per accuracy file of its model
 * that has a results line with exactly its parameters. The Oracle (best setting in hindsight) is
 * searched among the results lines with equal model, text, tokens, prompt and method that are not
 * proposals. The caller frees *all.
 */
int kvd_proposals_judge(const kvd_results *r, kvd_judged_proposal **all, size_t *n, kvd_err *err);

/*
 * Computes the measure "proposal-over-oracle": by how many percent the bytes that a proposed
 * setting stores exceed those that the best setting in hindsight (the Oracle) stores.
 *
 * A proposal counts only if its allowed loss is within the range of losses to which its regression
 * was fitted. The regression must have been fitted to measurements of the same model, because the
 * regression of the ZDC paper knows its models. The interval of the measure follows from the
 * Oracle's bytes at the two ends of the confidence interval of the measured loss.
 */
int kvd_proposals_measure(const kvd_results *r, kvd_measured *out, kvd_err *err);

/* ---- bytes saved at a given fraction of the top-1 accuracy ---- */

/*
 * Smallest number of evaluated settings from which the bytes saved at 99 % of the accuracy may be
 * read.
 */
enum { KVD_FEWEST_POINTS = 3 };

/*
 * Returns the result of the search (kvdim-eval --target) for the strongest compression at which the
 * method keeps the fraction `target` of the accuracy, from the file of results line `e`. Returns
 * NULL if there is none.
 */
const kvd_target_result *kvd_entry_search(const kvd_accuracy_entry *e, double target);

/*
 * Reads the bytes saved at 99 % of the top-1 accuracy from results lines first .. last, which are
 * settings of one method on one text, from many bytes to few.
 *
 * The settings are a line if they differ in one parameter only, or if a second parameter always
 * rises or always falls with the first (h2o.recent with h2o.heavy). The result is then the last
 * setting before the first that misses the target. The uncompressed model precedes the first
 * setting.
 *
 * Otherwise the settings have no order (a grid). `saving` is then the largest saving among settings
 * whose estimated accuracy meets the target. `saving_lo` is the largest among settings whose whole
 * confidence interval meets it. `saving_hi` bounds the saving from above. Let x be the largest
 * saving among settings whose confidence interval meets the target at least in part. `saving_hi` is
 * the smallest saving above x of a setting whose whole interval misses the target.
 */
void kvd_target_from_points(const kvd_accuracy_entries *all, size_t first, size_t last,
                            kvd_target_result *x);

/* ---- calibration on fewer vectors: cost and accuracy (ZDC Fig. 15 and 26) ---- */

/*
 * Returns true if rotations were computed from pruned sequences or from K-means centroids. The
 * report shows such results in a section of their own.
 */
bool kvd_calibration_reduced(const kvd_spectrum *s);
/*
 * Returns true if the singular values belong to a study of calibration (ZDC Fig. 15 and 26):
 * computed from fewer tokens, from the tokens that other files prune, or from one of the two halves
 * of a text. Claims about texts do not use such files.
 */
bool kvd_calibration_compared(const kvd_results *r, const kvd_spectrum *s);

/*
 * Returns the kvdim/spectrum file (rotations of one calibration) among the results that was
 * calibrated like `s`, but without pruning sequences, or NULL.
 */
const kvd_spectrum *kvd_calibration_unpruned(const kvd_results *r, const kvd_spectrum *s);

/*
 * Returns the kvdim/spectrum file (rotations of one calibration) that results line `row` of an
 * accuracy file names as its calibration, by label and model. Returns NULL if it is not among the
 * results.
 */
const kvd_result *kvd_calibration_of(const kvd_results *r, const kvd_result *accuracy, size_t row);

/*
 * An entry of the study of calibrations: one kvdim/spectrum file (rotations of one calibration),
 * and one accuracy results line of a model that was compressed with them.
 */
typedef struct {
    const kvd_result *spectrum, *accuracy;
    size_t row;
    double p; /* removed fraction of dimensions that the user asked for */
    /* Seconds of recording the input files, times the fraction of tokens that was kept. */
    double collect_s;
    /* Seconds for reading and summing vectors, K-means and decomposition. */
    double calibrate_s;
    double perplexity;
} kvd_calibration_point;

/*
 * Fills *points with one entry per accuracy results line with a requested p. *n is 0 if all
 * rotations were computed from all vectors. Order: by evaluated text, method and p; then all
 * vectors before centroids before weighted centroids; then by number of centroids and fraction
 * pruned. The caller frees *points.
 */
int kvd_calibration_points(const kvd_results *r, kvd_calibration_point **points, size_t *n,
                           kvd_err *err);

/*
 * Returns true if two calibrations led to the same method and removed fraction p; numbers of kept
 * dimensions that follow from the calibration may differ.
 */
bool kvd_calibration_same_choice(const kvd_calibration_point *a, const kvd_calibration_point *b);
/*
 * Returns true if kvd_calibration_same_choice holds, both calibrations used the same kind of
 * vectors (all, centroids or weighted centroids) and, if `centroids`, the same number of centroids.
 */
bool kvd_calibration_same_rows(const kvd_calibration_point *a, const kvd_calibration_point *b,
                               bool centroids);

/* Compute the measures whose names begin with "prune-" and "centroids-", for kvd_measure. */
int kvd_calibration_spectra(const kvd_results *r, const char *name, kvd_pair pair,
                            kvd_measured *out, kvd_err *err);
int kvd_calibration_ratios(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

/*
 * Writes the name of a curve in a figure into `buf`, such as "uniform: weighted": the method, the
 * evaluated text if `texts`, and the kind of calibration vectors.
 */
void kvd_calibration_series(const kvd_calibration_point *x, bool texts, char *buf, size_t size);

/* ---- measures of kvdim/serving files --------------------------------------------------------- */

/*
 * Measures "serving-WHAT-A-over-B:TRACE", which compare methods A and B in simulated serving with
 * Poisson arrivals and the lengths of TRACE. A method is a name, which covers all its settings, and
 * may have items after commas: KEY=VALUE requires the parameter with the value that the results
 * print; !KEY requires that the parameter is not printed. Results of A and B are compared if they
 * differ in method and request rate alone (report/rows.h). A load is a request rate divided by the
 * highest rate that B sustains.
 *
 *   ttft, tbt, jct   Mean of A / mean of B, less 1, in percent: one value per load. Loads above 1
 *                    are left out.
 *   rate             Request rate that A sustains with the normalised latency of B, divided by the
 *                    request rate of B: one value per load. The rate of A is interpolated linearly
 *                    between its results. If A has a lower latency at all its rates, its highest
 *                    rate counts; if A has a higher latency at all rates, the value is 0.
 *   top              Highest rate of A / that of B under the same bound on latency: one value.
 *   throughput       Output tokens per second of A / those of B at equal request rates. One value
 *                    for each rate at which more requests arrive than B serves and memory is short:
 *                    B runs at most half of max_batch at once.
 *   running          Mean number of requests that A runs at once / that of B, at the request rates
 *                    that count for `throughput`.
 *
 * The values of one A, one B and equal conditions are a curve, by rising load
 * (kvd_measured_value.load). A value of a method that serves less than 90 % as fast as requests
 * arrive is marked (`grows`).
 */
bool kvd_serving_measure_known(const char *name);
int kvd_serving_measure(const kvd_results *r, const char *name, const char *trace,
                        kvd_measured *out, kvd_err *err);

/* ---- comparison of two sets of result files -------------------------------------------------- */

/*
 * One measured number and the text that identifies what was measured, to find the same measurement
 * in another set of files.
 */
typedef struct {
    /*
     * Identifies what was measured: schema, labels, method, p and further conditions. Only numbers
     * with equal texts are compared.
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
 * Returns the verdict on two measurements of one quantity. "inside": each value is in the interval
 * of the other measurement or, if only one has an interval, the other value is in it; else
 * "outside". Without intervals: "equal" to nine digits, else "differs".
 */
const char *kvd_compare_verdict(const kvd_observation *a, const kvd_observation *b);

/*
 * Adds the report section that compares two sets of result files: the table of matching numbers,
 * and sentences on differences in gpu, cpu or git_revision. *n_outside is the number of verdicts
 * "outside" or "differs". Fails if no number of one set matches a number of the other.
 */
int kvd_compare_section(const kvd_results *a, const kvd_results *b, kvd_report *report,
                        size_t *n_outside, kvd_err *err);

#endif
