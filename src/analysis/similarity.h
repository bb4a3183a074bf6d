/* Similarity of rotations, as in ZACK, section 4, and without regard to column signs. */
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
/* Returns mean |A - B| after flipping columns of B whose product with A's column is negative. */
double kvd_delta_aligned(const double *A, const double *B, size_t d);

/* Fills overlap [d] with ||A_m^T B_m||_F^2 / m for the first m = 1 .. d columns. Random matrices
 * give m / d on average. */
int kvd_overlap(const double *A, const double *B, size_t d, double *overlap, kvd_err *err);

/* Fills energy [d] with the share of the squared norm of vectors X_B that remains after projection
 * on the first m = 1 .. d columns of A. X_B has right singular vectors R_B and singular values
 * sigma_B. */
int kvd_energy_kept(const double *A, const double *R_B, const double *sigma_B, size_t d,
                    double *energy, kvd_err *err);

/* Fills R [d][d] with a uniformly random orthogonal matrix. */
int kvd_random_basis(size_t d, uint64_t seed, uint64_t stream, double *R, kvd_err *err);

/* Returns d / 2 rounded down, but at least 1. */
size_t kvd_half(size_t d);

/* Fails unless all files have equal model, layers, RoPE and pairing (one rotation per KV head or
 * per query head), and equal labels mean equal calibration texts. */
int kvd_comparable(const kvd_spectrum *s, const char *const *path, size_t n_files, kvd_err *err);

/* Compares the rotations of all files and a random one. Refuses KVD_PAIR_BQK and KVD_PAIR_BVW. */
int kvd_compare(const kvd_spectrum *s, size_t n_files, kvd_pair pair, uint64_t seed,
                kvd_comparison *out, kvd_err *err);
void kvd_comparison_release(kvd_comparison *c);

#endif
