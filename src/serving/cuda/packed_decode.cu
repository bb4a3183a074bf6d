/*
 * Attention of steps on codes of even steps.
 *
 *   O[b, h] = softmax(Q[b, h] K[b, g]^T / sqrt(d_head)) V[b, g],   K = s code + zero per channel, V = s code + zero per token
 *
 * Bound by the bytes of codes and scales: per page of 64 tokens and KV head 8 bits (d_qk + d_v) + 256 (d_qk / k_group + d_v / v_group); at 4
 * bits, groups of 32 and d = 128 those are 10 KiB, of bf16 32. The work on them is some 1100 instructions of a warp: half of the bound's time on an H200.
 *
 * Pages of all (request, KV head) are laid end to end and cut into equal runs, one per warp; warps share nothing. A warp copies its pages ahead
 * into stages of its own in shared memory (cp.async), reads codes in the order in which they lie (packed_layout.h), and has operands of mma.m16n8k16
 * after a mask and two packed operations on a pair: codes become float16 whole numbers, then s code + zero in float16 (2^-11, where bf16 has
 * 2^-9). Q is multiplied by a power of two per head, so that float16 holds it; P is float16. The newest rows are multiplied as the bf16 that they are.
 * S = Q K^T has heads as rows, O^T = V^T P^T dims: the accumulator of S, packed, is the operand of the second product.
 *
 * A run that ends within a head leaves a partial result; a second launch, grid (KV heads, requests), merges those in the order of the
 * warps, so that results depend on lengths alone.
 */
#include "kernels/cuda/mma.cuh"
#include "serving/cuda/packed_decode.h"
#include "serving/cuda/packed_words.cuh"

namespace
{

enum {
    WARPS = 8,
    STAGES = 4 /* at most */,
    HEADS = 8 /* of a group at most */,
    LAZY = 8 /* log2 by which P may pass 1 */
};

struct params {
    kvd_packed_args a;
    kvd_packed_decode_args d;
    float scale_log2;
    int32_t warps, stages, stage_bytes, slot_floats;
};

/* ---- runs of pages -------------------------------------------------------------------------------------- */

/* A page in the list of all; `pages` of its request. */
struct cursor {
    int b, g, page, pages, m;
};

__device__ __forceinline__ void begin_request(const params &p, cursor &at)
{
    if (at.b < p.a.n) {
        at.pages = p.d.pages_before[at.b + 1] - p.d.pages_before[at.b];
        at.m = p.a.kv_len[at.b];
    }
}

__device__ cursor seek(const params &p, long long x)
{
    const int heads = p.a.map.n_kv_heads;
    int lo = 0, hi = p.a.n - 1;
    while (lo < hi) { /* the last request that begins at x or before */
        const int mid = (lo + hi + 1) / 2;
        if ((long long)p.d.pages_before[mid] * heads <= x)
            lo = mid;
        else
            hi = mid - 1;
    }
    cursor at = {lo, 0, 0, 0, 0};
    begin_request(p, at);
    const int y = (int)(x - (long long)p.d.pages_before[lo] * heads);
    at.g = y / at.pages;
    at.page = y % at.pages;
    return at;
}

__device__ __forceinline__ void advance(const params &p, cursor &at)
{
    if (++at.page < at.pages)
        return;
    at.page = 0;
    if (++at.g < p.a.map.n_kv_heads)
        return;
    at.g = 0;
    at.b++;
    begin_request(p, at);
}

__device__ __forceinline__ long long first_of(const params &p, long long warp, long long warps)
{
    return (long long)p.d.pages_before[p.a.n] * p.a.map.n_kv_heads * warp / warps;
}

/* Codes and scales of a page into a stage; of a page that has none, nothing. */
__device__ __forceinline__ void copy_page(const params &p, const cursor &at, uint32_t stage, int lane)
{
    const int first = KVD_PAGE_TOKENS * at.page;
    if (first < max(keys_coded(p.a, at.m - 1), values_coded(p.a, at.m - 1))) {
        const char *const from = in_codes(p.a, page_number(p.a, at.b, at.page), at.g);
        const int bytes = kvd_packed_parts_of(&p.a.form, p.a.map.d_qk[at.g], p.a.map.d_v[at.g]).v_list;
        for (int i = 16 * lane; i < bytes; i += 512)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(stage + (uint32_t)i), "l"(from + i)
                         : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* ---- a page --------------------------------------------------------------------------------------------- */

/* Of head lane / 4 the largest score, in powers of two, and this lane's share of the sum; O^T: dims 16 u + lane / 4 (+ 8) of heads 2 (lane % 4) (+ 1). */
struct state {
    float max, sum, o[8][4];
};

/* Rows of Q as A operand: float16 over `unit`, a power of two. Rows from the group's size on are zero. */
struct queries {
    uint32_t half[8][2];
    float unit;
};

__device__ __forceinline__ const uint16_t *query_of(const params &p, int b, int g, int lane)
{
    const kvd_attn_map &map = p.a.map;
    return static_cast<const uint16_t *>(p.d.q) + (size_t)b * (size_t)map.q_pitch +
           map.q_offset[g * map.group] + lane / 4 * map.d_qk[g] + lane % 4 * 2;
}

__device__ void load_queries(const params &p, int b, int g, int lane, queries &q)
{
    const uint16_t *const from = query_of(p, b, g, lane);
    const int units = p.a.map.d_qk[g] / 16;
    const bool there = lane / 4 < p.a.map.group;
    float most = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        q.half[i / 2][i % 2] =
            there && i / 2 < units ? *reinterpret_cast<const uint32_t *>(from + i / 2 * 16 + i % 2 * 8) : 0;
        most = fmaxf(most,
                     fmaxf(fabsf(bf16_of(q.half[i / 2][i % 2], 0)), fabsf(bf16_of(q.half[i / 2][i % 2], 1))));
    }
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const uint32_t power = max(__float_as_uint(most) & 0x7f800000u, 0x20000000u);
    const float over = __uint_as_float(0x7f000000u - power);
    q.unit = __uint_as_float(power);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        uint32_t &w = q.half[i / 2][i % 2];
        w = pack<false>(bf16_of(w, 0) * over, bf16_of(w, 1) * over);
    }
}

/* s code + zero of two codes. */
__device__ __forceinline__ uint32_t restored(uint32_t pair, uint32_t scale, uint32_t zero)
{
    const uint32_t whole = pair | 0x64006400u, base = 0x64006400u; /* 1024 + code */
    const __half2 code =
        __hsub2(*reinterpret_cast<const __half2 *>(&whole), *reinterpret_cast<const __half2 *>(&base));
    const __half2 x =
        __hfma2(code, *reinterpret_cast<const __half2 *>(&scale), *reinterpret_cast<const __half2 *>(&zero));
    return *reinterpret_cast<const uint32_t *>(&x);
}

template <int B> __device__ __forceinline__ void pairs_of(const char *words, uint32_t (&pair)[16])
{
    uint32_t w[B];
    if constexpr (B % 4 == 0) {
#pragma unroll
        for (int i = 0; i < B; i += 4) {
            const uint4 v = *reinterpret_cast<const uint4 *>(words + 4 * i);
            w[i] = v.x, w[i + 1] = v.y, w[i + 2] = v.z, w[i + 3] = v.w;
        }
    } else if constexpr (B == 2) {
        const uint2 v = *reinterpret_cast<const uint2 *>(words);
        w[0] = v.x, w[1] = v.y;
    } else {
#pragma unroll
        for (int i = 0; i < B; i++)
            w[i] = *reinterpret_cast<const uint32_t *>(words + 4 * i);
    }
    load_pairs(w, B, pair);
}

/* S of all tokens of the page, in powers of two, from codes. */
template <int B>
__device__ __forceinline__ void scores(const params &p, const char *stage, int k_side, int d,
                                       const queries &q, float scale, float (&s)[8][2], int lane)
{
    const int c = lane % 4, groups = p.a.form.k_group / 8;
    float sum[8][4] = {};
#pragma unroll
    for (int u = 0; u < 8; u++) {
        if (16 * u >= d)
            break;
        uint32_t pair[16];
        pairs_of<B>(stage + 4 * kvd_packed_words(B, u, lane), pair);
        const uint32_t a[4] = {q.half[u][0], 0, q.half[u][1], 0};
        uint4 side = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (j == 0 || (j % 2 == 0 && groups == 2) || (j == 4 && groups == 4))
                side = *reinterpret_cast<const uint4 *>(stage + k_side + 64 * (j / groups * (d / 16) + u) +
                                                        16 * c);
            mma<false>(sum[j], a, restored(pair[2 * j], side.x, side.z),
                       restored(pair[2 * j + 1], side.y, side.w));
        }
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        s[j][0] = sum[j][0] * scale;
        s[j][1] = sum[j][1] * scale;
    }
}

/* The same of groups of 8 tokens from `coded` to `left`, from rows of the ring. */
__device__ void ring_scores(const params &p, const uint16_t *ring, const cursor &at, int coded, int left,
                            float (&s)[8][2], int lane)
{
    const int d = p.a.map.d_qk[at.g];
    const uint16_t *const from = query_of(p, at.b, at.g, lane), *const rows =
                                                                    ring + lane / 4 * 8 + lane % 4 * 2;
    const bool there = lane / 4 < p.a.map.group;
    uint32_t q[8][2];
#pragma unroll
    for (int i = 0; i < 16; i++)
        q[i / 2][i % 2] =
            there && i / 2 * 16 < d ? *reinterpret_cast<const uint32_t *>(from + i / 2 * 16 + i % 2 * 8) : 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (8 * j < coded || 8 * j >= left)
            continue;
        float sum[4] = {};
#pragma unroll
        for (int u = 0; u < 8; u++) {
            if (16 * u >= d)
                break;
            const uint32_t a[4] = {q[u][0], 0, q[u][1], 0};
            mma<true>(sum, a, *reinterpret_cast<const uint32_t *>(rows + j * 8 * d + 128 * u),
                      *reinterpret_cast<const uint32_t *>(rows + j * 8 * d + 128 * u + 64));
        }
        s[j][0] = sum[0] * p.scale_log2;
        s[j][1] = sum[1] * p.scale_log2;
    }
}

/* Scores become what exp2 makes of them over the running maximum. */
__device__ __forceinline__ void soften(state &st, float (&s)[8][2], int lane)
{
    float top = fmaxf(s[0][0], s[0][1]);
#pragma unroll
    for (int j = 1; j < 8; j++)
        top = fmaxf(top, fmaxf(s[j][0], s[j][1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    if (__any_sync(~0u, !(top - st.max <= LAZY))) {
        const float most = fmaxf(st.max, top), shrink = exp2f(st.max - most);
        st.max = most;
        st.sum *= shrink;
        /* O^T has heads in columns: their factors lie in lanes 4 * head. */
        const float f0 = __shfl_sync(~0u, shrink, lane % 4 * 8),
                    f1 = __shfl_sync(~0u, shrink, lane % 4 * 8 + 4);
#pragma unroll
        for (int u = 0; u < 8; u++) {
            st.o[u][0] *= f0;
            st.o[u][1] *= f1;
            st.o[u][2] *= f0;
            st.o[u][3] *= f1;
        }
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            s[j][e] = exp2f(s[j][e] - st.max);
            st.sum += s[j][e];
        }
}

/* Tokens from .. to - 1 of the page as B operand, the others 0. */
template <bool BF>
__device__ __forceinline__ void probabilities(const float (&s)[8][2], int from, int to, uint32_t (&packed)[8],
                                              int lane)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int t = 8 * j + lane % 4 * 2;
        packed[j] = pack<BF>(t >= from && t < to ? s[j][0] : 0, t + 1 >= from && t + 1 < to ? s[j][1] : 0);
    }
}

template <int B>
__device__ __forceinline__ void values(const params &p, const char *stage, const kvd_packed_parts &parts,
                                       int d, const uint32_t (&prob)[8], state &st, int lane)
{
    const int c = lane % 4, per_group = p.a.form.v_group / 16;
#pragma unroll
    for (int u = 0; u < 8; u++) {
        if (16 * u >= d)
            break;
        uint32_t pair[16];
        pairs_of<B>(stage + parts.v + 4 * kvd_packed_words(B, u, lane), pair);
        const char *const scales = stage + parts.v_side + u / per_group * 256 + 16 * c;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint4 side = *reinterpret_cast<const uint4 *>(scales + 64 * k);
            const uint32_t a[4] = {
                restored(pair[4 * k], side.x, side.z), restored(pair[4 * k + 1], side.x, side.z),
                restored(pair[4 * k + 2], side.y, side.w), restored(pair[4 * k + 3], side.y, side.w)};
            mma<false>(st.o[u], a, prob[2 * k], prob[2 * k + 1]);
        }
    }
}

__device__ void ring_values(const uint16_t *ring, int d, int left, const uint32_t (&prob)[8], state &st,
                            int lane)
{
    const uint16_t *const rows = ring + lane / 4 * 8 + lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (16 * k >= left)
            break;
#pragma unroll
        for (int u = 0; u < 8; u++) {
            if (16 * u >= d)
                break;
            uint32_t a[4];
#pragma unroll
            for (int r = 0; r < 4; r++) { /* rows of a group that has no token are anything */
                const bool there = 16 * k + 8 * (r / 2) < left;
                a[r] = exchanged(there ? *reinterpret_cast<const uint32_t *>(rows + (2 * k + r / 2) * 8 * d +
                                                                             (2 * u + r % 2) * 64)
                                       : 0);
            }
            mma<true>(st.o[u], a, prob[2 * k], prob[2 * k + 1]);
        }
    }
}

template <int B>
__device__ __forceinline__ void attend_page(const params &p, const cursor &at, const char *stage,
                                            const queries &q, state &st, int lane)
{
    const int d_qk = p.a.map.d_qk[at.g], d_v = p.a.map.d_v[at.g], first = KVD_PAGE_TOKENS * at.page;
    const int left = min(at.m - first, (int)KVD_PAGE_TOKENS), keys = keys_coded(p.a, at.m - 1) - first,
              coded = values_coded(p.a, at.m - 1) - first;
    const kvd_packed_parts parts = kvd_packed_parts_of(&p.a.form, d_qk, d_v);
    const uint16_t *const ring = in_ring(p.a, at.b, at.page, at.g);
    float s[8][2];
    if (keys > 0)
        scores<B>(p, stage, parts.k_side, d_qk, q, p.scale_log2 * q.unit, s, lane);
    if (keys < left)
        ring_scores(p, ring, at, keys, left, s, lane);
    if (left < KVD_PAGE_TOKENS)
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                s[j][e] = 8 * j + lane % 4 * 2 + e < left ? s[j][e] : -INFINITY;
    soften(st, s, lane);
    uint32_t prob[8];
    if (coded > 0) {
        probabilities<false>(s, 0, coded, prob, lane);
        values<B>(p, stage, parts, d_v, prob, st, lane);
    }
    if (coded < left) {
        probabilities<true>(s, coded, left, prob, lane);
        ring_values(ring + KVD_PAGE_TOKENS * d_qk, d_v, left, prob, st, lane);
    }
}

/* ---- results -------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void store(const params &p, int b, int g, int row, int dim, float x)
{
    const kvd_attn_map &map = p.a.map;
    static_cast<__nv_bfloat16 *>(
        p.d.o)[(size_t)b * (size_t)map.o_pitch + map.o_offset[g * map.group] + row * map.d_v[g] + dim] =
        __float2bfloat16_rn(x);
}

/* Whole results go out; of a part the maxima, sums and O [group][KVD_WIDTH_MAX] into its slot. */
__device__ void put_result(const params &p, const cursor &at, const state &st, float *slot, int lane)
{
    const int group = p.a.map.group, d = p.a.map.d_v[at.g], column = lane % 4 * 2;
    float sum = st.sum;
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const float over[2] = {1 / __shfl_sync(~0u, sum, lane % 4 * 8),
                           1 / __shfl_sync(~0u, sum, lane % 4 * 8 + 4)};
    if (slot && lane % 4 == 0 && lane / 4 < group) {
        slot[lane / 4 * 2] = st.max;
        slot[lane / 4 * 2 + 1] = sum;
    }
#pragma unroll
    for (int u = 0; u < 8; u++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = column + i % 2, dim = 16 * u + lane / 4 + i / 2 * 8;
            if (row >= group || dim >= d)
                continue;
            if (slot)
                slot[2 * HEADS + row * KVD_WIDTH_MAX + dim] = st.o[u][i];
            else
                store(p, at.b, at.g, row, dim, st.o[u][i] * over[i % 2]);
        }
}

/* ---- kernels -------------------------------------------------------------------------------------------- */

template <int B>
__global__ void __launch_bounds__(32 * WARPS, 1) decode_kernel(const __grid_constant__ params p)
{
    extern __shared__ __align__(128) char smem[];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const long long me = (long long)blockIdx.x * p.warps + warp, warps = (long long)gridDim.x * p.warps;
    const long long from = first_of(p, me, warps), to = first_of(p, me + 1, warps);
    if (from >= to)
        return;
    char *const stages = smem + (size_t)warp * (size_t)(p.stages * p.stage_bytes);
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(stages);
    cursor at = seek(p, from), ahead = at;
    long long copied = from;
    for (int i = 0; i + 1 < p.stages; i++, copied++) {
        if (copied < to) {
            copy_page(p, ahead, address + (uint32_t)(i * p.stage_bytes), lane);
            advance(p, ahead);
        } else {
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
    }
    queries q;
    state st;
    bool begins = true;
    int start = at.page, stage = 0, next = p.stages - 1;
    for (long long x = from; x < to; x++) {
        if (copied < to) {
            copy_page(p, ahead, address + (uint32_t)(next * p.stage_bytes), lane);
            advance(p, ahead);
            copied++;
        } else {
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
        if (begins) {
            load_queries(p, at.b, at.g, lane, q);
            st.max = -INFINITY;
            st.sum = 0;
#pragma unroll
            for (int u = 0; u < 8; u++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    st.o[u][i] = 0;
            start = at.page;
            begins = false;
        }
        if (p.stages == 2)
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        else if (p.stages == 3)
            asm volatile("cp.async.wait_group 2;" ::: "memory");
        else
            asm volatile("cp.async.wait_group 3;" ::: "memory");
        __syncwarp();
        attend_page<B>(p, at, stages + stage * p.stage_bytes, q, st, lane);
        __syncwarp(); /* all have read the stage */
        if (at.page + 1 == at.pages || x + 1 == to) {
            const bool whole = start == 0 && at.page + 1 == at.pages;
            put_result(p, at, st,
                       whole ? NULL : p.d.partial + (size_t)(2 * me + (start == 0)) * (size_t)p.slot_floats,
                       lane);
            begins = true;
        }
        advance(p, at);
        stage = stage + 1 == p.stages ? 0 : stage + 1;
        next = next + 1 == p.stages ? 0 : next + 1;
    }
}

/* The parts of a head of a request that several warps did; each warp here takes every eighth of them. */
__global__ void __launch_bounds__(32 * WARPS) merge_kernel(const __grid_constant__ params p, long long warps)
{
    __shared__ float o[WARPS][HEADS][KVD_WIDTH_MAX];
    __shared__ float2 ml[WARPS][HEADS];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, group = p.a.map.group, warp = (int)threadIdx.x / 32,
              lane = (int)threadIdx.x % 32;
    const int pages = p.d.pages_before[b + 1] - p.d.pages_before[b];
    const long long all = (long long)p.d.pages_before[p.a.n] * p.a.map.n_kv_heads;
    const long long x0 = (long long)p.d.pages_before[b] * p.a.map.n_kv_heads + (long long)g * pages;
    const long long first = ((x0 + 1) * warps - 1) / all, last = ((x0 + pages) * warps - 1) / all;
    if (first == last)
        return;
    float max[HEADS], sum[HEADS];
    float4 acc[HEADS];
#pragma unroll
    for (int row = 0; row < HEADS; row++) {
        max[row] = -INFINITY;
        sum[row] = 0;
        acc[row] = make_float4(0, 0, 0, 0);
    }
    for (long long w = first + warp; w <= last; w += WARPS) {
        if (first_of(p, w, warps) == first_of(p, w + 1, warps))
            continue;
        const float *const slot = p.d.partial + (size_t)(2 * w + (w == first)) * (size_t)p.slot_floats;
#pragma unroll
        for (int row = 0; row < HEADS; row++) {
            if (row >= group)
                break;
            const float2 part = *reinterpret_cast<const float2 *>(slot + 2 * row);
            const float4 x =
                *reinterpret_cast<const float4 *>(slot + 2 * HEADS + row * KVD_WIDTH_MAX + 4 * lane);
            const float most = fmaxf(max[row], part.x), f = exp2f(max[row] - most), h = exp2f(part.x - most);
            max[row] = most;
            sum[row] = sum[row] * f + part.y * h;
            acc[row].x = acc[row].x * f + x.x * h;
            acc[row].y = acc[row].y * f + x.y * h;
            acc[row].z = acc[row].z * f + x.z * h;
            acc[row].w = acc[row].w * f + x.w * h;
        }
    }
#pragma unroll
    for (int row = 0; row < HEADS; row++) {
        *reinterpret_cast<float4 *>(&o[warp][row][4 * lane]) = acc[row];
        if (lane == 0)
            ml[warp][row] = make_float2(max[row], sum[row]);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < group * p.a.map.d_v[g]; i += 32 * WARPS) {
        const int row = i / p.a.map.d_v[g], dim = i % p.a.map.d_v[g];
        float most = -INFINITY, all_sum = 0, x = 0;
        for (int w = 0; w < WARPS; w++)
            most = fmaxf(most, ml[w][row].x);
        for (int w = 0; w < WARPS; w++) {
            const float f = exp2f(ml[w][row].x - most);
            all_sum += ml[w][row].y * f;
            x += o[w][row][dim] * f;
        }
        store(p, b, g, row, dim, x / all_sum);
    }
}

/* One CTA: a sum over requests, 1024 at a time. */
__global__ void __launch_bounds__(1024) plan_kernel(const int32_t *kv_len, int n, int32_t *before)
{
    __shared__ int32_t warps[32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int carried = 0;
    if (threadIdx.x == 0)
        before[0] = 0;
    for (int i0 = 0; i0 < n; i0 += 1024) {
        const int i = i0 + (int)threadIdx.x;
        int x = i < n ? (kv_len[i] + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS : 0;
        for (int k = 1; k < 32; k *= 2) {
            const int y = __shfl_up_sync(~0u, x, k);
            x += lane >= k ? y : 0;
        }
        if (lane == 31)
            warps[warp] = x;
        __syncthreads();
        int all = 0;
        for (int w = 0; w < 32; w++) {
            x += w < warp ? warps[w] : 0;
            all += warps[w];
        }
        if (i < n)
            before[i + 1] = carried + x;
        carried += all;
        __syncthreads();
    }
}

/* ---- host ----------------------------------------------------------------------------------------------- */

template <int B> cudaError_t launch(const params *p, size_t bytes, cudaStream_t stream)
{
    const cudaError_t e =
        cudaFuncSetAttribute(decode_kernel<B>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e != cudaSuccess)
        return e;
    decode_kernel<B><<<(unsigned)p->d.n_ctas, 32 * (unsigned)p->warps, bytes, stream>>>(*p);
    return cudaGetLastError();
}

int slot_floats(void)
{
    return HEADS * (2 + KVD_WIDTH_MAX);
}

int widest_page(const kvd_packed_args *a)
{
    int bytes = 0;
    for (int g = 0; g < a->map.n_kv_heads; g++)
        bytes = max(bytes, (int)kvd_packed_parts_of(&a->form, a->map.d_qk[g], a->map.d_v[g]).v_list);
    return bytes;
}

/* Warps, and stages of each, for which there is shared memory; two stages at least. False: not even for one warp. */
bool lay_out(const kvd_packed_args *a, params *p)
{
    int device, most;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
        return false;
    p->stage_bytes = widest_page(a);
    p->warps = min(most / (2 * p->stage_bytes), (int)WARPS);
    p->stages = p->warps ? min(most / (p->warps * p->stage_bytes), (int)STAGES) : 0;
    return p->warps > 0;
}

} // namespace

bool kvd_packed_decodes(const kvd_packed_args *a)
{
    params p;
    const int b = a->form.bits;
    return !a->level && (b == 2 || b == 3 || b == 4 || b == 8) && a->map.group <= HEADS && lay_out(a, &p);
}

size_t kvd_packed_decode_bytes(const kvd_attn_map *, int n_ctas)
{
    return (size_t)n_ctas * WARPS * 2 * (size_t)slot_floats() * sizeof(float);
}

cudaError_t kvd_packed_decode_plan(const int32_t *kv_len, int32_t n, int32_t *pages_before,
                                   cudaStream_t stream)
{
    plan_kernel<<<1, 1024, 0, stream>>>(kv_len, n, pages_before);
    return cudaGetLastError();
}

cudaError_t kvd_packed_decode(const kvd_packed_args *a, const kvd_packed_decode_args *d, cudaStream_t stream)
{
    if (!kvd_packed_decodes(a) || a->n < 1 || a->n > 65535 || d->n_ctas < 1)
        return cudaErrorInvalidValue;
    params p = {*a, *d, a->map.scale * 1.4426950408889634f, 0, 0, 0, slot_floats()};
    if (!lay_out(a, &p))
        return cudaErrorInvalidConfiguration;
    const size_t bytes = (size_t)p.warps * (size_t)p.stages * (size_t)p.stage_bytes;
    const cudaError_t e = a->form.bits == 2   ? launch<2>(&p, bytes, stream)
                          : a->form.bits == 3 ? launch<3>(&p, bytes, stream)
                          : a->form.bits == 4 ? launch<4>(&p, bytes, stream)
                                              : launch<8>(&p, bytes, stream);
    if (e != cudaSuccess)
        return e;
    const dim3 grid((unsigned)a->map.n_kv_heads, (unsigned)a->n);
    merge_kernel<<<grid, 32 * WARPS, 0, stream>>>(p, (long long)d->n_ctas * p.warps);
    return cudaGetLastError();
}
