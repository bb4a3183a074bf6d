/*
 * Cost and benefit of calibrating on fewer rows (ZDC Fig. 15 and 26): spectra of pruned and
 * clustered rows, and of all rows, each with the accuracy of models that were cut by it.
 */
#ifndef KVD_REPORT_MEASURES_CALIBRATION_H
#define KVD_REPORT_MEASURES_CALIBRATION_H

#include "report/measures/measures.h"
#include "report/results.h"

/*
 * Returns true if some rows were left out or replaced by centroids. The report shows such spectra
 * in a section of their own.
 */
bool kvd_calibration_reduced(const kvd_spectrum *s);

/* Returns the spectrum among the results that was not pruned and otherwise equals s, or NULL. */
const kvd_spectrum *kvd_calibration_unpruned(const kvd_results *r, const kvd_spectrum *s);

/*
 * Returns the spectrum that an accuracy row names as its calibration, by label and model, or NULL
 * if it is not among the results.
 */
const kvd_result *kvd_calibration_of(const kvd_results *r, const kvd_result *accuracy, size_t row);

/* One spectrum and one accuracy row that names it as its calibration. */
typedef struct {
    const kvd_result *spectrum, *accuracy;
    size_t row;
    double p; /* removal rate that was asked for */
    /* seconds of making the inputs, in proportion to the tokens that were kept */
    double collect_s;
    double calibrate_s; /* seconds of rows, K-means and decomposition */
    double perplexity;
} kvd_calibration_point;

/*
 * Fills *points with the points of all rows with a p that was asked for; *n is 0 if no spectrum is
 * reduced. Order: by evaluated text, method and p; then whole rows before centroids before weighted
 * centroids; then by number of centroids and share pruned. *points is allocated; the caller frees
 * it.
 */
int kvd_calibration_points(const kvd_results *r, kvd_calibration_point **points, size_t *n,
                           kvd_err *err);

/*
 * Returns true if the points are equal in p and in everything but the calibration and the widths
 * that follow from it.
 */
bool kvd_calibration_same_choice(const kvd_calibration_point *a, const kvd_calibration_point *b);
/*
 * Returns true if kvd_calibration_same_choice holds and both have the same kind of rows and, if
 * `centroids`, equal numbers of centroids.
 */
bool kvd_calibration_same_rows(const kvd_calibration_point *a, const kvd_calibration_point *b,
                               bool centroids);

/* Values of the measures of measures.h that begin with prune- and centroids-. */
int kvd_calibration_spectra(const kvd_results *r, const char *name, kvd_pair pair,
                            kvd_measured *out, kvd_err *err);
int kvd_calibration_ratios(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

/*
 * Writes the name of a curve, such as "uniform: weighted": method, evaluated text if `texts`, and
 * kind of rows.
 */
void kvd_calibration_series(const kvd_calibration_point *x, bool texts, char *buf, size_t size);

#endif
