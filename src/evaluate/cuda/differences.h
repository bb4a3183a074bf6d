/*
 * Differences between arrays in GPU memory. Functions queue a kernel; the caller adds partial sums
 * on the host in a fixed order.
 */
#ifndef KVD_EVALUATE_CUDA_DIFFERENCES_H
#define KVD_EVALUATE_CUDA_DIFFERENCES_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "common/half.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets *differ, in GPU memory, to 1 if any bit differs. */
cudaError_t kvd_differ(const float *a, const float *b, size_t n, int *differ, cudaStream_t stream);

enum { KVD_CHANGE_PARTS = 1024, KVD_ERROR_PARTS = 16 };

/* Change of logits u to v: max |v - u|, infinite for NaN; sum of u^2. */
typedef struct {
    double largest, sum2;
} kvd_change;

/* Compares n logits u (uncompressed) and v into part [KVD_CHANGE_PARTS], GPU memory. */
cudaError_t kvd_change_parts(const float *u, const float *v, size_t n, kvd_change *part,
                             cudaStream_t stream);

/*
 * Sums over outputs u (uncompressed) and v: |v - u|^2, |u|^2, |v - u| / |u| over u != 0, number of
 * u = 0.
 */
typedef struct {
    double diff2, norm2, relative, n_zero;
} kvd_error_sums;

/*
 * Compares outputs u and v, [n_tokens][n_heads * d_head] of KVD_F32 or KVD_BF16, into part
 * [KVD_ERROR_PARTS][n_heads], GPU memory.
 */
cudaError_t kvd_error_parts(kvd_dtype type, const void *u, const void *v, size_t n_tokens,
                            int n_heads, int d_head, kvd_error_sums *part, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
