/*
 * Settings at which a method is evaluated. A kvd_point is a number of kept dimensions for every
 * head, with the projection matrices. It comes from a file of kept dimensions (rates.h5), from a
 * wanted p or removal rate r, or from a search. Methods that do not reduce dimensions have one
 * kvd_point.
 */
#ifndef KVD_METHODS_POINTS_H
#define KVD_METHODS_POINTS_H

#include "methods/method.h"
#include "methods/widths.h"

/* Files that the command line gives for methods. */
typedef struct {
    /* [n_spectra] rotations and singular values */
    kvd_spectrum *spectrum;
    const char *const *spectrum_path;
    size_t n_spectra;
    /* [n_rates] kept dimensions per head */
    kvd_rates *rates;
    const char *const *rates_path;
    size_t n_rates;
    /* Table of losses measured for each head and number of dimensions, or NULL. */
    kvd_error_table *table;
    const char *table_path;
} kvd_method_files;

/*
 * Sets m->spectrum to the spectrum file with the method's rotations, and m->rates to the file of
 * kept dimensions for these rotations. For a method with ranks=error, sets m->table too. Fails if
 * no spectrum file fits, if two files fit, or if the file of kept dimensions or the table was made
 * for other rotations. Methods that do not reduce dimensions need no file.
 */
int kvd_method_find_files(kvd_method *m, const kvd_method_files *files, kvd_err *err);

/*
 * Warns on stderr about every given file that none of the n methods reads. `calibration` and
 * `fisher` are the paths of these options, or NULL. kvd_method_find_files must have been called for
 * all methods.
 */
void kvd_method_files_say_unused(const kvd_method_files *files, const char *calibration,
                                 const char *fisher, const kvd_method *method, size_t n,
                                 const char *program);

/*
 * Warns on stderr if a method's kept dimensions were fitted to other rotations than those of its
 * spectrum file, or if its error table does not name its rotations.
 */
int kvd_method_warn_bases(const kvd_method *m, const char *program, kvd_err *err);

typedef struct {
    /* borrowed */
    const kvd_method *method;
    /*
     * Rule that chose the kept dimensions: "none", "eq6", "eq6-energy", "error", "loss" or
     * "uniform".
     */
    const char *rule;
    /* Removal rate r of Eq. 6 of the ZACK paper. NaN if no single r gives these dimensions. */
    double removal_rate;
    /*
     * Requested fraction of dimensions to remove, over Q, K and V of all heads. NaN if the user
     * gave r.
     */
    double p_wanted;
    /* Fraction of elements that is not stored, over all heads. 0 for method none. */
    double overall_p;
    /* Fraction of elements of Q and K, and of V that is not stored. */
    double side_p[2];
    /*
     * Fraction of elements of Q and K, and of V that tokens at KVD_LEVEL_LOW do not store. NaN:
     * there is no low level.
     */
    double low_p[2];
    /* Projection matrices. Field `head` is NULL if nothing is projected. */
    kvd_dims dims;
    /*
     * Projection matrices for tokens at KVD_LEVEL_LOW. Field `head` is NULL if these tokens use the
     * matrices of `dims`.
     */
    kvd_dims low;
} kvd_point;

/*
 * Makes the kvd_point that the method's parameters p or r choose. If the user gave neither
 * parameter, makes one point for each setting in the method's file of kept dimensions (for method
 * uniform: for each fraction of removed elements in that file). If there is no file either, `*n` is
 * 0. The caller must free `*points` with kvd_points_free. The method must outlive `*points`.
 */
int kvd_points_make(const kvd_method *m, kvd_point **points, size_t *n, kvd_err *err);
void kvd_points_free(kvd_point *points, size_t n);

/*
 * kvd_point_at, kvd_point_of_keys and kvd_point_of_rates make one kvd_point of a method that
 * reduces dimensions. The caller must release it with kvd_point_release. kvd_point_at uses the
 * smallest possible fraction of removed elements that is at least the argument `p` (method uniform:
 * the nearest one). kvd_point_of_keys uses the method's parameters p, or p.qk and p.v, or r.
 * kvd_point_of_rates uses the i-th setting in the file of kept dimensions.
 */
int kvd_point_at(const kvd_method *m, double p, kvd_point *point, kvd_err *err);
int kvd_point_of_keys(const kvd_method *m, kvd_point *point, kvd_err *err);
int kvd_point_of_rates(const kvd_method *m, size_t i, kvd_point *point, kvd_err *err);
void kvd_point_release(kvd_point *point);

/*
 * Returns a copy of the method's plan with the projections of `point`, which it borrows. The caller
 * must set type, prompt and seed, and open the plan.
 */
kvd_plan kvd_point_plan(const kvd_point *point);

/* Writes to `*p` the largest overall p that kvd_point_at can reach. */
int kvd_point_largest(const kvd_method *m, double *p, kvd_err *err);

/*
 * Builds the projection matrices with every head keeping all d_head dimensions. A side (Q and K, or
 * V) that parameter `cut` excludes has no matrices.
 */
int kvd_point_full(const kvd_method *m, kvd_dims *dims, kvd_err *err);

#endif
