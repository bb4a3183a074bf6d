/* Declarations shared by the kernels that code and those that decode blocks of an entropy code. */
#ifndef KVD_METHODS_BITS_CUDA_STREAMS_CUH
#define KVD_METHODS_BITS_CUDA_STREAMS_CUH

#include <cuda_fp16.h>

#include "methods/bits/cuda/streams.h"

namespace
{

struct block_of {
    uint32_t *state, *counts;
    uint16_t *word;
    kvd_stream_exception *exception;
    __half2 *scale; /* [KVD_PAGE_TOKENS][room.scales] scale and zero point */
};

/* Returns the parts of stream s of the block at address `from`. */
__device__ __forceinline__ block_of parts_of(char *from, kvd_stream_room room, int s)
{
    const kvd_stream_parts p = kvd_stream_parts_of(room);
    return {reinterpret_cast<uint32_t *>(from) + s * KVD_LANES,
            reinterpret_cast<uint32_t *>(from + p.counts) + 2 * s,
            reinterpret_cast<uint16_t *>(from + p.words) + (size_t)s * (size_t)room.words,
            reinterpret_cast<kvd_stream_exception *>(from + p.exceptions) +
                (size_t)s * (size_t)room.exceptions,
            reinterpret_cast<__half2 *>(from + p.scales)};
}

__device__ __forceinline__ block_of block_at(const kvd_stream_side &side, int page, int s)
{
    return parts_of(side.blocks + (size_t)page * kvd_stream_parts_of(side.room).bytes, side.room,
                    s);
}

__device__ __forceinline__ int page_number(const kvd_stream_batch &a, int b, int p)
{
    return __ldg(a.page_table + (size_t)b * (size_t)a.max_pages + p);
}

/* Index of token t and dim i in a BLOCKED matrix [64][d] (kernels/layout.h). */
__device__ __forceinline__ int blocked(int t, int i, int d)
{
    return t / 8 * 8 * d + i / 8 * 64 + t % 8 * 8 + i % 8;
}

__device__ __forceinline__ float scaled(__half2 scale, float code)
{
    const float2 s = __half22float2(scale);
    return __fadd_rn(__fmul_rn(s.x, code), s.y);
}

struct head_page {
    const kvd_cachegen_layer &l;
    int g, side, d;
    block_of block;
    /* [64 / group] scale and zero point of each group's anchor */
    __half2 *scale;
    const uint16_t *table; /* [1 + wide][KVD_STREAM_TABLE] */
    const float *step;
};

__device__ __forceinline__ head_page head_page_of(const kvd_cachegen_layer &l, int page, int z)
{
    const int g = z / 2, side = z % 2;
    char *const from =
        l.blocks + ((size_t)page * (size_t)(2 * l.map.n_kv_heads) + (size_t)z) * l.block_bytes;
    return {l,
            g,
            side,
            side ? l.map.d_v[g] : l.map.d_qk[g],
            parts_of(from, l.room, 0),
            reinterpret_cast<__half2 *>(from + kvd_stream_parts_of(l.room).bytes),
            l.table + (size_t)z * (size_t)(1 + l.wide) * KVD_STREAM_TABLE,
            l.step + (size_t)z * (size_t)l.wide};
}

__device__ __forceinline__ uint16_t *rows_of(const head_page &h, uint16_t *pages, size_t page)
{
    return pages + page * (size_t)h.l.map.page_elements + h.l.map.kv_offset[h.g] +
           (h.side ? KVD_PAGE_TOKENS * h.l.map.d_qk[h.g] : 0);
}

enum { CHANNELS = KVD_WIDTH_NARROW / KVD_LANES /* most channels of a lane */ };

/* Copies the first n tokens of a page, and zeros up to a multiple of 8. */
__device__ void copy_page(const uint16_t *from, uint16_t *to, int n, int d, int lane)
{
    for (int i = lane; i < (n + 7) / 8 * d; i += KVD_LANES) {
        const int t = i / d * 8 + i % 8;
        reinterpret_cast<uint4 *>(to)[i] =
            t < n ? reinterpret_cast<const uint4 *>(from)[i] : make_uint4(0, 0, 0, 0);
    }
}

inline bool bad(const kvd_stream_batch *b)
{
    return b->n < 1 || b->n > 65535 || b->max_pages < 1 || b->n_sink < 0 || b->n_sms < 1;
}

/* Returns true if the kernels do not support the layer's head widths or group size. */
inline bool bad_layer(const kvd_cachegen_layer *l)
{
    return l->room.n_streams != 1 || l->group < 2 || KVD_PAGE_TOKENS % l->group ||
           kvd_attn_widest(&l->map) > KVD_WIDTH_NARROW || l->wide > KVD_WIDTH_NARROW;
}

} // namespace

#endif
