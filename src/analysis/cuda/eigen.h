#ifndef KVD_ANALYSIS_CUDA_EIGEN_H
#define KVD_ANALYSIS_CUDA_EIGEN_H

#include <stddef.h>

#include "analysis/pairs.h"
#include "common/err.h"

/* Computes the singular values sigma [n][d], falling, and right singular vectors (columns of R
 * [n][d][d]) of n matrices X, on the current GPU, from gram [n][d][d] = X^T X. *device_s, unless
 * NULL, receives GPU seconds. *bad receives the first matrix that fails, or n. */
int kvd_gpu_gram_svd(const double *gram, size_t n, size_t d, double *sigma, double *R, size_t *bad,
                     double *device_s, kvd_err *err);

/* Computes singular values and right singular vectors of matrices X, such as Q, on the current GPU,
 * from X^T X in *m. Decompositions with a left and a right projection per KV head (KVD_PAIR_BQK,
 * KVD_PAIR_BVW) run on the CPU. */
int kvd_gpu_decompose_moments(const kvd_moments *m, const bool wanted[KVD_N_PAIRS],
                              bool before_rope, int first, kvd_spectrum *s, kvd_err *err);

#endif
