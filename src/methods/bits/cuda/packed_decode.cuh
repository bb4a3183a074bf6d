/*
 * Parts of attention on quantised pages that do not depend on the kind of codes. Included by
 * packed_decode*.cu only.
 */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_DECODE_CUH
#define KVD_METHODS_BITS_CUDA_PACKED_DECODE_CUH

#include "methods/bits/cuda/packed_decode_pages.cuh"

namespace
{

/*
 * Computes the same product as `mma` in mma.cuh. The instruction is not volatile, so the compiler
 * may move it.
 */
template <bool BF>
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1)
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

__device__ __forceinline__ uint32_t as_word(__half2 x)
{
    return *reinterpret_cast<const uint32_t *>(&x);
}

__device__ __forceinline__ uint32_t plus(uint32_t x, uint32_t y)
{
    return as_word(__hadd2(as_halves(x), as_halves(y)));
}

__device__ __forceinline__ uint32_t times(uint32_t x, uint32_t y)
{
    return as_word(__hmul2(as_halves(x), as_halves(y)));
}

__device__ __forceinline__ uint32_t minus(uint32_t x)
{
    return as_word(__hneg2(as_halves(x)));
}

__device__ __forceinline__ uint32_t times_plus(uint32_t x, uint32_t y, uint32_t z)
{
    return as_word(__hfma2(as_halves(x), as_halves(y), as_halves(z)));
}

/*
 * Returns a power of two such that a query divided by it fits in float16. `most` is the largest
 * magnitude of the query in this lane.
 */
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

/*
 * Exchanges numbers between lanes: lanes 4 h .. 4 h + 3 pass the number x of head h, and y receives
 * those of heads 2 c and 2 c + 1, for c = lane % 4.
 */
__device__ __forceinline__ void of_columns(float x, float (&y)[2], int lane)
{
    y[0] = __shfl_sync(~0u, x, lane % 4 * 8);
    y[1] = __shfl_sync(~0u, x, lane % 4 * 8 + 4);
}

/*
 * Query heads that attend to one KV head, as B operand of mma in float16, divided by `unit`.
 * Missing query heads are 0.
 */
template <int UNITS> struct queries {
    uint32_t half[UNITS][2];
    /* Powers of two by which the queries of heads 2 c and 2 c + 1 were divided, c = lane % 4. */
    float unit[2];
};

template <int UNITS>
__device__ void load_queries(const packed_params &p, int b, int g, int lane, queries<UNITS> &q)
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
    const float unit = unit_of(most), over = 1 / unit; /* exact: powers of two */
    of_columns(unit, q.unit, lane);
#pragma unroll
    for (int i = 0; i < 2 * UNITS; i++) {
        uint32_t &w = q.half[i / 2][i % 2];
        w = f16_pair(bf16_of(w, 0) * over, bf16_of(w, 1) * over);
    }
}

/*
 * Running softmax of a lane for query heads 2 c and 2 c + 1, c = lane % 4: the largest score as a
 * base-2 logarithm, and this lane's part of the sum of exponentials. `o` is the transposed output
 * at dimensions 16 u + lane / 4 and 16 u + lane / 4 + 8, without zero points. `zero` is the
 * contribution of zero points to the channels of group lane / 4.
 */
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

__device__ __forceinline__ int token_of(int m, int i, int lane)
{
    return 16 * m + i / 2 * 8 + lane / 4;
}

/*
 * Computes the attention scores, times log2(e), of the bf16 tokens `coded` .. left - 1 of the page.
 */
template <int UNITS>
__device__ __forceinline__ void ring_scores(const packed_params &p, const uint16_t *ring, int b,
                                            int g, int coded, int left, float (&s)[4][4], int lane)
{
    const uint16_t *const from = query_of(p, b, g, lane), *const rows =
                                                              ring + lane / 4 * 8 + lane % 4 * 2;
    const bool there = lane / 4 < p.a.map.group;
#pragma unroll
    for (int m = 0; m < 4; m++) {
        if (16 * m + 16 <= coded || 16 * m >= left)
            continue;
        float sum[4] = {};
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const uint16_t *const k = rows + 2 * m * 128 * UNITS + 128 * u;
            uint32_t a[4], q[2];
#pragma unroll
            for (int r = 0; r < 4; r++)
                a[r] = *reinterpret_cast<const uint32_t *>(k + r % 2 * 128 * UNITS + r / 2 * 64);
#pragma unroll
            for (int h = 0; h < 2; h++)
                q[h] = there ? *reinterpret_cast<const uint32_t *>(from + 16 * u + 8 * h) : 0;
            multiply<true>(sum, a, q[0], q[1]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[m][i] = token_of(m, i, lane) < coded ? s[m][i] : sum[i] * p.scale_log2;
    }
}

/*
 * Replaces scores by probabilities 2^(score - running maximum + TOP) and adds them to the softmax
 * sum. The state is rescaled only if the maximum rises by more than LAZY.
 */
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
    if (__any_sync(~0u, !(top[0] - st.max[0] <= LAZY && top[1] - st.max[1] <= LAZY))) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float most = fmaxf(st.max[e], top[e]), shrink = power_of_two(st.max[e] - most);
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
    const float base[2] = {st.max[0] - TOP, st.max[1] - TOP};
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[m][i] = power_of_two(s[m][i] - base[i % 2]);
            st.sum[i % 2] += s[m][i];
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

/*
 * Packs the probabilities of tokens `from` .. `to` - 1 into 16-bit pairs. All other tokens of the
 * page get 0.
 */
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

/* Adds V^T P^T (values times probabilities) of the bf16 tokens `coded` .. left - 1 of the page. */
template <class PAGE>
__device__ __forceinline__ void ring_values(const uint16_t *ring, int coded, int left,
                                            const uint32_t (&prob)[8], state<PAGE::UNITS> &st,
                                            int lane)
{
    constexpr int UNITS = PAGE::UNITS;
    const uint16_t *const rows = ring + lane / 4 * 8 + lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (16 * k + 16 <= coded || 16 * k >= left)
            continue;
        const bool second = 16 * k + 8 < left;
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            uint32_t a[4];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                a[r] =
                    exchanged(r < 2 || second
                                  ? *reinterpret_cast<const uint32_t *>(
                                        rows + (2 * k + r / 2) * 128 * UNITS + (2 * u + r % 2) * 64)
                                  : 0);
                if (PAGE::factor(r) != 1)
                    a[r] = times_bf16(a[r], PAGE::factor(r));
            }
            multiply<true>(st.o[u], a, prob[2 * k], prob[2 * k + 1]);
        }
    }
}

__device__ __forceinline__ void store(const packed_params &p, int b, int g, int row, int dim,
                                      float x)
{
    const kvd_attn_map &map = p.a.map;
    static_cast<__nv_bfloat16 *>(p.d.o)[(size_t)b * (size_t)map.o_pitch +
                                        map.o_offset[g * map.group] + row * map.d_v[g] + dim] =
        __float2bfloat16_rn(x);
}

/*
 * If `slot` is NULL, writes a head's attention output. Otherwise writes the partial result of some
 * of its pages to `slot`: maxima, sums and O [group][KVD_WIDTH_NARROW]. O is multiplied by
 * `factor`.
 */
template <class PAGE>
__device__ void put_result(const packed_params &p, const cursor &at, const state<PAGE::UNITS> &st,
                           float factor, float *slot, int lane)
{
    const int group = p.a.map.group, column = lane % 4 * 2;
    float over[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float sum = st.sum[e];
#pragma unroll
        for (int i = 4; i < 32; i *= 2)
            sum += __shfl_xor_sync(~0u, sum, i);
        over[e] = 1 / sum;
        if (slot && lane < 4 && column + e < group) {
            slot[2 * (column + e)] = st.max[e];
            slot[2 * (column + e) + 1] = sum;
        }
    }
#pragma unroll
    for (int u = 0; u < PAGE::UNITS; u++) {
        const int from = (u >> p.v_shift) * 4 + lane % 4;
        const float zero[2] = {__shfl_sync(~0u, st.zero[0], from),
                               __shfl_sync(~0u, st.zero[1], from)};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = column + i % 2, dim = 16 * u + lane / 4 + i / 2 * 8;
            const float x = st.o[u][i] * (factor / PAGE::factor(i / 2)) + zero[i % 2];
            if (row >= group)
                continue;
            if (slot)
                slot[2 * HEADS + row * KVD_WIDTH_NARROW + dim] = x;
            else
                store(p, at.b, at.g, row, dim, x * over[i % 2]);
        }
    }
}

/*
 * Processes one page of a KV head. PAGE is the class that reads its codes, with these members:
 *
 * - UNITS: number of blocks of 16 dimensions.
 * - words: words of codes in registers.
 * - factor(r): factor by which register r of the values' codes is too large.
 * - copy: copies the bytes after a page's codes to shared memory with cp.async.
 * - PAGE(p, shared, scratch): constructor that starts loads. `shared` is memory of the CTA,
 *   `scratch` of the warp.
 * - ready(p, shared, scratch): waits for the constructor's loads. All threads of the CTA call it.
 *   The newest group of cp.async may still be under way.
 * - begin: called at the first page of a head.
 * - scores and values: process quantised tokens; they use up words and reload them, at the end
 *   from `next`.
 * - BF: type of the probabilities that `values` gets, bfloat16 or float16.
 * - outputs: factor by which sums of values are too small.
 * - for_rows: divides probabilities by that factor for bf16 tokens.
 * - STRAIGHT: if true, fully quantised pages have a code path of their own.
 * - RINGS_AHEAD: if true, a warp with few pages (SHORT) first loads its bf16 tokens into L2.
 */
template <class PAGE>
__device__ __forceinline__ void attend_page(const packed_params &p, const cursor &at, PAGE &page,
                                            const char *stage, typename PAGE::words &w,
                                            const char *codes, const char *next,
                                            state<PAGE::UNITS> &st, int lane)
{
    constexpr int UNITS = PAGE::UNITS;
    const int first = KVD_PAGE_TOKENS * at.page, left = min(at.m - first, (int)KVD_PAGE_TOKENS),
              keys = at.keys - first, coded = at.values - first;
    float s[4][4];
    uint32_t prob[8];
    /* Nearly all pages are fully quantised, so they have a path without branches. */
    if (PAGE::STRAIGHT && min(keys, coded) >= KVD_PAGE_TOKENS) {
        page.scores(p, at, stage, w, codes, s, lane);
        soften(st, s);
        probabilities<PAGE::BF>(s, prob);
        page.values(p, at, stage, w, codes, next, prob, st, lane);
        return;
    }
    if (keys > 0)
        page.scores(p, at, stage, w, codes, s, lane);
    else
        w.begin(1, codes + p.parts.v);
    if (keys < left)
        ring_scores<UNITS>(p, in_ring(p.a, at.b, at.page, at.g), at.b, at.g, keys, left, s, lane);
    if (left < KVD_PAGE_TOKENS)
#pragma unroll
        for (int m = 0; m < 4; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[m][i] = token_of(m, i, lane) < left ? s[m][i] : -INFINITY;
    soften(st, s);
    if (coded > 0) {
        probabilities<PAGE::BF>(s, 0, coded, prob, lane);
        page.values(p, at, stage, w, codes, next, prob, st, lane);
    } else {
        w.begin(0, next);
    }
    if (coded < left) {
        page.for_rows(s);
        probabilities<true>(s, coded, left, prob, lane);
        ring_values<PAGE>(in_ring(p.a, at.b, at.page, at.g) + KVD_PAGE_TOKENS * 16 * UNITS, coded,
                          left, prob, st, lane);
    }
}

template <class PAGE>
__global__ void __launch_bounds__(32 * WARPS, 1)
    packed_decode_kernel(const __grid_constant__ packed_params p)
{
    extern __shared__ __align__(128) char smem[];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32,
              me = warp * (int)gridDim.x + (int)blockIdx.x;
    const int each = p.d.pages_before[p.a.n + 1], from = me * each,
              to = min(from + each, p.d.pages_before[p.a.n] * p.a.map.n_kv_heads);
    char *const mine = smem + p.shared_bytes + warp * (2 * p.stage_bytes + p.scratch_bytes);
    char *const stages = mine + p.scratch_bytes;
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(stages);
    PAGE page(p, smem, mine);
    cursor at = {};
    const char *codes = NULL, *next = NULL;
    typename PAGE::words w;
    if (from < to) {
        at = seek(p, from, lane);
        codes = codes_of(p, at);
        PAGE::copy(p, at, codes, address, lane);
        w.begin(0, codes);
        if (PAGE::RINGS_AHEAD && to - from <= SHORT)
            prefetch_rings(p, at, to - from, lane);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    page.ready(p, smem, mine);
    if (from >= to)
        return;
    state<PAGE::UNITS> st;
    bool begins = true;
    int start = at.page, stage = 0;
#pragma unroll 1
    for (int x = from; x < to; x++, stage ^= 1) {
        cursor ahead = at;
        next = codes;
        if (x + 1 < to) {
            advance(p, ahead, lane);
            next = codes_of(p, ahead);
            PAGE::copy(p, ahead, next, address + (uint32_t)((stage ^ 1) * p.stage_bytes), lane);
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
        attend_page(p, at, page, stages + stage * p.stage_bytes, w, codes, next, st, lane);
        __syncwarp();
        if (at.page + 1 == at.pages || x + 1 == to) {
            const bool whole = start == 0 && at.page + 1 == at.pages;
            put_result<PAGE>(p, at, st, page.outputs(),
                             whole ? NULL
                                   : p.d.partial +
                                         (size_t)(2 * me + (start == 0)) * (size_t)p.slot_floats,
                             lane);
            begins = true;
        }
        at = ahead;
        codes = next;
    }
}

} // namespace

#endif
