/* Numbers that are computed from result files, for the tables and the ledger. */
#ifndef KVD_REPORT_MEASURES_MEASURES_H
#define KVD_REPORT_MEASURES_MEASURES_H

#include "report/report.h"
#include "report/results.h"
#include "report/rows.h"

/* ---- measures of spectra: sums over all layers and heads of a pair --------------------------- */

/*
 * Returns the mean over all heads of the singular value number `dim`. If `normalised`, divides it
 * by sqrt(n_rows) (Z-10 in docs/readings.md).
 */
double kvd_mean_sigma(const kvd_spectrum *s, kvd_pair pair, int dim, bool normalised);
/*
 * Returns the share of the trailing half of the dimensions in the sum of the singular values,
 * averaged over heads: 0.5 if all are equal.
 */
double kvd_trailing_share(const kvd_spectrum *s, kvd_pair pair);
/*
 * Returns the mean over heads of the number of leading dimensions that hold the share `share` of
 * the energy, the sum of squared singular values.
 */
double kvd_dims_for_energy(const kvd_spectrum *s, kvd_pair pair, double share);
/*
 * Returns the share of singular values below 1 (ZDC Fig. 13). If `normalised`, divides them by
 * sqrt(n_rows) first (D-22 in docs/readings.md).
 */
double kvd_share_below_one(const kvd_spectrum *s, kvd_pair pair, bool normalised);
/*
 * Computes the mean and the sample standard deviation over heads of the largest singular value.
 * Returns -1 if memory runs out.
 */
int kvd_top_sigma(const kvd_spectrum *s, kvd_pair pair, double *mean, double *sd, kvd_err *err);

/* ---- similarity against the number of calibration tokens (ZACK Fig. 18, FDC Fig. 14) -------- */

typedef struct {
    char series[2 * KVD_LABEL + 16]; /* "LABEL against REFERENCE", or the mean over references */
    kvd_pair pair;
    size_t n_tokens;
    size_t n_averaged; /* number of references in the mean; 1 if the point is not a mean */
    bool drawn;        /* false if a mean is drawn in place of this single reference */
    bool random;       /* true if the calibration whose token count varies is random token ids */
    double delta_ratio, aligned_ratio, overlap_half, energy_half;
} kvd_token_point;

/*
 * Fills *points with the points of every similarity file that has one label at two or more token
 * counts, by series, pair and token count. For each pair and label, the mean over references
 * follows, at counts that every reference has. *points is allocated; the caller frees it.
 */
int kvd_token_points(const kvd_results *r, kvd_token_point **points, size_t *n, kvd_err *err);

/*
 * Returns true if no other entry with the label of the i-th in this similarity file has more
 * tokens. Of entries with equal token counts, this is true for the first.
 */
bool kvd_most_tokens(const kvd_similarity *s, size_t i);

/* ---- kinds of accuracy rows ------------------------------------------------------------------ */

/*
 * Returns false if the row is the result of a single seed. The mean over the seeds is an earlier
 * row.
 */
bool kvd_row_is_point(const kvd_rows *rows, size_t row);
/*
 * Returns true if the row evaluates a model whose weights have few bits. Such a row is no method of
 * the cache (study_settings.c).
 */
bool kvd_row_is_weights(const kvd_rows *rows, size_t row);
/* Returns true if the row evaluates the text that the method was calibrated on. */
bool kvd_on_calibration_text(const kvd_rows *rows, size_t row);

/* ---- measured values, which the ledger asks for by name -------------------------------------- */

typedef struct {
    double value;
    char what[2 * KVD_LABEL + 64]; /* what was measured and from which file */
    /* device on which a time was measured, such as "NVIDIA H200"; "" for other numbers */
    char device[64];
    /*
     * true if the queue of requests grows at this point, so that a longer simulation would give
     * another value
     */
    bool grows;
    double lo, hi;           /* 95 % interval; NaN if not known */
    double null_lo, null_hi; /* range expected if the claim is false; NaN if not known */
    double load;             /* request rate / baseline's highest rate; NaN without a load */
    /* number of the curve that this value belongs to; a curve has one value per load */
    size_t curve;
} kvd_measured_value;

typedef struct {
    kvd_measured_value *value;
    size_t n;
} kvd_measured;

/*
 * Values of a measure "NAME:PAIR" or "NAME:PAIR:NUMBER":
 *   trailing-share:k       kvd_trailing_share, percent, of rotations per KV head; its null is a
 *                          flat spectrum; trailing-share-per-query: of rotations per query head
 *   below-one:qk           kvd_share_below_one, percent; below-one-normalised: likewise
 *   cv:qk                  100 * sd / mean of the largest singular value; cv-per-query: likewise
 *   delta-ratio:qk         100 * delta / epsilon, as printed; both calibrations are texts
 *   aligned-ratio:qk       100 * delta / epsilon after aligning signs
 *   energy-ratio:qk        100 * energy kept at half width by the other basis / by the own basis;
 *                          its null is a random basis, over the texts of the file
 *   overlap-half:qk        overlap of the leading halves, percent
 *   means-ratio:qk         100 * difference of the mean absolute entries over all heads / epsilon
 *   random-...:qk          those measures of a text and random token ids
 *   tokens-delta:qk:N      mean delta / epsilon in percent of points with more than N tokens
 *   tokens-fall:qk         delta / epsilon at most tokens / at fewest tokens
 *   tokens-...-random      tokens-delta and tokens-fall for random calibrations only
 *   degradation:all        D on other text / D on calibration text, everything else being equal
 *   degradation-half:all   D on text NAME-b / D on text NAME-a, the halves of one text, which
 *                          degradation:all leaves out
 *   degradation-norm:all, degradation-half-norm:all
 *                          as the two above, with D as a ratio of norms
 *   prune-spectrum:qk      largest change over head dimensions, in percent, of the average curve
 *                          per square root of rows if half of the sequences (0.45 to 0.55) are
 *                          pruned, for unweighted centroids of equal number
 *   prune-rise:all         perplexity at the largest share pruned / at the smallest
 *   prune-time:all         seconds at the largest share pruned / at the smallest
 *   centroids-fall:all     perplexity with the most centroids / with the fewest, at equal share
 *                          pruned
 *   centroids-time:all     seconds with the most centroids / with the fewest
 *                          The names of these five may end in -weighted for weighted centroids;
 *                          the prune- names also in -rows for rows without K-means.
 *   p99-...:TEXT           kvd_rate_measure
 *   proposal-over-oracle:all
 *                          kvd_proposals_measure
 *   NAME:all               kvd_token_measure
 *   serving-...:TRACE      kvd_serving_measure
 *   jct-...:SIZES          kvd_jct_measure
 *
 * Spectra of fewer rows count only for the measures prune-... and centroids-.... If no file has the
 * measure, out->n is 0. An unknown name is an error.
 */
int kvd_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);
/*
 * Appends a value with a text that says what was measured and where. If `value` is NaN, appends
 * nothing.
 */
int kvd_values_put(kvd_measured *v, double value, kvd_err *err, const char *fmt, ...)
    KVD_PRINTF(4, 5);
/*
 * kvd_values_interval sets the 95 % interval of the value appended last, and kvd_values_null the
 * range expected if the claim is false. If no value was appended, both do nothing.
 */
void kvd_values_interval(kvd_measured *v, double lo, double hi);
void kvd_values_null(kvd_measured *v, double lo, double hi);
/*
 * Marks the values from index `first` on as times measured on a device. The device is the name at
 * the start of the engine's description.
 */
void kvd_values_timed_on(kvd_measured *v, size_t first, const char *engine);
void kvd_values_release(kvd_measured *v);

/* ---- measures of kvdim/jct files (job completion times) -------------------------------------- */

/*
 * Measures of the completion times (JCT) of jobs that ran on a GPU. METHOD is a name, which covers
 * all its settings, or a name with keys ("zack,p=0.3"), which covers one. PART is a column of times
 * without "_s" ("decode_restore"). SIZES is "100000x256", the numbers of input and output tokens,
 * several of them joined by plus signs, or "all".
 *
 *   jct-share-METHOD-PART[+PART]...:SIZES         the parts in percent of the JCT; a job without
 *                                                 any of them does not count, because another
 *                                                 part may do their work
 *   jct-of-prompts-METHOD-PART[+PART]...:SIZES    the parts in percent of the time of prompts
 *   jct-of-steps-METHOD-PART[+PART]...:SIZES      the parts in percent of the time of decode steps
 *   jct-extra-METHOD-PART[+PART]...:SIZES         the parts less those of method none in the same
 *                                                 file and sizes, in percent of the JCT
 *   jct-change-A-over-B:SIZES                     JCT of A over that of B in the same file and
 *                                                 sizes, less 1, in percent
 *   jct-parts-METHOD-PART[+PART]...-over-OTHER:SIZES
 *                                                 the parts over those of OTHER in the same file
 *                                                 and sizes, less 1, in percent
 *   jct-shared-METHOD-PART[+PART]...:SIZES        as jct-share, for jobs on several GPUs that
 *                                                 divide each prompt by its tokens
 *   jct-shared-change-METHOD-PART[+PART]...-over-OTHER:SIZES
 *                                                 for those jobs, the parts over those of OTHER,
 *                                                 less 1, in percent
 */
bool kvd_jct_measure_known(const char *name);
int kvd_jct_measure(const kvd_results *r, const char *name, const char *sizes, kvd_measured *out,
                    kvd_err *err);

/*
 * Measures of compression at 99 % of the accuracy, as found by kvdim-eval --target, for the ledger.
 */

/*
 * p99-A:TEXT is the share of the cache that A removes at 99 % of the top-1 accuracy of the
 * uncompressed model, with its 95 % interval. p99-A-less-B:TEXT is the share of A less that of B in
 * one file; its interval is the widest that the two intervals allow.
 *
 * There is one value per accuracy file that has a search of A and whose label contains TEXT,
 * ignoring upper and lower case. A is the name of a search: a method, with "-RULE" if its widths
 * follow another rule than its default.
 */
bool kvd_rate_measure_known(const char *name);
int kvd_rate_measure(const kvd_results *r, const char *name, const char *text, kvd_measured *out,
                     kvd_err *err);

/* ---- measures of accuracy rows with several settings of a method ----------------------------- */

/*
 * Measures that compare settings in accuracy rows, one value per accuracy file and evaluated text:
 *
 *   mirror-kl               KL of hetero with K2V4 over that with K4V2.
 *                           mirror-kl-high: KL with K4V8 over that with K8V4
 *   neutral-cache           smallest share of a 16-bit cache, percent, of the leankv settings that
 *                           keep at least 0.99 of top-1, with an interval that reaches 1
 *   five-percent-cache      as neutral-cache, of the settings that keep at least 0.95 of top-1
 *   v-over-qk               perplexity of zack with cut=v over that with cut=qk, at the largest p
 *                           that both have
 *   kv-over-weights         perplexity of hetero with 4 bits for keys and values over that of the
 *                           model with 4-bit weights, less 1, percent; all rows read the compressed
 *                           cache. kv-over-weights-prompt: prompts attend uncompressed
 *   h2o-over-sparsity-kl    KL of h2o over that of sparsity with th = tl at the same share of the
 *                           cache, one value per row of sparsity; its null is 1
 *
 * A file without the rows that a measure compares has no value of it.
 */
bool kvd_setting_measure_known(const char *name);
int kvd_setting_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

/* ---- measures of kvdim/tokens files ---------------------------------------------------------- */

/*
 * One value per tokens file of a trained model:
 *   score-range             range of the scores (largest less smallest) of the last layer over that
 *                           of the first, percent
 *   near-unimportant        part of the unimportant tokens, ranked by the mean score as a query,
 *                           that neighbouring layers share: mean over neighbours, percent, with its
 *                           interval over requests; near-unimportant-as-key: by the mean score as a
 *                           key; near-unimportant-denominator: by softmax denominators;
 *                           near-important...: likewise
 *   rise-unimportant        near-unimportant less the part that the first and the last layer share,
 *                           percentage points; rise-important likewise
 *   received-decades        mean over layers of the decades that the mean mass received spans
 *   value-decades           the most decades that the norms of values span in a layer
 *   more-decades            the least difference of those two in a layer
 *   critical-layers         most over fewest tokens that hold 95 % of a layer's mass (means over
 *                           requests)
 *   critical-heads          most over fewest tokens that hold 95 % of a KV head's mass: mean over
 *                           layers of the ratio
 *   critical-requests       standard deviation over requests / mean of those of a KV head, mean
 *                           over heads, percent
 * A file of one layer (of one KV head) has no value of what compares layers (heads).
 *
 * The null is the range of the measure over the files of the same model and seq_len with random
 * weights. critical-layers and critical-heads: from 1 to the larger of the ratio that layers
 * (heads) of equal means would show by their spread over requests, and the largest ratio with
 * random weights.
 */
bool kvd_token_measure_known(const char *name);
int kvd_token_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

/*
 * A setting that kvdim-fit --regression proposed for an allowed loss, and that was then measured.
 * It is compared with the Oracle, the best setting in hindsight, on the same text (ZDC section 8).
 */

typedef struct {
    const kvd_result *file; /* rates file with the proposal */
    size_t proposal;        /* row of the proposal in `file` */
    const kvd_result *accuracy;
    size_t row; /* row of `accuracy` that measured the proposal */
    /*
     * Loss for which the setting was proposed: its perplexity / perplexity of the uncompressed
     * model - 1.
     */
    double asked;
    kvd_interval measured; /* measured loss of the proposal, with its interval */
    double share;          /* bytes that the proposal stores divided by those of a 16-bit cache */
    /*
     * Smallest share of a 16-bit cache stored by another measured setting with a loss of at most
     * `asked`; NaN if there is none.
     */
    double oracle_asked;
    /*
     * Smallest share of a 16-bit cache stored by another setting with at most the measured loss of
     * the proposal.
     */
    double oracle_measured;
    /*
     * Smallest shares of a 16-bit cache that settings store whose loss is at most the lower and at
     * most the upper end of the interval of the measured loss; NaN if there is none.
     */
    double oracle_lo, oracle_hi;
} kvd_judged_proposal;

/*
 * Fills `*all` with every proposed setting that was measured, once per accuracy file of its model
 * that has a row with exactly its numbers. The Oracle is searched among the rows of all files with
 * equal model, text, tokens, prompt and method that are not proposals. The caller frees `*all`.
 */
int kvd_proposals_judge(const kvd_results *r, kvd_judged_proposal **all, size_t *n, kvd_err *err);

/*
 * Computes the measure "proposal-over-oracle": bytes that proposals store over those of the Oracle,
 * less 1, in percent. Counts proposals for losses that the sweep reached, fitted on sweeps of which
 * at least one is of the proposal's model, because the paper's regression knows its models. The
 * interval follows from the Oracle's share at the ends of the interval of the measured loss.
 */
int kvd_proposals_measure(const kvd_results *r, kvd_measured *out, kvd_err *err);

/* ---- bytes saved at a given share of the top-1 accuracy -------------------------------------- */

/*
 * Smallest number of evaluated points of a series from which the bytes saved at 99 % of the
 * accuracy may be read.
 */
enum { KVD_FEWEST_POINTS = 3 };

/*
 * Returns the search (kvdim-eval --target) in the row's file that found the strongest compression
 * at which the method keeps the share `target` of accuracy, or NULL if there is none.
 */
const kvd_target_result *kvd_entry_search(const kvd_accuracy_entry *e, double target);

/*
 * Reads the bytes saved at 99 % of the top-1 accuracy off items first .. last, which are one series
 * on one text, from many bytes to few.
 *
 * If one key, and at most one further key that rises or falls with it (h2o.recent with h2o.heavy),
 * tells the items apart, they are a line: the result is the last item before the first miss, and a
 * share of 1 at no saving precedes the first item. Otherwise the items are a grid of settings
 * without an order: the result is the setting that saves most among those that keep the share, with
 * the whole interval above the share, or with an interval that reaches the share.
 */
void kvd_target_from_points(const kvd_accuracy_entries *all, size_t first, size_t last,
                            kvd_target_result *x);

/* ---- fewer calibration rows: cost and accuracy (ZDC Fig. 15 and 26) -------------------------- */

/*
 * Returns true if the spectrum was computed from pruned rows or from K-means centroids. The report
 * shows such spectra in a section of their own.
 */
bool kvd_calibration_reduced(const kvd_spectrum *s);

/*
 * Returns the spectrum among the results that was calibrated like `s`, but without pruning rows, or
 * NULL.
 */
const kvd_spectrum *kvd_calibration_unpruned(const kvd_results *r, const kvd_spectrum *s);

/*
 * Returns the result file with the spectrum that accuracy row `row` names as its calibration, by
 * label and model, or NULL if it is not among the results.
 */
const kvd_result *kvd_calibration_of(const kvd_results *r, const kvd_result *accuracy, size_t row);

/*
 * A point of the study of calibrations: one spectrum, and one accuracy row of a model that was
 * compressed with it.
 */
typedef struct {
    const kvd_result *spectrum, *accuracy;
    size_t row;
    double p; /* removal rate that the user asked for */
    /* seconds that made the input files, times the share of tokens kept */
    double collect_s;
    double calibrate_s; /* seconds for reading and summing rows, K-means and decomposition */
    double perplexity;
} kvd_calibration_point;

/*
 * Fills `*points` with the points of all accuracy rows with a requested p; `*n` is 0 if no spectrum
 * was computed from fewer rows. Order: by evaluated text, method and p; then whole rows before
 * centroids before weighted centroids; then by number of centroids and share pruned. The caller
 * frees `*points`.
 */
int kvd_calibration_points(const kvd_results *r, kvd_calibration_point **points, size_t *n,
                           kvd_err *err);

/*
 * Returns true if the two points have equal p and differ at most in their calibration and the head
 * widths that follow from it.
 */
bool kvd_calibration_same_choice(const kvd_calibration_point *a, const kvd_calibration_point *b);
/*
 * Returns true if kvd_calibration_same_choice holds, both points have the same kind of calibration
 * rows and, if `centroids`, as many centroids.
 */
bool kvd_calibration_same_rows(const kvd_calibration_point *a, const kvd_calibration_point *b,
                               bool centroids);

/* Computes the measures of kvd_measure whose names begin with "prune-" and "centroids-". */
int kvd_calibration_spectra(const kvd_results *r, const char *name, kvd_pair pair,
                            kvd_measured *out, kvd_err *err);
int kvd_calibration_ratios(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

/*
 * Writes the name of a curve into `buf`, such as "uniform: weighted": the method, the evaluated
 * text if `texts` is true, and the kind of calibration rows.
 */
void kvd_calibration_series(const kvd_calibration_point *x, bool texts, char *buf, size_t size);

/* ---- measures of kvdim/serving files --------------------------------------------------------- */

/*
 * "serving-WHAT-A-over-B:TRACE", of methods A and B and of Poisson arrivals with the lengths of
 * TRACE. A method is a name, which covers all its settings, and may have items after commas: of
 * KEY=VALUE, rows must have it as they print it; of !KEY, rows must not print the key. Rows of A
 * and B are compared if they differ in method and rate alone (report/rows.h).
 *
 *   ttft, tbt, jct   Mean of A over that of B less 1, in percent: one value per load, which is the
 *                    rate of arrivals over the highest rate of B. Loads above 1 are left out.
 *   rate             Rate at which A has the normalised latency that B has at the load, over B's
 *                    rate, by linear interpolation between the points of A; one value per load. If
 *                    A stays below that latency at all of its points, its highest rate counts; if A
 *                    is above it at all of them, the value is 0.
 *   top              Highest rate of A over that of B under the same bound on latency: one value.
 *   throughput       Output tokens per second of A over those of B at one point, if more requests
 *                    arrive than B serves and memory is short: B runs at most half of max_batch at
 *                    once. One value per point of B.
 *   running          Mean number of requests that A runs at once over that of B, at those points.
 *
 * The values of one A, one B and one place are a curve, by rising load (kvd_measured_value.load). A
 * value of rows that serve less than 90 % as fast as requests arrive is marked (`grows`).
 */
bool kvd_serving_measure_known(const char *name);
int kvd_serving_measure(const kvd_results *r, const char *name, const char *trace,
                        kvd_measured *out, kvd_err *err);

/* ---- comparison of two sets of result files -------------------------------------------------- */

/*
 * One measured number and the text that identifies what was measured, to match it in another set.
 */
typedef struct {
    /*
     * Identifies what was measured: schema, labels, method, p and further conditions. Only numbers
     * with equal keys are compared.
     */
    char key[2 * KVD_LABEL + 128];
    char quantity[48];
    double value, lo, hi; /* value and its 95 % interval; lo and hi are NaN without one */
} kvd_observation;

typedef struct {
    kvd_observation *item;
    size_t n;
} kvd_observations;

/*
 * Returns the verdict on two numbers. "inside": each is in the interval of the other, or, if only
 * one number has an interval, the other number is in it; "outside" otherwise. Without intervals:
 * "equal" to nine digits, else "differs".
 */
const char *kvd_compare_verdict(const kvd_observation *a, const kvd_observation *b);

/*
 * Adds the section with the table of matching rows and with lines that name differences in gpu, cpu
 * or git_revision between the sets. *n_outside is the number of rows with the verdict "outside" or
 * "differs". Fails if no row of one set matches a row of the other.
 */
int kvd_compare_section(const kvd_results *a, const kvd_results *b, kvd_report *report,
                        size_t *n_outside, kvd_err *err);

#endif
