/*
 * Rows become codes: what a request's length says must be coded by now and was not before (kvd_bits_method.window).
 *
 *   even steps (kivi)    s = (max - min) / (2^b - 1), zero = min, both rounded to float16; code = round((x - zero) / s), as kvd_quantise_group
 *   levels (kvquant)     code = the level nearest to (x - middle) / half width; outliers apart, the first tokens in float16
 *
 * Grid (KV heads, requests, pages side by side). A warp takes a unit of 16 dims of keys, or of values the channels that share a scale, in a page. Of
 * a page that holds codes already words are read, changed and written back; a word has one lane that ever writes it. Steps read and write
 * a few KiB per head: bound by latency. A prompt reads its rows once, 4 bytes per token and dim with K and V.
 */
#include "serving/cuda/methods/packed_words.cuh"

namespace
{

enum { WARPS = 8 };

/* A page of a head, and which of its tokens are to be coded. */
struct page_of {
    const kvd_packed_args &a;
    int b, g, p, page;
    const uint16_t *rows; /* K; V behind it */
    char *codes;
    kvd_packed_parts parts;
    const float *middle; /* [2][2^bits] between neighbouring levels, of keys and of values */
    int before;          /* tokens before this iteration */
};

/* Of n levels, a power of 2: how many middles between neighbours lie below x. */
__device__ __forceinline__ uint32_t nearest(const float *middle, int n, float x)
{
    int at = 0;
    for (int step = n / 2; step; step /= 2)
        at += x > middle[at + step - 1] ? step : 0;
    return (uint32_t)at;
}

__device__ __forceinline__ uint32_t even_code(float x, float zero, float step, float top)
{
    const float q = step > 0 ? rintf((x - zero) / step) : 0;
    return (uint32_t)(q < 0 ? 0 : q > top ? top : q);
}

__device__ __forceinline__ uint16_t *in_sink(const page_of &o, int t)
{
    const kvd_packed_args &a = o.a;
    const int wide = a.map.page_elements / KVD_PAGE_TOKENS;
    return a.sink + ((size_t)a.slot[o.b] * (size_t)a.n_sink + (size_t)t) * (size_t)wide +
           a.map.kv_offset[o.g] / KVD_PAGE_TOKENS;
}

/* ---- keys ------------------------------------------------------------------------------------------- */

/* Dims 2 c, + 1 (half h: + 8) of unit u of token t of the page. */
__device__ __forceinline__ uint32_t key_pair(const page_of &o, int u, int h, int t, int c)
{
    const kvd_packed_args &a = o.a;
    if (!a.before_rope)
        return *reinterpret_cast<const uint32_t *>(o.rows + t / 8 * 8 * a.map.d_qk[o.g] + (2 * u + h) * 64 +
                                                   t % 8 * 8 + 2 * c);
    const int row = a.start ? a.start[o.b] + KVD_PAGE_TOKENS * o.p + t - o.before : o.b;
    return *reinterpret_cast<const uint32_t *>(a.x + (size_t)row * a.ld + a.x_key + o.g * a.d_head + 16 * u +
                                               8 * h + 2 * c);
}

/* Plane of W bits of a lane's words, of which it lies at `at`: codes, already shifted to it, of the numbers in `put`; the others stay. */
template <int W>
__device__ __forceinline__ void put_keys(uint32_t *at, int below, const uint32_t (&code)[32], uint32_t put)
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

__device__ __forceinline__ void even_keys(const page_of &o, int u, int from, int to, const float (&x)[8][4],
                                          uint32_t (&code)[32], uint32_t &put, int lane)
{
    const int groups = o.a.form.k_group / 8, d = o.a.map.d_qk[o.g];
    const float top = (float)((1 << o.a.form.bits) - 1);
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
            lo[e] = min_of_rows(lo[e]);
            hi[e] = max_of_rows(hi[e]);
            step[e] = as_half((hi[e] - lo[e]) / top);
            lo[e] = as_half(lo[e]);
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (j >= j0 && j < j0 + groups)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    code[4 * j + e] = even_code(x[j][e], lo[e], step[e], top);
                    put |= 1u << (4 * j + e);
                }
        uint16_t *const side =
            reinterpret_cast<uint16_t *>(o.codes + o.parts.k_side) + 16 * 2 * (j0 / groups * (d / 16) + u);
        if (lane < 4)
            *reinterpret_cast<uint4 *>(side + 8 * lane) = make_uint4(
                half_bits(step[0]) | half_bits(step[1]) << 16, half_bits(step[2]) | half_bits(step[3]) << 16,
                half_bits(lo[0]) | half_bits(lo[1]) << 16, half_bits(lo[2]) | half_bits(lo[3]) << 16);
    }
}

/* A number that is kept apart; how many have been so far is counted beyond the room, too. */
__device__ __forceinline__ void put_apart(const page_of &o, int t, int i, float x)
{
    uint32_t *const list = reinterpret_cast<uint32_t *>(o.codes + o.parts.k_list);
    const uint32_t at = atomicAdd(list, 1u);
    if (at < (uint32_t)o.a.form.k_apart)
        list[4 + at] = half_bits(x) | (uint32_t)(KVD_WIDTH_MAX * t + i) << 16;
    else
        atomicMax(o.a.beyond, at + 1 - (uint32_t)o.a.form.k_apart);
}

__device__ __forceinline__ void level_keys(const page_of &o, int u, int from, int to, const float (&x)[8][4],
                                           uint32_t (&code)[32], uint32_t &put, int lane)
{
    const kvd_packed_args &a = o.a;
    uint32_t apart = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int i = 16 * u + e / 2 * 8 + lane % 4 * 2 + e % 2;
        const float *const range = a.range + 2 * ((size_t)o.g * (size_t)a.range_width + (size_t)i);
        const float middle = i < a.range_width ? range[0] : 0, half = i < a.range_width ? range[1] : 0;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int t = 8 * j + lane / 4, whole = KVD_PAGE_TOKENS * o.p + t;
            if (t < from || t >= to)
                continue;
            if (whole < a.n_sink) {
                in_sink(o, whole)[i] = (uint16_t)half_bits(x[j][e]);
                continue;
            }
            if (a.form.k_apart && fabsf(x[j][e] - middle) > half) {
                put_apart(o, t, i, x[j][e]);
                apart++;
            }
            code[4 * j + e] = half > 0 ? nearest(o.middle, 1 << a.form.bits, (x[j][e] - middle) / half) : 0;
            put |= 1u << (4 * j + e);
        }
    }
    apart = __reduce_add_sync(~0u, apart);
    if (lane == 0 && apart)
        atomicAdd(a.apart + a.slot[o.b], apart);
}

/* Unit u of tokens from .. to - 1 of the page. */
__device__ void code_keys(const page_of &o, int u, int from, int to, int lane)
{
    const int bits = o.a.form.bits;
    uint32_t *at = reinterpret_cast<uint32_t *>(o.codes) + kvd_packed_words(bits, u, lane);
    uint32_t code[32] = {}, put = 0;
    float x[8][4];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int t = 8 * j + lane / 4;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t pair = t >= from && t < to ? key_pair(o, u, h, t, lane % 4) : 0;
            x[j][2 * h] = bf16_of(pair, 0);
            x[j][2 * h + 1] = bf16_of(pair, 1);
        }
    }
    if (o.a.level)
        level_keys(o, u, from, to, x, code, put, lane);
    else
        even_keys(o, u, from, to, x, code, put, lane);
    if (bits == 8)
        put_keys<8>(at, 0, code, put);
    if (bits & 4)
        put_keys<4>(at, 0, code, put);
    if (bits & 2)
        put_keys<2>(at + (bits & 4), bits & 4, code, put);
    if (bits & 1)
        put_keys<1>(at + (bits & 6), bits & 6, code, put);
}

/* ---- values ----------------------------------------------------------------------------------------- */

/* What a lane has of 16 tokens: unit u0 + i in v[i], registers as the A operand of mma, of `units` units. Tokens 2 c + e + 8 h. */
struct sixteen {
    uint32_t v[8][4];
    int u0, units;
};

__device__ __forceinline__ float value_of(const sixteen &s, int i, int db, int h, int e)
{
    return bf16_of(s.v[i][db + 2 * h], e);
}

__device__ __forceinline__ int dim_of(const sixteen &s, int i, int db, int lane)
{
    return 16 * (s.u0 + i) + 8 * db + lane / 4;
}

/* Smallest and largest of the numbers of a token that are not in `taken`. */
__device__ __forceinline__ void range_of(const sixteen &s, int h, int e, uint32_t taken, int lane, float &lo,
                                         float &hi)
{
    lo = INFINITY;
    hi = -INFINITY;
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int db = 0; db < 2; db++)
            if (i < s.units && !(taken >> (2 * i + db) & 1)) {
                lo = fminf(lo, value_of(s, i, db, h, e));
                hi = fmaxf(hi, value_of(s, i, db, h, e));
            }
    lo = min_of_rows(lo);
    hi = max_of_rows(hi);
}

/* The smallest (sign 1) or largest (-1) number of a token that is left, of equals that of the smallest dim; it is taken. */
__device__ __forceinline__ uint32_t take_one(const sixteen &s, int h, int e, float sign, int lane,
                                             uint32_t &taken)
{
    float best = INFINITY;
    int at = INT32_MAX;
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int db = 0; db < 2; db++) {
            const int dim = dim_of(s, i, db, lane);
            const float x = sign * value_of(s, i, db, h, e);
            if (i < s.units && !(taken >> (2 * i + db) & 1) && (x < best || at == INT32_MAX)) {
                best = x;
                at = dim;
            }
        }
#pragma unroll
    for (int i = 4; i < 32; i *= 2) {
        const float x = __shfl_xor_sync(~0u, best, i);
        const int dim = __shfl_xor_sync(~0u, at, i);
        if (x < best || (x == best && dim < at)) {
            best = x;
            at = dim;
        }
    }
    if (at % 8 == lane / 4)
        taken |= 1u << at / 8 % 16;
    return half_bits(sign * best) | (uint32_t)at << 16;
}

/* Codes of a lane's 8 numbers of 16 tokens, number 4 h + 2 db + e, of the plane of W bits. */
template <int W>
__device__ __forceinline__ void put_values(uint32_t *at, int below, int k, const uint32_t (&code)[8],
                                           uint32_t put)
{
    constexpr int words = W == 8 ? 2 : 1, per_word = 8 / words, per_whole = W == 8 ? 1 : 4 / W;
    const int shift0 = k % per_whole * per_word / 2 * W;
#pragma unroll
    for (int i = 0; i < words; i++) {
        uint32_t word = 0, mask = 0;
#pragma unroll
        for (int m = 0; m < per_word; m++) {
            const uint32_t there = put >> (i * per_word + m) & 1 ? (1u << W) - 1 : 0;
            const int shift = m % 2 * 16 + m / 2 * W;
            word |= (code[i * per_word + m] >> below & there) << shift;
            mask |= there << shift;
        }
        uint32_t *const to = at + k / per_whole * words + i;
        if (mask)
            *to = (*to & ~(mask << shift0)) | word << shift0;
    }
}

/* Tokens 16 k .. of the page, of the channels of group `group`. */
__device__ void code_sixteen(const page_of &o, int group, int k, int from, int to, int lane)
{
    const kvd_packed_args &a = o.a;
    const int d = a.map.d_v[o.g], n_apart = a.form.v_apart / 2, bits = a.form.bits;
    const float top = (float)((1 << bits) - 1);
    sixteen s;
    s.u0 = group * a.form.v_group / 16;
    s.units = min(a.form.v_group / 16, d / 16 - s.u0);
    const uint16_t *const rows =
        o.rows + KVD_PAGE_TOKENS * a.map.d_qk[o.g] + lane / 4 * 8 + lane % 4 * 2 + s.u0 * 128;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < s.units)
#pragma unroll
            for (int r = 0; r < 4; r++)
                s.v[i][r] = exchanged(*reinterpret_cast<const uint32_t *>(rows + (2 * k + r / 2) * 8 * d +
                                                                          (2 * i + r % 2) * 64));
    float zero[4], step[4];
    uint32_t mine = 0;
#pragma unroll
    for (int he = 0; he < 4; he++) {
        const int h = he / 2, e = he % 2, t = 16 * k + 8 * h + lane % 4 * 2 + e;
        const bool here = t >= from && t < to;
        zero[he] = step[he] = 0;
        if (!__any_sync(~0u, here)) /* of a step one token, in one he */
            continue;
        mine |= here ? 0x5u << (4 * h + e) : 0;
        uint32_t taken = 0;
        uint32_t *const list = reinterpret_cast<uint32_t *>(o.codes + o.parts.v_list) + t * a.form.v_apart;
#pragma unroll 1
        for (int i = 0; i < 2 * n_apart; i++) {
            const uint32_t one = take_one(s, h, e, i < n_apart ? 1.0f : -1.0f, lane, taken);
            if (here && lane < 4)
                list[i] = one;
        }
        float lo, hi;
        range_of(s, h, e, taken, lane, lo, hi);
        zero[he] = as_half(a.level ? (lo + hi) / 2 : lo);
        step[he] = as_half(a.level ? (hi - lo) / 2 : (hi - lo) / top);
        uint16_t *const side = reinterpret_cast<uint16_t *>(o.codes + o.parts.v_side) + 32 * (4 * group + k) +
                               8 * (lane % 4) + he;
        if (here && lane < 4) {
            side[0] = (uint16_t)half_bits(step[he]);
            side[4] = (uint16_t)half_bits(zero[he]);
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (i >= s.units)
            continue;
        uint32_t code[8];
#pragma unroll
        for (int r = 0; r < 8; r++) {
            const int h = r / 4, db = r / 2 % 2, e = r % 2, he = 2 * h + e;
            const float x = value_of(s, i, db, h, e);
            const int t = KVD_PAGE_TOKENS * o.p + 16 * k + 8 * h + lane % 4 * 2 + e;
            code[r] = 0;
            if (!(mine >> r & 1))
                continue;
            if (t < a.n_sink)
                in_sink(o, t)[a.map.d_qk[o.g] + dim_of(s, i, db, lane)] = (uint16_t)half_bits(x);
            code[r] = !a.level       ? even_code(x, zero[he], step[he], top)
                      : step[he] > 0 ? nearest(o.middle + (1 << bits), 1 << bits, (x - zero[he]) / step[he])
                                     : 0;
        }
        uint32_t *const at =
            reinterpret_cast<uint32_t *>(o.codes + o.parts.v) + kvd_packed_words(bits, s.u0 + i, lane);
        if (bits == 8)
            put_values<8>(at, 0, k, code, mine);
        if (bits & 4)
            put_values<4>(at, 0, k, code, mine);
        if (bits & 2)
            put_values<2>(at + (bits & 4), bits & 4, k, code, mine);
        if (bits & 1)
            put_values<1>(at + (bits & 6), bits & 6, k, code, mine);
    }
}

/* ---- a token ---------------------------------------------------------------------------------------- */

/*
 * What a step codes when no keys wait for their group: one token of values, with levels one of keys too. A lane has dims 4 lane .. + 3. Little code, since it runs
 * once and waits for its instructions; words are changed by atomics, as lanes share them.
 */
__device__ __forceinline__ void put_bits(uint32_t *words, int bits, int n, uint32_t code)
{
    int below = 0;
#pragma unroll 1
    for (int w = 8; w; w /= 2)
        if (bits & w) {
            const int m = n % (32 / w), shift = m % 2 * 16 + m / 2 * w;
            const uint32_t mask = (1u << w) - 1;
            uint32_t *const word = words + below + n / (32 / w);
            atomicAnd(word, ~(mask << shift));
            atomicOr(word, (code >> below & mask) << shift);
            below += w;
        }
}

/* The smallest (sign 1) or largest (-1) of a token's numbers that are left, of equals that of the smallest dim; it is taken. */
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

__device__ void code_value(const page_of &o, int t, int lane)
{
    const kvd_packed_args &a = o.a;
    const int d = a.map.d_v[o.g], bits = a.form.bits, n_apart = a.form.v_apart / 2,
              whole = KVD_PAGE_TOKENS * o.p + t;
    const bool there = 4 * lane < d;
    float x[4] = {}, lo = INFINITY, hi = -INFINITY;
    if (there) {
        const uint2 v =
            *reinterpret_cast<const uint2 *>(o.rows + KVD_PAGE_TOKENS * a.map.d_qk[o.g] + t / 8 * 8 * d +
                                             lane / 2 * 64 + t % 8 * 8 + lane % 2 * 4);
        x[0] = bf16_of(v.x, 0), x[1] = bf16_of(v.x, 1), x[2] = bf16_of(v.y, 0), x[3] = bf16_of(v.y, 1);
    }
    uint32_t taken = 0;
    uint32_t *const list = reinterpret_cast<uint32_t *>(o.codes + o.parts.v_list) + t * a.form.v_apart;
#pragma unroll 1
    for (int i = 0; i < 2 * n_apart; i++) {
        const uint32_t one = take_of(x, there, i < n_apart ? 1.0f : -1.0f, lane, taken);
        if (lane == 0)
            list[i] = one;
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
    if (4 * lane % a.form.v_group == 0) {
        uint16_t *const side = reinterpret_cast<uint16_t *>(o.codes + o.parts.v_side) +
                               32 * (4 * (4 * lane / a.form.v_group) + t / 16) + kvd_packed_scale(t);
        side[0] = (uint16_t)half_bits(step);
        side[4] = (uint16_t)half_bits(zero);
    }
    uint32_t *const words = reinterpret_cast<uint32_t *>(o.codes + o.parts.v);
#pragma unroll 1
    for (int k = 0; k < 4; k++) {
        const int i = 4 * lane + k;
        const float y = k == 0 ? x[0] : k == 1 ? x[1] : k == 2 ? x[2] : x[3];
        if (whole < a.n_sink)
            in_sink(o, whole)[a.map.d_qk[o.g] + i] = (uint16_t)half_bits(y);
        put_bits(words + kvd_packed_words(bits, i / 16, kvd_packed_value_lane(t, i)), bits,
                 kvd_packed_value_number(t, i),
                 !a.level   ? even_code(y, zero, step, top)
                 : step > 0 ? nearest(o.middle + (1 << bits), 1 << bits, (y - zero) / step)
                            : 0);
    }
}

__device__ void code_key(const page_of &o, int t, int lane)
{
    const kvd_packed_args &a = o.a;
    const int bits = a.form.bits, whole = KVD_PAGE_TOKENS * o.p + t;
    uint32_t *const words = reinterpret_cast<uint32_t *>(o.codes);
    uint32_t apart = 0;
#pragma unroll 1
    for (int i = 4 * lane; i < min(4 * lane + 4, (int)a.map.d_qk[o.g]); i++) {
        const float x = bf16_of(key_pair(o, i / 16, i % 16 / 8, t, i % 8 / 2), i % 2);
        const float *const range = a.range + 2 * ((size_t)o.g * (size_t)a.range_width + (size_t)i);
        const float middle = i < a.range_width ? range[0] : 0, half = i < a.range_width ? range[1] : 0;
        if (whole < a.n_sink) {
            in_sink(o, whole)[i] = (uint16_t)half_bits(x);
            continue;
        }
        if (a.form.k_apart && fabsf(x - middle) > half) {
            put_apart(o, t, i, x);
            apart++;
        }
        put_bits(words + kvd_packed_words(bits, i / 16, kvd_packed_key_lane(t, i)), bits,
                 kvd_packed_key_number(t, i),
                 half > 0 ? nearest(o.middle, 1 << bits, (x - middle) / half) : 0);
    }
    apart = __reduce_add_sync(~0u, apart);
    if (lane == 0 && apart)
        atomicAdd(a.apart + a.slot[o.b], apart);
}

/* ---- pages ------------------------------------------------------------------------------------------ */

/* Rows of a prompt from token `first` on into the ring, in groups of 8. */
__device__ void keep_newest(const kvd_packed_args &a, int b, int g, int first, int m, int worker, int workers,
                            int lane)
{
    const int d_qk = a.map.d_qk[g], d_v = a.map.d_v[g];
    for (int j = first / 8 + worker; 8 * j < m; j += workers) {
        const uint16_t *const from = in_rows(a, page_number(a, b, j / 8), g);
        uint16_t *const to = const_cast<uint16_t *>(in_ring(a, b, j / 8, g));
        for (int i = lane; i < d_qk + d_v; i += 32) {
            const int at =
                i < d_qk ? (j % 8 * d_qk + i) * 8 : KVD_PAGE_TOKENS * d_qk + (j % 8 * d_v + i - d_qk) * 8;
            *reinterpret_cast<uint4 *>(to + at) = *reinterpret_cast<const uint4 *>(from + at);
        }
    }
}

__device__ __forceinline__ int clamped(int t, int p)
{
    return min(max(t - KVD_PAGE_TOKENS * p, 0), (int)KVD_PAGE_TOKENS);
}

__global__ void __launch_bounds__(32 * WARPS) code_kernel(const __grid_constant__ kvd_packed_args a)
{
    __shared__ float middle[2 << 8];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, warp = (int)threadIdx.x / 32,
              lane = (int)threadIdx.x % 32;
    const int m = a.kv_len[b], before = m - (a.q_len ? a.q_len[b] : 1);
    const int k_from = keys_coded(a, before), k_to = keys_coded(a, m);
    const int v_from = values_coded(a, before), v_to = values_coded(a, m);
    const int levels = 1 << a.form.bits;
    for (int i = (int)threadIdx.x; a.level && i < 2 * levels; i += 32 * WARPS) {
        const float *const level = a.level + i / levels * 2 * levels + i % levels;
        middle[i] = i % levels + 1 < levels ? (level[0] + level[1]) / 2 : INFINITY;
    }
    __syncthreads();
    /* A token of values, and one of keys where each has its code alone. */
    const bool single = v_to - v_from <= 1 && (k_to == k_from || (a.level && k_to - k_from == 1));
    const int end = (max(k_to, v_to) + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
    const int units = a.map.d_qk[g] / 16, groups = kvd_packed_groups(&a.form, a.map.d_v[g]);
    for (int p = (k_to > k_from ? min(k_from, v_to > v_from ? v_from : k_from) : v_from) / KVD_PAGE_TOKENS +
                 (int)blockIdx.z;
         p < end; p += (int)gridDim.z) {
        const int page = page_number(a, b, p);
        const page_of o = {a,
                           b,
                           g,
                           p,
                           page,
                           a.q_len ? in_rows(a, page, g) : in_ring(a, b, p, g),
                           in_codes(a, page, g),
                           kvd_packed_parts_of(&a.form, a.map.d_qk[g], a.map.d_v[g]),
                           middle,
                           before};
        if (a.form.k_apart) { /* the page's first tokens begin its list */
            if (threadIdx.x == 0 && k_from <= KVD_PAGE_TOKENS * p && k_to > KVD_PAGE_TOKENS * p)
                *reinterpret_cast<uint32_t *>(o.codes + o.parts.k_list) = 0;
            __syncthreads();
        }
        if (single) {
            if (warp == 0 && v_to > v_from && v_from / KVD_PAGE_TOKENS == p)
                code_value(o, v_from % KVD_PAGE_TOKENS, lane);
            if (warp == 1 && k_to > k_from && k_from / KVD_PAGE_TOKENS == p)
                code_key(o, k_from % KVD_PAGE_TOKENS, lane);
            continue;
        }
        const int kf = clamped(k_from, p), kt = clamped(k_to, p), vf = clamped(v_from, p),
                  vt = clamped(v_to, p);
        for (int task = warp; task < units + groups; task += WARPS) {
            if (task < units && kf < kt)
                code_keys(o, task, kf, kt, lane);
            for (int k = vf / 16; task >= units && 16 * k < vt; k++)
                code_sixteen(o, task - units, k, vf, vt, lane);
        }
    }
    if (a.q_len)
        keep_newest(a, b, g, min(k_to, v_to), m, (int)blockIdx.z * WARPS + warp, (int)gridDim.z * WARPS,
                    lane);
}

__global__ void ring_table(const int32_t *slot, int max_pages, int ring_pages, int32_t *table)
{
    const int b = (int)blockIdx.y, p = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (p < max_pages)
        table[(size_t)b * (size_t)max_pages + (size_t)p] = slot[b] * ring_pages + p % ring_pages;
}

__global__ void scatter_kernel(const __grid_constant__ kvd_packed_args a, int per_page)
{
    const int g = (int)blockIdx.x, d_qk = a.map.d_qk[g], d_v = a.map.d_v[g];
    const kvd_packed_parts parts = kvd_packed_parts_of(&a.form, d_qk, d_v);
    char *const codes = in_codes(a, (int)blockIdx.y, g);
    uint32_t *const list = reinterpret_cast<uint32_t *>(codes + parts.k_list);
    uint32_t *const v_list = reinterpret_cast<uint32_t *>(codes + parts.v_list);
    const uint32_t half = half_bits(2);
    for (int i = (int)threadIdx.x; i < a.form.k_apart; i += (int)blockDim.x)
        list[4 + i] = half | (uint32_t)(KVD_WIDTH_MAX * (i * 37 % KVD_PAGE_TOKENS) + i * 11 % d_qk) << 16;
    if (a.form.k_apart && threadIdx.x == 0)
        list[0] = (uint32_t)min(per_page, a.form.k_apart);
    for (int i = (int)threadIdx.x; i < KVD_PAGE_TOKENS * a.form.v_apart; i += (int)blockDim.x)
        v_list[i] = half | (uint32_t)(i * 7 % d_v) << 16;
}

} // namespace

cudaError_t kvd_packed_code(const kvd_packed_args *a, cudaStream_t stream)
{
    if (a->form.bits < 1 || a->form.bits > 8 || a->n < 1 || a->n > 65535 || a->pages_side_by_side < 1)
        return cudaErrorInvalidValue;
    const dim3 grid((unsigned)a->map.n_kv_heads, (unsigned)a->n, (unsigned)a->pages_side_by_side);
    code_kernel<<<grid, 32 * WARPS, 0, stream>>>(*a);
    return cudaGetLastError();
}

cudaError_t kvd_packed_ring_table(const int32_t *slot, int32_t n, int32_t max_pages, int32_t ring_pages,
                                  int32_t *table, cudaStream_t stream)
{
    if (n < 1 || max_pages < 1)
        return cudaErrorInvalidValue;
    const dim3 grid((unsigned)(max_pages + 127) / 128, (unsigned)n);
    ring_table<<<grid, 128, 0, stream>>>(slot, max_pages, ring_pages, table);
    return cudaGetLastError();
}

cudaError_t kvd_packed_scatter_outliers(const kvd_packed_args *a, size_t pages, int32_t per_page,
                                        cudaStream_t stream)
{
    for (size_t at = 0; at < pages; at += 65535) {
        kvd_packed_args some = *a;
        some.codes += at * a->page_bytes;
        const dim3 grid((unsigned)a->map.n_kv_heads, (unsigned)(pages - at < 65535 ? pages - at : 65535));
        scatter_kernel<<<grid, 128, 0, stream>>>(some, per_page);
    }
    return cudaGetLastError();
}
