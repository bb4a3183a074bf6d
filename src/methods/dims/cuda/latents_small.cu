/*
 * Kernels on latents: make projections from eigenvectors, store tokens with fewer columns, code and
 * decode.
 */
#include "methods/dims/cuda/latents.h"

#include "kernels/cuda/mma.cuh"

namespace
{

enum { THREADS = 256 };
/* Smallest relative eigenvalue whose direction is not just rounding noise. */
constexpr float KNOWN = 1e-6F;

__device__ __forceinline__ uint16_t bf16_of(float x)
{
    return (uint16_t)(pack<true>(x, 0));
}

/* One CTA per matrix. left: squared length of unit vectors outside earlier columns. */
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
        const uint16_t x =
            j < b.width ? (uint16_t)(pack<true>(vectors[from + ((d - 1 - j) * d + row)], 0)) : 0;
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

/* Returns the level nearest to x, as kvd_level_nearest. */
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

__device__ __forceinline__ const float *levels_of(const kvd_latent_code_args &a,
                                                  const kvd_latent_code &c)
{
    return a.level + (c.side * (KVD_LATENT_CODE_BITS + 1) + c.bits) * (1 << KVD_LATENT_CODE_BITS);
}

__device__ __forceinline__ uint16_t *exact_of(const kvd_latent_code_args &a, int b, int t)
{
    return a.exact + (size_t)(__ldg(a.slot + b) * a.n_sink + t) * a.n_codes;
}

__device__ __forceinline__ uint32_t *words_of(const kvd_latent_code_args &a, int b, int t)
{
    return a.store + (page_of(a.s, b, t) * KVD_PAGE_TOKENS + t % KVD_PAGE_TOKENS) * (size_t)a.words;
}

/* Each CTA codes one token after another, each thread one number of it. */
__global__ void __launch_bounds__(THREADS)
    code_tokens(const __grid_constant__ kvd_latent_code_args a)
{
    extern __shared__ uint32_t word[];
    const int b = (int)blockIdx.y, q_len = __ldg(a.s.q_len + b),
              before = __ldg(a.s.kv_len + b) - q_len;
    for (int i = (int)blockIdx.x; i < q_len; i += (int)gridDim.x) {
        const int t = before + i;
        const uint16_t *const from = static_cast<const uint16_t *>(a.pool) +
                                     page_of(a.s, b, t) * a.page_elements + in_page(t);
        for (int w = (int)threadIdx.x; w < a.words; w += THREADS)
            word[w] = 0;
        __syncthreads();
        for (int j = (int)threadIdx.x; j < a.n_codes; j += THREADS) {
            const kvd_latent_code c = a.code[j];
            if (t < a.n_sink)
                exact_of(a, b, t)[j] = from[c.place];
            if (t < a.n_sink || !c.bits || !(c.deviation > 0))
                continue;
            const float x = unpack<true>(from[c.place]).x;
            const uint32_t q = nearest(levels_of(a, c), 1 << c.bits, (x - c.mean) / c.deviation);
            atomicOr(word + c.bit / 32, q << c.bit % 32);
            if (c.bit % 32 + c.bits > 32)
                atomicOr(word + c.bit / 32 + 1, q >> (32 - c.bit % 32));
        }
        __syncthreads();
        for (int w = (int)threadIdx.x; w < a.words; w += THREADS)
            words_of(a, b, t)[w] = word[w];
        __syncthreads();
    }
}

__device__ __forceinline__ uint16_t decoded(const kvd_latent_code_args &a, int b, int t, int j)
{
    const kvd_latent_code c = a.code[j];
    if (t < a.n_sink)
        return exact_of(a, b, t)[j];
    if (!c.bits || !(c.deviation > 0))
        return bf16_of(c.mean);
    const uint32_t *const word = words_of(a, b, t) + c.bit / 32;
    const int shift = c.bit % 32;
    uint32_t q = word[0] >> shift;
    if (shift + c.bits > 32)
        q |= word[1] << (32 - shift);
    q &= (1u << c.bits) - 1;
    return bf16_of(c.mean + c.deviation * __ldg(levels_of(a, c) + q));
}

/* Each CTA decodes 8 tokens at a time, in page order. */
__global__ void __launch_bounds__(THREADS)
    decode_tokens(const __grid_constant__ kvd_latent_code_args a)
{
    const int b = (int)blockIdx.y, end = __ldg(a.s.kv_len + b) - __ldg(a.s.q_len + b);
    for (int first = (int)blockIdx.x * 8; first < end; first += (int)gridDim.x * 8) {
        uint16_t *const to = static_cast<uint16_t *>(a.pool) +
                             page_of(a.s, b, first) * a.page_elements + in_page(first);
        for (int i = (int)threadIdx.x; i < 8 * a.n_codes; i += THREADS) {
            const int t = first + i / 8 % 8, j = i / 64 * 8 + i % 8;
            if (t < end)
                to[a.code[j].place + t % 8 * 8] = decoded(a, b, t, j);
        }
    }
}

int bad_codes(const kvd_latent_code_args *a)
{
    return kvd_latent_slices_bad(&a->s) || a->n_codes < 8 || a->n_codes % 8 || a->words < 1 ||
           a->n_sink < 0 || !a->slot || !a->code || !a->level || !a->store || !a->pool;
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

cudaError_t kvd_latent_code_put(const kvd_latent_code_args *a, cudaStream_t stream)
{
    if (bad_codes(a))
        return cudaErrorInvalidValue;
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
