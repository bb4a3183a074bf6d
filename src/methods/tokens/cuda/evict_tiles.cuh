/*
 * Device functions on rows of K and V in pages: places of rows, copies, and products of 32 rows by
 * tiles of other rows with mma.sync.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_EVICT_TILES_CUH
#define KVD_METHODS_TOKENS_CUDA_EVICT_TILES_CUH

#include "kernels/cuda/mma.cuh"
#include "methods/tokens/cuda/evict.h"

/*
 * Returns the index of dimensions 8 block .. 8 block + 7 of token t. It counts from the first
 * element of K or V (of width d) in page 0.
 */
static __device__ __forceinline__ size_t piece(const int32_t *page, int page_elements, int t,
                                               int block, int d)
{
    return (size_t)page[t / KVD_PAGE_TOKENS] * (size_t)page_elements +
           (size_t)(t % KVD_PAGE_TOKENS / 8 * 8 * d + block * 64 + t % 8 * 8);
}

/* Copies the c-th 16 bytes of K and V of token `newest` of KV head g to token index `place`. */
static __device__ __forceinline__ void move_piece(const kvd_evict_steps_args &a, int g,
                                                  const int32_t *page, int newest, int place, int c)
{
    const int d_k = a.map.d_qk[g], d_v = a.map.d_v[g];
    if (c >= (d_k + d_v) / 8)
        return;
    const int d = c < d_k / 8 ? d_k : d_v, block = c < d_k / 8 ? c : c - d_k / 8;
    uint16_t *const x = static_cast<uint16_t *>(a.pool) + a.map.kv_offset[g] +
                        (c < d_k / 8 ? 0 : KVD_PAGE_TOKENS * d_k);
    const auto at = [&](int i) {
        return reinterpret_cast<uint4 *>(x + piece(page, a.map.page_elements, i, block, d));
    };
    *at(place) = *at(newest);
}

static __device__ __forceinline__ void copy16(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void copies_done()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/*
 * Multiplies the 32 rows in the fragments a [2][16 dimensions] by 16 rows of width d in shared
 * memory at `from` (of lane 0) plus 16 times the lane. acc[8 rows of `from`][16 rows of a]. Four
 * independent accumulator chains hide the latency of mma.sync.
 */
template <int STEPS>
static __device__ __forceinline__ void products(const uint32_t (&a)[2][STEPS][4], uint32_t from,
                                                int d, float (&acc)[2][2][4])
{
    const uint32_t next = from + 16u * (uint32_t)d;
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                acc[j][i][e] = 0;
#pragma unroll
    for (int k = 0; k < STEPS; k += 2)
        if (16 * k < d) {
            uint32_t b[4], c[4];
            ldmatrix(from + 256u * (uint32_t)k, b);
            ldmatrix(next + 256u * (uint32_t)k, c);
#pragma unroll
            for (int step = 0; step < 2; step++)
                if (16 * (k + step) < d) {
                    mma<true>(acc[0][0], a[0][k + step], b[2 * step], b[2 * step + 1]);
                    mma<true>(acc[0][1], a[1][k + step], b[2 * step], b[2 * step + 1]);
                    mma<true>(acc[1][0], a[0][k + step], c[2 * step], c[2 * step + 1]);
                    mma<true>(acc[1][1], a[1][k + step], c[2 * step], c[2 * step + 1]);
                }
        }
}

#endif
