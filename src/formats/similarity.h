/* kvdim/similarity files: comparison of rotations computed from several texts or models. */
#ifndef KVD_FORMATS_SIMILARITY_H
#define KVD_FORMATS_SIMILARITY_H

#include "formats/spectrum.h"

extern const kvd_schema kvd_schema_similarity;

/*
 * Comparison of the rotations in n_files spectrum files. File 0 is the reference. Values are means
 * over layers and heads unless stated otherwise. Arrays [n_others] begin with file 1.
 */
typedef struct {
    kvd_pair pair;
    size_t n_files, n_others, n_layers, n_h, d;
    /*
     * Comparison of the rotation R_0 of file 0 with the rotation R of each other file: [n_others].
     * `epsilon` is the mean of |R|, `delta` the mean of |R_0 - R|. `delta_aligned` is `delta` after
     * changing the sign of each column of R that has a negative scalar product with the column of
     * R_0.
     */
    double *epsilon, *delta, *delta_aligned;
    /*
     * Comparison of the first m columns of R_0 (rotation of the first file) and R (rotation of
     * another file), for m = 1 .. d: [n_others][d]. `overlap` is the mean squared cosine between
     * the two subspaces. `energy_kept` is the fraction of the squared norm of the other file's data
     * that remains in the m columns of R_0, and `energy_own` the fraction that remains in the m
     * columns of R.
     */
    double *overlap, *energy_kept, *energy_own;
    /* epsilon and delta of single heads: [n_others][n_layers][n_h]. */
    double *head_epsilon, *head_delta;
    double *head_delta_aligned;
    /* The values of `overlap` and `energy_kept` for single heads: [n_others][n_layers][n_h][d]. */
    double *head_overlap, *head_energy_kept;
    /*
     * `delta_over_epsilon` is mean |R_a - R_b| / mean |R_b| for the rotations of files a and b:
     * [n_files][n_files]. `aligned_over_epsilon` is the same ratio after changing the sign of each
     * column of R_b that has a negative scalar product with the column of R_a.
     */
    double *delta_over_epsilon, *aligned_over_epsilon;
    /*
     * The values of `overlap` and `energy_kept` for the first d / 2 columns of the rotations of
     * files a and b: [n_files][n_files].
     */
    double *overlap_half, *energy_kept_half;
    /*
     * Absolute difference between mean |R_a| and mean |R_b|, divided by mean |R_b|:
     * [n_files][n_files]. For means_over_epsilon, the difference is averaged over heads and then
     * its absolute value is taken. For head_means_over_epsilon, the absolute differences of the
     * heads are averaged.
     */
    double *means_over_epsilon, *head_means_over_epsilon;
    /*
     * Control: the six arrays from delta_over_epsilon to head_means_over_epsilon, computed with a
     * random rotation in place of R_a: [n_files].
     */
    double *random[6];
    double *all; /* one block of memory that holds all arrays of this structure */
} kvd_comparison;

/* Writes the comparison *c. `h_axis` is the name of the head axis, "head" or "kv_head". */
int kvd_comparison_write(kvd_h5 *f, const kvd_comparison *c, const char *h_axis, kvd_err *err);

/*
 * Writes the description of the model and the list of compared files. `path` has the file names of
 * the command line.
 */
int kvd_similarity_write_files(kvd_h5 *f, const char *const *path, const kvd_spectrum *s, size_t n,
                               kvd_err *err);

/*
 * Comparison of rotations, read from a file. Values are means over layers and heads. Element [a][b]
 * of a matrix [n_files][n_files] compares the rotation R_a of file a with file b: with its rotation
 * R_b or with its data.
 */
typedef struct {
    kvd_pair pair;
    /* Mean |R|, and mean |R_0 - R| (NaN for file 0): [n_files] each. */
    double *epsilon, *delta;
    /* Mean |R_a - R_b| / mean |R_b| for the rotations of files a and b: [n_files][n_files]. */
    double *delta_ratio;
    /* Mean |R_a - R_b| / mean |R_b| after the signs of columns were aligned: [n_files][n_files]. */
    double *aligned_ratio;
    /* Mean squared cosine between subspaces of the first d_head / 2 columns: [n_files][n_files]. */
    double *overlap;
    /* Fraction of the energy of file b's data that the first d_head / 2 columns of R_a keep. */
    double *energy;
    /*
     * Absolute difference between mean |R_a| and mean |R_b|, divided by mean |R_b|:
     * [n_files][n_files]. For `means`, the difference is averaged over heads and then its absolute
     * value is taken. For `head_means`, the absolute differences of the heads are averaged. NULL in
     * older files.
     */
    double *means, *head_means;
    /*
     * Control: the arrays delta_ratio, aligned_ratio, overlap and energy for file b, computed with
     * a random rotation in place of R_a: [n_files].
     */
    double *random[4];
} kvd_similarity_pair;

typedef struct {
    size_t n_files, d_head, n_pairs;
    char **label;
    char **hash; /* content hash of each text; NULL in older files */
    size_t *n_tokens;
    kvd_similarity_pair *pair;
} kvd_similarity;

/*
 * Reads a file. Fails on missing datasets, on shapes that do not agree and on numbers that are not
 * finite. The caller must call kvd_similarity_release, also on failure.
 */
int kvd_similarity_read(kvd_similarity *s, kvd_h5 *f, const kvd_model_info *model, kvd_err *err);
void kvd_similarity_release(kvd_similarity *s);

#endif
