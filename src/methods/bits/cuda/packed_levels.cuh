/* Keeps tables of quantisation levels, and tiles of outliers, in shared memory. */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_LEVELS_CUH
#define KVD_METHODS_BITS_CUDA_PACKED_LEVELS_CUH

#include "methods/bits/cuda/packed_decode.cuh"

namespace
{

enum { ROW = 256 /* bytes of a table entry: a word per lane for keys, one for values */ };

template <int B> __device__ __host__ constexpr int table_bytes()
{
    return (B == 3 ? 64 : 256) * ROW;
}

/* Returns one quantisation level per lane: levels of K in lanes 0 .. 15, levels of V in lanes 16 ..
 * 31. */
template <int B> __device__ __forceinline__ float level_of_lane(const float *level, int lane)
{
    return level[((lane < 16 ? 1 : 3) << B) + lane % (1 << B)];
}

/* Fills the table in shared memory that converts indices to quantisation levels. Each memory bank
 * has a copy. */
template <int B> __device__ __forceinline__ void fill_table(float level, char *table)
{
    constexpr int mask = (1 << B) - 1;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < table_bytes<B>() / 16; i += (int)blockDim.x) {
        const int entry = i / 16, side = i % 16 / 8 * 16;
        const auto pair = [&](int codes) {
            return f16_pair(__shfl_sync(~0u, level, side + (codes & mask)),
                            __shfl_sync(~0u, level, side + (codes >> B & mask)));
        };
        const uint32_t low = pair(entry), high = B == 2 ? pair(entry >> 2 * B) : low;
        reinterpret_cast<uint4 *>(table)[i] = make_uint4(low, high, low, high);
    }
}

/* Returns two adjacent 3-bit numbers in bits 8 .. 13 of the result. The other bits are
 * arbitrary. */
__device__ __forceinline__ uint32_t pair_of_three(const uint32_t *w, int m, int r)
{
    const int at = 6 * (4 * m + r), i = at / 32, from = at % 32 - 8;
    return from < 0       ? w[i] << -from
           : at % 32 > 26 ? __funnelshift_r(w[i], w[i + 1], (uint32_t)from)
                          : w[i] >> from;
}

/* Looks up the codes of 16 tokens in a table of quantisation levels. Writes these levels to x, as
 * an operand of mma instructions. */
template <int B>
__device__ __forceinline__ void look_up(const char *table, uint32_t column, const uint32_t (&w)[B],
                                        int m, uint32_t (&x)[4])
{
    if constexpr (B == 4) {
#pragma unroll
        for (int r = 0; r < 4; r++)
            x[r] = *reinterpret_cast<const uint32_t *>(
                table + __byte_perm(w[m], column, 0x5504u | (uint32_t)r << 4));
    } else if constexpr (B == 2) {
#pragma unroll
        for (int r = 0; r < 4; r += 2) {
            const uint2 v = *reinterpret_cast<const uint2 *>(
                table +
                __byte_perm(w[m / 2], column, 0x5504u | (uint32_t)(m % 2 * 2 + r / 2) << 4));
            x[r] = v.x, x[r + 1] = v.y;
        }
    } else {
#pragma unroll
        for (int r = 0; r < 4; r++)
            x[r] = *reinterpret_cast<const uint32_t *>(
                table + ((pair_of_three(w, m, r) & 0x3f00u) | column));
    }
}

enum {
    QUICK = 4, /* outliers of a page's list that a lane keeps in registers */
    /* Number of float16 numbers in a tile of outliers in shared memory: 64 dimensions of 64
     * tokens. */
    PASS = 4096
};

/* Returns where an outlier of K is stored in tiles of 64 dimensions. Low 12 bits: index in the
 * tile. Bit 12 + j: 1 if the tile is number j. at: position of the outlier in the page. */
template <int N> __device__ __forceinline__ uint32_t key_place(uint32_t at)
{
    const uint32_t low =
        (at & 1) | (at >> 2 & 0x6e2) | (at << 2 & 0x18) | (at >> 8 & 4) | (at << 4 & 0x100);
    return PASS + (N == 8 ? low | (at << 5 & 0x800) | (at << 7 & 0x1000) : low | (at << 6 & 0x800));
}

/* The index of an outlier in a tile of V (64 dimensions of 64 tokens) is the sum of a number for
 * its dimension and a number for its token. Returns the number for dimension i. */
__device__ __forceinline__ uint32_t value_place_of_dim(uint32_t i)
{
    return PASS + ((i >> 2 & 2) | (i << 5 & 0xe0) | (i << 6 & 0x1c00));
}

__device__ __forceinline__ uint32_t value_place_of_token(uint32_t t)
{
    return (t & 1) | (t >> 1 & 4) | (t << 2 & 0x18) | (t << 4 & 0x300);
}

/* Packs an outlier into a word. Upper half: `place`, its index in a tile. Lower half: x minus the
 * number to which its code decodes, as float16. */
__device__ __forceinline__ uint32_t entry_of(uint32_t place, float x, float decoded)
{
    return half_bits(x - decoded) | place << 16;
}

/* Writes an outlier to the tile in shared memory or, if `away` is true, overwrites it with 0. Does
 * nothing if the outlier is not in tile number `pass`. */
__device__ __forceinline__ void put(uint32_t entry, uint32_t address, int pass, bool away)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.shared.u16 [%1], %2;\n}" ::"r"(
                     entry & (uint32_t)PASS << 16 << pass),
                 "r"(address), "h"((uint16_t)(away ? 0 : entry))
                 : "memory");
}

__device__ __forceinline__ uint32_t address_of(uint32_t tile, uint32_t entry)
{
    return tile + (entry >> 15 & 2 * (PASS - 1));
}

struct few_outliers {
    uint32_t entry[QUICK], address[QUICK];

    /* Writes the outliers of tile number `pass` to the tile in shared memory. If `away` is true,
     * writes 0 in their places instead. */
    __device__ __forceinline__ void put_all(int pass, bool away) const
    {
#pragma unroll
        for (int k = 0; k < QUICK; k++)
            put(entry[k], address[k], pass, away);
    }
};

/* Loads entries lane, lane + 32, ... of a list of n outliers, at most QUICK entries per lane. */
template <class NUMBER>
__device__ __forceinline__ few_outliers few_of(uint32_t tile, int n, int lane, NUMBER number)
{
    few_outliers f;
#pragma unroll
    for (int k = 0; k < QUICK; k++) {
        const uint32_t one = number(k);
        f.entry[k] = lane + 32 * k < n ? one : 0;
        f.address[k] = address_of(tile, one);
    }
    return f;
}

/* Writes the outliers of tile number `pass` to the tile in shared memory. If `away` is true, writes
 * 0 in their places instead. Skips the first 32 * QUICK outliers of the page's list. */
template <class NUMBER>
__device__ __forceinline__ void put_many(uint32_t tile, int n, int pass, bool away, int lane,
                                         NUMBER number)
{
#pragma unroll 1
    for (int k = 32 * QUICK + lane; k < n; k += 32) {
        const uint32_t one = number(k);
        put(one, address_of(tile, one), pass, away);
    }
}

/* Rotates queries by 16 positions of RoPE. `step` has the cosines and sines. */
__device__ __forceinline__ void turn_on(const uint4 &step, uint32_t (&low)[2], uint32_t (&high)[2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t c = h ? step.z : step.x, s = h ? step.w : step.y, x = low[h];
        low[h] = times_plus(high[h], s, times(x, c));
        high[h] = times_plus(x, minus(s), times(high[h], c));
    }
}

/* Prefetches a request's first tokens, which are stored as float16, and their RoPE rotations into
 * the L2 cache. */
template <int D>
__device__ __forceinline__ void prefetch_sinks(const packed_params &p, const cursor &at, int lane)
{
    if (lane >= p.a.n_sink)
        return;
#pragma unroll
    for (int i = 0; i < 2 * D; i += 64)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(in_sink(p.a, at.b, at.g, lane) + i));
    if (p.a.before_rope)
#pragma unroll
        for (int i = 0; i < D / 2; i += 32) {
            asm volatile("prefetch.global.L2 [%0];" ::"l"(p.a.cosine + lane * (D / 2) + i));
            asm volatile("prefetch.global.L2 [%0];" ::"l"(p.a.sine + lane * (D / 2) + i));
        }
}

/* Returns this lane's part of the attention score of token t < n_sink, which is stored as
 * float16. */
template <int D>
__device__ __forceinline__ float sink_score(const packed_params &p, const cursor &at, int t,
                                            int lane)
{
    const uint16_t *const q = query_of(p, at.b, at.g, lane), *const k =
                                                                 in_sink(p.a, at.b, at.g, t) +
                                                                 lane % 4 * 2;
    const size_t turn = (size_t)t * (D / 2) + (size_t)(lane % 4 * 2);
    const bool there = lane / 4 < p.a.map.group;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < D / 2; i += 8) {
        const uint32_t x = there ? *reinterpret_cast<const uint32_t *>(q + i) : 0,
                       y = there ? *reinterpret_cast<const uint32_t *>(q + i + D / 2) : 0,
                       a = *reinterpret_cast<const uint32_t *>(k + i),
                       b = *reinterpret_cast<const uint32_t *>(k + i + D / 2);
        float2 c = make_float2(1, 1), s = make_float2(0, 0);
        if (p.a.before_rope) {
            c = *reinterpret_cast<const float2 *>(p.a.cosine + turn + i);
            s = *reinterpret_cast<const float2 *>(p.a.sine + turn + i);
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float low = half_of(a, e), high = half_of(b, e), cos = e ? c.y : c.x,
                        sin = e ? s.y : s.x;
            sum +=
                bf16_of(x, e) * (low * cos - high * sin) + bf16_of(y, e) * (high * cos + low * sin);
        }
    }
    return sum;
}

} // namespace

#endif
