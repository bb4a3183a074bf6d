/*
 * Restores bf16 pages from quantised pages and ring buffers. Applies RoPE to keys quantised before
 * RoPE. Grid: KV heads, requests, CTAs per head.
 *   equal steps (kivi)    x = s code + zero
 *   symmetric (comet)     x = s (code - (2^(b-1) - 1))
 *   own bits (allot)      x = mean + deviation * level[code]
 *   level table (kvquant) x = middle + half width * level[code]
 *   low rank (gear)       x = s code + zero + element of the low-rank matrix
 */
#include "methods/bits/cuda/packed_floats.cuh"
#include "methods/bits/cuda/packed_gear.cuh"

namespace
{

enum { WARPS = 8, TILE_PITCH = KVD_WIDTH_NARROW + 4 };

struct page_of {
    const kvd_packed_args &a;
    int b, g, p;
    const char *codes;
    const uint16_t *ring;
    uint16_t *rows;
    kvd_packed_parts parts;
    /* numbers of tokens in the page, of quantised keys, of quantised values */
    int left, keys, values;
};

__device__ __forceinline__ page_of make_page(const kvd_packed_args &a, int b, int g, int p, int m)
{
    const int page = page_number(a, b, p), t0 = KVD_PAGE_TOKENS * p;
    return {a,
            b,
            g,
            p,
            in_codes(a, page, g),
            in_ring(a, b, p, g),
            in_rows(a, page, g),
            kvd_packed_parts_of(&a.form, a.map.d_qk[g], a.map.d_v[g]),
            min(m - t0, (int)KVD_PAGE_TOKENS),
            min(max(keys_coded(a, m - 1) - t0, 0), (int)KVD_PAGE_TOKENS),
            min(max(values_coded(a, m - 1) - t0, 0), (int)KVD_PAGE_TOKENS)};
}

__device__ __forceinline__ uint4 scales_of(const page_of &o, int part, int block, int c)
{
    return *reinterpret_cast<const uint4 *>(o.codes + part + 64 * block + 16 * c);
}

/* Writes two dimensions of token t: `restored` if t < coded, else those in the ring buffer. */
__device__ __forceinline__ void put_row(const page_of &o, int t, int coded, size_t at,
                                        uint32_t restored)
{
    const uint32_t x = t < coded    ? restored
                       : t < o.left ? *reinterpret_cast<const uint32_t *>(o.ring + at)
                                    : 0;
    *reinterpret_cast<uint32_t *>(o.rows + at) = x;
}

/* Restores 16 dimensions of keys (side 0), or of values with scales per channel (side 1). */
__device__ void even_channels(const page_of &o, int side, int u, int lane)
{
    const kvd_packed_form &f = o.a.form;
    const int d_qk = o.a.map.d_qk[o.g], d = side ? o.a.map.d_v[o.g] : d_qk, r = lane / 4,
              c = lane % 4, groups = f.k_group / 8, coded = side ? o.values : o.keys,
              from = side ? KVD_PAGE_TOKENS * d_qk : 0;
    const float middle = f.symmetric ? (float)((1 << f.bits) / 2 - 1) : 0;
    uint32_t pair[16];
    uint4 scale = make_uint4(0, 0, 0, 0);
    load_pairs(reinterpret_cast<const uint32_t *>(o.codes + (side ? o.parts.v : 0)) +
                   kvd_packed_words(f.bits, u, lane),
               false, f.bits, pair);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (8 * j >= o.left)
            break;
        if (j % groups == 0 && 8 * j < coded)
            scale =
                scales_of(o, side ? o.parts.v_side : o.parts.k_side, j / groups * (d / 16) + u, c);
        if (f.symmetric)
            scale.z = scale.w = 0;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t code = pair[j / 2 * 4 + 2 * h + j % 2], s = h ? scale.y : scale.x,
                           z = h ? scale.w : scale.z;
            put_row(o, 8 * j + r, coded,
                    (size_t)(from + j * 8 * d + (2 * u + h) * 64 + r * 8 + 2 * c),
                    bf16_pair(half_of(s, 0) * ((float)(code & 0xffff) - middle) + half_of(z, 0),
                              half_of(s, 1) * ((float)(code >> 16) - middle) + half_of(z, 1)));
        }
    }
}

__device__ void even_values(const page_of &o, int u, int lane)
{
    const int d = o.a.map.d_v[o.g], r = lane / 4, c = lane % 4, group = 16 * u / o.a.form.v_group;
    const size_t v = (size_t)KVD_PAGE_TOKENS * (size_t)o.a.map.d_qk[o.g];
    uint32_t pair[16];
    load_pairs(reinterpret_cast<const uint32_t *>(o.codes + o.parts.v) +
                   kvd_packed_words(o.a.form.bits, u, lane),
               false, o.a.form.bits, pair);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (16 * k >= o.left)
            break;
        const uint4 scale = scales_of(o, o.parts.v_side, 4 * group + k, c);
#pragma unroll
        for (int a = 0; a < 4; a++) {
            const uint32_t code = pair[4 * k + a], s = a / 2 ? scale.y : scale.x,
                           z = a / 2 ? scale.w : scale.z;
            const uint32_t x =
                exchanged(bf16_pair(half_of(s, 0) * (float)(code & 0xffff) + half_of(z, 0),
                                    half_of(s, 1) * (float)(code >> 16) + half_of(z, 1)));
            const int j = 2 * k + a / 2;
            if (8 * j < o.left)
                put_row(o, 8 * j + r, o.values,
                        v + (size_t)(j * 8 * d + (2 * u + a % 2) * 64 + r * 8 + 2 * c), x);
        }
    }
}

/* Decodes 16 dimensions of keys or values to tile [64][TILE_PITCH]. */
__device__ void level_unit(const page_of &o, int side, int u, const float *level, float *tile,
                           int lane)
{
    const int bits = o.a.form.bits, r = lane / 4, c = lane % 4;
    uint32_t pair[16];
    load_pairs(reinterpret_cast<const uint32_t *>(o.codes + (side ? o.parts.v : 0)) +
                   kvd_packed_words(bits, u, lane),
               true, bits, pair);
    const float *const read = level + (1 << bits);
    if (side) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint4 scale = scales_of(o, o.parts.v_side, k, c);
#pragma unroll
            for (int a = 0; a < 4; a++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const uint32_t code = e ? pair[4 * k + a] >> 16 : pair[4 * k + a] & 0xffff;
                    tile[(16 * k + a / 2 * 8 + 2 * c + e) * TILE_PITCH + 16 * u + a % 2 * 8 + r] =
                        half_of(a / 2 ? scale.w : scale.z, e) +
                        half_of(a / 2 ? scale.y : scale.x, e) * read[code];
                }
        }
        return;
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int i = 16 * u + 8 * h + 2 * c + e;
            const float *const range =
                o.a.range + 2 * ((size_t)o.g * (size_t)o.a.range_width + (size_t)i);
            const float middle = i < o.a.range_width ? range[0] : 0,
                        half = i < o.a.range_width ? range[1] : 0;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const uint32_t two = pair[j / 2 * 4 + 2 * h + j % 2],
                               code = e ? two >> 16 : two & 0xffff;
                tile[(8 * j + r) * TILE_PITCH + i] = middle + half * read[code];
            }
        }
}

__device__ void put_exceptions(const page_of &o, int side, float *tile)
{
    const kvd_packed_args &a = o.a;
    const int d = side ? a.map.d_v[o.g] : a.map.d_qk[o.g], coded = side ? o.values : o.keys,
              t0 = KVD_PAGE_TOKENS * o.p, tid = (int)threadIdx.x;
    const uint32_t *const v_list = reinterpret_cast<const uint32_t *>(o.codes + o.parts.v_list);
    const uint32_t *const k_list = reinterpret_cast<const uint32_t *>(o.codes + o.parts.k_list);
    const int n = side             ? coded * a.form.v_apart
                  : a.form.k_apart ? min((int)k_list[0], a.form.k_apart)
                                   : 0;
    for (int i = tid; i < n; i += 32 * WARPS) {
        const uint32_t one = side ? v_list[i] : k_list[4 + i];
        const int at = (int)(one >> 16), t = side ? i / a.form.v_apart : at / KVD_WIDTH_NARROW;
        tile[t * TILE_PITCH + at % KVD_WIDTH_NARROW] = half_of(one, 0);
    }
    const int sink = min(a.n_sink - t0, coded), wide = a.map.page_elements / KVD_PAGE_TOKENS;
    if (sink <= 0)
        return;
    __syncthreads();
    const uint16_t *const from = in_sink(a, o.b, o.g, t0) + (side ? a.map.d_qk[o.g] : 0);
    for (int i = tid; i < sink * d; i += 32 * WARPS)
        tile[i / d * TILE_PITCH + i % d] =
            half_of(from[(size_t)(i / d) * (size_t)wide + (size_t)(i % d)], 0);
}

/* Writes tokens t0 .. t0 + 7: coded ones from `tile`, others from the ring buffer. One warp. */
__device__ __forceinline__ void put_octet(const page_of &o, int side, int coded, int t0,
                                          const float *tile, int lane)
{
    const kvd_packed_args &a = o.a;
    const int d = side ? a.map.d_v[o.g] : a.map.d_qk[o.g], t = t0 + lane % 8, c = lane / 8 * 2,
              at = (side ? KVD_PAGE_TOKENS * a.map.d_qk[o.g] : 0) + page_index(t, c, d);
    const bool roped = !side && a.before_rope && a.cosine, whole = t0 + 8 <= coded;
    const float *const row = tile + lane % 8 * TILE_PITCH + c;
#pragma unroll 2
    for (int i = 0; i < d / 2; i += 8) {
        const float2 x = *reinterpret_cast<const float2 *>(row + i),
                     y = *reinterpret_cast<const float2 *>(row + i + d / 2);
        float low[2] = {x.x, x.y}, high[2] = {y.x, y.y};
        if (roped && (whole || t < coded))
            apply_rope(a, load_rope(a, KVD_PAGE_TOKENS * o.p + t, i + c), low, high);
        const uint32_t pair[2] = {bf16_pair(low[0], low[1]), bf16_pair(high[0], high[1])};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int to = at + 8 * i + h * 4 * d;
            if (whole)
                *reinterpret_cast<uint32_t *>(o.rows + to) = pair[h];
            else
                put_row(o, t, coded, (size_t)to, pair[h]);
        }
    }
}

__device__ void level_side(const page_of &o, int side, const float *level, float *tile)
{
    const int d = side ? o.a.map.d_v[o.g] : o.a.map.d_qk[o.g], coded = side ? o.values : o.keys;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    for (int u = warp; coded && u < d / 16; u += WARPS)
        level_unit(o, side, u, level + (side ? 2 << o.a.form.bits : 0), tile, lane);
    __syncthreads();
    if (coded)
        put_exceptions(o, side, tile);
    __syncthreads();
    for (int t0 = 8 * warp; t0 < o.left; t0 += 8 * WARPS)
        put_octet(o, side, coded, t0, tile + t0 * TILE_PITCH, lane);
    __syncthreads();
}

template <bool LEVELS>
__global__ void __launch_bounds__(32 * WARPS)
    restore_kernel(const __grid_constant__ kvd_packed_args a)
{
    extern __shared__ __align__(16) float tile[];
    __shared__ float level[4 << 8];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, warp = (int)threadIdx.x / 32,
              lane = (int)threadIdx.x % 32;
    const int m = a.kv_len[b];
    if (LEVELS && a.level)
        for (int i = (int)threadIdx.x; i < 4 << a.form.bits; i += 32 * WARPS)
            level[i] = a.level[i];
    __syncthreads();
    for (int p = first_seen(a, m) / KVD_PAGE_TOKENS + (int)blockIdx.z; KVD_PAGE_TOKENS * p < m;
         p += (int)gridDim.z) {
        const page_of o = make_page(a, b, g, p, m);
        if (LEVELS) {
            level_side(o, 0, level, tile);
            level_side(o, 1, level, tile);
        } else {
            const int k_units = a.map.d_qk[g] / 16, v_units = a.map.d_v[g] / 16;
            for (int u = warp; u < k_units + v_units; u += WARPS)
                if (u < k_units || a.form.v_channels)
                    even_channels(o, u >= k_units, u < k_units ? u : u - k_units, lane);
                else
                    even_values(o, u - k_units, lane);
        }
    }
}

/* ---- bits per dimension (allot) ---- */

/* Tables of a KV head in shared memory: x = mean + deviation * level. */
struct allot_tables {
    float level[2][2 << 8];
    struct {
        float mean, deviation;
        int bits, word;
    } of[2][KVD_WIDTH_NARROW];
};

/* Loads the tables of KV head g. All threads of the CTA must call it. */
__device__ void load_tables(const kvd_packed_args &a, int g, allot_tables &s)
{
    const kvd_packed_allot &from = a.allot;
    for (int i = (int)threadIdx.x; i < 2 << 8; i += 32 * WARPS) {
        const int bits = 31 - __clz(i);
#pragma unroll
        for (int side = 0; side < 2; side++)
            s.level[side][i] = i < 2 ? 0 : from.level[((9 * side + bits) << 8) + i - (1 << bits)];
    }
    const int side = (int)threadIdx.x / KVD_WIDTH_NARROW, i = (int)threadIdx.x % KVD_WIDTH_NARROW,
              at = (2 * g + side) * from.wide + i;
    if (i < (side ? a.map.d_v[g] : a.map.d_qk[g])) {
        const float deviation = from.scale[2 * at + 1];
        const bool coded = from.bits[at] && deviation > 0;
        s.of[side][i] = {from.scale[2 * at], coded ? deviation : 0, coded ? from.bits[at] : 0,
                         from.word[at]};
    }
    __syncthreads();
}

/* Decodes tokens t0 .. t0 + 7 to tile [8][TILE_PITCH] with one warp. */
__device__ __forceinline__ void allotted_octet(const page_of &o, int side, int t0,
                                               const allot_tables &s, float *tile, int lane)
{
    const kvd_packed_args &a = o.a;
    const int d = side ? a.map.d_v[o.g] : a.map.d_qk[o.g],
              sink = min(a.n_sink - KVD_PAGE_TOKENS * o.p - t0, 8);
#pragma unroll 4
    for (int i = lane; i < d; i += 32) {
        const auto dim = s.of[side][i];
        const int first = t0 * dim.bits / 32, last = (t0 * dim.bits + 8 * dim.bits - 1) / 32;
        const uint32_t *const words = reinterpret_cast<const uint32_t *>(o.codes) + dim.word;
        const uint32_t w0 = dim.bits ? words[first] : 0,
                       w1 = dim.bits ? words[min(first + 1, last)] : 0,
                       w2 = dim.bits ? words[last] : 0, shift = (uint32_t)(t0 * dim.bits) % 32,
                       mask = (1u << dim.bits) - 1;
        uint32_t low = __funnelshift_r(w0, w1, shift), high = __funnelshift_r(w1, w2, shift);
        const float *const read = s.level[side] + (1 << dim.bits);
        float x[8];
#pragma unroll
        for (int t = 0; t < 8; t++) {
            x[t] = read[low & mask];
            low = __funnelshift_r(low, high, (uint32_t)dim.bits);
            high >>= dim.bits;
        }
#pragma unroll
        for (int t = 0; t < 8; t++)
            tile[t * TILE_PITCH + i] = __fadd_rn(dim.mean, __fmul_rn(dim.deviation, x[t]));
    }
    for (int t = 0; t < sink; t++) {
        const uint16_t *const from =
            in_sink(a, o.b, o.g, KVD_PAGE_TOKENS * o.p + t0 + t) + (side ? a.map.d_qk[o.g] : 0);
#pragma unroll 1
        for (int i = lane; i < d; i += 32)
            tile[t * TILE_PITCH + i] = half_of(from[i], 0);
    }
}

/* A warp restores 8 tokens of a page. */
__global__ void __launch_bounds__(32 * WARPS, 4)
    restore_allot_kernel(const __grid_constant__ kvd_packed_args a)
{
    extern __shared__ __align__(16) float tile[];
    __shared__ __align__(16) allot_tables s;
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, m = a.kv_len[b],
              lane = (int)threadIdx.x % 32, t0 = (int)threadIdx.x / 32 * 8;
    float *const rows = tile + t0 * TILE_PITCH;
    static_assert(32 * WARPS == 2 * KVD_WIDTH_NARROW, "a thread loads a dimension");
    load_tables(a, g, s);
    for (int p = first_seen(a, m) / KVD_PAGE_TOKENS + (int)blockIdx.z; KVD_PAGE_TOKENS * p + t0 < m;
         p += (int)gridDim.z) {
        const page_of o = make_page(a, b, g, p, m);
#pragma unroll 1
        for (int side = 0; side < 2; side++) {
            const int coded = side ? o.values : o.keys;
            if (t0 < coded)
                allotted_octet(o, side, t0, s, rows, lane);
            __syncwarp();
            put_octet(o, side, coded, t0, rows, lane);
            __syncwarp();
        }
    }
}

/* ---- gear ---- */

/* Tokens from .. to - 1 of a page, whose keys share scales and right factor. */
struct group_of {
    int from, to, pairs;
    const uint32_t *scale, *right; /* [d_qk] and [d_qk][pairs] */
};

/* Returns the group that begins with token t of page p. */
__device__ __forceinline__ group_of group_at(const head_of &o, int p, int t, int done)
{
    const kvd_gear &s = o.a.gear.of;
    const int whole = KVD_PAGE_TOKENS * p + t;
    const bool prompt = whole < o.prompt;
    const int first = prompt ? 0 : block_of(o, whole),
              end = min(first + ((whole - first) / s.group + 1) * s.group,
                        prompt ? o.prompt : first + s.buffer);
    return {t, min(end - KVD_PAGE_TOKENS * p, done),
            (prompt ? o.page.columns : o.page.columns_later) / 2, key_scales(o, whole),
            as_words(reinterpret_cast<char *>(right_factor(o, 0, whole)))};
}

/* Adds the products of two columns of the left and the right low-rank factor to y. */
__device__ __forceinline__ void add_columns(uint32_t left, uint32_t right, float &y)
{
    y = fmaf(half_of(left, 0), half_of(right, 0), y);
    y = fmaf(half_of(left, 1), half_of(right, 1), y);
}

/*
 * Restores channels 8 u .. 8 u + 7 of 32 keys of group s from token t0 on, without outliers. In a
 * warp, lane 4 r + c decodes channel r of tokens 2 c and 2 c + 1 of every 8 tokens, and writes
 * tokens r, r + 8, r + 16, r + 24.
 */
template <int PAIRS>
__device__ __forceinline__ void
restore_keys(const head_of &o, const group_of &s, const uint32_t *planes,
             const uint32_t (&left)[8][PAIRS + 1], uint16_t *to, int t0, int u, int lane)
{
    const int bits = o.a.gear.of.bits, r = lane / 4, c = lane % 4, i = 8 * u + r;
    const uint32_t scale = s.scale[i];
    uint32_t right[PAIRS + 1], code[2];
#pragma unroll
    for (int q = 0; q < PAIRS; q++)
        right[q] = s.right[i * PAIRS + q];
    pairs_of_planes<8>(planes, bits, c, code);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float y[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            y[e] = decoded(scale, raised_byte(code[e], k) - RAISED);
#pragma unroll
            for (int q = 0; q < PAIRS; q++)
                add_columns(left[2 * k + e][q], right[q], y[e]);
        }
        const uint32_t pair = exchanged(bf16_pair(y[0], y[1]));
        const int t = t0 + 8 * k + r;
        if (t >= s.from && t < s.to)
            *reinterpret_cast<uint32_t *>(to + k * 8 * o.a.map.d_qk[o.g]) = pair;
    }
}

/* Restores a group's keys in half h of a page, without outliers. */
template <int PAIRS>
__device__ __forceinline__ void restore_half(const head_of &o, const group_of &s, char *codes,
                                             uint16_t *rows, int h)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, r = lane / 4,
              c = lane % 4, row = o.page.columns_left / 2;
    const uint32_t *const from = as_words(codes + o.page.left[0]) + (32 * h + 2 * c) * row;
    uint32_t left[8][PAIRS + 1];
#pragma unroll
    for (int k = 0; k < 8; k++)
#pragma unroll
        for (int q = 0; q < PAIRS; q++)
            left[k][q] = from[(k / 2 * 8 + k % 2) * row + q];
    for (int u = warp; u < o.a.map.d_qk[o.g] / 8; u += WARPS)
        restore_keys<PAIRS>(o, s, as_words(codes) + (2 * (8 * u + r) + h) * o.a.gear.of.bits, left,
                            rows + place_of(o, 0, 32 * h + r, 8 * u + 2 * c), 32 * h, u, lane);
}

__device__ __forceinline__ void restore_group(const head_of &o, const group_of &s, char *codes,
                                              uint16_t *rows)
{
    for (int h = s.from / 32; 32 * h < s.to; h++)
        if (s.pairs == 0)
            restore_half<0>(o, s, codes, rows, h);
        else if (s.pairs == 1)
            restore_half<1>(o, s, codes, rows, h);
        else if (s.pairs == 2)
            restore_half<2>(o, s, codes, rows, h);
        else if (s.pairs == 3)
            restore_half<3>(o, s, codes, rows, h);
        else
            restore_half<4>(o, s, codes, rows, h);
}

/* Coded values of a token, with both low-rank factors. */
struct value_of {
    const uint32_t *planes, *scale, *left, *right;
};

/* Returns channels i .. i + 7 of a token's values without outliers, as bf16. */
template <int PAIRS>
__device__ __forceinline__ uint4 restored(const head_of &o, const value_of &v, int i)
{
    const int bits = o.a.gear.of.bits, group = o.a.gear.of.group;
    const uint4 *const right = reinterpret_cast<const uint4 *>(v.right + i * PAIRS);
    uint32_t code[2], columns[8 * PAIRS + 1];
#pragma unroll
    for (int k = 0; k < 2 * PAIRS; k++) {
        const uint4 four = right[k];
        columns[4 * k] = four.x, columns[4 * k + 1] = four.y;
        columns[4 * k + 2] = four.z, columns[4 * k + 3] = four.w;
    }
    codes_of_planes(v.planes + i / 32 * bits, bits, i % 32 / 8, code);
    int index = i / group, at = i % group;
    uint32_t scale = v.scale[index];
    float y[8];
#pragma unroll
    for (int e = 0; e < 8; e++) {
        y[e] = decoded(scale, raised_byte(code[e / 4], e % 4) - RAISED);
        if (e < 7 && ++at == group) {
            at = 0;
            scale = v.scale[++index];
        }
    }
#pragma unroll
    for (int q = 0; q < PAIRS; q++) {
        const uint32_t left = v.left[q];
#pragma unroll
        for (int e = 0; e < 8; e++)
            add_columns(left, columns[e * PAIRS + q], y[e]);
    }
    return make_uint4(bf16_pair(y[0], y[1]), bf16_pair(y[2], y[3]), bf16_pair(y[4], y[5]),
                      bf16_pair(y[6], y[7]));
}

/*
 * Restores the values of tokens t0 .. t0 + 7, without outliers. One warp, lane l for token l % 8.
 */
__device__ void restore_values(const head_of &o, int p, char *codes, uint16_t *rows, int t0,
                               int left, int done, int lane)
{
    const int t = t0 + lane % 8, whole = KVD_PAGE_TOKENS * p + t, d = o.a.map.d_v[o.g];
    const uint16_t *const ring = in_ring(o.a, o.b, p, o.g);
    value_of v = {};
    int pairs = 0;
    if (t < done) {
        pairs = (whole < o.prompt ? o.page.columns : o.page.columns_later) / 2;
        v.planes = as_words(codes + o.page.v) + t * kvd_gear_pieces(d, 32) * o.a.gear.of.bits;
        v.scale = as_words(codes + o.page.v_side) + t * o.page.v_groups;
        v.left = as_words(codes + o.page.left[1]) + t * (o.page.columns_left / 2);
        v.right = as_words(reinterpret_cast<char *>(right_factor(o, 1, whole)));
    }
    for (int i = lane / 8 * 8; i < d; i += 32) {
        const int place = place_of(o, 1, t, i);
        *reinterpret_cast<uint4 *>(rows + place) =
            t >= left    ? make_uint4(0, 0, 0, 0)
            : t >= done  ? *reinterpret_cast<const uint4 *>(ring + place)
            : pairs == 0 ? restored<0>(o, v, i)
            : pairs == 1 ? restored<1>(o, v, i)
            : pairs == 2 ? restored<2>(o, v, i)
            : pairs == 3 ? restored<3>(o, v, i)
                         : restored<4>(o, v, i);
    }
}

/* Copies the keys of tokens done .. left - 1, zero-padded to groups of 8. */
__device__ void copy_keys(const head_of &o, int p, uint16_t *rows, int left, int done)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const uint16_t *const ring = in_ring(o.a, o.b, p, o.g);
    for (int t0 = done / 8 * 8; t0 < left; t0 += 8)
        for (int i = 32 * warp + lane / 8 * 8; i < o.a.map.d_qk[o.g]; i += 32 * WARPS) {
            const int t = t0 + lane % 8, place = place_of(o, 0, t, i);
            if (t >= done)
                *reinterpret_cast<uint4 *>(rows + place) =
                    t < left ? *reinterpret_cast<const uint4 *>(ring + place)
                             : make_uint4(0, 0, 0, 0);
        }
}

__device__ __forceinline__ void put_outlier(const head_of &o, uint16_t *rows, int side, int t,
                                            int i, uint32_t one)
{
    if (t >= 0 && t < KVD_PAGE_TOKENS && i < (side ? o.a.width[1][o.g] : o.a.width[0][o.g]))
        rows[place_of(o, side, t, i)] = (uint16_t)(bf16_pair(half_of(one, 0), 0) & 0xffff);
}

/* Returns the first outlier, at or after token t, of a prompt's key channel. */
__device__ int first_outlier(const head_of &o, int channel, int t)
{
    int e = 0;
    for (int end = 2 * kvd_gear_apart(&o.a.gear.of, o.prompt); e < end;) {
        const int half = (e + end) / 2;
        if ((int)(*key_outlier(o, 0, half, channel) >> 16) < t)
            e = half + 1;
        else
            end = half;
    }
    return e;
}

/*
 * Writes the outliers of the prompt's keys in page p, channel i by thread i, and advances `next`.
 */
__device__ void put_prompt_keys(const head_of &o, uint16_t *rows, int p, int &next)
{
    const int n = 2 * kvd_gear_apart(&o.a.gear.of, o.prompt), t0 = KVD_PAGE_TOKENS * p,
              i = (int)threadIdx.x;
    for (; i < o.a.width[0][o.g] && next < n; next++) {
        const uint32_t one = *key_outlier(o, 0, next, i);
        if ((int)(one >> 16) >= t0 + KVD_PAGE_TOKENS)
            break;
        put_outlier(o, rows, 0, (int)(one >> 16) - t0, i, one);
    }
}

/* Writes the outliers of the page's coded tokens. `next`: prompt outlier to start from. */
__device__ void put_outliers(const head_of &o, uint16_t *rows, int p, int done, int &next)
{
    const int t0 = KVD_PAGE_TOKENS * p, d = o.a.width[0][o.g], each = o.page.k_later,
              block = o.a.gear.of.buffer;
    const uint32_t *const list = as_words(codes_of(o, p) + o.page.v_list);
    const int apart = 2 * kvd_gear_apart(&o.a.gear.of, o.a.width[1][o.g]);
    for (int i = (int)threadIdx.x; i < done * apart; i += 32 * WARPS) {
        const uint32_t one = list[i / apart * o.page.v_apart + i % apart];
        put_outlier(o, rows, 1, i / apart, (int)(one >> 16), one);
    }
    if (t0 < o.prompt)
        put_prompt_keys(o, rows, p, next);
    for (int first = max(o.prompt, block_of(o, t0)); each && first < t0 + done; first += block)
        for (int i = (int)threadIdx.x; i < each * d; i += 32 * WARPS) {
            const uint32_t one = *key_outlier(o, first, i / d, i % d);
            if ((int)(one >> 16) < block)
                put_outlier(o, rows, 0, first + (int)(one >> 16) - t0, i % d, one);
        }
}

__device__ void restore_page(const head_of &o, int p, int left, int done, int &next)
{
    const int warp = (int)threadIdx.x / 32;
    char *const codes = codes_of(o, p);
    uint16_t *const rows = in_rows(o.a, page_number(o.a, o.b, p), o.g);
    for (int t = 0; t < done;) {
        const group_of s = group_at(o, p, t, done);
        restore_group(o, s, codes, rows);
        t = s.to;
    }
    copy_keys(o, p, rows, left, done);
    if (8 * warp < left)
        restore_values(o, p, codes, rows, 8 * warp, left, done, (int)threadIdx.x % 32);
    __syncthreads();
    if (done > 0)
        put_outliers(o, rows, p, done, next);
}

__global__ void __launch_bounds__(32 * WARPS, 3)
    restore_gear_kernel(const __grid_constant__ kvd_packed_args a)
{
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, m = a.kv_len[b];
    const int coded = keys_coded(a, m - 1), pages = kvd_gear_pieces(m, KVD_PAGE_TOKENS),
              each = kvd_gear_pieces(pages, (int)gridDim.z), first = (int)blockIdx.z * each;
    const head_of o = make_head(a, b, g, min(a.prompt[a.slot[b]], coded));
    int next = 0;
    if (first > 0 && KVD_PAGE_TOKENS * first < o.prompt && (int)threadIdx.x < a.width[0][g])
        next = first_outlier(o, (int)threadIdx.x, KVD_PAGE_TOKENS * first);
    for (int p = first; p < min(first + each, pages); p++)
        restore_page(o, p, min(m - KVD_PAGE_TOKENS * p, (int)KVD_PAGE_TOKENS),
                     min(max(coded - KVD_PAGE_TOKENS * p, 0), (int)KVD_PAGE_TOKENS), next);
}

} // namespace

cudaError_t kvd_packed_restore(const kvd_packed_args *a, cudaStream_t stream)
{
    const dim3 grid((unsigned)a->map.n_kv_heads, (unsigned)a->n, (unsigned)a->pages_side_by_side);
    if (a->form.bits < 1 || a->form.bits > 8 || a->n < 1 || a->n > 65535 ||
        a->pages_side_by_side < 1)
        return cudaErrorInvalidValue;
    if (a->form.exponent)
        return kvd_packed_restore_floats(a, stream);
    if (a->form.norms)
        return kvd_packed_restore_turned(a, stream);
    if (a->form.rows)
        return kvd_packed_restore_rows(a, stream);
    if (a->form.split)
        return kvd_packed_restore_split(a, stream);
    if (a->form.classes)
        return kvd_packed_restore_classes(a, stream);
    const size_t bytes = KVD_PAGE_TOKENS * TILE_PITCH * sizeof(float);
    if (a->form.low_rank)
        restore_gear_kernel<<<grid, 32 * WARPS, 0, stream>>>(*a);
    else if (a->form.allotted)
        restore_allot_kernel<<<grid, 32 * WARPS, bytes, stream>>>(*a);
    else if (a->level)
        restore_kernel<true><<<grid, 32 * WARPS, bytes, stream>>>(*a);
    else
        restore_kernel<false><<<grid, 32 * WARPS, 0, stream>>>(*a);
    return cudaGetLastError();
}
