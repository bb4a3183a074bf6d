/* kvdim/similarity: the bases of several spectra of one model compared, pair by pair. */
#ifndef KVD_FORMATS_SIMILARITY_H
#define KVD_FORMATS_SIMILARITY_H

#include "formats/spectrum.h"

extern const kvd_schema kvd_schema_similarity;

/*
 * One pair over n_files spectra, of which the first is the reference. A head counts as one sample:
 * means are over layers and heads. n_others = n_files - 1; o = 0 is the second file.
 */
typedef struct {
    kvd_pair pair;
    size_t n_files, n_others, n_layers, n_h, d;
    double *epsilon, *delta, *delta_aligned;           /* [n_others] */
    double *overlap, *energy_kept, *energy_own;        /* [n_others][d]; m = 1 .. d */
    double *head_epsilon, *head_delta;                 /* [n_others][n_layers][n_h] */
    double *head_delta_aligned;                        /* [n_others][n_layers][n_h] */
    double *head_overlap, *head_energy_kept;           /* [n_others][n_layers][n_h][d] */
    double *delta_over_epsilon, *aligned_over_epsilon; /* [a][b] delta(a, b) / epsilon(b) */
    double *overlap_half, *energy_kept_half;           /* [a][b] leading half of a on b */
    /*
     * [a][b] difference of the two mean absolute entries over epsilon(b): of the means over all
     * heads, and of the means of each head, averaged over heads
     */
    double *means_over_epsilon, *head_means_over_epsilon;
    /* [n_files] the six measures above with a random basis in place of a, in this order */
    double *random[6];
    double *all; /* memory of all arrays */
} kvd_comparison;

/* Writes the comparison of one pair. h_axis: name of the axis of heads, "head" or "kv_head". */
int kvd_comparison_write(kvd_h5 *f, const kvd_comparison *c, const char *h_axis, kvd_err *err);

/* Writes the model and the list of the n spectra that are compared. path: their files as given. */
int kvd_similarity_write_files(kvd_h5 *f, const char *const *path, const kvd_spectrum *s, size_t n,
                               kvd_err *err);

/*
 * Measures of one pair in a similarity file. In matrices [n_files][n_files] the row names the file
 * of the basis, the column that of the data. Values are means over layers and heads. "half": the
 * leading d_head / 2 columns.
 */
typedef struct {
    kvd_pair pair;
    /* [n_files], of file 0 NaN: as the papers print them, against file 0 */
    double *epsilon, *delta;
    double *delta_ratio;   /* delta / epsilon of the column's file */
    double *aligned_ratio; /* the same after matching column signs */
    double *overlap;       /* of the leading halves */
    double *energy;        /* of the column's data in the leading half of the row's basis */
    /*
     * Difference of mean absolute entries over epsilon: over all heads, and of each head; NULL in
     * files without them.
     */
    double *means, *head_means;
    double *random[4]; /* [n_files]: the first four for a random basis, the control */
} kvd_similarity_pair;

typedef struct {
    size_t n_files, d_head, n_pairs;
    char **label;     /* [n_files], file 0 is the reference */
    char **hash;      /* [n_files], of the contents; NULL in files without them */
    size_t *n_tokens; /* [n_files] */
    kvd_similarity_pair *pair;
} kvd_similarity;

/*
 * Reads the open file f. Fails on missing datasets, on shapes that do not agree and on numbers that
 * are not finite. The caller must call kvd_similarity_release, also on failure.
 */
int kvd_similarity_read(kvd_similarity *s, kvd_h5 *f, const kvd_model_info *model, kvd_err *err);
void kvd_similarity_release(kvd_similarity *s);

#endif
