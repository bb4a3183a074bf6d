/* Every spectrum of one model against every other: what kvdim-similarity computes. */
#ifndef KVD_ANALYSIS_COMPARE_H
#define KVD_ANALYSIS_COMPARE_H

#include "formats/spectrum.h"

/*
 * One pair over n_files spectra, of which the first is the reference. A head counts as one sample: means are over
 * layers and heads. n_others = n_files - 1; o = 0 is the second file.
 */
typedef struct {
    kvd_pair pair;
    size_t n_files, n_others, n_layers, n_h, d;
    double *epsilon, *delta, *delta_aligned;           /* [n_others]                        */
    double *overlap, *energy_kept, *energy_own;        /* [n_others][d]; m = 1 .. d          */
    double *head_epsilon, *head_delta;                 /* [n_others][n_layers][n_h]          */
    double *head_delta_aligned;                        /* [n_others][n_layers][n_h]          */
    double *head_overlap, *head_energy_kept;           /* [n_others][n_layers][n_h][d]       */
    double *delta_over_epsilon, *aligned_over_epsilon; /* [a][b] delta(a, b) / epsilon(b)    */
    double *overlap_half, *energy_kept_half;           /* [a][b] leading half of a on b      */
    double *random[4]; /* [n_files] the same four, a random basis in place of a, in this order */
    double *all;       /* the memory of all of them                                             */
} kvd_comparison;

/* Leading dimensions called half: d / 2, at least 1. */
size_t kvd_half(size_t d);

/* Fails unless all are of one model, pairing, kind of Q and K (rope) and range of layers; names the files. */
int kvd_comparable(const kvd_spectrum *s, const char *const *path, size_t n_files, kvd_err *err);

/* pair is present in all, not bqk or bvw. Heads side by side on all threads. seed: of the random control. */
int kvd_compare(const kvd_spectrum *s, size_t n_files, kvd_pair pair, uint64_t seed, kvd_comparison *out,
                kvd_err *err);
void kvd_comparison_release(kvd_comparison *c);

#endif
