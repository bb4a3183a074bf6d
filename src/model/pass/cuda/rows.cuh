/* Loads and stores 16-bit elements as float32, and sums over threads. */
#ifndef KVD_MODEL_PASS_CUDA_ROWS_CUH
#define KVD_MODEL_PASS_CUDA_ROWS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "model/pass/cuda/blocks.h"

namespace
{

struct f32 {
    typedef float raw;
    static __device__ __forceinline__ float widen(float x)
    {
        return x;
    }
    static __device__ __forceinline__ float narrow(float x)
    {
        return x;
    }
};

struct f16 {
    typedef uint16_t raw;
    static __device__ __forceinline__ float widen(uint16_t x)
    {
        return __half2float(__ushort_as_half(x));
    }
    static __device__ __forceinline__ uint16_t narrow(float x)
    {
        return __half_as_ushort(__float2half_rn(x));
    }
};

struct bf16 {
    typedef uint16_t raw;
    static __device__ __forceinline__ float widen(uint16_t x)
    {
        return __uint_as_float((uint32_t)x << 16);
    }
    static __device__ __forceinline__ uint16_t narrow(float x)
    {
        return __bfloat16_as_ushort(__float2bfloat16_rn(x));
    }
};

/* N neighbouring elements that are loaded and stored together */
template <class T, int N>
struct alignas(N * sizeof(typename T::raw) < 16 ? N * sizeof(typename T::raw) : 16) pack {
    typename T::raw v[N];
};

template <class T, int N>
__device__ __forceinline__ void load(const void *base, size_t at, float (&x)[N])
{
    const pack<T, N> p =
        *reinterpret_cast<const pack<T, N> *>(static_cast<const typename T::raw *>(base) + at);
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = T::widen(p.v[i]);
}

template <class T, int N>
__device__ __forceinline__ void store(void *base, size_t at, const float (&x)[N])
{
    pack<T, N> p;
#pragma unroll
    for (int i = 0; i < N; i++)
        p.v[i] = T::narrow(x[i]);
    *reinterpret_cast<pack<T, N> *>(static_cast<typename T::raw *>(base) + at) = p;
}

template <class T> __device__ __forceinline__ float rounded(float x)
{
    return T::widen(T::narrow(x));
}

template <int N> __device__ __forceinline__ bool any_not_finite(const float (&x)[N])
{
    bool found = false;
#pragma unroll
    for (int i = 0; i < N; i++)
        found |= (__float_as_uint(x[i]) & 0x7f800000u) == 0x7f800000u;
    return found;
}

__device__ __forceinline__ float silu(float x)
{
    return x / (1.0f + expf(-x));
}

__device__ __forceinline__ float gelu_tanh(float x)
{
    return x / (1.0f + expf(-1.59576912f * (x + 0.044715f * x * x * x)));
}

/* Records that check number `stage` found a NaN or infinity in row `row`. *bad keeps the smallest
 * check number and, for this check, the smallest row. */
__device__ __forceinline__ void report_bad(kvd_gpu_bad *bad, unsigned stage, size_t row)
{
    atomicMin(bad, (kvd_gpu_bad)stage << 40 | row);
}

template <class V> __device__ __forceinline__ V warp_sum(V x)
{
#pragma unroll
    for (int step = 16; step; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* Returns the sum of x over all threads of the block, in every thread. part [32] is in shared
 * memory. */
template <class V> __device__ __forceinline__ V block_sum(V x, V *part)
{
    const int warps = (int)blockDim.x / 32, lane = (int)threadIdx.x % 32;
    x = warp_sum(x);
    if (warps == 1)
        return x;
    if (lane == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_sum(lane < warps ? part[lane] : V(0));
}

inline bool aligned16(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

inline size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

inline size_t ceil_div(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

} // namespace

#endif
