/* Parts of attention to quantised pages that do not depend on the number format. */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_DECODE_CUH
#define KVD_METHODS_BITS_CUDA_PACKED_DECODE_CUH

#include "methods/bits/cuda/packed_decode_pages.cuh"

namespace
{

/* Softmax state of a lane, for two query heads. `max` is the largest score times log2(e). */
template <int UNITS> struct state {
    float max[2], sum[2], o[UNITS][4], zero[4];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            max[e] = -INFINITY;
            sum[e] = 0;
        }
#pragma unroll
        for (int i = 0; i < 4 * UNITS; i++)
            o[i / 4][i % 4] = 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            zero[i] = 0;
    }
};

/* Base of the classes that decode quantised pages: defaults of members that such a class may
 * redefine. Heads have 16 N dimensions. */
template <int N> struct code_reader {
    static constexpr int UNITS = N, WARPS = 8;
    static constexpr bool BF = false, ZEROS = false, NEWEST = true, UNEVEN = false;

    __device__ code_reader(const packed_params &, char *, char *)
    {
    }

    static __device__ __forceinline__ void ready(const packed_params &, char *, char *)
    {
    }

    static __device__ constexpr float factor(int)
    {
        return 1;
    }

    static __device__ constexpr float outputs()
    {
        return 1;
    }

    static __device__ constexpr int skipped(const packed_params &, const cursor &)
    {
        return 0;
    }

    static __device__ __forceinline__ void others(const packed_params &, const cursor &, int,
                                                  state<N> &, int)
    {
    }
};

__device__ __forceinline__ int token_of(int m, int i, int lane)
{
    return 16 * m + i / 2 * 8 + lane / 4;
}

/* Computes the attention scores of a page's tokens that are not quantised, multiplied by
 * log2(e). */
template <class PAGE>
__device__ __forceinline__ void ring_scores(const packed_params &p, const cursor &at, int coded,
                                            int left, float (&s)[4][4], int lane)
{
    const int units = k_units<PAGE>(at);
    const uint16_t *const from = query_of(p, at.b, at.g, lane), *const rows = ring_of(p, at) +
                                                                              lane / 4 * 8 +
                                                                              lane % 4 * 2;
    const bool there = lane / 4 < p.a.map.group;
#pragma unroll
    for (int m = 0; m < 4; m++) {
        if (16 * m + 16 <= coded || 16 * m >= left)
            continue;
        float sum[4] = {};
#pragma unroll
        for (int u = 0; u < PAGE::UNITS; u++) {
            if (u >= units)
                break;
            const uint16_t *const k = rows + 2 * m * 128 * units + 128 * u;
            uint32_t a[4], q[2];
#pragma unroll
            for (int r = 0; r < 4; r++)
                a[r] = *reinterpret_cast<const uint32_t *>(k + r % 2 * 128 * units + r / 2 * 64);
#pragma unroll
            for (int h = 0; h < 2; h++)
                q[h] = there ? *reinterpret_cast<const uint32_t *>(from + 16 * u + 8 * h) : 0;
            mma_pure<true>(sum, a, q[0], q[1]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[m][i] = token_of(m, i, lane) < coded ? s[m][i] : sum[i] * p.scale_log2;
    }
}

/* Rescales the softmax sum and output if a score in `top` exceeds the maximum so far by much. */
template <int UNITS> __device__ __forceinline__ void raise(state<UNITS> &st, const float (&top)[2])
{
    if (!__any_sync(~0u, !(top[0] - st.max[0] <= LAZY && top[1] - st.max[1] <= LAZY)))
        return;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float most = fmaxf(st.max[e], top[e]), shrink = kvd_exp2(st.max[e] - most);
        st.max[e] = most;
        st.sum[e] *= shrink;
        st.zero[e] *= shrink;
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            st.o[u][e] *= shrink;
            st.o[u][2 + e] *= shrink;
        }
    }
}

/* Replaces scores s by softmax numerators, and adds the numerators to the softmax sum. */
template <int UNITS> __device__ __forceinline__ void soften(state<UNITS> &st, float (&s)[4][4])
{
    float top[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
        top[e] = fmaxf(s[0][e], s[0][2 + e]);
#pragma unroll
        for (int m = 1; m < 4; m++)
            top[e] = fmaxf(top[e], fmaxf(s[m][e], s[m][2 + e]));
#pragma unroll
        for (int i = 4; i < 32; i *= 2)
            top[e] = fmaxf(top[e], __shfl_xor_sync(~0u, top[e], i));
    }
    raise(st, top);
    const float base[2] = {st.max[0] - TOP, st.max[1] - TOP};
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[m][i] = kvd_exp2(s[m][i] - base[i % 2]);
            st.sum[i % 2] += s[m][i];
        }
}

/* Sets the scores of tokens before token `from`, and from token `to` on, to minus infinity. */
__device__ __forceinline__ void hide(float (&s)[4][4], int from, int to, int lane)
{
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int t = token_of(i / 4, i % 4, lane);
        s[i / 4][i % 4] = t >= from && t < to ? s[i / 4][i % 4] : -INFINITY;
    }
}

template <bool BF>
__device__ __forceinline__ void probabilities(const float (&s)[4][4], uint32_t (&packed)[8])
{
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const float x = s[k / 2][k % 2 * 2], y = s[k / 2][k % 2 * 2 + 1];
        packed[k] = exchanged(BF ? bf16_pair(x, y) : f16_pair(x, y));
    }
}

/* Packs two softmax numerators per word. Tokens before `from`, and tokens from `to` on, get 0. */
template <bool BF>
__device__ __forceinline__ void probabilities(const float (&s)[4][4], int from, int to,
                                              uint32_t (&packed)[8], int lane)
{
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const int t = token_of(k / 2, k % 2 * 2, lane);
        const bool in = t >= from && t < to;
        const float x = in ? s[k / 2][k % 2 * 2] : 0, y = in ? s[k / 2][k % 2 * 2 + 1] : 0;
        packed[k] = exchanged(BF ? bf16_pair(x, y) : f16_pair(x, y));
    }
}

__device__ __forceinline__ uint32_t times_bf16(uint32_t x, float factor)
{
    const __nv_bfloat162 y =
        __hmul2(*reinterpret_cast<const __nv_bfloat162 *>(&x), __float2bfloat162_rn(factor));
    return *reinterpret_cast<const uint32_t *>(&y);
}

/* Adds the product V^T P^T (values times probabilities) of a page's tokens that are not
 * quantised. */
template <class PAGE>
__device__ __forceinline__ void ring_values(const packed_params &p, const cursor &at, int coded,
                                            int left, const uint32_t (&prob)[8],
                                            state<PAGE::UNITS> &st, int lane)
{
    const int units = v_units<PAGE>(at);
    const uint16_t *const rows =
        ring_of(p, at) + KVD_PAGE_TOKENS * 16 * k_units<PAGE>(at) + lane / 4 * 8 + lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (16 * k + 16 <= coded || 16 * k >= left)
            continue;
        const bool second = 16 * k + 8 < left;
#pragma unroll
        for (int u = 0; u < PAGE::UNITS; u++) {
            uint32_t a[4];
            if (u >= units)
                break;
#pragma unroll
            for (int r = 0; r < 4; r++) {
                a[r] =
                    exchanged(r < 2 || second
                                  ? *reinterpret_cast<const uint32_t *>(
                                        rows + (2 * k + r / 2) * 128 * units + (2 * u + r % 2) * 64)
                                  : 0);
                if (PAGE::factor(r) != 1)
                    a[r] = times_bf16(a[r], PAGE::factor(r));
            }
            mma_pure<true>(st.o[u], a, prob[2 * k], prob[2 * k + 1]);
        }
    }
}

__device__ __forceinline__ __nv_bfloat16 *output_of(const packed_params &p, int b, int head)
{
    return static_cast<__nv_bfloat16 *>(p.d.o) + (size_t)b * (size_t)p.a.map.o_pitch +
           p.a.map.o_offset[head];
}

/* Returns the term that an attention sink adds to the softmax denominator. `max` is the largest
 * score times log2(e). */
__device__ __forceinline__ float sink_term(const packed_params &p, int head, float max)
{
    constexpr float LOG2E = 1.4426950408889634f;
    return p.d.sinks ? kvd_exp2(fmaf(p.d.sinks[head], LOG2E, TOP - max)) : 0;
}

/* Writes the attention output of a query head. If `slot` is not NULL, writes a partial result to
 * `slot` instead. */
template <class PAGE>
__device__ __forceinline__ void put_result(const packed_params &p, const cursor &at,
                                           state<PAGE::UNITS> &st, float factor, float *slot,
                                           int lane)
{
    const int group = p.a.map.group, column = lane % 4 * 2, units = v_units<PAGE>(at);
    float sum[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
        sum[e] = st.sum[e];
#pragma unroll
        for (int i = 4; i < 32; i *= 2)
            sum[e] += __shfl_xor_sync(~0u, sum[e], i);
    }
#pragma unroll
    for (int u = 0; u < PAGE::UNITS; u++) {
        const int from = (u >> p.v_shift) * 4 + lane % 4;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            st.o[u][i] *= factor / PAGE::factor(i / 2);
            if (PAGE::ZEROS)
                st.o[u][i] += __shfl_sync(~0u, st.zero[i % 2], from);
        }
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        if (column + e >= group)
            continue;
        if (slot) {
            float *const to = slot + 2 * HEADS + (column + e) * KVD_WIDTH_NARROW + lane / 4;
            if (lane < 4)
                *reinterpret_cast<float2 *>(slot + 2 * (column + e)) =
                    make_float2(st.max[e], sum[e]);
#pragma unroll
            for (int i = 0; i < 2 * PAGE::UNITS; i++)
                if (i / 2 < units)
                    to[8 * i] = st.o[i / 2][i % 2 * 2 + e];
        } else {
            const int head = at.g * group + column + e;
            __nv_bfloat16 *const to = output_of(p, at.b, head) + lane / 4;
            const float over = 1 / (sum[e] + sink_term(p, head, st.max[e]));
#pragma unroll
            for (int i = 0; i < 2 * PAGE::UNITS; i++)
                if (i / 2 < units)
                    to[8 * i] = __float2bfloat16_rn(st.o[i / 2][i % 2 * 2 + e] * over);
        }
    }
}

/* Adds one token to the softmax state and the output. value(i) must return dimension i of the
 * token's V. */
template <int UNITS, class VALUE>
__device__ __forceinline__ void add_token(state<UNITS> &st, float score, int lane, VALUE value)
{
    float s[2];
    of_columns(score, s, lane);
    raise(st, s);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        s[e] = kvd_exp2(s[e] - (st.max[e] - TOP));
        /* Only lanes 0 .. 3 add a score, because lanes with equal lane % 4 have the same score. */
        st.sum[e] += lane < 4 ? s[e] : 0;
    }
#pragma unroll
    for (int i = 0; i < 2 * UNITS; i++) {
        const float x = value(8 * i + lane / 4);
        st.o[i / 2][i % 2 * 2] += s[0] * x;
        st.o[i / 2][i % 2 * 2 + 1] += s[1] * x;
    }
}

__device__ __forceinline__ float sum_of_head(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* Adds the newest token, which is in shared memory at `row`, to the softmax state and the
 * output. */
template <class PAGE>
__device__ __forceinline__ void attend_newest(const packed_params &p, const cursor &at,
                                              const PAGE &page, const char *row,
                                              state<PAGE::UNITS> &st, int lane)
{
    const uint16_t *const q = query_of(p, at.b, at.g, lane);
    const bool there = lane / 4 < p.a.map.group;
    float score = 0;
#pragma unroll
    for (int i = 0; i < 2 * PAGE::UNITS; i++) {
        if (i / 2 >= k_units<PAGE>(at))
            break;
        const uint32_t x = there ? *reinterpret_cast<const uint32_t *>(q + 8 * i) : 0,
                       k = *reinterpret_cast<const uint32_t *>(row + 16 * i + lane % 4 * 4);
        score += bf16_of(x, 0) * bf16_of(k, 0) + bf16_of(x, 1) * bf16_of(k, 1);
    }
    const uint16_t *const v = reinterpret_cast<const uint16_t *>(row) + 16 * k_units<PAGE>(at);
    const float over = 1 / page.outputs();
    const int end = 16 * v_units<PAGE>(at);
    add_token(st, sum_of_head(score) * p.scale_log2, lane,
              [&](int i) { return !PAGE::UNEVEN || i < end ? bf16_of(v[i], 0) * over : 0; });
}

/* Adds one page of a KV head to the softmax state and the attention output. Must be called after
 * page.ready, which makes lookup tables. */
template <class PAGE>
__device__ __forceinline__ void attend_page(const packed_params &p, const cursor &at, PAGE &page,
                                            const char *stage, typename PAGE::words &w,
                                            const char *codes, const char *next,
                                            state<PAGE::UNITS> &st, int lane)
{
    const int first = KVD_PAGE_TOKENS * at.page, left = min(at.m - first, (int)KVD_PAGE_TOKENS);
    float s[4][4];
    uint32_t prob[8];
    if constexpr (PAGE::NEWEST) {
        const int skipped = page.skipped(p, at), hidden = max(skipped, unseen_of(p, at)),
                  end = min(at.m - 1 - first, (int)KVD_PAGE_TOKENS);
        if (end > hidden) {
            page.scores(p, at, stage, w, codes, s, lane);
            if (hidden > 0 || end < KVD_PAGE_TOKENS)
                hide(s, hidden, end, lane);
            soften(st, s);
            probabilities<PAGE::BF>(s, prob);
            page.values(p, at, stage, w, codes, next, prob, st, lane);
        } else {
            w.begin(0, next, next_units<PAGE>(at));
        }
        page.others(p, at, min(skipped, end), st, lane);
        if (at.page + 1 == at.pages)
            attend_newest(p, at, page, stage + p.newest_at, st, lane);
        return;
    }
    const int keys = at.keys - first, coded = at.values - first, unseen = unseen_of(p, at);
    if (min(keys, coded) >= KVD_PAGE_TOKENS) {
        page.scores(p, at, stage, w, codes, s, lane);
        if (unseen > 0)
            hide(s, unseen, KVD_PAGE_TOKENS, lane);
        soften(st, s);
        probabilities<PAGE::BF>(s, prob);
        page.values(p, at, stage, w, codes, next, prob, st, lane);
        return;
    }
    /* Skips the quantised keys if all of them are older than the sliding window. */
    if (keys > unseen)
        page.scores(p, at, stage, w, codes, s, lane);
    else
        w.begin(1, codes + parts_of<PAGE>(p, at).v, v_units<PAGE>(at));
    if (keys < left)
        ring_scores<PAGE>(p, at, keys, left, s, lane);
    if (unseen > 0 || left < KVD_PAGE_TOKENS)
        hide(s, unseen, left, lane);
    soften(st, s);
    if (coded > unseen) {
        probabilities<PAGE::BF>(s, 0, coded, prob, lane);
        page.values(p, at, stage, w, codes, next, prob, st, lane);
    } else {
        w.begin(0, next, next_units<PAGE>(at));
    }
    if (coded < left) {
        probabilities<true>(s, coded, left, prob, lane);
        ring_values<PAGE>(p, at, coded, left, prob, st, lane);
    }
}

template <class PAGE>
__global__ void __launch_bounds__(32 * PAGE::WARPS, 1)
    packed_decode_kernel(const __grid_constant__ packed_params p)
{
    extern __shared__ __align__(128) char smem[];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32,
              me = warp * (int)gridDim.x + (int)blockIdx.x;
    const int each = weight_per_warp(p), from = me * each,
              to = min(from + each, p.d.pages_before[p.a.n] * p.weights);
    char *const mine = smem + p.shared_bytes + warp * (2 * p.stage_bytes + p.scratch_bytes);
    char *const stages = mine + p.scratch_bytes;
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(stages);
    PAGE page(p, smem, mine);
    cursor at = {};
    const char *codes = NULL, *next = NULL;
    typename PAGE::words w;
    if (from < to)
        at = seek(p, from, lane);
    const bool works = from < to && at.place < to;
    if (works) {
        prefetch_head(p, at, lane);
        codes = codes_of(p, at);
        PAGE::copy(p, at, codes, address, lane);
        w.begin(0, codes, k_units<PAGE>(at));
        if (PAGE::NEWEST)
            copy_newest<PAGE>(p, at, address + (uint32_t)p.newest_at, lane);
        else if (to - at.place <= SHORT * at.weight)
            prefetch_rings(p, at, to, lane);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    page.ready(p, smem, mine);
    if (!works)
        return;
    state<PAGE::UNITS> st;
    bool begins = true;
    int start = at.page, stage = 0;
#pragma unroll 1
    for (; at.place < to; stage ^= 1) {
        cursor ahead = at;
        const bool ends = at.place + at.weight >= to;
        next = codes;
        if (ends) {
            ahead.place = to;
        } else {
            advance(p, ahead, lane);
            next = codes_of(p, ahead);
            const uint32_t copy = address + (uint32_t)((stage ^ 1) * p.stage_bytes);
            PAGE::copy(p, ahead, next, copy, lane);
            if (PAGE::NEWEST)
                copy_newest<PAGE>(p, ahead, copy + (uint32_t)p.newest_at, lane);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (begins) {
            page.begin(p, at, lane);
            st.clear();
            start = at.page;
            begins = false;
        }
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncwarp();
        at.next_units = ahead.k_units;
        attend_page(p, at, page, stages + stage * p.stage_bytes, w, codes, next, st, lane);
        __syncwarp();
        if (at.page + 1 == at.pages || ends) {
            const bool opens = start == first_page(p, at), whole = opens && at.page + 1 == at.pages;
            put_result<PAGE>(p, at, st, page.outputs(),
                             whole ? NULL
                                   : p.d.partial + (size_t)(2 * me + opens) * (size_t)p.slot_floats,
                             lane);
            begins = true;
        }
        at = ahead;
        codes = next;
    }
}

} // namespace

#endif
