/* Kernels that round or quantise K and V of a cache, and record times on the GPU. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/cuda/launch.cuh"
#include "kernels/layout.h"
#include "methods/bits/cuda/packed_floats.cuh"
#include "methods/cuda/cache_rows.h"
#include "methods/cuda/phase_clock.h"

namespace
{

enum { THREADS = 256 };
constexpr size_t ROWS_MAX = 65535;

__device__ __forceinline__ float wide(float x)
{
    return x;
}

__device__ __forceinline__ float wide(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

template <kvd_dtype STORE> __device__ __forceinline__ float rounded(float x)
{
    return STORE == KVD_F16    ? __half2float(__float2half_rn(x))
           : STORE == KVD_BF16 ? __bfloat162float(__float2bfloat16_rn(x))
                               : x;
}

template <class T, kvd_dtype STORE>
__global__ void __launch_bounds__(THREADS)
    round_rows(const T *x, size_t ld, size_t n, size_t width, float *to)
{
    const size_t column = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (column >= width)
        return;
    for (size_t row = blockIdx.y; row < n; row += gridDim.y)
        to[row * width + column] = rounded<STORE>(wide(x[row * ld + column]));
}

template <class T>
cudaError_t launch(const void *x, size_t ld, kvd_dtype store, size_t n, size_t width, float *to,
                   cudaStream_t stream)
{
    const dim3 grid(((width + THREADS - 1) / THREADS), (n < ROWS_MAX ? n : ROWS_MAX));
    const T *const from = static_cast<const T *>(x);
    if (store == KVD_F16)
        round_rows<T, KVD_F16><<<grid, THREADS, 0, stream>>>(from, ld, n, width, to);
    else if (store == KVD_BF16)
        round_rows<T, KVD_BF16><<<grid, THREADS, 0, stream>>>(from, ld, n, width, to);
    else
        round_rows<T, KVD_F32><<<grid, THREADS, 0, stream>>>(from, ld, n, width, to);
    return cudaGetLastError();
}

__global__ void __launch_bounds__(THREADS)
    move_rows(uint16_t *const *k, size_t n, int d, uint16_t *rows, bool back)
{
    const size_t each = 2 * (size_t)d / 8;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n * each;
         i += (size_t)gridDim.x * THREADS) {
        const int c = (int)(i % each), side = c >= d / 8;
        uint4 *const page = reinterpret_cast<uint4 *>(k[i / each] + side * KVD_PAGE_TOKENS * d +
                                                      (c - side * d / 8) * 64),
                     *const row = reinterpret_cast<uint4 *>(rows) + i;
        if (back)
            *page = *row;
        else
            *row = *page;
    }
}

__device__ __forceinline__ float half_rounded(float x)
{
    return __half2float(__float2half_rn(x));
}

/* Quantises n numbers and replaces them by the decoded ones. One lane does this alone or, if WARP,
 * a whole warp together. */
template <bool WARP>
__device__ __forceinline__ void code_group(uint16_t *x, int n, int next, float top, int lane)
{
    const int from = WARP ? lane : 0, by = WARP ? 32 : 1;
    float lo = INFINITY, hi = -INFINITY;
    for (int i = from; i < n; i += by) {
        const float y = wide(__ushort_as_bfloat16(x[i * next]));
        lo = fminf(lo, y);
        hi = fmaxf(hi, y);
    }
    for (int mask = 16; WARP && mask; mask /= 2) {
        lo = fminf(lo, __shfl_xor_sync(~0u, lo, mask));
        hi = fmaxf(hi, __shfl_xor_sync(~0u, hi, mask));
    }
    const float zero = half_rounded(lo), step = half_rounded((hi - lo) / top);
    for (int i = from; i < n; i += by) {
        const float y = wide(__ushort_as_bfloat16(x[i * next])),
                    q = step > 0 ? rintf(fminf(fmaxf((y - zero) / step, 0), top)) : 0;
        x[i * next] =
            __bfloat16_as_ushort(__float2bfloat16_rn(__fadd_rn(__fmul_rn(step, q), zero)));
    }
}

/* A warp quantises up to 32 channels of K in a group of tokens, or V of one token. */
__global__ void __launch_bounds__(THREADS)
    code_rows(uint16_t *rows, int d, const kvd_cache_codes *list, size_t n, int group, float top)
{
    const int lane = (int)threadIdx.x % 32, warps = (int)gridDim.y * THREADS / 32,
              warp = (int)blockIdx.y * THREADS / 32 + (int)threadIdx.x / 32, parts = (d + 31) / 32;
    const size_t width = 2 * (size_t)d;
    for (size_t t = blockIdx.x; t < n; t += gridDim.x) {
        const kvd_cache_codes c = list[t];
        const int k_items = (c.n[0] + group - 1) / group * parts;
        for (int i = warp; i < k_items + c.n[1]; i += warps) {
            if (i < k_items) {
                const int at = i / parts * group, channel = i % parts * 32 + lane;
                if (channel < d)
                    code_group<false>(rows + (size_t)(c.first[0] + at) * width + channel,
                                      min(group, c.n[0] - at), 2 * d, top, lane);
                continue;
            }
            uint16_t *const v = rows + (size_t)(c.first[1] + i - k_items) * width + d;
            for (int at = 0; at < d; at += group)
                code_group<true>(v + at, min(group, d - at), 1, top, lane);
        }
    }
}

/* Rounds K and V to floating-point format F, in place. Every F::BLOCK adjacent channels of a token
 * share a scale. */
template <class F>
__global__ void __launch_bounds__(THREADS)
    float_rows(uint16_t *rows, int d, const kvd_cache_codes *list, size_t n)
{
    const int lane = (int)threadIdx.x % 32, warps = (int)gridDim.y * THREADS / 32,
              warp = (int)blockIdx.y * THREADS / 32 + (int)threadIdx.x / 32;
    for (size_t t = blockIdx.x; t < n; t += gridDim.x) {
        const kvd_cache_codes c = list[t];
        for (int i = warp; i < c.n[0] + c.n[1]; i += warps) {
            const int side = i >= c.n[0], row = side ? c.first[1] + i - c.n[0] : c.first[0] + i;
            uint16_t *const x = rows + ((size_t)row * 2 + side) * (size_t)d;
            for (int j = lane; j - lane < d; j += 32) {
                const float y = j < d ? wide(__ushort_as_bfloat16(x[j])) : 0;
                float most = fabsf(y);
                for (int mask = 1; mask < F::BLOCK; mask *= 2)
                    most = fmaxf(most, __shfl_xor_sync(~0u, most, mask));
                const uint32_t byte = F::BLOCK ? block_byte<F>(most, c.scale[side]) : 0;
                const float scale = read_scale<F>(byte, c.scale[side]),
                            q = scale > 0 ? float_of<F>(float_code<F>(y / scale)) : 0;
                if (j < d)
                    x[j] = __bfloat16_as_ushort(__float2bfloat16_rn(__fmul_rn(q, scale)));
            }
        }
    }
}

enum { KEYS = 4 /* keys of a CTA, one per warp */ };

/* Returns the product of a query and a key. Groups of 8 query elements are `next` apart. */
__device__ __forceinline__ float product(const uint16_t *query, int next, const float *key, int d)
{
    float sum = 0;
    for (int u = 0; u < d / 8; u++) {
        const uint4 x = *reinterpret_cast<const uint4 *>(query + u * next);
        const uint32_t word[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            sum = fmaf(__uint_as_float(word[e] << 16), key[8 * u + 2 * e], sum);
            sum = fmaf(__uint_as_float(word[e] & 0xffff0000u), key[8 * u + 2 * e + 1], sum);
        }
    }
    return sum;
}

/* A warp sums the attention probabilities that one key receives. Each lane takes different
 * queries. */
__global__ void __launch_bounds__(32 * KEYS)
    receive_kernel(const __grid_constant__ kvd_cache_received a)
{
    __shared__ float keys[KEYS][KVD_WIDTH_MAX];
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, warp = (int)threadIdx.x / 32,
              lane = (int)threadIdx.x % 32, d = a.map.d_qk[g], group = a.map.group, m = a.kv_len[b],
              window = a.map.window ? a.map.window : m, seen = max(m - window, 0),
              first_query = a.prompts ? 0 : m - 1,
              from = a.prompts ? seen / a.block * a.block : max(m - a.newest, seen);
    float *const key = keys[warp];
    for (int t = from + (int)blockIdx.x * KEYS + warp; t < m; t += (int)gridDim.x * KEYS) {
        const int page =
            a.page_table[(size_t)b * (size_t)a.max_pages + (size_t)(t / KVD_PAGE_TOKENS)];
        const uint16_t *const row =
            static_cast<const uint16_t *>(a.pool) + (size_t)page * (size_t)a.map.page_elements +
            a.map.kv_offset[g] + t % KVD_PAGE_TOKENS / 8 * 8 * d + t % 8 * 8;
        __syncwarp();
        for (int i = lane; i < d; i += 32)
            key[i] = wide(__ushort_as_bfloat16(row[i / 8 * 64 + i % 8]));
        __syncwarp();
        const int first = max(t, first_query), queries = min(t + window, m) - first;
        float sum = 0;
        for (int i = lane; i < queries * group; i += 32) {
            const int head = g * group + i / queries, q = first + i % queries;
            const uint16_t *const all = static_cast<const uint16_t *>(a.q);
            const size_t offset = (size_t)a.map.q_offset[head];
            const int at = a.prompts ? a.q_start[b] + q : 0;
            const uint16_t *const query =
                a.prompts
                    ? all + offset * (size_t)a.n_q8 + (size_t)(at / 8 * 8) * (size_t)d + at % 8 * 8
                    : all + (size_t)b * (size_t)a.map.q_pitch + offset;
            const float lse = a.lse[a.prompts ? (size_t)head * (size_t)a.n_q8 + (size_t)at
                                              : (size_t)b * (size_t)a.map.n_heads + (size_t)head];
            sum += expf(product(query, a.prompts ? 64 : 8, key, d) * a.map.scale - lse);
        }
        for (int step = 16; step; step /= 2)
            sum += __shfl_xor_sync(~0u, sum, step);
        if (lane == 0)
            a.sum[a.prompts
                      ? (size_t)g * (size_t)a.n_q8 + (size_t)(a.q_start[b] + t)
                      : ((size_t)b * (size_t)a.map.n_kv_heads + (size_t)g) * (size_t)a.newest +
                            (size_t)(t % a.newest)] = sum;
    }
}

__global__ void stamp_kernel(unsigned long long *to)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    asm volatile("{ .reg .u64 t; mov.u64 t, %%globaltimer; st.global.u64 [%0], t; }" ::"l"(to)
                 : "memory");
}

} // namespace

cudaError_t kvd_cache_round(kvd_dtype type, const void *x, size_t ld, kvd_dtype store, size_t n,
                            size_t width, float *to, cudaStream_t stream)
{
    if (n == 0 || width == 0)
        return cudaSuccess;
    return type == KVD_F32    ? launch<float>(x, ld, store, n, width, to, stream)
           : type == KVD_BF16 ? launch<__nv_bfloat16>(x, ld, store, n, width, to, stream)
                              : cudaErrorInvalidValue;
}

cudaError_t kvd_cache_move(uint16_t *const *k, size_t n, int d, uint16_t *rows, bool back,
                           cudaStream_t stream)
{
    if (n == 0)
        return cudaSuccess;
    const size_t blocks = (n * 2 * (size_t)d / 8 + THREADS - 1) / THREADS;
    if (d % 8 || !k || !rows)
        return cudaErrorInvalidValue;
    move_rows<<<(blocks < ROWS_MAX ? blocks : ROWS_MAX), THREADS, 0, stream>>>(k, n, d, rows, back);
    return cudaGetLastError();
}

cudaError_t kvd_cache_code(uint16_t *rows, int d, const kvd_cache_codes *list, size_t n,
                           const kvd_packed_form *f, int group, cudaStream_t stream)
{
    enum { SHARES = 8 /* CTAs of a KV head */ };
    const dim3 grid((unsigned)(n < ROWS_MAX ? n : ROWS_MAX), SHARES);
    if (n == 0)
        return cudaSuccess;
    if (!rows || !list || d < 1 || (!f->exponent && (group < 1 || f->bits < 1 || f->bits > 8)))
        return cudaErrorInvalidValue;
    if (!f->exponent)
        code_rows<<<grid, THREADS, 0, stream>>>(rows, d, list, n, group,
                                                (float)((1 << f->bits) - 1));
    else
        with_floats(f, [=](auto format) {
            float_rows<decltype(format)><<<grid, THREADS, 0, stream>>>(rows, d, list, n);
            return cudaSuccess;
        });
    return cudaGetLastError();
}

cudaError_t kvd_cache_receive(const kvd_cache_received *a, cudaStream_t stream)
{
    enum { SHARES = 256 /* most CTAs of a KV head */ };
    const int n = a->prompts ? KVD_PAGE_TOKENS * a->max_pages : a->newest,
              shares = (n + KEYS - 1) / KEYS < SHARES ? (n + KEYS - 1) / KEYS : SHARES;
    if (a->n < 1 || a->n > (int)ROWS_MAX || a->newest < 1 || a->block < 1 ||
        kvd_attn_widest(&a->map) > KVD_WIDTH_MAX)
        return cudaErrorInvalidValue;
    receive_kernel<<<dim3((unsigned)shares, (unsigned)a->map.n_kv_heads, (unsigned)a->n), 32 * KEYS,
                     0, stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_stamp(unsigned long long *to, cudaStream_t stream)
{
    int major = 0;
    const cudaError_t e = kvd_compute_capability(&major);
    return e == cudaSuccess ? kvd_launch_early(major >= 9, stamp_kernel, dim3(1), 1, 0, stream, to)
                            : e;
}
