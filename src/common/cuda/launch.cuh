/* Helpers to launch kernels, and device functions for their threads. */
#ifndef KVD_COMMON_CUDA_LAUNCH_CUH
#define KVD_COMMON_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

/* Queues the launch of kernel(args...). If `early`, the kernel may start before the preceding
 * kernel ends, and must execute griddepcontrol.wait. */
template <class... Parameters, class... Args>
inline cudaError_t kvd_launch_early(bool early, void (*kernel)(Parameters...), dim3 grid,
                                    dim3 block, size_t shared_bytes, cudaStream_t stream,
                                    const Args &...args)
{
    cudaLaunchAttribute overlap;
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = early ? 1 : 0;
    const cudaError_t e =
        shared_bytes ? cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            (int)shared_bytes)
                     : cudaSuccess;
    return e == cudaSuccess ? cudaLaunchKernelEx(&config, kernel, args...) : e;
}

template <class... Parameters, class... Args>
inline cudaError_t kvd_launch(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                              size_t shared_bytes, cudaStream_t stream, const Args &...args)
{
    return kvd_launch_early(false, kernel, grid, block, shared_bytes, stream, args...);
}

/* Returns the sum of x over lanes 0 .. i, where i is the calling thread's lane. All 32 lanes of the
 * warp must call it. */
template <class T> __device__ __forceinline__ T kvd_sum_to_lane(T x)
{
    const int lane = (int)threadIdx.x % 32;
    for (int d = 1; d < 32; d *= 2) {
        const T other = __shfl_up_sync(~0u, x, d);
        x += lane >= d ? other : 0;
    }
    return x;
}

/* Returns the last i of first .. end - 1 for which f(i) is true, by bisection. f must be true up to
 * that i and false after it. */
template <class F> __device__ __forceinline__ int kvd_last_true(int first, int end, const F &f)
{
    while (end - first > 1) {
        const int middle = (first + end) / 2;
        if (f(middle))
            first = middle;
        else
            end = middle;
    }
    return first;
}

/* Returns the GPU's time (%globaltimer) in ns. */
__device__ __forceinline__ unsigned long long kvd_now_ns(void)
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)::"memory");
    return t;
}

/* Waits for the end of the preceding kernel, then writes the time in ns to *began. */
__device__ __forceinline__ void kvd_wait_preceding(unsigned long long *began)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    if (began && blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0 &&
        threadIdx.y == 0)
        *began = kvd_now_ns();
}

inline cudaError_t kvd_device_attribute(cudaDeviceAttr which, int *value)
{
    int device = 0;
    const cudaError_t e = cudaGetDevice(&device);
    return e == cudaSuccess ? cudaDeviceGetAttribute(value, which, device) : e;
}

inline cudaError_t kvd_compute_capability(int *major)
{
    return kvd_device_attribute(cudaDevAttrComputeCapabilityMajor, major);
}

#endif
