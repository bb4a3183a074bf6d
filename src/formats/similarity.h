/* kvdim/similarity files: comparison of rotations from several texts or models. */
#ifndef KVD_FORMATS_SIMILARITY_H
#define KVD_FORMATS_SIMILARITY_H

#include "formats/spectrum.h"

extern const kvd_schema kvd_schema_similarity;

/*
 * Compares rotations R of several files with R_0 of file 0. Arrays [n_others] begin with file 1.
 * Values are means over heads.
 */
typedef struct {
    kvd_pair pair;
    size_t n_files, n_others, n_layers, n_h, d;
    /* [n_others] mean |R| of rotation R, mean |R_0 - R| to file 0's, the same with signs matched */
    double *epsilon, *delta, *delta_aligned;
    /*
     * [n_others][d] for the leading 1 .. d columns of two rotations: mean squared cosine of the
     * angles between them; share of the data's squared norm in those of file 0, and in its own
     */
    double *overlap, *energy_kept, *energy_own;
    /* [n_others][n_layers][n_h] epsilon, delta and delta_aligned of single heads */
    double *head_epsilon, *head_delta;
    double *head_delta_aligned;
    /* [n_others][n_layers][n_h][d] overlap and energy_kept of single heads */
    double *head_overlap, *head_energy_kept;
    /* [n_files][n_files] mean |R_a - R_b| / mean |R_b| of rotations; the same with signs matched */
    double *delta_over_epsilon, *aligned_over_epsilon;
    /* [n_files][n_files] overlap and energy_kept of the first d / 2 columns of two rotations */
    double *overlap_half, *energy_kept_half;
    /* [n_files][n_files] relative difference of mean |R| of rotations; the same, mean over heads */
    double *means_over_epsilon, *head_means_over_epsilon;
    double *random[6]; /* [n_files] the six arrays above with a random rotation in place of R_a */
    double *all;       /* one block of memory for all arrays */
} kvd_comparison;

/* Writes a comparison. `h_axis` is the name of the axis of heads: "head" or "kv_head". */
int kvd_comparison_write(kvd_h5 *f, const kvd_comparison *c, const char *h_axis, kvd_err *err);

/* Writes the model and the list of compared files. */
int kvd_similarity_write_files(kvd_h5 *f, const char *const *path, const kvd_spectrum *s, size_t n,
                               kvd_err *err);

/* comparison of the rotations R of several files; element [a][b] compares R_a with file b */
typedef struct {
    kvd_pair pair;
    double *epsilon, *delta; /* [n_files] mean |R|, and mean |R_0 - R| (NaN for file 0) */
    double *delta_ratio;     /* [n_files][n_files] mean |R_a - R_b| / mean |R_b| */
    /* [n_files][n_files] mean |R_a - R_b| / mean |R_b| after matching the signs of columns */
    double *aligned_ratio;
    double *overlap; /* [n_files][n_files] mean squared cosine of the first d_head / 2 columns */
    /* [n_files][n_files] share of the squared norm of b's data in R_a's first d_head / 2 columns */
    double *energy;
    /* [n_files][n_files] relative difference of mean |R|, over all heads and per head; or NULL */
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

/* Reads a file. Fails on bad shapes and numbers. Call kvd_similarity_release, also on failure. */
int kvd_similarity_read(kvd_similarity *s, kvd_h5 *f, const kvd_model_info *model, kvd_err *err);
void kvd_similarity_release(kvd_similarity *s);

#endif
