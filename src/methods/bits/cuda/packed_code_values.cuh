/* Quantises V of a page, 16 tokens at a time. Only packed_code.cu includes this file. */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_CODE_VALUES_CUH
#define KVD_METHODS_BITS_CUDA_PACKED_CODE_VALUES_CUH

#include "methods/bits/cuda/packed_code.cuh"

namespace
{

/* V of 16 tokens, as operands of mma instructions. */
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

__device__ __forceinline__ uint32_t padding_of(const sixteen &s, int width, int lane)
{
    uint32_t mask = 0;
#pragma unroll
    for (int i = 0; i < 16; i++)
        mask |= dim_of(s, i / 2, i % 2, lane) >= width ? 1u << i : 0;
    return mask;
}

/* Sets lo and hi to the least and the largest number of a token's V outside the mask `taken`. */
__device__ __forceinline__ void range_of(const sixteen &s, int h, int e, uint32_t taken, int lane,
                                         float &lo, float &hi)
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

/* Finds the smallest (sign 1) or largest (sign -1) element of a token's V that is not in the mask
 * `taken`, and adds it to the mask. Returns a word: the float16 element in the lower half, its
 * dimension in the upper half. */
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

/* Writes W bits of each selected code of V to a page. Bit i of a mask tells whether code i is
 * selected. Codes that are not selected do not change. */
template <int W>
__device__ __forceinline__ void put_values(uint32_t *at, int below, int k,
                                           const uint32_t (&code)[8], uint32_t put)
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

/* Writes a lane's 8 quantised numbers as whole bytes, so that no two lanes write to the same
 * byte. */
__device__ __forceinline__ void put_bytes(uint32_t *at, int bits, int k, const uint32_t (&code)[8],
                                          uint32_t put)
{
    unsigned long long word = 0, mask = 0;
#pragma unroll
    for (int r = 0; r < 8; r++) {
        const unsigned long long there = put >> r & 1 ? (1u << bits) - 1 : 0;
        word |= (code[r] & there) << r * bits;
        mask |= there << r * bits;
    }
    if (bits == 4) {
        at[k] = (uint32_t)mask == ~0u ? (uint32_t)word : (at[k] & ~(uint32_t)mask) | (uint32_t)word;
        return;
    }
    uint8_t *const to = reinterpret_cast<uint8_t *>(at) + bits * k;
    for (int i = 0; i < bits; i++, word >>= 8, mask >>= 8)
        if (mask & 0xff)
            to[i] = (uint8_t)((to[i] & ~mask) | word);
}

/* Quantises V of up to 16 tokens in one group of channels. Tokens outside the range `from` to `to`
 * - 1 are skipped. */
__device__ void code_sixteen(const page_of &o, int group, int k, int from, int to, int lane)
{
    const kvd_packed_args &a = o.a;
    const int d = a.map.d_v[o.g], n_apart = a.v_apart[o.g] / 2, bits = a.form.bits;
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
                s.v[i][r] = exchanged(*reinterpret_cast<const uint32_t *>(
                    rows + (2 * k + r / 2) * 8 * d + (2 * i + r % 2) * 64));
    const uint32_t padding = padding_of(s, a.width[1][o.g], lane);
    float zero[4], step[4];
    uint32_t mine = 0, apart[4] = {};
#pragma unroll
    for (int he = 0; he < 4; he++) {
        const int h = he / 2, e = he % 2, t = 16 * k + 8 * h + lane % 4 * 2 + e;
        const bool here = t >= from && t < to;
        zero[he] = step[he] = 0;
        if (!__any_sync(~0u, here))
            continue;
        mine |= here ? 0x5u << (4 * h + e) : 0;
        uint32_t taken = padding;
        uint32_t *const list =
            reinterpret_cast<uint32_t *>(o.codes + o.parts.v_list) + t * a.form.v_apart;
#pragma unroll 1
        for (int i = 0; i < a.form.v_apart; i++) {
            const uint32_t one =
                i < 2 * n_apart ? take_one(s, h, e, i < n_apart ? 1.0f : -1.0f, lane, taken) : 0;
            if (here && lane < 4)
                list[i] = in_list(a, o.g, i, one);
        }
        apart[he] = taken;
        float lo, hi;
        range_of(s, h, e, taken, lane, lo, hi);
        zero[he] = as_half(a.level ? (lo + hi) / 2 : lo);
        step[he] = as_half(a.level ? (hi - lo) / 2 : (hi - lo) / top);
        uint16_t *const side = reinterpret_cast<uint16_t *>(o.codes + o.parts.v_side) +
                               32 * (4 * group + k) + 8 * (lane % 4) + he;
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
                in_sink(o.a, o.b, o.g, t)[a.map.d_qk[o.g] + dim_of(s, i, db, lane)] =
                    (uint16_t)half_bits(x);
            if (!a.level)
                code[r] = even_code(x, zero[he], step[he], top);
            else if (t >= a.n_sink && !(apart[he] >> (2 * i + db) & 1) && step[he] > 0)
                code[r] = nearest(o.middle + (1 << bits), 1 << bits, (x - zero[he]) / step[he]);
        }
        uint32_t *const at = reinterpret_cast<uint32_t *>(o.codes + o.parts.v) +
                             kvd_packed_words(bits, s.u0 + i, lane);
        if (a.level) {
            put_bytes(at, bits, k, code, mine);
            continue;
        }
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

} // namespace

#endif
