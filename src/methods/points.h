/*
 * Settings ("points") at which a method is evaluated. A point is a number of kept dimensions for
 * every head, with the projection matrices cut to them. It comes from a file of kept widths
 * (rates.h5), from a wanted p or removal rate r, or from a search. Methods that do not reduce
 * dimensions have one point, without widths.
 */
#ifndef KVD_METHODS_POINTS_H
#define KVD_METHODS_POINTS_H

#include "methods/method.h"
#include "methods/widths.h"

/*
 * Files that the command line gives for methods. The *_path fields hold their paths for messages.
 */
typedef struct {
    /* Files of rotations and singular values, [n_spectra]. */
    kvd_spectrum *spectrum;
    const char *const *spectrum_path;
    size_t n_spectra;
    /* Files of kept widths per head, [n_rates]. */
    kvd_rates *rates;
    const char *const *rates_path;
    size_t n_rates;
    /* Table of the loss measured for each head and width; NULL if none is given. */
    kvd_error_table *table;
    const char *table_path;
} kvd_method_files;

/*
 * Sets m->spectrum, m->rates and m->table: the one spectrum file with the method's rotations of Q-K
 * and V (such as qk and vw), the one file of kept widths (rates.h5) for these rotations, and the
 * error table if the method has ranks=error. Fails if there is no such spectrum, if two files fit,
 * if the kept widths or the table belong to other kinds of rotations, or if the table was measured
 * with other rotations. Methods that reduce no dimensions need no file.
 */
int kvd_method_find_files(kvd_method *m, const kvd_method_files *files, kvd_err *err);

/*
 * Warns on stderr about every file given on the command line that none of the n methods reads.
 * `calibration` and `fisher` are paths, NULL if not given. kvd_method_find_files must have been
 * called for all methods.
 */
void kvd_method_files_say_unused(const kvd_method_files *files, const char *calibration,
                                 const char *fisher, const kvd_method *method, size_t n,
                                 const char *program);

/*
 * Warns on stderr if a method's kept widths were fitted to other rotations than those of its
 * spectrum file, or if its error table does not name its rotations. Both are allowed, so that a
 * user can measure the loss of quality.
 */
int kvd_method_warn_bases(const kvd_method *m, const char *program, kvd_err *err);

typedef struct {
    /* Method that is evaluated at this point; borrowed. */
    const kvd_method *method;
    /*
     * Name of the rule that chose the kept widths: "none", "eq6", "eq6-energy", "error", "loss" or
     * "uniform".
     */
    const char *rule;
    /* Removal rate r of Eq. 6. NaN if no single r gives these widths. */
    double removal_rate;
    /*
     * Requested fraction of dimensions to remove, over Q-K and V of all heads, projected or not.
     * NaN if the user gave r.
     */
    double p_wanted;
    /*
     * Fraction of elements that is not stored, counted over all heads, unprojected ones included. 0
     * for method none.
     */
    double overall_p;
    /* Fraction of elements of Q-K and of V that is not stored. */
    double side_p[2];
    /*
     * Fraction of Q-K and of V elements that is not stored for tokens at the low precision level.
     * NaN: there is no low level.
     */
    double low_p[2];
    /* Projection matrices of all heads. Field `head` is NULL if nothing is projected. */
    kvd_dims dims;
    /*
     * Projection matrices for tokens at the low precision level. Field `head` is NULL if these
     * tokens use `dims`.
     */
    kvd_dims low;
} kvd_point;

/*
 * Makes all settings at which the method is evaluated: the one that its parameters choose, else one
 * for each setting in its file of kept widths (method uniform: for each overall p in that file). If
 * there are neither such parameters nor such a file, *n is 0. The caller frees *points with
 * kvd_points_free. The method must outlive the points.
 */
int kvd_points_make(const kvd_method *m, kvd_point **points, size_t *n, kvd_err *err);
void kvd_points_free(kvd_point *points, size_t n);

/*
 * These three functions make one point of a method that reduces dimensions. kvd_point_at: at the
 * smallest reachable overall p that is not below `p` (method uniform: at the nearest).
 * kvd_point_of_keys: as the parameters p, or p.qk and p.v, or r choose. kvd_point_of_rates: the
 * i-th setting in the file of kept widths. kvd_point_release frees the point.
 */
int kvd_point_at(const kvd_method *m, double p, kvd_point *point, kvd_err *err);
int kvd_point_of_keys(const kvd_method *m, kvd_point *point, kvd_err *err);
int kvd_point_of_rates(const kvd_method *m, size_t i, kvd_point *point, kvd_err *err);
void kvd_point_release(kvd_point *point);

/*
 * Returns the plan of the point: a copy of the method's plan with the projections of the point,
 * which it borrows. The caller sets type, prompt and seed, and opens the plan.
 */
kvd_plan kvd_point_plan(const kvd_point *point);

/*
 * Writes to *p the largest overall p (fraction of dimensions removed) that kvd_point_at can reach.
 */
int kvd_point_largest(const kvd_method *m, double *p, kvd_err *err);

/*
 * Builds the projection matrices of the method with every head keeping all d_head dimensions. A
 * side (Q-K or V) that parameter `cut` excludes has no matrices.
 */
int kvd_point_full(const kvd_method *m, kvd_dims *dims, kvd_err *err);

#endif
