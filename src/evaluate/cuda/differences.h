/*
 * Kernels that compare arrays in GPU memory. They write partial sums, which the caller adds in a
 * fixed order.
 */
#ifndef KVD_EVALUATE_CUDA_DIFFERENCES_H
#define KVD_EVALUATE_CUDA_DIFFERENCES_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "common/half.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets *differ, in GPU memory, to 1 if any bit of the arrays differs. */
cudaError_t kvd_differ(const float *a, const float *b, size_t n, int *differ, cudaStream_t stream);

enum { KVD_CHANGE_PARTS = 1024, KVD_ERROR_PARTS = 16 };

/*
 * Difference between logits u of the uncompressed model and v of a compressed one. The maximum of
 * |v - u| is infinite if a logit is NaN.
 */
typedef struct {
    double largest, sum2;
} kvd_change;

/* Compares n logits u (uncompressed model) and v. Writes part [KVD_CHANGE_PARTS] in GPU memory. */
cudaError_t kvd_change_parts(const float *u, const float *v, size_t n, kvd_change *part,
                             cudaStream_t stream);

/*
 * Sums over attention outputs u (uncompressed) and v (compressed): of |v - u|^2, |u|^2 and |v - u|
 * / |u|, and the number of u = 0.
 */
typedef struct {
    double diff2, norm2, relative, n_zero;
} kvd_error_sums;

/*
 * Compares attention outputs u and v, [n_tokens][n_heads * d_head] of KVD_F32 or KVD_BF16. Writes
 * to part [KVD_ERROR_PARTS][n_heads] in GPU memory.
 */
cudaError_t kvd_error_parts(kvd_dtype type, const void *u, const void *v, size_t n_tokens,
                            int n_heads, int d_head, kvd_error_sums *part, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
