/*
 * kvd_latent_restore with wgmma, for shared latents. A CTA computes [128 tokens][256 dims] = L
 * [128][rank] B [rank][256]. Both CTAs of a cluster need the same parts of B, so each loads one
 * half of every part for both. One warpgroup copies; two compute a page of 64 tokens each.
 */
#include "common/cuda/launch.cuh"
#include "kernels/cuda/sm90.cuh"
#include "methods/dims/cuda/latents.h"

namespace
{

enum {
    D = 128,       /* dimensions of a KV head */
    COLUMNS = 256, /* dimensions that a CTA computes */
    RANKS = 64,    /* ranks of a ring-buffer stage */
    STAGES = 4,
    CTAS = 2,
    CONSUMERS = 2,
    THREADS = 128 * (1 + CONSUMERS),
    TOKENS = KVD_PAGE_TOKENS * CONSUMERS,
    A_BYTES = RANKS * KVD_PAGE_TOKENS * 2,
    RUN_BYTES = COLUMNS * 16, /* bytes of 8 rows (ranks) of B */
    /* Bytes of 16 ranks: of a page's latents, and of B. */
    BLOCK_A = A_BYTES / (RANKS / 16),
    BLOCK_B = 2 * RUN_BYTES,
    STAGE_BYTES = CONSUMERS * A_BYTES + RANKS / 8 * RUN_BYTES
};

__device__ __forceinline__ uint32_t cta_of_cluster(void)
{
    uint32_t x;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(x));
    return x;
}

__device__ __forceinline__ void cluster_meet(void)
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/* Copies to one shared address in both CTAs; each CTA's `bar` counts the bytes. */
__device__ __forceinline__ void bulk_copy_both(uint32_t dst, const void *src, uint32_t bytes,
                                               uint32_t bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
                 "cluster [%0], [%1], %2, [%3], %4;" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(bar), "h"((uint16_t)((1 << CTAS) - 1))
                 : "memory");
}

__device__ __forceinline__ void arrive_both(uint32_t bar)
{
#pragma unroll
    for (int i = 0; i < CTAS; i++)
        asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
                     "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there]; }" ::"r"(bar),
                     "r"(i)
                     : "memory");
}

/* Stage of the ring buffer, and phase parity of its barriers. */
struct place {
    int stage;
    uint32_t parity;
};

__device__ __forceinline__ void advance(place &p)
{
    p.stage = p.stage + 1 == STAGES ? 0 : p.stage + 1;
    p.parity ^= p.stage == 0;
}

/* Tokens and columns of a CTA: heads 2 * tile and 2 * tile + 1. */
struct task {
    int b, length, token, side, tile;
};

/* Tasks of a cluster of CTAs: K, and V if a.joint has it, of all pairs of heads, per 256 tokens. */
struct tasks {
    /* Next task, its request, and number of tasks in earlier requests. */
    int number, b, before;
};

/* Returns false after the cluster's last task. */
__device__ __forceinline__ bool next_task(const kvd_latent_restore_args &a, tasks &s, task *t)
{
    const int sides = a.joint[1] ? 2 : 1, each = a.n_kv_heads / 2 * sides;
    for (; s.b < a.n; s.b++) {
        const int length = max(__ldg(a.kv_len + s.b) - a.newest, 0),
                  n = (length + CTAS * TOKENS - 1) / (CTAS * TOKENS) * each,
                  i = s.number - s.before;
        if (i < n) {
            *t = {s.b, length, (i / each * CTAS + (int)cta_of_cluster()) * TOKENS, i % each % sides,
                  i % each / sides};
            s.number += (int)gridDim.x / CTAS;
            return true;
        }
        s.before += n;
    }
    return false;
}

__device__ __forceinline__ size_t page_at(const kvd_latent_restore_args &a, const task &t, int page)
{
    return (size_t)__ldg(a.page_table + (size_t)t.b * a.max_pages +
                         min(t.token / KVD_PAGE_TOKENS + page, (t.length - 1) / KVD_PAGE_TOKENS));
}

struct barriers {
    uint32_t full, empty; /* shared addresses of the barriers, [STAGES] each */
};

/* Starts the copies of latents and B to the ring buffer. One thread must call it. */
__device__ void request_all(const kvd_latent_restore_args &a, uint32_t smem, barriers bar)
{
    const uint32_t cta = cta_of_cluster();
    tasks s = {(int)blockIdx.x / CTAS, 0, 0};
    task t;
    for (place p = {0, 0}; next_task(a, s, &t);) {
        const int rank = a.joint_rank[t.side];
        const size_t wide = (size_t)a.n_kv_heads * D;
        const uint16_t *const b =
            static_cast<const uint16_t *>(a.joint[t.side]) + (size_t)t.tile * COLUMNS * 8;
        const uint16_t *from[CONSUMERS];
#pragma unroll
        for (int i = 0; i < CONSUMERS; i++)
            from[i] = static_cast<const uint16_t *>(a.latents) + page_at(a, t, i) * a.latent_page +
                      a.joint_latent[t.side];
        for (int k = 0; k < rank; k += RANKS, advance(p)) {
            const uint32_t n = (uint32_t)min((int)RANKS, rank - k), runs = n / 8,
                           to = smem + (uint32_t)(p.stage * STAGE_BYTES),
                           full = bar.full + 8 * (uint32_t)p.stage;
            mbar_wait(bar.empty + 8 * (uint32_t)p.stage, p.parity ^ 1);
            mbar_arrive_expect(full, CONSUMERS * n * (KVD_PAGE_TOKENS * 2) + runs * RUN_BYTES);
#pragma unroll
            for (int i = 0; i < CONSUMERS; i++)
                bulk_copy(to + (uint32_t)(i * A_BYTES), from[i] + k * KVD_PAGE_TOKENS,
                          n * (KVD_PAGE_TOKENS * 2), full);
            for (uint32_t i = cta * runs / CTAS; i < (cta + 1) * runs / CTAS; i++)
                bulk_copy_both(to + CONSUMERS * A_BYTES + i * RUN_BYTES,
                               b + ((size_t)k / 8 + i) * wide * 8, RUN_BYTES, full);
        }
    }
}

/* Applies RoPE to keys of two heads, rows `token` + lane / 4 and 8 later. */
__device__ __forceinline__ void apply_rope(const kvd_latent_restore_args &a,
                                           float (&x)[COLUMNS / 2], int token, int length, int lane)
{
    enum { HALF = D / 2, BLOCKS = D / 8 };
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const size_t from = (size_t)min(token + lane / 4 + 8 * i, length - 1) * HALF;
#pragma unroll
        for (int n = 0; n < BLOCKS; n++) {
            if (a.interleaved) {
                const float cs = __ldg(a.cosine + from + 4 * n + lane % 4),
                            sn = __ldg(a.sine + from + 4 * n + lane % 4);
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int at = (h * BLOCKS + n) * 4 + 2 * i;
                    const float u = x[at], v = x[at + 1];
                    x[at] = u * cs - v * sn;
                    x[at + 1] = v * cs + u * sn;
                }
            } else if (n < BLOCKS / 2) {
                const float2 cs =
                    __ldg(reinterpret_cast<const float2 *>(a.cosine + from + 8 * n) + lane % 4);
                const float2 sn =
                    __ldg(reinterpret_cast<const float2 *>(a.sine + from + 8 * n) + lane % 4);
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int at = (h * BLOCKS + n) * 4 + 2 * i, other = at + BLOCKS / 2 * 4;
                    const float u0 = x[at], u1 = x[at + 1], v0 = x[other], v1 = x[other + 1];
                    x[at] = u0 * cs.x - v0 * sn.x;
                    x[at + 1] = u1 * cs.y - v1 * sn.y;
                    x[other] = v0 * cs.x + u0 * sn.x;
                    x[other + 1] = v1 * cs.y + u1 * sn.y;
                }
            }
        }
    }
}

/* Writes rows of two heads. If a.newest is 0, rows after the last token become 0. */
__device__ __forceinline__ void write_page(const kvd_latent_restore_args &a, const task &t,
                                           size_t page, const float (&x)[COLUMNS / 2], int token,
                                           int warp, int lane)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t *const to =
            reinterpret_cast<uint32_t *>(static_cast<uint16_t *>(a.pages) + page * a.page +
                                         a.head[2 * t.tile + h].page[t.side]) +
            2 * warp * (4 * D) + lane;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const bool there = token + lane / 4 + 8 * i < t.length;
            if (!there && a.newest)
                continue;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                const int at = (h * (D / 8) + n) * 4 + 2 * i;
                to[i * (4 * D) + n * 32] = there ? pack<true>(x[at], x[at + 1]) : 0;
            }
        }
    }
}

/* Starts the product of N blocks of 16 ranks. If `more` is nonzero, adds to x. */
template <int N>
__device__ __forceinline__ void add_blocks(float (&x)[COLUMNS / 2], uint32_t A, uint32_t B,
                                           int more)
{
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < N; i++)
        wgmma_ss<true>(x, wgmma_desc(A + (uint32_t)i * BLOCK_A, BLOCK_A / 2, 128),
                       wgmma_desc(B + (uint32_t)i * BLOCK_B, BLOCK_B / 2, 128), more + i);
    wgmma_commit();
}

/* Computes page `group` of every task, by one warpgroup. */
__device__ __forceinline__ void compute_all(const kvd_latent_restore_args &a, uint32_t smem,
                                            barriers bar, int group)
{
    const int warp = (int)threadIdx.x / 32 % 4, lane = (int)threadIdx.x % 32;
    tasks s = {(int)blockIdx.x / CTAS, 0, 0};
    task t;
    float x[COLUMNS / 2];
    for (place p = {0, 0}; next_task(a, s, &t);) {
        const int rank = a.joint_rank[t.side],
                  token = t.token + group * KVD_PAGE_TOKENS + 16 * warp;
        /* barrier of the stage that the second-latest wgmma group reads */
        uint32_t used = 0;
        for (int k = 0; k < rank; k += RANKS, advance(p)) {
            const uint32_t from = smem + (uint32_t)(p.stage * STAGE_BYTES),
                           A = from + (uint32_t)(group * A_BYTES), B = from + CONSUMERS * A_BYTES;
            const int blocks = min((int)RANKS, rank - k) / 16;
            mbar_wait(bar.full + 8 * (uint32_t)p.stage, p.parity);
            if (blocks == RANKS / 16)
                add_blocks<RANKS / 16>(x, A, B, k);
            else
                for (int i = 0; i < blocks; i++)
                    add_blocks<1>(x, A + (uint32_t)i * BLOCK_A, B + (uint32_t)i * BLOCK_B, k + i);
            /* The last stage may start several wgmma groups, so it waits for all. */
            if (k && blocks == RANKS / 16)
                wgmma_wait<1>();
            else if (k)
                wgmma_wait<0>();
            if (k && lane == 0)
                arrive_both(used);
            used = bar.empty + 8 * (uint32_t)p.stage;
        }
        wgmma_wait<0>();
        hold(x);
        if (lane == 0)
            arrive_both(used);
        if (t.token + group * KVD_PAGE_TOKENS >= t.length)
            continue;
        if (a.bias || a.gain)
#pragma unroll
            for (int h = 0; h < 2; h++)
                kvd_latent_finish<D / 8>(
                    x + h * (D / 2),
                    a.bias ? a.bias + (t.side * a.n_kv_heads + 2 * t.tile + h) * D : NULL,
                    t.side ? NULL : a.gain, a.eps, lane);
        if (t.side == 0 && a.cosine)
            apply_rope(a, x, token, t.length, lane);
        write_page(a, t, page_at(a, t, group), x, token, warp, lane);
    }
}

__global__ void __cluster_dims__(CTAS, 1, 1) __launch_bounds__(THREADS, 1)
    restore_joint(const __grid_constant__ kvd_latent_restore_args a)
{
    extern __shared__ __align__(128) unsigned char stages[];
    __shared__ __align__(8) uint64_t bars[2][STAGES];
    const barriers bar = {kvd_smem(bars[0]), kvd_smem(bars[1])};
    const uint32_t smem = kvd_smem(stages);
    const int group = (int)threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbar_init(bar.full + 8 * (uint32_t)i, 1);
            mbar_init(bar.empty + 8 * (uint32_t)i, CTAS * CONSUMERS * 4);
        }
        fence_mbar_init();
    }
    cluster_meet();
    if (group == 0) {
        registers_down<40>();
        if (threadIdx.x == 0)
            request_all(a, smem, bar);
    } else {
        registers_up<232>();
        compute_all(a, smem, bar, group - 1);
    }
    /* A CTA must not end before the other has arrived at its barriers. */
    cluster_meet();
}

} // namespace

bool kvd_latent_joins(int32_t n_kv_heads, int32_t d_head)
{
    int device = 0, major = 0;
    return d_head == D && n_kv_heads % (COLUMNS / D) == 0 &&
           cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major == 9;
}

cudaError_t kvd_latent_restore_joint(const kvd_latent_restore_args *a, cudaStream_t stream)
{
    const int bytes = STAGES * STAGE_BYTES;
    if (a->n < 1 || a->d_head != D || a->n_kv_heads % (COLUMNS / D) || a->n_sms < CTAS ||
        a->newest < 0 || a->joint_rank[0] % 16 || a->joint_rank[1] % 16 || a->slot || a->position)
        return cudaErrorInvalidValue;
    return kvd_launch(restore_joint, a->n_sms / CTAS * CTAS, THREADS, (size_t)bytes, stream, *a);
}
