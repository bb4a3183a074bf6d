/* Makes random weights on the device, with the same bits as on the host.
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

/* Fills out [n] on the device with elements first .. first + n - 1; n < 2^40. */
cudaError_t kvd_gpu_random_fill(kvd_dtype type, const kvd_random_tensor *t, size_t first, size_t n,
                                void *out, cudaStream_t stream);

/* Fills out [rows][cols], rows out_stride apart. Row r begins with element first + r * stride. */
cudaError_t kvd_gpu_random_fill_rows(kvd_dtype type, const kvd_random_tensor *t, size_t first,
                                     size_t stride, size_t rows, size_t cols, void *out,
                                     size_t out_stride, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
