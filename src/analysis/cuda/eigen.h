#ifndef KVD_ANALYSIS_CUDA_EIGEN_H
#define KVD_ANALYSIS_CUDA_EIGEN_H

#include <stddef.h>

#include "analysis/pairs.h"
#include "common/err.h"

/*
 * Computes singular values sigma [n][d], falling, and vectors R [n][d][d] (columns) from gram
 * [n][d][d] on the current device; host arrays. Triangle and signs are as in kvd_gram_svd.
 *
 * *bad: the first matrix that is no Gram matrix, or n on a device or memory failure; sigma and R
 * are then unspecified. *device_s (may be NULL): seconds without copies.
 */
int kvd_gpu_gram_svd(const double *gram, size_t n, size_t d, double *sigma, double *R, size_t *bad,
                     double *device_s, kvd_err *err);

/*
 * Does kvd_decompose_moments (analysis/pairs.h) on the current GPU and sets on_gpu. KVD_PAIR_BQK
 * and KVD_PAIR_BVW stay on the CPU: the Gram matrix of their product loses small singular values.
 */
int kvd_gpu_decompose_moments(const kvd_moments *m, const bool wanted[KVD_N_PAIRS],
                              bool before_rope, int first, kvd_spectrum *s, kvd_err *err);

#endif
