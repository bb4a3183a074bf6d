/*
 * Similarity of two sets of rotation matrices. The measures of section 4 of the ZACK paper are the
 * mean absolute element of a rotation and the mean absolute difference of two rotations. The
 * difference depends on the signs of columns, which are arbitrary. Therefore there are further
 * measures: the difference after aligning the signs, the overlap of the leading subspaces, and the
 * energy that they keep (Z-7 in docs/readings.md).
 */
#ifndef KVD_ANALYSIS_SIMILARITY_H
#define KVD_ANALYSIS_SIMILARITY_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "formats/similarity.h"

/* Returns the mean absolute entry of R [d][d]; the ZACK paper calls it AABS. */
double kvd_mean_abs(const double *R, size_t d);
/* Returns the mean absolute entry of A - B; the ZACK paper calls it AABS(SUB). */
double kvd_delta(const double *A, const double *B, size_t d);
/*
 * Returns the mean absolute entry of A - B', where B' is B with the sign of each column flipped if
 * its scalar product with A's column is negative.
 */
double kvd_delta_aligned(const double *A, const double *B, size_t d);

/*
 * Fills overlap [d]: for m = 1 .. d, || A_m^T B_m ||_F^2 / m, the mean squared cosine of the
 * principal angles of the leading m columns. It is 1 if the subspaces agree, and m / d on average
 * for unrelated ones.
 */
int kvd_overlap(const double *A, const double *B, size_t d, double *overlap, kvd_err *err);

/*
 * Fills energy [d]: for m = 1 .. d, the fraction of the energy of data X_B that the leading m
 * columns of basis A keep, sum_{j < m} || X_B a_j ||^2 / || X_B ||^2. The data are given by X_B^T
 * X_B = R_B diag(sigma_B^2) R_B^T. If || X_B || is 0, the fraction is 1 for every m.
 */
int kvd_energy_kept(const double *A, const double *R_B, const double *sigma_B, size_t d,
                    double *energy, kvd_err *err);

/*
 * Fills R [d][d] with a random orthogonal matrix, uniformly distributed (Haar), which serves as a
 * control in comparisons of rotations. Signs of columns are fixed by kvd_fix_signs.
 */
int kvd_random_basis(size_t d, uint64_t seed, uint64_t stream, double *R, kvd_err *err);

/*
 * Returns the number of leading dimensions that "half of the dimensions" of a head means: d / 2,
 * at least 1.
 */
size_t kvd_half(size_t d);

/*
 * Fails, naming the files, unless the singular values and rotations in all files have the same
 * model, pairing (per KV head or per query head), kind of Q and K (before or after RoPE) and range
 * of layers. Files with the same label, token count and sequence length must also have the same
 * content hash.
 */
int kvd_comparable(const kvd_spectrum *s, const char *const *path, size_t n_files, kvd_err *err);

/*
 * Compares the rotations of the matrices that `pair` names, such as Q and K, between all n_files
 * files. Every file must have them. The balanced projections bqk and bvw are refused, because they
 * have a left and a right matrix instead of a rotation. Heads run in parallel on all threads.
 * `seed` seeds the random rotation that serves as a control.
 */
int kvd_compare(const kvd_spectrum *s, size_t n_files, kvd_pair pair, uint64_t seed,
                kvd_comparison *out, kvd_err *err);
void kvd_comparison_release(kvd_comparison *c);

#endif
