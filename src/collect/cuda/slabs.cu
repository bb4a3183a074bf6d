/* Converts x[token][head][dim] to the number type of an output file, transposes it to
 * [head][token][dim], and finds values that are not finite. */
#include "collect/cuda/slabs.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace
{

enum { THREADS = 256, EACH = 16 };

__device__ __forceinline__ float widen(float x)
{
    return x;
}

__device__ __forceinline__ float widen(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

template <typename T> __device__ __forceinline__ T narrow(float x);

template <> __device__ __forceinline__ float narrow(float x)
{
    return x;
}

template <> __device__ __forceinline__ __half narrow(float x)
{
    return __float2half_rn(x);
}

template <> __device__ __forceinline__ __nv_bfloat16 narrow(float x)
{
    return __float2bfloat16_rn(x);
}

__device__ __forceinline__ bool finite(float x)
{
    return isfinite(x);
}

__device__ __forceinline__ bool finite(__half x)
{
    return isfinite(__half2float(x));
}

__device__ __forceinline__ bool finite(__nv_bfloat16 x)
{
    return isfinite(__bfloat162float(x));
}

template <typename From, typename To>
__global__ void __launch_bounds__(THREADS) make_slabs(const __grid_constant__ kvd_slab_args a)
{
    int head = (int)blockIdx.y, part = 0;
    while (head >= a.part[part].n_heads)
        head -= a.part[part++].n_heads;
    const unsigned d = (unsigned)a.d;
    const From *x = static_cast<const From *>(a.part[part].x) + (size_t)head * d;
    const size_t ld = a.part[part].ld, n = a.n_rows * d;
    To *to = static_cast<To *>(a.slabs) + (size_t)blockIdx.y * n;
    const size_t first = (size_t)blockIdx.x * (THREADS * EACH) + threadIdx.x;
#pragma unroll 4
    for (int i = 0; i < EACH; i++) {
        const size_t e = first + (size_t)i * THREADS;
        if (e >= n)
            break;
        const unsigned row = (unsigned)e / d, dim = (unsigned)e % d;
        const To value = narrow<To>(widen(x[(size_t)row * ld + dim]));
        to[e] = value;
        if (!finite(value))
            atomicMin(reinterpret_cast<unsigned long long *>(&a.bad->found),
                      (unsigned long long)blockIdx.y << 48 | (unsigned long long)row << 16 | dim);
    }
}

/* Writes the indices and the value of the first non-finite element. Runs as one thread. */
template <typename From> __global__ void look_up(const __grid_constant__ kvd_slab_args a)
{
    kvd_slab_bad *const bad = a.bad;
    if (bad->found == ~(uint64_t)0)
        return;
    int head = (int)(bad->found >> 48), part = 0;
    while (head >= a.part[part].n_heads)
        head -= a.part[part++].n_heads;
    bad->part = (uint32_t)part;
    bad->head = (uint32_t)head;
    bad->row = bad->found >> 16 & 0xffffffff;
    bad->dim = (uint32_t)(bad->found & 0xffff);
    const size_t at = bad->row * a.part[part].ld + (size_t)head * (size_t)a.d + bad->dim;
    bad->value = widen(static_cast<const From *>(a.part[part].x)[at]);
}

template <typename From, typename To>
cudaError_t launch(const kvd_slab_args &a, int n_heads, cudaStream_t stream)
{
    const size_t n = a.n_rows * (size_t)a.d;
    make_slabs<From, To>
        <<<dim3((unsigned)((n + THREADS * EACH - 1) / (THREADS * EACH)), (unsigned)n_heads),
           THREADS, 0, stream>>>(a);
    const cudaError_t e = cudaGetLastError();
    if (e != cudaSuccess)
        return e;
    look_up<From><<<1, 1, 0, stream>>>(a);
    return cudaGetLastError();
}

template <typename From>
cudaError_t choose(const kvd_slab_args &a, int n_heads, cudaStream_t stream)
{
    return a.to == KVD_F32   ? launch<From, float>(a, n_heads, stream)
           : a.to == KVD_F16 ? launch<From, __half>(a, n_heads, stream)
                             : launch<From, __nv_bfloat16>(a, n_heads, stream);
}

} // namespace

extern "C" cudaError_t kvd_make_slabs(const kvd_slab_args *args, cudaStream_t stream)
{
    int n_heads = 0;
    if (args->n_parts < 1 || args->n_parts > KVD_SLAB_PARTS || args->d < 1 || args->d > 65535 ||
        args->n_rows < 1 || args->n_rows * (size_t)args->d > UINT32_MAX ||
        (args->from != KVD_F32 && args->from != KVD_BF16))
        return cudaErrorInvalidValue;
    for (int i = 0; i < args->n_parts; i++)
        n_heads += args->part[i].n_heads;
    if (n_heads < 1 || n_heads > 65535)
        return cudaErrorInvalidValue;
    const cudaError_t e = cudaMemsetAsync(args->bad, 0xff, sizeof *args->bad, stream);
    if (e != cudaSuccess)
        return e;
    return args->from == KVD_F32 ? choose<float>(*args, n_heads, stream)
                                 : choose<__nv_bfloat16>(*args, n_heads, stream);
}
