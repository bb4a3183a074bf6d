/* Kernels of method xquant: quantise vectors computed from a layer's inputs, and decode them to
 * bf16 pages. */
#include "methods/bits/cuda/xquant.h"

#include "common/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
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

/* Stores 32 quantised numbers of token t. Each lane has one of them. */
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

/* Returns the offset of elements i .. i + 31 of all tokens' vectors in a page, in 32-bit words. */
__device__ __forceinline__ int block_at(int i, int bits)
{
    return i / 32 * bits * KVD_PAGE_TOKENS;
}

/* Quantises elements `from` .. `from` + n - 1 of token t's vector, with scales per token. All lanes
 * of a warp must call it, with n at least 32. */
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

/* Quantises 32 channels of a group of tokens of K, with a scale per channel. Called by one warp. */
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

/* Quantises the vectors of K, with a scale per channel. A lane quantises one channel of several
 * tokens. */
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

/* Returns the code with index e. `word` holds codes of BITS bits, which follow each other without
 * gaps from bit 0 on. */
template <int BITS, int N>
__device__ __forceinline__ uint32_t code_of(const uint32_t (&word)[N], int e)
{
    const int at = e * BITS, w = at / 32;
    const uint32_t x = at % 32 + BITS > 32
                           ? __funnelshift_r(word[w], word[min(w + 1, N - 1)], (unsigned)(at % 32))
                           : word[w] >> at % 32;
    return x & ((1u << BITS) - 1);
}

/* Returns x as a float. x must be below 2^23. Two instructions are faster than a conversion. */
__device__ __forceinline__ float float_of(uint32_t x)
{
    return __uint_as_float(x | 0x4b000000u) - 0x1p23F;
}

/* Decodes adjacent numbers of one token to bf16, 8 numbers at a time. */
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
            x[e] = decoded(s, float_of(code_of<BITS>(word, 8 * r + e)));
        }
        to[r * KVD_PAGE_TOKENS] = make_uint4(bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]),
                                             bf16_pair(x[4], x[5]), bf16_pair(x[6], x[7]));
    }
}

/* Decodes the vectors of all tokens to bf16 pages a->pages. */
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

enum {
    HEADS = KVD_XQUANT_HEADS,
    DIMS = 128, /* dimensions of a KV head */
    K_BYTES = KVD_PAGE_TOKENS * DIMS * 2,
    UNIT = 64, /* channels of V that a warp adds up together */
    UNITS = KVD_XQUANT_RANK / UNIT / WARPS,
    /* Distance in elements between successive queries in shared memory, padded against bank
     * conflicts. */
    Q_PITCH = DIMS + 8,
    V_PITCH = KVD_PAGE_TOKENS + 8, /* in words */
    P_PITCH = KVD_PAGE_TOKENS + 8,
    S_PITCH = KVD_PAGE_TOKENS + 4
};

#define LOG2_E 1.4426950408889634F

/* Returns the number of arrays of 64 words that a page's quantised V and its scales take. */
__host__ __device__ __forceinline__ uint32_t value_rows(const kvd_xquant_page &p)
{
    return (uint32_t)(p.words - p.token) / KVD_PAGE_TOKENS;
}

struct area {
    unsigned char *keys;             /* [n_kv_heads][K_BYTES] K of a page */
    uint32_t *values;                /* codes and scales of V of a page */
    uint16_t *q;                     /* [HEADS][Q_PITCH] queries in bf16 */
    uint16_t *p;                     /* [HEADS][P_PITCH] softmax numerators in bf16 */
    float *score;                    /* [HEADS][S_PITCH] scores, times log2(e) */
    float *factor;                   /* [HEADS] factor of earlier pages' sums */
    uint32_t keys_full, values_full; /* barriers */
    uint32_t bytes;
};

/* Divides the shared memory that begins at `smem` into parts. On the host, only `bytes`, the total
 * size, is set. */
__host__ __device__ __forceinline__ area area_of(int n_kv_heads, const kvd_xquant_page &page,
                                                 [[maybe_unused]] unsigned char *smem)
{
    const uint32_t values = (uint32_t)n_kv_heads * K_BYTES,
                   q = values + value_rows(page) * V_PITCH * 4, p = q + HEADS * Q_PITCH * 2,
                   score = p + HEADS * P_PITCH * 2, factor = score + HEADS * S_PITCH * 4;
    area s = {};
    s.bytes = factor + HEADS * 4;
#ifdef __CUDA_ARCH__
    s.keys = smem;
    s.values = reinterpret_cast<uint32_t *>(smem + values);
    s.q = reinterpret_cast<uint16_t *>(smem + q);
    s.p = reinterpret_cast<uint16_t *>(smem + p);
    s.score = reinterpret_cast<float *>(smem + score);
    s.factor = reinterpret_cast<float *>(smem + factor);
#endif
    return s;
}

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Starts copying arrays of EACH bytes to shared memory. All threads of the CTA must call it. */
template <int EACH>
__device__ __forceinline__ void copy_rows(void *to, int pitch, const void *from, int rows)
{
    for (int i = (int)threadIdx.x; i < rows * (EACH / 16); i += THREADS)
        kvd_copy_16(shared_address(to) + (uint32_t)(i / (EACH / 16) * pitch + i % (EACH / 16) * 16),
                    static_cast<const uint4 *>(from) + i, 16);
}

__device__ __forceinline__ void end_copies()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until all groups of copies that this thread started are complete, except the latest group.
 * Then waits for the other threads of the CTA. */
__device__ __forceinline__ void wait_but_last()
{
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
}

/* Starts copying K of a page to shared memory, as one cp.async group. */
__device__ __forceinline__ void begin_keys(const kvd_xquant_attend_args &a, const area &s, int b,
                                           int page, bool there)
{
    if (there) {
        const uint16_t *const from = static_cast<const uint16_t *>(a.pool) +
                                     page_number(a.x, b, page * KVD_PAGE_TOKENS) * a.page_elements;
        for (int g = 0; g < a.n_kv_heads; g++)
            copy_rows<K_BYTES>(s.keys + g * K_BYTES, K_BYTES,
                               from + g * (2 * KVD_PAGE_TOKENS * DIMS), 1);
    }
    end_copies();
}

/* Starts copying quantised V of a page, and its scales, to shared memory as one cp.async group. */
__device__ __forceinline__ void begin_values(const kvd_xquant_attend_args &a, const area &s, int b,
                                             int page, bool there)
{
    if (there)
        copy_rows<KVD_PAGE_TOKENS * 4>(s.values, V_PITCH * 4,
                                       code_page(a.x, b, page * KVD_PAGE_TOKENS) + a.x.page.token,
                                       (int)value_rows(a.x.page));
    end_copies();
}

/* Computes the attention scores of the first n tokens of a page. */
__device__ __forceinline__ void score_page(const kvd_xquant_attend_args &a, const area &s, int n,
                                           int warp, int lane)
{
    const int group = a.n_heads / a.n_kv_heads, row = lane / 4, column = lane % 4,
              first = warp % 4 * 16, part = lane / 8;
    for (int g = warp / 4; g < a.n_kv_heads; g += WARPS / 4) {
        const uint32_t k = shared_address(s.keys + g * K_BYTES) +
                           (uint32_t)((first + part % 2 * 8) * (DIMS * 2) + part / 2 * 128 +
                                      lane % 8 * 16),
                       q = shared_address(s.q + (g * group + min(lane % 8, group - 1)) * Q_PITCH +
                                          8 * part);
        float c[4] = {};
#pragma unroll
        for (int i = 0; i < DIMS / 32; i++) {
            uint32_t x[2][4], y[4];
            ldmatrix(q + (uint32_t)(64 * i), y);
            ldmatrix(k + (uint32_t)(512 * i), x[0]);
            ldmatrix(k + (uint32_t)(512 * i + 256), x[1]);
            mma_in_order<true>(c, x[0], y[0], y[1]);
            mma_in_order<true>(c, x[1], y[2], y[3]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int h = 2 * column + e % 2, t = first + row + e / 2 * 8;
            if (h < group)
                s.score[(g * group + h) * S_PITCH + t] =
                    t < n ? c[e] * (a.scale * LOG2_E) : -INFINITY;
        }
    }
}

/* Largest scores so far of the query heads of a warp, and a lane's part of their softmax sums. */
struct softmax {
    float max[HEADS / WARPS], sum[HEADS / WARPS];
};

/* Replaces attention scores by softmax numerators, and updates the largest scores and the softmax
 * sums. */
__device__ __forceinline__ void add_scores(const kvd_xquant_attend_args &a, const area &s,
                                           softmax &m, int newest, float *score, int warp, int lane)
{
#pragma unroll
    for (int i = 0; i < HEADS / WARPS; i++) {
        const int h = warp * (HEADS / WARPS) + i;
        if (h >= a.n_heads)
            break;
        const float x[2] = {s.score[h * S_PITCH + lane], s.score[h * S_PITCH + lane + 32]};
        float top = fmaxf(m.max[i], fmaxf(x[0], x[1]));
        for (int k = 16; k; k /= 2)
            top = fmaxf(top, __shfl_xor_sync(~0u, top, k));
        const float factor = kvd_exp2(m.max[i] - top);
        m.max[i] = top;
        m.sum[i] *= factor;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float y = kvd_exp2(x[half] - top);
            const bool is_newest = lane + 32 * half == newest;
            m.sum[i] += y;
            if (is_newest)
                score[h] = x[half];
            s.p[h * P_PITCH + lane + 32 * half] = (uint16_t)pack<true>(is_newest ? 0 : y, 0);
        }
        if (lane == 0)
            s.factor[h] = factor;
    }
}

/* Loads quantised numbers 8 * run .. 8 * run + 7 of token t. */
template <int BITS, int N>
__device__ __forceinline__ void load_run(const uint32_t *values, int run, int t,
                                         uint32_t (&code)[N])
{
    const int bit = run % 4 * 8 * BITS;
    const uint32_t *const from = values + 8 * run / BLOCK * BITS * V_PITCH + t;
    uint32_t word[N + 1];
#pragma unroll
    for (int i = 0; i < (BITS % 4 ? N + 1 : N); i++)
        word[i] = from[min(bit / 32 + i, BITS - 1) * V_PITCH];
#pragma unroll
    for (int i = 0; i < N; i++)
        code[i] = BITS % 4 ? __funnelshift_r(word[i], word[i + 1], (unsigned)(bit % 32)) : word[i];
}

/* Accumulators of mma instructions, 4 numbers per lane. The 32 lanes together have 16 query heads
 * times 8 channels of V. */
typedef float sums[UNITS][2][8][4];

/* Multiplies the softmax numerators of one page by the quantised V, and adds the products to the
 * accumulators. Leaves out tokens that are not quantised. */
template <int BITS>
__device__ __forceinline__ void add_values(const kvd_xquant_attend_args &a, const area &s, int n,
                                           sums &o, int warp, int lane)
{
    enum { N = (BITS + 3) / 4 };
    const uint32_t *const scales =
        s.values + (a.x.page.token_scale - a.x.page.token) / KVD_PAGE_TOKENS * V_PITCH;
    float factor[4];
    bool grows = false;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        factor[i] = s.factor[lane / 4 + 8 * i];
        grows = grows || factor[i] < 1;
    }
    if (__any_sync(~0u, grows)) {
#pragma unroll
        for (int i = 0; i < UNITS * 2 * 8 * 4; i++)
            o[i / 64][i / 32 % 2][i / 4 % 8][i % 4] *= factor[i / 32 % 2 * 2 + i % 4 / 2];
    }
    for (int first = 0; first < KVD_PAGE_TOKENS; first += 16) {
        uint32_t p[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++)
            ldmatrix(shared_address(s.p + (16 * i + lane % 16) * P_PITCH + first + lane / 16 * 8),
                     p[i]);
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const int unit = warp + WARPS * u, run = unit * (UNIT / 8) + lane / 4;
            uint32_t code[4][N], scale[4];
            if (unit * UNIT >= a.x.form.rank)
                break;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int t = first + lane % 4 * 2 + i % 2 + i / 2 * 8;
                load_run<BITS>(s.values, run, t, code[i]);
                scale[i] = t < n ? scales[8 * run / a.x.form.group * V_PITCH + t] : 0;
            }
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float x[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    x[i] = decoded(scale[i], float_of(code_of<BITS>(code[i], j)));
                const uint32_t low = pack<true>(x[0], x[1]), high = pack<true>(x[2], x[3]);
                mma_in_order<true>(o[u][0][j], p[0], low, high);
                mma_in_order<true>(o[u][1][j], p[1], low, high);
            }
        }
    }
}

__device__ __forceinline__ void put_sums(const kvd_xquant_attend_args &a, size_t cta, const sums &o,
                                         int warp, int lane)
{
    float *const to = a.sums + cta * (size_t)(a.n_heads * a.x.form.rank);
#pragma unroll
    for (int u = 0; u < UNITS; u++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int h = 16 * (i / 4) + lane / 4 + i % 4 / 2 * 8, unit = warp + WARPS * u;
            const float *const x = &o[u][i / 4][0][i % 4];
            if (h >= a.n_heads || unit * UNIT >= a.x.form.rank)
                continue;
            float4 *const row = reinterpret_cast<float4 *>(to + h * a.x.form.rank + unit * UNIT +
                                                           8 * (lane % 4 * 2 + i % 2));
            row[0] = make_float4(x[0], x[4], x[8], x[12]);
            row[1] = make_float4(x[16], x[20], x[24], x[28]);
        }
}

/* Computes the attention of one request to the pages that one CTA reads. Kernel `merge` combines
 * these partial results. */
template <int BITS>
__global__ void __launch_bounds__(THREADS, 1)
    attend(const __grid_constant__ kvd_xquant_attend_args a)
{
    extern __shared__ __align__(128) unsigned char smem[];
    const area s = area_of(a.n_kv_heads, a.x.page, smem);
    const int b = (int)blockIdx.y, m = a.x.kv_len[b], warp = (int)threadIdx.x / 32,
              lane = (int)threadIdx.x % 32, pages = (m + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS,
              each = (pages + (int)gridDim.x - 1) / (int)gridDim.x, begin = (int)blockIdx.x * each,
              end = min(begin + each, pages);
    const size_t cta = (size_t)b * gridDim.x + blockIdx.x;
    softmax sm;
    sums o = {};
    for (int i = 0; i < HEADS / WARPS; i++) {
        sm.max[i] = -INFINITY;
        sm.sum[i] = 0;
    }
    for (int i = (int)threadIdx.x; i < a.n_heads * (DIMS / 8); i += THREADS)
        *reinterpret_cast<uint4 *>(s.q + i / (DIMS / 8) * Q_PITCH + i % (DIMS / 8) * 8) = __ldg(
            static_cast<const uint4 *>(a.q) + (size_t)b * (size_t)(a.n_heads * (DIMS / 8)) + i);
    for (int i = (int)threadIdx.x; i < HEADS * P_PITCH; i += THREADS)
        s.p[i] = 0;
    if (threadIdx.x < HEADS)
        s.factor[threadIdx.x] = 1;
    begin_keys(a, s, b, begin, begin < end);
    begin_values(a, s, b, begin, begin < end);
    for (int page = begin; page < end; page++) {
        const int left = m - page * KVD_PAGE_TOKENS;
        const bool more = page + 1 < end;
        wait_but_last(); /* K */
        score_page(a, s, left, warp, lane);
        __syncthreads();
        begin_keys(a, s, b, page + 1, more);
        add_scores(a, s, sm, left - 1, a.newest + (size_t)b * (size_t)a.n_heads, warp, lane);
        wait_but_last(); /* V */
        add_values<BITS>(a, s, left - 1, o, warp, lane);
        __syncthreads();
        begin_values(a, s, b, page + 1, more);
    }
    if (begin < end)
        put_sums(a, cta, o, warp, lane);
    for (int i = 0; i < HEADS / WARPS; i++) {
        const int h = warp * (HEADS / WARPS) + i;
        for (int k = 16; k; k /= 2)
            sm.sum[i] += __shfl_xor_sync(~0u, sm.sum[i], k);
        if (lane == 0 && h < a.n_heads)
            a.ends[cta * (size_t)a.n_heads + (size_t)h] = make_float2(sm.max[i], sm.sum[i]);
    }
}

/* Merges the partial attention results of a request's CTAs, and adds V of the newest token,
 * weighted by its softmax numerator. */
__global__ void __launch_bounds__(THREADS) merge(const __grid_constant__ kvd_xquant_attend_args a)
{
    const int h = (int)blockIdx.x, b = (int)blockIdx.y, rank = a.x.form.rank, m = a.x.kv_len[b],
              i = (int)threadIdx.x * 4, parts = a.parts;
    const size_t row = (size_t)b * (size_t)a.n_heads + (size_t)h,
                 first = (size_t)b * (size_t)(parts * a.n_heads) + (size_t)h;
    float top = a.sinks ? a.sinks[h] * LOG2_E : -INFINITY;
    if (i >= rank)
        return;
    for (int k = 0; k < parts; k++)
        top = fmaxf(top, a.ends[first + (size_t)(k * a.n_heads)].x);
    float all = a.sinks ? kvd_exp2(a.sinks[h] * LOG2_E - top) : 0, x[4] = {};
    for (int k = 0; k < parts; k++) {
        const size_t at = first + (size_t)(k * a.n_heads);
        const float2 end = a.ends[at];
        /* CTAs that had no tokens did not write their partial results. */
        if (end.x == -INFINITY)
            continue;
        const float f = kvd_exp2(end.x - top);
        const float4 y = *reinterpret_cast<const float4 *>(a.sums + at * (size_t)rank + i);
        all += end.y * f;
        x[0] += y.x * f;
        x[1] += y.y * f;
        x[2] += y.z * f;
        x[3] += y.w * f;
    }
    if (m > 0) {
        const float f = kvd_exp2(a.newest[row] - top);
        const uint2 y = *reinterpret_cast<const uint2 *>(ring_page(a.x, b, m - 1) +
                                                         vector_index(m - 1, rank + i));
        for (int e = 0; e < 4; e++)
            x[e] += f * bf16_of(e < 2 ? y.x : y.y, e % 2);
    }
    const float over = all > 0 ? 1 / all : 0;
    reinterpret_cast<uint2 *>(a.o)[(row * (size_t)rank + (size_t)i) / 4] =
        make_uint2(bf16_pair(x[0] * over, x[1] * over), bf16_pair(x[2] * over, x[3] * over));
}

typedef void (*attend_kernel)(kvd_xquant_attend_args);

template <int BITS = 1> attend_kernel attend_of(int bits)
{
    if constexpr (BITS < KVD_XQUANT_BITS)
        if (bits > BITS)
            return attend_of<BITS + 1>(bits);
    return attend<BITS>;
}

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
                 parts = ((a->form.channels && !a->keys_alone ? 2 * each : each) + TOGETHER - 1) /
                         TOGETHER,
                 pages = ((size_t)a->longest + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
    if (bad(a) || a->start)
        return cudaErrorInvalidValue;
    return kvd_launch(restore_of(a->form.bits), dim3(ctas(a, pages * parts), (unsigned)a->n),
                      THREADS, 0, stream, *a);
}

bool kvd_xquant_attends(const kvd_xquant_form *f, int32_t n_heads, int32_t n_kv_heads)
{
    int most = 0;
    return f->channels && f->bits <= KVD_XQUANT_BITS && f->group % 8 == 0 && f->rank % UNIT == 0 &&
           f->rank <= KVD_XQUANT_RANK && n_heads <= HEADS && n_heads % n_kv_heads == 0 &&
           n_heads / n_kv_heads <= 8 &&
           kvd_device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &most) == cudaSuccess &&
           area_of(n_kv_heads, kvd_xquant_page_of(f), NULL).bytes <= (uint32_t)most;
}

cudaError_t kvd_xquant_attend(const kvd_xquant_attend_args *a, cudaStream_t stream)
{
    const dim3 heads((unsigned)a->n_heads, (unsigned)a->x.n);
    if (bad(&a->x) || a->x.start || a->parts < 1 ||
        !kvd_xquant_attends(&a->x.form, a->n_heads, a->n_kv_heads))
        return cudaErrorInvalidValue;
    const cudaError_t e =
        kvd_launch(attend_of(a->x.form.bits), dim3((unsigned)a->parts, (unsigned)a->x.n), THREADS,
                   (size_t)area_of(a->n_kv_heads, a->x.page, NULL).bytes, stream, *a);
    return e == cudaSuccess ? kvd_launch(merge, heads, THREADS, 0, stream, *a) : e;
}
