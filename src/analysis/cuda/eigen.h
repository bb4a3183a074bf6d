#ifndef KVD_ANALYSIS_CUDA_EIGEN_H
#define KVD_ANALYSIS_CUDA_EIGEN_H

#include <stddef.h>

#include "analysis/pairs.h"
#include "common/err.h"

/*
 * Computes singular values and vectors from n symmetric matrices gram [n][d][d] on the current
 * device. Writes sigma [n][d], falling, and R [n][d][d] with the vectors in its columns. Reads the
 * same triangle of each matrix as kvd_gram_svd does on the CPU, and chooses the signs of the
 * vectors by the same rule. All arrays are on the host.
 *
 * If a matrix is not a Gram matrix, fails with the message of kvd_gram_svd and sets *bad to the
 * index of the first such matrix. If the device or memory fails, sets *bad to n. After a failure
 * sigma and R are unspecified. *device_s, if not NULL, receives the seconds without the copies.
 */
int kvd_gpu_gram_svd(const double *gram, size_t n, size_t d, double *sigma, double *R, size_t *bad,
                     double *device_s, kvd_err *err);

/*
 * Does on the current GPU what kvd_decompose_moments (analysis/pairs.h) does on the CPU. Sets
 * kvd_spectrum's on_gpu for every kvd_pair that the GPU computed.
 *
 * The balanced projections KVD_PAIR_BQK and KVD_PAIR_BVW are computed on the CPU. They need the
 * singular values of a product of two matrices, and the Gram matrix of a product loses small
 * singular values.
 */
int kvd_gpu_decompose_moments(const kvd_moments *m, const bool wanted[KVD_N_PAIRS],
                              bool before_rope, int first, kvd_spectrum *s, kvd_err *err);

#endif
