/* Attention of decode steps over pages of method leankv. Tensor cores multiply the quantised
 * integers; the products are then scaled.
 *
 * All warps of all CTAs take tiles of 16 tokens in turn. Their partial attention outputs are merged
 * in a fixed order. */
#include "common/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "methods/tokens/cuda/leankv.cuh"

namespace
{

enum {
    WARPS = 8,
    THREADS = 32 * WARPS,
    HEADS = 8,
    STAGES = 3, /* number of tiles per warp in shared memory */
    LAZY = 8    /* sums are rescaled only if a term would exceed 2^LAZY */
};
constexpr float LOG2E = 1.44269504088896340736f;

__device__ __forceinline__ uint32_t transpose(uint32_t x)
{
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* Number that is added to quantised values to represent them as bf16, and subtracted from the sums
 * later: 128, or 0 if values have 8 bits. */
template <int BITS> constexpr float value_offset = BITS == 8 ? 0 : 128;

/* Returns two adjacent numbers of a quantised key as float16, each plus 1024. The first one is of
 * dimension 16 s + 4 (lane % 4) + 2 b. */
template <int BITS> __device__ __forceinline__ uint32_t key_pair(const uint32_t *row, int s, int b)
{
    if (BITS == 8)
        return __byte_perm(row[s], 0x64646464u, b ? 0x4342 : 0x4140);
    return (row[s / 2] >> (4 * (2 * (s % 2) + b)) & 0x000f000fu) | 0x64006400u;
}

/* Converts bytes 2 b and 2 b + 1 of w to a pair of bf16 numbers. b is 0 or 1. */
__device__ __forceinline__ uint32_t byte_pair(uint32_t w, int b)
{
    const float x = __uint_as_float(__byte_perm(w, 0x4b000000u, b ? 0x7442 : 0x7440)) - 8388608.0f;
    const float y = __uint_as_float(__byte_perm(w, 0x4b000000u, b ? 0x7443 : 0x7441)) - 8388608.0f;
    return __byte_perm(__float_as_uint(x), __float_as_uint(y), 0x7632);
}

/* Returns one dimension of V of two tokens as a pair of bf16 numbers: the quantised integers plus
 * value_offset<BITS>. */
template <int BITS>
__device__ __forceinline__ uint32_t value_pair(const uint32_t *word, int m, int u, int b)
{
    if (BITS == 8)
        return byte_pair(word[2 * m + u], b);
    if (BITS == 4)
        return (word[m] >> (4 * (2 * u + b)) & 0x000f000fu) | 0x43004300u;
    return (word[m / 2] >> (2 * (4 * (m % 2) + 2 * u + b)) & 0x00030003u) | 0x43004300u;
}

template <int N>
__device__ __forceinline__ void load_words(const char *tile, int lane, uint32_t (&w)[N])
{
    constexpr int VEC = N % 4 == 0 ? 4 : N % 2 == 0 ? 2 : 1;
#pragma unroll
    for (int i = 0; i < N / VEC; i++) {
        const char *const from = tile + (i * 32 + lane) * VEC * 4;
        if (VEC == 4) {
            const uint4 x = *reinterpret_cast<const uint4 *>(from);
            w[i * VEC] = x.x, w[i * VEC + 1 % VEC] = x.y, w[i * VEC + 2 % VEC] = x.z,
                  w[i * VEC + 3 % VEC] = x.w;
        } else if (VEC == 2) {
            const uint2 x = *reinterpret_cast<const uint2 *>(from);
            w[i * VEC] = x.x, w[i * VEC + 1 % VEC] = x.y;
        } else {
            w[i] = *reinterpret_cast<const uint32_t *>(from);
        }
    }
}

/* Running softmax of a lane, for the two query heads 2 (lane % 4) and 2 (lane % 4) + 1. */
template <int F> struct state {
    uint32_t q[F / 16][2];
    float factor[2], q_sum[2];
    float most[2], sum[2], zeros[2];
    float o[F / 16][4];
};

__device__ __forceinline__ float most_of_column(float x)
{
#pragma unroll
    for (int step = 4; step < 32; step *= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

/* Updates the running maximum of the softmax, and replaces each score s by 2^(s - maximum). Scores
 * after the last token must be -INFINITY. */
template <int F> __device__ __forceinline__ void take_scores(state<F> &a, float (&s)[4])
{
    const bool high = s[0] > a.most[0] + LAZY || s[2] > a.most[0] + LAZY ||
                      s[1] > a.most[1] + LAZY || s[3] > a.most[1] + LAZY;
    if (__any_sync(~0u, high)) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float most = fmaxf(a.most[i], most_of_column(fmaxf(s[i], s[2 + i])));
            const float less = most == -INFINITY ? 1.0f : kvd_exp2(a.most[i] - most);
            a.most[i] = most;
            a.sum[i] *= less;
            a.zeros[i] *= less;
#pragma unroll
            for (int m = 0; m < F / 16; m++) {
                a.o[m][i] *= less;
                a.o[m][2 + i] *= less;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i] = s[i] == -INFINITY ? 0.0f : kvd_exp2(s[i] - a.most[i % 2]);
}

/* Adds the first `rows` tokens of a tile to the running softmax. Stores their scores in `score`
 * unless that is NULL. */
template <int F, int KB, int VB>
__device__ __forceinline__ void take_tile(const char *tile, int rows, int lane, state<F> &a,
                                          float *score, int step)
{
    constexpr int K = KVD_LEANKV_TILE * F * KB / 8, V = KVD_LEANKV_TILE * F * VB / 8;
    float s[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0};
    {
        uint32_t word[F * KB / 64];
        load_words(tile, lane, word);
        const uint32_t *const lower = word + F * KB / 128;
#pragma unroll
        for (int i = 0; i < F / 16; i++) {
            const uint32_t k[4] = {key_pair<KB>(word, i, 0), key_pair<KB>(lower, i, 0),
                                   key_pair<KB>(word, i, 1), key_pair<KB>(lower, i, 1)};
            mma_in_order<false>(i % 2 ? odd : s, k, a.q[i][0], a.q[i][1]);
        }
    }
    const __half2 *const k_meta = reinterpret_cast<const __half2 *>(tile + K + V) + lane / 4,
                         *const v_meta = k_meta + KVD_LEANKV_TILE;
    float v_step[2], v_zero[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const bool is = lane / 4 + 8 * r < rows;
        const float2 k = __half22float2(k_meta[8 * r]), v = __half22float2(v_meta[8 * r]);
        v_step[r] = is ? v.x : 0.0f;
        v_zero[r] = is ? v.y : 0.0f;
#pragma unroll
        for (int i = 0; i < 2; i++)
            s[2 * r + i] =
                is ? a.factor[i] * (k.x * (s[2 * r + i] + odd[2 * r + i] - 1024 * a.q_sum[i]) +
                                    k.y * a.q_sum[i])
                   : -INFINITY;
        if (score && is)
            *reinterpret_cast<float2 *>(score + (lane / 4 + 8 * r) * step) =
                make_float2(s[2 * r], s[2 * r + 1]);
    }
    take_scores<F>(a, s);
    uint32_t word[F * VB / 64];
    load_words(tile + K, lane, word);
    const uint32_t p[2] = {pack<true>(s[0] * v_step[0], s[1] * v_step[0]),
                           pack<true>(s[2] * v_step[1], s[3] * v_step[1])};
    const float2 upper = unpack<true>(p[0]), lower = unpack<true>(p[1]);
    const float offset = value_offset<VB>;
    a.sum[0] += s[0] + s[2];
    a.sum[1] += s[1] + s[3];
    a.zeros[0] += s[0] * v_zero[0] + s[2] * v_zero[1] - offset * (upper.x + lower.x);
    a.zeros[1] += s[1] * v_zero[0] + s[3] * v_zero[1] - offset * (upper.y + lower.y);
    const uint32_t p0 = transpose(p[0]), p1 = transpose(p[1]);
#pragma unroll
    for (int m = 0; m < F / 16; m++) {
        const uint32_t v[4] = {value_pair<VB>(word, m, 0, 0), value_pair<VB>(word, m, 1, 0),
                               value_pair<VB>(word, m, 0, 1), value_pair<VB>(word, m, 1, 1)};
        mma_in_order<true>(a.o[m], v, p0, p1);
    }
}

/* Tiles of 16 cached tokens that one warp processes: tiles first, first + stride, first + 2 *
 * stride, ... High-precision tiles come before low-precision tiles. */
struct tiles {
    const kvd_leankv_layout *layout;
    const char *pages;
    /* Page table of the KV head: indices of high-precision pages and, from element low_pages on, of
     * low-precision pages. */
    const int32_t *table;
    int first, stride, high, low, low_pages;
    /* 2^32 / (tiles per page), rounded up, per precision. A product with it replaces a division by
     * the tiles per page. */
    uint32_t part_of[KVD_LEANKV_LEVELS];
    char *ring;
    int stage_bytes;
    uint32_t full; /* shared address of the mbarriers, one per ring tile */
};

/* Returns the byte offset of one part of a tile in its page, and its size in *bytes. in: tile
 * number in the page. k: 0 for keys, 1 for values, 2 for scales of keys, 3 for scales of values. */
__device__ __forceinline__ int part_at(const kvd_leankv_layout &y, const kvd_leankv_precision &l,
                                       int k, int in, int *bytes)
{
    const int bits = k == 0 ? l.k_bits : l.v_bits;
    *bytes = k < 2 ? 2 * y.d * bits : 4 * KVD_LEANKV_TILE;
    return (k == 0 ? 0 : k == 1 ? l.v : k == 2 ? l.k_meta : l.v_meta) + in * *bytes;
}

/* Starts an asynchronous copy of a tile of tokens to shared memory. All lanes must call it. */
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void copy_tile(const kvd_leankv_layout &y, const kvd_leankv_precision &l,
                                          const char *page, int in, uint32_t to, uint32_t full,
                                          int lane)
{
    if (lane >= 4)
        return;
    const int keys = 2 * y.d * l.k_bits, values = 2 * y.d * l.v_bits, meta = 4 * KVD_LEANKV_TILE;
    int bytes;
    const char *const from = page + part_at(y, l, lane, in, &bytes);
    if (lane == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(full),
                     "r"(keys + values + 2 * meta)
                     : "memory");
    to += (uint32_t)((lane > 0 ? keys : 0) + (lane > 1 ? values : 0) + (lane > 2 ? meta : 0));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(full)
        : "memory");
}

__device__ __forceinline__ void make_barriers(uint64_t *full, int lane)
{
    if (lane < STAGES)
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(
                         (uint32_t)__cvta_generic_to_shared(full + lane))
                     : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void wait_tile(uint32_t full, uint32_t parity)
{
    uint32_t done;
    do
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(full), "r"(parity)
            : "memory");
    while (!done);
}
#else
__device__ __forceinline__ void copy_tile(const kvd_leankv_layout &y, const kvd_leankv_precision &l,
                                          const char *page, int in, uint32_t to, uint32_t, int lane)
{
    for (int k = 0; k < 4; k++) {
        int bytes;
        const char *const from = page + part_at(y, l, k, in, &bytes);
        for (int i = 16 * lane; i < bytes; i += 512)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + (uint32_t)i),
                         "l"(from + i)
                         : "memory");
        to += (uint32_t)bytes;
    }
}

__device__ __forceinline__ void make_barriers(uint64_t *, int)
{
}

__device__ __forceinline__ void wait_tile(uint32_t, uint32_t)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncwarp();
}
#endif

__device__ __forceinline__ void fetch(const tiles &x, int at, int lane)
{
    if (at < x.high + x.low) {
        const int level = at < x.high ? KVD_LEANKV_HIGH : KVD_LEANKV_LOW;
        const kvd_leankv_precision &l = x.layout->level[level];
        const int i = x.first + (at - (level == KVD_LEANKV_HIGH ? 0 : x.high)) * x.stride;
        const int page =
            (int)__umulhi((uint32_t)i, level == KVD_LEANKV_HIGH ? x.part_of[0] : x.part_of[1]);
        const int32_t id = x.table[page + (level == KVD_LEANKV_HIGH ? 0 : x.low_pages)];
        copy_tile(*x.layout, l, x.pages + (size_t)id * x.layout->page_bytes,
                  i - page * (l.tokens / KVD_LEANKV_TILE),
                  (uint32_t)__cvta_generic_to_shared(x.ring + at % STAGES * x.stage_bytes),
                  x.full + 8u * (uint32_t)(at % STAGES), lane);
    }
#if __CUDA_ARCH__ < 900
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Adds the warp's next n tiles of tokens, all of one precision, to the running softmax. */
template <int F, int KB, int VB>
__device__ __forceinline__ void take_section(const tiles &x, int at, int n, int entries,
                                             float *score, int step, int lane, state<F> &a)
{
    for (int k = 0; k < n; k++) {
        const int first = (x.first + k * x.stride) * KVD_LEANKV_TILE;
        wait_tile(x.full + 8u * (uint32_t)((at + k) % STAGES), (uint32_t)((at + k) / STAGES) & 1);
        __syncwarp(); /* all lanes have read the tile that is overwritten next */
        fetch(x, at + k + STAGES - 1, lane);
        take_tile<F, KB, VB>(x.ring + (at + k) % STAGES * x.stage_bytes, entries - first, lane, a,
                             score ? score + first * step : NULL, step);
    }
}

template <int F>
__device__ __forceinline__ void take_any(const tiles &x, int level, int at, int n, int entries,
                                         float *score, int step, int lane, state<F> &a)
{
    switch (x.layout->level[level].k_bits * 16 + x.layout->level[level].v_bits) {
    case 8 * 16 + 8:
        return take_section<F, 8, 8>(x, at, n, entries, score, step, lane, a);
    case 8 * 16 + 4:
        return take_section<F, 8, 4>(x, at, n, entries, score, step, lane, a);
    case 8 * 16 + 2:
        return take_section<F, 8, 2>(x, at, n, entries, score, step, lane, a);
    case 4 * 16 + 8:
        return take_section<F, 4, 8>(x, at, n, entries, score, step, lane, a);
    case 4 * 16 + 4:
        return take_section<F, 4, 4>(x, at, n, entries, score, step, lane, a);
    default:
        return take_section<F, 4, 2>(x, at, n, entries, score, step, lane, a);
    }
}

/* Softmax result of one warp or CTA over its part of the tokens, for one query head. */
struct part {
    float most, sum, zeros;
};

/* Copies a query to x. Stores the query divided by a power of 2 in q, and `scale` times the power
 * of 2 in *factor. */
template <int F>
__device__ void prepare_query(const __nv_bfloat16 *from, float scale, int lane, __half *q,
                              float *factor, float *q_sum, float (&x)[F / 32])
{
    float most = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < F / 32; i++) {
        x[i] = from ? __bfloat162float(from[lane + 32 * i]) : 0.0f;
        most = fmaxf(most, fabsf(x[i]));
    }
#pragma unroll
    for (int step = 16; step; step /= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    const int e = most > 0 ? max(min(ilogbf(most), 120), -100) : 0;
#pragma unroll
    for (int i = 0; i < F / 32; i++) {
        const __half h = __float2half_rn(scalbnf(x[i], -e));
        q[lane + 32 * i] = h;
        sum += __half2float(h);
    }
#pragma unroll
    for (int step = 16; step; step /= 2)
        sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) {
        *factor = scalbnf(scale, e);
        *q_sum = sum;
    }
}

/* Merges n partial attention outputs, each over a part of the tokens, into `out`. Returns the
 * maximum and the sum of the merged softmax. */
template <int F>
__device__ __forceinline__ part merge(const float *o, const part *x, int x_pitch, int n, int pitch,
                                      int lane, float (&out)[F / 32])
{
    part all = {-INFINITY, 0, 0};
#pragma unroll
    for (int i = 0; i < F / 32; i++)
        out[i] = 0;
    for (int k = 0; k < n; k++)
        all.most = fmaxf(all.most, x[k * x_pitch].most);
    for (int k = 0; k < n; k++) {
        const part p = x[k * x_pitch];
        const float share = p.most == -INFINITY ? 0.0f : kvd_exp2(p.most - all.most);
        all.sum += share * p.sum;
        if (share > 0)
#pragma unroll
            for (int i = 0; i < F / 32; i++)
                out[i] += share * (o[(size_t)k * pitch + (lane + 32 * i)] + p.zeros);
    }
    return all;
}

template <int F>
__device__ __forceinline__ void add_fresh(const __nv_bfloat16 *k, const __nv_bfloat16 *v,
                                          float scale, const float (&q)[F / 32], int lane,
                                          part *all, float (&out)[F / 32])
{
    float x[F / 32], s = 0;
    leankv::load_row<F / 32>(k, 0, lane, x);
#pragma unroll
    for (int i = 0; i < F / 32; i++)
        s += q[i] * x[i];
#pragma unroll
    for (int step = 16; step; step /= 2)
        s += __shfl_xor_sync(~0u, s, step);
    s *= scale;
    const float most = fmaxf(all->most, s), p = kvd_exp2(s - most);
    const float less = all->most == -INFINITY ? 0.0f : kvd_exp2(all->most - most);
    leankv::load_row<F / 32>(v, 0, lane, x);
#pragma unroll
    for (int i = 0; i < F / 32; i++)
        out[i] = less * out[i] + p * x[i];
    all->sum = less * all->sum + p;
    all->most = most;
}

/* Writes the attention output of query head j. If the head has an attention sink, the softmax
 * denominator includes it. */
template <int F>
__device__ __forceinline__ void write_out(const kvd_leankv_steps &s, int row, int g, int j,
                                          int lane, const part &all, const float (&out)[F / 32])
{
    const float sink = s.sinks ? s.sinks[g * s.group + j] * LOG2E : -INFINITY,
                most = fmaxf(all.most, sink), share = kvd_exp2(all.most - most),
                sum = share * all.sum + kvd_exp2(sink - most);
    __nv_bfloat16 *const o = static_cast<__nv_bfloat16 *>(s.o) +
                             ((size_t)(row * s.pool.n_kv_heads + g) * s.group + j) * F;
#pragma unroll
    for (int i = 0; i < F / 32; i++)
        o[lane + 32 * i] = __float2bfloat16_rn(share * out[i] / sum);
    if (lane == 0)
        s.lse2[(size_t)(row * s.pool.n_kv_heads + g) * HEADS + j] = most + log2f(sum);
}

/* Writes this CTA's part of a KV head's attention output. Returns true if all parts are now
 * written, so that the caller must merge them. */
template <int F>
__device__ bool leave_part(const kvd_leankv_steps &s, size_t head, int j, int lane, const part &all,
                           const float (&out)[F / 32])
{
    __shared__ bool last;
    float *const to =
        s.partial + ((head * (size_t)s.splits + blockIdx.x) * HEADS + j) * (size_t)(F + 2);
    if (j < s.group) {
#pragma unroll
        for (int i = 0; i < F / 32; i++)
            to[lane + 32 * i] = out[i];
        if (lane == 0) {
            to[F] = all.most;
            to[F + 1] = all.sum;
        }
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(&s.arrived[head], 1u) == (uint32_t)s.splits - 1;
        if (last)
            s.arrived[head] = 0;
    }
    __syncthreads();
    __threadfence();
    return last;
}

template <int F>
__device__ void merge_splits(const kvd_leankv_steps &s, size_t head, int j, int lane, part *all,
                             float (&out)[F / 32])
{
    const size_t pitch = HEADS * (F + 2);
    const float *const from = s.partial + (head * (size_t)s.splits * HEADS + j) * (size_t)(F + 2);
    all->most = -INFINITY;
    all->sum = 0;
    for (int k = 0; k < s.splits; k++)
        all->most = fmaxf(all->most, __ldcg(from + (size_t)k * pitch + F));
#pragma unroll
    for (int i = 0; i < F / 32; i++)
        out[i] = 0;
    for (int k = 0; k < s.splits; k++) {
        const float *const o = from + (size_t)k * pitch;
        const float most = __ldcg(o + F),
                    share = most == -INFINITY ? 0.0f : kvd_exp2(most - all->most);
        all->sum += share * __ldcg(o + F + 1);
#pragma unroll
        for (int i = 0; i < F / 32; i++)
            out[i] += share * __ldcg(o + lane + 32 * i);
    }
}

template <int F>
__global__ void __launch_bounds__(THREADS, 2)
    attend_kernel(const __grid_constant__ kvd_leankv_steps s, int stage_bytes, int table_at)
{
    /* Shared memory for tiles and page numbers. At the end it is used for the outputs
     * [WARPS][HEADS][F]. */
    extern __shared__ __align__(16) float dynamic[];
    __shared__ __align__(16) __half q[HEADS][F];
    __shared__ float factor[HEADS], q_sum[HEADS];
    __shared__ uint64_t full[WARPS][STAGES];
    __shared__ part parts[WARPS][HEADS];
    int32_t *const table =
        reinterpret_cast<int32_t *>(reinterpret_cast<char *>(dynamic) + table_at);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = (int)blockIdx.y,
              row = (int)blockIdx.z;
    const kvd_leankv_pool &p = s.pool;
    const size_t at = (size_t)(row * p.n_kv_heads + g);
    const int head = leankv::head_of(p, s.slot[row], s.layer, g);
    const kvd_leankv_head h = head < 0 ? kvd_leankv_head{} : p.head[head];
    const int n_pages = h.pages[KVD_LEANKV_HIGH] + h.pages[KVD_LEANKV_LOW];
    for (int i = (int)threadIdx.x; i < n_pages; i += THREADS)
        table[i] = p.table[(size_t)head * p.table_length +
                           (i < h.pages[KVD_LEANKV_HIGH]
                                ? i
                                : p.table_length - 1 - (i - h.pages[KVD_LEANKV_HIGH]))];
    make_barriers(full[warp], lane);
    float mine[F / 32];
    const __nv_bfloat16 *const query =
        static_cast<const __nv_bfloat16 *>(s.q) + (at * (size_t)s.group + warp) * F;
    const float scale_log2 = s.scale * LOG2E;
    prepare_query<F>(warp < s.group ? query : NULL, scale_log2, lane, q[warp], &factor[warp],
                     &q_sum[warp], mine);
    __syncthreads();

    state<F> a;
#pragma unroll
    for (int i = 0; i < F / 16; i++) {
        const uint2 w = *reinterpret_cast<const uint2 *>(&q[lane / 4][16 * i + lane % 4 * 4]);
        a.q[i][0] = w.x;
        a.q[i][1] = w.y;
        a.o[i][0] = a.o[i][1] = a.o[i][2] = a.o[i][3] = 0;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        a.factor[i] = factor[lane % 4 * 2 + i];
        a.q_sum[i] = q_sum[lane % 4 * 2 + i];
        a.most[i] = -INFINITY;
        a.sum[i] = a.zeros[i] = 0;
    }
    tiles x = {&p.layout,
               p.page,
               table,
               (int)blockIdx.x * WARPS + warp,
               s.splits * WARPS,
               0,
               0,
               h.pages[KVD_LEANKV_HIGH],
               {0, 0},
               reinterpret_cast<char *>(dynamic) + warp * STAGES * stage_bytes,
               stage_bytes,
               (uint32_t)__cvta_generic_to_shared(&full[warp][0])};
    /* Factors that replace a division by the number of tiles per page. They are rounded up, which
     * makes the quotient exact for fewer than 2^16 tiles. */
    for (int l = 0; l < KVD_LEANKV_LEVELS; l++)
        x.part_of[l] = ~0u / (uint32_t)(p.layout.level[l].tokens / KVD_LEANKV_TILE) + 1;
    const int n_high = h.n[KVD_LEANKV_HIGH], n_low = h.n[KVD_LEANKV_LOW];
    x.high = max((n_high + KVD_LEANKV_TILE - 1) / KVD_LEANKV_TILE - x.first + x.stride - 1, 0) /
             x.stride;
    x.low =
        max((n_low + KVD_LEANKV_TILE - 1) / KVD_LEANKV_TILE - x.first + x.stride - 1, 0) / x.stride;
    for (int i = 0; i < STAGES - 1; i++)
        fetch(x, i, lane);
    const int columns = (s.group + 1) / 2 * 2;
    float *const scores =
        lane % 4 * 2 < columns ? s.score + at * (size_t)s.room * columns + lane % 4 * 2 : NULL;
#pragma unroll 1
    for (int l = 0; l < KVD_LEANKV_LEVELS; l++) {
        const bool high = l == KVD_LEANKV_HIGH;
        take_any<F>(x, l, high ? 0 : x.high, high ? x.high : x.low, high ? n_high : n_low,
                    !scores || high ? scores : scores + (size_t)(s.room - 1) * columns,
                    high ? columns : -columns, lane, a);
    }
    __syncthreads(); /* outputs overwrite the ring buffers, so all warps must be done */
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
            a.sum[i] += __shfl_xor_sync(~0u, a.sum[i], step);
            a.zeros[i] += __shfl_xor_sync(~0u, a.zeros[i], step);
        }
        const int j = lane % 4 * 2 + i;
        if (lane < 4)
            parts[warp][j] = part{a.most[i], a.sum[i], a.zeros[i]};
#pragma unroll
        for (int m = 0; m < F / 16; m++) {
            float *const to = dynamic + (warp * HEADS + j) * F + 16 * m + lane / 4;
            to[0] = a.o[m][i];
            to[8] = a.o[m][2 + i];
        }
    }
    __syncthreads();

    const int j = warp;
    float out[F / 32];
    part all = {-INFINITY, 0, 0};
    if (j < s.group) {
        all = merge<F>(dynamic + j * F, &parts[0][j], HEADS, WARPS, HEADS * F, lane, out);
        if (blockIdx.x == 0) {
            const __nv_bfloat16 *const k =
                static_cast<const __nv_bfloat16 *>(s.fresh) +
                ((size_t)s.page_table[(size_t)row * s.max_pages] * p.n_kv_heads + g) * (64 * 2 * F);
            add_fresh<F>(k, k + 64 * F, scale_log2, mine, lane, &all, out);
        }
    }
    if (s.splits > 1) {
        if (!leave_part<F>(s, at, j, lane, all, out))
            return;
        if (j < s.group)
            merge_splits<F>(s, at, j, lane, &all, out);
    }
    if (j < s.group)
        write_out<F>(s, row, g, j, lane, all, out);
}

template <int F> cudaError_t launch(const kvd_leankv_steps *s, cudaStream_t stream)
{
    int stage = 0;
    for (int l = 0; l < KVD_LEANKV_LEVELS; l++) {
        const kvd_leankv_precision *const x = &s->pool.layout.level[l];
        const int tile = KVD_LEANKV_TILE * (F * (x->k_bits + x->v_bits) / 8 + 8);
        stage = tile > stage ? tile : stage;
    }
    const int rings = WARPS * STAGES * stage, merged = WARPS * HEADS * F * (int)sizeof(float);
    const int table_at = rings > merged ? rings : merged;
    const size_t bytes = (size_t)table_at + (size_t)s->pool.table_length * sizeof(int32_t);
    return kvd_launch(attend_kernel<F>, dim3(s->splits, s->pool.n_kv_heads, s->n), THREADS, bytes,
                      stream, *s, stage, table_at);
}

} // namespace

extern "C" int kvd_leankv_splits(int rows, int n_kv_heads, int n_sms)
{
    const int most = 4 * n_sms / (rows * n_kv_heads);
    return most < 1 ? 1 : most > 32 ? 32 : most;
}

extern "C" cudaError_t kvd_leankv_attend(const kvd_leankv_steps *s, cudaStream_t stream)
{
    if (s->group < 1 || s->group > HEADS)
        return cudaErrorInvalidValue;
    return leankv::with_width(
        s->pool.layout.d, [&](auto width) { return launch<decltype(width)::value>(s, stream); });
}
