/*
 * Named ranges for the profiler Nsight Systems; without NVTX's headers the functions do nothing.
 * They cost almost no time unless a profiler is attached.
 */
#ifndef KVD_SERVING_NVTX_H
#define KVD_SERVING_NVTX_H

#ifdef KVD_CUDA
#include "serving/cuda/nvtx3.h"
#endif

static inline void kvd_range_push(const char *name)
{
#ifdef KVD_NVTX
    nvtxRangePushA(name);
#else
    (void)name;
#endif
}

static inline void kvd_range_pop(void)
{
#ifdef KVD_NVTX
    nvtxRangePop();
#endif
}

#endif
