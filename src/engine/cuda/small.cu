#include "engine/cuda/small.h"

#include "model/pass/cuda/rows.cuh"

namespace
{

enum { THREADS = 256, PARTS = 16 /* CTAs per row */ };

__global__ void __launch_bounds__(THREADS)
    gather_kernel(const float *x, const int32_t *row, size_t d, float *to)
{
    const size_t from = (size_t)row[blockIdx.x] * d, at = (size_t)blockIdx.x * d;
    for (size_t i = threadIdx.x; i < d; i += THREADS)
        to[at + i] = x[from + i];
}

/* Returns a number that orders pairs of a value x and an index i: larger for larger x and, for
 * equal x, larger for smaller i. */
__device__ __forceinline__ unsigned long long key_of(float x, uint32_t i)
{
    const uint32_t bits = __float_as_uint(x),
                   order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (unsigned long long)order << 32 | ~i;
}

__device__ __forceinline__ unsigned long long larger(unsigned long long a, unsigned long long b)
{
    return a > b ? a : b;
}

__global__ void __launch_bounds__(THREADS)
    largest_kernel(const float *x, size_t width, unsigned long long *key, unsigned stage,
                   kvd_gpu_bad *bad)
{
    __shared__ unsigned long long part[THREADS / 32];
    const float *const row = x + (size_t)blockIdx.y * width;
    unsigned long long k = 0;
    bool wrong = false;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < width;
         i += (size_t)PARTS * THREADS) {
        const float v[1] = {row[i]};
        wrong |= any_not_finite(v);
        k = larger(k, key_of(v[0], (uint32_t)i));
    }
    if (wrong)
        report_bad(bad, stage, blockIdx.y);
#pragma unroll
    for (int step = 16; step; step /= 2)
        k = larger(k, __shfl_xor_sync(0xffffffffu, k, step));
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = k;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < THREADS / 32; w++)
            k = larger(k, part[w]);
        atomicMax(key + blockIdx.y, k);
    }
}

} // namespace

extern "C" cudaError_t kvd_gather_rows(const float *x, const int32_t *row, size_t n, size_t d,
                                       float *to, cudaStream_t stream)
{
    gather_kernel<<<n, THREADS, 0, stream>>>(x, row, d, to);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_largest(const float *x, size_t n, size_t width, unsigned long long *key,
                                   unsigned stage, kvd_gpu_bad *bad, cudaStream_t stream)
{
    largest_kernel<<<dim3(PARTS, n), THREADS, 0, stream>>>(x, width, key, stage, bad);
    return cudaGetLastError();
}
