/* Device time stamps in stream order. */
#ifndef KVD_METHODS_CUDA_STAMP_H
#define KVD_METHODS_CUDA_STAMP_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes %globaltimer, in nanoseconds, to `*to` when all earlier work on the stream has ended. */
cudaError_t kvd_stamp(unsigned long long *to, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
