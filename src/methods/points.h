/*
 * Points of a method: settings at which it is evaluated. A point is a choice of widths, from a
 * rates file, from a wanted p or removal rate, or from a search, together with the projections that
 * are cut to them. Methods of other axes have one point, without widths.
 */
#ifndef KVD_METHODS_POINTS_H
#define KVD_METHODS_POINTS_H

#include "methods/method.h"
#include "methods/widths.h"

/* Files that the command line gives for methods, each with its path for messages. */
typedef struct {
    kvd_spectrum *spectrum; /* [n_spectra] bases and singular values */
    const char *const *spectrum_path;
    size_t n_spectra;
    kvd_rates *rates; /* [n_rates] tables of widths */
    const char *const *rates_path;
    size_t n_rates;
    kvd_error_table *table; /* table of measured errors; NULL: none */
    const char *table_path;
} kvd_method_files;

/*
 * Sets m->spectrum, m->rates and m->table: the one spectrum with both pairs of the method, the one
 * rates file with these pairs, and the error table if the method has ranks=error. Fails if there is
 * no such spectrum, if two files fit, if rates or table belong to other pairs, or if the table was
 * measured with other bases. Methods without dims need no file.
 */
int kvd_method_find_files(kvd_method *m, const kvd_method_files *files, kvd_err *err);

/*
 * Warns on stderr about every given file that none of the n methods reads. `calibration` and
 * `fisher` are paths, NULL if not given. kvd_method_find_files must have been called for all
 * methods.
 */
void kvd_method_files_say_unused(const kvd_method_files *files, const char *calibration,
                                 const char *fisher, const kvd_method *method, size_t n,
                                 const char *program);

/*
 * Warns on stderr if a method's rates were fitted to other bases than those of its spectrum, or if
 * its error table does not name its bases. Both are allowed, so that a user can measure the loss.
 */
int kvd_method_warn_bases(const kvd_method *m, const char *program, kvd_err *err);

typedef struct {
    const kvd_method *method; /* borrowed */
    /* rule that chose the widths: "none", "eq6", "eq6-energy", "error", "loss" or "uniform" */
    const char *rule;
    double removal_rate; /* r of Eq. 6; NaN if no single r gives these widths */
    /* requested p over Q-K and V, projected or not; NaN if an r was given */
    double p_wanted;
    /* p of the stored elements, unprojected ones included; 0 for method none */
    double overall_p;
    double side_p[2]; /* p of the stored elements of Q-K and of V */
    /* p of entries at the low level, Q-K and V; NaN: there is no low level */
    double low_p[2];
    kvd_dims dims; /* projections; head NULL: there are none */
    kvd_dims low;  /* projections of entries at the low level; head NULL: as `dims` */
} kvd_point;

/*
 * Makes all measurement points of the method: the one that its keys choose, else those of its rates
 * file (uniform: the overall p of each). If there are neither keys nor a rates file, *n is 0. The
 * caller frees *points with kvd_points_free. The method must outlive the points.
 */
int kvd_points_make(const kvd_method *m, kvd_point **points, size_t *n, kvd_err *err);
void kvd_points_free(kvd_point *points, size_t n);

/*
 * Make one measurement point of a dims method: at or just above overall p (uniform: at the
 * nearest); as keys p, p.qk and p.v, or r choose it; or the i-th point of the rates file.
 * kvd_point_release frees it.
 */
int kvd_point_at(const kvd_method *m, double p, kvd_point *point, kvd_err *err);
int kvd_point_of_keys(const kvd_method *m, kvd_point *point, kvd_err *err);
int kvd_point_of_rates(const kvd_method *m, size_t i, kvd_point *point, kvd_err *err);
void kvd_point_release(kvd_point *point);

/*
 * Returns the plan of the measurement point: a copy of the method's plan with the projections of
 * the point, which it borrows. The caller sets type, prompt and seed, and opens it.
 */
kvd_plan kvd_point_plan(const kvd_point *point);

/* Writes to *p the largest overall p that kvd_point_at can reach. */
int kvd_point_largest(const kvd_method *m, double *p, kvd_err *err);

/*
 * Builds the projections of the method with every head at full width. A pair that key `cut`
 * excludes has no matrices.
 */
int kvd_point_full(const kvd_method *m, kvd_dims *dims, kvd_err *err);

#endif
