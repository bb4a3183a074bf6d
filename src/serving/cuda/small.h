/* Small kernels of the engine: the time on the device, rows of the residual stream, the largest logit. Launchers as in model/cuda/blocks.h. */
#ifndef KVD_SERVING_CUDA_SMALL_H
#define KVD_SERVING_CUDA_SMALL_H

#include "model/cuda/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

/* *to = %globaltimer, in ns, when everything before on the stream has ended. */
cudaError_t kvd_stamp(unsigned long long *to, cudaStream_t stream);

/* to [n][d] = rows row[i] of x [..][d]. */
cudaError_t kvd_gather_rows(const float *x, const int32_t *row, size_t n, size_t d, float *to,
                            cudaStream_t stream);

/*
 * key [n], zero before: of the largest of each row of x [n][width], of equals the first. It is in the lower half, as ~index. Rows that are not
 * finite go to *bad as `stage`.
 */
cudaError_t kvd_largest(const float *x, size_t n, size_t width, unsigned long long *key, unsigned stage,
                        kvd_gpu_bad *bad, cudaStream_t stream);
static inline uint32_t kvd_largest_index(unsigned long long key)
{
    return ~(uint32_t)key;
}

#ifdef __cplusplus
}
#endif
#endif
