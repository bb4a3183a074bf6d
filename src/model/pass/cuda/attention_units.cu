/* Kernel that writes the addresses of matrices for batched products of cuBLAS to device memory. */
#include "model/pass/cuda/attention_units.h"

enum { THREADS = 256 };

__global__ static void __launch_bounds__(THREADS)
    pointers_kernel(const kvd_units a, size_t n, void **at)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n * KVD_UNIT_MATRICES)
        at[i] = kvd_unit_matrix(&a, (int)(i / n), a.first + i % n);
}

extern "C" cudaError_t kvd_unit_pointers(const kvd_units *a, size_t n, void **at,
                                         cudaStream_t stream)
{
    const size_t blocks = (n * KVD_UNIT_MATRICES + THREADS - 1) / THREADS;
    pointers_kernel<<<(unsigned)blocks, THREADS, 0, stream>>>(*a, n, at);
    return cudaGetLastError();
}
