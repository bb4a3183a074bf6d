/* Named ranges for Nsight Systems, where the toolkit has NVTX's headers; they cost nothing unless a tool listens. */
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
