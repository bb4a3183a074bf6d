/* Restores K and V from latent vectors that adjacent KV heads share, with wgmma instructions of
 * Hopper GPUs.
 *
 * A cluster of two CTAs restores 256 tokens of two heads. Each CTA loads half of the projection
 * into the shared memory of the two CTAs. */
#include "common/cuda/launch.cuh"
#include "kernels/cuda/sm90.cuh"
#include "methods/dims/cuda/latents.h"

namespace
{

enum {
    D = 128,       /* dimensions of a KV head */
    COLUMNS = 256, /* dimensions that a CTA computes */
    RANKS = 64,    /* latent dimensions per ring-buffer stage */
    STAGES = 4,
    CTAS = 2,
    CONSUMERS = 2,
    THREADS = 128 * (1 + CONSUMERS),
    TOKENS = KVD_PAGE_TOKENS * CONSUMERS,
    A_BYTES = RANKS * KVD_PAGE_TOKENS * 2,
    RUN_BYTES = COLUMNS * 16, /* bytes of 8 rows of the projection */
    /* Bytes that 16 latent dimensions take in shared memory: in a page of latent vectors (BLOCK_A),
     * and in the projection (BLOCK_B). */
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

/* Copies bytes to the same shared memory address in both CTAs of the cluster. */
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

/* Current stage of the ring buffer in shared memory, and parity of the stage's barriers. */
struct place {
    int stage;
    uint32_t parity;
};

__device__ __forceinline__ void advance(place &p)
{
    p.stage = p.stage + 1 == STAGES ? 0 : p.stage + 1;
    p.parity ^= p.stage == 0;
}

/* Work of a thread block: K or V of KV heads 2 * tile and 2 * tile + 1 of request b, for tokens
 * `token` .. `token` + 127. */
struct task {
    int b, length, token, side, tile;
};

/* Iterator over the tasks of a cluster of two thread blocks. In a task, each block restores K or V
 * of two heads and 128 tokens. */
struct tasks {
    /* number: index of the next task. b: request of the task. before: number of tasks of earlier
     * requests. */
    int number, b, before;
};

/* Sets *t to the next tokens and KV heads that this thread block restores. Returns false if none
 * are left. */
__device__ __forceinline__ bool next_task(const kvd_latent_restore_args &a, tasks &s, task *t)
{
    const int sides = a.keys_alone ? 1 : 2, each = a.n_kv_heads / 2 * sides;
    for (; s.b < a.n; s.b++) {
        const int length = max(__ldg(a.kv_len + s.b) - a.newest, 0),
                  n = (length + CTAS * TOKENS - 1) / (CTAS * TOKENS) * each,
                  i = s.number - s.before;
        if (i < n) {
            const int block = i / each;
            *t = {s.b, length, (block * CTAS + (int)cta_of_cluster()) * TOKENS, (i + block) % sides,
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

/* Projection that restores K or V of two adjacent KV heads, its rank, and the offset of the heads'
 * latent vectors in a page. */
struct factors {
    const uint16_t *b;
    int rank, latent;
};

__device__ __forceinline__ factors factors_of(const kvd_latent_restore_args &a, const task &t)
{
    const kvd_latent_head *const h = a.head + 2 * t.tile;
    return {static_cast<const uint16_t *>(a.matrix) + __ldg(h->matrix + t.side) +
                (a.slot ? __ldg(a.slot + t.b) * a.matrix_slot : 0),
            __ldg(h->rank + t.side), __ldg(h->latent + t.side)};
}

struct barriers {
    uint32_t full, empty; /* shared addresses of the barriers, [STAGES] each */
};

/* Copies latent vectors and projections to the ring buffer in shared memory, for the thread block's
 * matrix products. Only one thread of the block may call it. */
__device__ void request_all(const kvd_latent_restore_args &a, uint32_t smem, barriers bar)
{
    const uint32_t cta = cta_of_cluster();
    tasks s = {(int)blockIdx.x / CTAS, 0, 0};
    task t;
    for (place p = {0, 0}; next_task(a, s, &t);) {
        const factors f = factors_of(a, t);
        const uint16_t *from[CONSUMERS];
#pragma unroll
        for (int i = 0; i < CONSUMERS; i++)
            from[i] = static_cast<const uint16_t *>(a.latents) + page_at(a, t, i) * a.latent_page +
                      f.latent;
        for (int k = 0; k < f.rank; k += RANKS, advance(p)) {
            const uint32_t n = (uint32_t)min((int)RANKS, f.rank - k), runs = n / 8,
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
                               f.b + ((size_t)k / 8 + i) * (size_t)a.columns * 8, RUN_BYTES, full);
        }
    }
}

/* Cosines and sines of RoPE for one token and the dimensions that a thread computes. They are equal
 * for all heads. */
struct turn {
    float cs[D / 8], sn[D / 8];
};

/* Loads two floats from global memory. The assembly is volatile, so that the compiler does not move
 * the load. */
__device__ __forceinline__ float2 load_here(const float *from)
{
    float2 x;
    asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "l"(from));
    return x;
}
__device__ __forceinline__ float load_one_here(const float *from)
{
    float x;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(x) : "l"(from));
    return x;
}

__device__ __forceinline__ void load_turn(const kvd_latent_restore_args &a, int position, int lane,
                                          turn *to)
{
    const size_t from = (size_t)position * (D / 2);
    if (a.interleaved) {
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            to->cs[n] = load_one_here(a.cosine + from + 4 * n + lane % 4);
            to->sn[n] = load_one_here(a.sine + from + 4 * n + lane % 4);
        }
        return;
    }
#pragma unroll
    for (int n = 0; n < D / 16; n++) {
        const float2 cs = load_here(a.cosine + from + 8 * n + 2 * (lane % 4)),
                     sn = load_here(a.sine + from + 8 * n + 2 * (lane % 4));
        to->cs[2 * n] = cs.x;
        to->cs[2 * n + 1] = cs.y;
        to->sn[2 * n] = sn.x;
        to->sn[2 * n + 1] = sn.y;
    }
}

/* Applies RoPE to the keys of two heads, for token i (0 or 1) of the thread's two tokens. */
__device__ __forceinline__ void apply_rope(float (&x)[COLUMNS / 2], const turn &by, int i,
                                           bool interleaved)
{
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            /* Index of a RoPE pair's first element: `near` if pairs are interleaved, `far` if the
             * elements of a pair are half a head apart. */
            const int near = (h * (D / 8) + n) * 4 + 2 * i,
                      far = (h * (D / 8) + n / 2) * 4 + 2 * i + n % 2;
            if (interleaved) {
                const float u = x[near], v = x[near + 1];
                x[near] = u * by.cs[n] - v * by.sn[n];
                x[near + 1] = v * by.cs[n] + u * by.sn[n];
            } else {
                const float u = x[far], v = x[far + D / 4];
                x[far] = u * by.cs[n] - v * by.sn[n];
                x[far + D / 4] = v * by.cs[n] + u * by.sn[n];
            }
        }
}

__device__ __forceinline__ void write_row(uint32_t *const (&to)[2], const float (&x)[COLUMNS / 2],
                                          int i, bool there)
{
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            const int at = (h * (D / 8) + n) * 4 + 2 * i;
            to[h][i * (4 * D) + n * 32] = there ? pack<true>(x[at], x[at + 1]) : 0;
        }
}

/* Starts computing x = A B or, if `more` is not 0, x += A B. A has 16 N columns. */
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

/* Restores K or V from latent vectors, for two heads at a time. If FINISHES is true, also adds
 * biases, and applies the RMS norm to K. */
template <bool FINISHES>
__device__ __forceinline__ void compute_all(const kvd_latent_restore_args &a, uint32_t smem,
                                            barriers bar, int group)
{
    const int warp = (int)threadIdx.x / 32 % 4, lane = (int)threadIdx.x % 32;
    tasks s = {(int)blockIdx.x / CTAS, 0, 0};
    task t;
    float x[COLUMNS / 2];
    for (place p = {0, 0}; next_task(a, s, &t);) {
        const int rank = factors_of(a, t).rank, first = t.token + group * KVD_PAGE_TOKENS,
                  row = first + 16 * warp + lane / 4;
        const bool turns = t.side == 0 && a.cosine;
        /* Barrier that marks the ring-buffer stage of the previous wgmma group as free. */
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
            /* Waits until the matrix products of the previous ring-buffer stage are complete. */
            if (k && blocks == RANKS / 16)
                wgmma_wait<1>();
            else if (k)
                wgmma_wait<0>();
            if (k && lane == 0)
                arrive_both(used);
            used = bar.empty + 8 * (uint32_t)p.stage;
        }
        /* Computes addresses and loads RoPE factors while the tile's matrix products still run. */
        uint16_t *const page = static_cast<uint16_t *>(a.pages) + page_at(a, t, group) * a.page;
        const kvd_latent_head *const head = a.head + 2 * t.tile;
        uint32_t *const to[2] = {reinterpret_cast<uint32_t *>(page + __ldg(head[0].page + t.side)) +
                                     warp * (8 * D) + lane,
                                 reinterpret_cast<uint32_t *>(page + __ldg(head[1].page + t.side)) +
                                     warp * (8 * D) + lane};
        turn by[2];
        if (turns && !FINISHES)
#pragma unroll
            for (int i = 0; i < 2; i++)
                load_turn(a, min(row + 8 * i, t.length - 1), lane, by + i);
        wgmma_wait<0>();
        hold(x);
        if (lane == 0)
            arrive_both(used);
        if (first >= t.length)
            continue;
        if constexpr (FINISHES) {
#pragma unroll
            for (int h = 0; h < 2; h++)
                kvd_latent_finish<D / 8>(
                    x + h * (D / 2),
                    a.bias ? a.bias + (t.side * a.n_kv_heads + 2 * t.tile + h) * D : NULL,
                    t.side ? NULL : a.gain, a.eps, lane);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const bool there = row + 8 * i < t.length;
            if (turns && FINISHES)
                load_turn(a, min(row + 8 * i, t.length - 1), lane, by + i);
            if (turns)
                apply_rope(x, by[i], i, a.interleaved);
            /* Sets the rows after the computed K and V to 0, if no newer tokens are stored
             * there. */
            if (there || !a.newest)
                write_row(to, x, i, there);
        }
    }
}

template <bool FINISHES>
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
        compute_all<FINISHES>(a, smem, bar, group - 1);
    }
    /* Waits for the other thread block of the cluster, which may still signal barriers in this
     * block's shared memory. */
    cluster_meet();
}

} // namespace

bool kvd_latent_joins(int32_t heads, int32_t d_head)
{
    int device = 0, major = 0;
    return d_head == D && heads % (COLUMNS / D) == 0 && cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major == 9;
}

cudaError_t kvd_latent_restore_joint(const kvd_latent_restore_args *a, cudaStream_t stream)
{
    const int bytes = STAGES * STAGE_BYTES;
    if (a->n < 1 || a->d_head != D || a->n_kv_heads % (COLUMNS / D) || a->n_sms < CTAS ||
        a->newest < 0 || a->columns % COLUMNS || a->position || a->positions || a->window ||
        a->latent_table)
        return cudaErrorInvalidValue;
    return kvd_launch(a->bias || a->gain ? restore_joint<true> : restore_joint<false>,
                      a->n_sms / CTAS * CTAS, THREADS, (size_t)bytes, stream, *a);
}
