#ifndef KVD_ANALYSIS_CUDA_EIGEN_H
#define KVD_ANALYSIS_CUDA_EIGEN_H

#include <stddef.h>

#include "analysis/pairs.h"
#include "common/err.h"

/*
 * Computes from n Gram matrices gram [n][d][d] the singular values sigma [n][d], falling, and the
 * singular vectors R [n][d][d] (columns) on the current device, with signs as in kvd_gram_svd.
 * *device_s receives seconds, unless NULL. On failure *bad is the first matrix that is not a Gram
 * matrix, or n.
 */
int kvd_gpu_gram_svd(const double *gram, size_t n, size_t d, double *sigma, double *R, size_t *bad,
                     double *device_s, kvd_err *err);

/*
 * Computes singular values and rotations from second moments (kvd_decompose_moments) on the current
 * GPU. Projections that minimise the error of Q K^T (KVD_PAIR_BQK) or V W_O (KVD_PAIR_BVW) are
 * computed on the CPU.
 */
int kvd_gpu_decompose_moments(const kvd_moments *m, const bool wanted[KVD_N_PAIRS],
                              bool before_rope, int first, kvd_spectrum *s, kvd_err *err);

#endif
