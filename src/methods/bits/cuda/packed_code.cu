/* Quantises all tokens but the newest, for methods kivi, comet, allot and kvquant. */
#include "methods/bits/cuda/packed_code.cuh"
#include "methods/bits/cuda/packed_code_values.cuh"
#include "methods/bits/cuda/packed_floats.cuh"

namespace
{

enum {
    WARPS = 8,
    FEW = 24 /* CTAs up to which code_kernel codes single tokens */
};

/* Finds the smallest (sign 1) or largest (sign -1) element, not yet marked in `taken`, of a vector
 * that a warp holds, and marks it. Returns its float16 bits plus 2^16 times its index. */
__device__ uint32_t take_of(const float (&x)[4], bool there, float sign, int lane, uint32_t &taken)
{
    float best = INFINITY;
    int at = INT32_MAX;
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (there && !(taken >> k & 1) && (sign * x[k] < best || at == INT32_MAX)) {
            best = sign * x[k];
            at = 4 * lane + k;
        }
#pragma unroll 1
    for (int i = 1; i < 32; i *= 2) {
        const float y = __shfl_xor_sync(~0u, best, i);
        const int dim = __shfl_xor_sync(~0u, at, i);
        if (dim != INT32_MAX && (y < best || (y == best && dim < at) || at == INT32_MAX)) {
            best = y;
            at = dim;
        }
    }
    if (at / 4 == lane)
        taken |= 1u << at % 4;
    return half_bits(sign * best) | (uint32_t)at << 16;
}

__device__ void code_value_part(const page_of &o, int t, int part, int lane)
{
    const kvd_packed_args &a = o.a;
    const int d = a.map.d_v[o.g], bits = a.form.bits, n_apart = a.v_apart[o.g] / 2,
              in_request = KVD_PAGE_TOKENS * o.p + t;
    const bool there = 4 * part < d, first = in_request < a.n_sink;
    float x[4] = {}, lo = INFINITY, hi = -INFINITY;
    if (there) {
        const uint2 v = *reinterpret_cast<const uint2 *>(
            o.rows + KVD_PAGE_TOKENS * a.map.d_qk[o.g] + t / 8 * 8 * d + part / 2 * 64 + t % 8 * 8 +
            part % 2 * 4);
        x[0] = bf16_of(v.x, 0), x[1] = bf16_of(v.x, 1), x[2] = bf16_of(v.y, 0),
        x[3] = bf16_of(v.y, 1);
    }
    /* Mask of the lane's 4 elements that are padding. Elements that become outliers are added
     * later. */
    uint32_t taken = 0xfu & ~0u << min(max((int)a.width[1][o.g] - 4 * part, 0), 4);
    uint32_t *const list =
        reinterpret_cast<uint32_t *>(o.codes + o.parts.v_list) + t * a.form.v_apart;
#pragma unroll 1
    for (int i = 0; i < a.form.v_apart; i++) {
        const uint32_t one =
            i < 2 * n_apart ? take_of(x, there, i < n_apart ? 1.0f : -1.0f, lane, taken) : 0;
        if (lane == 0)
            list[i] = in_list(a, o.g, i, one);
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (there && !(taken >> k & 1)) {
            lo = fminf(lo, x[k]);
            hi = fmaxf(hi, x[k]);
        }
#pragma unroll 1
    for (int i = 1; i < a.form.v_group / 4; i *= 2) {
        lo = fminf(lo, __shfl_xor_sync(~0u, lo, i));
        hi = fmaxf(hi, __shfl_xor_sync(~0u, hi, i));
    }
    if (!there)
        return;
    const float top = (float)((1 << bits) - 1), zero = as_half(a.level ? (lo + hi) / 2 : lo),
                step = as_half(a.level ? (hi - lo) / 2 : (hi - lo) / top);
    if (4 * part % a.form.v_group == 0) {
        uint16_t *const side = reinterpret_cast<uint16_t *>(o.codes + o.parts.v_side) +
                               32 * (4 * (4 * part / a.form.v_group) + t / 16) +
                               kvd_packed_scale(t);
        side[0] = (uint16_t)half_bits(step);
        side[4] = (uint16_t)half_bits(zero);
    }
    uint32_t *const words = reinterpret_cast<uint32_t *>(o.codes + o.parts.v);
#pragma unroll 1
    for (int k = 0; k < 4; k++) {
        const int i = 4 * part + k;
        const float y = k == 0 ? x[0] : k == 1 ? x[1] : k == 2 ? x[2] : x[3];
        if (first)
            in_sink(o.a, o.b, o.g, in_request)[a.map.d_qk[o.g] + i] = (uint16_t)half_bits(y);
        const bool whole = first || taken >> k & 1;
        put_bits(words + kvd_packed_words(bits, i / 16, kvd_packed_value_lane(t, i)), a.level, bits,
                 kvd_packed_value_number(t, i),
                 !a.level ? even_code(y, zero, step, top)
                 : !whole && step > 0
                     ? nearest(o.middle + (1 << bits), 1 << bits, (y - zero) / step)
                     : 0);
    }
}

__device__ __forceinline__ void code_value(const page_of &o, int t, int lane)
{
    for (int part = lane; part - lane < o.a.map.d_v[o.g] / 4; part += 32)
        code_value_part(o, t, part, lane);
}

__device__ void code_key(const page_of &o, int t, int lane)
{
    const kvd_packed_args &a = o.a;
    const int bits = a.form.bits, in_request = KVD_PAGE_TOKENS * o.p + t;
    uint32_t *const words = reinterpret_cast<uint32_t *>(o.codes);
    uint32_t apart = 0;
    const bool there = 4 * lane < a.map.d_qk[o.g], first = in_request < a.n_sink;
    float x[4] = {}, middle[4] = {}, half[4] = {};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const int i = 4 * lane + k;
        if (there)
            x[k] = bf16_of(key_pair(o, i / 16, i % 16 / 8, t, i % 8 / 2), k % 2);
        if (there && i < a.range_width) {
            const float *const range =
                a.range + 2 * ((size_t)o.g * (size_t)a.range_width + (size_t)i);
            middle[k] = range[0];
            half[k] = range[1];
        }
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (!there)
            break;
        const int i = 4 * lane + k;
        const bool outlier = !first && a.form.k_apart && fabsf(x[k] - middle[k]) > half[k];
        if (first)
            in_sink(o.a, o.b, o.g, in_request)[i] = (uint16_t)half_bits(x[k]);
        if (outlier) {
            put_apart(o, t, i, x[k]);
            apart++;
        }
        put_bits(words + kvd_packed_words(bits, i / 16, kvd_packed_key_lane(t, i)), true, bits,
                 kvd_packed_key_number(t, i),
                 !first && !outlier && half[k] > 0
                     ? nearest(o.middle, 1 << bits, (x[k] - middle[k]) / half[k])
                     : 0);
    }
    apart = __reduce_add_sync(~0u, apart);
    if (lane == 0 && apart)
        atomicAdd(a.apart + a.slot[o.b], apart);
}

/* Writes W bits of each selected code of K to a page. Bit i of a mask tells whether code i is
 * selected. Codes that are not selected do not change. */
template <int W>
__device__ __forceinline__ void put_keys(uint32_t *at, int below, const uint32_t (&code)[32],
                                         uint32_t put)
{
#pragma unroll
    for (int i = 0; i < W; i++) {
        uint32_t word = 0, mask = 0;
#pragma unroll
        for (int m = 0; m < 32 / W; m++) {
            const uint32_t there = put >> (i * (32 / W) + m) & 1 ? (1u << W) - 1 : 0;
            const int shift = m % 2 * 16 + m / 2 * W;
            word |= (code[i * (32 / W) + m] >> below & there) << shift;
            mask |= there << shift;
        }
        if (mask == ~0u)
            at[i] = word;
        else if (mask)
            at[i] = (at[i] & ~mask) | word;
    }
}

/* Packs 32 codes of B bits each into words at `at`. Writes code i only if bit i of `put` is 1. */
template <int B>
__device__ __forceinline__ void put_stream(uint32_t *at, const uint32_t (&code)[32], uint32_t put)
{
    uint32_t word[B] = {}, mask[B] = {};
#pragma unroll
    for (int n = 0; n < 32; n++) {
        const int i = n * B / 32, shift = n * B % 32;
        const uint32_t there = put >> n & 1 ? (1u << B) - 1 : 0, x = code[n] & there;
        word[i] |= x << shift;
        mask[i] |= there << shift;
        if (shift + B > 32) {
            word[(i + 1) % B] |= x >> (32 - shift);
            mask[(i + 1) % B] |= there >> (32 - shift);
        }
    }
#pragma unroll
    for (int i = 0; i < B; i++)
        if (mask[i])
            at[i] = mask[i] == ~0u ? word[i] : (at[i] & ~mask[i]) | word[i];
}

__device__ __forceinline__ void put_unit(uint32_t *at, bool levels, int bits,
                                         const uint32_t (&code)[32], uint32_t put)
{
    if (levels) {
        switch (bits) {
        case 1:
            return put_stream<1>(at, code, put);
        case 2:
            return put_stream<2>(at, code, put);
        case 3:
            return put_stream<3>(at, code, put);
        case 4:
            return put_stream<4>(at, code, put);
        case 5:
            return put_stream<5>(at, code, put);
        case 6:
            return put_stream<6>(at, code, put);
        case 7:
            return put_stream<7>(at, code, put);
        default:
            return put_stream<8>(at, code, put);
        }
    }
    if (bits == 8)
        put_keys<8>(at, 0, code, put);
    if (bits & 4)
        put_keys<4>(at, 0, code, put);
    if (bits & 2)
        put_keys<2>(at + (bits & 4), bits & 4, code, put);
    if (bits & 1)
        put_keys<1>(at + (bits & 6), bits & 6, code, put);
}

/* Returns the index of dimension e of token j among a lane's 32 quantised numbers. */
__device__ __forceinline__ constexpr int number_in(int j, int e)
{
    return 8 * (j / 2) + 4 * (e / 2) + 2 * (j % 2) + e % 2;
}

/* Several pages share scales. Widens the ranges [lo, hi] of four channels to include the tokens of
 * the other pages that share scales with this page. */
__device__ void widen(const page_of &o, int side, int u, float (&lo)[4], float (&hi)[4], int lane)
{
    const kvd_packed_args &a = o.a;
    const int pages = a.span / KVD_PAGE_TOKENS, first = o.p / pages * pages;
    for (int p = first; p < first + pages; p++) {
        const uint16_t *const rows =
            a.q_len ? in_rows(a, page_number(a, o.b, p), o.g) : in_ring(a, o.b, p, o.g);
        for (int i = 0; p != o.p && i < 16; i++) {
            const int h = i % 2;
            const uint32_t pair = row_pair(o, rows, side, u, h, i / 2 * 8 + lane / 4, lane % 4);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float x = bf16_of(pair, e % 2);
                lo[e] = e / 2 == h ? fminf(lo[e], x) : lo[e];
                hi[e] = e / 2 == h ? fmaxf(hi[e], x) : hi[e];
            }
        }
    }
}

__device__ __forceinline__ void even_channels(const page_of &o, int side, int u, int from, int to,
                                              const float (&x)[8][4], uint32_t (&code)[32],
                                              uint32_t &put, int lane)
{
    const kvd_packed_form &f = o.a.form;
    const int groups = f.k_group / 8, d = side ? o.a.map.d_v[o.g] : o.a.map.d_qk[o.g];
    const float top = (float)((1 << f.bits) - 1), half_top = (float)((1 << f.bits) / 2 - 1);
    for (int j0 = 0; j0 < 8; j0 += groups) {
        if (8 * j0 < from || 8 * (j0 + groups) > to)
            continue;
        float lo[4], hi[4], step[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            lo[e] = INFINITY;
            hi[e] = -INFINITY;
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (j >= j0 && j < j0 + groups) {
                    lo[e] = fminf(lo[e], x[j][e]);
                    hi[e] = fmaxf(hi[e], x[j][e]);
                }
        }
        if (o.a.span > KVD_PAGE_TOKENS)
            widen(o, side, u, lo, hi, lane);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            lo[e] = min_of_rows(lo[e]);
            hi[e] = max_of_rows(hi[e]);
            step[e] = f.symmetric ? as_half(fmaxf(fabsf(lo[e]), fabsf(hi[e])) / half_top)
                                  : as_half((hi[e] - lo[e]) / top);
            lo[e] = as_half(lo[e]);
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (j >= j0 && j < j0 + groups)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    code[number_in(j, e)] = f.symmetric ? centred_code(x[j][e], step[e], half_top)
                                                        : even_code(x[j][e], lo[e], step[e], top);
                    put |= 1u << number_in(j, e);
                }
        uint16_t *const scales =
            reinterpret_cast<uint16_t *>(o.codes + (side ? o.parts.v_side : o.parts.k_side)) +
            16 * 2 * (j0 / groups * (d / 16) + u);
        if (lane < 4)
            *reinterpret_cast<uint4 *>(scales + 8 * lane) =
                make_uint4(half_bits(step[0]) | half_bits(step[1]) << 16,
                           half_bits(step[2]) | half_bits(step[3]) << 16,
                           half_bits(lo[0]) | half_bits(lo[1]) << 16,
                           half_bits(lo[2]) | half_bits(lo[3]) << 16);
    }
}

__device__ __forceinline__ void level_keys(const page_of &o, int u, int from, int to,
                                           const float (&x)[8][4], uint32_t (&code)[32],
                                           uint32_t &put, int lane)
{
    const kvd_packed_args &a = o.a;
    uint32_t apart = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int i = 16 * u + e / 2 * 8 + lane % 4 * 2 + e % 2;
        const float *const range = a.range + 2 * ((size_t)o.g * (size_t)a.range_width + (size_t)i);
        const float middle = i < a.range_width ? range[0] : 0,
                    half = i < a.range_width ? range[1] : 0;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int t = 8 * j + lane / 4, whole = KVD_PAGE_TOKENS * o.p + t;
            if (t < from || t >= to)
                continue;
            const bool first = whole < a.n_sink,
                       outlier = !first && a.form.k_apart && fabsf(x[j][e] - middle) > half;
            if (first)
                in_sink(o.a, o.b, o.g, whole)[i] = (uint16_t)half_bits(x[j][e]);
            if (outlier) {
                put_apart(o, t, i, x[j][e]);
                apart++;
            }
            if (!first && !outlier && half > 0)
                code[number_in(j, e)] =
                    nearest(o.middle, 1 << a.form.bits, (x[j][e] - middle) / half);
            put |= 1u << number_in(j, e);
        }
    }
    apart = __reduce_add_sync(~0u, apart);
    if (lane == 0 && apart)
        atomicAdd(a.apart + a.slot[o.b], apart);
}

__device__ void code_channels(const page_of &o, int side, int u, int from, int to, int lane)
{
    const int bits = o.a.form.bits;
    uint32_t *const at = reinterpret_cast<uint32_t *>(o.codes + (side ? o.parts.v : 0)) +
                         kvd_packed_words(bits, u, lane);
    uint32_t code[32] = {}, put = 0;
    float x[8][4];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int t = 8 * j + lane / 4;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t pair = t < from || t >= to ? 0
                                  : side              ? row_pair(o, o.rows, 1, u, h, t, lane % 4)
                                                      : key_pair(o, u, h, t, lane % 4);
            x[j][2 * h] = bf16_of(pair, 0);
            x[j][2 * h + 1] = bf16_of(pair, 1);
        }
    }
    if (o.a.level)
        level_keys(o, u, from, to, x, code, put, lane);
    else
        even_channels(o, side, u, from, to, x, code, put, lane);
    put_unit(at, o.a.level, bits, code, put);
}

__device__ __forceinline__ int clamped(int t, int p)
{
    return min(max(t - KVD_PAGE_TOKENS * p, 0), (int)KVD_PAGE_TOKENS);
}

/* Ranges of tokens of a request that are quantised in this iteration: K of tokens k_from to k_to -
 * 1, and V of tokens v_from to v_to - 1. */
struct coded_tokens {
    int before, k_from, k_to, v_from, v_to;

    /* Returns true if V of at most one token is to be quantised, and K of no token (if `levels` is
     * true: of at most one token). */
    __device__ __forceinline__ bool single(bool levels) const
    {
        return v_to - v_from <= 1 && (k_to == k_from || (levels && k_to - k_from == 1));
    }
};

__device__ __forceinline__ coded_tokens tokens_of(const kvd_packed_args &a, int b)
{
    const int m = a.kv_len[b], before = max(m - (a.q_len ? a.q_len[b] : 1), 0),
              v_to = values_coded(a, m);
    /* V of tokens outside the sliding window is not quantised, because their pages may be freed. */
    const int seen = a.q_len ? 0 : min(first_seen(a, m), v_to);
    return {before, keys_coded(a, before), keys_coded(a, m), max(values_coded(a, before), seen),
            v_to};
}

/* Computes the midpoints between neighbouring quantisation levels. Ends with a barrier of the
 * CTA. */
__device__ __forceinline__ void make_middles(const kvd_packed_args &a, float *middle)
{
    const int levels = 1 << a.form.bits;
    for (int i = (int)threadIdx.x; a.level && i < 2 * levels; i += (int)blockDim.x) {
        const float *const level = a.level + i / levels * 2 * levels + i % levels;
        middle[i] = i % levels + 1 < levels ? (level[0] + level[1]) / 2 : INFINITY;
    }
    __syncthreads();
}

__device__ __forceinline__ page_of make_page(const kvd_packed_args &a, int b, int g, int p,
                                             int before, float *middle)
{
    const int page = page_number(a, b, p);
    return {a,
            b,
            g,
            p,
            page,
            a.q_len ? in_rows(a, page, g) : in_ring(a, b, p, g),
            in_codes(a, page, g),
            kvd_packed_parts_of(&a.form, a.map.d_qk[g], a.map.d_v[g]),
            middle,
            before};
}

/* Quantises V of one token (in warp 0) and K of one token (in warp 1) of a request. */
__device__ void code_token(const kvd_packed_args &a, int b, int g, const coded_tokens &now,
                           float *middle)
{
    const int lane = (int)threadIdx.x % 32, key = (int)threadIdx.x / 32,
              t = key ? now.k_from : now.v_from;
    if (key > 1 || t == (key ? now.k_to : now.v_to))
        return;
    const page_of o = make_page(a, b, g, t / KVD_PAGE_TOKENS, now.before, middle);
    if (!key) {
        code_value(o, t % KVD_PAGE_TOKENS, lane);
        return;
    }
    if (a.form.k_apart && t % KVD_PAGE_TOKENS == 0 && lane == 0)
        *reinterpret_cast<uint32_t *>(o.codes + o.parts.k_list) = 0;
    __syncwarp();
    code_key(o, t % KVD_PAGE_TOKENS, lane);
}

/* Quantises tokens in decode steps. Skips requests that have several tokens to quantise. */
__global__ void __launch_bounds__(64) code_token_kernel(const __grid_constant__ kvd_packed_args a)
{
    __shared__ float middle[2 << 8];
    const coded_tokens now = tokens_of(a, (int)blockIdx.y);
    make_middles(a, middle);
    if (now.single(a.level))
        code_token(a, (int)blockIdx.y, (int)blockIdx.x, now, middle);
}

/* Quantises new tokens. If `others` is true, skips requests in which only one token is to be
 * quantised, because code_token_kernel handles them. */
__global__ void __launch_bounds__(32 * WARPS)
    code_kernel(const __grid_constant__ kvd_packed_args a, bool others)
{
    __shared__ float middle[2 << 8];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, warp = (int)threadIdx.x / 32,
              lane = (int)threadIdx.x % 32, m = a.kv_len[b];
    const coded_tokens now = tokens_of(a, b);
    const int before = now.before, k_from = now.k_from, k_to = now.k_to, v_from = now.v_from,
              v_to = now.v_to;
    const bool single = !a.q_len && now.single(a.level);
    if (single && others)
        return;
    make_middles(a, middle);
    if (single) {
        if (blockIdx.z == 0)
            code_token(a, b, g, now, middle);
        return;
    }
    const int end = (max(k_to, v_to) + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
    const int units = a.map.d_qk[g] / 16, groups = kvd_packed_groups(&a.form, a.map.d_v[g]);
    for (int p = (k_to > k_from ? min(k_from, v_to > v_from ? v_from : k_from) : v_from) /
                     KVD_PAGE_TOKENS +
                 (int)blockIdx.z;
         p < end; p += (int)gridDim.z) {
        const page_of o = make_page(a, b, g, p, before, middle);
        if (a.form.k_apart) {
            if (threadIdx.x == 0 && k_from <= KVD_PAGE_TOKENS * p && k_to > KVD_PAGE_TOKENS * p)
                *reinterpret_cast<uint32_t *>(o.codes + o.parts.k_list) = 0;
            __syncthreads();
        }
        const int kf = clamped(k_from, p), kt = clamped(k_to, p), vf = clamped(v_from, p),
                  vt = clamped(v_to, p);
        /* Number of tasks among which the tokens of one channel group of V are divided. */
        const int pieces = a.level ? 4 : 1,
                  v_tasks = a.form.v_channels ? a.map.d_v[g] / 16 : pieces * groups;
        for (int task = warp; task < units + v_tasks; task += WARPS) {
            const int group = task / pieces, to = a.level ? min(16 * (task % 4) + 16, vt) : vt;
            const bool values = task < v_tasks;
            if (kf < kt && (!values || a.form.v_channels))
                code_channels(o, values, values ? task : task - v_tasks, kf, kt, lane);
            if (!values || a.form.v_channels)
                continue;
            for (int k = max(vf / 16, a.level ? task % 4 : 0); 16 * k < to; k++)
                code_sixteen(o, group, k, vf, vt, lane);
        }
    }
    if (a.q_len)
        keep_newest(a, b, g, min(k_to, v_to), m, (int)blockIdx.z * WARPS + warp,
                    (int)gridDim.z * WARPS, lane);
}

/* Overwrites the code of token t, which has `bits` bits. No other thread may write to the words of
 * this code at the same time. */
__device__ __forceinline__ void put_own(uint32_t *words, int t, int bits, uint32_t code)
{
    const int at = t * bits / 32, shift = t * bits % 32;
    const uint32_t mask = (1u << bits) - 1;
    words[at] = (words[at] & ~(mask << shift)) | code << shift;
    if (shift + bits > 32)
        words[at + 1] = (words[at + 1] & ~(mask >> (32 - shift))) | code >> (32 - shift);
}

/* Quantises K and V with a separate number of bits for each dimension (method allot). A thread
 * handles one dimension. */
__global__ void __launch_bounds__(2 * KVD_WIDTH_NARROW)
    code_allotted_kernel(const __grid_constant__ kvd_packed_args a)
{
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, d_qk = a.map.d_qk[g],
              side = (int)threadIdx.x >= d_qk, dim = (int)threadIdx.x - side * d_qk;
    if (side && dim >= a.map.d_v[g])
        return;
    const int at = (2 * g + side) * a.allot.wide + dim, bits = a.allot.bits[at], m = a.kv_len[b],
              before = m - (a.q_len ? a.q_len[b] : 1);
    const float mean = a.allot.scale[2 * at], deviation = a.allot.scale[2 * at + 1],
                *const level = a.allot.level + ((9 * side + bits) << 8);
    for (int p = before / KVD_PAGE_TOKENS + (int)blockIdx.z; KVD_PAGE_TOKENS * p < m;
         p += (int)gridDim.z) {
        const int page = page_number(a, b, p), t0 = KVD_PAGE_TOKENS * p;
        const page_of o = {a,
                           b,
                           g,
                           p,
                           page,
                           a.q_len ? in_rows(a, page, g) : in_ring(a, b, p, g),
                           in_codes(a, page, g),
                           kvd_packed_parts(),
                           NULL,
                           before};
        uint32_t *const words = reinterpret_cast<uint32_t *>(o.codes) + a.allot.word[at];
        for (int t = max(before - t0, 0); t < min(m - t0, (int)KVD_PAGE_TOKENS); t++) {
            const int u = dim / 16, h = dim % 16 / 8, c = dim % 8 / 2;
            const float x = bf16_of(
                side ? row_pair(o, o.rows, 1, u, h, t, c) : key_pair(o, u, h, t, c), dim % 2);
            if (t0 + t < a.n_sink)
                in_sink(o.a, o.b, o.g, t0 + t)[side * d_qk + dim] = (uint16_t)half_bits(x);
            if (bits)
                put_own(words, t, bits,
                        deviation > 0 ? nearest_level(level, bits, (x - mean) / deviation) : 0);
        }
    }
}

} // namespace

cudaError_t kvd_packed_code(const kvd_packed_args *a, cudaStream_t stream)
{
    if (a->form.bits < 1 || a->form.bits > 8 || a->n < 1 || a->n > 65535 ||
        a->pages_side_by_side < 1)
        return cudaErrorInvalidValue;
    if (a->form.exponent)
        return kvd_packed_code_floats(a, stream);
    if (a->form.norms)
        return kvd_packed_code_turned(a, stream);
    if (a->form.rows)
        return kvd_packed_code_rows(a, stream);
    if (a->form.split)
        return kvd_packed_code_split(a, stream);
    if (a->form.classes)
        return kvd_packed_code_classes(a, stream);
    if (a->form.low_rank)
        return kvd_packed_code_gear(a, stream);
    const dim3 grid = grid_of(a);
    if (a->form.allotted) {
        code_allotted_kernel<<<grid, 2 * KVD_WIDTH_NARROW, 0, stream>>>(*a);
        return cudaGetLastError();
    }
    /* True if every request has exactly one token to quantise. */
    const bool all_single = !a->q_len && a->level && a->k_block == 1 && !a->v_newest;
    /* Only one CTA of code_kernel fits on an SM, so a smaller kernel takes requests with only one
     * token to quantise. */
    const bool apart = all_single || (!a->q_len && grid.x * grid.y > FEW);
    if (apart)
        code_token_kernel<<<dim3(grid.x, grid.y), 64, 0, stream>>>(*a);
    if (!all_single)
        code_kernel<<<grid, 32 * WARPS, 0, stream>>>(*a, apart);
    return cudaGetLastError();
}
