#include <cuda_bf16.h>
#include <stdint.h>

extern "C" {
#include "evaluate/cuda/differences.h"
}

namespace
{

enum { THREADS = 256 };

struct add {
    static __device__ double of(double a, double b)
    {
        return a + b;
    }
};

struct larger {
    static __device__ double of(double a, double b)
    {
        return a > b ? a : b;
    }
};

/* Combines x of all threads of the block by OP (sum or maximum). Only thread 0 gets the result. */
template <class OP> __device__ double over_cta(double x)
{
    __shared__ double of_warp[THREADS / 32];
    for (int step = 16; step > 0; step /= 2)
        x = OP::of(x, __shfl_down_sync(~0u, x, step));
    /* Waits, because thread 0 may still read the array of_warp in the previous call of this
     * function. */
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    for (int w = 1; threadIdx.x == 0 && w < THREADS / 32; w++)
        x = OP::of(x, of_warp[w]);
    return x;
}

__global__ void __launch_bounds__(THREADS)
    find_difference(const uint32_t *a, const uint32_t *b, size_t n, int *differ)
{
    int found = 0;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (size_t)gridDim.x * THREADS)
        found |= a[i] != b[i];
    if (found)
        *differ = 1;
}

__global__ void __launch_bounds__(THREADS)
    change_parts(const float *u, const float *v, size_t n, kvd_change *part)
{
    double largest = 0, sum2 = 0;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (size_t)gridDim.x * THREADS) {
        const double x = (double)u[i], change = fabs((double)v[i] - x);
        largest = isnan(change) ? INFINITY : larger::of(largest, change);
        sum2 += x * x;
    }
    largest = over_cta<larger>(largest);
    sum2 = over_cta<add>(sum2);
    if (threadIdx.x == 0) {
        part[blockIdx.x].largest = largest;
        part[blockIdx.x].sum2 = sum2;
    }
}

__device__ double value(float x)
{
    return (double)x;
}

__device__ double value(__nv_bfloat16 x)
{
    return (double)__bfloat162float(x);
}

/* Sums the errors of attention outputs v (compressed) relative to u (uncompressed). A thread block
 * handles a query head and a range of tokens. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    error_parts(const T *u, const T *v, size_t n_tokens, int d_head, kvd_error_sums *part)
{
    const int head = (int)blockIdx.x;
    const size_t width = (size_t)gridDim.x * (size_t)d_head;
    const size_t first = n_tokens * blockIdx.y / gridDim.y,
                 end = n_tokens * (blockIdx.y + 1) / gridDim.y;
    double diff2 = 0, norm2 = 0, relative = 0, n_zero = 0;
    for (size_t i = threadIdx.x; i < (end - first) * (size_t)d_head; i += THREADS) {
        const size_t at = (first + i / (size_t)d_head) * width + (size_t)head * (size_t)d_head +
                          i % (size_t)d_head;
        const double x = value(u[at]), diff = value(v[at]) - x;
        diff2 += diff * diff;
        norm2 += x * x;
        if (x != 0)
            relative += fabs(diff) / fabs(x);
        else
            n_zero++;
    }
    diff2 = over_cta<add>(diff2);
    norm2 = over_cta<add>(norm2);
    relative = over_cta<add>(relative);
    n_zero = over_cta<add>(n_zero);
    if (threadIdx.x == 0) {
        kvd_error_sums *const out = &part[blockIdx.y * gridDim.x + blockIdx.x];
        out->diff2 = diff2;
        out->norm2 = norm2;
        out->relative = relative;
        out->n_zero = n_zero;
    }
}

} // namespace

cudaError_t kvd_differ(const float *a, const float *b, size_t n, int *differ, cudaStream_t stream)
{
    const size_t wanted = (n + 8 * THREADS - 1) / (8 * THREADS);
    if (n == 0)
        return cudaSuccess;
    find_difference<<<(unsigned)(wanted < 4096 ? wanted : 4096), THREADS, 0, stream>>>(
        reinterpret_cast<const uint32_t *>(a), reinterpret_cast<const uint32_t *>(b), n, differ);
    return cudaGetLastError();
}

cudaError_t kvd_change_parts(const float *u, const float *v, size_t n, kvd_change *part,
                             cudaStream_t stream)
{
    change_parts<<<KVD_CHANGE_PARTS, THREADS, 0, stream>>>(u, v, n, part);
    return cudaGetLastError();
}

cudaError_t kvd_error_parts(kvd_dtype type, const void *u, const void *v, size_t n_tokens,
                            int n_heads, int d_head, kvd_error_sums *part, cudaStream_t stream)
{
    const dim3 grid((unsigned)n_heads, KVD_ERROR_PARTS);
    if (type == KVD_F32)
        error_parts<<<grid, THREADS, 0, stream>>>(
            static_cast<const float *>(u), static_cast<const float *>(v), n_tokens, d_head, part);
    else if (type == KVD_BF16)
        error_parts<<<grid, THREADS, 0, stream>>>(static_cast<const __nv_bfloat16 *>(u),
                                                  static_cast<const __nv_bfloat16 *>(v), n_tokens,
                                                  d_head, part);
    else
        return cudaErrorInvalidValue;
    return cudaGetLastError();
}
