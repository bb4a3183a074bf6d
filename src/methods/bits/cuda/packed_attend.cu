/* Decodes pages of methods allot and gear for attention of decode steps, or to write them to bf16
 * pages. */
#include "methods/bits/cuda/packed_attend.cuh"
#include "methods/bits/cuda/packed_gear.cuh"

namespace
{

/* Tables of method allot for one KV head, in shared memory. A decoded number is mean + deviation *
 * level. */
struct allot_tables {
    float level[2][2 << 8];
    struct {
        float mean, deviation;
        int bits, word;
    } of[2][D_MAX];
    float2 turn[D_MAX / 2]; /* cosine and sine of RoPE's angle of one position, per pair */
};

/* Loads quantisation tables of KV head g to `s`: mean, deviation and number of bits of each
 * dimension, and quantisation levels. All threads of the CTA must call it. */
__device__ __forceinline__ void load_tables(const kvd_packed_args &a, int g, allot_tables &s)
{
    static_assert(THREADS == 2 * D_MAX, "a thread loads a dimension");
    const kvd_packed_allot &from = a.allot;
    for (int i = (int)threadIdx.x; i < 2 << 8; i += THREADS) {
        const int bits = 31 - __clz(i);
#pragma unroll
        for (int side = 0; side < 2; side++)
            s.level[side][i] = i < 2 ? 0 : from.level[((9 * side + bits) << 8) + i - (1 << bits)];
    }
    const int side = (int)threadIdx.x / D_MAX, i = (int)threadIdx.x % D_MAX,
              at = (2 * g + side) * from.wide + i, half = a.d_head / 2;
    /* Some RoPE tables contain a constant factor (YaRN, LongRoPE), which is the cosine at position
     * 0. The divisions remove this factor from the cosines and sines. */
    if (a.before_rope && a.cosine && (int)threadIdx.x < half)
        s.turn[threadIdx.x] = make_float2(a.cosine[half + (int)threadIdx.x] / a.cosine[threadIdx.x],
                                          a.sine[half + (int)threadIdx.x] / a.cosine[threadIdx.x]);
    if (i < (side ? a.map.d_v[g] : a.map.d_qk[g])) {
        const float deviation = from.scale[2 * at + 1];
        const bool coded = from.bits[at] && deviation > 0;
        s.of[side][i] = {from.scale[2 * at], coded ? deviation : 0, coded ? from.bits[at] : 0,
                         from.word[at]};
    }
}

template <bool ATTEND> struct allot_page {
    static constexpr bool LOW_RANK = false;
    static constexpr int CTAS = 3, SHARED = sizeof(allot_tables);
    const allot_tables *s;

    static __device__ __host__ __forceinline__ int bytes(const kvd_packed_args &a, int g)
    {
        return (g + 1 < a.map.n_kv_heads ? a.head_at[g + 1] : (int)a.page_bytes) - a.head_at[g];
    }

    __device__ __forceinline__ allot_page(const kvd_packed_args &a, int, int g, int, int,
                                          char *tables)
    {
        s = reinterpret_cast<const allot_tables *>(tables);
        load_tables(a, g, *reinterpret_cast<allot_tables *>(tables));
    }

    /* Decodes dimension i of 8 tokens of K (side 0) or V (side 1). The first n_sink tokens are
     * stored as float16. */
    __device__ __forceinline__ void decode(const octet &o, int side, int i, float (&x)[8]) const
    {
        const auto dim = s->of[side][i];
        const uint32_t *const words = reinterpret_cast<const uint32_t *>(o.codes) + dim.word;
        const int at = o.t0 * dim.bits, first = at / 32, last = (at + 8 * dim.bits - 1) / 32;
        const uint32_t w0 = dim.bits ? words[first] : 0, w1 = first < last ? words[first + 1] : 0,
                       w2 = first + 1 < last ? words[last] : 0, shift = (uint32_t)at % 32,
                       mask = (1u << dim.bits) - 1;
        uint32_t low = __funnelshift_r(w0, w1, shift), high = __funnelshift_r(w1, w2, shift);
        const float *const read = s->level[side] + (1 << dim.bits);
#pragma unroll
        for (int t = 0; t < 8; t++) {
            x[t] = read[low & mask];
            low = __funnelshift_r(low, high, (uint32_t)dim.bits);
            high >>= dim.bits;
        }
        /* The product and the sum are rounded separately, as on the CPU. */
#pragma unroll
        for (int t = 0; t < 8; t++)
            x[t] = __fadd_rn(dim.mean, __fmul_rn(dim.deviation, x[t]));
        const int sinks = o.a.n_sink - first_token(o);
        if (sinks <= 0)
            return;
        const int wide = o.a.map.page_elements / KVD_PAGE_TOKENS;
        const uint16_t *const sink =
            in_sink(o.a, o.b, o.g, first_token(o)) + (side ? o.a.map.d_qk[o.g] : 0) + i;
#pragma unroll
        for (int t = 0; t < 8; t++)
            if (t < sinks)
                x[t] = half_of(sink[t * wide], 0);
    }

    /* Applies RoPE to decoded keys and writes them. The cosine and sine of a token are computed
     * from the cosine and sine of the token before it. */
    __device__ __forceinline__ void put_rotated(const octet &o, int lane) const
    {
        const kvd_packed_args &a = o.a;
        const int half = a.d_head / 2;
#pragma unroll 1
        for (int j = lane; j < half; j += 32) {
            const int i = a.interleaved ? 2 * j : j, other = a.interleaved ? i + 1 : i + half;
            const size_t row = (size_t)first_token(o) * (size_t)half + (size_t)j;
            float cosine = __ldg(a.cosine + row), sine = __ldg(a.sine + row), x[8], y[8];
            const float2 one = s->turn[j];
            decode(o, 0, i, x);
            decode(o, 0, other, y);
#pragma unroll
            for (int t = 0; t < 8; t++) {
                rotate_pair(cosine, sine, x[t], y[t]);
                rotate_pair(one.x, one.y, cosine, sine);
            }
            put_channel<ATTEND>(o.keys, i, x, 0, 8);
            put_channel<ATTEND>(o.keys, other, y, 0, 8);
        }
    }

    __device__ __forceinline__ void put_side(const octet &o, int side, int lane) const
    {
#pragma unroll 2
        for (int i = lane; i < width_of(o, side); i += 32) {
            float x[8];
            decode(o, side, i, x);
            put_channel<ATTEND>(tile_of(o, side), i, x, 0, 8);
        }
    }

    __device__ __forceinline__ void restore(const octet &o) const
    {
        const int lane = (int)threadIdx.x % 32, coded = o.m - 1;
        if (first_token(o) < coded) {
            if (o.a.before_rope && o.a.cosine)
                put_rotated(o, lane);
            else
                put_side(o, 0, lane);
            put_side(o, 1, lane);
            __syncwarp();
        }
        put_uncoded<ATTEND>(o, 0, coded, lane);
        put_uncoded<ATTEND>(o, 1, coded, lane);
    }
};

/* Tokens `from` to `to` - 1 of a page of method gear. Their keys have the same scales and low-rank
 * factors. */
struct group_of {
    int from, to, pairs; /* pairs of columns of the right factors */
    bool prompt;
    const uint32_t *scale;    /* [d_qk] */
    const uint32_t *right[2]; /* right factors of keys and of values [d][pairs], after the prompt */
};

/* Returns the longest range of tokens in page p that begins with token t, ends before token `done`,
 * and has the same scales and low-rank factors for all keys. */
__device__ __forceinline__ group_of group_at(const head_of &h, int p, int t, int done)
{
    const kvd_gear &s = h.a.gear.of;
    const int whole = KVD_PAGE_TOKENS * p + t;
    const bool prompt = whole < h.prompt;
    const int first = prompt ? 0 : block_of(h, whole),
              end = min(first + ((whole - first) / s.group + 1) * s.group,
                        prompt ? h.prompt : first + s.buffer);
    group_of g = {t,
                  min(end - KVD_PAGE_TOKENS * p, done),
                  (prompt ? h.page.columns : h.page.columns_later) / 2,
                  prompt,
                  key_scales(h, whole),
                  {NULL, NULL}};
    if (!prompt)
        for (int side = 0; side < 2; side++)
            g.right[side] = as_words(reinterpret_cast<char *>(right_factor(h, side, whole)));
    return g;
}

/* Adds the contribution of two columns to y, an element of the product of two low-rank factors. */
__device__ __forceinline__ void add_columns(float2 left, float2 right, float &y)
{
    y = fmaf(left.x, right.x, y);
    y = fmaf(left.y, right.y, y);
}

__device__ __forceinline__ float2 both_of(uint32_t pair)
{
    return make_float2(half_of(pair, 0), half_of(pair, 1));
}

/* Right low-rank factors of a prompt: [K, V][pair of columns][channel]. Each float2 holds two
 * columns. */
typedef float2 right_factors[2][KVD_GEAR_RANK / 2][D_MAX];

__device__ __forceinline__ void decode_eight(uint32_t scale, const uint32_t (&code)[2],
                                             float (&y)[8])
{
#pragma unroll
    for (int e = 0; e < 8; e++)
        y[e] = decoded(scale, raised_byte(code[e / 4], e % 4) - RAISED);
}

/* Returns quantised numbers 2 k and 2 k + 1 times `step` plus `zero`, as float16. The bytes 0x64
 * and n together are the float16 number 1024 + n. */
__device__ __forceinline__ uint32_t decoded_pair(uint32_t step, uint32_t zero,
                                                 const uint32_t (&code)[2], int k)
{
    const uint32_t raised = __byte_perm(code[k / 2], 0x64646464u, k % 2 ? 0x4342 : 0x4140);
    return times_plus(step, plus(raised, 0xe400e400u), zero);
}

__device__ __forceinline__ void decode_eight(uint32_t scale, const uint32_t (&code)[2],
                                             uint32_t (&y)[4])
{
    const uint32_t step = __byte_perm(scale, scale, 0x1010),
                   zero = __byte_perm(scale, scale, 0x3232);
#pragma unroll
    for (int k = 0; k < 4; k++)
        y[k] = decoded_pair(step, zero, code, k);
}

/* Decodes keys of 8 tokens, four channels per lane. The scales are [d_qk]. */
template <class NUMBERS>
__device__ __forceinline__ void decode_keys(const head_of &h, const octet &o,
                                            const uint32_t *scales, int lane, NUMBERS (&y)[4])
{
    const int bits = h.a.gear.of.bits, d = width_of(o, 0), width = h.a.width[0][o.g];
    const uint32_t *const planes = reinterpret_cast<const uint32_t *>(o.codes);
    uint32_t scale[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
        scale[k] = lane + 32 * k < width ? scales[lane + 32 * k] : 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (32 * k >= d)
            break;
        const int i = min(lane + 32 * k, d - 1);
        uint32_t code[2];
        codes_of_planes(planes + (2 * i + o.t0 / 32) * bits, bits, o.t0 % 32 / 8, code);
        decode_eight(scale[k], code, y[k]);
    }
}

/* Writes decoded keys plus the low-rank approximation of their quantisation errors to shared
 * memory. Not inlined, which saves registers. */
template <bool HALF>
__device__ __noinline__ void put_group_keys(head_of h, octet o, group_of s,
                                            const right_factors *right, int lane)
{
    const int d = width_of(o, 0), width = h.a.width[0][o.g], row = h.page.columns_left / 2;
    const uint32_t *const left =
        reinterpret_cast<const uint32_t *>(o.codes + h.page.left[0]) + o.t0 * row;
    float y[4][8] = {};
    decode_keys(h, o, s.scale, lane, y);
#pragma unroll 1
    for (int q = 0; q < s.pairs; q++) {
        float2 r[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            r[k] = lane + 32 * k >= width ? make_float2(0, 0)
                   : s.prompt             ? (*right)[0][q][lane + 32 * k]
                                          : both_of(s.right[0][(lane + 32 * k) * s.pairs + q]);
#pragma unroll
        for (int t = 0; t < 8; t++) {
            const float2 l = both_of(left[t * row + q]);
#pragma unroll
            for (int k = 0; k < 4; k++)
                add_columns(l, r[k], y[k][t]);
        }
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (lane + 32 * k < d)
            put_channel<HALF>(o.keys, lane + 32 * k, y[k], s.from - o.t0, s.to - o.t0);
}

/* Addresses of one token's V: quantised numbers, scales, and left low-rank factor of the
 * quantisation error. */
struct value_of {
    const uint32_t *planes, *scale, *left;
};

__device__ __forceinline__ value_of value_at(const head_of &h, const octet &o, int t)
{
    const auto words = [&](int at) { return reinterpret_cast<const uint32_t *>(o.codes + at); };
    const int pieces = kvd_gear_pieces(width_of(o, 1), 32);
    return {words(h.page.v) + t * pieces * h.a.gear.of.bits,
            words(h.page.v_side) + t * h.page.v_groups,
            words(h.page.left[1]) + t * (h.page.columns_left / 2)};
}

/* Writes the decoded V of the lane's token plus the low-rank approximation of its quantisation
 * error. */
template <bool HALF>
__device__ __noinline__ void put_group_values(head_of h, octet o, group_of s,
                                              const right_factors *right, int lane)
{
    const int d = width_of(o, 1), width = h.a.width[1][o.g], bits = h.a.gear.of.bits,
              group = h.a.gear.of.group;
    const value_of v = value_at(h, o, o.t0 + lane % 8);
    for (int i = lane / 8 * 8; i < d; i += 32) {
        uint32_t code[2];
        float y[8];
        codes_of_planes(v.planes + i / 32 * bits, bits, i % 32 / 8, code);
#pragma unroll
        for (int e = 0; e < 8; e++)
            y[e] = decoded(v.scale[(i + e) / group], raised_byte(code[e / 4], e % 4) - RAISED);
#pragma unroll 1
        for (int q = 0; q < s.pairs; q++) {
            const float2 l = both_of(v.left[q]);
#pragma unroll
            for (int e = 0; e < 8; e++)
                add_columns(l,
                            s.prompt        ? (*right)[1][q][i + e]
                            : i + e < width ? both_of(s.right[1][(i + e) * s.pairs + q])
                                            : make_float2(0, 0),
                            y[e]);
        }
        *reinterpret_cast<uint4 *>(o.values + tile_index(lane % 8, i)) =
            make_uint4(pair_of<HALF>(y[0], y[1]), pair_of<HALF>(y[2], y[3]),
                       pair_of<HALF>(y[4], y[5]), pair_of<HALF>(y[6], y[7]));
    }
}

/* Writes the decoded V of the lane's token as float16, without the low-rank part. `log` is log2 of
 * the number of channels that share a scale, or -1 if this number is not a power of two. */
__device__ __forceinline__ void put_half_values(const head_of &h, const octet &o, int log, int lane)
{
    const int d = width_of(o, 1), bits = h.a.gear.of.bits, group = h.a.gear.of.group;
    const value_of v = value_at(h, o, o.t0 + lane % 8);
#pragma unroll 2
    for (int i = lane / 8 * 8; i < d; i += 32) {
        uint32_t code[2], y[4];
        codes_of_planes(v.planes + i / 32 * bits, bits, i % 32 / 8, code);
        decode_eight(v.scale[log < 0 ? i / group : i >> log], code, y);
        if (log < 3 && i / group != (i + 7) / group)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t low = v.scale[(i + 2 * k) / group],
                               high = v.scale[(i + 2 * k + 1) / group];
                y[k] = decoded_pair(__byte_perm(low, high, 0x5410), __byte_perm(low, high, 0x7632),
                                    code, k);
            }
        *reinterpret_cast<uint4 *>(o.values + tile_index(lane % 8, i)) =
            make_uint4(y[0], y[1], y[2], y[3]);
    }
}

/* Decodes pages of method gear. The low-rank part is added to scores and outputs if ATTEND is true,
 * else to K and V. */
template <bool ATTEND> struct gear_page {
    static constexpr bool LOW_RANK = ATTEND;
    static constexpr int CTAS = 2, SHARED = sizeof(right_factors), AHEAD = 4;
    head_of h;
    int coded, next,
        outliers;      /* number of coded tokens, and of outliers of a key channel of the prompt */
    uint32_t per_room; /* reciprocal of the room for outliers in a page, times 2^32, rounded up */
    uint32_t query;    /* products of two query heads, of begin */
    uint32_t ahead[AHEAD]; /* outliers from number `next` on of the thread's key channel */
    int log;               /* log2 of the numbers per scale, or -1 if that is no integer */
    const right_factors *right;

    static __device__ __host__ __forceinline__ int bytes(const kvd_packed_args &a, int g)
    {
        const kvd_gear_page p =
            kvd_gear_page_of(&a.gear.of, a.gear.k_room, a.map.d_qk[g], a.map.d_v[g]);
        return p.area + 4 * p.k_groups * a.map.d_qk[g];
    }

    __device__ __forceinline__ gear_page(const kvd_packed_args &a, int b, int g, int m, int first,
                                         char *tables)
        : h(make_head(a, b, g, min(a.prompt[a.slot[b]], keys_coded(a, m - 1))))
    {
        coded = keys_coded(a, m - 1);
        outliers = 2 * kvd_gear_apart(&a.gear.of, h.prompt);
        right = reinterpret_cast<const right_factors *>(tables);
        load_right(*reinterpret_cast<right_factors *>(tables));
        log = a.gear.of.group & (a.gear.of.group - 1) ? -1 : __ffs(a.gear.of.group) - 1;
        per_room = 0xffffffffu / (uint32_t)max(a.gear.k_room, 1) + 1;
        next = 0;
        if ((int)threadIdx.x >= a.width[0][g] || KVD_PAGE_TOKENS * first >= h.prompt)
            outliers = 0;
        else if (first > 0)
            next = first_outlier(KVD_PAGE_TOKENS * first);
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            ahead[k] = outlier(next + k);
    }

    /* Copies the prompt's right low-rank factors to shared memory. Unused channels are set to 0. */
    __device__ __forceinline__ void load_right(right_factors &to) const
    {
        const int pairs = h.page.columns / 2;
        for (int k = (int)threadIdx.x; h.prompt && k < 2 * pairs * D_MAX; k += THREADS) {
            const int i = k % D_MAX, side = k / D_MAX / pairs, q = k / D_MAX % pairs;
            const uint32_t *const from =
                as_words(reinterpret_cast<char *>(right_factor(h, side, 0)));
            to[side][q][i] =
                i < h.a.width[side][h.g] ? both_of(from[i * pairs + q]) : make_float2(0, 0);
        }
    }

    /* Returns outlier e of this thread's key channel in the prompt, or 0 if the channel has at most
     * e outliers. */
    __device__ __forceinline__ uint32_t outlier(int e) const
    {
        const int room = h.a.gear.k_room,
                  page = room > 1 ? (int)__umulhi((uint32_t)e, per_room) : e;
        if (e >= outliers)
            return 0;
        return as_words(codes_of(h, page) +
                        h.page.area)[(h.page.k_groups + e - page * room) * h.a.map.d_qk[h.g] +
                                     (int)threadIdx.x];
    }

    /* Finds the first outlier at token t or later in the thread's key channel. Returns its index in
     * the channel's list of outliers. */
    __device__ int first_outlier(int t) const
    {
        int e = 0;
        for (int end = outliers; e < end;) {
            const int step = (end - e + 7) / 8;
            int before = 0;
#pragma unroll
            for (int k = 1; k < 8; k++) {
                const int at = e + k * step - 1;
                before += at < end && (int)(outlier(at) >> 16) < t;
            }
            end = before < 7 ? min(e + (before + 1) * step - 1, end) : end;
            e = min(e + before * step, end);
        }
        return e;
    }

    /* Writes the decoded keys of tokens `from` to `to` - 1 as float16, without the low-rank
     * part. */
    __device__ __forceinline__ void put_half_keys(const octet &o, const uint32_t *scales, int from,
                                                  int to, int lane) const
    {
        uint32_t y[4][4] = {};
        decode_keys(h, o, scales, lane, y);
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (lane + 32 * k < width_of(o, 0))
                put_pairs(o.keys, lane + 32 * k, y[k], from, to);
    }

    /* Returns the quantisation scales of the 8 keys in `o`. Returns NULL if the keys have different
     * scales, or if the scales are not in shared memory. */
    __device__ __forceinline__ const uint32_t *near_scales(const octet &o) const
    {
        const int first = first_token(o), page = KVD_PAGE_TOKENS * o.p;
        if (!ATTEND || log < 3 || first + 8 > h.prompt || (first >> log << log) < page)
            return NULL;
        return reinterpret_cast<const uint32_t *>(o.codes + h.page.area) +
               ((first - page) >> log) * width_of(o, 0);
    }

    /* Writes the decoded keys of the first `done` of the 8 tokens in `o` to shared memory. Outliers
     * are left out; put_outliers writes them. */
    __device__ __forceinline__ void put_keys(const octet &o, int done, int lane) const
    {
        const uint32_t *const scales = near_scales(o);
        if (scales) {
            put_half_keys(o, scales, 0, 8, lane);
            return;
        }
#pragma unroll 1
        for (int t0 = o.t0; t0 < o.t0 + done;) {
            const group_of s = group_at(h, o.p, t0, o.t0 + done);
            t0 = s.to;
            if (ATTEND && s.prompt)
                put_half_keys(o, s.scale, s.from - o.t0, s.to - o.t0, lane);
            else
                put_group_keys<ATTEND>(h, o, s, right, lane);
        }
    }

    /* Writes the decoded V of the first `done` of the 8 tokens in `o` to shared memory. Outliers
     * are left out; put_outliers writes them. */
    __device__ __forceinline__ void put_values(const octet &o, int done, int lane) const
    {
        const int t = o.t0 + lane % 8;
        if (lane % 8 >= done)
            return;
        if (ATTEND && KVD_PAGE_TOKENS * o.p + t < h.prompt)
            put_half_values(h, o, log, lane);
        else
            put_group_values<ATTEND>(h, o, group_at(h, o.p, t, o.t0 + done), right, lane);
    }

    /* Returns true if the low-rank part of token t is added to attention scores and outputs, not to
     * the token's K and V. */
    __device__ __forceinline__ bool adds_later(int t) const
    {
        return ATTEND && t < h.prompt;
    }

    /* Writes the outlier that is packed in word `one` to channel i of token t, if the page has this
     * token. */
    __device__ __forceinline__ void put_outlier(const octet &o, int side, int t, int i,
                                                uint32_t one) const
    {
        const int row = h.page.columns_left / 2;
        uint16_t *const tile = tile_of(o, side) + (t / 8 - o.t0 / 8) * OCTET;
        if (t < 0 || t >= KVD_PAGE_TOKENS || i >= h.a.width[side][o.g])
            return;
        float x = half_of(one, 0);
        const uint32_t *const left =
            reinterpret_cast<const uint32_t *>(o.codes + h.page.left[side]) + t * row;
        for (int q = 0; adds_later(KVD_PAGE_TOKENS * o.p + t) && q < h.page.columns / 2; q++) {
            float low_rank = 0;
            add_columns(both_of(left[q]), (*right)[side][q][i], low_rank);
            x -= low_rank;
        }
        tile[tile_index(t % 8, i)] = (uint16_t)(pair_of<ATTEND>(x, 0) & 0xffff);
    }

    /* Multiplies the queries by R, where L R^T is the low-rank part of the prompt's keys. */
    __device__ __forceinline__ void begin(const query_words &q, int lane)
    {
        const int c = lane % 4;
        float sum[2] = {};
        for (int i = 0; h.prompt && c < h.page.columns / 2 && 8 * i < h.a.map.d_qk[h.g]; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t two = q[i][lane / 4 * 4 + j];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float2 r = (*right)[0][c][8 * i + 2 * j + e];
                    sum[0] = fmaf(half_of(two, e), r.x, sum[0]);
                    sum[1] = fmaf(half_of(two, e), r.y, sum[1]);
                }
            }
        query = f16_pair(sum[0], sum[1]);
    }

    /* Adds the products of queries and the low-rank part of 8 keys to the attention scores x. */
    __device__ __forceinline__ void add_scores(const octet &o, float (&x)[4], int lane) const
    {
        const int t = lane / 4, c = lane % 4;
        if (!adds_later(first_token(o)))
            return;
        const uint32_t *const left = reinterpret_cast<const uint32_t *>(o.codes + h.page.left[0]);
        const bool there = adds_later(first_token(o) + t) && c < h.page.columns / 2;
        const uint32_t rows[4] = {query, 0, 0, 0};
        mma_pure<false>(x, rows, there ? left[(o.t0 + t) * (h.page.columns_left / 2) + c] : 0, 0);
    }

    /* Multiplies 8 tokens' attention probabilities (`high` + `low`) by the left low-rank factor of
     * V. Adds the products to s.more. */
    __device__ __forceinline__ void add_values(const octet &o, uint32_t high, uint32_t low,
                                               attention &s, int lane) const
    {
        const int column = lane / 4, t = lane % 4 * 2, row = h.page.columns_left;
        if (!adds_later(first_token(o)))
            return;
        const uint16_t *const left = reinterpret_cast<const uint16_t *>(o.codes + h.page.left[1]) +
                                     (o.t0 + t) * row + column;
        const bool there = column < h.page.columns;
        const uint32_t first = there && adds_later(first_token(o) + t) ? left[0] : 0,
                       second = there && adds_later(first_token(o) + t + 1) ? left[row] : 0,
                       two = first | second << 16, rows[4] = {two, 0, two, 0};
        mma_pure<false>(s.more, rows, high, low);
    }

    /* Multiplies s.more, which is probabilities times the left low-rank factor of V, by the right
     * factor, and adds the product to the output. */
    __device__ __forceinline__ void end(attention &s, int lane) const
    {
#pragma unroll 1
        for (int q = 0; h.prompt && q < h.page.columns / 2; q++) {
            float x[2][2]; /* columns 2 q and 2 q + 1 of query heads 2 c and 2 c + 1 */
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    x[k][e] = __shfl_sync(~0u, s.more[e], 4 * (2 * q + k) + lane % 4);
#pragma unroll
            for (int i = 0; i < D_MAX / 4; i += 2) {
                const float2 r = (*right)[1][q][i / 2 * 8 + lane / 4];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &y = s.o[i / 4][i % 4 + e];
                    y = fmaf(r.y, x[1][e], fmaf(r.x, x[0][e], y));
                }
            }
        }
    }

    /* Writes the outliers of the thread's key channel to the decoded page, and loads the outliers
     * of the next page. */
    __device__ __forceinline__ void put_prompt_keys(const octet &o, int t0)
    {
        const int channel = (int)threadIdx.x;
        int n;
        do {
            n = 0;
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (next + k < outliers && (int)(ahead[k] >> 16) < t0 + KVD_PAGE_TOKENS) {
                    put_outlier(o, 0, (int)(ahead[k] >> 16) - t0, channel, ahead[k]);
                    n = k + 1;
                }
            next += n;
#pragma unroll
            for (int k = 0; n && k < AHEAD; k++)
                ahead[k] = outlier(next + k);
        } while (n == AHEAD);
    }

    /* Writes the outliers of the page's first `done` tokens over the decoded numbers. All threads
     * of the CTA must call it. */
    __device__ __forceinline__ void put_outliers(const octet &o, int done)
    {
        const kvd_gear &of = h.a.gear.of;
        const int t0 = KVD_PAGE_TOKENS * o.p, d = h.a.width[0][o.g], each = h.page.k_later,
                  apart = 2 * kvd_gear_apart(&of, h.a.width[1][o.g]);
        const uint32_t *const list = reinterpret_cast<const uint32_t *>(o.codes + h.page.v_list);
        for (int k = THREADS - 1 - (int)threadIdx.x; k < done * apart; k += THREADS) {
            const uint32_t one = list[k / apart * h.page.v_apart + k % apart];
            put_outlier(o, 1, k / apart, (int)(one >> 16), one);
        }
        put_prompt_keys(o, t0);
        for (int first = max(h.prompt, block_of(h, t0)); each && first < t0 + done;
             first += of.buffer)
            for (int k = (int)threadIdx.x; k < each * d; k += THREADS) {
                const uint32_t one = *key_outlier(h, first, k / d, k % d);
                if ((int)(one >> 16) < of.buffer)
                    put_outlier(o, 0, first + (int)(one >> 16) - t0, k % d, one);
            }
    }

    __device__ __forceinline__ void restore(const octet &o)
    {
        const int lane = (int)threadIdx.x % 32, done = min(max(coded - first_token(o), 0), 8),
                  of_page = min(coded - KVD_PAGE_TOKENS * o.p, (int)KVD_PAGE_TOKENS);
        put_keys(o, done, lane);
        put_values(o, done, lane);
        __syncwarp();
        put_uncoded<ATTEND>(o, 0, coded, lane);
        put_uncoded<ATTEND>(o, 1, coded, lane);
        if (of_page <= 0 || h.a.gear.of.outliers <= 0)
            return;
        __syncthreads();
        put_outliers(o, of_page);
        __syncthreads();
    }
};

} // namespace

bool kvd_packed_attends(const kvd_packed_args *a)
{
    return shares_of(&a->map) && (a->form.low_rank   ? page_fits<gear_page<true>>(a)
                                  : a->form.allotted ? page_fits<allot_page<true>>(a)
                                                     : false);
}

cudaError_t kvd_packed_attend(const kvd_packed_args *a, const kvd_packed_decode_args *d,
                              cudaStream_t stream)
{
    const int ctas = ctas_of(a, d);
    return a->form.low_rank ? launch<gear_page<true>, true>(a, d, ctas, stream)
                            : launch<allot_page<true>, true>(a, d, ctas, stream);
}

cudaError_t kvd_packed_restore_pages(const kvd_packed_args *a, cudaStream_t stream)
{
    const int ctas = a->pages_side_by_side;
    return a->form.low_rank ? launch<gear_page<false>, false>(a, NULL, ctas, stream)
                            : launch<allot_page<false>, false>(a, NULL, ctas, stream);
}
