/* kvdim/similarity files: comparison of the rotation matrices of several texts or models. */
#ifndef KVD_FORMATS_SIMILARITY_H
#define KVD_FORMATS_SIMILARITY_H

#include "formats/spectrum.h"

extern const kvd_schema kvd_schema_similarity;

/* Comparison of the rotations of several files with the rotations of the first file, file 0. Arrays
 * of n_others elements begin with file 1. Arrays without a head axis have means over heads. */
typedef struct {
    kvd_pair pair;
    size_t n_files, n_others, n_layers, n_h, d;
    /* [n_others] means over all elements of a file's rotation matrices R
     *
     * - epsilon: mean |R|
     * - delta: mean |R - R_0|, where R_0 is the rotation in file 0
     * - delta_aligned: as delta, after matching the signs of the columns of R and R_0 */
    double *epsilon, *delta, *delta_aligned;
    /* [n_others][d] comparison of a file with file 0. Element k is for the spaces that are spanned
     * by the first k + 1 columns of the rotation matrices.
     *
     * - overlap: mean squared cosine of the principal angles between the spaces of the two files
     * - energy_kept: share of the squared norm of the file's vectors, such as keys, that remains if
     *   they are projected onto the space of file 0
     * - energy_own: share that remains if they are projected onto the file's own space */
    double *overlap, *energy_kept, *energy_own;
    /* [n_others][n_layers][n_h] head_epsilon: mean |R| over the elements of a head's rotation
     * matrix R. head_delta: mean |R - R_0|, where R_0 is the rotation of the head in file 0. */
    double *head_epsilon, *head_delta;
    /* [n_others][n_layers][n_h] mean |R - R_0| after matching the signs of columns. R: a head's
     * rotation matrix in a file. R_0: the same head's rotation matrix in file 0. */
    double *head_delta_aligned;
    /* [n_others][n_layers][n_h][d] comparison of a head in a file with the head in file 0. Element
     * k is for the spaces that the first k + 1 columns of the two rotation matrices span.
     *
     * - head_overlap: mean squared cosine of the principal angles between the two spaces
     * - head_energy_kept: share of the squared norm of the file's vectors, such as keys, that
     *   remains if they are projected onto the space of file 0 */
    double *head_overlap, *head_energy_kept;
    /* [n_files][n_files] relative difference of the rotation matrices R_a and R_b of files a and b:
     * mean |R_a - R_b| / mean |R_b|. aligned_over_epsilon: the difference after matching the signs
     * of columns. */
    double *delta_over_epsilon, *aligned_over_epsilon;
    /* [n_files][n_files] comparison of two spaces, spanned by the first d / 2 columns of the
     * rotation matrices of files a and b
     *
     * - overlap_half: mean squared cosine of the principal angles between the two spaces
     * - energy_kept_half: share of the squared norm of file b's data, such as keys, in the space of
     *   file a */
    double *overlap_half, *energy_kept_half;
    /* [n_files][n_files] |m_a - m_b| / m_b, where m is the mean absolute element of the rotation
     * matrices in a file. head_means_over_epsilon: |m_a - m_b| is computed for each head and
     * averaged over heads. */
    double *means_over_epsilon, *head_means_over_epsilon;
    /* [n_files] measures delta_over_epsilon to head_means_over_epsilon (the six fields above), for
     * a random rotation compared with each file's rotation */
    double *random[6];
    double *all; /* one block of memory for all arrays */
} kvd_comparison;

/* Writes a comparison of the rotation matrices of several files. `h_axis`: name of the axis of
 * heads, "head" or "kv_head". */
int kvd_comparison_write(kvd_h5 *f, const kvd_comparison *c, const char *h_axis, kvd_err *err);

/* Writes the model's name and shape, and the list of compared files. */
int kvd_similarity_write_files(kvd_h5 *f, const char *const *path, const kvd_spectrum *s, size_t n,
                               kvd_err *err);

/* comparison of the rotations of several files; element [a][b] compares file a with file b */
typedef struct {
    kvd_pair pair;
    /* [n_files] means over all elements of a file's rotation matrices R. epsilon: mean |R|. delta:
     * mean |R - R_0|, where R_0 is the rotation in file 0; NaN for file 0. */
    double *epsilon, *delta;
    /* [n_files][n_files] relative difference of the rotation matrices R_a and R_b of files a and b:
     * mean |R_a - R_b| / mean |R_b| */
    double *delta_ratio;
    /* [n_files][n_files] relative difference of the rotation matrices R_a and R_b of files a and b:
     * mean |R_a - R_b| / mean |R_b|, after matching the signs of columns */
    double *aligned_ratio;
    /* [n_files][n_files] mean squared cosine of the principal angles between two spaces, spanned by
     * the first d_head / 2 columns of the rotation matrices of files a and b */
    double *overlap;
    /* [n_files][n_files] share of the squared norm of file b's data, such as keys, that the first
     * d_head / 2 columns of file a's rotation matrix keep */
    double *energy;
    /* [n_files][n_files] |m_a - m_b| / m_b, where m is the mean absolute element of the rotation
     * matrices in a file. head_means: |m_a - m_b| is computed for each head and averaged over
     * heads. Both are NULL if the file lacks them. */
    double *means, *head_means;
    /* [n_files] measures delta_ratio, aligned_ratio, overlap and energy (fields above), for a
     * random rotation compared with each file's rotation */
    double *random[4];
} kvd_similarity_pair;

typedef struct {
    size_t n_files, d_head, n_pairs;
    char **label;
    char **hash; /* content hash of each text; NULL in older files */
    size_t *n_tokens;
    kvd_similarity_pair *pair;
} kvd_similarity;

/* Reads a file that compares the rotation matrices computed from several texts. Fails on bad shapes
 * and numbers. Call kvd_similarity_release, also on failure. */
int kvd_similarity_read(kvd_similarity *s, kvd_h5 *f, const kvd_model_info *model, kvd_err *err);
void kvd_similarity_release(kvd_similarity *s);

#endif
