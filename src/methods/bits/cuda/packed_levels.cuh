/*
 * Tables in shared memory for codes that are indices of quantisation levels: the table in which two
 * codes at a time are looked up, and the places in a tile of outliers and first tokens. Included by
 * packed_decode_levels.cu only.
 */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_LEVELS_CUH
#define KVD_METHODS_BITS_CUDA_PACKED_LEVELS_CUH

#include "methods/bits/cuda/packed_words.cuh"

namespace
{

enum { ROW = 256 /* bytes of a table entry for all lanes: keys, then values */ };

template <int B> __device__ __host__ constexpr int table_bytes()
{
    return (B == 3 ? 64 : 256) * ROW;
}

/*
 * Fills the table of quantisation levels in shared memory. An entry has the levels of two adjacent
 * codes of 3 or 4 bits, or of four codes of 2 bits: for K, then for V. They are repeated, so that
 * each lane reads its own copy (with 2 bits, each lane of half a warp).
 */
template <int B> __device__ void fill_table(const float *level, char *table)
{
    for (int i = (int)threadIdx.x; i < table_bytes<B>() / 16; i += (int)blockDim.x) {
        const int entry = i / 16, mask = (1 << B) - 1;
        const float *const read = level + ((i % 16 < 8 ? 1 : 3) << B);
        const uint32_t low = f16_pair(read[entry & mask], read[entry >> B & mask]),
                       high = B == 2 ? f16_pair(read[entry >> 2 * B & mask],
                                                read[entry >> 3 * B & mask])
                                     : low;
        reinterpret_cast<uint4 *>(table)[i] = make_uint4(low, high, low, high);
    }
}

/*
 * Looks up the quantisation levels of a lane's codes of 16 tokens, as an A operand of mma. `column`
 * is the offset of the lane in the rows of the table.
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
        /*
         * Two codes of 3 bits are the number of a table entry. They are moved to bits 8 .. 13,
         * because an entry takes 256 bytes.
         */
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

/* ---- outliers and first tokens, which are stored apart from the codes ---- */

enum { QUICK = 4, TILE = 2048 /* TILE is in float16 numbers */ };

/*
 * Returns the index of the number of token t of the page and dim i in the tile of keys [2][4 times
 * 16 tokens][32 lanes][8 halves]. The tile holds two blocks of 16 dims at a time, of 16 N dims in
 * all. Bit 11 + j of the result tells that it is used in the j-th of N / 2 rounds.
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
 * Returns a list entry for x, an outlier or a number of a first token. The upper half is its place
 * in the tile, the lower half the difference of x from quantisation level 0, as float16.
 */
__device__ __forceinline__ uint32_t entry_of(uint32_t place, float x, float middle, float width,
                                             float lowest)
{
    return half_bits(x - fmaf(width, lowest, middle)) | place << 16;
}

} // namespace

#endif
