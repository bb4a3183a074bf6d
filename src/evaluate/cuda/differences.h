/* Kernels that compare arrays on the GPU. They write partial sums, to be added in a fixed order. */
#ifndef KVD_EVALUATE_CUDA_DIFFERENCES_H
#define KVD_EVALUATE_CUDA_DIFFERENCES_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "common/half.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets *differ, on the GPU, to 1 if any bit differs. */
cudaError_t kvd_differ(const float *a, const float *b, size_t n, int *differ, cudaStream_t stream);

enum { KVD_CHANGE_PARTS = 1024, KVD_ERROR_PARTS = 16 };

/* Difference of logits v from the uncompressed u. The maximum of |v - u| is infinite for NaN. */
typedef struct {
    double largest, sum2;
} kvd_change;

/* Compares logits u (uncompressed) and v (compressed) [n] on the GPU. Writes each block's largest
 * |v - u| and sum of u^2 to part [KVD_CHANGE_PARTS]. */
cudaError_t kvd_change_parts(const float *u, const float *v, size_t n, kvd_change *part,
                             cudaStream_t stream);

/* sums of |v - u|^2, |u|^2, |v - u| / |u| and number of u = 0, over elements of attention outputs,
 * u uncompressed and v compressed */
typedef struct {
    double diff2, norm2, relative, n_zero;
} kvd_error_sums;

/* Compares attention outputs u and v [n_tokens][n_heads * d_head] on the GPU. Writes each head's
 * sums of errors over KVD_ERROR_PARTS ranges of tokens to part [KVD_ERROR_PARTS][n_heads]. */
cudaError_t kvd_error_parts(kvd_dtype type, const void *u, const void *v, size_t n_tokens,
                            int n_heads, int d_head, kvd_error_sums *part, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
