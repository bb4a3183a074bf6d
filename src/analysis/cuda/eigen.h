#ifndef KVD_ANALYSIS_CUDA_EIGEN_H
#define KVD_ANALYSIS_CUDA_EIGEN_H

#include <stddef.h>

#include "analysis/pairs.h"
#include "common/err.h"

/*
 * Computes singular values sigma [n][d], falling, and vectors R [n][d][d] (columns) from X^T X,
 * gram [n][d][d], on the current GPU. *device_s: seconds, unless NULL. On failure *bad is the first
 * bad matrix, or n.
 */
int kvd_gpu_gram_svd(const double *gram, size_t n, size_t d, double *sigma, double *R, size_t *bad,
                     double *device_s, kvd_err *err);

/*
 * Like kvd_decompose_moments on the current GPU, except balanced projections, which the CPU
 * computes.
 */
int kvd_gpu_decompose_moments(const kvd_moments *m, const bool wanted[KVD_N_PAIRS],
                              bool before_rope, int first, kvd_spectrum *s, kvd_err *err);

#endif
