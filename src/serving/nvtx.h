/*
 * Named ranges for the profiler Nsight Systems; without the headers of NVTX (NVIDIA's library for ranges) the functions do nothing.
 * They cost almost no time unless a profiler is attached.
 */
#ifndef KVD_SERVING_NVTX_H
#define KVD_SERVING_NVTX_H

#if defined(KVD_CUDA) && defined(__has_include)
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define KVD_NVTX 1
#endif
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
