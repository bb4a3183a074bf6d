/*
 * Tables in shared memory for codes that are indices of quantisation levels. Included by
 * packed_decode_levels.cu and packed_decode_turned.cu only.
 */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_LEVELS_CUH
#define KVD_METHODS_BITS_CUDA_PACKED_LEVELS_CUH

#include "methods/bits/cuda/packed_decode_pages.cuh"

namespace
{

enum { ROW = 256 /* bytes of a table entry for all lanes: keys, then values */ };

template <int B> __device__ __host__ constexpr int table_bytes()
{
    return (B == 3 ? 64 : 256) * ROW;
}

/*
 * Returns the quantisation level that this lane holds: lane i has level i of keys, lane 16 + i
 * level i of values. `level` is kvd_packed_args.level.
 */
template <int B> __device__ __forceinline__ float level_of_lane(const float *level, int lane)
{
    return level[((lane < 16 ? 1 : 3) << B) + lane % (1 << B)];
}

/*
 * Fills the table of quantisation levels. An entry has the levels of two adjacent codes of 3 or 4
 * bits, or of four codes of 2 bits, for K and then for V. Lanes read copies of the entry in
 * different memory banks.
 */
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

/*
 * Looks up the quantisation levels of 16 tokens, as an A operand of mma. `column` is the offset of
 * the lane's copy in the table.
 */
template <int B>
__device__ __forceinline__ void look_up(const char *table, uint32_t column, const uint32_t (&w)[B],
                                        int m, uint32_t (&x)[4])
{
    if (B == 4) {
#pragma unroll
        for (int r = 0; r < 4; r++)
            x[r] = *reinterpret_cast<const uint32_t *>(
                table + __byte_perm(w[m % B], column, 0x5504u | (uint32_t)r << 4));
    } else if (B == 2) {
#pragma unroll
        for (int r = 0; r < 4; r += 2) {
            const uint2 v = *reinterpret_cast<const uint2 *>(
                table +
                __byte_perm(w[m / 2 % B], column, 0x5504u | (uint32_t)(m % 2 * 2 + r / 2) << 4));
            x[r] = v.x, x[r + 1] = v.y;
        }
    } else {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int at = 6 * (4 * m + r), i = at / 32, from = at % 32 - 8;
            const uint32_t bits = from < 0 ? w[i % B] << -from
                                  : at % 32 > 26
                                      ? __funnelshift_r(w[i % B], w[(i + 1) % B], (uint32_t)from)
                                      : w[i % B] >> from;
            x[r] = *reinterpret_cast<const uint32_t *>(table + ((bits & 0x3f00u) | column));
        }
    }
}

enum { QUICK = 4, TILE = 2048 /* in float16 numbers */ };

/*
 * Returns the index of the key of token t, dimension i, in a tile [2][4][32 lanes][8], which holds
 * 32 dimensions at a time. Bit 11 + j is set if these are the j-th 32 dimensions.
 */
template <int N> __device__ __forceinline__ uint32_t key_place(int t, int i)
{
    const int dim = i % (8 * N);
    return (uint32_t)((((i / (8 * N) * 4 + t / 16) * 32 + kvd_packed_key_lane(t, i)) * 8 +
                       kvd_packed_key_number(t, i) % 8) |
                      TILE << dim / 16);
}

__device__ __forceinline__ uint32_t value_place(int t, int i)
{
    return (uint32_t)((((i / 16 % 2 * 4 + t / 16) * 32 + kvd_packed_value_lane(t, i)) * 8 +
                       kvd_packed_value_number(t, i) % 8) |
                      TILE << i / 32);
}

/*
 * Returns an entry for x, an outlier or a number of a float16 first token. The upper half is its
 * index in the tile. The lower half is x minus the decoded number of code 0, as float16.
 */
__device__ __forceinline__ uint32_t entry_of(uint32_t place, float x, float middle, float width,
                                             float lowest)
{
    return half_bits(x - fmaf(width, lowest, middle)) | place << 16;
}

/*
 * Writes the number of an entry to `address` in the tile or, with `away`, writes 0. Skips entries
 * of other dimensions than the 32 with number `pass`.
 */
__device__ __forceinline__ void put(uint32_t entry, uint32_t address, int pass, bool away)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.shared.u16 [%1], %2;\n}" ::"r"(
                     entry & (uint32_t)TILE << 16 << pass),
                 "r"(address), "h"((uint16_t)(away ? 0 : entry))
                 : "memory");
}

/* Returns the address of K of first token t in a KV head, in float16; V follows. */
__device__ __forceinline__ const uint16_t *sink_row(const packed_params &p, const cursor &at, int t)
{
    const int wide = p.a.map.page_elements / KVD_PAGE_TOKENS;
    return p.a.sink + ((size_t)p.a.slot[at.b] * (size_t)p.a.n_sink + (size_t)t) * (size_t)wide +
           p.a.map.kv_offset[at.g] / KVD_PAGE_TOKENS;
}

__device__ __forceinline__ void prefetch_sinks(const packed_params &p, const cursor &at, int bytes,
                                               int d, int lane)
{
    prefetch_bytes(codes_of(p, at) + p.parts.v, bytes, lane);
    if (lane < p.a.n_sink)
#pragma unroll
        for (int i = 0; i < 2 * d; i += 64)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(sink_row(p, at, lane) + i));
}

} // namespace

#endif
