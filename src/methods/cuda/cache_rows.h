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
 * Copies x [n][width], with ld elements per token, to `to` [n][width] in float32. The numbers are
 * rounded to the nearest of type `store` (KVD_F32: not rounded). x has type KVD_F32 or KVD_BF16. x
 * and `to` may be the same array. Streams and errors are as in model/pass/cuda/blocks.h.
 */
cudaError_t kvd_cache_round(kvd_dtype type, const void *x, size_t ld, kvd_dtype store, size_t n,
                            size_t width, float *to, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
