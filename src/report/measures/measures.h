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
    /*
     * Name of the curve in a figure: "TEXT against REFERENCE", with the labels of the calibration
     * text and of the reference text, or a name for the mean over reference texts.
     */
    char series[2 * KVD_LABEL + 16];
    kvd_pair pair;
    size_t n_tokens;
    /* Number of reference texts over which the values are averaged; 1 if they are not averaged. */
    size_t n_averaged;
    /*
     * False if a figure does not draw this element, because it draws the mean over all reference
     * texts instead.
     */
    bool drawn;
    /* True if the calibration text whose token count varies is random token ids. */
    bool random;
    double delta_ratio, aligned_ratio, overlap_half, energy_half;
} kvd_token_point;

/*
 * Compares the rotations of a calibration text, computed from different numbers of tokens, with the
 * rotation of a reference text. Fills *points with one element for each similarity file,
 * calibration text with two or more token counts, reference text, kind of rotation and token count.
 *
 * If a calibration text is compared with several reference texts, adds elements with the mean over
 * all of them. A token count has a mean only if every reference text has a value for it. The
 * elements are ordered by calibration text, kind of rotation, reference text and token count. The
 * caller frees *points.
 */
int kvd_token_points(const kvd_results *r, kvd_token_point **points, size_t *n, kvd_err *err);

/*
 * Returns true if no other text in this similarity file with the label of text i has more tokens.
 * If several of them have the most tokens, returns true only for the first.
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
    /* Score of which --target kept a share (kvd_target_result); "" for other numbers. */
    char metric[48];
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
 * Computes the values of a measure from all result files. `name` is "NAME:MATRICES" or
 * "NAME:MATRICES:NUMBER", where MATRICES names the matrices that share a rotation (qk, vw, k, ...;
 * all for measures that have no such choice).
 *
 * A rotation is the orthogonal matrix of the right singular vectors of a head. epsilon is the mean
 * absolute element of a rotation, delta the mean absolute difference of the rotations of two texts.
 * D is the relative error of the attention output. docs/definitions.md has the formulas.
 *
 * Singular values:
 *   trailing-share:k       sum of the trailing half of a head's singular values / sum of all, mean
 *                          over heads, percent (kvd_trailing_share), of rotations per KV head. If
 *                          the claim is false, the value of equal singular values is expected.
 *                          trailing-share-per-query: of rotations per query head
 *   below-one:qk           fraction of singular values below 1, percent (kvd_share_below_one)
 *                          below-one-normalised: after division by sqrt(n_rows)
 *   cv:qk                  100 * standard deviation / mean of the largest singular value of each KV
 *                          head
 *                          cv-per-query: of each query head
 *
 * Similarity of the rotations of two texts:
 *   delta-ratio:qk         100 * delta / epsilon, as the papers define them
 *   aligned-ratio:qk       100 * delta / epsilon after aligning the signs of columns
 *   energy-ratio:qk        100 * energy kept at half of the dimensions by the rotation of another
 *                          text / energy kept by the rotation of the text itself. If the claim is
 *                          false, the energy kept by a random rotation is expected.
 *   overlap-half:qk        mean squared cosine of the angles between the spaces that the leading
 *                          halves of the columns of two rotations span, percent
 *   means-ratio:qk         100 * difference of the mean absolute elements over all heads / epsilon
 *   random-NAME:qk         one of these five measures, where one of the texts is random token ids
 *   tokens-delta:qk:N      100 * delta / epsilon for calibrations with more than N tokens
 *   tokens-fall:qk         delta / epsilon for the most calibration tokens, divided by delta /
 *                          epsilon for the fewest
 *   tokens-...-random      tokens-delta and tokens-fall for random calibration texts only
 *
 * Error of the attention output:
 *   degradation:all        D on another text / D on the calibration text, under equal conditions
 *   degradation-half:all   D on text NAME-b / D on text NAME-a, the two halves of one text, which
 *                          degradation:all leaves out
 *   degradation-norm:all, degradation-half-norm:all
 *                          the same two ratios, with D computed as a ratio of norms
 *
 * Calibration on fewer vectors (sequences pruned, or vectors replaced by K-means centroids):
 *   prune-spectrum:qk      largest change over head dimensions, in percent, of the mean singular
 *                          values / sqrt(n_rows) if half of the sequences (0.45 to 0.55) are
 *                          pruned, for unweighted centroids of equal number
 *   prune-rise:all         perplexity at the largest fraction pruned / at the smallest
 *   prune-time:all         seconds at the largest fraction pruned / at the smallest
 *   centroids-fall:all     perplexity with the most K-means centroids / with the fewest, at equal
 *                          fraction pruned
 *   centroids-time:all     seconds with the most centroids / with the fewest
 * The names prune-... and centroids-... may end in -weighted for weighted centroids, the names
 * prune-... also in -rows for calibration without K-means. Calibrations on pruned or clustered
 * vectors count only for these measures.
 *
 * Measures that other functions compute:
 *   p99-...:TEXT           kvd_rate_measure
 *   proposal-over-oracle:all
 *                          kvd_proposals_measure
 *   serving-...:TRACE      kvd_serving_measure
 *   jct-...:SIZES          kvd_jct_measure
 *   NAME:all               kvd_setting_measure, kvd_token_measure
 *
 * If no file has the measure, out->n is 0. An unknown name is an error.
 */
int kvd_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);
/*
 * Appends a measured value with a text that says what was measured and where. If `value` is NaN,
 * appends nothing.
 */
int kvd_values_put(kvd_measured *v, double value, kvd_err *err, const char *fmt, ...)
    KVD_PRINTF(4, 5);
/*
 * Complete the value appended last to `v`. kvd_values_interval sets its 95 % interval.
 * kvd_values_null sets the range in which the value is expected if the claim is false. If no value
 * was appended, they do nothing.
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
 * Measures of the job completion times (JCT) of jobs that ran on a GPU.
 *
 * In the names of measures:
 *   METHOD, A, B   a method, which covers all its settings ("zack"), or a method with parameters,
 *                  which covers this setting alone ("zack,p=0.3")
 *   PHASES         names of phases of a job, joined by plus signs ("prefill_restore+
 *                  decode_restore"): the columns of times in the file without their ending "_s"
 *   SIZES          numbers of input and output tokens of a job, such as "100000x256"; several of
 *                  them joined by plus signs; or "all"
 *
 * A measure has one value for each job, or for each two jobs, that its name matches:
 *   jct-share-METHOD-PHASES:SIZES
 *     seconds of the phases in percent of the JCT. A job that spent no time in these phases has no
 *     value, because their work may be counted in another phase.
 *   jct-of-prompts-METHOD-PHASES:SIZES
 *     seconds of the phases in percent of the time of prompts
 *   jct-of-steps-METHOD-PHASES:SIZES
 *     seconds of the phases in percent of the time of decode steps
 *   jct-extra-METHOD-PHASES:SIZES
 *     seconds of the phases less those with the uncompressed cache (method none), for the same file
 *     and token counts, in percent of the JCT
 *   jct-change-A-over-B:SIZES
 *     JCT of A / JCT of B, less 1, in percent, for the same file and token counts
 *   jct-parts-A-PHASES-over-B:SIZES
 *     seconds of the phases with method A / with method B, less 1, in percent, for the same file
 *     and token counts
 *   jct-shared-METHOD-PHASES:SIZES
 *     as jct-share, for jobs on several GPUs that divide each prompt by its tokens
 *   jct-shared-change-A-PHASES-over-B:SIZES
 *     as jct-parts, for jobs on several GPUs that divide each prompt by its tokens
 */
bool kvd_jct_measure_known(const char *name);
int kvd_jct_measure(const kvd_results *r, const char *name, const char *sizes, kvd_measured *out,
                    kvd_err *err);

/*
 * Measures of the fraction of the cache that methods remove while they keep 99 % of the
 * uncompressed model's top-1 accuracy or, in files of kvdim-tasks, of another score. p99-A:TEXT is
 * the fraction that method A removes, with its 95 % interval. p99-A-less-B:TEXT is the fraction of
 * A less the fraction of B in the same file; its interval is the widest that the intervals of A and
 * B allow.
 *
 * There is one value per file that has a search of A (--target 0.99) and whose label contains TEXT,
 * ignoring upper and lower case. A is the name of a search: a method, with "-RULE" if its kept
 * dimensions follow another rule than its default. Searches by a score that compares with the
 * output of the uncompressed model (ROUGE-1 of both texts) are left out: the papers score answers.
 */
bool kvd_rate_measure_known(const char *name);
int kvd_rate_measure(const kvd_results *r, const char *name, const char *text, kvd_measured *out,
                     kvd_err *err);

/* ---- measures that compare several settings of a method -------------------------------------- */

/*
 * Measures that compare settings of methods in accuracy files. There is one value per file and
 * evaluated text. KL is the KL divergence of the predictions from those of the uncompressed model.
 *
 *   mirror-kl               KL of method hetero (quantisation) with 2 bits for K and 4 bits for V,
 *                           divided by its KL with 4 bits for K and 2 bits for V
 *                           mirror-kl-high: with 4 and 8 bits, divided by that with 8 and 4
 *   neutral-cache           size of the smallest cache among the settings of method leankv that
 *                           keep the accuracy, in percent of a 16-bit cache. A setting keeps it if
 *                           its top-1 accuracy is at least 0.99 times that of the uncompressed
 *                           model, and the 95 % interval of this ratio reaches 1.
 *   five-percent-cache      the same among settings that keep at least 0.95 of the top-1 accuracy,
 *                           with any interval
 *   v-over-qk               perplexity of method zack if it removes dimensions of V only, divided
 *                           by its perplexity if it removes dimensions of Q and K only, at the
 *                           largest removed fraction p that both have
 *   kv-over-weights         perplexity of hetero with 4 bits for keys and values / that of the
 *                           model with 4-bit weights, less 1, in percent; all tokens read the
 *                           compressed cache
 *                           kv-over-weights-prompt: prompts attend to uncompressed K and V
 *   h2o-over-sparsity-kl    KL of method h2o / KL of method sparsity at the same cache size. Both
 *                           drop tokens. There is one value per setting of sparsity. Settings of
 *                           sparsity that keep some tokens at lower precision (its thresholds th
 *                           and tl differ) are left out. 1 is expected if the claim is false.
 *
 * If a file lacks results that a measure compares, the measure has no value for it.
 */
bool kvd_setting_measure_known(const char *name);
int kvd_setting_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

/* ---- measures of kvdim/tokens files ---------------------------------------------------------- */

/*
 * Measures of token statistics, with one value per kvdim/tokens file of a trained model.
 *
 * Range of scores:
 *   score-range             range of the attention scores (largest less smallest) of the last layer
 *                           / range of those of the first layer, in percent
 *
 * Important tokens that two layers have in common. The tokens of each layer are ranked by their
 * mean attention score as a query. A fixed fraction with the highest scores is called important,
 * and the same fraction with the lowest scores unimportant:
 *   near-unimportant        percentage of the unimportant tokens that two neighbouring layers have
 *                           in common: mean over all neighbouring layers, with a 95 % interval over
 *                           requests
 *                           near-unimportant-as-key: tokens ranked by their mean score as a key
 *                           near-unimportant-denominator: ranked by their softmax denominator
 *                           near-important...: the same three for the important tokens
 *   rise-unimportant        near-unimportant less the percentage that the first and the last layer
 *                           have in common
 *                           rise-important: the same for the important tokens
 *
 * Spread of values over tokens, in powers of ten between the 0.1 % and the 99.9 % quantile:
 *   received-decades        spread of the mean attention that a token receives, mean over layers
 *   value-decades           spread of the norms of value vectors, largest over layers
 *   more-decades            spread of the received attention less spread of the value norms in one
 *                           layer, smallest over layers
 *
 * Critical tokens: the fewest tokens that receive 95 % of the attention, mean over requests:
 *   critical-layers         number of them in the layer with the most / in that with the fewest
 *   critical-heads          number of them in the KV head with the most / in the KV head with the
 *                           fewest, mean of this ratio over layers
 *   critical-requests       standard deviation over requests / mean of their number in a KV head,
 *                           mean over heads, in percent
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
 * A setting of a method that kvdim-fit --regression proposed for an allowed loss of quality, and
 * that was then measured. It is compared with the Oracle, the best setting in hindsight, on the
 * same text (ZDC section 8).
 */

typedef struct {
    /* File of kept dimensions (kvdim/rates) in which kvdim-fit stored the proposed setting. */
    const kvd_result *file;
    /* Index of this proposed setting among those stored in `file`. */
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
    /* Loss measured with the proposed setting, and its confidence interval. */
    kvd_interval measured;
    /* Size of the cache with the proposed setting, as a fraction of a 16-bit cache. */
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
     * Smallest stored size, as a fraction of a 16-bit cache, among the measured settings that are
     * not proposals and whose loss is at most the lower end (oracle_lo) or the upper end
     * (oracle_hi) of the confidence interval of the proposal's loss. NaN if no setting has so small
     * a loss.
     */
    double oracle_lo, oracle_hi;
} kvd_judged_proposal;

/*
 * Fills *all with every proposed setting that was measured. A setting appears once for each results
 * line that was measured on the same model with exactly its parameters. The Oracle (best setting in
 * hindsight) is the best among results lines that are not proposals and have the same model, text,
 * tokens, prompt and method. The caller frees *all.
 */
int kvd_proposals_judge(const kvd_results *r, kvd_judged_proposal **all, size_t *n, kvd_err *err);

/*
 * Computes the measure "proposal-over-oracle": by how many percent the bytes that a proposed
 * setting stores exceed those that the best setting in hindsight (the Oracle) stores.
 *
 * kvdim-fit proposes a setting by a regression of the loss on the parameters of the method. A
 * proposal counts only if that regression was fitted to measurements of the same model, as in the
 * ZDC paper, and if the allowed loss is within the range of losses that were fitted. The interval
 * of the measure follows from the Oracle's bytes at the two ends of the confidence interval of the
 * measured loss.
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
 * settings of one method on one text, ordered from many bytes to few. Stores the saving in
 * x->saving and its bounds in x->saving_lo and x->saving_hi.
 *
 * Case 1: the settings differ in one parameter only, or a second parameter always rises or always
 * falls with the first (h2o.recent with h2o.heavy). They then form a sequence that begins with the
 * uncompressed model. The result is the last setting before the first one that misses the target.
 *
 * Case 2: the settings have no order (a grid). x->saving is the largest saving of a setting whose
 * estimated accuracy meets the target. x->saving_lo is the largest saving of a setting whose whole
 * confidence interval meets the target. Every setting with a saving above s, the largest saving of
 * a setting whose interval meets the target at least in part, misses the target. x->saving_hi is
 * the smallest saving above s.
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
 * Returns true if the singular values belong to a study of calibration (ZDC Fig. 15 and 26): they
 * are computed from fewer tokens, or from one of the two halves of a text, or from the tokens that
 * other files prune while a further file of the same model exists. Claims about texts do not use
 * such files.
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
 * One compressed model in the study of calibrations: the kvdim/spectrum file (rotations of one
 * calibration) with which it was compressed, and the line of accuracy results that was measured.
 */
typedef struct {
    const kvd_result *spectrum, *accuracy;
    size_t row;
    double p; /* removed fraction of dimensions that the user asked for */
    /*
     * Seconds that recording the calibration's input took, multiplied by the fraction of the tokens
     * that the calibration kept.
     */
    double collect_s;
    /* Seconds for reading and summing vectors, K-means and decomposition. */
    double calibrate_s;
    double perplexity;
} kvd_calibration_point;

/*
 * Fills *points with one element for each accuracy results line that was evaluated at a removed
 * fraction p given on the command line. Sets *n to 0 if no calibration used pruned sequences or
 * centroids. The elements are ordered by evaluated text, method and p; then by kind of calibration
 * vectors (all, centroids, weighted centroids), number of centroids and fraction pruned. The caller
 * frees *points.
 */
int kvd_calibration_points(const kvd_results *r, kvd_calibration_point **points, size_t *n,
                           kvd_err *err);

/*
 * Returns true if two calibrations led to the same method and removed fraction p. The numbers of
 * kept dimensions of single heads may differ.
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
 * Measures "serving-WHAT-A-over-B:TRACE", which compare methods A and B in simulated serving.
 * Requests have the lengths of TRACE and Poisson arrivals.
 *
 * A and B are method names, with conditions on parameters after commas. "zack" matches all settings
 * of zack. "zack,p=0.3" matches those whose parameter p is printed as 0.3, "zack,!p" those for
 * which no p is printed. Results of A and of B are compared if only method and request rate differ
 * (report/rows.h). A load is a request rate / the highest rate that B sustains.
 *
 * WHAT is one of:
 *   ttft, tbt, jct   Mean time of A / mean time of B, less 1, in percent: one value per load. Loads
 *                    above 1 are left out.
 *   rate             One value per load. B has some normalised latency at that request rate. The
 *                    value is the rate at which A has the same latency / that rate of B. The rate
 *                    of A is interpolated linearly between its results. If A has a lower latency
 *                    at all its rates, its highest rate counts; if A has a higher latency at all
 *                    rates, the value is 0.
 *   top              Highest rate of A / that of B under the same bound on latency: one value.
 *   throughput       Output tokens per second of A / those of B at equal request rates. One value
 *                    for each rate at which more requests arrive than B serves and memory is short:
 *                    B runs at most half of max_batch at once.
 *   running          Mean number of requests that A runs at once / that of B, at the request rates
 *                    that count for `throughput`.
 *
 * The values that compare A with B under one set of conditions form a curve, by rising load
 * (kvd_measured_value.load). A value is marked (`grows`) if one of the methods serves requests at
 * less than 0.9 times the rate at which they arrive.
 */
bool kvd_serving_measure_known(const char *name);
int kvd_serving_measure(const kvd_results *r, const char *name, const char *trace,
                        kvd_measured *out, kvd_err *err);

/* ---- comparison of two sets of result files -------------------------------------------------- */

/*
 * One measured number, with texts that identify what was measured. The texts serve to find the same
 * measurement in another set of files.
 */
typedef struct {
    /*
     * Conditions of the measurement: kind of file, labels, method, removed fraction p and others.
     * Only numbers with equal texts are compared.
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
