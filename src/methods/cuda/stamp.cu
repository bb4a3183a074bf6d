/*
 * Kernel that records the time at which a phase ends (phase_clock.h). A single thread writes one
 * number, so the kernel takes only the launch latency.
 */
#include "common/cuda/launch.cuh"
#include "methods/cuda/phase_clock.h"

namespace
{

__global__ void stamp_kernel(unsigned long long *to)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    asm volatile("{ .reg .u64 t; mov.u64 t, %%globaltimer; st.global.u64 [%0], t; }" ::"l"(to)
                 : "memory");
}

} // namespace

extern "C" cudaError_t kvd_stamp(unsigned long long *to, cudaStream_t stream)
{
    int major = 0;
    const cudaError_t e = kvd_compute_capability(&major);
    return e == cudaSuccess ? kvd_launch_early(major >= 9, stamp_kernel, dim3(1), 1, 0, stream, to)
                            : e;
}
