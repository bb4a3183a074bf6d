/* kvdim/similarity files: comparison of the rotation matrices of several texts or models. */
#ifndef KVD_FORMATS_SIMILARITY_H
#define KVD_FORMATS_SIMILARITY_H

#include "formats/spectrum.h"

extern const kvd_schema kvd_schema_similarity;

/* Comparison of the rotations R of several files with the rotation R_0 of file 0. Arrays with
 * n_others elements begin with file 1. Arrays without a head axis hold means over heads. */
typedef struct {
    kvd_pair pair;
    size_t n_files, n_others, n_layers, n_h, d;
    /* [n_others] mean |element| of the file's rotation R; mean |element| of R - R_0, R_0 being the
     * rotation of file 0; that mean after matching the signs of columns */
    double *epsilon, *delta, *delta_aligned;
    /* [n_others][d], for the spaces of the first 1 .. d columns of rotations. overlap: mean squared
     * cosine of the principal angles between the file's space and file 0's. energy_kept,
     * energy_own: share of the file's squared vector norms in file 0's space, and in its own. */
    double *overlap, *energy_kept, *energy_own;
    /* [n_others][n_layers][n_h] head_epsilon: mean |element| of a head's rotation. head_delta,
     * head_delta_aligned: mean |element| of a head's rotation minus file 0's, before and after
     * matching the signs of columns. */
    double *head_epsilon, *head_delta;
    double *head_delta_aligned;
    /* [n_others][n_layers][n_h][d], for the spaces of the first 1 .. d columns of a head's
     * rotations. head_overlap: mean squared cosine of the principal angles between the file's space
     * and file 0's. head_energy_kept: fraction of the squared norm of the file's vectors in file
     * 0's space. */
    double *head_overlap, *head_energy_kept;
    /* [n_files][n_files] mean |R_a - R_b| / mean |R_b| of the rotations R_a and R_b of files a and
     * b; that ratio after matching the signs of columns */
    double *delta_over_epsilon, *aligned_over_epsilon;
    /* [n_files][n_files], for the spaces of the first d / 2 columns of rotations. overlap_half:
     * mean squared cosine of the principal angles between file a's space and file b's.
     * energy_kept_half: fraction of the squared norm of file b's vectors in file a's space. */
    double *overlap_half, *energy_kept_half;
    /* [n_files][n_files] |difference| of the mean |element| of the rotations of files a and b,
     * divided by mean |R_b|. means_over_epsilon: difference of means over all heads.
     * head_means_over_epsilon: difference of a head's means, averaged over heads. */
    double *means_over_epsilon, *head_means_over_epsilon;
    double *random[6]; /* [n_files] the six arrays above with a random rotation in place of R_a */
    double *all;       /* one block of memory for all arrays */
} kvd_comparison;

/* Writes a comparison of rotations. `h_axis`: name of the axis of heads, "head" or "kv_head". */
int kvd_comparison_write(kvd_h5 *f, const kvd_comparison *c, const char *h_axis, kvd_err *err);

/* Writes the model's name and shape, and the list of compared files. */
int kvd_similarity_write_files(kvd_h5 *f, const char *const *path, const kvd_spectrum *s, size_t n,
                               kvd_err *err);

/* comparison of the rotations of several files; element [a][b] compares the rotation R_a of file a
 * with the rotation or the recorded vectors of file b */
typedef struct {
    kvd_pair pair;
    double *epsilon, *delta; /* [n_files] mean |R|, and mean |R_0 - R| (NaN for file 0) */
    double *delta_ratio;     /* [n_files][n_files] mean |R_a - R_b| / mean |R_b| */
    /* [n_files][n_files] mean |R_a - R_b| / mean |R_b| after matching the signs of columns */
    double *aligned_ratio;
    double *overlap; /* [n_files][n_files] mean squared cosine of the first d_head / 2 columns */
    /* [n_files][n_files] share of the squared norm of file b's vectors in the first d_head / 2
     * columns of file a's rotation */
    double *energy;
    /* [n_files][n_files] |difference| of the mean |element| of the rotations of files a and b,
     * divided by mean |R_b|. means: difference of means over all heads. head_means: difference of a
     * head's means, averaged over heads. NULL if the file lacks them. */
    double *means, *head_means;
    double *random[4]; /* [n_files] the four arrays above with a random rotation in place of R_a */
} kvd_similarity_pair;

typedef struct {
    size_t n_files, d_head, n_pairs;
    char **label;
    char **hash; /* content hash of each text; NULL in older files */
    size_t *n_tokens;
    kvd_similarity_pair *pair;
} kvd_similarity;

/* Reads a file that compares rotations. Fails on bad shapes and numbers. Call
 * kvd_similarity_release, also on failure. */
int kvd_similarity_read(kvd_similarity *s, kvd_h5 *f, const kvd_model_info *model, kvd_err *err);
void kvd_similarity_release(kvd_similarity *s);

#endif
