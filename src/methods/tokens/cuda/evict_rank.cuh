/* Device functions that several kernels for dropping tokens use: ranking tokens, copying K and V,
 * and multiplying queries by keys with mma.sync. Functions with a parameter THREADS must be called
 * by all threads of a CTA. */
#ifndef KVD_METHODS_TOKENS_CUDA_EVICT_RANK_CUH
#define KVD_METHODS_TOKENS_CUDA_EVICT_RANK_CUH

#include "kernels/cuda/mma.cuh"
#include "methods/tokens/cuda/evict.h"

static __device__ __forceinline__ int evict_kept_of(const kvd_evict_budget &b, int n)
{
    const int newest = min(n, b.keep_new);
    return newest + min(n - newest, b.keep_old);
}

/* Returns a sort key that orders tokens by score or, if scores are equal, by token index. */
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
            s += a.mass[(size_t)h * a.n_q8 + at + t];
        sum[t] = s;
    }
    __syncthreads();
}

/* Sets each to[t] to the sum of the scores x of `width` adjacent tokens with token t in the
 * middle. */
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

/* Returns the sum of x over all threads of the CTA. Every thread gets it. */
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

/* Returns the index in a cache page at which 8 dimensions of token t begin. The first is dimension
 * 8 * block. */
static __device__ __forceinline__ size_t piece(int t, int block, int d)
{
    return (size_t)(t % KVD_PAGE_TOKENS / 8 * 8 * d + block * 64 + t % 8 * 8);
}

static __device__ __forceinline__ float wide(uint16_t x)
{
    return __uint_as_float((uint32_t)x << 16);
}

static __device__ __forceinline__ void unpack8(const uint4 &w, float *x)
{
    const uint32_t word[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int e = 0; e < 8; e++)
        x[e] = __uint_as_float(e % 2 ? word[e / 2] & 0xffff0000u : word[e / 2] << 16);
}

static __device__ __forceinline__ size_t head_at(const kvd_evict_state &s, int n_kv_heads, int slot,
                                                 int g)
{
    return ((size_t)slot * s.n_layers + s.layer) * n_kv_heads + g;
}

/* Returns the index at which a KV head begins in the arrays of kvd_evict_state. */
static __device__ __forceinline__ size_t state_at(const kvd_evict_state &s, int n_kv_heads,
                                                  int slot, int g)
{
    return head_at(s, n_kv_heads, slot, g) * s.room;
}

static __device__ __forceinline__ const uint16_t *queries_of(const kvd_evict_prompts_args &a, int h,
                                                             int b, int d)
{
    return static_cast<const uint16_t *>(a.q) + (size_t)a.map.q_offset[h] * a.n_q8 +
           (size_t)a.q_start[b] * d;
}

static __device__ __forceinline__ float over_warp(float x)
{
    for (int step = 1; step < 32; step *= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* Multiplies this thread's key by ROWS queries. Keys and queries are in shared memory. */
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

/* Copies K and V of tokens first .. first + 63 of a list to one page. Fills the rest of the last
 * group of 8 tokens with zeros. at(i) must return the i-th token of the list, keys(t) the address
 * of token t's K. */
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

/* Returns the index in the page pool at which 8 dimensions of token t begin. The first is dimension
 * 8 * block. page: page table of the request. */
static __device__ __forceinline__ size_t piece(const int32_t *page, int page_elements, int t,
                                               int block, int d)
{
    return (size_t)page[t / KVD_PAGE_TOKENS] * page_elements +
           (t % KVD_PAGE_TOKENS / 8 * 8 * d + block * 64 + t % 8 * 8);
}

/* Location of K, of V or of latent vectors of one KV head in the cache pages. */
struct page_rows {
    uint16_t *x; /* the head's first element in page 0 */
    const int32_t *page;
    size_t page_elements;
    int d;
    int octet; /* elements from 8 tokens to the next 8 */
    int block; /* elements from 8 dimensions to the next 8 */

    /* Returns the address of dimensions 8 * b to 8 * b + 7 of token t. */
    __device__ __forceinline__ uint4 *at(int t, int b) const
    {
        return reinterpret_cast<uint4 *>(x + (size_t)page[t / KVD_PAGE_TOKENS] * page_elements +
                                         (t % KVD_PAGE_TOKENS / 8 * octet + b * block + t % 8 * 8));
    }
};

/* Returns where the cache stores K (side = 0) or V (side = 1) of KV head g, or its latent
 * vectors. */
template <typename ARGS>
static __device__ __forceinline__ page_rows rows_of(const ARGS &a, int b, int g, int side)
{
    const int32_t *const page = a.page_table + (size_t)b * a.max_pages;
    if (a.latents.pool) {
        const kvd_latent_head &h = a.latents.head[g];
        return {static_cast<uint16_t *>(a.latents.pool) + h.latent[side],
                page,
                a.latents.page,
                h.rank[side],
                64,
                8 * KVD_PAGE_TOKENS};
    }
    const int d_k = a.map.d_qk[g], d = side ? a.map.d_v[g] : d_k;
    return {static_cast<uint16_t *>(a.pool) + a.map.kv_offset[g] +
                (side ? KVD_PAGE_TOKENS * d_k : 0),
            page,
            (size_t)a.map.page_elements,
            d,
            8 * d,
            64};
}

/* Returns a reference to a token's position in the sequence, as stored in the cache. */
template <typename ARGS>
static __device__ __forceinline__ int32_t &position_at(const ARGS &a, int b, int g, int t)
{
    uint16_t *const page =
        static_cast<uint16_t *>(a.latents.pool) +
        (size_t)a.page_table[(size_t)b * a.max_pages + t / KVD_PAGE_TOKENS] * a.latents.page;
    return reinterpret_cast<int32_t *>(page)[kvd_latent_position(a.latents.positions, g, t)];
}

/* Moves the kept tokens of a KV head to the front of its pages. Each CTA moves 32 dimensions. */
template <int THREADS, int RUN>
static __device__ __forceinline__ void compact_rows(const page_rows &x, const int32_t *kept, int m,
                                                    int slice)
{
    enum { BLOCKS = 4, ROWS = THREADS / BLOCKS, EACH = RUN / ROWS };
    const int block = slice * BLOCKS + (int)threadIdx.x % BLOCKS, end = (m + 7) / 8 * 8;
    const bool there = block * 8 < x.d;
    for (int first = 0; first < end; first += RUN) {
        uint4 held[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int i = first + e * ROWS + (int)threadIdx.x / BLOCKS;
            held[e] = make_uint4(0, 0, 0, 0);
            if (there && i < m)
                held[e] = *x.at(kept[i], block);
        }
        __syncthreads();
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int i = first + e * ROWS + (int)threadIdx.x / BLOCKS;
            if (there && i < end)
                *x.at(i, block) = held[e];
        }
        __syncthreads();
    }
}

/* Returns the number of pieces in which a token of KV head g is moved. A piece is 16 bytes of K, V
 * or a latent vector. Tokens with latent vectors have one more piece, their position. */
static __device__ __forceinline__ int pieces_of(const kvd_evict_steps_args &a, int g)
{
    if (!a.latents.pool)
        return (a.map.d_qk[g] + a.map.d_v[g]) / 8;
    const kvd_latent_head &h = a.latents.head[g];
    return (h.rank[0] + h.rank[1]) / 8 + 1;
}

/* Copies piece c of the token at index `newest` to index `place`. A piece is 16 bytes of K, V or a
 * latent vector, or the token's position. */
static __device__ __forceinline__ void move_piece(const kvd_evict_steps_args &a, int b, int g,
                                                  int newest, int place, int c)
{
    if (c >= pieces_of(a, g))
        return;
    if (a.latents.pool && c + 1 == pieces_of(a, g)) {
        position_at(a, b, g, place) = position_at(a, b, g, newest);
        return;
    }
    const page_rows k = rows_of(a, b, g, 0), v = rows_of(a, b, g, 1);
    if (c < k.d / 8)
        *k.at(place, c) = *k.at(newest, c);
    else
        *v.at(place, c - k.d / 8) = *v.at(newest, c - k.d / 8);
}

static constexpr float LOG2E = 1.4426950408889634f;

/* Arguments of the kernels that score tokens by attention. */
struct score_params {
    kvd_evict_prompts_args a;
    /* Factor by which products q k are multiplied: scale * log2(e) / temperature. */
    float factor;
    /* Factor by which Gumbel noise is multiplied: log2(e) / temperature, or 0 if there is no
     * noise. */
    float noise;
    float lse_factor; /* factor of lse: log2(e), or 1 for base-2 logarithms */
};

static inline score_params score_params_of(const kvd_evict_prompts_args *a)
{
    const bool tempered = a->rule.tau0 > 0;
    const float inverse = tempered ? LOG2E / a->rule.tau0 : LOG2E;
    return {*a, a->map.scale * inverse, tempered ? inverse : 0, tempered ? 1 : LOG2E};
}

static inline bool score_args_bad(const kvd_evict_prompts_args *a)
{
    return a->batch < 1 || a->batch > 65535 || a->longest < 1 || !a->lse || !a->mass;
}

/* Queries of a KV head in registers, in the layout that mma.sync needs: 8 * HALVES query heads, up
 * to 32 * BLOCKS dimensions. */
template <int HALVES, int BLOCKS> struct step_queries {
    uint4 q[HALVES][BLOCKS];

    /* Loads d numbers of each query head. The numbers of head h begin at row + offset[h]. */
    __device__ __forceinline__ step_queries(const uint16_t *row, const int32_t *offset, int group,
                                            int d)
    {
        const int lane = (int)threadIdx.x % 32;
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int k = 0; k < BLOCKS; k++) {
                const int j = 8 * h + lane / 4, at = (4 * k + lane % 4) * 8;
                q[h][k] = make_uint4(0, 0, 0, 0);
                if (j < group && at < d)
                    q[h][k] = *reinterpret_cast<const uint4 *>(row + offset[j] + at);
            }
    }
};

/* Multiplies the queries by 16 keys with d dimensions. `acc` has the register layout of
 * mma.sync. */
template <int HALVES, int BLOCKS>
static __device__ __forceinline__ void step_products(const uint16_t *low, const uint16_t *high,
                                                     int d, const step_queries<HALVES, BLOCKS> &q,
                                                     float (&acc)[HALVES][4])
{
    const int quad = (int)threadIdx.x % 4;
    uint4 lo[BLOCKS], hi[BLOCKS];
#pragma unroll
    for (int k = 0; k < BLOCKS; k++) {
        lo[k] = hi[k] = make_uint4(0, 0, 0, 0);
        if ((4 * k + quad) * 8 < d) {
            lo[k] = *reinterpret_cast<const uint4 *>(low + k * 256);
            hi[k] = *reinterpret_cast<const uint4 *>(high + k * 256);
        }
    }
#pragma unroll
    for (int h = 0; h < HALVES; h++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            acc[h][c] = 0;
#pragma unroll
    for (int k = 0; k < BLOCKS; k++) {
        const uint32_t front[4] = {lo[k].x, hi[k].x, lo[k].y, hi[k].y},
                       back[4] = {lo[k].z, hi[k].z, lo[k].w, hi[k].w};
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            mma_in_order<true>(acc[h], front, q.q[h][k].x, q.q[h][k].y);
            mma_in_order<true>(acc[h], back, q.q[h][k].z, q.q[h][k].w);
        }
    }
}

/* Multiplies 32 vectors in registers by 16 vectors in shared memory: queries by keys, or keys by
 * queries. */
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
                    mma_in_order<true>(acc[0][0], a[0][k + step], b[2 * step], b[2 * step + 1]);
                    mma_in_order<true>(acc[0][1], a[1][k + step], b[2 * step], b[2 * step + 1]);
                    mma_in_order<true>(acc[1][0], a[0][k + step], c[2 * step], c[2 * step + 1]);
                    mma_in_order<true>(acc[1][1], a[1][k + step], c[2 * step], c[2 * step + 1]);
                }
        }
}

#endif
