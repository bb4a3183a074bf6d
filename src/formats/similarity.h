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
     * Epsilon, delta and delta after matching column signs (docs/notation.md), one per other file:
     * [n_others].
     */
    double *epsilon, *delta, *delta_aligned;
    /* Comparison of the leading m = 1 .. d columns: [n_others][d]. */
    double *overlap, *energy_kept, *energy_own;
    double *head_epsilon, *head_delta; /* values of each head: [n_others][n_layers][n_h] */
    double *head_delta_aligned;
    /* Values of each head: [n_others][n_layers][n_h][d]. */
    double *head_overlap, *head_energy_kept;
    /*
     * delta of the rotations of files a and b / epsilon of b: [a][b], without and with matched
     * column signs.
     */
    double *delta_over_epsilon, *aligned_over_epsilon;
    /*
     * Leading half of the rotation of file a, compared with the rotation or the data of file b:
     * [a][b].
     */
    double *overlap_half, *energy_kept_half;
    /*
     * Difference between the mean |R_a| and the mean |R_b| of two files' rotations, divided by
     * epsilon of file b: [a][b]. The first takes the means over all heads; the second takes them
     * per head and averages the differences.
     */
    double *means_over_epsilon, *head_means_over_epsilon;
    /*
     * Control for the six measures [a][b]: their values if a random rotation replaces that of a,
     * [n_files] each.
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
     * Mean |R| of each file, and mean |R_0 - R| against file 0, as the papers print them:
     * [n_files]. NaN for file 0.
     */
    double *epsilon, *delta;
    /* Mean |R_row - R_column| / mean |R_column| for the rotations of two files. */
    double *delta_ratio;
    /* delta_ratio computed after the signs of the columns of both rotations were matched. */
    double *aligned_ratio;
    double *overlap; /* mean squared cosine between the leading halves of two rotations */
    /* Energy of the column file's data in the leading half of the row file's rotation. */
    double *energy;
    /*
     * Difference of the mean |R| of two files / that of the column file: over all heads, and of
     * each head averaged. NULL in files without these measures.
     */
    double *means, *head_means;
    /*
     * Control: delta_ratio, aligned_ratio, overlap and energy of a random rotation, [n_files] each.
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
