/*
 * Kernels of xquant.h: quantise vectors of a layer's input as kvd_quantise_group does, and restore
 * bf16 pages.
 */
#include "methods/bits/cuda/xquant.h"

#include "common/cuda/launch.cuh"
#include "methods/bits/cuda/packed_code.cuh"

namespace
{

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    BITS_MAX = 16,
    BLOCK = 32, /* numbers of a token whose codes fill whole words */
    TOGETHER = THREADS / KVD_PAGE_TOKENS
};

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

/*
 * Stores the codes of 32 numbers of token t, one per lane, as the words of one block. `words` is
 * word 0 of the block's first token in the page.
 */
__device__ __forceinline__ void put_words(uint32_t *words, int t, int bits, uint32_t code, int lane)
{
    const int at = lane * bits, shift = at % 32;
    for (int j = 0; j < bits; j++) {
        const uint32_t low = at / 32 == j ? code << shift : 0,
                       high = shift && at / 32 + 1 == j ? code >> (32 - shift) : 0,
                       word = __reduce_or_sync(~0u, low | high);
        if (lane == j)
            words[j * KVD_PAGE_TOKENS + t % KVD_PAGE_TOKENS] = word;
    }
}

/* Returns the offset of the block with numbers i .. i + 31 in the codes of a page. */
__device__ __forceinline__ int block_at(int i, int bits)
{
    return i / 32 * bits * KVD_PAGE_TOKENS;
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
        put_words(page + a.page.token + block_at(first, f.bits), t, f.bits,
                  i < end ? even_code(x, s.zero, s.step, s.top) : 0, lane);
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

/* Quantises channels i - lane .. i - lane + 31 of the K vectors of a group of tokens. One warp. */
__device__ void code_channel(const kvd_xquant_args &a, int b, int first, int i, int lane)
{
    const int group = a.form.group, bits = a.form.bits, end = first + group,
              each = min(group, (int)KVD_PAGE_TOKENS);
    const bool there = i < a.form.rank;
    float lo = INFINITY, hi = -INFINITY;
    for (int t = first; there && t < end; t++) {
        const float x = bf16_of(number_at(a, b, t, i), 0);
        lo = fminf(lo, x);
        hi = fmaxf(hi, x);
    }
    const scale s = make_scale(lo, hi, bits);
    for (int t = first; there && t < end; t += each)
        code_page(a, b, t)[a.page.channel_scale + t % KVD_PAGE_TOKENS / each * a.form.rank + i] =
            scale_word(s);
    for (int t = first; t < end; t++) {
        const float x = there ? bf16_of(number_at(a, b, t, i), 0) : 0;
        put_words(code_page(a, b, t) + block_at(i, bits), t, bits,
                  there ? even_code(x, s.zero, s.step, s.top) : 0, lane);
    }
}

/* Quantises the K vectors. A lane has one channel of several tokens. */
__global__ void __launch_bounds__(THREADS) code_channels(const __grid_constant__ kvd_xquant_args a)
{
    const int b = (int)blockIdx.y, m = a.kv_len[b], group = a.form.group,
              lane = (int)threadIdx.x % 32, i = (int)(blockIdx.z * THREADS + threadIdx.x);
    if (i - lane >= a.form.rank)
        return;
    if (!a.start) {
        if (m > 0 && m % group == 0)
            code_channel(a, b, m - group, i, lane);
        return;
    }
    const int coded = m / group * group;
    for (int first = (int)blockIdx.x * group; first < coded; first += (int)gridDim.x * group)
        code_channel(a, b, first, i, lane);
    for (int t = coded + (int)blockIdx.x; i < a.form.rank && t < m; t += (int)gridDim.x)
        ring_page(a, b, t)[vector_index(t, i)] = number_at(a, b, t, i);
}

/* Returns code e of a block of 32 codes. */
template <int BITS> __device__ __forceinline__ uint32_t code_of(const uint32_t (&word)[BITS], int e)
{
    const int at = e * BITS, w = at / 32;
    const uint32_t x =
        at % 32 + BITS > 32
            ? __funnelshift_r(word[w], word[w + 1 < BITS ? w + 1 : w], (unsigned)(at % 32))
            : word[w] >> at % 32;
    return x & ((1u << BITS) - 1);
}

/* Returns x < 2^23 as a float, by two instructions that are faster than a conversion. */
__device__ __forceinline__ float float_of(uint32_t x)
{
    return __uint_as_float(x | 0x4b000000u) - 0x1p23F;
}

/*
 * Decodes the first 8 * runs numbers of a block of a token. from: word 0, the others follow
 * KVD_PAGE_TOKENS apart. Each scale is for `alike` numbers, a power of 2; the next one follows
 * `apart` words later.
 */
template <int BITS>
__device__ __forceinline__ void decode_block(const uint32_t *from, const uint32_t *scales,
                                             int alike, int apart, int runs, uint4 *to)
{
    uint32_t word[BITS], s = __ldg(scales);
#pragma unroll
    for (int j = 0; j < BITS; j++)
        word[j] = __ldg(from + j * KVD_PAGE_TOKENS);
#pragma unroll
    for (int r = 0; r < BLOCK / 8; r++) {
        float x[8];
        if (r >= runs)
            break;
#pragma unroll
        for (int e = 0; e < 8; e++) {
            if ((8 * r + e) && ((8 * r + e) & (alike - 1)) == 0)
                s = __ldg(scales += apart);
            x[e] = decoded(s, float_of(code_of(word, 8 * r + e)));
        }
        to[r * KVD_PAGE_TOKENS] = make_uint4(bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]),
                                             bf16_pair(x[4], x[5]), bf16_pair(x[6], x[7]));
    }
}

/* Writes the bf16 vectors of all tokens to a->pages. A thread writes one block of a token. */
template <int BITS>
__global__ void __launch_bounds__(THREADS) restore(const __grid_constant__ kvd_xquant_args a)
{
    const kvd_xquant_form &f = a.form;
    const int b = (int)blockIdx.y, m = a.kv_len[b], each = (f.rank + BLOCK - 1) / BLOCK,
              blocks = f.channels ? 2 * each : each, parts = (blocks + TOGETHER - 1) / TOGETHER,
              in_page = (int)threadIdx.x % KVD_PAGE_TOKENS, keys = (m - 1) / f.group * f.group;
    for (int task = (int)blockIdx.x; task / parts * KVD_PAGE_TOKENS < m; task += (int)gridDim.x) {
        const int t = task / parts * KVD_PAGE_TOKENS + in_page,
                  block = task % parts * TOGETHER + (int)threadIdx.x / KVD_PAGE_TOKENS;
        if (t >= m || block >= blocks)
            continue;
        const bool is_key = f.channels && block < each;
        const int i = BLOCK * (is_key || !f.channels ? block : block - each),
                  runs = min((int)BLOCK, f.rank - i) / 8;
        const size_t page = page_number(a, b, t),
                     at = vector_index(t, is_key || !f.channels ? i : f.rank + i);
        uint4 *const to = reinterpret_cast<uint4 *>(
            a.pages + page * (size_t)(KVD_PAGE_TOKENS * pitch_of(a)) + at);
        if (t >= (is_key ? keys : m - 1)) {
            const uint4 *const from = reinterpret_cast<const uint4 *>(ring_page(a, b, t) + at);
            for (int r = 0; r < runs; r++)
                to[r * KVD_PAGE_TOKENS] = from[r * KVD_PAGE_TOKENS];
            continue;
        }
        const uint32_t *const codes = a.codes + page * (size_t)a.page.words;
        const int alike = min(f.group, (int)KVD_PAGE_TOKENS);
        if (is_key)
            decode_block<BITS>(codes + block_at(i, BITS) + in_page,
                               codes + a.page.channel_scale + in_page / alike * f.rank + i, 1, 1,
                               runs, to);
        else
            decode_block<BITS>(codes + a.page.token + block_at(i, BITS) + in_page,
                               codes + a.page.token_scale + i / f.group * KVD_PAGE_TOKENS + in_page,
                               alike, KVD_PAGE_TOKENS, runs, to);
    }
}

typedef void (*restore_kernel)(kvd_xquant_args);

template <int BITS = 1> restore_kernel restore_of(int bits)
{
    if constexpr (BITS < BITS_MAX)
        if (bits > BITS)
            return restore_of<BITS + 1>(bits);
    return restore<BITS>;
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
        code_channels<<<dim3(ctas(a, (tokens + (size_t)f.group - 1) / (size_t)f.group),
                             (unsigned)a->n, (unsigned)((f.rank + THREADS - 1) / THREADS)),
                        THREADS, 0, stream>>>(*a);
    return cudaGetLastError();
}

cudaError_t kvd_xquant_restore(const kvd_xquant_args *a, cudaStream_t stream)
{
    const size_t each = ((size_t)a->form.rank + BLOCK - 1) / BLOCK,
                 parts = ((a->form.channels ? 2 * each : each) + TOGETHER - 1) / TOGETHER,
                 pages = ((size_t)a->longest + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
    if (bad(a) || a->start)
        return cudaErrorInvalidValue;
    return kvd_launch(restore_of(a->form.bits), dim3(ctas(a, pages * parts), (unsigned)a->n),
                      THREADS, 0, stream, *a);
}
