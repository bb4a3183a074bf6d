/* Kernels that merge K and V of two adjacent layers, and restore them for attention. */
#include "methods/layers/cuda/merged.h"

#include "kernels/cuda/mma.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32 };

/* Mark of a token whose vectors in two layers are not merged: two bf16 norms of -1. */
constexpr uint32_t APART = 0xbf80bf80u;

__device__ __forceinline__ size_t page_elements(const kvd_merged_args &a)
{
    return static_cast<size_t>(2 * a.n_kv_heads * KVD_PAGE_TOKENS) * a.d_head;
}

__device__ __forceinline__ size_t page_of(const kvd_merged_args &a, int b, int p)
{
    return static_cast<size_t>(__ldg(a.page_table + static_cast<size_t>(b) * a.max_pages + p));
}

/* Returns the index, in the pool of bf16 pages, of page p of request b. */
__device__ __forceinline__ size_t rows_page_of(const kvd_merged_args &a, int b, int p)
{
    return static_cast<size_t>(__ldg(a.rows_table + static_cast<size_t>(b) * a.max_pages + p));
}

/* Returns a page's norms of KV head v / 2: of K for even v, of V for odd v. Each 32-bit word has a
 * token's bf16 norms in two merged layers. */
__device__ __forceinline__ uint32_t *lengths_of(const kvd_merged_args &a, size_t page, int v)
{
    return reinterpret_cast<uint32_t *>(a.length) +
           (page * (2 * a.n_kv_heads) + v) * KVD_PAGE_TOKENS;
}

__device__ __forceinline__ uint4 load(const uint16_t *from)
{
    return *reinterpret_cast<const uint4 *>(from);
}

__device__ __forceinline__ void store(uint16_t *to, uint4 x)
{
    *reinterpret_cast<uint4 *>(to) = x;
}

/* Eight tokens of K or V of one KV head, which one warp reads. */
struct octet {
    /* - page: index of the page in the compressed cache
     * - at: index of this lane's first element in the compressed cache
     * - at_rows: index of the same element in the uncompressed cache, which attention reads */
    size_t page, at, at_rows;
    int token;
    int lane, n_runs;
};

__device__ __forceinline__ octet octet_of(const kvd_merged_args &a, int b, int v, int o)
{
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const size_t page = page_of(a, b, o / 8), rows = rows_page_of(a, b, o / 8);
    const size_t in = static_cast<size_t>(v * KVD_PAGE_TOKENS) * a.d_head +
                      static_cast<size_t>(o % 8 * 8) * a.d_head + lane / 8 * 64 + lane % 8 * 8;
    return {page,
            page * page_elements(a) + in,
            rows * page_elements(a) + in,
            8 * o + lane % 8,
            lane,
            a.d_head / 8};
}

/* Calls f(i, j) for every 8 adjacent elements that this lane reads. They begin at index i of the
 * compressed cache and at index j of the uncompressed cache. */
template <class F> __device__ __forceinline__ void for_runs(const octet &o, F f)
{
    size_t at = 0;
    for (int run = o.lane / 8; run < o.n_runs; run += 4, at += 4 * 64)
        f(o.at + at, o.at_rows + at);
}

/* Norms of a token's vector in two layers, and angle between the two vectors. */
struct measured {
    double length[2], angle;
};

__device__ __forceinline__ double sum_of_token(double x)
{
    x += __shfl_xor_sync(~0u, x, 8);
    return x + __shfl_xor_sync(~0u, x, 16);
}

__device__ measured measure_token(const kvd_merged_args &a, const octet &o)
{
    double aa = 0, bb = 0, ab = 0;
    for_runs(o, [&](size_t at, size_t at_rows) {
        const uint4 x = load(a.first + at), y = load(a.rows + at_rows);
        const uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 u = unpack<true>(xs[i]), w = unpack<true>(ys[i]);
            aa += static_cast<double>(u.x) * u.x + static_cast<double>(u.y) * u.y;
            bb += static_cast<double>(w.x) * w.x + static_cast<double>(w.y) * w.y;
            ab += static_cast<double>(u.x) * w.x + static_cast<double>(u.y) * w.y;
        }
    });
    aa = sum_of_token(aa);
    bb = sum_of_token(bb);
    ab = sum_of_token(ab);
    const double lengths = sqrt(aa) * sqrt(bb), cosine = lengths > 0 ? ab / lengths : 1;
    return {{sqrt(aa), sqrt(bb)}, acos(fmin(fmax(cosine, -1.0), 1.0))};
}

__global__ void __launch_bounds__(THREADS) keep(const __grid_constant__ kvd_merged_args a)
{
    const int b = static_cast<int>(blockIdx.y), n = __ldg(a.kv_len + b);
    for (int p = static_cast<int>(blockIdx.x); p * KVD_PAGE_TOKENS < n;
         p += static_cast<int>(gridDim.x)) {
        const size_t to = page_of(a, b, p) * page_elements(a),
                     from = rows_page_of(a, b, p) * page_elements(a);
        for (size_t i = 8 * threadIdx.x; i < page_elements(a); i += 8 * THREADS)
            store(a.first + to + i, load(a.rows + from + i));
    }
}

__global__ void __launch_bounds__(THREADS)
    measure(const __grid_constant__ kvd_merged_args a, uint32_t *range)
{
    const int b = static_cast<int>(blockIdx.y), v = static_cast<int>(blockIdx.z),
              warp = static_cast<int>(threadIdx.x) / 32, n = __ldg(a.kv_len + b);
    uint32_t low = 0, high = 0;
    for (int o = static_cast<int>(blockIdx.x) * WARPS + warp; 8 * o < n;
         o += static_cast<int>(gridDim.x) * WARPS) {
        const octet at = octet_of(a, b, v, o);
        const uint32_t bits = __float_as_uint(static_cast<float>(measure_token(a, at).angle));
        low = max(low, at.token < n ? ~bits : 0);
        high = max(high, at.token < n ? bits : 0);
    }
    low = __reduce_max_sync(~0u, low);
    high = __reduce_max_sync(~0u, high);
    if (threadIdx.x % 32 == 0 && low) {
        atomicMax(range + (2 * b + v % 2) * 2, low);
        atomicMax(range + (2 * b + v % 2) * 2 + 1, high);
    }
}

/* Factors of two unit vectors in their spherical interpolation: from * vector 1 + to * vector 2. */
struct factors {
    double from, to;
};

__device__ __forceinline__ factors factors_of(const measured &m, double t)
{
    const double sine = sin(m.angle);
    factors f = {1 - t, t};
    if (sine > 1e-6)
        f = {sin((1 - t) * m.angle) / sine, sin(t * m.angle) / sine};
    if (!(m.length[0] > 0) || !(m.length[1] > 0) || (sine <= 1e-6 && m.angle > 1)) {
        const bool first = m.length[0] > 0 && (t < 0.5 || !(m.length[1] > 0));
        f = {first ? 1.0 : 0.0, first ? 0.0 : 1.0};
    }
    return f;
}

/* Interpolates between the directions of a token's vectors in two layers, and stores the result,
 * which both layers then share. */
__device__ void share_direction(const kvd_merged_args &a, const octet &o, const measured &m,
                                double t)
{
    const factors f = factors_of(m, t);
    const float from = m.length[0] > 0 ? static_cast<float>(f.from / m.length[0]) : 0,
                to = m.length[1] > 0 ? static_cast<float>(f.to / m.length[1]) : 0;
    for_runs(o, [&](size_t at, size_t at_rows) {
        const uint4 x = load(a.first + at), y = load(a.rows + at_rows);
        const uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
        uint32_t e[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 u = unpack<true>(xs[i]), w = unpack<true>(ys[i]);
            e[i] = pack<true>(from * u.x + to * w.x, from * u.y + to * w.y);
        }
        store(a.first + at, make_uint4(e[0], e[1], e[2], e[3]));
    });
}

__global__ void __launch_bounds__(THREADS)
    merge(const __grid_constant__ kvd_merged_args a, const uint32_t *range, double t, double gamma,
          uint32_t *apart)
{
    const int b = static_cast<int>(blockIdx.y), v = static_cast<int>(blockIdx.z),
              warp = static_cast<int>(threadIdx.x) / 32, n = __ldg(a.kv_len + b);
    const uint32_t *const ends = range + (2 * b + v % 2) * 2;
    const double low = __uint_as_float(~__ldg(ends)), high = __uint_as_float(__ldg(ends + 1)),
                 most = high - gamma * (high - low);
    uint32_t n_apart = 0;
    for (int o = static_cast<int>(blockIdx.x) * WARPS + warp; 8 * o < n;
         o += static_cast<int>(gridDim.x) * WARPS) {
        const octet at = octet_of(a, b, v, o);
        const measured m = measure_token(a, at);
        const bool there = at.token < n, merges = static_cast<float>(m.angle) <= most;
        if (there && at.lane < 8)
            lengths_of(a, at.page, v)[at.token % KVD_PAGE_TOKENS] =
                merges
                    ? pack<true>(static_cast<float>(m.length[0]), static_cast<float>(m.length[1]))
                    : APART;
        if (there && merges)
            share_direction(a, at, m, t);
        if (there && !merges)
            for_runs(at,
                     [&](size_t to, size_t from) { store(a.second + to, load(a.rows + from)); });
        n_apart += __popc(__ballot_sync(~0u, there && !merges && at.lane < 8));
    }
    if (threadIdx.x % 32 == 0 && n_apart)
        atomicAdd(apart + __ldg(a.slot + b), n_apart);
}

__device__ __forceinline__ uint4 times(uint4 x, float length)
{
    uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 u = unpack<true>(w[i]);
        w[i] = pack<true>(length * u.x, length * u.y);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* Writes K and V of one of two merged layers to the pages that attention reads, with zeros after
 * the last token. */
template <bool SECOND>
__global__ void __launch_bounds__(THREADS) restore(const __grid_constant__ kvd_merged_args a)
{
    const int b = static_cast<int>(blockIdx.y), v = static_cast<int>(blockIdx.z),
              n = __ldg(a.kv_len + b), d = a.d_head;
    const uint16_t *const own = SECOND ? a.second : a.first;
    for (int p = static_cast<int>(blockIdx.x); p * KVD_PAGE_TOKENS < n;
         p += static_cast<int>(gridDim.x)) {
        const size_t page = page_of(a, b, p), vector = static_cast<size_t>(v * KVD_PAGE_TOKENS) * d,
                     base = page * page_elements(a) + vector;
        uint16_t *const rows = a.rows + rows_page_of(a, b, p) * page_elements(a) + vector;
        uint32_t *const length = lengths_of(a, page, v);
        for (int i = static_cast<int>(threadIdx.x); i < 8 * d; i += THREADS) {
            const int t = i / d * 8 + i % 8, token = p * KVD_PAGE_TOKENS + t;
            const size_t at = base + static_cast<size_t>(8 * i);
            if (token / 8 * 8 >= n)
                break;
            uint4 x = make_uint4(0, 0, 0, 0);
            if (token < n) {
                const bool newest = !a.prompts && token == n - 1;
                const uint32_t two = newest ? APART : length[t];
                const bool apart = static_cast<int32_t>(two) < 0;
                if (newest && i % d < 8)
                    length[t] = APART;
                x = load((apart ? own : a.first) + at);
                if (!apart)
                    x = times(x, __uint_as_float(SECOND ? two & 0xffff0000u : two << 16));
            }
            store(rows + 8 * i, x);
        }
    }
}

__global__ void __launch_bounds__(THREADS)
    copy_later(const __grid_constant__ kvd_merged_args a, const int32_t *prompt)
{
    const int b = static_cast<int>(blockIdx.y), v = static_cast<int>(blockIdx.z),
              n = __ldg(a.kv_len + b), from = __ldg(prompt + b), d = a.d_head;
    for (int p = from / KVD_PAGE_TOKENS + static_cast<int>(blockIdx.x); p * KVD_PAGE_TOKENS < n;
         p += static_cast<int>(gridDim.x)) {
        const size_t vector = static_cast<size_t>(v * KVD_PAGE_TOKENS) * d,
                     base = page_of(a, b, p) * page_elements(a) + vector,
                     rows = rows_page_of(a, b, p) * page_elements(a) + vector;
        for (int i = static_cast<int>(threadIdx.x); i < 8 * d; i += THREADS) {
            const int token = p * KVD_PAGE_TOKENS + i / d * 8 + i % 8;
            const size_t at = static_cast<size_t>(8 * i);
            if (token / 8 * 8 >= n)
                break;
            if (token >= from)
                store(a.rows + rows + at,
                      token < n ? load(a.first + base + at) : make_uint4(0, 0, 0, 0));
        }
    }
}

__global__ void __launch_bounds__(THREADS)
    of_slots(const int32_t *of_slot, const int32_t *slot, int n, int32_t *to)
{
    const int b = static_cast<int>(blockIdx.x * THREADS + threadIdx.x);
    if (b < n)
        to[b] = of_slot[slot[b]];
}

/* Returns the x dimension of a grid with about 8 CTAs per multiprocessor. others: product of its y
 * and z dimensions. */
unsigned ctas(const kvd_merged_args *a, int others)
{
    const int wanted = (8 * a->n_sms + others - 1) / others;
    return static_cast<unsigned>(wanted < a->max_pages ? wanted : a->max_pages);
}

dim3 grid_of(const kvd_merged_args *a)
{
    return dim3(ctas(a, a->n * 2 * a->n_kv_heads), static_cast<unsigned>(a->n),
                static_cast<unsigned>(2 * a->n_kv_heads));
}

} // namespace

extern "C" cudaError_t kvd_pair_keep(const kvd_merged_args *a, cudaStream_t stream)
{
    keep<<<dim3(ctas(a, a->n), static_cast<unsigned>(a->n)), THREADS, 0, stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_pair_measure(const kvd_merged_args *a, uint32_t *range,
                                        cudaStream_t stream)
{
    const cudaError_t e =
        cudaMemsetAsync(range, 0, static_cast<size_t>(4 * a->n) * sizeof *range, stream);
    if (e != cudaSuccess)
        return e;
    measure<<<grid_of(a), THREADS, 0, stream>>>(*a, range);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_pair_merge(const kvd_merged_args *a, const uint32_t *range, double t,
                                      double gamma, uint32_t *apart, cudaStream_t stream)
{
    merge<<<grid_of(a), THREADS, 0, stream>>>(*a, range, t, gamma, apart);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_pair_restore(const kvd_merged_args *a, bool second, cudaStream_t stream)
{
    if (second)
        restore<true><<<grid_of(a), THREADS, 0, stream>>>(*a);
    else
        restore<false><<<grid_of(a), THREADS, 0, stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_merged_copy_later(const kvd_merged_args *a, const int32_t *prompt,
                                             cudaStream_t stream)
{
    copy_later<<<grid_of(a), THREADS, 0, stream>>>(*a, prompt);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_merged_of_slots(const int32_t *of_slot, const int32_t *slot, int32_t n,
                                           int32_t *to, cudaStream_t stream)
{
    of_slots<<<static_cast<unsigned>((n + THREADS - 1) / THREADS), THREADS, 0, stream>>>(
        of_slot, slot, n, to);
    return cudaGetLastError();
}
