/*
 * Differences between arrays in GPU memory. Each function queues one kernel, whose partial sums the
 * caller adds on the host in a fixed order.
 */
#ifndef KVD_EVALUATE_CUDA_DIFFERENCES_H
#define KVD_EVALUATE_CUDA_DIFFERENCES_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "common/half.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets *differ, in GPU memory, to 1 if any bit of the n numbers differs. */
cudaError_t kvd_differ(const float *a, const float *b, size_t n, int *differ, cudaStream_t stream);

enum { KVD_CHANGE_PARTS = 1024, KVD_ERROR_PARTS = 16 };

/*
 * Change of logits u (uncompressed) to v: largest = max |v - u|, infinite for NaN; sum2 = sum of
 * u^2.
 */
typedef struct {
    double largest, sum2;
} kvd_change;

/*
 * Compares n logits u (uncompressed) and v into partial results part [KVD_CHANGE_PARTS], in GPU
 * memory.
 */
cudaError_t kvd_change_parts(const float *u, const float *v, size_t n, kvd_change *part,
                             cudaStream_t stream);

/*
 * Sums over outputs u (uncompressed) and v of one head: |v - u|^2, |u|^2, and |v - u| / |u| over u
 * != 0. n_zero: elements u = 0.
 */
typedef struct {
    double diff2, norm2, relative, n_zero;
} kvd_error_sums;

/*
 * Compares outputs u (uncompressed) and v, [n_tokens][n_heads * d_head] of `type` KVD_F32 or
 * KVD_BF16, into part [KVD_ERROR_PARTS][n_heads] in GPU memory.
 */
cudaError_t kvd_error_parts(kvd_dtype type, const void *u, const void *v, size_t n_tokens,
                            int n_heads, int d_head, kvd_error_sums *part, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
