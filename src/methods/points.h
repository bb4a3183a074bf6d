/*
 * Parameter values at which a method is evaluated (kvd_point), with the number of dimensions that
 * each head then keeps and the projection matrices.
 */
#ifndef KVD_METHODS_POINTS_H
#define KVD_METHODS_POINTS_H

#include "methods/method.h"
#include "methods/widths.h"

typedef struct {
    kvd_spectrum *spectrum;
    const char *const *spectrum_path;
    size_t n_spectra;
    kvd_rates *rates;
    const char *const *rates_path;
    size_t n_rates;
    /* Losses measured for each head and number of kept dimensions, or NULL. */
    kvd_error_table *table;
    const char *table_path;
} kvd_method_files;

/*
 * Sets m->spectrum, m->rates and, with ranks=error, m->table to the files with the method's
 * rotations. Fails if none or two of the spectrum files fit, or if the others were made for
 * different rotations.
 */
int kvd_method_find_files(kvd_method *m, const kvd_method_files *files, kvd_err *err);

/*
 * Warns on stderr about files (paths or NULL) that no method reads. Must be called after
 * kvd_method_find_files for all methods.
 */
void kvd_method_files_say_unused(const kvd_method_files *files, const char *calibration,
                                 const char *fisher, const kvd_method *method, size_t n,
                                 const char *program);

/*
 * Warns on stderr if the file of kept dimensions or the error table was made for other rotations.
 */
int kvd_method_warn_bases(const kvd_method *m, const char *program, kvd_err *err);

typedef struct {
    const kvd_method *method;
    /*
     * Rule by which kept dimensions were chosen: "none", "eq6", "eq6-energy", "error", "loss" or
     * "uniform".
     */
    const char *rule;
    /* Removal rate r of Eq. 6 of the ZACK paper, or NaN if it was not used. */
    double removal_rate;
    /* Fraction of dimensions that the user wants to remove; NaN if the user gave r. */
    double p_wanted;
    double overall_p;
    /* Fractions of the elements of Q and K, and of V, that are not stored. */
    double side_p[2];
    /*
     * Fractions of the elements of Q and K, and of V, that are not stored for tokens at low
     * precision (KVD_LEVEL_LOW). NaN if the method has no such tokens.
     */
    double low_p[2];
    /* Projection matrices of all heads. `head` is NULL if nothing is projected. */
    kvd_dims dims;
    /*
     * Projection matrices for tokens at low precision (KVD_LEVEL_LOW). `head` is NULL if `dims`
     * applies to them.
     */
    kvd_dims low;
} kvd_point;

/*
 * Lists the parameter values at which a method is evaluated: p or r if the user gave it, otherwise
 * one point per entry in the file of kept dimensions, or none. The caller must call
 * kvd_points_free. The method must outlive `*points`.
 */
int kvd_points_make(const kvd_method *m, kvd_point **points, size_t *n, kvd_err *err);
void kvd_points_free(kvd_point *points, size_t n);

/*
 * Each function makes one kvd_point (the widths and projections of one parameter value), which the
 * caller must release with kvd_point_release. kvd_point_at: removes the smallest possible fraction
 * of at least `p` of the dimensions (method uniform: the nearest to `p`). kvd_point_of_keys: uses
 * the method's p, or p.qk and p.v, or r. kvd_point_of_rates: uses entry i of the file of kept
 * dimensions.
 */
int kvd_point_at(const kvd_method *m, double p, kvd_point *point, kvd_err *err);
int kvd_point_of_keys(const kvd_method *m, kvd_point *point, kvd_err *err);
int kvd_point_of_rates(const kvd_method *m, size_t i, kvd_point *point, kvd_err *err);
void kvd_point_release(kvd_point *point);

/*
 * Returns a copy of the method's compression plan with the projections of the point, which it
 * borrows. The caller must set type, prompt and seed, and open the plan.
 */
kvd_plan kvd_point_plan(const kvd_point *point);

/* Writes the largest removed fraction p that kvd_point_at can reach with this method. */
int kvd_point_largest(const kvd_method *m, double *p, kvd_err *err);

/*
 * Builds projection matrices that keep all d_head dimensions. Sides that m->cut excludes get none.
 */
int kvd_point_full(const kvd_method *m, kvd_dims *dims, kvd_err *err);

#endif
