/*
 * Differences between arrays in GPU memory. Each function queues one kernel. The kernels write
 * partial sums, which the caller adds on the host in a fixed order.
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
 * Sets *differ, in GPU memory, to 1 if any bit of the n numbers differs; otherwise leaves it
 * unchanged.
 */
cudaError_t kvd_differ(const float *a, const float *b, size_t n, int *differ, cudaStream_t stream);

enum { KVD_CHANGE_PARTS = 1024, KVD_ERROR_PARTS = 16 };

/*
 * Change of logits by compression, from the logits u of the uncompressed model to the logits v of
 * the compressed run. `largest` is max |v - u|, or infinite if an element is NaN. `sum2` is the sum
 * of u^2.
 */
typedef struct {
    double largest, sum2;
} kvd_change;

/*
 * Compares n logits of the uncompressed model (u) and the compressed run (v). The caller combines
 * the partial results in part [KVD_CHANGE_PARTS], in GPU memory.
 */
cudaError_t kvd_change_parts(const float *u, const float *v, size_t n, kvd_change *part,
                             cudaStream_t stream);

/*
 * Sums over the outputs u (uncompressed) and v (compressed) of one head. diff2 is the sum of |v -
 * u|^2, norm2 the sum of |u|^2, and relative the sum of |v - u| / |u| over elements with u != 0.
 * n_zero is the number of elements with u = 0.
 */
typedef struct {
    double diff2, norm2, relative, n_zero;
} kvd_error_sums;

/*
 * Compares attention outputs u (uncompressed) and v (compressed), [n_tokens][n_heads * d_head] of
 * `type`, KVD_F32 or KVD_BF16. The caller adds the partial sums in part [KVD_ERROR_PARTS][n_heads],
 * in GPU memory.
 */
cudaError_t kvd_error_parts(kvd_dtype type, const void *u, const void *v, size_t n_tokens,
                            int n_heads, int d_head, kvd_error_sums *part, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
