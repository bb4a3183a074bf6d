/*
 * kvdim/similarity files: comparison of rotation matrices that were computed from several texts or
 * models.
 */
#ifndef KVD_FORMATS_SIMILARITY_H
#define KVD_FORMATS_SIMILARITY_H

#include "formats/spectrum.h"

extern const kvd_schema kvd_schema_similarity;

/*
 * Rotations of one kind (e.g. of Q and K) from n_files spectrum files, compared with file 0, the
 * reference. Means are over layers and heads. n_others = n_files - 1; index o = 0 is file 1.
 */
typedef struct {
    kvd_pair pair;
    size_t n_files, n_others, n_layers, n_h, d;
    /*
     * Three measures for each file but the first, [n_others]. epsilon is the mean absolute element
     * of the file's rotations. delta is the mean absolute difference between these rotations and
     * those of file 0. delta_aligned is delta after the signs of the columns were matched.
     */
    double *epsilon, *delta, *delta_aligned;
    /*
     * Comparison of the first m columns of the rotations of file 0 and of another file, for m = 1
     * .. d, [n_others][d]. `overlap` is the overlap of the two subspaces. The other two are
     * fractions of the energy of the other file's data: the fraction that the columns of file 0
     * keep, and the fraction that the columns of the other file itself keep.
     */
    double *overlap, *energy_kept, *energy_own;
    /* epsilon, delta and delta_aligned (above) of each head: [n_others][n_layers][n_h]. */
    double *head_epsilon, *head_delta;
    double *head_delta_aligned;
    /* overlap and energy_kept (above) of each head: [n_others][n_layers][n_h][d]. */
    double *head_overlap, *head_energy_kept;
    /*
     * Mean |R_a - R_b| / mean |R_b| for the rotations R_a and R_b of files a and b:
     * [n_files][n_files]. `aligned_over_epsilon` is this ratio after the signs of the columns were
     * matched.
     */
    double *delta_over_epsilon, *aligned_over_epsilon;
    /*
     * Overlap of the first d / 2 columns of the rotation of file a with those of file b, and energy
     * of file b's data that these columns of file a keep: [a][b].
     */
    double *overlap_half, *energy_kept_half;
    /*
     * |mean |R_a| - mean |R_b|| / mean |R_b| for the rotations R_a and R_b of files a and b:
     * [n_files][n_files]. For the first array the means in the numerator are over all heads. For
     * the second, the numerator is computed for each head and then averaged.
     */
    double *means_over_epsilon, *head_means_over_epsilon;
    /*
     * Control, [n_files] each: values of delta_over_epsilon, aligned_over_epsilon, overlap_half,
     * energy_kept_half, means_over_epsilon and head_means_over_epsilon if rotation a is a random
     * rotation.
     */
    double *random[6];
    double *all; /* one block of memory that holds all arrays of the structure */
} kvd_comparison;

/*
 * Writes the comparison of one kind of rotation. `h_axis`: name of the head axis of its datasets,
 * "head" or "kv_head".
 */
int kvd_comparison_write(kvd_h5 *f, const kvd_comparison *c, const char *h_axis, kvd_err *err);

/*
 * Writes the model and the list of the n spectrum files that are compared. `path`: the file names
 * as given on the command line.
 */
int kvd_similarity_write_files(kvd_h5 *f, const char *const *path, const kvd_spectrum *s, size_t n,
                               kvd_err *err);

/*
 * Measures of one kind of rotation, read from a similarity file. In matrices [n_files][n_files] the
 * row is the file of the rotation, the column the file of the data. Values are means over layers
 * and heads. Leading half means the first d_head / 2 columns.
 */
typedef struct {
    kvd_pair pair;
    /*
     * epsilon is the mean |R| of the rotations R of each file. delta is the mean |R_0 - R|, where
     * R_0 are the rotations of file 0. [n_files] each; delta is NaN for file 0.
     */
    double *epsilon, *delta;
    /* Mean |R_row - R_column| / mean |R_column| for the rotations of two files. */
    double *delta_ratio;
    /* delta_ratio computed after the signs of the columns of both rotations were matched. */
    double *aligned_ratio;
    double *overlap; /* mean squared cosine between the leading halves of two rotations */
    /*
     * Energy of one file's data that the first half of the columns of another file's rotation
     * keeps: [file of the rotation][file of the data].
     */
    double *energy;
    /*
     * |mean |R_row| - mean |R_column|| / mean |R_column| for the rotations of two files. For
     * `means` the means in the numerator are over all heads. For `head_means` the numerator is
     * computed for each head and then averaged. NULL in files without these measures.
     */
    double *means, *head_means;
    /*
     * Control, [n_files] each: values of delta_ratio, aligned_ratio, overlap and energy if the
     * first rotation of the comparison is random.
     */
    double *random[4];
} kvd_similarity_pair;

typedef struct {
    size_t n_files, d_head, n_pairs;
    char **label;     /* name of each compared text; file 0 is the reference */
    char **hash;      /* content hash of each text; NULL in older files */
    size_t *n_tokens; /* number of tokens of each text */
    kvd_similarity_pair *pair;
} kvd_similarity;

/*
 * Reads the open similarity file f. Fails on missing datasets, on shapes that do not agree and on
 * numbers that are not finite. The caller must call kvd_similarity_release, also on failure.
 */
int kvd_similarity_read(kvd_similarity *s, kvd_h5 *f, const kvd_model_info *model, kvd_err *err);
void kvd_similarity_release(kvd_similarity *s);

#endif
