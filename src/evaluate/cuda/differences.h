/*
 * Differences between arrays in GPU memory: bit by bit, between logits, and between attention
 * outputs (evaluate/quality.h). Sums are double and run in one fixed order. Kernels leave partial
 * sums, which the host adds. Each function queues one kernel.
 */
#ifndef KVD_EVALUATE_CUDA_DIFFERENCES_H
#define KVD_EVALUATE_CUDA_DIFFERENCES_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "common/half.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Sets *differ (in GPU memory) to 1 if a bit of a [n] differs from that of b [n]; otherwise leaves
 * *differ unchanged.
 */
cudaError_t kvd_differ(const float *a, const float *b, size_t n, int *differ, cudaStream_t stream);

enum { KVD_CHANGE_PARTS = 1024, KVD_ERROR_PARTS = 16 };

/*
 * Change of the logits by compression, where u are the logits of the uncompressed model and v those
 * of the compressed run: largest |v - u| (infinite if an element is NaN), and sum of u^2.
 */
typedef struct {
    double largest, sum2;
} kvd_change;

/*
 * Measures the change of n logits by compression, in parts: u [n] are uncompressed, v [n]
 * compressed. Each element of part [KVD_CHANGE_PARTS] (in GPU memory) receives the largest change
 * and the sum of u^2 over some of the logits. The caller combines them.
 */
cudaError_t kvd_change_parts(const float *u, const float *v, size_t n, kvd_change *part,
                             cudaStream_t stream);

/*
 * Sums over the attention outputs of one head, u uncompressed and v compressed: |v - u|^2, |u|^2,
 * |v - u| / |u| over elements with u != 0, and the number of elements with u = 0.
 */
typedef struct {
    double diff2, norm2, relative, n_zero;
} kvd_error_sums;

/*
 * Computes the sums of kvd_error_sums over the attention outputs of every head, in parts: part
 * [KVD_ERROR_PARTS][n_heads] (in GPU memory) receives the sums over some of the tokens. The caller
 * adds them. u is uncompressed, v compressed. Both are [n_tokens][n_heads * d_head] of `type`,
 * KVD_F32 or KVD_BF16.
 */
cudaError_t kvd_error_parts(kvd_dtype type, const void *u, const void *v, size_t n_tokens,
                            int n_heads, int d_head, kvd_error_sums *part, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
