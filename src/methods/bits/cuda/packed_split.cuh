/* Locates the masks, codes and scales in pages whose channels have different numbers of bits
 * (methods vidkv and turboquant). */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_SPLIT_CUH
#define KVD_METHODS_BITS_CUDA_PACKED_SPLIT_CUH

#include "methods/bits/cuda/packed_code.cuh"

namespace
{

enum { THREADS = 256, WIDE = KVD_WIDTH_MAX };

/* Tokens of request b that are quantised together in KV head g, starting at token `first`. */
struct group_of {
    const kvd_packed_args &a;
    int b, g, first;
    kvd_packed_split_record part;
    char *record;
};

__device__ __forceinline__ group_of make_group(const kvd_packed_args &a, int b, int g, int first)
{
    const kvd_packed_split_record part =
        kvd_packed_split_record_of(&a.split.of, a.width[0][g], a.width[1][g]);
    return {a,
            b,
            g,
            first,
            part,
            in_codes(a, page_number(a, b, first / KVD_PAGE_TOKENS), g) +
                first % KVD_PAGE_TOKENS / a.split.of.group * part.bytes};
}

/* Returns the address of the bit mask of K or V. Bit i is 1 if channel i is stored with more bits
 * than the other channels. */
__device__ __forceinline__ uint32_t *mask_of(const group_of &o, int side)
{
    return as_words(o.record + side * o.part.v_mask);
}

/* Lists the channels of K or V: channels with more bits, then the other channels. Ends with a
 * barrier of the CTA. */
__device__ void list_channels(const group_of &o, int side, uint8_t *list)
{
    const uint32_t *const mask = mask_of(o, side);
    const int i = (int)threadIdx.x;
    if (i < o.a.width[side][o.g]) {
        int before = __popc(mask[i / 32] & ((1u << i % 32) - 1));
        for (int w = 0; w < i / 32; w++)
            before += __popc(mask[w]);
        const bool chosen = mask[i / 32] >> i % 32 & 1;
        list[chosen ? before : o.part.channels[side][0] + i - before] = (uint8_t)i;
    }
    __syncthreads();
}

__device__ __forceinline__ uint8_t *plane_at(const group_of &o, int side, int part, int channel,
                                             int plane, int at)
{
    return reinterpret_cast<uint8_t *>(o.record) + o.part.codes[side][part] +
           (channel * o.part.planes[side][part] + plane) * (o.a.split.of.group / 8) + at;
}

__device__ __forceinline__ uint16_t *half_at(const group_of &o, int side, int part, int channel)
{
    return reinterpret_cast<uint16_t *>(o.record + o.part.scales[side][part]) + channel;
}

__device__ __forceinline__ uint32_t *word_at(const group_of &o, int side, int part, int channel)
{
    return as_words(o.record + o.part.scales[side][part]) + channel;
}

__device__ __forceinline__ const double *wave_of(const kvd_packed_args &a, int m)
{
    return a.split.wave + m * (m - 1);
}

__device__ __forceinline__ const uint32_t *as_pair(const uint16_t *at)
{
    return reinterpret_cast<const uint32_t *>(at);
}

/* Shared memory for decoding pages of method vidkv. `digits` is a table that splits a byte into
 * five ternary digits. */
struct vidkv_memory {
    uint16_t *inverse, *y, *tile;
    char *record;
    uint8_t *list;
    uint16_t *digits;
    int pitch;
};

/* Fills s.inverse with the matrix of the inverse Fourier transform of m numbers, times m. Fills
 * s.digits with the five ternary digits of each byte. */
__device__ void make_inverse(const kvd_packed_args &a, int m, const vidkv_memory &s)
{
    const double *const exact = wave_of(a, m);
    const int wide = (m + 15) / 16 * 16;
    for (int i = (int)threadIdx.x; i < wide * wide; i += THREADS) {
        const int c = i / wide, k = i % wide, h = (k + 1) / 2, at = h * c % max(m, 1);
        const float x =
            k ? (float)(k % 2 ? exact[at] : -exact[m + at]) * (2 * h < m ? 2.f : 1.f) : 1;
        s.inverse[c * s.pitch + k] = (uint16_t)(c < m && k < m ? half_bits(x) : 0);
    }
    for (int i = (int)threadIdx.x; i < 256; i += THREADS)
        s.digits[i] =
            (uint16_t)(i % 3 | i / 3 % 3 << 2 | i / 9 % 3 << 4 | i / 27 % 3 << 6 | i / 81 % 3 << 8);
}

/* Decodes 8 numbers of one channel, with 2 bits each. They belong to tokens 8 j .. 8 j + 7 of group
 * `o`. */
__device__ __forceinline__ void put_two(const group_of &o, const vidkv_memory &s, int side,
                                        int part, int channel, int j, int i, int d)
{
    const uint32_t low = *plane_at(o, side, part, channel, 0, j),
                   high = *plane_at(o, side, part, channel, 1, j),
                   scale = *word_at(o, side, part, channel);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const float code = (float)((low >> e & 1) | (high >> e & 1) << 1);
        s.tile[page_index(8 * j + e, i, d)] = (uint16_t)bf16_pair(
            __fadd_rn(__fmul_rn(half_of(scale, 0), code), half_of(scale, 1)), 0);
    }
}

/* Multiplies the Fourier coefficients by the inverse transform. A warp computes 16 channels. */
__device__ void put_inverse(const group_of &o, const vidkv_memory &s)
{
    const int n = o.a.split.of.group, m = o.part.channels[0][1], lane = (int)threadIdx.x % 32;
    for (int row = (int)threadIdx.x / 32 * 16; row < m; row += THREADS / 32 * 16) {
        float x[KVD_PAGE_TOKENS / 8][4] = {};
        for (int k = 0; k < m; k += 16) {
            const uint16_t *const from = s.inverse + (row + lane / 4) * s.pitch + k + lane % 4 * 2;
            const uint32_t f[4] = {*as_pair(from), *as_pair(from + 8 * s.pitch), *as_pair(from + 8),
                                   *as_pair(from + 8 * s.pitch + 8)};
#pragma unroll
            for (int j = 0; j < KVD_PAGE_TOKENS / 8; j++) {
                const uint16_t *const y = s.y + (8 * j + lane / 4) * s.pitch + k + lane % 4 * 2;
                if (8 * j < n)
                    mma_pure<false>(x[j], f, *as_pair(y), *as_pair(y + 8));
            }
        }
#pragma unroll
        for (int j = 0; j < KVD_PAGE_TOKENS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int c = row + lane / 4 + e / 2 * 8;
                if (8 * j < n && c < m)
                    s.tile[page_index(8 * j + lane % 4 * 2 + e % 2,
                                      s.list[o.part.channels[0][0] + c], o.a.map.d_qk[o.g])] =
                        (uint16_t)bf16_pair(x[j][e] / (float)m, 0);
            }
    }
}

__device__ void make_keys(const group_of &o, const vidkv_memory &s)
{
    const int n = o.a.split.of.group, chosen = o.part.channels[0][0], m = o.part.channels[0][1],
              wide = (m + 15) / 16 * 16, d = o.a.map.d_qk[o.g];
    list_channels(o, 0, s.list);
    for (int i = (int)threadIdx.x; i < wide * (n / 8); i += THREADS) {
        const int k = i % wide, j = i / wide;
        const uint32_t signs = k < m ? *plane_at(o, 0, 1, k, 0, j) : 0,
                       scale = k < m ? *half_at(o, 0, 1, k) : 0;
#pragma unroll
        for (int e = 0; e < 8; e++)
            s.y[(8 * j + e) * s.pitch + k] = (uint16_t)(scale ^ (signs >> e & 1) << 15);
    }
    for (int i = (int)threadIdx.x; i < chosen * (n / 8); i += THREADS)
        put_two(o, s, 0, 0, i % chosen, i / chosen, s.list[i % chosen], d);
    __syncthreads();
    put_inverse(o, s);
}

__device__ void make_values(const group_of &o, const vidkv_memory &s)
{
    const int n = o.a.split.of.group, d = o.a.width[1][o.g], all = o.a.map.d_v[o.g];
    for (int i = (int)threadIdx.x; i < d * (n / 8); i += THREADS) {
        const int c = i % d, j = i / d, at = c * n + 8 * j;
        if (!o.a.split.of.ternary) {
            put_two(o, s, 1, 1, c, j, c, all);
            continue;
        }
        const uint8_t *const byte =
            reinterpret_cast<const uint8_t *>(o.record) + o.part.codes[1][1] + at / 5;
        const uint32_t digit = (s.digits[byte[0]] | (uint32_t)s.digits[byte[1]] << 10 |
                                (uint32_t)s.digits[byte[2]] << 20) >>
                               2 * (at % 5),
                       scale = bf16_pair(half_of(*half_at(o, 1, 1, c), 0), 0);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const uint32_t x = digit >> 2 * e & 3;
            s.tile[page_index(8 * j + e, c, all)] = (uint16_t)(x ? scale ^ (x & 2) << 14 : 0);
        }
    }
}

__device__ void restore_side(const group_of &o, const vidkv_memory &s, int side, uint16_t *rows)
{
    const int n = o.a.split.of.group, d = o.a.width[side][o.g],
              all = side ? o.a.map.d_v[o.g] : o.a.map.d_qk[o.g];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < (all - d) * n; i += THREADS)
        s.tile[page_index(i % n, d + i / n, all)] = 0;
    if (side)
        make_values(o, s);
    else
        make_keys(o, s);
    __syncthreads();
    uint4 *const to = reinterpret_cast<uint4 *>(
        rows + place_in_page(o.a, o.g, side, o.first % KVD_PAGE_TOKENS, 0));
    for (int i = (int)threadIdx.x; i < n * all / 8; i += THREADS)
        to[i] = reinterpret_cast<const uint4 *>(s.tile)[i];
}

__device__ void restore_vidkv(group_of o, const vidkv_memory &s, uint16_t *rows)
{
    __syncthreads();
    for (int i = (int)threadIdx.x; i < o.part.bytes / 16; i += THREADS)
        reinterpret_cast<uint4 *>(s.record)[i] = reinterpret_cast<const uint4 *>(o.record)[i];
    o.record = s.record;
    restore_side(o, s, 0, rows);
    restore_side(o, s, 1, rows);
}

/* Returns the number of 16-bit elements of those parts of vidkv_memory whose size depends on the
 * head dimension. */
__host__ __device__ __forceinline__ int vidkv_numbers(int d_head, int group)
{
    const int wide = (d_head + 15) / 16 * 16;
    return (wide + group) * (wide + 8) + group * wide;
}

__device__ __forceinline__ vidkv_memory divide_memory(const kvd_packed_args &a, char *all,
                                                      uint8_t *list, uint16_t *digits)
{
    const int wide = (a.d_head + 15) / 16 * 16, n = a.split.of.group;
    uint16_t *const inverse = reinterpret_cast<uint16_t *>(all), *const y =
                                                                     inverse + wide * (wide + 8);
    return {inverse, y,       y + n * (wide + 8), all + 2 * vidkv_numbers(a.d_head, n), list,
            digits,  wide + 8};
}

} // namespace

#endif
