/* Kernels that round rows of K and V to the number type of a cache, and record times on the GPU. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/cuda/launch.cuh"
#include "kernels/layout.h"
#include "methods/cuda/cache_rows.h"
#include "methods/cuda/phase_clock.h"

namespace
{

enum { THREADS = 256 };
constexpr size_t ROWS_MAX = 65535;

__device__ __forceinline__ float wide(float x)
{
    return x;
}

__device__ __forceinline__ float wide(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

template <kvd_dtype STORE> __device__ __forceinline__ float rounded(float x)
{
    return STORE == KVD_F16    ? __half2float(__float2half_rn(x))
           : STORE == KVD_BF16 ? __bfloat162float(__float2bfloat16_rn(x))
                               : x;
}

template <class T, kvd_dtype STORE>
__global__ void __launch_bounds__(THREADS)
    round_rows(const T *x, size_t ld, size_t n, size_t width, float *to)
{
    const size_t column = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (column >= width)
        return;
    for (size_t row = blockIdx.y; row < n; row += gridDim.y)
        to[row * width + column] = rounded<STORE>(wide(x[row * ld + column]));
}

template <class T>
cudaError_t launch(const void *x, size_t ld, kvd_dtype store, size_t n, size_t width, float *to,
                   cudaStream_t stream)
{
    const dim3 grid(((width + THREADS - 1) / THREADS), (n < ROWS_MAX ? n : ROWS_MAX));
    const T *const from = static_cast<const T *>(x);
    if (store == KVD_F16)
        round_rows<T, KVD_F16><<<grid, THREADS, 0, stream>>>(from, ld, n, width, to);
    else if (store == KVD_BF16)
        round_rows<T, KVD_BF16><<<grid, THREADS, 0, stream>>>(from, ld, n, width, to);
    else
        round_rows<T, KVD_F32><<<grid, THREADS, 0, stream>>>(from, ld, n, width, to);
    return cudaGetLastError();
}

/* Copies K and V of tokens between cache pages and rows. A thread copies 8 elements of a token. */
__global__ void __launch_bounds__(THREADS)
    move_rows(uint16_t *const *k, size_t n, int d, uint16_t *rows, bool back)
{
    const size_t each = 2 * (size_t)d / 8;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n * each;
         i += (size_t)gridDim.x * THREADS) {
        const int c = (int)(i % each), side = c >= d / 8;
        uint4 *const page = reinterpret_cast<uint4 *>(k[i / each] + side * KVD_PAGE_TOKENS * d +
                                                      (c - side * d / 8) * 64),
                     *const row = reinterpret_cast<uint4 *>(rows) + i;
        if (back)
            *page = *row;
        else
            *row = *page;
    }
}

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

cudaError_t kvd_cache_round(kvd_dtype type, const void *x, size_t ld, kvd_dtype store, size_t n,
                            size_t width, float *to, cudaStream_t stream)
{
    if (n == 0 || width == 0)
        return cudaSuccess;
    return type == KVD_F32    ? launch<float>(x, ld, store, n, width, to, stream)
           : type == KVD_BF16 ? launch<__nv_bfloat16>(x, ld, store, n, width, to, stream)
                              : cudaErrorInvalidValue;
}

cudaError_t kvd_cache_move(uint16_t *const *k, size_t n, int d, uint16_t *rows, bool back,
                           cudaStream_t stream)
{
    if (n == 0)
        return cudaSuccess;
    const size_t blocks = (n * 2 * (size_t)d / 8 + THREADS - 1) / THREADS;
    if (d % 8 || !k || !rows)
        return cudaErrorInvalidValue;
    move_rows<<<(blocks < ROWS_MAX ? blocks : ROWS_MAX), THREADS, 0, stream>>>(k, n, d, rows, back);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_stamp(unsigned long long *to, cudaStream_t stream)
{
    int major = 0;
    const cudaError_t e = kvd_compute_capability(&major);
    return e == cudaSuccess ? kvd_launch_early(major >= 9, stamp_kernel, dim3(1), 1, 0, stream, to)
                            : e;
}
