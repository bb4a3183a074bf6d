/*
 * What attention of steps on codes is made of, whatever the codes are: runs of pages and their copies, products, the softmax, rows of the ring, and
 * the kernel around a page. Included by packed_decode*.cu alone.
 */
#ifndef KVD_SERVING_CUDA_PACKED_DECODE_CUH
#define KVD_SERVING_CUDA_PACKED_DECODE_CUH

#include "serving/cuda/methods/packed_decode_levels.h"
#include "serving/cuda/methods/packed_words.cuh"

namespace
{

enum {
    WARPS = 8,
    STAGES = 4, /* at most                               */
    HEADS = 8,  /* of a group at most                    */
    LAZY = 8    /* log2 by which P may pass 1 before rescaling */
};

typedef kvd_packed_decode_params packed_params;

/* ---- runs of pages -------------------------------------------------------------------------------------- */

/* A page in the list of all; `pages` of its request of m tokens, of which so many keys and values are coded. Page numbers of 32 pages, from a multiple of 32 on, one in a lane. */
struct cursor {
    int b, g, page, pages, m, keys, values, number;
};

__device__ __forceinline__ void load_numbers(const packed_params &p, cursor &at, int lane)
{
    const int i = at.page / 32 * 32 + lane;
    at.number = i < at.pages ? page_number(p.a, at.b, i) : 0;
}

__device__ __forceinline__ void begin_request(const packed_params &p, cursor &at)
{
    at.pages = p.d.pages_before[at.b + 1] - p.d.pages_before[at.b];
    at.m = p.a.kv_len[at.b];
    at.keys = keys_coded(p.a, at.m - 1);
    at.values = values_coded(p.a, at.m - 1);
}

__device__ cursor seek(const packed_params &p, int x, int lane)
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

__device__ __forceinline__ void advance(const packed_params &p, cursor &at, int lane)
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

/* `bytes` of a page from its codes on into a stage; of a page that has none, nothing. */
__device__ __forceinline__ void copy_codes(const packed_params &p, const cursor &at, uint32_t stage,
                                           int bytes, int lane)
{
    const int page = __shfl_sync(~0u, at.number, at.page % 32);
    if (KVD_PAGE_TOKENS * at.page >= max(at.keys, at.values))
        return;
    const char *const from = in_codes(p.a, page, at.g) + 16 * lane;
    stage += 16 * (uint32_t)lane;
#pragma unroll 4
    for (int i = 0; i < bytes; i += 512)
        if (i + 16 * lane < bytes)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(stage + (uint32_t)i), "l"(from + i)
                         : "memory");
}

/* ---- arithmetic ---- */

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

__device__ __forceinline__ __half2 as_halves(uint32_t w)
{
    return *reinterpret_cast<const __half2 *>(&w);
}

__device__ __forceinline__ uint32_t f16_pair(float low, float high)
{
    const __half2 v = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&v);
}

/* A power of two, over which the numbers of a head's query, `most` at most in this lane, are float16. */
__device__ __forceinline__ float unit_of(float most)
{
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    return __uint_as_float(max(__float_as_uint(most) & 0x7f800000u, 0x20000000u));
}

__device__ __forceinline__ float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ const uint16_t *query_of(const packed_params &p, int b, int g, int lane)
{
    const kvd_attn_map &map = p.a.map;
    return static_cast<const uint16_t *>(p.d.q) + (size_t)b * (size_t)map.q_pitch +
           map.q_offset[g * map.group] + lane / 4 * map.d_qk[g] + lane % 4 * 2;
}

/* Of head lane / 4 the largest score, in powers of two, and this lane's share of the sum; O^T: dims 16 u + lane / 4 (+ 8) of heads
 * 2 (lane % 4) (+ 1). */
template <int UNITS> struct state {
    float max, sum, o[UNITS][4];
};

/* S of tokens coded .. left - 1 of the page, in powers of two, from rows of the ring. */
template <int UNITS>
__device__ __forceinline__ void ring_scores(const packed_params &p, const uint16_t *ring, int b, int g,
                                            int coded, int left, float (&s)[8][2], int lane)
{
    const uint16_t *const from = query_of(p, b, g, lane), *const rows = ring + lane / 4 * 8 + lane % 4 * 2;
    const bool there = lane / 4 < p.a.map.group;
    uint32_t q[UNITS][2];
#pragma unroll
    for (int i = 0; i < 2 * UNITS; i++)
        q[i / 2][i % 2] = there ? *reinterpret_cast<const uint32_t *>(from + 8 * i) : 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (8 * j + 8 <= coded || 8 * j >= left)
            continue;
        float sum[4] = {};
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const uint32_t a[4] = {q[u][0], 0, q[u][1], 0};
            const uint16_t *const k = rows + j * 128 * UNITS + 128 * u;
            multiply<true>(sum, a, *reinterpret_cast<const uint32_t *>(k),
                           *reinterpret_cast<const uint32_t *>(k + 64));
        }
#pragma unroll
        for (int e = 0; e < 2; e++)
            s[j][e] = 8 * j + lane % 4 * 2 + e < coded ? s[j][e] : sum[e] * p.scale_log2;
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

/* What a page is read with: the parts of PAGE (below) do scores and values of its coded tokens. */
template <class PAGE>
__device__ __forceinline__ void attend_page(const packed_params &p, const cursor &at, PAGE &page,
                                            const char *stage, state<PAGE::UNITS> &st, int lane)
{
    constexpr int UNITS = PAGE::UNITS;
    const int first = KVD_PAGE_TOKENS * at.page, left = min(at.m - first, (int)KVD_PAGE_TOKENS),
              keys = at.keys - first, coded = at.values - first;
    float s[8][2];
    if (keys > 0)
        page.scores(p, at, stage, s, lane);
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
        page.values(p, at, stage, prob, st, lane);
    }
    if (coded < left) {
        probabilities<true>(s, coded, left, prob, lane);
        ring_values(in_ring(p.a, at.b, at.page, at.g) + KVD_PAGE_TOKENS * 16 * UNITS, left, prob, st, lane);
    }
}

/* ---- results -------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void store(const packed_params &p, int b, int g, int row, int dim, float x)
{
    const kvd_attn_map &map = p.a.map;
    static_cast<__nv_bfloat16 *>(
        p.d.o)[(size_t)b * (size_t)map.o_pitch + map.o_offset[g * map.group] + row * map.d_v[g] + dim] =
        __float2bfloat16_rn(x);
}

/* Whole results go out; of a part the maxima, sums and O [group][KVD_WIDTH_MAX] into its slot. */
template <int UNITS>
__device__ void put_result(const packed_params &p, const cursor &at, const state<UNITS> &st, float *slot,
                           int lane)
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

/* ---- the kernel ---- */

/*
 * PAGE has UNITS; PAGE(p, shared, scratch): memory of the CTA, filled by all its threads before anything is read, and of the warp;
 * begin: a head of a request; copy: a page's codes into a stage, as cp.async; scores and values.
 */
template <class PAGE>
__global__ void __launch_bounds__(32 * WARPS, 1) decode_kernel(const __grid_constant__ packed_params p)
{
    extern __shared__ __align__(128) char smem[];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32,
              me = (int)blockIdx.x * p.warps + warp;
    const int each = p.d.pages_before[p.a.n + 1], from = me * each,
              to = min(from + each, p.d.pages_before[p.a.n] * p.a.map.n_kv_heads);
    char *const mine = smem + p.shared_bytes + warp * (p.stages * p.stage_bytes + p.scratch_bytes);
    char *const stages = mine + p.scratch_bytes;
    PAGE page(p, smem, mine);
    if (from >= to)
        return;
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(stages);
    cursor at = seek(p, from, lane), ahead = at;
    int copied = from;
    for (int i = 0; i + 1 < p.stages; i++, copied++) {
        if (copied < to) {
            page.copy(p, ahead, address + (uint32_t)(i * p.stage_bytes), lane);
            advance(p, ahead, lane);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    state<PAGE::UNITS> st;
    bool begins = true;
    int start = at.page, stage = 0, next = p.stages - 1;
#pragma unroll 1
    for (int x = from; x < to; x++, copied++) {
        if (copied < to) {
            page.copy(p, ahead, address + (uint32_t)(next * p.stage_bytes), lane);
            advance(p, ahead, lane);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (begins) {
            page.begin(p, at, lane);
            st.max = -INFINITY;
            st.sum = 0;
#pragma unroll
            for (int u = 0; u < PAGE::UNITS; u++)
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
        attend_page(p, at, page, stages + stage * p.stage_bytes, st, lane);
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

} // namespace

#endif
