/* Kernels that compare logits, or attention outputs, with and without compression of the KV cache.
 * Thread blocks write partial sums, which the caller adds in a fixed order. */
#ifndef KVD_EVALUATE_CUDA_DIFFERENCES_H
#define KVD_EVALUATE_CUDA_DIFFERENCES_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "common/half.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets *differ, in GPU memory, to 1 if a [n] and b [n] differ in any bit. Otherwise *differ keeps
 * its value. */
cudaError_t kvd_differ(const float *a, const float *b, size_t n, int *differ, cudaStream_t stream);

enum { KVD_CHANGE_PARTS = 1024, KVD_ERROR_PARTS = 16 };

/* Difference between logits v (compressed) and u (uncompressed). If |v - u| is NaN for any logit,
 * the maximum of |v - u| is set to infinity. */
typedef struct {
    double largest, sum2;
} kvd_change;

/* Compares logits u (uncompressed) and v (compressed) [n] on the GPU. Each thread block writes its
 * largest |v - u| and its sum of u^2 to an element of part [KVD_CHANGE_PARTS]. */
cudaError_t kvd_change_parts(const float *u, const float *v, size_t n, kvd_change *part,
                             cudaStream_t stream);

/* Differences between uncompressed and compressed attention outputs. Four sums over all pairs of
 * elements u (uncompressed) and v (compressed): |v - u|^2, |u|^2, |v - u| / |u| if u != 0, and the
 * number of elements u = 0. */
typedef struct {
    double diff2, norm2, relative, n_zero;
} kvd_error_sums;

/* Compares attention outputs u (uncompressed) and v (compressed) [n_tokens][n_heads * d_head] on
 * the GPU. Divides the tokens into KVD_ERROR_PARTS ranges. Writes sums of differences, one
 * kvd_error_sums per range and head, to part [KVD_ERROR_PARTS][n_heads]. */
cudaError_t kvd_error_parts(kvd_dtype type, const void *u, const void *v, size_t n_tokens,
                            int n_heads, int d_head, kvd_error_sums *part, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
