/* Kernels that remove padding rows of attention outputs (a warp per row) and fill page tables. */
#include "model/pass/cuda/dense_lists.h"

namespace
{

enum { THREADS = 256, ROWS = THREADS / 32 };

__global__ void __launch_bounds__(THREADS)
    table_kernel(const int32_t *first_page, int32_t n, int32_t max_pages, int32_t *table)
{
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    const int b = (int)(i / max_pages);
    if (b < n)
        table[i] = first_page[b] + (int)(i % max_pages);
}

__global__ void __launch_bounds__(THREADS)
    rows_back_kernel(const uint4 *from, const int32_t *start, const int32_t *q_start, int32_t n,
                     size_t n_tokens, size_t pieces, uint4 *to)
{
    const size_t token = (size_t)blockIdx.x * ROWS + threadIdx.x / 32;
    if (token >= n_tokens)
        return;
    /* invariant of the binary search: start[low] <= token < start[high] */
    int low = 0, high = n;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if ((size_t)start[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    const size_t row = token - (size_t)start[low] + (size_t)q_start[low];
    for (size_t i = threadIdx.x % 32; i < pieces; i += 32)
        to[token * pieces + i] = from[row * pieces + i];
}

} // namespace

extern "C" cudaError_t kvd_dense_page_table(const int32_t *first_page, int32_t n, int32_t max_pages,
                                            int32_t *table, cudaStream_t stream)
{
    const size_t blocks = ((size_t)n * (size_t)max_pages + THREADS - 1) / THREADS;
    table_kernel<<<(unsigned)blocks, THREADS, 0, stream>>>(first_page, n, max_pages, table);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_dense_rows_back(const void *from, const int32_t *start,
                                           const int32_t *q_start, int32_t n, size_t n_tokens,
                                           size_t bytes, void *to, cudaStream_t stream)
{
    rows_back_kernel<<<(unsigned)((n_tokens + ROWS - 1) / ROWS), THREADS, 0, stream>>>(
        static_cast<const uint4 *>(from), start, q_start, n, n_tokens, bytes / sizeof(uint4),
        static_cast<uint4 *>(to));
    return cudaGetLastError();
}
