/*
 * Makes random weights (model/checkpoint/random.h) on the device, with the same bits as
 * kvd_random_read makes on the host. `type` is KVD_F32 or KVD_BF16; both represent every weight
 * exactly.
 *
 * The functions return cudaErrorInvalidValue for another type or for sizes beyond the stated
 * limits. The functions launch kernels on the stream and never synchronise, allocate or print.
 */
#ifndef KVD_MODEL_CHECKPOINT_CUDA_RANDOM_H
#define KVD_MODEL_CHECKPOINT_CUDA_RANDOM_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "common/half.h"
#include "model/checkpoint/random.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fills the device array out [n] with elements first .. first+n-1; n is below 2^40. */
cudaError_t kvd_gpu_random_fill(kvd_dtype type, const kvd_random_tensor *t, size_t first, size_t n,
                                void *out, cudaStream_t stream);

/*
 * Fills a rectangle out [rows][cols], whose rows are out_stride elements apart. Row r holds `cols`
 * elements of the tensor, beginning with element first + r * stride. rows * cols is below 2^40.
 */
cudaError_t kvd_gpu_random_fill_rows(kvd_dtype type, const kvd_random_tensor *t, size_t first,
                                     size_t stride, size_t rows, size_t cols, void *out,
                                     size_t out_stride, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
