/* Small kernels of the GPU engine, such as finding the largest logit. */
#ifndef KVD_ENGINE_CUDA_SMALL_H
#define KVD_ENGINE_CUDA_SMALL_H

#include "model/pass/cuda/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Copies n rows of x, each of d elements: row row[i] of x to row i of `to`. */
cudaError_t kvd_gather_rows(const float *x, const int32_t *row, size_t n, size_t d, float *to,
                            cudaStream_t stream);

/* Finds the largest element of each row of x. key[i] receives a number that contains the largest
 * element of row i and its index; kvd_largest_index returns the index. key [n] must be 0 before the
 * call. */
cudaError_t kvd_largest(const float *x, size_t n, size_t width, unsigned long long *key,
                        unsigned stage, kvd_gpu_bad *bad, cudaStream_t stream);
static inline uint32_t kvd_largest_index(unsigned long long key)
{
    return ~(uint32_t)key;
}

#ifdef __cplusplus
}
#endif
#endif
