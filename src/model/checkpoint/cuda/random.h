/* Writes random weights to device memory, with the same bits as model/checkpoint/random.h on the
 * host.
 *
 * `type` is KVD_F32 or KVD_BF16. Other types return cudaErrorInvalidValue. */
#ifndef KVD_MODEL_CHECKPOINT_CUDA_RANDOM_H
#define KVD_MODEL_CHECKPOINT_CUDA_RANDOM_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "common/half.h"
#include "model/checkpoint/random.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fills the device array `out` with n elements of the random tensor *t, beginning with element
 * `first`; n < 2^40. */
cudaError_t kvd_gpu_random_fill(kvd_dtype type, const kvd_random_tensor *t, size_t first, size_t n,
                                void *out, cudaStream_t stream);

/* Fills a matrix [rows][cols] on the device with elements of the random tensor *t. Row r gets the
 * elements from index `first` + r * `stride` on. In `out`, a row begins out_stride elements after
 * the row before it. */
cudaError_t kvd_gpu_random_fill_rows(kvd_dtype type, const kvd_random_tensor *t, size_t first,
                                     size_t stride, size_t rows, size_t cols, void *out,
                                     size_t out_stride, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
