/*
 * kvdim/similarity files: comparison of rotation matrices that were computed from several texts or
 * models.
 */
#ifndef KVD_FORMATS_SIMILARITY_H
#define KVD_FORMATS_SIMILARITY_H

#include "formats/spectrum.h"

extern const kvd_schema kvd_schema_similarity;

/*
 * Comparison of the rotations of one set of matrices (such as Q and K) in n_files spectrum files.
 * File 0 is the reference. Values are means over layers and heads if not said otherwise. Arrays
 * [n_others], where n_others = n_files - 1, begin with file 1.
 */
typedef struct {
    kvd_pair pair;
    size_t n_files, n_others, n_layers, n_h, d;
    /*
     * Measures of the rotations R of each file but file 0, whose rotations are R_0: [n_others]
     * each. epsilon is the mean of |R| over all elements, and delta is the mean of |R_0 - R|.
     * delta_aligned is the same mean after columns of R that point against those of R_0 were
     * negated.
     */
    double *epsilon, *delta, *delta_aligned;
    /*
     * Comparison of the first m columns of the rotations R_0 (of file 0) and R (of another file),
     * for m = 1 .. d: [n_others][d]. overlap is the mean squared cosine between the two subspaces
     * that these columns span. energy_kept is the fraction of the energy (sum of squares) of the
     * other file's data that the columns of R_0 keep. energy_own is the fraction that the columns
     * of R keep.
     */
    double *overlap, *energy_kept, *energy_own;
    /*
     * Values of single heads, [n_others][n_layers][n_h], for the rotation R_0 of a head in file 0
     * and R in another file: mean |R|, mean |R_0 - R|, and mean |R_0 - R| after columns of R that
     * point against those of R_0 were negated.
     */
    double *head_epsilon, *head_delta;
    double *head_delta_aligned;
    /*
     * Values of single heads for the first m = 1 .. d columns, [n_others][n_layers][n_h][d]: mean
     * squared cosine between the subspaces that the columns span in file 0 and in another file, and
     * fraction of the energy of the other file's data that the columns of file 0 keep.
     */
    double *head_overlap, *head_energy_kept;
    /*
     * Mean |R_a - R_b| / mean |R_b| for the rotations R_a and R_b of files a and b:
     * [n_files][n_files]. `aligned_over_epsilon` is this ratio after columns of R_b that point
     * against those of R_a were negated.
     */
    double *delta_over_epsilon, *aligned_over_epsilon;
    /*
     * Comparison of the first d / 2 columns of the rotations of files a and b, [a][b]: mean squared
     * cosine between the subspaces that they span, and fraction of the energy of file b's data that
     * the columns of file a keep.
     */
    double *overlap_half, *energy_kept_half;
    /*
     * Difference between the mean |element| of rotation R_a and that of R_b, divided by that of
     * R_b, for files a and b: [n_files][n_files]. means_over_epsilon averages over heads first and
     * then takes the absolute difference. head_means_over_epsilon takes the absolute difference for
     * each head and then averages.
     */
    double *means_over_epsilon, *head_means_over_epsilon;
    /*
     * Control: the six ratios above (delta_over_epsilon, aligned_over_epsilon, overlap_half,
     * energy_kept_half, means_over_epsilon, head_means_over_epsilon) if a random rotation replaces
     * R_a. Each array has a value for every file b: [n_files].
     */
    double *random[6];
    double *all; /* one block of memory that holds all arrays of the structure */
} kvd_comparison;

/*
 * Writes the comparison of the rotations of one set of matrices (such as Q and K). `h_axis`: name
 * of the head axis of its datasets, "head" or "kv_head".
 */
int kvd_comparison_write(kvd_h5 *f, const kvd_comparison *c, const char *h_axis, kvd_err *err);

/*
 * Writes the model and the list of the n spectrum files that are compared. `path`: the file names
 * as given on the command line.
 */
int kvd_similarity_write_files(kvd_h5 *f, const char *const *path, const kvd_spectrum *s, size_t n,
                               kvd_err *err);

/*
 * Comparison of the rotations of one set of matrices (such as Q and K), read from a similarity
 * file. Values are means over layers and heads. In a matrix [n_files][n_files], element [a][b]
 * compares the rotation R_a of file a with the rotation R_b or the data of file b.
 */
typedef struct {
    kvd_pair pair;
    /*
     * epsilon is the mean |R| over the elements of the rotations R of each file. delta is the mean
     * |R_0 - R|, where R_0 are the rotations of file 0. [n_files] each; delta is NaN for file 0.
     */
    double *epsilon, *delta;
    /* Mean |R_a - R_b| / mean |R_b| for the rotations of two files a and b: [n_files][n_files]. */
    double *delta_ratio;
    /*
     * Mean |R_a - R_b| / mean |R_b| after columns of R_b that point against those of R_a were
     * negated, for the rotations of two files a and b: [n_files][n_files].
     */
    double *aligned_ratio;
    /*
     * Mean squared cosine between the subspaces that the first d_head / 2 columns of the rotations
     * of files a and b span: [n_files][n_files].
     */
    double *overlap;
    /*
     * Fraction of the energy of file b's data that the first d_head / 2 columns of the rotation of
     * file a keep: [n_files][n_files], element [a][b].
     */
    double *energy;
    /*
     * Difference between the mean |element| of rotation R_a and that of R_b, divided by that of
     * R_b, for files a and b: [n_files][n_files]. `means` averages over heads first and then takes
     * the absolute difference. `head_means` takes the absolute difference for each head and then
     * averages. NULL in files without these measures.
     */
    double *means, *head_means;
    /*
     * Control: the measures delta_ratio, aligned_ratio, overlap and energy if a random rotation
     * replaces that of file a. Each array has a value for every file b: [n_files].
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
