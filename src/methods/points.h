/* Computes the projection matrices of a method for given parameter values, for example
 * `zack,p=0.5`. */
#ifndef KVD_METHODS_POINTS_H
#define KVD_METHODS_POINTS_H

#include "formats/activations.h"
#include "formats/fisher.h"
#include "methods/method.h"
#include "methods/widths.h"

enum { KVD_METHOD_FILES = 16 };

/* Paths of files that methods read (KVD_OPTIONS_METHOD_FILES); NULL if not given. */
typedef struct {
    const char *spectrum[KVD_METHOD_FILES], *rates[KVD_METHOD_FILES];
    size_t n_spectra, n_rates;
    const char *table, *calibration, *fisher;
} kvd_method_paths;

typedef struct {
    kvd_method_paths path;
    kvd_spectrum spectrum[KVD_METHOD_FILES];
    kvd_rates rates[KVD_METHOD_FILES];
    /* KL divergence measured when one head keeps fewer dimensions, for each head and number of
     * dimensions. */
    kvd_error_table table;
    kvd_activations calibration;
    kvd_fisher fisher;
} kvd_method_files;

/* Records the files whose paths are in *p as inputs of the run. */
int kvd_method_paths_add_inputs(const kvd_method_paths *p, kvd_run *run, kvd_err *err);
/* Reads the files that compression methods need, whose paths are in *p. Fails if a file was made
 * for another model. model: path of the model. info: description of the model. The caller must call
 * kvd_method_files_release, also on failure. */
int kvd_method_files_load(kvd_method_files *f, const kvd_method_paths *p,
                          const kvd_model_info *info, const char *model, kvd_err *err);
void kvd_method_files_release(kvd_method_files *f);

/* Finds the files that fit method *m: sets m->spectrum (rotation matrices), m->rates (numbers of
 * kept dimensions) and m->table (measured errors). Fails if no rotation matrices fit the method, if
 * two files of the same kind fit it, or if the files do not match each other. */
int kvd_method_find_files(kvd_method *m, const kvd_method_files *files, kvd_err *err);

/* Warns about each file of `given` that none of the n methods reads. kvd_method_find_files must
 * have been called for all methods before. */
void kvd_method_files_say_unused(const kvd_method_files *files, const kvd_method_paths *given,
                                 const kvd_method *method, size_t n, const char *program);

/* Warns if the method's file of kept dimensions or of measured errors may be for rotation matrices
 * other than the method's. */
int kvd_method_warn_bases(const kvd_method *m, const char *program, kvd_err *err);

typedef struct {
    const kvd_method *method;
    /* Rule that chose how many dimensions each head keeps: "none", "uniform" (the same number for
     * all heads), "eq6" (ZACK paper, Eq. 6), "error" (from measured errors), ... */
    const char *rule;
    /* Fraction of its sum of singular values that each head may lose (r in the ZACK paper, Eq. 6).
     * NaN if r was not used. */
    double removal_rate;
    /* Fraction of dimensions that the user asked to remove, or NaN if the user gave none. */
    double p_wanted;
    double overall_p;
    /* Fractions of dimensions that are removed: from Q and K (index 0), and from V (index 1). */
    double side_p[2];
    /* Fractions of dimensions that are removed for tokens at low precision: from Q and K (index 0),
     * and from V (index 1). NaN if there are no such tokens. */
    double low_p[2];
    /* Projection matrices of all heads. `head` is NULL if nothing is projected. */
    kvd_dims dims;
    /* Projections for tokens at low precision. If low.head is NULL, `dims` applies to them. */
    kvd_dims low;
} kvd_point;

/* Lists the points (choices of parameter values) at which method *m is evaluated. If m removes
 * dimensions and the user did not say how many, each entry of the --rates file is a point.
 * Otherwise there is one point. The caller must call kvd_points_free. *m must outlive `*points`. */
int kvd_points_make(const kvd_method *m, kvd_point **points, size_t *n, kvd_err *err);
void kvd_points_free(kvd_point *points, size_t n);

/* Computes projections that remove the fraction `p` of all dimensions. The number of removed
 * dimensions is rounded up, or for method uniform to nearest. The caller must call
 * kvd_point_release. */
int kvd_point_at(const kvd_method *m, double p, kvd_point *point, kvd_err *err);
/* Computes projections that remove as many dimensions as the parameters of *m say, for example
 * `zack,p=0.5`. The caller must call kvd_point_release. */
int kvd_point_of_keys(const kvd_method *m, kvd_point *point, kvd_err *err);
/* Computes projections with the numbers of kept dimensions in entry i of the --rates file. The
 * caller must call kvd_point_release. */
int kvd_point_of_rates(const kvd_method *m, size_t i, kvd_point *point, kvd_err *err);
void kvd_point_release(kvd_point *point);

/* Returns a plan with the compression methods and projection matrices of *point, which must outlive
 * the plan. The caller must set type, prompt and seed of the plan, and open it. */
kvd_plan kvd_point_plan(const kvd_point *point);

/* Sets *p to the largest fraction of dimensions that method *m can remove. */
int kvd_point_largest(const kvd_method *m, double *p, kvd_err *err);

/* Builds projections that remove no dimensions: each head keeps d_head. If m->cut is KVD_CUT_QK, V
 * gets no projection; with KVD_CUT_V, Q and K get no projection. */
int kvd_point_full(const kvd_method *m, kvd_dims *dims, kvd_err *err);

#endif
