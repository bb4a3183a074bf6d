/* kvdim/similarity files: comparison of rotations computed from several texts or models. */
#ifndef KVD_FORMATS_SIMILARITY_H
#define KVD_FORMATS_SIMILARITY_H

#include "formats/spectrum.h"

extern const kvd_schema kvd_schema_similarity;

/*
 * Comparison of n_files spectrum files with file 0. Means over layers and heads unless stated
 * otherwise. Arrays [n_others] begin with file 1.
 */
typedef struct {
    kvd_pair pair;
    size_t n_files, n_others, n_layers, n_h, d;
    /*
     * [n_others] R_0 against R: `epsilon` mean |R|, `delta` mean |R_0 - R|, `delta_aligned` after
     * aligning column signs.
     */
    double *epsilon, *delta, *delta_aligned;
    /*
     * [n_others][d] First m columns of R_0 and R, m = 1 .. d: `overlap`, mean squared cosine;
     * `energy_kept`, `energy_own`: fraction of the other data's squared norm in columns of R_0, of
     * R.
     */
    double *overlap, *energy_kept, *energy_own;
    /* [n_others][n_layers][n_h] of single heads */
    double *head_epsilon, *head_delta;
    double *head_delta_aligned;
    /* [n_others][n_layers][n_h][d] of single heads */
    double *head_overlap, *head_energy_kept;
    /* [n_files][n_files] mean |R_a - R_b| / mean |R_b|; aligned: after aligning column signs. */
    double *delta_over_epsilon, *aligned_over_epsilon;
    /* [n_files][n_files] for the first d / 2 columns of R_a and R_b */
    double *overlap_half, *energy_kept_half;
    /*
     * [n_files][n_files] | mean |R_a| - mean |R_b| | / mean |R_b|: mean over heads before, or after
     * (head_means), the absolute value.
     */
    double *means_over_epsilon, *head_means_over_epsilon;
    /* [n_files] delta_over_epsilon .. head_means_over_epsilon with a random rotation as R_a */
    double *random[6];
    double *all; /* memory block of all arrays */
} kvd_comparison;

/* `h_axis` names the head axis: "head" or "kv_head". */
int kvd_comparison_write(kvd_h5 *f, const kvd_comparison *c, const char *h_axis, kvd_err *err);

/* Writes the model and the compared files; `path`: file names of the command line. */
int kvd_similarity_write_files(kvd_h5 *f, const char *const *path, const kvd_spectrum *s, size_t n,
                               kvd_err *err);

/*
 * Comparison of rotations, means over layers and heads. [a][b] compares R_a with file b: with R_b
 * or its data.
 */
typedef struct {
    kvd_pair pair;
    /* [n_files] Mean |R|; mean |R_0 - R| (NaN for file 0). */
    double *epsilon, *delta;
    /* [n_files][n_files] mean |R_a - R_b| / mean |R_b| */
    double *delta_ratio;
    /* [n_files][n_files] mean |R_a - R_b| / mean |R_b| after aligning column signs */
    double *aligned_ratio;
    /* [n_files][n_files] mean squared cosine of the first d_head / 2 columns */
    double *overlap;
    /* energy of file b's data in the first d_head / 2 columns of R_a */
    double *energy;
    /*
     * [n_files][n_files] | mean |R_a| - mean |R_b| | / mean |R_b|: mean over heads before, or after
     * (head_means), the absolute value; NULL in older files.
     */
    double *means, *head_means;
    /*
     * [n_files] delta_ratio, aligned_ratio, overlap, energy for file b with a random rotation as
     * R_a
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
 * Fails on missing datasets, shapes that do not agree and numbers that are not finite. The caller
 * calls kvd_similarity_release, also on failure.
 */
int kvd_similarity_read(kvd_similarity *s, kvd_h5 *f, const kvd_model_info *model, kvd_err *err);
void kvd_similarity_release(kvd_similarity *s);

#endif
