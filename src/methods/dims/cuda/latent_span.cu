/* Kernels that find the leading singular vectors of a prompt's keys or values. */
#include "methods/dims/cuda/latent_span.h"

#include <cuda_fp16.h>

#include "kernels/cuda/mma.cuh"

namespace
{

enum { THREADS = 256 };
static_assert(THREADS == static_cast<int>(KVD_SPAN_PARTS), "a thread per partial sum");

/* Returns to all threads of a block the sum of their numbers x, added in a fixed order. */
__device__ float sum_of_threads(float x)
{
    __shared__ float of_warp[THREADS / 32];
    for (int i = 16; i; i /= 2)
        x += __shfl_xor_sync(~0u, x, i);
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int w = 0; w < THREADS / 32; w++)
        x += of_warp[w];
    return x;
}

/* Returns the sum of the partial sums of matrix blockIdx.y. */
__device__ __forceinline__ float total(const float *part)
{
    return sum_of_threads(part[blockIdx.y * KVD_SPAN_PARTS + threadIdx.x]);
}

__device__ __forceinline__ float widen(float x)
{
    return x;
}

__device__ __forceinline__ float widen(uint16_t x)
{
    return __uint_as_float(static_cast<uint32_t>(x) << 16);
}

/* Writes partial sums of the squared elements of each matrix in x [gridDim.y][rows][columns]. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    span_squares(const T *x, uint32_t rows, uint32_t columns, size_t ld, size_t stride, float *part)
{
    x += blockIdx.y * stride;
    float sum = 0;
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < rows * columns;
         i += KVD_SPAN_PARTS * THREADS) {
        const float e = widen(x[i / columns * ld + i % columns]);
        sum += e * e;
    }
    sum = sum_of_threads(sum);
    if (threadIdx.x == 0)
        part[blockIdx.y * KVD_SPAN_PARTS + blockIdx.x] = sum;
}

__device__ __forceinline__ void store(float x, float *to)
{
    *to = x;
}

__device__ __forceinline__ void store(float x, uint16_t *to)
{
    *to = kvd_bf16_bits(x);
}

__global__ void __launch_bounds__(THREADS)
    span_scale(const uint16_t *x, uint32_t rows, uint32_t columns, size_t ld, size_t stride,
               const float *part, uint16_t *to)
{
    const float square = total(part), scale = square > 0 ? 1 / sqrtf(square) : 0;
    x += blockIdx.y * stride;
    to += static_cast<size_t>(blockIdx.y) * rows * columns;
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < rows * columns;
         i += gridDim.x * THREADS)
        to[i] = kvd_bf16_bits(scale * widen(x[i / columns * ld + i % columns]));
}

/* Fills row i of a matrix with zeros and, in column i % columns, 1 or -1. A hash of i chooses the
 * sign. */
template <typename T>
__global__ void __launch_bounds__(THREADS) span_start(T *to, uint32_t rows, uint32_t columns)
{
    to += static_cast<size_t>(blockIdx.y) * rows * columns;
    for (uint32_t e = blockIdx.x * THREADS + threadIdx.x; e < rows * columns;
         e += gridDim.x * THREADS) {
        const uint32_t i = e % rows;
        uint32_t hash = (i + 1) * 0x9e3779b9u;
        hash = (hash ^ hash >> 15) * 0x85ebca6bu;
        store(e / rows != i % columns ? 0.0F : hash >> 31 ? -1.0F : 1.0F, to + e);
    }
}

__global__ void __launch_bounds__(THREADS)
    span_shift(float *y, const uint16_t *q, uint32_t n, const float *part, float root)
{
    const float shift = root * fmaxf(1 - total(part) - KVD_SPAN_NOISE, 0);
    y += static_cast<size_t>(blockIdx.y) * n;
    q += static_cast<size_t>(blockIdx.y) * n;
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS)
        y[i] -= shift * widen(q[i]);
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    span_polynomial(T *gram, const float *square, uint32_t n, const float *part,
                    const __grid_constant__ kvd_span_polynomial_of p)
{
    const float bound = part ? p.s * sqrtf(sqrtf(total(part))) : p.s, s = bound > 0 ? bound : 1,
                a = p.a / s, b = p.b / (s * s * s), c = p.c / (s * s * s) / (s * s);
    gram += static_cast<size_t>(blockIdx.y) * n * n;
    square += static_cast<size_t>(blockIdx.y) * n * n;
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < n * n; i += gridDim.x * THREADS)
        store(b * widen(gram[i]) + c * square[i] + (i / n == i % n ? a : 0), gram + i);
}

/* Splits float32 numbers y: replaces y by its leading bits, which tf32 represents exactly, and
 * writes the remainder to `low`. */
__global__ void __launch_bounds__(THREADS) span_split(float *y, float *low, uint32_t n)
{
    y += static_cast<size_t>(blockIdx.y) * n;
    low += static_cast<size_t>(blockIdx.y) * n;
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) {
        const float high = __uint_as_float(__float_as_uint(y[i]) & 0xffffe000u);
        low[i] = y[i] - high;
        y[i] = high;
    }
}

__global__ void __launch_bounds__(THREADS)
    span_round(const float *y, uint16_t *high, uint16_t *low, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) {
        const uint16_t x = kvd_bf16_bits(y[i]);
        high[i] = x;
        if (low)
            low[i] = kvd_bf16_bits(y[i] - widen(x));
    }
}

__global__ void __launch_bounds__(THREADS) span_sum(const float *part, float *sum)
{
    const float x = total(part);
    if (threadIdx.x == 0)
        sum[blockIdx.y] = x;
}

/* Converts the column-major matrix q [wide][width] to row-major bf16 [wide][rank]. Columns from
 * number `width` on are 0. */
__global__ void __launch_bounds__(THREADS)
    span_store(const float *q, uint32_t wide, uint32_t width, uint32_t rank, uint16_t *to)
{
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < wide * rank;
         i += gridDim.x * THREADS) {
        const uint32_t row = i % wide, column = i / wide;
        to[static_cast<size_t>(row) * rank + column] = kvd_bf16_bits(column < width ? q[i] : 0.0F);
    }
}

dim3 span_grid(size_t n, int32_t batch)
{
    const size_t ctas = (n + THREADS - 1) / THREADS;
    return dim3(static_cast<unsigned>(ctas < 1024 ? ctas : 1024), static_cast<unsigned>(batch));
}

bool span_bad(size_t n, int32_t batch)
{
    return !n || n >= static_cast<size_t>(1) << 31 || batch < 1 || batch > 65535;
}
} // namespace

cudaError_t kvd_span_squares(const void *x, bool bf16, kvd_span_shape m, float *part,
                             cudaStream_t stream)
{
    if (span_bad(static_cast<size_t>(m.rows) * m.columns, m.batch) || !x || !part)
        return cudaErrorInvalidValue;
    const dim3 grid(KVD_SPAN_PARTS, static_cast<unsigned>(m.batch));
    if (bf16)
        span_squares<<<grid, THREADS, 0, stream>>>(static_cast<const uint16_t *>(x), m.rows,
                                                   m.columns, m.ld, m.stride, part);
    else
        span_squares<<<grid, THREADS, 0, stream>>>(static_cast<const float *>(x), m.rows, m.columns,
                                                   m.ld, m.stride, part);
    return cudaGetLastError();
}

cudaError_t kvd_span_scale(const void *x, kvd_span_shape m, const float *part, void *to,
                           cudaStream_t stream)
{
    const size_t n = static_cast<size_t>(m.rows) * m.columns;
    if (span_bad(n, m.batch) || !x || !part || !to)
        return cudaErrorInvalidValue;
    span_scale<<<span_grid(n, m.batch), THREADS, 0, stream>>>(static_cast<const uint16_t *>(x),
                                                              m.rows, m.columns, m.ld, m.stride,
                                                              part, static_cast<uint16_t *>(to));
    return cudaGetLastError();
}

cudaError_t kvd_span_start(void *to, bool bf16, size_t rows, size_t columns, int32_t batch,
                           cudaStream_t stream)
{
    if (span_bad(rows * columns, batch) || !to)
        return cudaErrorInvalidValue;
    const dim3 grid = span_grid(rows * columns, batch);
    const uint32_t m = static_cast<uint32_t>(rows), n = static_cast<uint32_t>(columns);
    if (bf16)
        span_start<<<grid, THREADS, 0, stream>>>(static_cast<uint16_t *>(to), m, n);
    else
        span_start<<<grid, THREADS, 0, stream>>>(static_cast<float *>(to), m, n);
    return cudaGetLastError();
}

cudaError_t kvd_span_shift(float *y, const void *q, size_t n, int32_t batch, const float *part,
                           float root, cudaStream_t stream)
{
    if (span_bad(n, batch) || !y || !q || !part)
        return cudaErrorInvalidValue;
    span_shift<<<span_grid(n, batch), THREADS, 0, stream>>>(y, static_cast<const uint16_t *>(q),
                                                            static_cast<uint32_t>(n), part, root);
    return cudaGetLastError();
}

cudaError_t kvd_span_polynomial(void *gram, bool bf16, const float *square, size_t n, int32_t batch,
                                const float *part, kvd_span_polynomial_of p, cudaStream_t stream)
{
    if (span_bad(n * n, batch) || !gram || !square)
        return cudaErrorInvalidValue;
    const dim3 grid = span_grid(n * n, batch);
    if (bf16)
        span_polynomial<<<grid, THREADS, 0, stream>>>(static_cast<uint16_t *>(gram), square,
                                                      static_cast<uint32_t>(n), part, p);
    else
        span_polynomial<<<grid, THREADS, 0, stream>>>(static_cast<float *>(gram), square,
                                                      static_cast<uint32_t>(n), part, p);
    return cudaGetLastError();
}

cudaError_t kvd_span_split(float *y, float *low, size_t n, int32_t batch, cudaStream_t stream)
{
    if (span_bad(n, batch) || !y || !low)
        return cudaErrorInvalidValue;
    span_split<<<span_grid(n, batch), THREADS, 0, stream>>>(y, low, static_cast<uint32_t>(n));
    return cudaGetLastError();
}

cudaError_t kvd_span_round(const float *y, void *high, void *low, size_t n, int32_t batch,
                           cudaStream_t stream)
{
    if (span_bad(n, batch) || !y || !high)
        return cudaErrorInvalidValue;
    const size_t all = n * static_cast<size_t>(batch);
    span_round<<<span_grid(all, 1), THREADS, 0, stream>>>(y, static_cast<uint16_t *>(high),
                                                          static_cast<uint16_t *>(low), all);
    return cudaGetLastError();
}

cudaError_t kvd_span_sum(const float *part, float *sum, int32_t batch, cudaStream_t stream)
{
    if (span_bad(1, batch) || !part || !sum)
        return cudaErrorInvalidValue;
    span_sum<<<span_grid(1, batch), THREADS, 0, stream>>>(part, sum);
    return cudaGetLastError();
}

cudaError_t kvd_span_store(const float *q, size_t wide, size_t width, size_t rank, void *to,
                           cudaStream_t stream)
{
    if (span_bad(wide * rank, 1) || width > rank || !q || !to)
        return cudaErrorInvalidValue;
    span_store<<<span_grid(wide * rank, 1), THREADS, 0, stream>>>(
        q, static_cast<uint32_t>(wide), static_cast<uint32_t>(width), static_cast<uint32_t>(rank),
        static_cast<uint16_t *>(to));
    return cudaGetLastError();
}
