/*
 * Device functions that rank tokens and copy their rows of K and V. All THREADS threads of a CTA
 * must call those that have the parameter THREADS.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_EVICT_RANK_CUH
#define KVD_METHODS_TOKENS_CUDA_EVICT_RANK_CUH

#include "methods/tokens/cuda/evict.h"

/* Returns the number of tokens that stay of a prompt of n tokens. */
static __device__ __forceinline__ int evict_kept_of(const kvd_evict_budget &b, int n)
{
    const int newest = min(n, b.keep_new);
    return newest + min(n - newest, b.keep_old);
}

/* Returns a sort key that rises with the score and, among equal scores, with the token index t. */
static __device__ __forceinline__ unsigned long long key_of(float score, int t)
{
    const uint32_t bits = __float_as_uint(score), rising = bits >> 31 ? ~bits : bits | 1u << 31;
    return (unsigned long long)rising << 32 | (unsigned)t;
}

template <int THREADS>
static __device__ void sum_heads(const kvd_evict_prompts_args &a, int from, int to, size_t at,
                                 int n, float *sum)
{
    for (int t = (int)threadIdx.x; t < n; t += THREADS) {
        float s = 0;
        for (int h = from; h < to; h++)
            s += a.mass[(size_t)h * (size_t)a.n_q8 + at + (size_t)t];
        sum[t] = s;
    }
    __syncthreads();
}

/* Writes to to[t] the sum of the scores of the `width` tokens centred on token t. */
template <int THREADS> static __device__ void smooth(const float *x, int n, int width, float *to)
{
    for (int t = (int)threadIdx.x; t < n; t += THREADS) {
        float s = 0;
        for (int i = max(0, t - width / 2); i < min(n, t + width / 2 + 1); i++)
            s += x[i];
        to[t] = s;
    }
    __syncthreads();
}

/* Returns the sum of x over all threads of the CTA, in every thread. */
template <int THREADS> static __device__ double sum_over(double x)
{
    __shared__ double part[THREADS];
    __syncthreads();
    part[threadIdx.x] = x;
    for (int step = THREADS / 2; step > 0; step /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < step)
            part[threadIdx.x] += part[threadIdx.x + (unsigned)step];
    }
    __syncthreads();
    return part[0];
}

/*
 * Returns the index of dimensions 8 block .. 8 block + 7 of token t in K or V (of width d) of a
 * page.
 */
static __device__ __forceinline__ size_t piece(int t, int block, int d)
{
    return (size_t)(t % KVD_PAGE_TOKENS / 8 * 8 * d + block * 64 + t % 8 * 8);
}

/* Converts a bf16 number. */
static __device__ __forceinline__ float wide(uint16_t x)
{
    return __uint_as_float((uint32_t)x << 16);
}

static __device__ __forceinline__ float over_warp(float x)
{
    for (int step = 1; step < 32; step *= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/*
 * Writes the products of the thread's key with ROWS queries. Both have d dimensions, and are in
 * shared memory with one row per dimension.
 */
template <int KEYS, int ROWS>
static __device__ __forceinline__ void
multiply(const uint16_t (*key)[KEYS], const float (*query)[ROWS], int d, float (&product)[ROWS])
{
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        product[r] = 0;
    for (int c = 0; c < d; c++) {
        const float x = wide(key[c][threadIdx.x]);
#pragma unroll
        for (int r = 0; r < ROWS; r += 4) {
            const float4 y = *reinterpret_cast<const float4 *>(&query[c][r]);
            product[r] = fmaf(x, y.x, product[r]);
            product[r + 1] = fmaf(x, y.y, product[r + 1]);
            product[r + 2] = fmaf(x, y.z, product[r + 2]);
            product[r + 3] = fmaf(x, y.w, product[r + 3]);
        }
    }
}

/*
 * Copies up to 64 rows of K (width d_k) and V (width d_v) to the page `to` of one KV head: those of
 * the tokens at places first .. m - 1 of a list of m tokens. The last group of 8 places is filled
 * up with zeros. at(i) returns the number of the token at place i, and keys(t) the address of K of
 * the KV head in the page of token t. All THREADS threads of the CTA must call it.
 */
template <int THREADS, typename TOKEN, typename KEYS>
static __device__ __forceinline__ void copy_page(uint16_t *to, int d_k, int d_v, int first, int m,
                                                 const TOKEN &at, const KEYS &keys)
{
    const int groups = (min(m - first, KVD_PAGE_TOKENS) + 7) / 8;
    for (int side = 0; side < 2; side++) {
        const int d = side ? d_v : d_k, after = side ? KVD_PAGE_TOKENS * d_k : 0;
        for (int c = (int)threadIdx.x; c < groups * d; c += THREADS) {
            const int i = first + c / d * 8 + c % 8, block = c % d / 8;
            uint4 x = make_uint4(0, 0, 0, 0);
            if (i < m) {
                const int t = at(i);
                x = *reinterpret_cast<const uint4 *>(keys(t) + after + piece(t, block, d));
            }
            *reinterpret_cast<uint4 *>(to + after + 8 * c) = x;
        }
    }
}

#endif
