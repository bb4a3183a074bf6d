/* Small kernels for latent vectors: they make projections from eigenvectors, and quantise and
 * decode latent vectors. */
#include "methods/dims/cuda/latents.h"

#include <cuda_fp16.h>

#include "kernels/cuda/mma.cuh"

namespace
{

enum { THREADS = 256 };
/* Eigenvalues of at most this fraction of the largest eigenvalue are rounding noise. */
constexpr float KNOWN = 1e-6F;

/* Replaces eigenvectors that are only rounding noise by vectors orthonormal to the others. Each
 * thread block handles one matrix. */
__global__ void __launch_bounds__(THREADS)
    complete(float *vectors, const float *values, const kvd_latent_basis *basis, int d,
             const __grid_constant__ kvd_latent_rows rows)
{
    extern __shared__ float left[];
    float *const x = left + d;
    const int number = (int)blockIdx.x, width = basis[number].width,
              most = min(width, 2 * number < (int)gridDim.x ? rows.k : rows.v);
    float *const last = vectors + (size_t)(number + 1) * (d * d) - d;
    const float *const value = values + (size_t)number * d;
    int known = 0;
    while (known < most && value[d - 1 - known] > KNOWN * value[d - 1])
        known++;
    if (known == width)
        return;
    for (int k = (int)threadIdx.x; k < d; k += THREADS) {
        left[k] = 1;
        for (int j = 0; j < known; j++)
            left[k] -= last[k - j * d] * last[k - j * d];
    }
    __syncthreads();
    for (int j = known; j < width; j++) {
        int unit = 0;
        for (int i = 1; i < d; i++)
            unit = left[i] > left[unit] * (1 + 1e-6F) ? i : unit;
        for (int k = (int)threadIdx.x; k < d; k += THREADS) {
            x[k] = k == unit;
            for (int m = 0; m < j; m++)
                x[k] -= last[unit - m * d] * last[k - m * d];
        }
        __syncthreads();
        float length = 0;
        for (int i = 0; i < d; i++)
            length += x[i] * x[i];
        for (int k = (int)threadIdx.x; k < d; k += THREADS) {
            last[k - j * d] = x[k] / sqrtf(length);
            left[k] -= x[k] * x[k] / length;
        }
        __syncthreads();
    }
}

__global__ void leading(const float *vectors, const kvd_latent_basis *basis, int d, int wide,
                        uint16_t *to, uint16_t *padded)
{
    const size_t number = blockIdx.x, from = number * (size_t)(d * d);
    const kvd_latent_basis b = basis[number];
    for (int i = (int)threadIdx.x; i < d * wide; i += (int)blockDim.x) {
        const int row = i / wide, j = i % wide;
        const uint16_t x = j < b.width ? kvd_bf16_bits(vectors[from + ((d - 1 - j) * d + row)]) : 0;
        if (j < b.rank)
            to[(b.at + row * b.rank + j)] = x;
        if (padded)
            padded[number * (size_t)(d * wide) + i] = x;
    }
}

__global__ void __launch_bounds__(THREADS)
    narrow_rows(const __grid_constant__ kvd_latent_narrow_args a)
{
    const int b = (int)blockIdx.y, q_len = __ldg(a.s.q_len + b);
    const uint8_t *const level = a.level + __ldg(a.q_start + b);
    for (int t = (int)blockIdx.x; t < q_len; t += (int)gridDim.x) {
        if (level[t] & a.important)
            continue;
        uint16_t *const row =
            static_cast<uint16_t *>(a.rows) + (size_t)(__ldg(a.s.start + b) + t) * (a.n * a.wide);
        for (int i = (int)threadIdx.x; i < a.n * a.wide; i += THREADS)
            if (i % a.wide >= a.low[i / a.wide].width)
                row[i] = 0;
    }
}

__device__ __forceinline__ size_t page_of(const kvd_latent_slices &s, int b, int t)
{
    return (size_t)__ldg(s.page_table + b * s.max_pages + t / KVD_PAGE_TOKENS);
}

__device__ __forceinline__ int in_page(int t)
{
    return t % KVD_PAGE_TOKENS / 8 * 64 + t % 8 * 8;
}

/* Returns the index of the level nearest to x, as kvd_level_nearest does on the CPU. */
__device__ __forceinline__ uint32_t nearest(const float *level, int n, float x)
{
    int low = 0, high = n - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (x > (__ldg(level + middle) + __ldg(level + middle + 1)) / 2)
            low = middle + 1;
        else
            high = middle;
    }
    return (uint32_t)low;
}

__device__ __forceinline__ const float *levels_of(const float *level, const kvd_latent_code &c)
{
    return level + (c.side * (KVD_LATENT_CODE_BITS + 1) + c.bits) * (1 << KVD_LATENT_CODE_BITS);
}

__device__ __forceinline__ uint16_t *exact_of(const kvd_latent_code_args &a, int b, int t)
{
    return a.exact + (size_t)(__ldg(a.slot + b) * a.n_sink + t) * a.n_codes;
}

__device__ __forceinline__ uint32_t *words_of(const kvd_latent_code_args &a, int b, int t)
{
    return a.store + page_of(a.s, b, t) * a.page_words + t % KVD_PAGE_TOKENS * (size_t)a.words;
}

/* Returns the middle and half width of the range in which an element is quantised. */
__device__ __forceinline__ float2 range_of(const kvd_latent_code_args &a, const kvd_latent_code &c,
                                           const uint32_t *word)
{
    if (!a.n_groups || !c.side)
        return make_float2(c.mean, c.deviation);
    const uint32_t both = c.bits ? word[a.vector[c.group].v_at] : 0;
    return make_float2(__half2float(__ushort_as_half((unsigned short)(both >> 16))),
                       __half2float(__ushort_as_half((unsigned short)both)));
}

/* Writes to `word` the outliers of a token's latent V (the v_apart smallest and the v_apart largest
 * elements) and the range of the remaining elements. */
__device__ void find_range(const kvd_latent_code_args &a, const kvd_latent_vector &v,
                           const uint16_t *from, uint32_t *word, int lane)
{
    const kvd_latent_code *const code = a.code + v.first[1];
    uint32_t taken = 0; /* bit i: element 32 i + lane is an outlier */
    float end[2] = {};
    for (int i = 0; i < 2 * v.v_apart + 2; i++) {
        const bool apart = i < 2 * v.v_apart;
        const int largest = apart ? i >= v.v_apart : i - 2 * v.v_apart;
        float best = INFINITY;
        int at = INT_MAX;
        for (int r = lane; r < v.n[1]; r += 32) {
            const float y = unpack<true>(from[code[r].place]).x, x = largest ? -y : y;
            if (!(taken >> r / 32 & 1) && (x < best || at == INT_MAX)) {
                best = x;
                at = r;
            }
        }
        for (int k = 1; k < 32; k *= 2) {
            const float x = __shfl_xor_sync(~0u, best, k);
            const int other = __shfl_xor_sync(~0u, at, k);
            if (other != INT_MAX && (at == INT_MAX || x < best || (x == best && other < at))) {
                best = x;
                at = other;
            }
        }
        if (!apart)
            end[largest] = largest ? -best : best;
        if (!apart)
            continue;
        if (at % 32 == lane)
            taken |= 1u << at / 32;
        if (lane == 0)
            word[v.v_at + 1 + i] =
                (uint32_t)from[code[at].place] << 16 | (uint32_t)(v.first[1] + at);
    }
    if (lane == 0)
        word[v.v_at] = (uint32_t)__half_as_ushort(__float2half_rn((end[1] - end[0]) / 2)) |
                       (uint32_t)__half_as_ushort(__float2half_rn((end[0] + end[1]) / 2)) << 16;
}

/* Appends element j of token t's latent K to the list of outliers in the token's page. */
__device__ void put_apart(const kvd_latent_code_args &a, int b, int t, int j, int group, uint16_t x)
{
    const kvd_latent_vector &v = a.vector[group];
    uint32_t *const list = a.store + page_of(a.s, b, t) * a.page_words + v.k_at;
    const uint32_t at = atomicAdd(list, 1u);
    if (at < (uint32_t)a.room)
        list[1 + at] =
            (uint32_t)x << 16 | (uint32_t)(t % KVD_PAGE_TOKENS * KVD_LATENT_APART + j - v.first[0]);
    else
        atomicMax(a.beyond, at + 1 - (uint32_t)a.room);
}

/* Empties the lists of K outliers in all pages of the prompts. Grid dimensions: (thread blocks per
 * prompt, prompts). */
__global__ void __launch_bounds__(THREADS)
    clear_lists(const __grid_constant__ kvd_latent_code_args a)
{
    const int b = (int)blockIdx.y, end = __ldg(a.s.kv_len + b),
              lists = (end + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS * a.n_groups;
    for (int i = (int)(blockIdx.x * THREADS + threadIdx.x); i < lists;
         i += (int)gridDim.x * THREADS)
        a.store[page_of(a.s, b, i / a.n_groups * KVD_PAGE_TOKENS) * a.page_words +
                a.vector[i % a.n_groups].k_at] = 0;
    if (a.recounts && blockIdx.x == 0 && threadIdx.x == 0)
        a.apart[__ldg(a.slot + b)] = 0;
}

/* Quantises the latent vectors of new tokens. Each thread block processes one token at a time. */
__global__ void __launch_bounds__(THREADS)
    code_tokens(const __grid_constant__ kvd_latent_code_args a)
{
    extern __shared__ uint32_t word[];
    const int b = (int)blockIdx.y, q_len = __ldg(a.s.q_len + b),
              before = __ldg(a.s.kv_len + b) - q_len;
    const bool lists = a.room && __ldg(a.slot + b) != a.idle;
    uint32_t apart = 0;
    for (int i = (int)blockIdx.x; i < q_len; i += (int)gridDim.x) {
        const int t = before + i;
        const uint16_t *const from = static_cast<const uint16_t *>(a.pool) +
                                     page_of(a.s, b, t) * a.page_elements + in_page(t);
        for (int w = (int)threadIdx.x; w < a.words; w += THREADS)
            word[w] = 0;
        /* In decode steps, a page's lists of outliers are emptied when the page's first token is
         * quantised. */
        if (lists && !a.prompts && t % KVD_PAGE_TOKENS == 0)
            for (int g = (int)threadIdx.x; g < a.n_groups; g += THREADS)
                a.store[page_of(a.s, b, t) * a.page_words + a.vector[g].k_at] = 0;
        __syncthreads();
        if (a.n_groups && t >= a.n_sink) {
            for (int g = (int)threadIdx.x / 32; g < a.n_groups; g += THREADS / 32)
                find_range(a, a.vector[g], from, word, (int)threadIdx.x % 32);
            __syncthreads();
        }
        for (int j = (int)threadIdx.x; j < a.n_codes; j += THREADS) {
            const kvd_latent_code c = a.code[j];
            if (t < a.n_sink)
                exact_of(a, b, t)[j] = from[c.place];
            if (t < a.n_sink || !c.bits)
                continue;
            const float2 range = range_of(a, c, word);
            const float x = unpack<true>(from[c.place]).x;
            if (lists && !c.side && fabsf(x - range.x) > range.y) {
                put_apart(a, b, t, j, c.group, from[c.place]);
                apart++;
            }
            if (!(range.y > 0))
                continue;
            const uint32_t q = nearest(levels_of(a.level, c), 1 << c.bits, (x - range.x) / range.y);
            atomicOr(word + c.bit / 32, q << c.bit % 32);
            if (c.bit % 32 + c.bits > 32)
                atomicOr(word + c.bit / 32 + 1, q >> (32 - c.bit % 32));
        }
        __syncthreads();
        for (int w = (int)threadIdx.x; w < a.words; w += THREADS)
            words_of(a, b, t)[w] = word[w];
        __syncthreads();
    }
    if (apart)
        atomicAdd(a.apart + __ldg(a.slot + b), apart);
}

__device__ __forceinline__ uint16_t decoded(const kvd_latent_code_args &a, int b, int t, int j)
{
    const kvd_latent_code c = a.code[j];
    if (t < a.n_sink)
        return exact_of(a, b, t)[j];
    const uint32_t *const word = words_of(a, b, t);
    const float2 range = range_of(a, c, word);
    if (!c.bits || !(range.y > 0))
        return kvd_bf16_bits(range.x);
    const int at = c.bit / 32, shift = c.bit % 32;
    uint32_t q = word[at] >> shift;
    if (shift + c.bits > 32)
        q |= word[at + 1] << (32 - shift);
    q &= (1u << c.bits) - 1;
    return kvd_bf16_bits(range.x + range.y * __ldg(levels_of(a.decoded, c) + q));
}

/* For up to 8 tokens, replaces decoded elements in `to` by the outliers that are stored exactly.
 * `first`: index of the first token. Tokens from index `end` on are skipped. */
__device__ void decode_apart(const kvd_latent_code_args &a, int b, int first, int end, uint16_t *to)
{
    for (int g = 0; g < a.n_groups; g++) {
        const kvd_latent_vector &v = a.vector[g];
        for (int i = (int)threadIdx.x; i < 16 * v.v_apart; i += THREADS) {
            const int t = first + i % 8;
            if (t < a.n_sink || t >= end)
                continue;
            const uint32_t one = words_of(a, b, t)[v.v_at + 1 + i / 8];
            to[a.code[one & 0xffff].place + i % 8 * 8] = (uint16_t)(one >> 16);
        }
        if (!a.room)
            continue;
        const uint32_t *const list = a.store + page_of(a.s, b, first) * a.page_words + v.k_at;
        const int n = min((int)list[0], a.room);
        for (int i = (int)threadIdx.x; i < n; i += THREADS) {
            const uint32_t one = list[1 + i];
            const int in = (int)(one & 0xffff) / KVD_LATENT_APART - first % KVD_PAGE_TOKENS;
            if (in >= 0 && in < 8 && first + in >= a.n_sink && first + in < end)
                to[a.code[v.first[0] + (int)(one % KVD_LATENT_APART)].place + in * 8] =
                    (uint16_t)(one >> 16);
        }
    }
}

/* Dequantises latent vectors of cached tokens, 8 tokens at a time per thread block. */
__global__ void __launch_bounds__(THREADS)
    decode_tokens(const __grid_constant__ kvd_latent_code_args a)
{
    const int b = (int)blockIdx.y, end = __ldg(a.s.kv_len + b) - __ldg(a.s.q_len + b),
              seen = a.window ? max(end + 1 - a.window, 0) : 0;
    for (int first = seen / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS + (int)blockIdx.x * 8; first < end;
         first += (int)gridDim.x * 8) {
        uint16_t *const to = static_cast<uint16_t *>(a.pool) +
                             page_of(a.s, b, first) * a.page_elements + in_page(first);
        for (int i = (int)threadIdx.x; i < 8 * a.n_codes; i += THREADS) {
            const int t = first + i / 8 % 8, j = i / 64 * 8 + i % 8;
            if (t < end)
                to[a.code[j].place + t % 8 * 8] = decoded(a, b, t, j);
        }
        if (a.n_groups) {
            __syncthreads();
            decode_apart(a, b, first, end, to);
        }
    }
}

__global__ void __launch_bounds__(THREADS)
    make_plausible(const __grid_constant__ kvd_latent_code_args a, double share)
{
    constexpr uint32_t TWO = 0x40000000;
    uint32_t *const page = a.store + blockIdx.x * a.page_words;
    for (int g = 0; g < a.n_groups; g++) {
        const kvd_latent_vector &v = a.vector[g];
        const int each = 1 + 2 * v.v_apart;
        for (int i = (int)threadIdx.x; i < KVD_PAGE_TOKENS * each; i += THREADS)
            page[i / each * a.words + v.v_at + i % each] =
                i % each ? TWO | (uint32_t)(v.first[1] + i * 7 % v.n[1]) : 0x3c00;
        const int n = min(a.room, (int)(share * KVD_PAGE_TOKENS * v.n[0]));
        for (int i = (int)threadIdx.x; a.room && i <= n; i += THREADS)
            page[v.k_at + i] =
                i ? TWO | (uint32_t)(i * 37 % KVD_PAGE_TOKENS * KVD_LATENT_APART + i * 11 % v.n[0])
                  : (uint32_t)n;
    }
}

int bad_codes(const kvd_latent_code_args *a)
{
    return kvd_latent_slices_bad(&a->s) || a->n_codes < 8 || a->n_codes % 8 || a->words < 1 ||
           a->n_sink < 0 || !a->slot || !a->code || !a->level || !a->decoded || !a->store ||
           !a->pool || a->page_words < (size_t)a->words * KVD_PAGE_TOKENS ||
           (a->n_groups && (!a->vector || a->n_codes > 0x10000)) ||
           (a->room && (!a->apart || !a->beyond));
}

/* Reorders a matrix from [columns][rank] to [rank / 8][columns][8]. A thread copies 8 adjacent
 * elements at a time. */
__global__ void __launch_bounds__(THREADS)
    join(const uint4 *from, uint32_t columns, uint32_t runs, uint4 *to)
{
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < columns * runs;
         i += gridDim.x * THREADS)
        to[i] = from[static_cast<size_t>(i % columns) * runs + i / columns];
}

} // namespace

cudaError_t kvd_latent_narrow(const kvd_latent_narrow_args *a, cudaStream_t stream)
{
    if (kvd_latent_slices_bad(&a->s) || !a->q_start || !a->level || !a->low || a->n < 1 ||
        a->wide < 1)
        return cudaErrorInvalidValue;
    narrow_rows<<<dim3((a->s.most < 1024 ? a->s.most : 1024), a->s.n), THREADS, 0, stream>>>(*a);
    return cudaGetLastError();
}

cudaError_t kvd_latent_complete(float *vectors, const float *values, const kvd_latent_basis *basis,
                                int32_t n, int32_t d, kvd_latent_rows rows, cudaStream_t stream)
{
    if (n < 2 || n % 2 || !vectors || !values || !basis || d < 1 || rows.k < 0 || rows.v < 0)
        return cudaErrorInvalidValue;
    complete<<<n, THREADS, 2 * (size_t)d * sizeof(float), stream>>>(vectors, values, basis, d,
                                                                    rows);
    return cudaGetLastError();
}

cudaError_t kvd_latent_leading(const float *vectors, const kvd_latent_basis *basis, int32_t n,
                               int32_t d, int32_t wide, void *to, void *padded, cudaStream_t stream)
{
    if (n < 1 || !basis || d < 1 || wide < 1)
        return cudaErrorInvalidValue;
    leading<<<n, THREADS, 0, stream>>>(vectors, basis, d, wide, static_cast<uint16_t *>(to),
                                       static_cast<uint16_t *>(padded));
    return cudaGetLastError();
}

cudaError_t kvd_latent_join(const void *from, size_t columns, size_t rank, void *to,
                            cudaStream_t stream)
{
    const size_t n = columns * (rank / 8), ctas = (n + THREADS - 1) / THREADS;
    if (!n || n >= static_cast<size_t>(1) << 31 || rank % 8 || !from || !to)
        return cudaErrorInvalidValue;
    join<<<static_cast<unsigned>(ctas < 1024 ? ctas : 1024), THREADS, 0, stream>>>(
        static_cast<const uint4 *>(from), static_cast<uint32_t>(columns),
        static_cast<uint32_t>(rank / 8), static_cast<uint4 *>(to));
    return cudaGetLastError();
}

cudaError_t kvd_latent_code_put(const kvd_latent_code_args *a, cudaStream_t stream)
{
    if (bad_codes(a))
        return cudaErrorInvalidValue;
    if (a->room && a->prompts)
        clear_lists<<<dim3(16, a->s.n), THREADS, 0, stream>>>(*a);
    code_tokens<<<dim3((a->s.most < 4096 ? a->s.most : 4096), a->s.n), THREADS,
                  (size_t)a->words * sizeof(uint32_t), stream>>>(*a);
    return cudaGetLastError();
}

cudaError_t kvd_latent_code_restore(const kvd_latent_code_args *a, int32_t n_sms,
                                    cudaStream_t stream)
{
    if (bad_codes(a) || n_sms < 1)
        return cudaErrorInvalidValue;
    const int octets = a->s.max_pages * (KVD_PAGE_TOKENS / 8), enough = 8 * n_sms / a->s.n + 1;
    decode_tokens<<<dim3((octets < enough ? octets : enough), a->s.n), THREADS, 0, stream>>>(*a);
    return cudaGetLastError();
}

cudaError_t kvd_latent_code_make_plausible(const kvd_latent_code_args *a, size_t pages,
                                           double share, cudaStream_t stream)
{
    if (!pages || pages >= static_cast<size_t>(1) << 31 || a->n_groups < 1 || !a->vector)
        return cudaErrorInvalidValue;
    make_plausible<<<static_cast<unsigned>(pages), THREADS, 0, stream>>>(*a, share);
    return cudaGetLastError();
}
