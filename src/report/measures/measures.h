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

/* Compares rotation matrices calibrated on a text and on a reference text, for each number of
 * calibration tokens. The caller must free *points. */
int kvd_token_points(const kvd_results *r, kvd_token_point **points, size_t *n, kvd_err *err);

/* Returns true if calibrations a and b used the same text: their labels or their text hashes are
 * equal. */
bool kvd_one_text(const kvd_similarity *s, size_t a, size_t b);
/* Returns true if calibration i used the most tokens of all calibrations on its text. If several
 * used equally many, returns true only for the first. */
bool kvd_most_tokens(const kvd_similarity *s, size_t i);

/* Returns true if *s compares calibrations on different numbers of tokens of one text. */
bool kvd_of_token_counts(const kvd_similarity *s);

/* Returns true unless another row averages this row with results for other random seeds. */
bool kvd_row_is_point(const kvd_rows *rows, size_t row);
/* Returns true if an accuracy result was measured with quantised weights and an uncompressed KV
 * cache. */
bool kvd_row_is_weights(const kvd_rows *rows, size_t row);
/* Returns true if an accuracy result's compression method was calibrated on the text on which it
 * was evaluated. */
bool kvd_on_calibration_text(const kvd_rows *rows, size_t row);
/* Returns true if `a` is "NAME-a" and `b` is "NAME-b", the labels of the two halves of one text. */
bool kvd_other_half(const char *a, const char *b);

typedef struct {
    double value;
    /* description of the measured value, such as the name of its result file */
    char what[2 * KVD_LABEL + 64];
    /* If the value is a time: device that was timed, such as "NVIDIA H200". Otherwise "". */
    char device[64];
    /* Name of a score, such as "top1", if `value` is the strongest compression that keeps 99 % of
     * this score. Otherwise "". */
    char metric[48];
    /* true if the simulated server's queue grew, because requests arrived faster than it
     * answered */
    bool grows;
    /* true if the compared method has no serving result at the request rate just below the rate of
     * this value */
    bool gap;
    double lo, hi; /* ends of the 95 % interval; NaN if not known */
    /* null range: range of values that is expected if the paper's claim is false; NaN if unknown */
    double null_lo, null_hi;
    /* assumption that gives the range null_lo to null_hi, such as "a flat spectrum of independent
     * rows"; may be NULL */
    const char *null_name;
    /* request rate as a fraction of the highest rate that the baseline method sustains; NaN if no
     * server was simulated */
    double load;
    /* Index of the curve to which this value belongs. A curve has values at rising request
     * rates. */
    size_t curve;
} kvd_measured_value;

typedef struct {
    kvd_measured_value *value;
    size_t n;
} kvd_measured;

/* Computes the values of a measure from all result files. `name` is "MEASURE:PAIR" or
 * "MEASURE:PAIR:NUMBER", such as "trailing-share:qk". docs/definitions.md lists the measures. If no
 * result file has data for the measure, out->n is 0. An unknown name is an error. */
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
/* Marks the values with index `first` and above as times of a device. `engine` begins with the
 * device's name, up to the first ',' or ';'. */
void kvd_values_timed_on(kvd_measured *v, size_t first, const char *engine);
void kvd_values_release(kvd_measured *v);

/* Returns true if `text`, a method with its parameters, matches `asked`. "zack" matches all
 * settings of zack, "zack,p=0.3" settings with p = 0.3, "zack,!p" settings without parameter p. */
bool kvd_report_is_method(const char *text, const char *asked);

/* Returns true if `name` is a measure of job completion times, such as "jct-change-A-over-B".
 * docs/definitions.md lists these measures. */
bool kvd_jct_measure_known(const char *name);
/* Computes a measure of job completion times: one value per job whose input and output lengths are
 * in `sizes`, such as "6300x243+204x139". If `sizes` is "all", every job counts. */
int kvd_jct_measure(const kvd_results *r, const char *name, const char *sizes, kvd_measured *out,
                    kvd_err *err);

/* Returns true if `name` is a measure of the strongest compression that keeps 99 % of a score, such
 * as "p99-zack". docs/definitions.md lists these measures. */
bool kvd_rate_measure_known(const char *name);
/* Computes a measure such as "p99-zack": the strongest compression that keeps 99 % of a score.
 * Reads only accuracy results on texts or tasks whose names contain `text`. */
int kvd_rate_measure(const kvd_results *r, const char *name, const char *text, kvd_measured *out,
                     kvd_err *err);

/* Returns true if `name` is a measure that compares settings of compression methods, such as
 * "mirror-kl". docs/definitions.md lists these measures. */
bool kvd_setting_measure_known(const char *name);
int kvd_setting_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

/* Returns true if `name` is a measure of attention scores and of important tokens, such as
 * "score-range". docs/definitions.md lists these measures. */
bool kvd_token_measure_known(const char *name);
int kvd_token_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

/* Compression parameters that kvdim-fit --regression proposed for an allowed loss, and the measured
 * loss and cache size. Fields oracle_* describe the smallest cache measured with any parameters. */

typedef struct {
    const kvd_result *file;     /* kvdim/rates file with the proposed parameters */
    size_t proposal;            /* index of the proposal in `file` */
    const kvd_result *accuracy; /* accuracy file with the measurement in result row `row` */
    size_t row;
    double asked;          /* allowed loss: perplexity / perplexity of the uncompressed model - 1 */
    kvd_interval measured; /* measured loss, and its confidence interval */
    double share;          /* size of the cache as a fraction of a 16-bit cache */
    /* Size of the smallest cache whose loss is at most `asked`, as a fraction of a 16-bit cache, or
     * NaN. */
    double oracle_asked;
    /* Size of the smallest cache whose loss is at most `measured`, as a fraction of a 16-bit cache,
     * or NaN. */
    double oracle_measured;
    /* sizes of the smallest caches with a loss of at most measured.lo and measured.hi, as fractions
     * of a 16-bit cache, or NaN */
    double oracle_lo, oracle_hi;
} kvd_judged_proposal;

/* For each accuracy result with parameters that kvdim-fit proposed, finds the smallest measured
 * cache of equal or lower loss. The caller frees *all [n]. */
int kvd_proposals_judge(const kvd_results *r, kvd_judged_proposal **all, size_t *n, kvd_err *err);

/* Computes by how many percent caches with parameters from kvdim-fit are larger than the smallest
 * measured caches of equal or lower loss. */
int kvd_proposals_measure(const kvd_results *r, kvd_measured *out, kvd_err *err);

/* smallest number of accuracy results from which a method's saved cache bytes are estimated */
enum { KVD_FEWEST_POINTS = 3 };

/* Returns the recorded search for the strongest compression with which the method of *e keeps the
 * fraction `target` of the score. Reads only the file of *e. Returns NULL if the file has no such
 * search. */
const kvd_target_result *kvd_entry_search(const kvd_accuracy_entry *e, double target);

/* Estimates how many bytes a method saves while keeping 99 % of the accuracy, from its results
 * first to last (inclusive) in *all, which are ordered from the largest cache to the smallest. */
void kvd_target_from_points(const kvd_accuracy_entries *all, size_t first, size_t last,
                            kvd_target_result *x);

/* Returns true if the calibration left out sequences of its text, or replaced tokens by K-means
 * centroids. */
bool kvd_calibration_reduced(const kvd_spectrum *s);
/* Returns true if a calibration serves only to compare ways of calibrating (ZDC paper, Fig. 15 and
 * 26), and must be ignored in all other comparisons. */
bool kvd_calibration_compared(const kvd_results *r, const kvd_spectrum *s);

/* Returns the result of calibrating with the settings of *s on all sequences of the text. Returns
 * NULL if there is none. */
const kvd_spectrum *kvd_calibration_unpruned(const kvd_results *r, const kvd_spectrum *s);

/* Returns the calibration file with the model and the label that an accuracy result names, or NULL
 * if *r has no such file. */
const kvd_result *kvd_calibration_of(const kvd_results *r, const kvd_result *accuracy, size_t row);

/* accuracy result in row `row` of a file, and the file of the calibration that it used */
typedef struct {
    const kvd_result *spectrum, *accuracy;
    size_t row;
    double p; /* fraction of the dimensions that the user asked to remove */
    /* Seconds of recording the model's activations for the tokens that calibration used: the
     * seconds of all recorded tokens times the fraction that was used. */
    double collect_s;
    /* Seconds of calibration after the model's activations were recorded: summing over tokens,
     * K-means, and singular value decomposition. */
    double calibrate_s;
    double perplexity;
} kvd_calibration_point;

/* Lists accuracy results together with their calibration files, ordered by text, method and
 * fraction of dimensions removed. If no calibration left out sequences or used K-means centroids,
 * *n is 0. The caller frees *points. */
int kvd_calibration_points(const kvd_results *r, kvd_calibration_point **points, size_t *n,
                           kvd_err *err);

/* Returns true if two accuracy results have the same compression method, the same fraction p of
 * removed dimensions and equal conditions, such as model and text. Their calibration may differ. */
bool kvd_calibration_same_choice(const kvd_calibration_point *a, const kvd_calibration_point *b);
/* Returns true if two results have equal methods, equal fractions of removed dimensions, and equal
 * kinds of calibration vectors: tokens, centroids or weighted centroids. If `centroids`, the
 * numbers of K-means centroids must be equal too. */
bool kvd_calibration_same_rows(const kvd_calibration_point *a, const kvd_calibration_point *b,
                               bool centroids);

int kvd_calibration_spectra(const kvd_results *r, const char *name, kvd_pair pair,
                            kvd_measured *out, kvd_err *err);
int kvd_calibration_ratios(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

/* Writes the name of a curve in a figure, such as "uniform on wiki: weighted". It consists of the
 * method, the text (if `texts`) and the calibration vectors: tokens ("rows"), "centroids" or
 * "weighted" centroids. */
void kvd_calibration_series(const kvd_calibration_point *x, bool texts, char *buf, size_t size);

/* Returns true if `name` is a measure that compares two methods in simulated serving of requests,
 * such as "serving-ttft-A-over-B". docs/definitions.md lists these measures. */
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

/* Adds a section to the report that compares two sets of result files. *n_outside: number of
 * measurements whose values disagree. Fails if the sets share no measurement. */
int kvd_compare_section(const kvd_results *a, const kvd_results *b, kvd_report *report,
                        size_t *n_outside, kvd_err *err);

#endif
