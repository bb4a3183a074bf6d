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
#include "serving/cuda/packed_decode.h"
#include "serving/cuda/packed_words.cuh"

namespace
{

enum {
    WARPS = 8,
    STAGES = 4, /* at most                               */
    HEADS = 8,  /* of a group at most                    */
    LAZY = 8    /* log2 by which P may pass 1 before rescaling */
};

struct params {
    kvd_packed_args a;
    kvd_packed_decode_args d;
    kvd_packed_parts parts; /* all heads have one width */
    float scale_log2;
    int32_t warps, stages, slot_floats;
    int32_t k_shift, v_shift; /* log2 of groups of 8 tokens, and of units, that share scales */
};

/* ---- runs of pages -------------------------------------------------------------------------------------- */

/* A page in the list of all; `pages` of its request of m tokens, of which so many keys and values are coded. Page numbers of 32 pages, from a multiple of 32 on, one in a lane. */
struct cursor {
    int b, g, page, pages, m, keys, values, number;
};

__device__ __forceinline__ void load_numbers(const params &p, cursor &at, int lane)
{
    const int i = at.page / 32 * 32 + lane;
    at.number = i < at.pages ? page_number(p.a, at.b, i) : 0;
}

__device__ __forceinline__ void begin_request(const params &p, cursor &at)
{
    at.pages = p.d.pages_before[at.b + 1] - p.d.pages_before[at.b];
    at.m = p.a.kv_len[at.b];
    at.keys = keys_coded(p.a, at.m - 1);
    at.values = values_coded(p.a, at.m - 1);
}

__device__ cursor seek(const params &p, int x, int lane)
{
    const int heads = p.a.map.n_kv_heads;
    int lo = 0, hi = p.a.n - 1;
    while (lo < hi) { /* the last request that begins at x or before */
        const int mid = (lo + hi + 1) / 2;
        if (p.d.pages_before[mid] * heads <= x)
            lo = mid;
        else
            hi = mid - 1;
    }
    cursor at = {lo, 0, 0, 0, 0, 0, 0, 0};
    begin_request(p, at);
    const int y = x - p.d.pages_before[lo] * heads;
    at.g = y / at.pages;
    at.page = y % at.pages;
    load_numbers(p, at, lane);
    return at;
}

__device__ __forceinline__ void advance(const params &p, cursor &at, int lane)
{
    if (++at.page == at.pages) {
        at.page = 0;
        if (++at.g == p.a.map.n_kv_heads) {
            at.g = 0;
            if (++at.b == p.a.n)
                return;
            begin_request(p, at);
        }
        load_numbers(p, at, lane);
    } else if (at.page % 32 == 0) {
        load_numbers(p, at, lane);
    }
}

/* Codes and scales of a page into a stage; of a page that has none, nothing. */
__device__ __forceinline__ void copy_page(const params &p, const cursor &at, uint32_t stage, int lane)
{
    const int first = KVD_PAGE_TOKENS * at.page, page = __shfl_sync(~0u, at.number, at.page % 32);
    if (first < max(at.keys, at.values)) {
        const char *const from = in_codes(p.a, page, at.g) + 16 * lane;
        stage += 16 * (uint32_t)lane;
#pragma unroll 4
        for (int i = 0; i < p.parts.v_list; i += 512)
            if (i + 16 * lane < p.parts.v_list)
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(stage + (uint32_t)i),
                             "l"(from + i)
                             : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* ---- operands ------------------------------------------------------------------------------------------- */

/* As mma.cuh's, which the compiler may move. */
template <bool BF>
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if (BF)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ __half2 as_halves(uint32_t w)
{
    return *reinterpret_cast<const __half2 *>(&w);
}

__device__ __forceinline__ uint32_t f16_pair(float low, float high)
{
    const __half2 v = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&v);
}

/*
 * Pairs of a word of a plane of W bits as float16 times `weight`. Bits 0 .. 7 of each half are put below those of 1024, where field r counts
 * 2^(W r), which one multiplication takes back with the 1024; every number on the way is exact.
 */
template <int W>
__device__ __forceinline__ void plane_of(uint32_t word, float weight, __half2 (&code)[16 / W])
{
#pragma unroll
    for (int r = 0; r < 16 / W; r++) {
        const int shift = W * r % 8;
        const uint32_t bits = (W * r < 8 ? word : word >> 8) & ((1u << W) - 1) * 0x10001u << shift;
        const float unit = weight / (float)(1 << shift);
        code[r] =
            __hfma2(as_halves(bits | 0x64006400u), __float2half2_rn(unit), __float2half2_rn(-1024 * unit));
    }
}

/* A lane's codes as float16: numbers 2 i and 2 i + 1. */
template <int B> __device__ __forceinline__ void codes_of(const char *words, __half2 (&code)[16])
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
    if constexpr (B == 3) {
        __half2 high[16];
        plane_of<1>(w[2], 4, high);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            __half2 low[8];
            plane_of<2>(w[i], 1, low);
#pragma unroll
            for (int r = 0; r < 8; r++)
                code[8 * i + r] = __hadd2(low[r], high[8 * i + r]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < B; i++) {
            __half2 some[16 / B];
            plane_of<B>(w[i], 1, some);
#pragma unroll
            for (int r = 0; r < 16 / B; r++)
                code[16 / B * i + r] = some[r];
        }
    }
}

/* s code + zero. */
__device__ __forceinline__ uint32_t restored(__half2 code, uint32_t scale, uint32_t zero)
{
    const __half2 x = __hfma2(code, as_halves(scale), as_halves(zero));
    return *reinterpret_cast<const uint32_t *>(&x);
}

/* Rows of Q as A operand: float16 over `unit`, a power of two. Rows from the group's size on are zero. */
template <int UNITS> struct queries {
    uint32_t half[UNITS][2];
    float unit;
};

__device__ __forceinline__ const uint16_t *query_of(const params &p, int b, int g, int lane)
{
    const kvd_attn_map &map = p.a.map;
    return static_cast<const uint16_t *>(p.d.q) + (size_t)b * (size_t)map.q_pitch +
           map.q_offset[g * map.group] + lane / 4 * map.d_qk[g] + lane % 4 * 2;
}

template <int UNITS> __device__ void load_queries(const params &p, int b, int g, int lane, queries<UNITS> &q)
{
    const uint16_t *const from = query_of(p, b, g, lane);
    const bool there = lane / 4 < p.a.map.group;
    float most = 0;
#pragma unroll
    for (int i = 0; i < 2 * UNITS; i++) {
        uint32_t &w = q.half[i / 2][i % 2];
        w = there ? *reinterpret_cast<const uint32_t *>(from + 8 * i) : 0;
        most = fmaxf(most, fmaxf(fabsf(bf16_of(w, 0)), fabsf(bf16_of(w, 1))));
    }
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const uint32_t power = max(__float_as_uint(most) & 0x7f800000u, 0x20000000u);
    const float over = __uint_as_float(0x7f000000u - power);
    q.unit = __uint_as_float(power);
#pragma unroll
    for (int i = 0; i < 2 * UNITS; i++) {
        uint32_t &w = q.half[i / 2][i % 2];
        w = f16_pair(bf16_of(w, 0) * over, bf16_of(w, 1) * over);
    }
}

/* ---- a page --------------------------------------------------------------------------------------------- */

/* Of head lane / 4 the largest score, in powers of two, and this lane's share of the sum; O^T: dims 16 u + lane / 4 (+ 8) of heads
 * 2 (lane % 4) (+ 1). */
template <int UNITS> struct state {
    float max, sum, o[UNITS][4];
};

/* S of all tokens of the page, in powers of two, from codes. */
template <int B, int UNITS>
__device__ __forceinline__ void scores(const params &p, const char *stage, const queries<UNITS> &q,
                                       float (&s)[8][2], int lane)
{
    float sum[8][4] = {};
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        __half2 code[16];
        codes_of<B>(stage + 4 * kvd_packed_words(B, u, lane), code);
        const uint32_t a[4] = {q.half[u][0], 0, q.half[u][1], 0};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 side = *reinterpret_cast<const uint4 *>(
                stage + p.parts.k_side + 64 * ((2 * i >> p.k_shift) * UNITS + u) + lane % 4 * 16);
#pragma unroll
            for (int j = 2 * i; j < 2 * i + 2; j++)
                multiply<false>(sum[j], a, restored(code[2 * j], side.x, side.z),
                                restored(code[2 * j + 1], side.y, side.w));
        }
    }
    const float scale = p.scale_log2 * q.unit;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        s[j][0] = sum[j][0] * scale;
        s[j][1] = sum[j][1] * scale;
    }
}

/* The same of groups of 8 tokens from `coded` to `left`, from rows of the ring. */
template <int UNITS>
__device__ __forceinline__ void ring_scores(const params &p, const uint16_t *ring, int b, int g, int coded,
                                            int left, float (&s)[8][2], int lane)
{
    const uint16_t *const from = query_of(p, b, g, lane), *const rows = ring + lane / 4 * 8 + lane % 4 * 2;
    const bool there = lane / 4 < p.a.map.group;
    uint32_t q[UNITS][2];
#pragma unroll
    for (int i = 0; i < 2 * UNITS; i++)
        q[i / 2][i % 2] = there ? *reinterpret_cast<const uint32_t *>(from + 8 * i) : 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (8 * j < coded || 8 * j >= left)
            continue;
        float sum[4] = {};
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const uint32_t a[4] = {q[u][0], 0, q[u][1], 0};
            const uint16_t *const k = rows + j * 128 * UNITS + 128 * u;
            multiply<true>(sum, a, *reinterpret_cast<const uint32_t *>(k),
                           *reinterpret_cast<const uint32_t *>(k + 64));
        }
        s[j][0] = sum[0] * p.scale_log2;
        s[j][1] = sum[1] * p.scale_log2;
    }
}

/* Scores become what exp2 makes of them over the running maximum. */
template <int UNITS> __device__ __forceinline__ void soften(state<UNITS> &st, float (&s)[8][2], int lane)
{
    float top = fmaxf(s[0][0], s[0][1]);
#pragma unroll
    for (int j = 1; j < 8; j++)
        top = fmaxf(top, fmaxf(s[j][0], s[j][1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    if (__any_sync(~0u, !(top - st.max <= LAZY))) {
        const float most = fmaxf(st.max, top), shrink = power_of_two(st.max - most);
        st.max = most;
        st.sum *= shrink;
        /* O^T has heads in columns: their factors lie in lanes 4 * head. */
        const float f0 = __shfl_sync(~0u, shrink, lane % 4 * 8),
                    f1 = __shfl_sync(~0u, shrink, lane % 4 * 8 + 4);
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
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
            s[j][e] = power_of_two(s[j][e] - st.max);
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
        const float x = t >= from && t < to ? s[j][0] : 0, y = t + 1 >= from && t + 1 < to ? s[j][1] : 0;
        packed[j] = BF ? bf16_pair(x, y) : f16_pair(x, y);
    }
}

template <int B, int UNITS>
__device__ __forceinline__ void values(const params &p, const char *stage, const uint32_t (&prob)[8],
                                       state<UNITS> &st, int lane)
{
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        __half2 code[16];
        codes_of<B>(stage + p.parts.v + 4 * kvd_packed_words(B, u, lane), code);
        const char *const scales = stage + p.parts.v_side + (u >> p.v_shift) * 256 + lane % 4 * 16;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint4 side = *reinterpret_cast<const uint4 *>(scales + 64 * k);
            const uint32_t a[4] = {
                restored(code[4 * k], side.x, side.z), restored(code[4 * k + 1], side.x, side.z),
                restored(code[4 * k + 2], side.y, side.w), restored(code[4 * k + 3], side.y, side.w)};
            multiply<false>(st.o[u], a, prob[2 * k], prob[2 * k + 1]);
        }
    }
}

template <int UNITS>
__device__ __forceinline__ void ring_values(const uint16_t *ring, int left, const uint32_t (&prob)[8],
                                            state<UNITS> &st, int lane)
{
    const uint16_t *const rows = ring + lane / 4 * 8 + lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (16 * k >= left)
            break;
        const bool second = 16 * k + 8 < left; /* rows of a group that has no token are anything */
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            uint32_t a[4];
#pragma unroll
            for (int r = 0; r < 4; r++)
                a[r] = exchanged(r < 2 || second
                                     ? *reinterpret_cast<const uint32_t *>(
                                           rows + (2 * k + r / 2) * 128 * UNITS + (2 * u + r % 2) * 64)
                                     : 0);
            multiply<true>(st.o[u], a, prob[2 * k], prob[2 * k + 1]);
        }
    }
}

template <int B, int UNITS>
__device__ __forceinline__ void attend_page(const params &p, const cursor &at, const char *stage,
                                            const queries<UNITS> &q, state<UNITS> &st, int lane)
{
    const int first = KVD_PAGE_TOKENS * at.page, left = min(at.m - first, (int)KVD_PAGE_TOKENS),
              keys = at.keys - first, coded = at.values - first;
    float s[8][2];
    if (keys > 0)
        scores<B>(p, stage, q, s, lane);
    if (keys < left)
        ring_scores<UNITS>(p, in_ring(p.a, at.b, at.page, at.g), at.b, at.g, keys, left, s, lane);
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
        values<B>(p, stage, prob, st, lane);
    }
    if (coded < left) {
        probabilities<true>(s, coded, left, prob, lane);
        ring_values(in_ring(p.a, at.b, at.page, at.g) + KVD_PAGE_TOKENS * 16 * UNITS, left, prob, st, lane);
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
template <int UNITS>
__device__ void put_result(const params &p, const cursor &at, const state<UNITS> &st, float *slot, int lane)
{
    const int group = p.a.map.group, column = lane % 4 * 2;
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
    for (int u = 0; u < UNITS; u++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = column + i % 2, dim = 16 * u + lane / 4 + i / 2 * 8;
            if (row >= group)
                continue;
            if (slot)
                slot[2 * HEADS + row * KVD_WIDTH_MAX + dim] = st.o[u][i];
            else
                store(p, at.b, at.g, row, dim, st.o[u][i] * over[i % 2]);
        }
}

/* ---- kernels -------------------------------------------------------------------------------------------- */

template <int B, int UNITS>
__global__ void __launch_bounds__(32 * WARPS, 1) decode_kernel(const __grid_constant__ params p)
{
    extern __shared__ __align__(128) char smem[];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32,
              me = (int)blockIdx.x * p.warps + warp;
    const int each = p.d.pages_before[p.a.n + 1], from = me * each,
              to = min(from + each, p.d.pages_before[p.a.n] * p.a.map.n_kv_heads);
    if (from >= to)
        return;
    char *const stages = smem + warp * p.stages * p.parts.v_list;
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(stages);
    cursor at = seek(p, from, lane), ahead = at;
    int copied = from;
    for (int i = 0; i + 1 < p.stages; i++, copied++) {
        if (copied < to) {
            copy_page(p, ahead, address + (uint32_t)(i * p.parts.v_list), lane);
            advance(p, ahead, lane);
        } else {
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
    }
    queries<UNITS> q;
    state<UNITS> st;
    bool begins = true;
    int start = at.page, stage = 0, next = p.stages - 1;
#pragma unroll 1
    for (int x = from; x < to; x++, copied++) {
        if (copied < to) {
            copy_page(p, ahead, address + (uint32_t)(next * p.parts.v_list), lane);
            advance(p, ahead, lane);
        } else {
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
        if (begins) {
            load_queries(p, at.b, at.g, lane, q);
            st.max = -INFINITY;
            st.sum = 0;
#pragma unroll
            for (int u = 0; u < UNITS; u++)
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
        attend_page<B>(p, at, stages + stage * p.parts.v_list, q, st, lane);
        __syncwarp(); /* all have read the stage */
        if (at.page + 1 == at.pages || x + 1 == to) {
            const bool whole = start == 0 && at.page + 1 == at.pages;
            put_result(p, at, st,
                       whole ? NULL : p.d.partial + (size_t)(2 * me + (start == 0)) * (size_t)p.slot_floats,
                       lane);
            begins = true;
        }
        advance(p, at, lane);
        stage = stage + 1 == p.stages ? 0 : stage + 1;
        next = next + 1 == p.stages ? 0 : next + 1;
    }
}

/* The parts of a head of a request that several warps did; each warp here takes every eighth of them. */
__global__ void __launch_bounds__(32 * WARPS) merge_kernel(const __grid_constant__ params p)
{
    __shared__ float o[WARPS][HEADS][KVD_WIDTH_MAX];
    __shared__ float2 ml[WARPS][HEADS];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, group = p.a.map.group, warp = (int)threadIdx.x / 32,
              lane = (int)threadIdx.x % 32;
    const int pages = p.d.pages_before[b + 1] - p.d.pages_before[b], each = p.d.pages_before[p.a.n + 1];
    const int x0 = p.d.pages_before[b] * p.a.map.n_kv_heads + g * pages;
    const int first = x0 / each, last = (x0 + pages - 1) / each;
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
#pragma unroll 2
    for (int w = first + warp; w <= last; w += WARPS) {
        const float *const slot = p.d.partial + (size_t)(2 * w + (w == first)) * (size_t)p.slot_floats;
#pragma unroll
        for (int row = 0; row < HEADS; row++) {
            if (row >= group)
                break;
            const float2 part = *reinterpret_cast<const float2 *>(slot + 2 * row);
            const float4 x =
                *reinterpret_cast<const float4 *>(slot + 2 * HEADS + row * KVD_WIDTH_MAX + 4 * lane);
            const float most = fmaxf(max[row], part.x), f = power_of_two(max[row] - most),
                        h = power_of_two(part.x - most);
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
        float most = -INFINITY, all = 0, x = 0;
        for (int w = 0; w < WARPS; w++)
            most = fmaxf(most, ml[w][row].x);
        for (int w = 0; w < WARPS; w++) {
            const float f = power_of_two(ml[w][row].x - most);
            all += ml[w][row].y * f;
            x += o[w][row][dim] * f;
        }
        store(p, b, g, row, dim, x / all);
    }
}

/* One CTA: a sum over requests, 1024 at a time; behind it the pages of a warp. */
__global__ void __launch_bounds__(1024)
    plan_kernel(const int32_t *kv_len, int n, int heads, int warps_of_all, int32_t *before)
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
    if (threadIdx.x == 0)
        before[n + 1] = (carried * heads + warps_of_all - 1) / warps_of_all;
}

/* ---- host ----------------------------------------------------------------------------------------------- */

typedef void (*kernel)(params);

template <int UNITS> kernel of_bits(int bits)
{
    return bits == 2   ? decode_kernel<2, UNITS>
           : bits == 3 ? decode_kernel<3, UNITS>
           : bits == 4 ? decode_kernel<4, UNITS>
           : bits == 8 ? decode_kernel<8, UNITS>
                       : NULL;
}

/* NULL: there is none. */
kernel kernel_of(const kvd_packed_args *a)
{
    const int d = a->map.d_qk[0];
    for (int g = 0; g < a->map.n_kv_heads; g++)
        if (a->map.d_qk[g] != d || a->map.d_v[g] != d)
            return NULL;
    if (a->level || a->map.group > HEADS)
        return NULL;
    return d == 64 ? of_bits<4>(a->form.bits) : d == 128 ? of_bits<8>(a->form.bits) : NULL;
}

int log2_of(int x)
{
    int n = 0;
    while (x > 1 << n)
        n++;
    return n;
}

/* Warps, and stages of each, for which there is shared memory; two stages at least. False: not even for one warp. */
bool lay_out(const kvd_packed_args *a, params *p)
{
    int device, most;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
        return false;
    p->a = *a;
    p->parts = kvd_packed_parts_of(&a->form, a->map.d_qk[0], a->map.d_v[0]);
    p->scale_log2 = a->map.scale * 1.4426950408889634f;
    p->slot_floats = HEADS * (2 + KVD_WIDTH_MAX);
    p->k_shift = log2_of(a->form.k_group / 8);
    p->v_shift = log2_of(a->form.v_group / 16);
    p->warps = min(most / (2 * p->parts.v_list), (int)WARPS);
    p->stages = p->warps ? min(most / (p->warps * p->parts.v_list), (int)STAGES) : 0;
    return p->warps > 0;
}

} // namespace

bool kvd_packed_decodes(const kvd_packed_args *a)
{
    params p;
    return kernel_of(a) && lay_out(a, &p);
}

size_t kvd_packed_decode_bytes(int n_ctas)
{
    return (size_t)n_ctas * WARPS * 2 * HEADS * (2 + KVD_WIDTH_MAX) * sizeof(float);
}

cudaError_t kvd_packed_decode_plan(const kvd_packed_args *a, const kvd_packed_decode_args *d,
                                   cudaStream_t stream)
{
    params p;
    if (!kernel_of(a) || !lay_out(a, &p) || a->n < 1 || d->n_ctas < 1)
        return cudaErrorInvalidValue;
    plan_kernel<<<1, 1024, 0, stream>>>(a->kv_len, a->n, a->map.n_kv_heads, d->n_ctas * p.warps,
                                        d->pages_before);
    return cudaGetLastError();
}

cudaError_t kvd_packed_decode(const kvd_packed_args *a, const kvd_packed_decode_args *d, cudaStream_t stream)
{
    params p;
    const kernel run = kernel_of(a);
    if (!run || !lay_out(a, &p) || a->n < 1 || a->n > 65535 || d->n_ctas < 1)
        return cudaErrorInvalidValue;
    p.d = *d;
    const size_t bytes = (size_t)(p.warps * p.stages * p.parts.v_list);
    cudaError_t e = cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e != cudaSuccess)
        return e;
    run<<<(unsigned)d->n_ctas, 32 * (unsigned)p.warps, bytes, stream>>>(p);
    e = cudaGetLastError();
    if (e != cudaSuccess)
        return e;
    const dim3 grid((unsigned)a->map.n_kv_heads, (unsigned)a->n);
    merge_kernel<<<grid, 32 * WARPS, 0, stream>>>(p);
    return cudaGetLastError();
}
