/*
 * Spectra of many second moments at once: kvd_gram_svd (common/linalg.h) for a batch, by cuSOLVER's
 * XsyevBatched in float64.
 */
#ifndef KVD_ANALYSIS_CUDA_EIGEN_H
#define KVD_ANALYSIS_CUDA_EIGEN_H

#include <stddef.h>

#include "analysis/pairs.h"
#include "common/err.h"

/*
 * Decomposes gram [n][d][d], symmetric, of which the triangle that kvd_gram_svd reads is read, on
 * the current device. Writes sigma [n][d], falling, and R [n][d][d] (column j is the j-th vector,
 * signs as kvd_gram_svd sets them). All arrays are on the host. Batches are as large as device
 * memory allows. If a matrix is refused (not finite, no Gram matrix, no convergence), fails with
 * kvd_gram_svd's message and sets *bad to the index of the first such matrix; if the device or
 * memory fails, sets *bad to n. sigma and R are unspecified then. *device_s, if not NULL, receives
 * the seconds of the decompositions alone, with matrices and results on the device.
 */
int kvd_gpu_gram_svd(const double *gram, size_t n, size_t d, double *sigma, double *R, size_t *bad,
                     double *device_s, kvd_err *err);

/* kvd_decompose_moments (analysis/pairs.h) on the current GPU. */

/*
 * Decomposes as kvd_decompose_moments does. All heads of a pair are one batch. The balanced pairs,
 * a singular value decomposition between two square roots, stay on the CPU: a second Gram matrix
 * would lose their small singular values. Pairs done on the device have on_gpu set.
 */
int kvd_gpu_decompose_moments(const kvd_moments *m, const bool wanted[KVD_N_PAIRS],
                              bool before_rope, int first, kvd_spectrum *s, kvd_err *err);

#endif
