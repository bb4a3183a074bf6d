/*
 * Kernels of xquant.h: quantise vectors of a layer's input as kvd_quantise_group does, and restore
 * bf16 pages.
 */
#include "methods/bits/cuda/xquant.h"

#include "methods/bits/cuda/packed_code.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32, BITS_MAX = 16 };

/* Returns the index of element i of token t in a page of bf16 vectors. */
__device__ __forceinline__ size_t vector_index(int t, int i)
{
    return (size_t)(i / 8 * 512 + t % KVD_PAGE_TOKENS / 8 * 64 + t % 8 * 8 + i % 8);
}

__device__ __forceinline__ int pitch_of(const kvd_xquant_args &a)
{
    return a.form.channels ? 2 * a.form.rank : a.form.rank;
}

__device__ __forceinline__ uint16_t *ring_page(const kvd_xquant_args &a, int b, int t)
{
    const size_t page = (size_t)a.slot[b] * (size_t)a.form.ring_pages +
                        (size_t)(t / KVD_PAGE_TOKENS % a.form.ring_pages);
    return a.ring + page * (size_t)(KVD_PAGE_TOKENS * pitch_of(a));
}

__device__ __forceinline__ size_t page_number(const kvd_xquant_args &a, int b, int t)
{
    return (size_t)__ldg(a.page_table + (size_t)b * (size_t)a.max_pages + t / KVD_PAGE_TOKENS);
}

__device__ __forceinline__ uint32_t *code_page(const kvd_xquant_args &a, int b, int t)
{
    return a.codes + page_number(a, b, t) * (size_t)a.page.words;
}

__device__ __forceinline__ uint16_t number_at(const kvd_xquant_args &a, int b, int t, int i)
{
    return a.start ? a.rows[(size_t)(a.start[b] + t) * (size_t)pitch_of(a) + (size_t)i]
                   : ring_page(a, b, t)[vector_index(t, i)];
}

struct scale {
    float step, zero, top;
};

__device__ __forceinline__ scale make_scale(float lo, float hi, int bits)
{
    const float top = (float)((1 << bits) - 1);
    return {as_half((hi - lo) / top), as_half(lo), top};
}

__device__ __forceinline__ uint32_t scale_word(const scale &s)
{
    return half_bits(s.step) | half_bits(s.zero) << 16;
}

/* Quantises numbers first .. first + 31 of token t, one per lane, and writes the codes. */
__device__ __forceinline__ void put_words(uint32_t *words, int t, int first, int bits, float x,
                                          const scale &s, bool there, int lane)
{
    const uint32_t code = there ? even_code(x, s.zero, s.step, s.top) : 0;
    for (int j = 0; j < bits; j++) {
        const uint32_t plane = __ballot_sync(~0u, code >> j & 1);
        if (lane == j)
            words[(first / 32 * bits + j) * KVD_PAGE_TOKENS + t % KVD_PAGE_TOKENS] = plane;
    }
}

/* Quantises numbers from .. from + n - 1 of token t, n >= 32, with scales per token. One warp. */
__device__ void code_unit(const kvd_xquant_args &a, int b, int t, int from, int n, int lane)
{
    const kvd_xquant_form &f = a.form;
    const int at = f.channels ? f.rank : 0, end = min(from + n, f.rank), alike = min(f.group, 32);
    uint32_t *const page = code_page(a, b, t);
    float lo = INFINITY, hi = -INFINITY;
    for (int i = from + lane; i < end; i += 32) {
        const float x = bf16_of(number_at(a, b, t, at + i), 0);
        lo = fminf(lo, x);
        hi = fmaxf(hi, x);
    }
    for (int k = 1; k < alike; k *= 2) {
        lo = fminf(lo, __shfl_xor_sync(~0u, lo, k));
        hi = fmaxf(hi, __shfl_xor_sync(~0u, hi, k));
    }
    const scale s = make_scale(lo, hi, f.bits);
    if (lane % alike == 0 && from + lane < end && (f.group < 32 || lane == 0))
        page[a.page.token_scale + (from + lane) / f.group * KVD_PAGE_TOKENS + t % KVD_PAGE_TOKENS] =
            scale_word(s);
    for (int first = from; first < end; first += 32) {
        const int i = first + lane;
        const float x = i < end ? bf16_of(number_at(a, b, t, at + i), 0) : 0;
        put_words(page + a.page.token, t, first, f.bits, x, s, i < end, lane);
    }
}

__global__ void __launch_bounds__(THREADS) code_tokens(const __grid_constant__ kvd_xquant_args a)
{
    const int b = (int)blockIdx.y, m = a.kv_len[b], before = a.start ? 0 : m - 1,
              n = max(a.form.group, 32), units = (a.form.rank + n - 1) / n,
              warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    for (int task = (int)blockIdx.x * WARPS + warp; m > 0 && task < (m - before) * units;
         task += (int)gridDim.x * WARPS)
        code_unit(a, b, before + task / units, task % units * n, n, lane);
}

/* Quantises channel i of the K vectors of a group of tokens from token `first` on. */
__device__ void code_channel(const kvd_xquant_args &a, int b, int first, int i)
{
    const int group = a.form.group, bits = a.form.bits, end = first + group,
              each = min(group, (int)KVD_PAGE_TOKENS);
    float lo = INFINITY, hi = -INFINITY;
    for (int t = first; t < end; t++) {
        const float x = bf16_of(number_at(a, b, t, i), 0);
        lo = fminf(lo, x);
        hi = fmaxf(hi, x);
    }
    const scale s = make_scale(lo, hi, bits);
    for (int t = first; t < end; t += each)
        code_page(a, b, t)[a.page.channel_scale + t % KVD_PAGE_TOKENS / each * a.form.rank + i] =
            scale_word(s);
    for (int from = first; from < end; from += 32 - from % 32) {
        const int to = min(end, from + 32 - from % 32);
        uint32_t plane[BITS_MAX] = {}, mask = 0;
        for (int t = from; t < to; t++) {
            const uint32_t code =
                even_code(bf16_of(number_at(a, b, t, i), 0), s.zero, s.step, s.top);
            mask |= 1u << t % 32;
#pragma unroll
            for (int j = 0; j < BITS_MAX; j++)
                plane[j] |= (code >> j & 1) << t % 32;
        }
        uint32_t *const words =
            code_page(a, b, from) + (2 * i + from % KVD_PAGE_TOKENS / 32) * bits;
#pragma unroll
        for (int j = 0; j < BITS_MAX; j++)
            if (j < bits)
                words[j] = (words[j] & ~mask) | plane[j];
    }
}

/* Quantises the K vectors. A thread has one channel of several tokens. */
__global__ void __launch_bounds__(THREADS) code_channels(const __grid_constant__ kvd_xquant_args a)
{
    const int b = (int)blockIdx.y, m = a.kv_len[b], group = a.form.group,
              i = (int)(blockIdx.z * THREADS + threadIdx.x);
    if (i >= a.form.rank)
        return;
    if (!a.start) {
        if (m > 0 && m % group == 0)
            code_channel(a, b, m - group, i);
        return;
    }
    const int unit = max(group, 32), coded = m / group * group;
    for (int first = (int)blockIdx.x * unit; first < coded; first += (int)gridDim.x * unit)
        for (int at = first; at < min(first + unit, coded); at += group)
            code_channel(a, b, at, i);
    for (int t = coded + (int)blockIdx.x; t < m; t += (int)gridDim.x)
        ring_page(a, b, t)[vector_index(t, i)] = number_at(a, b, t, i);
}

/* Decodes numbers i .. i + 7 of token t's K vector, with scales per channel. */
__device__ __forceinline__ void decode_channels(const kvd_xquant_args &a, const uint32_t *page,
                                                int t, int i, float (&x)[8])
{
    const int bits = a.form.bits, each = min(a.form.group, (int)KVD_PAGE_TOKENS);
    const uint32_t *const scales = page + a.page.channel_scale + t / each * a.form.rank + i;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const uint32_t *const words = page + (2 * (i + e) + t / 32) * bits;
        uint32_t code = 0;
        for (int j = 0; j < bits; j++)
            code |= (__ldg(words + j) >> t % 32 & 1) << j;
        x[e] = decoded(__ldg(scales + e), (float)code);
    }
}

__device__ __forceinline__ void decode_token(const kvd_xquant_args &a, const uint32_t *page, int t,
                                             int i, float (&x)[8])
{
    const int bits = a.form.bits, group = a.form.group;
    const uint32_t *const words = page + a.page.token + i / 32 * bits * KVD_PAGE_TOKENS + t,
                          *const scales = page + a.page.token_scale + t;
    uint32_t code[8] = {};
    for (int j = 0; j < bits; j++) {
        const uint32_t word = __ldg(words + j * KVD_PAGE_TOKENS) >> i % 32;
#pragma unroll
        for (int e = 0; e < 8; e++)
            code[e] |= (word >> e & 1) << j;
    }
#pragma unroll
    for (int e = 0; e < 8; e++)
        x[e] = decoded(__ldg(scales + (i + e) / group * KVD_PAGE_TOKENS), (float)code[e]);
}

/* Writes the bf16 vectors of all tokens to a->pages. */
__global__ void __launch_bounds__(THREADS) restore(const __grid_constant__ kvd_xquant_args a)
{
    const int b = (int)blockIdx.y, m = a.kv_len[b], runs = pitch_of(a) / 8, parts = (runs + 3) / 4,
              channel_runs = a.form.channels ? a.form.rank / 8 : 0,
              in_page = (int)threadIdx.x % KVD_PAGE_TOKENS,
              keys = (m - 1) / a.form.group * a.form.group;
    const size_t vectors = (size_t)(KVD_PAGE_TOKENS * pitch_of(a));
    for (int task = (int)blockIdx.x; task / parts * KVD_PAGE_TOKENS < m; task += (int)gridDim.x) {
        const int t = task / parts * KVD_PAGE_TOKENS + in_page,
                  run = task % parts * 4 + (int)threadIdx.x / KVD_PAGE_TOKENS;
        if (t >= m || run >= runs)
            continue;
        const bool first = run < channel_runs;
        const size_t page = page_number(a, b, t), at = vector_index(t, 8 * run);
        const uint32_t *const codes = a.codes + page * (size_t)a.page.words;
        uint4 *const to = reinterpret_cast<uint4 *>(a.pages + page * vectors + at);
        float x[8];
        if (t >= (first ? keys : m - 1)) {
            *to = *reinterpret_cast<const uint4 *>(ring_page(a, b, t) + at);
            continue;
        }
        if (first)
            decode_channels(a, codes, in_page, 8 * run, x);
        else
            decode_token(a, codes, in_page, 8 * (run - channel_runs), x);
        *to = make_uint4(bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]), bf16_pair(x[4], x[5]),
                         bf16_pair(x[6], x[7]));
    }
}

/* Returns the number of CTAs per request: one per task, but no more than fill the device. */
unsigned ctas(const kvd_xquant_args *a, size_t tasks)
{
    const size_t enough = (size_t)(8 * a->n_sms / a->n + 1);
    return (unsigned)(tasks < enough ? tasks : enough);
}

bool bad(const kvd_xquant_args *a)
{
    const kvd_xquant_form &f = a->form;
    return a->n < 1 || a->n > 65535 || a->n_sms < 1 || a->longest < 1 || f.rank < 16 ||
           f.rank % 16 || f.bits < 1 || f.bits > BITS_MAX || f.group < 1 ||
           (f.group % KVD_PAGE_TOKENS && KVD_PAGE_TOKENS % f.group);
}

} // namespace

cudaError_t kvd_xquant_code(const kvd_xquant_args *a, cudaStream_t stream)
{
    const kvd_xquant_form &f = a->form;
    if (bad(a))
        return cudaErrorInvalidValue;
    const size_t tokens = a->start ? (size_t)a->longest : 1, unit = f.group < 32 ? 32 : f.group,
                 units = tokens * (((size_t)f.rank + unit - 1) / unit);
    code_tokens<<<dim3(ctas(a, (units + WARPS - 1) / WARPS), (unsigned)a->n), THREADS, 0, stream>>>(
        *a);
    if (f.channels)
        code_channels<<<dim3(ctas(a, (tokens + unit - 1) / unit), (unsigned)a->n,
                             (unsigned)((f.rank + THREADS - 1) / THREADS)),
                        THREADS, 0, stream>>>(*a);
    return cudaGetLastError();
}

cudaError_t kvd_xquant_restore(const kvd_xquant_args *a, cudaStream_t stream)
{
    const size_t rank = (size_t)a->form.rank, runs = (a->form.channels ? 2 * rank : rank) / 8,
                 pages = ((size_t)a->longest + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
    if (bad(a) || a->start)
        return cudaErrorInvalidValue;
    restore<<<dim3(ctas(a, pages * ((runs + 3) / 4)), (unsigned)a->n), THREADS, 0, stream>>>(*a);
    return cudaGetLastError();
}
