/* Device functions that pack and unpack the quantised numbers in a lane's words. */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_WORDS_CUH
#define KVD_METHODS_BITS_CUDA_PACKED_WORDS_CUH

#include "kernels/cuda/mma.cuh"
#include "methods/bits/cuda/packed_codes.h"

static __device__ __forceinline__ int keys_coded(const kvd_packed_args &a, int m)
{
    return m / a.k_block * a.k_block;
}

static __device__ __forceinline__ int values_coded(const kvd_packed_args &a, int m)
{
    return a.form.v_channels ? keys_coded(a, m) : m > a.v_newest ? m - a.v_newest : 0;
}

/* Returns the index of the first token to which the newest token of a request with m tokens
 * attends. */
static __device__ __forceinline__ int first_seen(const kvd_packed_args &a, int m)
{
    return a.map.window ? max(m - a.map.window, 0) : 0;
}

/* Returns the address of K of KV head g in page p of the ring buffer. V comes after K. */
static __device__ __forceinline__ const uint16_t *in_ring(const kvd_packed_args &a, int b, int p,
                                                          int g)
{
    const size_t page = (size_t)a.slot[b] * (size_t)a.ring_pages + (size_t)(p % a.ring_pages);
    return a.ring + page * (size_t)a.map.page_elements + a.map.kv_offset[g];
}

static __device__ __forceinline__ int page_number(const kvd_packed_args &a, int b, int p)
{
    return __ldg(a.page_table + (size_t)b * (size_t)a.max_pages + p);
}

static __device__ __forceinline__ uint16_t *in_rows(const kvd_packed_args &a, int page, int g)
{
    return a.rows + (size_t)page * (size_t)a.map.page_elements + a.map.kv_offset[g];
}

/* Returns the index of channel i of token t in a bf16 page. */
static __device__ __forceinline__ int page_index(int t, int i, int d)
{
    return t / 8 * 8 * d + i / 8 * 64 + t % 8 * 8 + i % 8;
}

static __device__ __forceinline__ int place_in_page(const kvd_packed_args &a, int g, int side,
                                                    int t, int i)
{
    const int d_qk = a.map.d_qk[g];
    return side * KVD_PAGE_TOKENS * d_qk + page_index(t, i, side ? a.map.d_v[g] : d_qk);
}

/* Returns the address of a number that is not quantised: in the bf16 page of a prompt, or in the
 * ring buffer. */
static __device__ __forceinline__ uint16_t *uncoded(const kvd_packed_args &a, int b, int g,
                                                    int side, int t, int i)
{
    const int p = t / KVD_PAGE_TOKENS;
    uint16_t *const rows =
        a.q_len ? in_rows(a, page_number(a, b, p), g) : const_cast<uint16_t *>(in_ring(a, b, p, g));
    return rows + place_in_page(a, g, side, t % KVD_PAGE_TOKENS, i);
}

/* Range of tokens of a request that are quantised in this iteration: tokens `from` to `to` - 1. */
struct coded_span {
    int from, to, prompt, m;
};

/* Returns the tokens of request b that are quantised as one block in this iteration, if any. */
static __device__ __forceinline__ coded_span coded_now(const kvd_packed_args &a, int b)
{
    const int m = a.kv_len[b], to = keys_coded(a, m);
    if (a.q_len)
        return {min(keys_coded(a, first_seen(a, m)), to), to, to, m};
    const int from = keys_coded(a, m - 1);
    return {from, to, min(a.prompt[a.slot[b]], from), m};
}

/* Returns the address of K of token t, which must be a token that is stored as float16. V comes
 * after K. */
static __device__ __forceinline__ uint16_t *in_sink(const kvd_packed_args &a, int b, int g, int t)
{
    const int wide = a.map.page_elements / KVD_PAGE_TOKENS;
    return a.sink + ((size_t)a.slot[b] * (size_t)a.n_sink + (size_t)t) * (size_t)wide +
           a.map.kv_offset[g] / KVD_PAGE_TOKENS;
}

static __device__ __forceinline__ void rotate_pair(float cosine, float sine, float &x, float &y)
{
    const float first = x;
    x = __fmaf_rn(first, cosine, __fmul_rn(-y, sine));
    y = __fmaf_rn(y, cosine, __fmul_rn(first, sine));
}

struct rope_of {
    float2 cosine, sine;
};

/* Returns the cosines and sines of RoPE for channels i and i + 1. i must be even. */
static __device__ __forceinline__ rope_of load_rope(const kvd_packed_args &a, int t, int i)
{
    const size_t half = (size_t)a.d_head / 2, row = (size_t)t * half;
    if (a.interleaved) {
        const size_t at = row + (size_t)i / 2, other = at + half / 2;
        return {make_float2(__ldg(a.cosine + at), __ldg(a.cosine + other)),
                make_float2(__ldg(a.sine + at), __ldg(a.sine + other))};
    }
    return {__ldg(reinterpret_cast<const float2 *>(a.cosine + row + (size_t)i)),
            __ldg(reinterpret_cast<const float2 *>(a.sine + row + (size_t)i))};
}

/* Applies RoPE to channels i and i + 1 (low) and to the channels d_head / 2 after them (high). */
static __device__ __forceinline__ void apply_rope(const kvd_packed_args &a, const rope_of &r,
                                                  float (&low)[2], float (&high)[2])
{
    if (a.interleaved) {
        rotate_pair(r.cosine.x, r.sine.x, low[0], low[1]);
        rotate_pair(r.cosine.y, r.sine.y, high[0], high[1]);
    } else {
        rotate_pair(r.cosine.x, r.sine.x, low[0], high[0]);
        rotate_pair(r.cosine.y, r.sine.y, low[1], high[1]);
    }
}

static __device__ __forceinline__ char *in_codes(const kvd_packed_args &a, int page, int g)
{
    return a.codes + (size_t)page * a.page_bytes + a.head_at[g];
}

static __device__ __forceinline__ uint32_t *as_words(char *at)
{
    return reinterpret_cast<uint32_t *>(at);
}

/* Takes from each of n <= 4 words the byte that `select` chooses. Returns a word of these bytes. */
static __device__ __forceinline__ uint32_t bytes_of(const uint32_t *word, int n, uint32_t select)
{
    const uint32_t second = n > 1 ? word[1] : 0, third = n > 2 ? word[2] : 0,
                   fourth = n > 3 ? word[3] : 0;
    return __byte_perm(__byte_perm(word[0], second, select), __byte_perm(third, fourth, select),
                       0x5410);
}

/* Transposes two 4 x 4 bit matrices: one in the lower 4 bits, one in the upper 4 bits of the bytes
 * of x. */
static __device__ __forceinline__ uint32_t turned_bits(uint32_t x)
{
    uint32_t t = (x ^ x >> 7) & 0x00aa00aau;
    x ^= t ^ t << 7;
    t = (x ^ x >> 14) & 0x0000ccccu;
    return x ^ t ^ t << 14;
}

/* Returns a byte that has bit j of each of eight numbers. */
static __device__ __forceinline__ uint32_t plane_of(const uint32_t (&code)[8], int j)
{
    uint32_t byte = 0;
#pragma unroll
    for (int e = 0; e < 8; e++)
        byte |= (code[e] >> j & 1) << e;
    return byte;
}

/* Unpacks 8 codes from bit planes: codes 8 q to 8 q + 7. Code 8 q + e becomes byte e % 4 of code[e
 * / 4]. */
static __device__ __forceinline__ void codes_of_planes(const uint32_t *planes, int bits, int q,
                                                       uint32_t (&code)[2])
{
    const uint32_t select = 0x40u + 0x11u * (uint32_t)q, nibbles = 0x0f0f0f0fu;
    const uint32_t low = turned_bits(bytes_of(planes, bits, select));
    code[0] = low & nibbles;
    code[1] = low >> 4 & nibbles;
    if (bits > 4) {
        const uint32_t high = turned_bits(bytes_of(planes + 4, bits - 4, select));
        code[0] |= high << 4 & ~nibbles;
        code[1] |= high & ~nibbles;
    }
}

template <int MOST>
static __device__ __forceinline__ void pairs_of_planes(const uint32_t *planes, int bits, int c,
                                                       uint32_t (&code)[2])
{
    code[0] = code[1] = 0;
#pragma unroll
    for (int j = MOST - 1; j >= 0; j--)
        if (j < bits) {
            const uint32_t plane = planes[j] >> 2 * c;
#pragma unroll
            for (int e = 0; e < 2; e++)
                code[e] = 2 * code[e] + (plane >> e & 0x01010101u);
        }
}

/* The float 2^23. If an integer 0 <= n < 2^23 is added to its bit pattern, the result is the bit
 * pattern of the float 2^23 + n. */
static constexpr float RAISED = 1 << 23;

/* Returns RAISED (2^23) plus byte e of x, as an exact float. */
static __device__ __forceinline__ float raised_byte(uint32_t x, int e)
{
    return __uint_as_float(__byte_perm(x, 0x4b000000u, 0x7540u + (uint32_t)e));
}

/* Returns RAISED (2^23) plus a 16-bit number, as an exact float. Byte e of `low` and byte e of
 * `high` are its two bytes. */
static __device__ __forceinline__ float raised_pair(uint32_t low, uint32_t high, int e)
{
    const uint32_t both = __byte_perm(low, high, 0x40u + 0x11u * (uint32_t)e);
    return __uint_as_float(__byte_perm(both, 0x4b000000u, 0x7510u));
}

template <int W>
static __device__ __forceinline__ void add_plane(const uint32_t *words, int below,
                                                 uint32_t (&pair)[16])
{
#pragma unroll
    for (int i = 0; i < W; i++) {
        const uint32_t word = words[i];
#pragma unroll
        for (int p = 0; p < 16 / W; p++)
            pair[i * (16 / W) + p] |= (word >> (p * W) & ((1u << W) - 1) * 0x10001u) << below;
    }
}

/* Unpacks the 32 numbers of a lane. pair[p] gets numbers 2 p and 2 p + 1. */
static __device__ __forceinline__ void load_pairs(const uint32_t *words, bool levels, int bits,
                                                  uint32_t (&pair)[16])
{
    const uint32_t mask = (1u << bits) - 1;
#pragma unroll
    for (int p = 0; p < 16; p++) {
        pair[p] = 0;
        if (levels) {
            const int at = 2 * bits * p, next = min(at / 32 + 1, bits - 1);
            const uint32_t two = __funnelshift_r(words[at / 32], words[next], (uint32_t)at % 32);
            pair[p] = (two & mask) | (two >> bits & mask) << 16;
        }
    }
    if (levels)
        return;
    if (bits == 8)
        add_plane<8>(words, 0, pair);
    if (bits & 4)
        add_plane<4>(words, 0, pair);
    if (bits & 2)
        add_plane<2>(words + (bits & 4), bits & 4, pair);
    if (bits & 1)
        add_plane<1>(words + (bits & 6), bits & 6, pair);
}

/* Overwrites the code with index n of a lane. Uses atomic operations, because other lanes may write
 * to the same words. */
static __device__ __forceinline__ void put_bits(uint32_t *words, bool levels, int bits, int n,
                                                uint32_t code)
{
#pragma unroll 1
    for (int below = 0; below < bits;) {
        const kvd_packed_piece p = kvd_packed_piece_of(levels, bits, n, below);
        const uint32_t mask = (1u << p.width) - 1;
        atomicAnd(words + p.word, ~(mask << p.shift));
        atomicOr(words + p.word, (code >> below & mask) << p.shift);
        below += p.width;
    }
}

/* Returns the index of the quantisation level nearest to x. If two are equally near, returns the
 * lower one. */
static __device__ __forceinline__ uint32_t nearest_level(const float *level, int bits, float x)
{
    int lo = 0, hi = (1 << bits) - 1;
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (x > (level[mid] + level[mid + 1]) / 2)
            lo = mid + 1;
        else
            hi = mid;
    }
    return (uint32_t)lo;
}

static __device__ __forceinline__ uint32_t shifted(uint32_t x, int right)
{
    return right < 0 ? x << -right : x >> right;
}

/* Transposes an 8 x 8 matrix of 16-bit numbers. Each lane of a warp passes its two numbers, and
 * gets two numbers of the transpose. */
static __device__ __forceinline__ uint32_t exchanged(uint32_t fragment)
{
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(fragment));
    return r;
}

static __device__ __forceinline__ float bf16_of(uint32_t pair, int e)
{
    return __uint_as_float(e ? pair & 0xffff0000u : pair << 16);
}

static __device__ __forceinline__ uint4 eight_at(const uint16_t *at)
{
    return *reinterpret_cast<const uint4 *>(at);
}

static __device__ __forceinline__ float number_of(const uint4 &eight, int e)
{
    return bf16_of(e / 4 ? e / 2 % 2 ? eight.w : eight.z : e / 2 ? eight.y : eight.x, e % 2);
}

static __device__ __forceinline__ void widen_ranges(float (&lo)[8], float (&hi)[8], const uint4 &x)
{
#pragma unroll
    for (int e = 0; e < 8; e++) {
        lo[e] = fminf(lo[e], number_of(x, e));
        hi[e] = fmaxf(hi[e], number_of(x, e));
    }
}

static __device__ __forceinline__ uint32_t bf16_pair(float low, float high)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

static __device__ __forceinline__ uint32_t f16_pair(float low, float high)
{
    const __half2 v = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&v);
}

static __device__ __forceinline__ float half_of(uint32_t pair, int e)
{
    return __half2float(__ushort_as_half((unsigned short)(e ? pair >> 16 : pair)));
}

static __device__ __forceinline__ float as_half(float x)
{
    return __half2float(__float2half_rn(x));
}

static __device__ __forceinline__ uint32_t half_bits(float x)
{
    return __half_as_ushort(__float2half_rn(x));
}

static __device__ __forceinline__ __half2 as_halves(uint32_t w)
{
    return *reinterpret_cast<const __half2 *>(&w);
}

static __device__ __forceinline__ uint32_t as_word(__half2 x)
{
    return *reinterpret_cast<const uint32_t *>(&x);
}

static __device__ __forceinline__ uint32_t plus(uint32_t x, uint32_t y)
{
    return as_word(__hadd2(as_halves(x), as_halves(y)));
}

static __device__ __forceinline__ uint32_t times(uint32_t x, uint32_t y)
{
    return as_word(__hmul2(as_halves(x), as_halves(y)));
}

static __device__ __forceinline__ uint32_t minus(uint32_t x)
{
    return as_word(__hneg2(as_halves(x)));
}

static __device__ __forceinline__ uint32_t times_plus(uint32_t x, uint32_t y, uint32_t z)
{
    return as_word(__hfma2(as_halves(x), as_halves(y), as_halves(z)));
}

static __device__ __forceinline__ float min_of_rows(float x)
{
#pragma unroll
    for (int i = 4; i < 32; i *= 2)
        x = fminf(x, __shfl_xor_sync(~0u, x, i));
    return x;
}

static __device__ __forceinline__ float max_of_rows(float x)
{
    return -min_of_rows(-x);
}

static __device__ __forceinline__ float min_of_warp(float x)
{
#pragma unroll
    for (int i = 1; i < 32; i *= 2)
        x = fminf(x, __shfl_xor_sync(~0u, x, i));
    return x;
}

static __device__ __forceinline__ double sum_of_warp(double x)
{
#pragma unroll
    for (int i = 1; i < 32; i *= 2)
        x += __shfl_xor_sync(~0u, x, i);
    return x;
}

/* Returns scale * code + zero point. The product and the sum are rounded separately, as on the
 * CPU. */
static __device__ __forceinline__ float decoded(uint32_t scale, float code)
{
    return __fadd_rn(__fmul_rn(half_of(scale, 0), code), half_of(scale, 1));
}

static inline dim3 grid_of(const kvd_packed_args *a)
{
    return dim3((unsigned)a->map.n_kv_heads, (unsigned)a->n, (unsigned)a->pages_side_by_side);
}

#endif
