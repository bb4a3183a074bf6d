/* Computes G += X^T X on double-precision tensor cores, for the lower triangle of G. */
#include "common/cuda/gram.h"

#include <cuda_bf16.h>
#include <stdint.h>

#include "common/cuda/launch.cuh"

namespace
{

enum {
    BLOCK = 32, /* rows and columns of the block of G that a warp computes */
    ENTRIES = BLOCK * BLOCK,
    ROWS = 16,
    MAX_WARPS = 10, /* largest number of warps of a CTA; enough for all blocks at d = 128 */
    MAX_CTAS = 1056,
    /* Number of CTAs (thread blocks) that run at once on an H200. */
    CTAS = 2 * 132,
    ADD_THREADS = 256
};

__host__ __device__ constexpr int pairs_of(int blocks)
{
    return blocks * (blocks + 1) / 2;
}

struct params {
    kvd_gram_args a;
    int n_heads, n_slices;
    size_t slice_rows;
};

__device__ __forceinline__ double widen(float x)
{
    return (double)x;
}

__device__ __forceinline__ double widen(__nv_bfloat16 x)
{
    return (double)__bfloat162float(x);
}

__device__ __forceinline__ void blocks_of(int p, int &high, int &low)
{
    high = 0;
    while (pairs_of(high + 1) <= p)
        high++;
    low = p - pairs_of(high);
}

/* Computes D += A B with D 16 x 8, A 16 x 4 and B 4 x 8 on tensor cores. */
__device__ __forceinline__ void dmma(double (&d)[4], const double (&a)[2], double b)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#pragma unroll
    for (int r = 0; r < 2; r++)
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                     : "+d"(d[2 * r]), "+d"(d[2 * r + 1])
                     : "d"(a[r]), "d"(b));
#else
    asm volatile(
        "mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(a[0]), "d"(a[1]), "d"(b));
#endif
}

/* Adds one 32 x 32 block of X^T X to `acc`, where X is the matrix of 16 rows in `tile`. PITCH:
 * distance between two rows in `tile`. */
template <int PITCH>
__device__ __forceinline__ void multiply(const double *tile, int high, int low, int lane,
                                         double (&acc)[2][4][4])
{
    const double *row = tile + (lane % 4) * PITCH + lane / 4;
#pragma unroll 1
    for (int k = 0; k < ROWS; k += 4, row += 4 * PITCH) {
        double a[2][2], b[4];
#pragma unroll
        for (int m = 0; m < 4; m++)
            a[m / 2][m % 2] = row[high * BLOCK + 8 * m];
#pragma unroll
        for (int n = 0; n < 4; n++)
            b[n] = row[low * BLOCK + 8 * n];
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int n = 0; n < 4; n++)
                dmma(acc[m][n], a[m], b[n]);
    }
}

/* Computes X^T X of one slice of X's rows, in blocks of 32 x 32 elements. Grid: x = slice, y =
 * head, z = group of blocks. */
template <typename T, int BLOCKS>
__global__ void __launch_bounds__(BLOCK *(pairs_of(BLOCKS) < MAX_WARPS ? pairs_of(BLOCKS)
                                                                       : (int)MAX_WARPS),
                                  BLOCKS <= 4 ? 2 : 1) gram_slices(const __grid_constant__ params p)
{
    constexpr int WARPS = pairs_of(BLOCKS) < MAX_WARPS ? pairs_of(BLOCKS) : (int)MAX_WARPS;
    constexpr int WIDTH = BLOCKS * BLOCK, PITCH = WIDTH + 4;
    constexpr int STEP = 32 * WARPS / WIDTH,
                  /* Number of elements of X that a thread loads for ROWS rows. */
        EACH = ROWS / STEP;
    static_assert(STEP >= 1 && ROWS % STEP == 0, "");
    /* Two buffers of rows of X, [2][ROWS][PITCH]. */
    extern __shared__ __align__(16) double tiles[];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int row = (int)threadIdx.x / WIDTH, dim = (int)threadIdx.x % WIDTH;

    int head = (int)blockIdx.y, part = 0;
    while (head >= p.a.part[part].n_heads)
        head -= p.a.part[part++].n_heads;
    const kvd_gram_part &src = p.a.part[part];
    const size_t first = blockIdx.x * p.slice_rows;
    const int n = first >= p.a.n_rows ? 0 : (int)min(p.slice_rows, p.a.n_rows - first);
    const size_t stride = src.row_stride;
    const T *x = static_cast<const T *>(src.x) + (size_t)head * src.head_stride +
                 (first + (size_t)row) * stride + (size_t)dim * src.dim_stride;

    T next[EACH];
    auto fetch = [&](int at) {
        const int left = row < STEP && dim < p.a.d ? n - at - row : 0;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            next[i] = i * STEP < left ? x[(size_t)(i * STEP) * stride] : T(0.f);
        x += ROWS * stride;
    };
    auto store = [&](double *tile) {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (row < STEP)
                tile[(row + i * STEP) * PITCH + dim] = widen(next[i]);
    };

    const int pair = (int)blockIdx.z * WARPS + warp;
    const bool mine = pair < pairs_of(BLOCKS);
    int high, low;
    blocks_of(mine ? pair : 0, high, low);
    double acc[2][4][4] = {};
    fetch(0);
    for (int at = 0, odd = 0; at < n; at += ROWS, odd ^= 1) {
        double *tile = tiles + odd * (ROWS * PITCH);
        store(tile);
        fetch(at + ROWS);
        __syncthreads();
        if (mine)
            multiply<PITCH>(tile, high, low, lane, acc);
    }
    if (!mine)
        return;
    double *to =
        p.a.scratch +
        (((size_t)blockIdx.x * gridDim.y + blockIdx.y) * pairs_of(BLOCKS) + (size_t)pair) * ENTRIES;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int c = 0; c < 4; c++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                *reinterpret_cast<double2 *>(to + (16 * m + 8 * r + lane / 4) * BLOCK + 8 * c +
                                             lane % 4 * 2) =
                    make_double2(acc[m][c][2 * r], acc[m][c][2 * r + 1]);
}

/* Adds to G the products X^T X of all slices of X's rows, in a fixed order. Grid: x = block of 32 x
 * 32 elements of G, y = head. */
__global__ void __launch_bounds__(ADD_THREADS) gram_add_slices(const __grid_constant__ params p)
{
    int head = (int)blockIdx.y, part = 0, high, low;
    while (head >= p.a.part[part].n_heads)
        head -= p.a.part[part++].n_heads;
    blocks_of((int)blockIdx.x, high, low);
    double *G = p.a.part[part].G + (size_t)head * (size_t)p.a.d * (size_t)p.a.d;
    const double *from = p.a.scratch + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * ENTRIES;
    const size_t step = (size_t)gridDim.y * gridDim.x * ENTRIES;
    for (int e = (int)threadIdx.x; e < ENTRIES; e += ADD_THREADS) {
        const int i = high * BLOCK + e / BLOCK, j = low * BLOCK + e % BLOCK;
        if (i >= p.a.d || j > i)
            continue;
        double sum = from[e];
        for (int s = 1; s < p.n_slices; s++)
            sum += from[(size_t)s * step + (size_t)e];
        G[(size_t)i * (size_t)p.a.d + (size_t)j] += sum;
    }
}

/* Copies the lower triangle of each matrix to its upper triangle. Grid: x = block of 32 x 32
 * elements, y = matrix. */
__global__ void __launch_bounds__(ADD_THREADS) mirror(double *G, int d)
{
    __shared__ double tile[BLOCK][BLOCK + 1];
    int high, low;
    blocks_of((int)blockIdx.x, high, low);
    G += (size_t)blockIdx.y * (size_t)d * (size_t)d;
    for (int e = (int)threadIdx.x; e < ENTRIES; e += ADD_THREADS) {
        const int i = high * BLOCK + e / BLOCK, j = low * BLOCK + e % BLOCK;
        if (i < d && j <= i)
            tile[e / BLOCK][e % BLOCK] = G[(size_t)i * (size_t)d + (size_t)j];
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < ENTRIES; e += ADD_THREADS) {
        const int j = low * BLOCK + e / BLOCK, i = high * BLOCK + e % BLOCK;
        if (i < d && j < i)
            G[(size_t)j * (size_t)d + (size_t)i] = tile[e % BLOCK][e / BLOCK];
    }
}

int blocks_for(int d)
{
    const int blocks = (d + BLOCK - 1) / BLOCK;
    return blocks <= 4 ? blocks : 8;
}

int most_slices(int n_heads)
{
    return n_heads < MAX_CTAS ? MAX_CTAS / n_heads : 1;
}

/* To compute X^T X, the rows of X are divided into slices. Returns the number of slices for which
 * the estimated time is shortest. */
int choose_slices(size_t n_rows, int n_heads, int blocks)
{
    const double extra = 0.045 * n_heads * pairs_of(blocks);
    double least = 0;
    int best = 0;
    for (int s = 1; s <= most_slices(n_heads); s++) {
        const size_t waves = ((size_t)n_heads * (size_t)s + CTAS - 1) / CTAS,
                     rows = (n_rows + (size_t)s - 1) / (size_t)s;
        const double cost = (double)(waves * ((rows + ROWS - 1) / ROWS * ROWS)) + extra * s;
        if (!best || cost < least) {
            best = s;
            least = cost;
        }
    }
    return best;
}

template <typename T, int BLOCKS> cudaError_t launch(const params &p, cudaStream_t stream)
{
    constexpr int PAIRS = pairs_of(BLOCKS), WARPS = PAIRS < MAX_WARPS ? PAIRS : (int)MAX_WARPS;
    const size_t bytes = 2 * ROWS * (BLOCKS * BLOCK + 4) * sizeof(double);
    const dim3 grid((unsigned)p.n_slices, (unsigned)p.n_heads, (PAIRS + WARPS - 1) / WARPS);
    const cudaError_t e = kvd_launch(gram_slices<T, BLOCKS>, grid, 32 * WARPS, bytes, stream, p);
    if (e != cudaSuccess)
        return e;
    gram_add_slices<<<dim3(PAIRS, (unsigned)p.n_heads), ADD_THREADS, 0, stream>>>(p);
    return cudaGetLastError();
}

template <typename T> cudaError_t choose(const params &p, cudaStream_t stream)
{
    switch (blocks_for(p.a.d)) {
    case 1:
        return launch<T, 1>(p, stream);
    case 2:
        return launch<T, 2>(p, stream);
    case 3:
        return launch<T, 3>(p, stream);
    case 4:
        return launch<T, 4>(p, stream);
    default:
        return launch<T, 8>(p, stream);
    }
}

} // namespace

extern "C" size_t kvd_gram_scratch_bytes(int n_heads, int d)
{
    return (size_t)most_slices(n_heads) * (size_t)n_heads * (size_t)pairs_of(blocks_for(d)) *
           ENTRIES * sizeof(double);
}

extern "C" cudaError_t kvd_gram_add_rows(const kvd_gram_args *args, cudaStream_t stream)
{
    if (args->d < 1 || args->d > KVD_GRAM_MAX_D || args->n_parts < 1 ||
        args->n_parts > KVD_GRAM_PARTS)
        return cudaErrorInvalidValue;
    params p = {*args, 0, 0, 0};
    for (int i = 0; i < args->n_parts; i++)
        p.n_heads += args->part[i].n_heads;
    if (p.n_heads < 1 || p.n_heads > 65535)
        return cudaErrorInvalidValue;
    if (!args->n_rows)
        return cudaSuccess;
    p.n_slices = choose_slices(args->n_rows, p.n_heads, blocks_for(args->d));
    p.slice_rows = (args->n_rows + (size_t)p.n_slices - 1) / (size_t)p.n_slices;
    p.slice_rows = (p.slice_rows + ROWS - 1) / ROWS * ROWS;
    return args->bf16 ? choose<__nv_bfloat16>(p, stream) : choose<float>(p, stream);
}

extern "C" cudaError_t kvd_gram_mirror(double *G, size_t n, int d, cudaStream_t stream)
{
    const unsigned pairs = (unsigned)pairs_of((d + BLOCK - 1) / BLOCK);
    for (size_t at = 0; at < n; at += 65535) { /* largest y extent of a CUDA grid */
        const size_t m = n - at < 65535 ? n - at : 65535;
        mirror<<<dim3(pairs, (unsigned)m), ADD_THREADS, 0, stream>>>(G + at * (size_t)d * (size_t)d,
                                                                     d);
        const cudaError_t e = cudaGetLastError();
        if (e != cudaSuccess)
            return e;
    }
    return cudaSuccess;
}
