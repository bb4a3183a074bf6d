/*
 * Similarity of rotation matrices. Section 4 of the ZACK paper measures the mean absolute
 * difference of two rotations. This difference depends on the signs of columns, which are
 * arbitrary. Therefore other measures are computed as well, which do not depend on the signs (Z-7
 * in docs/readings.md).
 */
#ifndef KVD_ANALYSIS_SIMILARITY_H
#define KVD_ANALYSIS_SIMILARITY_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "formats/similarity.h"

/* Returns the mean absolute entry of R [d][d], which the ZACK paper calls AABS. */
double kvd_mean_abs(const double *R, size_t d);
/* Returns the mean absolute entry of A - B, which the ZACK paper calls AABS(SUB). */
double kvd_delta(const double *A, const double *B, size_t d);
/*
 * Returns kvd_delta after flipping the columns of B that have a negative scalar product with those
 * of A.
 */
double kvd_delta_aligned(const double *A, const double *B, size_t d);

/*
 * Fills overlap [d]. For m = 1 .. d, let A_m and B_m be the first m columns of A and B. The overlap
 * || A_m^T B_m ||_F^2 / m is the mean squared cosine of the principal angles between A_m and B_m.
 * It is 1 for equal subspaces, and m / d on average for unrelated subspaces.
 */
int kvd_overlap(const double *A, const double *B, size_t d, double *overlap, kvd_err *err);

/*
 * Fills energy [d]. For m = 1 .. d, this is the fraction of the energy of data X_B that is kept by
 * the first m columns a_j of A: sum_{j < m} || X_B a_j ||^2 / || X_B ||^2. The data X_B are given
 * by the singular values sigma_B and right singular vectors R_B: X_B^T X_B = R_B diag(sigma_B^2)
 * R_B^T. If || X_B || is 0, the fraction is 1 for every m.
 */
int kvd_energy_kept(const double *A, const double *R_B, const double *sigma_B, size_t d,
                    double *energy, kvd_err *err);

/*
 * Fills R [d][d] with a random orthogonal matrix, uniformly distributed (Haar). kvd_fix_signs fixes
 * the signs of its columns.
 */
int kvd_random_basis(size_t d, uint64_t seed, uint64_t stream, double *R, kvd_err *err);

/* Returns half the number of dimensions, rounded down, but at least 1. */
size_t kvd_half(size_t d);

/*
 * Fails if two files differ in model, pairing, layers, or in whether Q and K are before or after
 * RoPE. The error names the two files. Files with the same label, token count and sequence length
 * must also have the same content hash.
 */
int kvd_comparable(const kvd_spectrum *s, const char *const *path, size_t n_files, kvd_err *err);

/*
 * Compares the rotations of the matrices that `pair` names between all files. Every file must have
 * them. Refuses KVD_PAIR_BQK and KVD_PAIR_BVW. `seed` seeds a random rotation that serves as a
 * control.
 */
int kvd_compare(const kvd_spectrum *s, size_t n_files, kvd_pair pair, uint64_t seed,
                kvd_comparison *out, kvd_err *err);
void kvd_comparison_release(kvd_comparison *c);

#endif
