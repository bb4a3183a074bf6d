/* Sums the attention probabilities that each prompt token received, with wgmma instructions on
 * sm_90. */
#include "common/cuda/launch.cuh"
#include "kernels/cuda/sm90.cuh"
#include "methods/tokens/cuda/evict_rank.cuh"
#include "methods/tokens/gumbel.h"

namespace
{

enum {
    HELD = 128,
    TILE = 128,
    THREADS = 256,
    WARPS = THREADS / 32,
    PAGE = KVD_PAGE_TOKENS,
    SLOTS = 4
};

struct shared {
    uint16_t held[HELD * KVD_WIDTH_NARROW];
    uint16_t tile[2][TILE * KVD_WIDTH_NARROW];
    float column[SLOTS][TILE]; /* logarithms of softmax denominators of a tile's queries */
    float noise[2][2][TILE];   /* Gumbel noise of a tile's keys, [warpgroup][tile % 2] */
    unsigned long long full[2], empty[2], held_full;
};

/* Location in global memory of the queries or keys of one head of one prompt. */
struct side {
    /* For queries: address of the first query. For keys: address of the first key in page 0. */
    const uint16_t *first;
    /* Page table of the keys. NULL for queries, which are contiguous in memory. */
    const int32_t *page;
    int page_elements, d, n;

    /* Returns the number of bytes to copy for tokens t .. t + 63, up to the prompt's length rounded
     * up to 8. */
    __device__ __forceinline__ uint32_t bytes(int t) const
    {
        return (uint32_t)(max(0, min(PAGE, n - t + 7) / 8) * 16 * d);
    }
    __device__ __forceinline__ void copy(int t, uint32_t to, uint32_t bar) const
    {
        if (t < n)
            bulk_copy(to,
                      page ? first + (size_t)page[t / PAGE] * page_elements : first + (size_t)t * d,
                      bytes(t), bar);
    }
};

/* Starts asynchronous copies to shared memory for tokens t to t + 127: their Q or K to address `to`
 * and, unless `lse` is NULL, their elements of `lse` to address `column`. Barrier `bar` completes
 * when both copies are done. One thread must call it. */
__device__ void bring(const side &s, int t, uint32_t to, const float *lse, uint32_t column,
                      uint32_t bar)
{
    const uint32_t floats = lse ? (uint32_t)(min(TILE, s.n - t + 7) / 8 * 32) : 0;
    mbar_arrive_expect(bar, s.bytes(t) + s.bytes(t + PAGE) + floats);
    s.copy(t, to, bar);
    s.copy(t + PAGE, to + (uint32_t)(PAGE * 2 * s.d), bar);
    if (lse)
        bulk_copy(column, lse + t, floats, bar);
}

/* Result of a kernel. DENOMINATORS: log of each query's softmax denominator. SUM, LARGEST: sum or
 * maximum of the probabilities of each key. */
enum kind { DENOMINATORS, SUM, LARGEST };

/* For the two tokens that a thread handles, 8 tokens apart: softmax sums, maximum scores, and the
 * noise of method keyformer. */
struct totals {
    float sum[2], top[2], noise[2];
};

/* Updates this thread's sums of exp(logit), or its maxima, with a tile of logits. If MASKED, skips
 * keys later than the query, and queries outside from_row .. n - 1. */
template <kind KIND, bool MASKED>
__device__ __forceinline__ void add(const float (&x)[TILE / 2], const score_params &p,
                                    const float *column, int token, int other, int from_row, int n,
                                    totals &t)
{
    constexpr bool SUMS = KIND != DENOMINATORS;
    float part[2] = {0, 0};
    const int quad = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < TILE / 8; j++) {
        const float2 c = *reinterpret_cast<const float2 *>(&column[8 * j + quad]);
        const float c0 = SUMS ? c.x * p.lse_factor : c.x, c1 = SUMS ? c.y * p.lse_factor : c.y;
        const int o = other + 8 * j;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int me = token + 8 * r;
            if (KIND == LARGEST) {
                const float y0 = fmaf(x[4 * j + 2 * r], p.factor, -c0),
                            y1 = fmaf(x[4 * j + 2 * r + 1], p.factor, -c1);
                if (!MASKED || (o < n && o >= from_row))
                    t.top[r] = fmaxf(t.top[r], y0);
                if (!MASKED || (o + 1 < n && o + 1 >= from_row))
                    t.top[r] = fmaxf(t.top[r], y1);
            } else if (KIND == SUM) {
                float y0 = kvd_exp2_in_order(fmaf(x[4 * j + 2 * r], p.factor, t.noise[r] - c0)),
                      y1 = kvd_exp2_in_order(fmaf(x[4 * j + 2 * r + 1], p.factor, t.noise[r] - c1));
                if (MASKED) {
                    y0 = o >= me && o < n && o >= from_row ? y0 : 0;
                    y1 = o + 1 >= me && o + 1 < n && o + 1 >= from_row ? y1 : 0;
                }
                part[r] += y0 + y1;
            } else {
                float y0 = fmaf(x[4 * j + 2 * r], p.factor, c0),
                      y1 = fmaf(x[4 * j + 2 * r + 1], p.factor, c1);
                if (MASKED) {
                    y0 = o <= me ? y0 : -INFINITY;
                    y1 = o + 1 <= me ? y1 : -INFINITY;
                }
                const float most = fmaxf(y0, y1);
                if (most > t.top[r]) {
                    const float down = kvd_exp2_in_order(t.top[r] - most);
                    part[r] *= down;
                    t.sum[r] *= down;
                    t.top[r] = most;
                }
                part[r] += kvd_exp2_in_order(y0 - t.top[r]) + kvd_exp2_in_order(y1 - t.top[r]);
            }
        }
    }
    t.sum[0] += part[0];
    t.sum[1] += part[1];
}

/* Multiplies 128 queries by tiles of keys, or 128 keys by tiles of queries. STEPS is d_qk / 16. */
template <kind KIND, int STEPS>
__device__ __forceinline__ void pass(const score_params &p, shared &s, const side &held,
                                     const side &moves, int block, const float *lse, uint64_t head,
                                     totals &t)
{
    enum { D = 16 * STEPS };
    constexpr bool SUMS = KIND != DENOMINATORS;
    const int n = moves.n, base = block * HELD, warp = (int)threadIdx.x / 32, group = warp / 4,
              lane = (int)threadIdx.x % 32;
    const int from_row = KIND == LARGEST                          ? held.n
                         : p.a.rule.window && n > p.a.rule.window ? n - p.a.rule.window
                                                                  : 0;
    const int first = SUMS ? max(base, from_row) / TILE : 0, last = SUMS ? (n - 1) / TILE : block;
    const int token = base + group * 64 + warp % 4 * 16 + lane / 4;
    const auto start = [&](int tile) {
        const int k = tile - first;
        bring(moves, tile * TILE, kvd_smem(s.tile[k % 2]), SUMS ? lse : nullptr,
              kvd_smem(s.column[k % SLOTS]), kvd_smem(&s.full[k % 2]));
    };
    if (threadIdx.x == 0) {
        bring(held, base, kvd_smem(s.held), nullptr, 0, kvd_smem(&s.held_full));
        start(first);
        if (first < last)
            start(first + 1);
    }
    mbar_wait(kvd_smem(&s.held_full), 0);
    const uint64_t a = wgmma_desc(kvd_smem(s.held) + (uint32_t)(group * 64 * D * 2), 128, D * 16);
    for (int tile = first; tile <= last; tile++) {
        const int k = tile - first, at = tile * TILE;
        float x[TILE / 2];
        const float *column = s.column[k % SLOTS];
        if (!SUMS) {
            float *const mine = s.noise[group][k % 2];
            mine[threadIdx.x % 128] =
                p.noise * kvd_gumbelf(head, (uint32_t)(at + (int)threadIdx.x % 128));
            bar_sync(1 + group, 128);
            column = mine;
        }
        mbar_wait(kvd_smem(&s.full[k % 2]), (uint32_t)(k / 2 % 2));
        const uint64_t b = wgmma_desc(kvd_smem(s.tile[k % 2]), 128, D * 16);
        hold(x);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            wgmma_ss<true>(x, a + (uint64_t)(i * 256 >> 4), b + (uint64_t)(i * 256 >> 4), i);
        wgmma_commit();
        wgmma_wait<0>();
        hold(x);
        if (lane == 0)
            mbar_arrive(kvd_smem(&s.empty[k % 2]));
        const int other = at + lane % 4 * 2;
        if (SUMS ? at < base + HELD || at + TILE > n || at < from_row : at + TILE > base)
            add<KIND, true>(x, p, column, token, other, from_row, n, t);
        else
            add<KIND, false>(x, p, column, token, other, from_row, n, t);
        if (threadIdx.x == 0 && tile + 2 <= last) {
            mbar_wait(kvd_smem(&s.empty[k % 2]), (uint32_t)(k / 2 % 2));
            start(tile + 2);
        }
        __syncwarp();
    }
}

template <kind KIND, int STEPS>
__device__ __forceinline__ void pass_of(const score_params &p, shared &s, const side &held,
                                        const side &moves, int block, const float *lse,
                                        uint64_t head, totals &t)
{
    if constexpr (STEPS < KVD_WIDTH_NARROW / 16)
        if (held.d > 16 * STEPS)
            return pass_of<KIND, STEPS + 1>(p, s, held, moves, block, lse, head, t);
    pass<KIND, STEPS>(p, s, held, moves, block, lse, head, t);
}

template <kind KIND>
__global__ void __launch_bounds__(THREADS, 2) pass_kernel(const __grid_constant__ score_params p)
{
    constexpr bool SUMS = KIND != DENOMINATORS;
    extern __shared__ __align__(128) char memory[];
    shared &s = *reinterpret_cast<shared *>(memory);
    const kvd_evict_prompts_args &a = p.a;
    const int h = (int)blockIdx.x, g = h / a.map.group, b = (int)blockIdx.z;
    const int n = a.q_len[b], d = a.map.d_qk[g], blocks = (n + HELD - 1) / HELD;
    if ((int)blockIdx.y >= blocks)
        return;
    const int block = SUMS ? (int)blockIdx.y : blocks - 1 - (int)blockIdx.y;
    const int lane = (int)threadIdx.x % 32,
              token = block * HELD + (int)threadIdx.x / 32 * 16 + lane / 4;
    const size_t row0 = (size_t)h * a.n_q8 + a.q_start[b];
    const side rows = {queries_of(a, h, b, d), nullptr, 0, d, KIND == LARGEST ? 2 * n : n};
    const side keys = {static_cast<const uint16_t *>(a.pool) + a.map.kv_offset[g],
                       a.page_table + (size_t)b * a.max_pages, a.map.page_elements, d, n};
    const uint64_t head = kvd_gumbel_head(a.rule.seed, a.layer, a.rule.first_head + h);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            mbar_init(kvd_smem(&s.full[i]), 1);
            mbar_init(kvd_smem(&s.empty[i]), WARPS);
        }
        mbar_init(kvd_smem(&s.held_full), 1);
        fence_mbar_init();
    }
    __syncthreads();
    totals t = {{0, 0}, {-1e30f, -1e30f}, {0, 0}};
    for (int r = 0; r < 2 && SUMS && p.noise != 0; r++)
        t.noise[r] = p.noise * kvd_gumbelf(head, (uint32_t)(token + 8 * r));
    const side &held = SUMS ? keys : rows, &moves = SUMS ? rows : keys;
    const float *const lse = a.lse + row0;
    pass_of<KIND, 1>(p, s, held, moves, block, lse, head, t);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = t.top[r], sum = t.sum[r];
        if (KIND != SUM) {
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            sum *= kvd_exp2_in_order(t.top[r] - most);
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (lane % 4 == 0 && token + 8 * r < n)
            (SUMS ? a.mass : a.lse)[row0 + (token + 8 * r)] = KIND == SUM ? sum
                                                              : KIND == LARGEST
                                                                  ? kvd_exp2_in_order(most)
                                                                  : most + log2f(sum);
    }
}

template <kind KIND> cudaError_t launch(const score_params &p, cudaStream_t stream)
{
    const dim3 grid(p.a.map.n_heads, (p.a.longest + HELD - 1) / HELD, p.a.batch);
    return kvd_launch(pass_kernel<KIND>, grid, THREADS, sizeof(shared), stream, p);
}

} // namespace

extern "C" cudaError_t kvd_evict_score_sm90(const kvd_evict_prompts_args *a, cudaStream_t stream)
{
    if (score_args_bad(a))
        return cudaErrorInvalidValue;
    const score_params p = score_params_of(a);
    if (a->rule.ranking == KVD_EVICT_REPEATED)
        return launch<LARGEST>(p, stream);
    const cudaError_t e = a->rule.tau0 > 0 ? launch<DENOMINATORS>(p, stream) : cudaSuccess;
    return e == cudaSuccess ? launch<SUM>(p, stream) : e;
}
