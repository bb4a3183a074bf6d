/* Sums the attention probabilities that each prompt token received, in each query head. */
#include "methods/tokens/cuda/evict_rank.cuh"
#include "methods/tokens/gumbel.h"

namespace
{

enum { HELD = 128, THREADS = 128 };
/* Number of tokens of a tile in shared memory. WIDTH is the largest number of dimensions of Q and
 * K. */
template <int WIDTH>
constexpr int tile_of = WIDTH > KVD_WIDTH_NARROW ? KVD_PAGE_TOKENS / 2 : KVD_PAGE_TOKENS;

__device__ __forceinline__ void copy4(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 4 : 0)
                 : "memory");
}

/* Location in global memory of the queries or keys of one head of one prompt. */
struct side {
    /* Address of the first query or, for keys, of the first key in page 0. */
    const uint16_t *first;
    /* Page table of the keys. NULL for queries, which are contiguous in memory. */
    const int32_t *page;
    int page_elements, d;
    __device__ __forceinline__ const uint16_t *group(int t8) const
    {
        return page ? first + (size_t)page[t8 / 8] * page_elements + t8 % 8 * 8 * d
                    : first + (size_t)t8 * (8 * d);
    }
};

/* Loads Q or K of 32 tokens into registers, in the layout that mma.sync needs. Groups of 8 tokens
 * that begin at token n or later become 0. */
template <int STEPS>
__device__ __forceinline__ void hold(const side &s, int from, int n, int lane,
                                     uint32_t (&a)[2][STEPS][4])
{
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int t8 = (from + 16 * i) / 8 + half;
            const bool there = t8 * 8 < n;
            const uint32_t *const p =
                reinterpret_cast<const uint32_t *>(there ? s.group(t8) : s.first) + lane;
#pragma unroll
            for (int k = 0; k < STEPS; k++)
#pragma unroll
                for (int c = 0; c < 2; c++)
                    a[i][k][2 * c + half] = there && 16 * k < s.d ? p[(2 * k + c) * 32] : 0;
        }
}

template <int TILE>
__device__ __forceinline__ void fetch(const side &s, int tile, int n, uint32_t to)
{
    const uint16_t *const from = s.group(tile * (TILE / 8));
    const int there = min(TILE / 8, (n - tile * TILE + 7) / 8) * s.d;
    for (int i = (int)threadIdx.x; i < TILE / 8 * s.d; i += THREADS)
        kvd_copy_16(to + 16u * (uint32_t)i, i < there ? from + 8 * i : from, i < there ? 16 : 0);
}

/* Result of a kernel:
 *
 * - LOGS: log of each query's softmax denominator
 * - SUMS: sum of each key's attention probabilities
 * - COUNTS: for each key, minus the number of its attention probabilities below the mean
 * - LARGEST: each key's largest attention probability */
enum kind { LOGS, SUMS, COUNTS, LARGEST };

/* Returns -1 if p is below the mean of the probabilities of query t, which is 1 / (t + 1), else
 * 0. */
__device__ __forceinline__ float below_mean(float p, int t)
{
    return t > 0 && p * (float)(t + 1) < 1 ? -1.f : 0.f;
}

/* Updates a thread's softmax sums with products of queries and keys. For KIND LARGEST, updates
 * maxima instead of sums. If MASKED, skips keys that come after their query. */
template <kind KIND, bool MASKED>
__device__ __forceinline__ void add(const float (&acc)[2][4], float factor, const float (&noise)[4],
                                    float2 c, float lse_factor, int first, int other, int from_row,
                                    int n, float (&part)[4], float (&total)[4], float (&top)[4])
{
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const float a0 = acc[r / 2][r % 2 * 2], a1 = acc[r / 2][r % 2 * 2 + 1];
        const int token = first + 8 * r;
        if (KIND == LARGEST) {
            const float y0 = fmaf(a0, factor, -c.x * lse_factor),
                        y1 = fmaf(a1, factor, -c.y * lse_factor);
            if (!MASKED || (other < n && other >= from_row))
                top[r] = fmaxf(top[r], y0);
            if (!MASKED || (other + 1 < n && other + 1 >= from_row))
                top[r] = fmaxf(top[r], y1);
        } else if (KIND != LOGS) {
            float y0 = kvd_exp2(fmaf(a0, factor, fmaf(-c.x, lse_factor, noise[r]))),
                  y1 = kvd_exp2(fmaf(a1, factor, fmaf(-c.y, lse_factor, noise[r])));
            if (KIND == COUNTS) {
                y0 = below_mean(y0, other);
                y1 = below_mean(y1, other + 1);
            }
            if (MASKED) {
                y0 = other >= token && other < n && other >= from_row ? y0 : 0;
                y1 = other + 1 >= token && other + 1 < n && other + 1 >= from_row ? y1 : 0;
            }
            part[r] += y0 + y1;
        } else {
            float y0 = fmaf(a0, factor, c.x), y1 = fmaf(a1, factor, c.y);
            if (MASKED) {
                y0 = other <= token ? y0 : -INFINITY;
                y1 = other + 1 <= token ? y1 : -INFINITY;
            }
            const float most = fmaxf(y0, y1);
            if (most > top[r]) {
                part[r] *= kvd_exp2(top[r] - most);
                total[r] *= kvd_exp2(top[r] - most);
                top[r] = most;
            }
            part[r] += kvd_exp2(y0 - top[r]) + kvd_exp2(y1 - top[r]);
        }
    }
}

/* If KIND is LOGS, writes the log of each query's softmax denominator to a.lse. For other kinds,
 * writes one score per token to a.mass. */
template <kind KIND, int WIDTH>
__global__ void __launch_bounds__(THREADS, WIDTH > KVD_WIDTH_NARROW ? 2 : 4)
    pass_kernel(const __grid_constant__ score_params p)
{
    constexpr bool TO_MASS = KIND != LOGS;
    constexpr int TILE = tile_of<WIDTH>, STEPS = WIDTH / 16;
    /* ldmatrix reads up to 128 elements beyond the end of the tile. */
    __shared__ __align__(128) uint16_t tiles[2][TILE * WIDTH + 128];
    __shared__ float column[2][TILE];
    const kvd_evict_prompts_args &a = p.a;
    const int h = (int)blockIdx.x, g = h / a.map.group, b = (int)blockIdx.z;
    const int keys_n = a.q_len[b], n = KIND == LARGEST ? 2 * keys_n : keys_n, d = a.map.d_qk[g],
              blocks = (keys_n + HELD - 1) / HELD;
    if ((int)blockIdx.y >= blocks)
        return;
    const int block = TO_MASS ? (int)blockIdx.y : blocks - 1 - (int)blockIdx.y;
    const int lane = (int)threadIdx.x % 32, base = block * HELD,
              mine = base + (int)threadIdx.x / 32 * 32;
    const size_t row0 = (size_t)h * a.n_q8 + a.q_start[b];
    const side rows = {queries_of(a, h, b, d), nullptr, 0, d};
    const side keys = {static_cast<const uint16_t *>(a.pool) + a.map.kv_offset[g],
                       a.page_table + (size_t)b * a.max_pages, a.map.page_elements, d};
    const side &held = TO_MASS ? keys : rows, &moves = TO_MASS ? rows : keys;
    const int from_row = KIND == LARGEST                      ? keys_n
                         : a.rule.window && n > a.rule.window ? n - a.rule.window
                                                              : 0;
    const int first = TO_MASS ? max(base, from_row) / TILE : 0,
              last = (TO_MASS ? n - 1 : min(n - 1, base + HELD - 1)) / TILE;
    const uint64_t head = kvd_gumbel_head(a.rule.seed, a.layer, a.rule.first_head + h);

    uint32_t x[2][STEPS][4];
    hold(held, mine, keys_n, lane, x);
    float total[4] = {0, 0, 0, 0}, top[4], noise[4];
#pragma unroll
    for (int r = 0; r < 4; r++) {
        top[r] = -1e30f;
        noise[r] = TO_MASS && p.noise != 0
                       ? p.noise * kvd_gumbelf(head, (uint32_t)(mine + lane / 4 + 8 * r))
                       : 0;
    }
    const auto bring = [&](int tile, int stage) {
        fetch<TILE>(moves, tile, n, (uint32_t)__cvta_generic_to_shared(tiles[stage]));
        const int t = tile * TILE + (int)threadIdx.x;
        if (TO_MASS && threadIdx.x < TILE)
            copy4((uint32_t)__cvta_generic_to_shared(&column[stage][threadIdx.x]),
                  a.lse + row0 + (size_t)(t < n ? t : 0), t < n);
        if (!TO_MASS && threadIdx.x < TILE)
            column[stage][threadIdx.x] = p.noise * kvd_gumbelf(head, (uint32_t)t);
    };
    if (first <= last)
        bring(first, 0);
    for (int tile = first, stage = 0; tile <= last; tile++, stage ^= 1) {
        kvd_copies_done();
        __syncthreads();
        if (tile < last)
            bring(tile + 1, stage ^ 1);
        const int at = tile * TILE;
        const bool masked =
            TO_MASS ? at < base + HELD || at + TILE > n || at < from_row : at + TILE > base;
        const uint32_t from =
            (uint32_t)__cvta_generic_to_shared(tiles[stage]) + 16u * (uint32_t)lane;
        float part[4] = {0, 0, 0, 0};
#pragma unroll 1
        for (int j = 0; j < TILE / 8; j += 2) {
            float acc[2][2][4];
            products(x, from + (uint32_t)(j * 16 * d), d, acc);
#pragma unroll
            for (int u = 0; u < 2; u++) {
                const int pair = 8 * (j + u) + lane % 4 * 2;
                const float2 c = *reinterpret_cast<const float2 *>(&column[stage][pair]);
                if (masked)
                    add<KIND, true>(acc[u], p.factor, noise, c, p.lse_factor, mine + lane / 4,
                                    at + pair, from_row, n, part, total, top);
                else
                    add<KIND, false>(acc[u], p.factor, noise, c, p.lse_factor, mine + lane / 4,
                                     at + pair, from_row, n, part, total, top);
            }
        }
#pragma unroll
        for (int r = 0; r < 4; r++)
            total[r] += part[r];
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const int token = mine + lane / 4 + 8 * r;
        float most = top[r];
        if (KIND == LOGS || KIND == LARGEST) {
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            total[r] *= kvd_exp2(top[r] - most);
        }
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 1);
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);
        if (lane % 4 == 0 && token < keys_n)
            (TO_MASS ? a.mass : a.lse)[row0 + token] = KIND == LARGEST ? kvd_exp2(most)
                                                       : TO_MASS       ? total[r]
                                                                       : most + log2f(total[r]);
    }
}

/* For 128 keys, sums the probabilities that they received from the prompt's last queries, over all
 * query heads. WIDTH is the largest number of dimensions of Q and K. */
template <int WIDTH>
__global__ void __launch_bounds__(THREADS, 2)
    mark_kernel(const __grid_constant__ score_params p, double last, float threshold)
{
    constexpr int TILE = tile_of<WIDTH>, STEPS = WIDTH / 16;
    __shared__ __align__(128) uint16_t tiles[2][TILE * WIDTH + 128];
    __shared__ float column[2][TILE];
    const kvd_evict_prompts_args &a = p.a;
    const int b = (int)blockIdx.z, n = a.q_len[b], heads = a.map.n_heads,
              rows = min(n, (int)ceil(last * (double)n)), base = (int)blockIdx.x * HELD,
              tile = (n - rows) / TILE + (int)blockIdx.y, at = tile * TILE,
              lane = (int)threadIdx.x % 32, mine = base + (int)threadIdx.x / 32 * 32;
    if (base >= n || at >= n || at + TILE <= base)
        return;
    const int32_t *const page = a.page_table + (size_t)b * a.max_pages;
    const auto bring = [&](int h, int stage) {
        const int d = a.map.d_qk[h / a.map.group], t = at + (int)threadIdx.x;
        const side queries = {queries_of(a, h, b, d), nullptr, 0, d};
        fetch<TILE>(queries, tile, n, (uint32_t)__cvta_generic_to_shared(tiles[stage]));
        if (threadIdx.x < TILE)
            copy4((uint32_t)__cvta_generic_to_shared(&column[stage][threadIdx.x]),
                  a.lse + (size_t)h * a.n_q8 + a.q_start[b] + (size_t)(t < n ? t : 0), t < n);
    };
    float sum[TILE / 8][4][2] = {};
    uint32_t x[2][STEPS][4];
    bring(0, 0);
    for (int h = 0; h < heads; h++) {
        const int g = h / a.map.group, d = a.map.d_qk[g], stage = h % 2;
        if (h % a.map.group == 0) {
            const side keys = {static_cast<const uint16_t *>(a.pool) + a.map.kv_offset[g], page,
                               a.map.page_elements, d};
            hold(keys, mine, n, lane, x);
        }
        kvd_copies_done();
        __syncthreads();
        if (h + 1 < heads)
            bring(h + 1, stage ^ 1);
        const uint32_t from =
            (uint32_t)__cvta_generic_to_shared(tiles[stage]) + 16u * (uint32_t)lane;
#pragma unroll
        for (int j = 0; j < TILE / 8; j += 2) {
            float acc[2][2][4];
            products(x, from + (uint32_t)(j * 16 * d), d, acc);
#pragma unroll
            for (int u = 0; u < 2; u++) {
                const int pair = 8 * (j + u) + lane % 4 * 2;
                const float2 c = *reinterpret_cast<const float2 *>(&column[stage][pair]);
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    const float *const y = &acc[u][r / 2][r % 2 * 2];
                    sum[j + u][r][0] += kvd_exp2(fmaf(y[0], p.factor, -c.x * p.lse_factor));
                    sum[j + u][r][1] += kvd_exp2(fmaf(y[1], p.factor, -c.y * p.lse_factor));
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const int token = mine + lane / 4 + 8 * r;
        float most = -1;
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int t = at + 8 * j + lane % 4 * 2 + e;
                if (t >= token && t >= n - rows && t < n)
                    most = fmaxf(most, sum[j][r][e]);
            }
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        if (lane % 4 == 0 && token < n && most >= threshold * (float)heads)
            a.mass[(size_t)a.q_start[b] + token] = 1;
    }
}

template <int WIDTH> cudaError_t launch(const score_params &p, cudaStream_t stream)
{
    const dim3 grid(p.a.map.n_heads, (p.a.longest + HELD - 1) / HELD, p.a.batch);
    if (p.a.rule.tau0 > 0)
        pass_kernel<LOGS, WIDTH><<<grid, THREADS, 0, stream>>>(p);
    if (p.a.rule.ranking == KVD_EVICT_PIVOTAL)
        pass_kernel<COUNTS, WIDTH><<<grid, THREADS, 0, stream>>>(p);
    else if (p.a.rule.ranking == KVD_EVICT_REPEATED)
        pass_kernel<LARGEST, WIDTH><<<grid, THREADS, 0, stream>>>(p);
    else
        pass_kernel<SUMS, WIDTH><<<grid, THREADS, 0, stream>>>(p);
    return cudaGetLastError();
}

template <int WIDTH>
cudaError_t mark(const score_params &p, double rows, double threshold, cudaStream_t stream)
{
    const unsigned most = (unsigned)ceil(rows * (double)p.a.longest) / tile_of<WIDTH> + 2;
    mark_kernel<WIDTH>
        <<<dim3((p.a.longest + HELD - 1) / HELD, most, p.a.batch), THREADS, 0, stream>>>(
            p, rows, (float)threshold);
    return cudaGetLastError();
}

} // namespace

extern "C" cudaError_t kvd_evict_mark(const kvd_evict_prompts_args *a, double rows,
                                      double threshold, cudaStream_t stream)
{
    if (score_args_bad(a) || rows < 0 || rows > 1)
        return cudaErrorInvalidValue;
    const score_params p = {*a, a->map.scale * LOG2E, 0, LOG2E};
    const cudaError_t e = cudaMemsetAsync(a->mass, 0, (size_t)a->n_q8 * sizeof *a->mass, stream);
    if (e != cudaSuccess)
        return e;
    return kvd_attn_widest(&a->map) > KVD_WIDTH_NARROW
               ? mark<KVD_WIDTH_MAX>(p, rows, threshold, stream)
               : mark<KVD_WIDTH_NARROW>(p, rows, threshold, stream);
}

extern "C" cudaError_t kvd_evict_score(const kvd_evict_prompts_args *a, cudaStream_t stream)
{
    if (score_args_bad(a))
        return cudaErrorInvalidValue;
    const score_params p = score_params_of(a);
    return kvd_attn_widest(&a->map) > KVD_WIDTH_NARROW ? launch<KVD_WIDTH_MAX>(p, stream)
                                                       : launch<KVD_WIDTH_NARROW>(p, stream);
}
