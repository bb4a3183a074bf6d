/* Measures how similar rotations (orthogonal matrices) are: by differences of their elements, and
 * by the overlap of the spaces of their leading columns. */
#ifndef KVD_ANALYSIS_SIMILARITY_H
#define KVD_ANALYSIS_SIMILARITY_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "formats/similarity.h"

/* Returns the mean absolute element of R [d][d]. */
double kvd_mean_abs(const double *R, size_t d);
/* Returns the mean absolute element of A - B. */
double kvd_delta(const double *A, const double *B, size_t d);
/* Returns mean |A - B| after negating each column of B whose dot product with A's column is
 * negative. */
double kvd_delta_aligned(const double *A, const double *B, size_t d);

/* Fills overlap [d], for m = 1 .. d, with ||A_m^T B_m||_F^2 / m, where A_m and B_m are the first m
 * columns. Random matrices give m / d on average. */
int kvd_overlap(const double *A, const double *B, size_t d, double *overlap, kvd_err *err);

/* Projects the rows of a matrix X on the first m columns of A, for m = 1 .. d. Fills energy [d]
 * with the fraction of the squared norm of X that remains.
 *
 * R_B, sigma_B: right singular vectors and singular values of X. */
int kvd_energy_kept(const double *A, const double *R_B, const double *sigma_B, size_t d,
                    double *energy, kvd_err *err);

/* Fills R [d][d] with a uniformly random orthogonal matrix. */
int kvd_random_basis(size_t d, uint64_t seed, uint64_t stream, double *R, kvd_err *err);

/* Returns d / 2 rounded down, but at least 1. */
size_t kvd_half(size_t d);

/* Fails unless all files agree in model, layers, use of RoPE and pairing (one rotation per KV head
 * or per query head), and files with equal labels have equal calibration texts. */
int kvd_comparable(const kvd_spectrum *s, const char *const *path, size_t n_files, kvd_err *err);

/* Compares the files' rotations with each other, and with a random rotation. Fails for KVD_PAIR_BQK
 * and KVD_PAIR_BVW, which have two projections instead of a rotation. */
int kvd_compare(const kvd_spectrum *s, size_t n_files, kvd_pair pair, uint64_t seed,
                kvd_comparison *out, kvd_err *err);
void kvd_comparison_release(kvd_comparison *c);

#endif
