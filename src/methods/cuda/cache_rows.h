/* Rounds projected K and V to the data type of a cache. */
#ifndef KVD_METHODS_CUDA_CACHE_ROWS_H
#define KVD_METHODS_CUDA_CACHE_ROWS_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "common/half.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Rounds x [n][width] (KVD_F32 or KVD_BF16, ld elements per token) to type `store`, but writes
 * float32. to [n][width] may be x.
 */
cudaError_t kvd_cache_round(kvd_dtype type, const void *x, size_t ld, kvd_dtype store, size_t n,
                            size_t width, float *to, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
