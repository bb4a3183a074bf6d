/*
 * How alike two sets of rotations are: the measures of ZACK section 4 as printed, and those that mean
 * something whatever the signs and the order inside near-equal singular values (Z-7).
 */
#ifndef KVD_ANALYSIS_SIMILARITY_H
#define KVD_ANALYSIS_SIMILARITY_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* mean |R[i][j]| over [d][d] (AABS). */
double kvd_mean_abs(const double *R, size_t d);
/* mean |A - B| (AABS(SUB)). */
double kvd_delta(const double *A, const double *B, size_t d);
/* The same after flipping each column of B whose scalar product with A's column is negative. */
double kvd_delta_aligned(const double *A, const double *B, size_t d);

/*
 * overlap [d]: for m = 1 .. d, || A_m^T B_m ||_F^2 / m, the mean squared cosine of the principal angles of
 * the leading m columns; 1 when the subspaces agree, m / d on average for unrelated ones.
 */
int kvd_overlap(const double *A, const double *B, size_t d, double *overlap, kvd_err *err);

/*
 * energy [d]: for m = 1 .. d, the share of the energy of data B kept by the leading m columns of basis A:
 * sum_{j < m} || X_B a_j ||^2 / || X_B ||^2 with X_B^T X_B = R_B diag(sigma_B^2) R_B^T.
 * Data without any energy lose none: 1 for every m.
 */
int kvd_energy_kept(const double *A, const double *R_B, const double *sigma_B, size_t d, double *energy,
                    kvd_err *err);

/* R [d][d]: a basis that has nothing to do with any data (Haar), signs fixed as every basis here: the control. */
int kvd_random_basis(size_t d, uint64_t seed, uint64_t stream, double *R, kvd_err *err);

#endif
