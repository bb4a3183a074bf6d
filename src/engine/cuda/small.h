/*
 * Small kernels of the GPU engine: copies of rows of the residual stream, and the largest logit of
 * a row. Launch functions follow the conventions of model/pass/cuda/blocks.h.
 */
#ifndef KVD_ENGINE_CUDA_SMALL_H
#define KVD_ENGINE_CUDA_SMALL_H

#include "model/pass/cuda/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Queues a gather of rows: row i of `to` [n][d] becomes row number row[i] of x, whose rows have d
 * floats.
 */
cudaError_t kvd_gather_rows(const float *x, const int32_t *row, size_t n, size_t d, float *to,
                            cudaStream_t stream);

/*
 * Queues the search for the largest value of each row of x [n][width]; of equal values the first
 * counts. key [n] must be zero before. Afterwards the lower 32 bits of key[i] are the complement of
 * the index of row i's largest value (kvd_largest_index). Rows that are not finite are recorded in
 * *bad under the number `stage`.
 */
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
