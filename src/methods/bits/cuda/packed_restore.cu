/* Writes K and V to bf16 pages: decodes quantised tokens, and copies unquantised tokens from ring
 * buffers. */
#include "methods/bits/cuda/packed_floats.cuh"

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
    /* left: number of tokens in the page. keys, values: number of tokens whose K, or V, is
     * quantised. */
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

/* Writes two dimensions of token t to the bf16 page: the dequantised numbers `restored` if the
 * token is quantised, otherwise the numbers in the ring buffer. */
__device__ __forceinline__ void put_row(const page_of &o, int t, int coded, size_t at,
                                        uint32_t restored)
{
    const uint32_t x = t < coded    ? restored
                       : t < o.left ? *reinterpret_cast<const uint32_t *>(o.ring + at)
                                    : 0;
    *reinterpret_cast<uint32_t *>(o.rows + at) = x;
}

/* Decodes 16 dimensions of K (side 0) or, if V has scales per channel, of V (side 1). */
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

/* Converts indices of quantisation levels to numbers, for 16 dimensions of K or V. */
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

/* Writes tokens t0 .. t0 + 7 to a bf16 page. Takes quantised tokens, already decoded, from `tile`,
 * and newer tokens from the ring buffer. */
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

} // namespace

cudaError_t kvd_packed_restore(const kvd_packed_args *a, cudaStream_t stream)
{
    const dim3 grid = grid_of(a);
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
    if (a->form.allotted || a->form.low_rank)
        return kvd_packed_restore_pages(a, stream);
    const size_t bytes = KVD_PAGE_TOKENS * TILE_PITCH * sizeof(float);
    if (a->level)
        restore_kernel<true><<<grid, 32 * WARPS, bytes, stream>>>(*a);
    else
        restore_kernel<false><<<grid, 32 * WARPS, 0, stream>>>(*a);
    return cudaGetLastError();
}
