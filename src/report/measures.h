/* Numbers that are computed from result files: what the tables show and what the ledger judges. */
#ifndef KVD_REPORT_MEASURES_H
#define KVD_REPORT_MEASURES_H

#include "report/results.h"

/* ---- spectra; sums run over all layers and heads of the pair ---- */

/* Average over heads of the singular value at `dim`; divided by sqrt(n_rows) when normalised (Z-10). */
double kvd_mean_sigma(const kvd_spectrum *s, kvd_pair pair, int dim, bool normalised);
/* Share of the sum of the average curve that lies in its trailing half; 0.5 for a flat spectrum. */
double kvd_trailing_share(const kvd_spectrum *s, kvd_pair pair);
/* Mean over heads of the number of leading dimensions that hold `share` of the energy (squares). */
double kvd_dims_for_energy(const kvd_spectrum *s, kvd_pair pair, double share);
/* Share of singular values below 1 (ZDC Fig. 13); normalised as above (D-22). */
double kvd_share_below_one(const kvd_spectrum *s, kvd_pair pair, bool normalised);
/* Mean and sample standard deviation over heads of the largest singular value; -1 without memory. */
int kvd_top_sigma(const kvd_spectrum *s, kvd_pair pair, double *mean, double *sd, kvd_err *err);

/* ---- similarity against the number of calibration tokens (ZACK Fig. 18, FDC Fig. 14) ---- */

typedef struct {
    char series[2 * KVD_LABEL + 16]; /* "LABEL against REFERENCE", or the mean over references */
    kvd_pair pair;
    size_t n_tokens;
    size_t n_averaged; /* 1, or the number of references of a mean             */
    bool drawn;        /* false for a single reference where there is a mean      */
    bool random;       /* the calibration whose tokens vary is random ids      */
    double delta_ratio, aligned_ratio, overlap_half, energy_half;
} kvd_token_point;

/*
 * Points of every similarity file in which one label comes with two or more token counts, by series, pair
 * and token count; then, per pair and label, the mean over references at counts that every reference has.
 * *points is allocated, the caller frees it.
 */
int kvd_token_points(const kvd_results *r, kvd_token_point **points, size_t *n, kvd_err *err);

/* True when no other file of the same label in this similarity file has more tokens than the i-th; of equals,
 * the first. */
bool kvd_most_tokens(const kvd_similarity *s, size_t i);

/* ---- accuracy rows ---- */

/* False for a row of accuracy that is one seed of a point whose mean stands before it. */
bool kvd_row_is_point(const kvd_rows *rows, size_t row);
/* True for a row of the model with weights of few bits, which is no method of the cache (study_weights.c). */
bool kvd_row_is_weights(const kvd_rows *rows, size_t row);
/* True when the row evaluates the text that its bases come from. */
bool kvd_on_calibration_text(const kvd_rows *rows, size_t row);

/* ---- values by name, for the ledger ---- */

typedef struct {
    double value;
    char what[2 * KVD_LABEL + 64]; /* where it was measured */
    char device[64];               /* of a time: whose it is, "NVIDIA H200"; "" of other numbers */
    bool grows;                    /* of requests whose queue grows: more of them would give another value */
} kvd_value;

typedef struct {
    kvd_value *value;
    size_t n;
} kvd_values;

/*
 * Values of a measure "NAME:PAIR" or "NAME:PAIR:NUMBER":
 *   trailing-share:k       kvd_trailing_share, percent
 *   below-one:qk           kvd_share_below_one, percent; below-one-normalised: likewise
 *   cv:qk                  100 * sd / mean of the largest singular value
 *   delta-ratio:qk         100 * delta / epsilon, as printed; both calibrations are texts
 *   aligned-ratio:qk       the same after aligning signs
 *   energy-ratio:qk        100 * energy kept at half width by the other basis / by the own basis
 *   overlap-half:qk        overlap of the leading halves, percent
 *   random-...:qk          those four where one calibration is random token ids and the other a text
 *   tokens-delta:qk:N      mean delta / epsilon in percent of points with more than N tokens
 *   tokens-fall:qk         delta / epsilon at most tokens / at fewest tokens
 *   tokens-...-random      those two for random calibrations only
 *   degradation:all        D on other text / D on calibration text, at equal method and p; degradation-norm:
 *                          likewise of the ratio of norms
 *   prune-spectrum:qk      largest change, in percent over head dimensions, of the average curve per square root of rows
 *                          when half of the sequences are pruned (0.45 to 0.55), of unweighted centroids of the same
 *                          number; prune-spectrum-rows without K-means, prune-spectrum-weighted
 *   prune-rise:all         perplexity at the largest share pruned / at the smallest, likewise;
 *                          prune-rise-rows, prune-rise-weighted; prune-time: of seconds
 *   centroids-fall:all     perplexity with the most centroids / with the fewest, at the same share pruned;
 *                          centroids-fall-weighted; centroids-time: of seconds
 *   proposal-over-oracle:all   bytes of settings that a regression proposed over the Oracle's, less 1, percent (proposals.h)
 *   NAME:all               those of token_measures.h
 *   serving-...:TRACE      those of serving_measures.h
 *   jct-...:SIZES          those of jct_measures.h
 * Spectra of fewer rows count for these alone.
 * No file that holds the measure gives n = 0. An unknown name is an error.
 */
int kvd_measure(const kvd_results *r, const char *name, kvd_values *out, kvd_err *err);
/* Appends a value with the text of where it was measured; NaN is passed over. */
int kvd_values_put(kvd_values *v, double value, kvd_err *err, const char *fmt, ...) KVD_PRINTF(4, 5);
/* The values from index `first` on are times of the device that an engine's description begins with. */
void kvd_values_timed_on(kvd_values *v, size_t first, const char *engine);
void kvd_values_release(kvd_values *v);

#endif
