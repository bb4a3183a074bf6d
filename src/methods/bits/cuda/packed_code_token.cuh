/*
 * Quantises the value of one token per decode step, and the key of the token if codes are indices
 * of quantisation levels. Decode steps in which a group of keys becomes full use other code.
 * Included by packed_code.cu only.
 */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_CODE_TOKEN_CUH
#define KVD_METHODS_BITS_CUDA_PACKED_CODE_TOKEN_CUH

#include "methods/bits/cuda/packed_code.cuh"

namespace
{

/*
 * Finds the smallest (sign 1) or largest (sign -1) number of a vector, among those not yet marked
 * in the mask `taken`, and marks it. Lanes with `there` false hold no numbers. Returns the number
 * as float16, with its dimension in the upper half. Ties give the smallest dimension.
 */
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

/*
 * Quantises four dimensions of the value of token t, from dimension 4 * part on. Each lane of the
 * warp has a different `part`. Vectors with outliers have at most 32 parts.
 */
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
    /*
     * Padding has its bits set in the mask `taken` from the start, so that it is neither an outlier
     * nor in the range.
     */
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
#pragma unroll 1
    for (int i = 4 * lane; i < min(4 * lane + 4, (int)a.map.d_qk[o.g]); i++) {
        const float x = bf16_of(key_pair(o, i / 16, i % 16 / 8, t, i % 8 / 2), i % 2);
        const float *const range = a.range + 2 * ((size_t)o.g * (size_t)a.range_width + (size_t)i);
        const float middle = i < a.range_width ? range[0] : 0,
                    half = i < a.range_width ? range[1] : 0;
        const bool first = in_request < a.n_sink,
                   outlier = !first && a.form.k_apart && fabsf(x - middle) > half;
        if (first)
            in_sink(o.a, o.b, o.g, in_request)[i] = (uint16_t)half_bits(x);
        if (outlier) {
            put_apart(o, t, i, x);
            apart++;
        }
        put_bits(words + kvd_packed_words(bits, i / 16, kvd_packed_key_lane(t, i)), true, bits,
                 kvd_packed_key_number(t, i),
                 !first && !outlier && half > 0 ? nearest(o.middle, 1 << bits, (x - middle) / half)
                                                : 0);
    }
    apart = __reduce_add_sync(~0u, apart);
    if (lane == 0 && apart)
        atomicAdd(a.apart + a.slot[o.b], apart);
}

} // namespace

#endif
