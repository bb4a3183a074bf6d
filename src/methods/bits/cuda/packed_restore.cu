/*
 * Restores bf16 pages from quantised pages and, for the newest tokens, from the ring buffer. Grid:
 * KV heads, requests, CTAs per head. Keys that were quantised before RoPE are rotated by RoPE.
 *
 * equal steps (kivi)    x = s code + zero
 * symmetric (comet)     x = s (code - (2^(b-1) - 1))
 * own bits (allot)      x = mean + deviation * level[code]
 * level table (kvquant) x = middle + half width * level[code]
 * low rank (gear)       x = s code + zero + a row of the left factor times a row of the right one
 */
#include "methods/bits/cuda/packed_floats.cuh"
#include "methods/bits/cuda/packed_gear.cuh"

namespace
{

enum { WARPS = 8, TILE_PITCH = KVD_WIDTH_NARROW + 2 };

struct page_of {
    const kvd_packed_args &a;
    int b, g, p;
    const char *codes;
    const uint16_t *ring;
    uint16_t *rows;
    kvd_packed_parts parts;
    /* number of tokens in the page, of quantised keys and of quantised values */
    int left, keys, values;
};

__device__ __forceinline__ uint4 scales_of(const page_of &o, int part, int block, int c)
{
    return *reinterpret_cast<const uint4 *>(o.codes + part + 64 * block + 16 * c);
}

/*
 * Writes 2 dimensions of token t to the bf16 page: `restored` if t < coded, the numbers in the ring
 * buffer for newer tokens, 0 after the last token.
 */
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

/*
 * Decodes 16 dimensions of keys or values to tile [64][TILE_PITCH]. level is [2][2^bits]; its
 * second half has the decoded numbers.
 */
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

/* Decodes keys or values whose dimensions have numbers of bits of their own (allot) to the tile. */
__device__ void allotted_side(const page_of &o, int side, int coded, float *tile)
{
    const kvd_packed_args &a = o.a;
    const int d = side ? a.map.d_v[o.g] : a.map.d_qk[o.g];
    for (int i = (int)threadIdx.x; i < 4 * d; i += 32 * WARPS) {
        const int dim = i % d, at = (2 * o.g + side) * a.allot.wide + dim, bits = a.allot.bits[at];
        const float mean = a.allot.scale[2 * at], deviation = a.allot.scale[2 * at + 1],
                    *const level = a.allot.level + ((9 * side + bits) << 8);
        const uint32_t *const words =
            reinterpret_cast<const uint32_t *>(o.codes) + a.allot.word[at];
        for (int t = 16 * (i / d); t < min(16 * (i / d) + 16, coded); t++) {
            float x = mean;
            if (bits && deviation > 0) {
                const int first = t * bits / 32, next = (t * bits + bits - 1) / 32;
                const uint32_t code =
                    __funnelshift_r(words[first], words[next], (uint32_t)(t * bits) % 32) &
                    ((1u << bits) - 1);
                /* Rounded twice, as on the CPU. */
                x = __fadd_rn(mean, __fmul_rn(deviation, level[code]));
            }
            tile[t * TILE_PITCH + dim] = x;
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

__device__ __forceinline__ float number_of(const page_of &o, int side, const float *row, int t,
                                           int i)
{
    const kvd_packed_args &a = o.a;
    if (side || !a.before_rope || !a.cosine)
        return row[i];
    return after_rope(a, row, KVD_PAGE_TOKENS * o.p + t, i);
}

__device__ void level_side(const page_of &o, int side, const float *level, float *tile)
{
    const int d = side ? o.a.map.d_v[o.g] : o.a.map.d_qk[o.g], coded = side ? o.values : o.keys;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const size_t first = side ? (size_t)KVD_PAGE_TOKENS * (size_t)o.a.map.d_qk[o.g] : 0;
    if (o.a.form.allotted)
        allotted_side(o, side, coded, tile);
    for (int u = warp; !o.a.form.allotted && coded && u < d / 16; u += WARPS)
        level_unit(o, side, u, level + (side ? 2 << o.a.form.bits : 0), tile, lane);
    __syncthreads();
    if (coded)
        put_exceptions(o, side, tile);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < (o.left + 7) / 8 * 4 * d; i += 32 * WARPS) {
        const int t = i / (4 * d) * 8 + i / 4 % 8, dim = i / 32 % (d / 8) * 8 + i % 4 * 2;
        const float *const row = tile + t * TILE_PITCH;
        put_row(o, t, coded, first + (size_t)(2 * i),
                t < coded ? bf16_pair(number_of(o, side, row, t, dim),
                                      number_of(o, side, row, t, dim + 1))
                          : 0);
    }
    __syncthreads();
}

template <bool LEVELS>
__global__ void __launch_bounds__(32 * WARPS)
    restore_kernel(const __grid_constant__ kvd_packed_args a)
{
    extern __shared__ float tile[];
    __shared__ float level[4 << 8];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, warp = (int)threadIdx.x / 32,
              lane = (int)threadIdx.x % 32;
    const int m = a.kv_len[b], keys = keys_coded(a, m - 1), values = values_coded(a, m - 1);
    if (LEVELS && a.level)
        for (int i = (int)threadIdx.x; i < 4 << a.form.bits; i += 32 * WARPS)
            level[i] = a.level[i];
    __syncthreads();
    for (int p = first_seen(a, m) / KVD_PAGE_TOKENS + (int)blockIdx.z; KVD_PAGE_TOKENS * p < m;
         p += (int)gridDim.z) {
        const int page = page_number(a, b, p), t0 = KVD_PAGE_TOKENS * p;
        const page_of o = {a,
                           b,
                           g,
                           p,
                           in_codes(a, page, g),
                           in_ring(a, b, p, g),
                           in_rows(a, page, g),
                           kvd_packed_parts_of(&a.form, a.map.d_qk[g], a.map.d_v[g]),
                           min(m - t0, (int)KVD_PAGE_TOKENS),
                           min(max(keys - t0, 0), (int)KVD_PAGE_TOKENS),
                           min(max(values - t0, 0), (int)KVD_PAGE_TOKENS)};
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

/* ---- gear ---- */

/* Coded K or V of a token: codes, scales and right factor of channel 0. */
template <int SIDE> struct token_of {
    const uint32_t *planes, *scale, *right;
    float left[KVD_GEAR_RANK];
    int pairs; /* of columns of the right factor */
};

template <int SIDE>
__device__ __forceinline__ token_of<SIDE> make_token(const head_of &o, int p, int t)
{
    const int whole = KVD_PAGE_TOKENS * p + t;
    const uint32_t *const row =
        as_words(codes_of(o, p) + o.page.left[SIDE]) + t * o.page.columns_left / 2;
    token_of<SIDE> r = {planes_at(o, SIDE, whole, 0),
                        SIDE ? value_scale(o, whole, 0) : key_scales(o, whole),
                        reinterpret_cast<const uint32_t *>(right_factor(o, SIDE, whole)),
                        {},
                        (whole < o.prompt ? o.page.columns : o.page.columns_later) / 2};
#pragma unroll
    for (int c = 0; c < KVD_GEAR_RANK; c++)
        r.left[c] = c / 2 < r.pairs ? half_of(row[c / 2], c % 2) : 0;
    return r;
}

/* Returns channels 8 u .. 8 u + 7 of token t of a page, without outliers, as bf16. */
template <int SIDE>
__device__ __forceinline__ uint4 restored(const head_of &o, const token_of<SIDE> &r, int t, int u)
{
    const int bits = o.a.gear.of.bits, group = o.a.gear.of.group;
    float y[8];
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const int i = 8 * u + e;
        y[e] =
            decoded(r.scale[SIDE ? i / group : i], code_in(r.planes + (SIDE ? u / 4 : 2 * i) * bits,
                                                           bits, SIDE ? i % 32 : t % 32));
    }
#pragma unroll
    for (int q = 0; q < KVD_GEAR_RANK / 2; q++)
        if (q < r.pairs)
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const uint32_t two = r.right[(8 * u + e) * r.pairs + q];
                y[e] = fmaf(r.left[2 * q], half_of(two, 0), y[e]);
                y[e] = fmaf(r.left[2 * q + 1], half_of(two, 1), y[e]);
            }
    return make_uint4(bf16_pair(y[0], y[1]), bf16_pair(y[2], y[3]), bf16_pair(y[4], y[5]),
                      bf16_pair(y[6], y[7]));
}

/*
 * Writes K or V of the `left` tokens of a page, of which the first `done` are coded, without
 * outliers. A lane handles one token, 8 channels at a time.
 */
template <int SIDE>
__device__ void restore_side(const head_of &o, uint16_t *rows, int p, int left, int done)
{
    const int warp = (int)threadIdx.x / 32, t = warp % 2 * 32 + (int)threadIdx.x % 32,
              units = (SIDE ? o.a.map.d_v[o.g] : o.a.map.d_qk[o.g]) / 8;
    const uint16_t *const ring = in_ring(o.a, o.b, p, o.g);
    token_of<SIDE> token = {};
    if (t < done)
        token = make_token<SIDE>(o, p, t);
    for (int u = warp / 2; t < (left + 7) / 8 * 8 && u < units; u += WARPS / 2) {
        const int place = place_of(o, SIDE, t, 8 * u);
        *reinterpret_cast<uint4 *>(rows + place) =
            t < done   ? restored<SIDE>(o, token, t, u)
            : t < left ? *reinterpret_cast<const uint4 *>(ring + place)
                       : make_uint4(0, 0, 0, 0);
    }
}

__device__ __forceinline__ void put_outlier(const head_of &o, uint16_t *rows, int side, int t,
                                            int i, uint32_t one)
{
    if (t >= 0 && t < KVD_PAGE_TOKENS && i < (side ? o.a.width[1][o.g] : o.a.width[0][o.g]))
        rows[place_of(o, side, t, i)] = (uint16_t)(bf16_pair(half_of(one, 0), 0) & 0xffff);
}

/*
 * Writes the outliers of the prompt's keys in page p. The outliers of a channel are in the order of
 * their tokens, so that the first one of the page is found by bisection.
 */
__device__ void put_prompt_keys(const head_of &o, uint16_t *rows, int p)
{
    const int n = 2 * kvd_gear_apart(&o.a.gear.of, o.prompt), t0 = KVD_PAGE_TOKENS * p;
    for (int i = (int)threadIdx.x; i < o.a.width[0][o.g]; i += 32 * WARPS) {
        int e = 0;
        for (int end = n; e < end;) {
            const int half = (e + end) / 2;
            if ((int)(*key_outlier(o, 0, half, i) >> 16) < t0)
                e = half + 1;
            else
                end = half;
        }
        for (; e < n; e++) {
            const uint32_t one = *key_outlier(o, 0, e, i);
            if ((int)(one >> 16) >= t0 + KVD_PAGE_TOKENS)
                break;
            put_outlier(o, rows, 0, (int)(one >> 16) - t0, i, one);
        }
    }
}

/* Writes the outliers of the page's `done` coded tokens. */
__device__ void put_outliers(const head_of &o, uint16_t *rows, int p, int done)
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
        put_prompt_keys(o, rows, p);
    for (int first = max(o.prompt, block_of(o, t0)); each && first < t0 + done; first += block)
        for (int i = (int)threadIdx.x; i < each * d; i += 32 * WARPS) {
            const uint32_t one = *key_outlier(o, first, i / d, i % d);
            if ((int)(one >> 16) < block)
                put_outlier(o, rows, 0, first + (int)(one >> 16) - t0, i % d, one);
        }
}

__device__ void restore_page(const head_of &o, int p, int left, int done)
{
    uint16_t *const rows = in_rows(o.a, page_number(o.a, o.b, p), o.g);
    restore_side<0>(o, rows, p, left, done);
    restore_side<1>(o, rows, p, left, done);
    __syncthreads();
    if (done > 0)
        put_outliers(o, rows, p, done);
}

__global__ void __launch_bounds__(32 * WARPS)
    restore_gear_kernel(const __grid_constant__ kvd_packed_args a)
{
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, m = a.kv_len[b];
    const int coded = keys_coded(a, m - 1);
    const head_of o = make_head(a, b, g, min(a.gear.prompt[a.slot[b]], coded));
    for (int p = (int)blockIdx.z; KVD_PAGE_TOKENS * p < m; p += (int)gridDim.z)
        restore_page(o, p, min(m - KVD_PAGE_TOKENS * p, (int)KVD_PAGE_TOKENS),
                     min(max(coded - KVD_PAGE_TOKENS * p, 0), (int)KVD_PAGE_TOKENS));
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
    if (a->form.low_rank) {
        restore_gear_kernel<<<grid, 32 * WARPS, 0, stream>>>(*a);
        return cudaGetLastError();
    }
    if (!a->level && !a->form.allotted) {
        restore_kernel<false><<<grid, 32 * WARPS, 0, stream>>>(*a);
        return cudaGetLastError();
    }
    const int bytes = KVD_PAGE_TOKENS * TILE_PITCH * (int)sizeof(float);
    restore_kernel<true><<<grid, 32 * WARPS, (size_t)bytes, stream>>>(*a);
    return cudaGetLastError();
}
