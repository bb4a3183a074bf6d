/* Finds the parts of a page of method gear, and decodes single numbers. */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_GEAR_CUH
#define KVD_METHODS_BITS_CUDA_PACKED_GEAR_CUH

#include "methods/bits/cuda/packed_words.cuh"

namespace
{

/* KV head g of request b. The first `prompt` tokens are quantised as one block. */
struct head_of {
    const kvd_packed_args &a;
    int b, g, prompt;
    kvd_gear_page page;
};

__device__ __forceinline__ head_of make_head(const kvd_packed_args &a, int b, int g, int prompt)
{
    return {a, b, g, prompt,
            kvd_gear_page_of(&a.gear.of, a.gear.k_room, a.map.d_qk[g], a.map.d_v[g])};
}

__device__ __forceinline__ char *codes_of(const head_of &o, int p)
{
    return in_codes(o.a, page_number(o.a, o.b, p), o.g);
}

/* Returns the address of the data (scales, outliers, low-rank factors) of the block that begins
 * with token `first`. */
__device__ __forceinline__ char *record_of(const head_of &o, int first)
{
    return codes_of(o, first / KVD_PAGE_TOKENS) + o.page.area +
           kvd_gear_record(&o.a.gear.of, &o.page, first, o.prompt);
}

__device__ __forceinline__ int block_of(const head_of &o, int t)
{
    return t / o.a.gear.of.buffer * o.a.gear.of.buffer;
}

/* Returns the address of the scales [d_qk] with which K of token t is quantised. */
__device__ __forceinline__ uint32_t *key_scales(const head_of &o, int t)
{
    const kvd_gear &s = o.a.gear.of;
    const int d = o.a.map.d_qk[o.g];
    if (t < o.prompt) {
        const int first = t / s.group * s.group;
        return as_words(codes_of(o, first / KVD_PAGE_TOKENS) + o.page.area) +
               kvd_gear_group(&s, first) * d;
    }
    const int first = block_of(o, t);
    return as_words(record_of(o, first)) + (t - first) / s.group * d;
}

/* Returns the address of outlier number e of a key channel in the block that begins with token
 * `first`. */
__device__ __forceinline__ uint32_t *key_outlier(const head_of &o, int first, int e, int channel)
{
    const int d = o.a.map.d_qk[o.g], room = o.a.gear.k_room;
    if (first < o.prompt)
        return as_words(codes_of(o, e / room) + o.page.area) + (o.page.k_groups + e % room) * d +
               channel;
    return as_words(record_of(o, first)) + (o.page.k_groups_later + e) * d + channel;
}

__device__ __forceinline__ uint16_t *right_factor(const head_of &o, int side, int t)
{
    const kvd_packed_args &a = o.a;
    const int d = a.map.d_qk[o.g];
    if (t < o.prompt) {
        const size_t row = (size_t)a.slot[o.b] * (size_t)(a.map.page_elements / KVD_PAGE_TOKENS) +
                           (size_t)(a.map.kv_offset[o.g] / KVD_PAGE_TOKENS + side * d);
        return a.gear.right + row * (size_t)o.page.columns;
    }
    return reinterpret_cast<uint16_t *>(record_of(o, block_of(o, t)) +
                                        (o.page.k_groups_later + o.page.k_later) * d * 4) +
           side * d * o.page.columns_later;
}

__device__ __forceinline__ uint16_t *number_at(const head_of &o, int side, int t, int i)
{
    return uncoded(o.a, o.b, o.g, side, t, i);
}

/* Returns the address of the words that contain the code of channel i of token t. Word j has bit j
 * of 32 codes, which belong to adjacent tokens (K) or adjacent channels (V). */
__device__ __forceinline__ uint32_t *planes_at(const head_of &o, int side, int t, int i)
{
    const int in_page = t % KVD_PAGE_TOKENS, bits = o.a.gear.of.bits;
    char *const codes = codes_of(o, t / KVD_PAGE_TOKENS);
    return side ? as_words(codes + o.page.v) +
                      (in_page * kvd_gear_pieces(o.a.map.d_v[o.g], 32) + i / 32) * bits
                : as_words(codes) + (i * 2 + in_page / 32) * bits;
}

__device__ __forceinline__ uint32_t *value_scale(const head_of &o, int t, int i)
{
    return as_words(codes_of(o, t / KVD_PAGE_TOKENS) + o.page.v_side) +
           t % KVD_PAGE_TOKENS * o.page.v_groups + i / o.a.gear.of.group;
}

__device__ __forceinline__ uint32_t code_in(const uint32_t *planes, int bits, int at)
{
    uint32_t code = 0;
    for (int j = 0; j < bits; j++)
        code |= (planes[j] >> at & 1) << j;
    return code;
}

} // namespace

#endif
