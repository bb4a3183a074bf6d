/* Parameter values at which a method is evaluated, with kept dimensions and projections. */
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

/* Sets m->spectrum, m->rates and m->table to the files that fit the method. Fails if no spectrum
 * file or two fit, or if the files do not match. */
int kvd_method_find_files(kvd_method *m, const kvd_method_files *files, kvd_err *err);

/* Warns about files that no method reads, after kvd_method_find_files for all methods. */
void kvd_method_files_say_unused(const kvd_method_files *files, const char *calibration,
                                 const char *fisher, const kvd_method *method, size_t n,
                                 const char *program);

/* Warns if the kept dimensions were chosen for rotations other than those of m->spectrum, or if the
 * error table does not name its rotations. */
int kvd_method_warn_bases(const kvd_method *m, const char *program, kvd_err *err);

typedef struct {
    const kvd_method *method;
    /* Rule that chose the kept dimensions: "none", "uniform" (equal widths), "eq6", "error", ... */
    const char *rule;
    /* Removed fraction r of singular values (ZACK paper, Eq. 6), or NaN if it was not used. */
    double removal_rate;
    /* Fraction of dimensions that the user asked to remove, or NaN if the user gave none. */
    double p_wanted;
    double overall_p;
    /* Fractions of the elements of Q and K, and of V, that are not stored. */
    double side_p[2];
    /* Fractions of dimensions of Q and K, and of V, that low-precision tokens lack, or NaN. */
    double low_p[2];
    /* Projection matrices of all heads. `head` is NULL if nothing is projected. */
    kvd_dims dims;
    /* Projections for tokens at low precision. If low.head is NULL, `dims` applies to them. */
    kvd_dims low;
} kvd_point;

/* Lists the parameter values at which a method is evaluated: those the user gave, or one point per
 * entry of the file of kept dimensions. The caller must call kvd_points_free. The method must
 * outlive `*points`. */
int kvd_points_make(const kvd_method *m, kvd_point **points, size_t *n, kvd_err *err);
void kvd_points_free(kvd_point *points, size_t n);

/* Makes the point (parameter values) that removes the smallest fraction of dimensions of at least
 * `p` (method uniform: nearest to `p`). kvd_point_of_keys uses the method's own parameters,
 * kvd_point_of_rates entry i of the file of kept dimensions. The caller must call
 * kvd_point_release. */
int kvd_point_at(const kvd_method *m, double p, kvd_point *point, kvd_err *err);
int kvd_point_of_keys(const kvd_method *m, kvd_point *point, kvd_err *err);
int kvd_point_of_rates(const kvd_method *m, size_t i, kvd_point *point, kvd_err *err);
void kvd_point_release(kvd_point *point);

/* Returns the compression methods at a point (one choice of parameter values), with its
 * projections, which the plan borrows. The caller must set type, prompt and seed, and open the
 * plan. */
kvd_plan kvd_point_plan(const kvd_point *point);

/* Writes the largest fraction of dimensions that kvd_point_at can remove with this method. */
int kvd_point_largest(const kvd_method *m, double *p, kvd_err *err);

/* Builds projections that keep all dimensions. m->cut may exclude those of Q and K, or of V. */
int kvd_point_full(const kvd_method *m, kvd_dims *dims, kvd_err *err);

#endif
