/*
 * Includes the header of NVTX (NVIDIA's library for profiler ranges) if the CUDA toolkit has it,
 * and then defines KVD_NVTX.
 */
#ifndef KVD_SERVING_CUDA_NVTX3_H
#define KVD_SERVING_CUDA_NVTX3_H

#if defined(__has_include)
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define KVD_NVTX 1
#endif
#endif

#endif
