/* Device functions that several kernels of method leankv use. */
#ifndef KVD_METHODS_TOKENS_CUDA_LEANKV_CUH
#define KVD_METHODS_TOKENS_CUDA_LEANKV_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "methods/tokens/cuda/leankv.h"

namespace leankv
{

/* Returns the index, among all KV heads of the pool, of head g in a layer of a request. Returns -1
 * if `slot` belongs to no request. */
__device__ __forceinline__ int head_of(const kvd_leankv_pool &p, int slot, int layer, int g)
{
    return slot < 0 || slot >= p.n_slots ? -1 : (slot * p.n_layers + layer) * p.n_kv_heads + g;
}

struct entry {
    char *page;
    int at;
};

/* Returns the page that has the i-th token at precision `level` of a KV head, and the token's index
 * in that page. */
__device__ __forceinline__ entry entry_of(const kvd_leankv_pool &p, const int32_t *table, int level,
                                          int i)
{
    const int tokens = p.layout.level[level].tokens, k = i / tokens;
    const int32_t id = table[level == KVD_LEANKV_HIGH ? k : p.table_length - 1 - k];
    return entry{p.page + (size_t)id * p.layout.page_bytes, i - k * tokens};
}

__device__ __forceinline__ float *score_of(const kvd_leankv_precision &l, const entry &e)
{
    return reinterpret_cast<float *>(e.page + l.score) + e.at;
}

__device__ __forceinline__ int32_t *position_of(const kvd_leankv_precision &l, const entry &e)
{
    return reinterpret_cast<int32_t *>(e.page + l.position) + e.at;
}

__device__ __forceinline__ uint32_t *keys_of(const kvd_leankv_layout &y,
                                             const kvd_leankv_precision &l, const entry &e)
{
    return reinterpret_cast<uint32_t *>(e.page + e.at / KVD_LEANKV_TILE *
                                                     (KVD_LEANKV_TILE * y.d * l.k_bits / 8));
}

__device__ __forceinline__ uint32_t *values_of(const kvd_leankv_layout &y,
                                               const kvd_leankv_precision &l, const entry &e)
{
    return reinterpret_cast<uint32_t *>(
        e.page + l.v + e.at / KVD_LEANKV_TILE * (KVD_LEANKV_TILE * y.d * l.v_bits / 8));
}

__device__ __forceinline__ __half2 *key_meta_of(const kvd_leankv_precision &l, const entry &e)
{
    return reinterpret_cast<__half2 *>(e.page + l.k_meta) + e.at;
}

__device__ __forceinline__ __half2 *value_meta_of(const kvd_leankv_precision &l, const entry &e)
{
    return reinterpret_cast<__half2 *>(e.page + l.v_meta) + e.at;
}

/* Returns the step and the zero point with which the vector x is quantised. Divides exactly, so
 * that results equal those of the CPU. */
template <int N> __device__ __forceinline__ __half2 scale_of(const float (&x)[N], int bits)
{
    float lo = x[0], hi = x[0];
#pragma unroll
    for (int i = 1; i < N; i++) {
        lo = fminf(lo, x[i]);
        hi = fmaxf(hi, x[i]);
    }
#pragma unroll
    for (int step = 16; step; step /= 2) {
        lo = fminf(lo, __shfl_xor_sync(~0u, lo, step));
        hi = fmaxf(hi, __shfl_xor_sync(~0u, hi, step));
    }
    const float top = (float)((1 << bits) - 1);
    return __halves2half2(__float2half_rn(__fdiv_rn(hi - lo, top)), __float2half_rn(lo));
}

/* Returns the quantised value of x, an integer of `bits` bits. Clamps it, because a step that was
 * rounded down could make it too large. */
__device__ __forceinline__ uint32_t code_of(float x, __half2 scale, int bits)
{
    const float step = __low2float(scale), zero = __high2float(scale),
                top = (float)((1 << bits) - 1);
    const float q = step > 0 ? rintf(__fdiv_rn(x - zero, step)) : 0.0f;
    return (uint32_t)fminf(fmaxf(q, 0.0f), top);
}

/* Loads K or V of token r of a page. Each lane gets the dimensions lane, lane + 32, ... */
template <int N>
__device__ __forceinline__ void load_row(const __nv_bfloat16 *from, int r, int lane, float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int f = lane + 32 * i;
        x[i] = __bfloat162float(from[r / 8 * 8 * (32 * N) + f / 8 * 64 + r % 8 * 8 + f % 8]);
    }
}

/* Returns the sum of x over the threads before this one. *all gets the sum over all threads of the
 * CTA, which has WARPS warps. */
template <int WARPS> __device__ int scan(int x, int *all)
{
    __shared__ int sum[WARPS];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int upto = x;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(~0u, upto, step);
        upto += lane >= step ? below : 0;
    }
    __syncthreads(); /* all threads must have read the previous call's sums */
    if (lane == 31)
        sum[warp] = upto;
    __syncthreads();
    int before = 0, total = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        before += w < warp ? sum[w] : 0;
        total += sum[w];
    }
    *all = total;
    return before + upto - x;
}

/* Replaces each x[i] by its sum over the threads of the CTA. The order of additions is fixed, so
 * that results are reproducible. */
template <int WARPS, int N> __device__ void sums(double (&x)[N])
{
    __shared__ double part[WARPS][N];
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int step = 16; step; step /= 2)
            x[i] += __shfl_xor_sync(~0u, x[i], step);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        for (int i = 0; i < N; i++)
            part[threadIdx.x / 32][i] = x[i];
    __syncthreads();
    for (int i = 0; i < N; i++) {
        x[i] = 0;
        for (int w = 0; w < WARPS; w++)
            x[i] += part[w][i];
    }
}

/* Returns a 32-bit word of the quantised key of token `row`. at: index of the word in a lane's part
 * of the key. c: index of the lane, modulo 4. */
template <int F>
__device__ __forceinline__ uint32_t key_word(const uint8_t (*code)[F], int bits, int row, int c,
                                             int at)
{
    const int steps = 8 / bits;
    uint32_t word = 0;
    for (int s = 0; s < steps; s++)
        for (int e = 0; e < 4; e++) {
            const int feature = 16 * (at * steps + s) + 4 * c + e;
            word |= (uint32_t)code[row][feature] << kvd_leankv_key_place(F, bits, 0, feature).shift;
        }
    return word;
}

/* Returns how many dimensions of V are in 32-bit word w of a lane. Sets *first to the smallest of
 * these dimensions, which are 8 apart. */
__device__ __forceinline__ int value_features(int bits, int lane, int w, int *first)
{
    *first = (bits == 8 ? 8 * w : bits == 4 ? 16 * w : 32 * w) + lane / 4;
    return 8 / bits;
}

/* Writes the quantised key of a token to row r of a tile of 16 tokens. One warp must call it. */
template <int F>
__device__ void put_key(uint32_t *tile, const uint8_t (*code)[F], int bits, int r, int lane)
{
    const int per = F * bits / 128;
    for (int i = lane; i < 4 * per; i += 32)
        tile[kvd_leankv_word(2 * per, r % 8 * 4 + i % 4, r / 8 * per + i / 4)] =
            key_word<F>(code, bits, 0, i % 4, i / 4);
}

template <int F>
__device__ void put_value(uint32_t *tile, const uint8_t (*code)[F], int bits, int r, int lane)
{
    const int words = F * bits / 64;
    for (int i = lane; i < 8 * words; i += 32) {
        const int owner = i % 8 * 4 + r % 8 / 2;
        uint32_t *const at = tile + kvd_leankv_word(words, owner, i / 8);
        uint32_t word = *at;
        int first;
        const int n = value_features(bits, owner, i / 8, &first);
        for (int k = 0; k < n; k++) {
            const int shift = kvd_leankv_value_place(F, bits, r, first + 8 * k).shift;
            word = (word & ~(((1u << bits) - 1) << shift)) | (uint32_t)code[0][first + 8 * k]
                                                                 << shift;
        }
        *at = word;
    }
}

/* Calls `run` with a type that has the head size d as a constant. Fails if kernels do not support
 * heads of d numbers. */
template <typename RUN> cudaError_t with_width(int d, const RUN &run)
{
    return d == 32    ? run(std::integral_constant<int, 32>())
           : d == 64  ? run(std::integral_constant<int, 64>())
           : d == 128 ? run(std::integral_constant<int, 128>())
                      : cudaErrorInvalidValue;
}

} // namespace leankv

#endif
