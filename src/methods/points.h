/*
 * Points of a method: settings at which it is evaluated. A point is a choice of widths, from a
 * rates file, from a wanted p or removal rate, or from a search, together with the projections that
 * are cut to them. Methods of other axes have one point, without widths.
 */
#ifndef KVD_METHODS_POINTS_H
#define KVD_METHODS_POINTS_H

#include "methods/method.h"
#include "methods/widths.h"

/* Files that the command line names, each with its path for messages. */
typedef struct {
    kvd_spectrum *spectrum; /* [n_spectra] */
    const char *const *spectrum_path;
    size_t n_spectra;
    kvd_rates *rates; /* [n_rates] */
    const char *const *rates_path;
    size_t n_rates;
    kvd_error_table *table; /* NULL: none */
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
 * Warns on stderr if the widths of a method come from rates that were fitted to other bases than
 * its spectrum holds, or from an error table that does not say which bases it was measured with:
 * both are allowed, to see what they cost.
 */
int kvd_method_warn_bases(const kvd_method *m, const char *program, kvd_err *err);

typedef struct {
    const kvd_method *method; /* borrowed */
    const char *rule;         /* "none", "eq6", "eq6-energy", "error", "loss" or "uniform" */
    double removal_rate;      /* r of Eq. 6; NaN if no single r gives these widths */
    double p_wanted;          /* wanted p of both sides, cut or whole; NaN if an r was given */
    double overall_p;         /* p of the stored elements, whole sides included; 0 for none */
    double side_p[2];         /* p of the stored elements of Q-K and of V */
    double low_p[2];          /* p of entries at the low level, Q-K and V; NaN: no such level */
    kvd_dims dims;            /* head NULL: nothing is cut */
    kvd_dims low; /* widths of entries at the low level; if head is NULL, `dims` is used */
} kvd_point;

/*
 * Makes all points of the method: the one that its keys choose, else those of its rates file
 * (uniform: the overall p of each). *n is 0 if there are neither keys nor a rates file. The caller
 * frees *points with kvd_points_free. The method must outlive the points.
 */
int kvd_points_make(const kvd_method *m, kvd_point **points, size_t *n, kvd_err *err);
void kvd_points_free(kvd_point *points, size_t n);

/*
 * Each of these makes one point of a method with dims; kvd_point_release frees it. At overall p, at
 * or just above it (uniform: the nearest); as keys p, p.qk and p.v, or r choose it
 * (kvd_method_has_point); the i-th point of the rates file.
 */
int kvd_point_at(const kvd_method *m, double p, kvd_point *point, kvd_err *err);
int kvd_point_of_keys(const kvd_method *m, kvd_point *point, kvd_err *err);
int kvd_point_of_rates(const kvd_method *m, size_t i, kvd_point *point, kvd_err *err);
void kvd_point_release(kvd_point *point);

/*
 * Returns the plan of the point: the method's, with the projections of the point, which it borrows.
 * The caller sets type, prompt and seed, and opens it.
 */
kvd_plan kvd_point_plan(const kvd_point *point);

/* Writes the largest overall p that kvd_point_at can reach to *p. */
int kvd_point_largest(const kvd_method *m, double *p, kvd_err *err);

/*
 * Builds the projections of the method with every head at full width. A side that key cut leaves
 * whole has no matrices.
 */
int kvd_point_full(const kvd_method *m, kvd_dims *dims, kvd_err *err);

#endif
