/*
 * Computes singular values and vectors from many Gram matrices at once: does for a batch what
 * kvd_gram_svd (common/linalg.h) does for one matrix, by cuSOLVER's XsyevBatched in float64.
 */
#ifndef KVD_ANALYSIS_CUDA_EIGEN_H
#define KVD_ANALYSIS_CUDA_EIGEN_H

#include <stddef.h>

#include "analysis/pairs.h"
#include "common/err.h"

/*
 * Computes singular values and vectors from n Gram matrices gram [n][d][d] on the current device.
 * The matrices are symmetric; the same triangle is read as in kvd_gram_svd. Writes sigma [n][d],
 * falling, and R [n][d][d], whose column j is the j-th vector with the sign that kvd_gram_svd
 * sets. All arrays are on the host. Batches are as large as device memory allows.
 *
 * If a matrix is refused (not finite, no Gram matrix, no convergence), fails with kvd_gram_svd's
 * message and sets *bad to the index of the first such matrix. If the device or memory fails, sets
 * *bad to n. After a failure sigma and R are unspecified. *device_s, if not NULL, receives the
 * seconds of the decompositions alone, with matrices and results on the device.
 */
int kvd_gpu_gram_svd(const double *gram, size_t n, size_t d, double *sigma, double *R, size_t *bad,
                     double *device_s, kvd_err *err);

/*
 * Computes singular values and rotations on the current GPU from the second moments *m, as
 * kvd_decompose_moments (analysis/pairs.h) does on the CPU. wanted[p] selects a set p of matrices
 * that share one rotation, for example KVD_PAIR_QK (Q and K). All heads of one set are one batch.
 * The function sets on_gpu for the sets that the GPU computed.
 *
 * Balanced projections (KVD_PAIR_BQK and KVD_PAIR_BVW) have a left and a right matrix instead of a
 * rotation, and are computed on the CPU. They need the singular values of Cl^{1/2} Cr^{1/2}, where
 * Cl and Cr are the Gram matrices of two factors, such as Q and K. The GPU code would decompose the
 * Gram matrix of that product, which loses its small singular values.
 */
int kvd_gpu_decompose_moments(const kvd_moments *m, const bool wanted[KVD_N_PAIRS],
                              bool before_rope, int first, kvd_spectrum *s, kvd_err *err);

#endif
