/* Writes addresses of attention matrices for batched cuBLAS products, one per thread. */
#include "model/pass/cuda/attention_units.h"

enum { THREADS = 256 };

__global__ static void __launch_bounds__(THREADS)
    pointers_kernel(const kvd_attention_units a, size_t n, void **at)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n * KVD_AT_MATRICES)
        at[i] = kvd_attention_matrix(&a, (int)(i / n), a.first + i % n);
}

extern "C" cudaError_t kvd_attention_pointers(const kvd_attention_units *a, size_t n, void **at,
                                              cudaStream_t stream)
{
    const size_t blocks = (n * KVD_AT_MATRICES + THREADS - 1) / THREADS;
    pointers_kernel<<<(unsigned)blocks, THREADS, 0, stream>>>(*a, n, at);
    return cudaGetLastError();
}

__global__ static void __launch_bounds__(THREADS)
    back_pointers_kernel(const kvd_back_units a, size_t n, void **at)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n * KVD_BACK_MATRICES)
        at[i] = kvd_back_matrix(&a, (int)(i / n), a.first + i % n);
}

extern "C" cudaError_t kvd_back_pointers(const kvd_back_units *a, size_t n, void **at,
                                         cudaStream_t stream)
{
    const size_t blocks = (n * KVD_BACK_MATRICES + THREADS - 1) / THREADS;
    back_pointers_kernel<<<(unsigned)blocks, THREADS, 0, stream>>>(*a, n, at);
    return cudaGetLastError();
}
