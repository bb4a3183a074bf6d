/* Palu's decode attention on Hopper GPUs: rebuilds K from latent vectors that 4 KV heads share.
 *
 * Each cluster of two CTAs processes a range of pages. A second launch merges the results of the
 * ranges. */
#ifndef KVD_KERNELS_RIVALS_PALU_DECODE_CUH
#define KVD_KERNELS_RIVALS_PALU_DECODE_CUH

#include "kernels/rivals/palu_decode.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

#include "common/cuda/launch.cuh"
#include "common/half.h"
#include "kernels/cuda/sm90.cuh"

namespace
{
enum {
    D = KVD_PALU_D_HEAD,
    TOKENS = KVD_PALU_PAGE_TOKENS,
    PIECE_RANKS = 64,
    /* Bytes in shared memory of 64 latent dimensions of 64 tokens, in 16-bit numbers. */
    PIECE_BYTES = PIECE_RANKS * TOKENS * 2,
    PLACES_MAX = 24,
    QUERIES = 8, /* number of columns of S: 2 KV heads x 4 query heads */
    QUERY_PITCH = 2 * D + 16,
    THREADS = 384,
    SMEM_MAX = 232448,
    /* Byte offset in shared memory of the queries of 2 warpgroups. */
    OFF_QUERY = 0,
    /* Byte offset in shared memory of the softmax weights of 2 warpgroups. */
    OFF_P = OFF_QUERY + 2 * QUERIES * QUERY_PITCH,
    /* Byte offset in shared memory of the score maxima of 8 warps, which are later replaced by the
     * softmax sums. */
    OFF_MAX = OFF_P + 2 * TOKENS * QUERIES * 2,
    OFF_FULL = OFF_MAX + 2 * 4 * QUERIES * 4,
    OFF_EMPTY = OFF_FULL + PLACES_MAX * 8,
    /* Byte offset in shared memory of the barriers for copying the projection matrices. */
    OFF_UP_BARRIERS = OFF_EMPTY + PLACES_MAX * 8,
    /* Byte offset in shared memory of the RoPE cosines and sines that are not kept in registers. */
    OFF_TURN = (OFF_UP_BARRIERS + 16 + 127) / 128 * 128,
    /* A thread needs 32 RoPE angles. It keeps the cosines and sines of 4 * TURNS_KEPT of them in
     * registers. */
    TURNS_KEPT = 4,
    OFF_UP = OFF_TURN + (8 - TURNS_KEPT) * 128 * 16
};

/* Returns how many pieces (64 tokens x 64 latent dimensions) fit into shared memory next to the
 * projection matrices. */
__host__ __device__ constexpr int places_for(int rank_k)
{
    return (SMEM_MAX - OFF_UP - rank_k * 512) / PIECE_BYTES < PLACES_MAX
               ? (SMEM_MAX - OFF_UP - rank_k * 512) / PIECE_BYTES
               : PLACES_MAX;
}

struct params {
    const uint16_t *pool, *up, *q;
    /* `prefix` [batch + 1] holds, for each request, the number of pages of all earlier requests. */
    const int32_t *kv_len, *page_table, *prefix;
    const float *cosine, *sine;
    /* Partial results of each warpgroup for its 8 queries: outputs [8][rank_v], and score maxima
     * and softmax sums [8][2]. */
    float *part, *part_ml;
    uint16_t *o;
    /* Sizes of the batch. `group` is the number of query heads per KV head. */
    int batch, max_pages, n_heads, n_groups, group;
    int rank_k, rank_v, places, n_clusters;
    long long page_elements;
};

__device__ __forceinline__ void barrier_arrive_at(uint32_t bar, uint32_t rank)
{
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(bar),
                 "r"(rank)
                 : "memory");
}

__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

__device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

/* Starts a copy to the address `to` of shared memory in both CTAs of the cluster. */
__device__ __forceinline__ void copy_to_both(uint32_t to, const void *from, uint32_t bytes,
                                             uint32_t bar, uint64_t policy)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
        " [%0], [%1], %2, [%3], %4, %5;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(bar), "h"(static_cast<uint16_t>(3)), "l"(policy)
        : "memory");
}

template <int dtype> __device__ __forceinline__ float half_of(uint32_t two, int high)
{
    const uint32_t x = high ? two >> 16 : two & 0xffff;
    return dtype == KVD_BF16 ? __uint_as_float(x << 16)
                             : __half2float(__ushort_as_half(static_cast<uint16_t>(x)));
}

/* Index in a ring buffer, and the parity with which to wait until the element is filled. */
struct place {
    uint32_t at, parity;
};

__device__ __forceinline__ place place_of(uint32_t sequence, uint32_t places)
{
    const uint32_t round = sequence / places;
    return {sequence - round * places, round & 1};
}

__device__ __forceinline__ void step(place &p, uint32_t places)
{
    if (++p.at == places) {
        p.at = 0;
        p.parity ^= 1;
    }
}

__device__ __forceinline__ int clusters_used(const params &p, int pages)
{
    return min(p.n_clusters, pages);
}

__device__ __forceinline__ int run_start(int cluster, int pages, int used)
{
    return static_cast<int>(static_cast<long long>(cluster) * pages / used);
}

struct run {
    /* This cluster of two CTAs processes pages begin .. end - 1. Pages are numbered over all groups
     * of 4 KV heads: group g begins at page g * per_group. */
    int begin, end, per_group, cluster;
};

__device__ __forceinline__ run my_run(const params &p)
{
    run r;
    r.per_group = __ldg(p.prefix + p.batch);
    r.cluster = static_cast<int>(blockIdx.x) / 2;
    const int pages = r.per_group * p.n_groups, used = clusters_used(p, pages);
    r.begin = r.cluster < used ? run_start(r.cluster, pages, used) : 0;
    r.end = r.cluster < used ? run_start(r.cluster + 1, pages, used) : 0;
    return r;
}

__device__ __forceinline__ int request_of(const int32_t *prefix, int batch, int x)
{
    return kvd_last_true(0, batch, [=](int i) { return __ldg(prefix + i) <= x; });
}

/* Copies projection matrices and latent vectors to shared memory, in one thread. Latent vectors are
 * copied in this order: K of page 0, K of page 1, V of page 0, K of page 2, V of page 1, and so
 * on. */
__device__ __forceinline__ void produce(const params &p, uint32_t smem)
{
    const run mine = my_run(p);
    const int end = mine.end, per_group = mine.per_group;
    const uint32_t ring = smem + OFF_UP + static_cast<uint32_t>(p.rank_k) * 512;
    const uint32_t rank = cluster_rank();
    const uint32_t full = smem + OFF_FULL, empty = smem + OFF_EMPTY,
                   up_full = smem + OFF_UP_BARRIERS;
    const uint32_t k_bytes = static_cast<uint32_t>(p.rank_k) * TOKENS * 2;
    const uint32_t v_bytes = static_cast<uint32_t>(p.rank_v) * TOKENS * 2;
    const long long group_elements = static_cast<long long>(TOKENS) * (p.rank_k + p.rank_v);
    uint64_t policy;
    place at = {0, 0};

    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    const auto push = [&](const char *from, uint32_t bytes) {
        for (uint32_t done = 0; done < bytes; done += PIECE_BYTES) {
            const uint32_t n = min(bytes - done, static_cast<uint32_t>(PIECE_BYTES)), half = n / 2;
            mbar_wait(empty + at.at * 8, at.parity ^ 1);
            mbar_arrive_expect(full + at.at * 8, n);
            copy_to_both(ring + at.at * PIECE_BYTES + rank * half, from + done + rank * half, half,
                         full + at.at * 8, policy);
            step(at, p.places);
        }
    };

    int x = mine.begin;
    for (int turn = 0; x < end; turn++) {
        const int g = x / per_group, group_end = min(end, (g + 1) * per_group);
        const char *pages = reinterpret_cast<const char *>(p.pool + g * group_elements);
        const char *v_before = nullptr;
        const uint32_t up_piece = static_cast<uint32_t>(p.rank_k) / 16 * 8192;
        if (turn > 0)
            mbar_wait(up_full + 8, static_cast<uint32_t>(turn - 1) & 1);
        mbar_arrive_expect(up_full, up_piece);
        const char *up =
            reinterpret_cast<const char *>(p.up) + static_cast<size_t>(2 * g + rank) * up_piece;
        for (uint32_t done = 0; done < up_piece; done += 8192)
            bulk_copy(smem + OFF_UP + done, up + done, 8192, up_full);

        int b = request_of(p.prefix, p.batch, x - g * per_group);
        while (x < group_end) {
            const int first = x - g * per_group - __ldg(p.prefix + b);
            const int n = min(group_end - x, __ldg(p.prefix + b + 1) - __ldg(p.prefix + b) - first);
            const int32_t *table = p.page_table + static_cast<long long>(b) * p.max_pages + first;
            int page = __ldg(table);
            for (int i = 0; i < n; i++) {
                const char *k = pages + page * p.page_elements * 2;
                if (i + 1 < n)
                    page = __ldg(table + i + 1);
                push(k, k_bytes);
                if (v_before)
                    push(v_before, v_bytes);
                v_before = k + k_bytes;
            }
            x += n;
            b++;
        }
        push(v_before, v_bytes);
    }
}

template <int dtype, int rank_k>
__device__ __forceinline__ void consume(const params &p, char *base, uint32_t smem)
{
    const run mine = my_run(p);
    const int begin = mine.begin, end = mine.end, per_group = mine.per_group,
              cluster = mine.cluster;
    const uint32_t ring = smem + OFF_UP + rank_k * 512;
    const int w = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) >> 7, 0),
              tid = threadIdx.x & 127;
    const int warp = __shfl_sync(0xffffffff, tid >> 5, 0), lane = tid & 31;
    const int row = lane >> 2, quad = lane & 3;
    constexpr uint32_t places = places_for(rank_k),
                       k_pieces = (rank_k + PIECE_RANKS - 1) / PIECE_RANKS;
    const uint32_t rank = cluster_rank();
    const uint32_t full = smem + OFF_FULL, empty = smem + OFF_EMPTY,
                   up_full = smem + OFF_UP_BARRIERS;
    const uint32_t v_pieces = static_cast<uint32_t>(p.rank_v + PIECE_RANKS - 1) / PIECE_RANKS;
    char *const queries = base + OFF_QUERY + w * QUERIES * QUERY_PITCH;
    char *const weights = base + OFF_P + w * TOKENS * QUERIES * 2;
    float *const tops = reinterpret_cast<float *>(base + OFF_MAX) + w * 4 * QUERIES;
    const int my_query = tid >> 4,
              /* This thread rotates dimensions i and i + 64, for i = my_pair .. my_pair + 3. */
        my_pair = (tid & 15) * 4;

    /* Cosines and sines, as 16-bit numbers, of the RoPE rotations by 0 .. 63 positions. */
    uint32_t turn_by[TURNS_KEPT * 4];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint32_t cs[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int at = (16 * warp + row + 8 * (e >> 1)) * (D / 2) + 8 * j + 2 * quad + (e & 1);
            cs[e] = pack<false>(__ldg(p.cosine + at), __ldg(p.sine + at));
            if (j < TURNS_KEPT)
                turn_by[(4 * j + e) % (TURNS_KEPT * 4)] = cs[e];
        }
        if (j >= TURNS_KEPT && w == 0)
            reinterpret_cast<uint4 *>(base + OFF_TURN)[(j - TURNS_KEPT) * 128 + tid] =
                make_uint4(cs[0], cs[1], cs[2], cs[3]);
    }
    bar_sync(5, 256);

    float d[128];
    /* Number of latent pieces (64 tokens x 64 dimensions) read by earlier iterations of the loop
     * below. */
    uint32_t sequence = 0;
    int x = begin;
    for (int turn = 0; x < end; turn++) {
        const int g = x / per_group, group_end = min(end, (g + 1) * per_group), group_begin = x;
        const uint32_t n_run = static_cast<uint32_t>(group_end - group_begin);
        mbar_wait(up_full, static_cast<uint32_t>(turn) & 1);

        int b = request_of(p.prefix, p.batch, x - g * per_group);
        while (x < group_end) {
            const int first = x - g * per_group - __ldg(p.prefix + b);
            const int n = min(group_end - x, __ldg(p.prefix + b + 1) - __ldg(p.prefix + b) - first);
            const int len = __ldg(p.kv_len + b);

            uint2 q_low = {0, 0}, q_high = {0, 0};
            if ((my_query & 3) < p.group) {
                const int head = (4 * g + 2 * static_cast<int>(rank) + (my_query >> 2)) * p.group +
                                 (my_query & 3);
                const uint16_t *q =
                    p.q + (static_cast<long long>(b) * p.n_heads + head) * D + my_pair;
                q_low = __ldg(reinterpret_cast<const uint2 *>(q));
                q_high = __ldg(reinterpret_cast<const uint2 *>(q + D / 2));
            }

            float o[4][4] = {}, top[2] = {-CUDART_INF_F, -CUDART_INF_F}, total[2] = {0, 0};
            for (int i = (x - begin + w) & 1; i < n; i += 2) {
                const uint32_t in_run = static_cast<uint32_t>(x - group_begin + i);
                const int tile = first + i;
                const int turned = tile * (TOKENS * D / 2) + my_pair;
                float4 c4 = __ldg(reinterpret_cast<const float4 *>(p.cosine + turned));
                float4 s4 = __ldg(reinterpret_cast<const float4 *>(p.sine + turned));

                /* Rebuilds the keys of a page: latent vectors times the projection matrix. */
                place at = place_of(
                    sequence + in_run * (k_pieces + v_pieces) - (in_run ? v_pieces : 0), places);
                uint32_t before = 0;
                if (x + i > begin)
                    bar_sync(1 + w, 256);
#pragma unroll
                for (uint32_t c = 0; c < k_pieces; c++) {
                    const uint64_t a = wgmma_desc(ring + at.at * PIECE_BYTES, 1024, 128);
                    const uint64_t u = wgmma_desc(smem + OFF_UP + c * (4 * 8192), 4096, 128);
                    mbar_wait(full + at.at * 8, at.parity);
                    wgmma_begin();
#pragma unroll
                    for (uint32_t k = 0; k < 4; k++)
                        if (c * PIECE_RANKS + k * 16 < rank_k)
                            wgmma_ss<dtype == KVD_BF16>(d, a + k * (2048 >> 4), u + k * (8192 >> 4),
                                                        (c | k) != 0);
                    wgmma_commit();
                    if (c > 0) {
                        wgmma_wait<1>();
                        if (lane < 2)
                            barrier_arrive_at(empty + before * 8, lane);
                    }
                    before = at.at;
                    step(at, places);
                }
                if (x + i + 1 < end)
                    bar_arrive(2 - w, 256);

                /* RoPE rotates the rebuilt keys only by their offsets in the page. To make up for
                 * that, the query is rotated back by the position of the page's first token. */
                {
                    /* Makes the compiler use cosines c4 and sines s4 only after the matrix products
                     * above. */
                    asm volatile("" : "+f"(c4.x), "+f"(c4.y), "+f"(c4.z), "+f"(c4.w)::"memory");
                    asm volatile("" : "+f"(s4.x), "+f"(s4.y), "+f"(s4.z), "+f"(s4.w)::"memory");
                    const float c[4] = {c4.x, c4.y, c4.z, c4.w}, s[4] = {s4.x, s4.y, s4.z, s4.w};
                    const float scale = 0.08838834764831845f * 1.4426950408889634f;
                    float low[4], high[4];
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const float l = scale * half_of<dtype>(e < 2 ? q_low.x : q_low.y, e & 1);
                        const float h = scale * half_of<dtype>(e < 2 ? q_high.x : q_high.y, e & 1);
                        low[e] = l * c[e] + h * s[e];
                        high[e] = h * c[e] - l * s[e];
                    }
                    char *to = queries + my_query * QUERY_PITCH + (my_pair & 7) / 2 * 64 +
                               my_pair / 16 * 8 + (my_pair & 8) / 2;
                    *reinterpret_cast<uint32_t *>(to) = pack<dtype == KVD_BF16>(low[0], low[1]);
                    *reinterpret_cast<uint32_t *>(to + 64) =
                        pack<dtype == KVD_BF16>(low[2], low[3]);
                    *reinterpret_cast<uint32_t *>(to + 32) =
                        pack<dtype == KVD_BF16>(high[0], high[1]);
                    *reinterpret_cast<uint32_t *>(to + 96) =
                        pack<dtype == KVD_BF16>(high[2], high[3]);
                }
                wgmma_wait<0>();
                if (lane < 2)
                    barrier_arrive_at(empty + before * 8, lane);
#pragma unroll
                for (int e = 0; e < 128; e++)
                    asm volatile("" : "+f"(d[e])::"memory");
                bar_sync(3 + w, 128);

                /* Four separate accumulators let four chains of mma instructions overlap. */
                float s[4][4] = {};
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const uint2 q_here = *reinterpret_cast<const uint2 *>(
                        queries + row * QUERY_PITCH + quad * 64 + k * 8);
                    const uint2 q_there = *reinterpret_cast<const uint2 *>(
                        queries + row * QUERY_PITCH + quad * 64 + k * 8 + 32);
                    uint32_t turn[8];
#pragma unroll
                    for (int j = 2 * k; j < 2 * k + 2; j++)
                        if (j < TURNS_KEPT) {
#pragma unroll
                            for (int e = 0; e < 4; e++)
                                turn[j % 2 * 4 + e] = turn_by[(4 * j + e) % (TURNS_KEPT * 4)];
                        } else {
                            const uint4 t = reinterpret_cast<const uint4 *>(
                                base + OFF_TURN)[(j - TURNS_KEPT) * 128 + tid];
                            turn[j % 2 * 4] = t.x;
                            turn[j % 2 * 4 + 1] = t.y;
                            turn[j % 2 * 4 + 2] = t.z;
                            turn[j % 2 * 4 + 3] = t.w;
                        }
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        const bool mine = (row >> 2) == h;
                        float *low = d + (16 * h + 2 * k) * 4, *high = low + 32;
#pragma unroll
                        for (int e = 0; e < 8; e++) {
                            const float2 cs =
                                __half22float2(*reinterpret_cast<const __half2 *>(&turn[e]));
                            const float l = low[e], u = high[e];
                            low[e] = l * cs.x - u * cs.y;
                            high[e] = u * cs.x + l * cs.y;
                        }
                        const uint32_t a[4] = {pack<dtype == KVD_BF16>(low[0], low[1]),
                                               pack<dtype == KVD_BF16>(low[2], low[3]),
                                               pack<dtype == KVD_BF16>(low[4], low[5]),
                                               pack<dtype == KVD_BF16>(low[6], low[7])};
                        mma_in_order<dtype == KVD_BF16>(s[2 * h], a, mine ? q_here.x : 0,
                                                        mine ? q_here.y : 0);
                        const uint32_t a2[4] = {pack<dtype == KVD_BF16>(high[0], high[1]),
                                                pack<dtype == KVD_BF16>(high[2], high[3]),
                                                pack<dtype == KVD_BF16>(high[4], high[5]),
                                                pack<dtype == KVD_BF16>(high[6], high[7])};
                        mma_in_order<dtype == KVD_BF16>(s[2 * h + 1], a2, mine ? q_there.x : 0,
                                                        mine ? q_there.y : 0);
                    }
                }
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[0][e] = (s[0][e] + s[1][e]) + (s[2][e] + s[3][e]);
                if ((tile + 1) * TOKENS > len) {
                    const int t = tile * TOKENS + 16 * warp + row;
                    if (t >= len)
                        s[0][0] = s[0][1] = -CUDART_INF_F;
                    if (t + 8 >= len)
                        s[0][2] = s[0][3] = -CUDART_INF_F;
                }

                /* Online softmax in base 2. q includes the factor log2 e. */
                float high[2] = {fmaxf(s[0][0], s[0][2]), fmaxf(s[0][1], s[0][3])};
#pragma unroll
                for (int far = 4; far < 32; far *= 2) {
                    high[0] = fmaxf(high[0], __shfl_xor_sync(0xffffffff, high[0], far));
                    high[1] = fmaxf(high[1], __shfl_xor_sync(0xffffffff, high[1], far));
                }
                if (row == 0)
                    *reinterpret_cast<float2 *>(tops + warp * QUERIES + 2 * quad) =
                        make_float2(high[0], high[1]);
                bar_sync(3 + w, 128);
                float fade[2] = {top[0], top[1]};
#pragma unroll
                for (int i4 = 0; i4 < 4; i4++) {
                    const float2 other =
                        *reinterpret_cast<const float2 *>(tops + i4 * QUERIES + 2 * quad);
                    top[0] = fmaxf(top[0], other.x);
                    top[1] = fmaxf(top[1], other.y);
                }
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    fade[e] = kvd_exp2_in_order(fade[e] - top[e]);
                    s[0][e] = kvd_exp2_in_order(s[0][e] - top[e]);
                    s[0][e + 2] = kvd_exp2_in_order(s[0][e + 2] - top[e]);
                    total[e] = total[e] * fade[e] + s[0][e] + s[0][e + 2];
                }
                uint32_t *const to =
                    reinterpret_cast<uint32_t *>(weights) + (16 * warp + row) * 4 + quad;
                to[0] = pack<dtype == KVD_BF16>(s[0][0], s[0][1]);
                to[32] = pack<dtype == KVD_BF16>(s[0][2], s[0][3]);
                bar_sync(3 + w, 128);

                /* Warp i computes elements 16 i .. 16 i + 15 of every 64 elements of the output. */
                uint32_t b0[4], b1[4];
                ldmatrix_trans(kvd_smem(weights) + static_cast<uint32_t>(lane) * 16, b0);
                ldmatrix_trans(kvd_smem(weights) + static_cast<uint32_t>(lane + 32) * 16, b1);
                at = place_of(sequence + in_run * (k_pieces + v_pieces) + k_pieces +
                                  (in_run + 1 < n_run ? k_pieces : 0),
                              places);
                const uint32_t from =
                    ring + static_cast<uint32_t>(2 * warp + ((lane >> 3) & 1)) * 1024 +
                    static_cast<uint32_t>(lane >> 4) * 128 + static_cast<uint32_t>(lane & 7) * 16;
                uint32_t a[4][4][4] = {};
#pragma unroll
                for (int c = 0; c < 4; c++)
                    if (static_cast<uint32_t>(c) < v_pieces) {
                        mbar_wait(full + at.at * 8, at.parity);
                        if (c * PIECE_RANKS + 16 * warp < p.rank_v) {
#pragma unroll
                            for (int k = 0; k < 4; k++)
                                ldmatrix_trans(from + at.at * PIECE_BYTES + k * 256, a[c][k]);
                        }
                        __syncwarp();
                        if (lane < 2)
                            barrier_arrive_at(empty + at.at * 8, lane);
                        step(at, places);
                    }
                /* Four separate accumulators: in a single one, each product would wait for the
                 * previous one. */
                float t[4][4][4] = {};
#pragma unroll
                for (int k = 0; k < 4; k++)
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        mma_in_order<dtype == KVD_BF16>(
                            t[k][c], a[c][k], k & 2 ? b1[(k & 1) * 2] : b0[(k & 1) * 2],
                            k & 2 ? b1[(k & 1) * 2 + 1] : b0[(k & 1) * 2 + 1]);
#pragma unroll
                for (int c = 0; c < 4; c++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        o[c][e] = o[c][e] * fade[e & 1] +
                                  ((t[0][c][e] + t[1][c][e]) + (t[2][c][e] + t[3][c][e]));
            }

            const long long slot =
                ((static_cast<long long>(cluster) + g * p.batch + b) * 2 + rank) * 2 + w;
            float *part = p.part + slot * QUERIES * p.rank_v;
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const int r = c * PIECE_RANKS + 16 * warp;
                if (r < p.rank_v) {
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        part[(2 * quad + (e & 1)) * p.rank_v + r + row + 8 * (e >> 1)] = o[c][e];
                }
            }
#pragma unroll
            for (int far = 4; far < 32; far *= 2) {
                total[0] += __shfl_xor_sync(0xffffffff, total[0], far);
                total[1] += __shfl_xor_sync(0xffffffff, total[1], far);
            }
            bar_sync(3 + w, 128);
            if (row == 0)
                *reinterpret_cast<float2 *>(tops + warp * QUERIES + 2 * quad) =
                    make_float2(total[0], total[1]);
            bar_sync(3 + w, 128);
            if (tid < 4) {
                float2 sum = make_float2(0, 0);
                for (int i = 0; i < 4; i++) {
                    const float2 other =
                        *reinterpret_cast<const float2 *>(tops + i * QUERIES + 2 * quad);
                    sum.x += other.x;
                    sum.y += other.y;
                }
                float4 *ml = reinterpret_cast<float4 *>(p.part_ml + slot * QUERIES * 2) + quad;
                *ml = make_float4(top[0], sum.x, top[1], sum.y);
            }
            x += n;
            b++;
        }
        sequence += n_run * (k_pieces + v_pieces);
        if (x < end) {
            __syncwarp();
            if (lane == 0)
                mbar_arrive(up_full + 8);
        }
    }
}
} // namespace

#endif
