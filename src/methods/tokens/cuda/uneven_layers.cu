/*
 * Kernels of uneven.h for methods whose layers depend on each other: scores for budgets that depend
 * on all layers (prefixkv, cake, kvzip), and windows of tokens that several layers share
 * (windowkv). spread_kernel recomputes the attention probabilities of the last `window` rows, one
 * key per thread, with mean and variance by Welford's method.
 */
#include "methods/tokens/cuda/evict_rank.cuh"
#include "methods/tokens/cuda/evict_tiles.cuh"
#include "methods/tokens/cuda/radix_select.cuh"
#include "methods/tokens/cuda/uneven.h"

namespace
{

enum {
    KEYS = KVD_PAGE_TOKENS,
    ROWS = 16,
    SUM = 256,
    RANK = 1024,
    MOVE = 256,
    RUN = 256,
    DIMS = 32
};

__device__ __forceinline__ int before_window(const kvd_evict_rule &r, int n)
{
    return n - min(n, r.window);
}

/*
 * Returns the index in `spread` of the partial sums of prompt b in query head h, two numbers per
 * page.
 */
__device__ __forceinline__ size_t sums_of(const kvd_evict_prompts_args &a, int h, int b)
{
    const size_t pages = (size_t)(a.n_q8 / KEYS + a.batch);
    return ((size_t)h * pages + (size_t)(a.q_start[b] / KEYS + b)) * 2;
}

__global__ void __launch_bounds__(KEYS)
    spread_kernel(const __grid_constant__ kvd_uneven_prompts_args u)
{
    __shared__ uint16_t key[KVD_WIDTH_NARROW][KEYS];
    __shared__ __align__(16) float query[KVD_WIDTH_NARROW][ROWS];
    __shared__ float lse[ROWS], of_warp[2][2];
    const kvd_evict_prompts_args &a = u.prompt;
    const int h = (int)blockIdx.y, g = h / a.map.group, b = (int)blockIdx.z, n = a.q_len[b],
              d = a.map.d_qk[g], first = (int)blockIdx.x * KEYS, old = before_window(a.rule, n),
              me = (int)threadIdx.x, token = first + me;
    if (first >= n)
        return;
    const size_t row = (size_t)h * (size_t)a.n_q8 + (size_t)a.q_start[b];
    const uint16_t *const q = static_cast<const uint16_t *>(a.q) +
                              (size_t)a.map.q_offset[h] * (size_t)a.n_q8 +
                              (size_t)a.q_start[b] * (size_t)d;
    const uint16_t *const k = static_cast<const uint16_t *>(a.pool) +
                              (size_t)a.page_table[(size_t)b * (size_t)a.max_pages + blockIdx.x] *
                                  (size_t)a.map.page_elements +
                              a.map.kv_offset[g];
    for (int c = 0; c < d && token < n; c++)
        key[c][me] = k[me / 8 * 8 * d + c / 8 * 64 + me % 8 * 8 + c % 8];
    float mean = 0, square = 0, entropy = 0;
    for (int t = old; t < n && first < old; t += ROWS) {
        const int rows = min(ROWS, n - t);
        __syncthreads();
        for (int i = me; i < ROWS * d; i += KEYS) {
            const int r = t + i % ROWS, c = i / ROWS;
            query[c][i % ROWS] =
                r < n ? wide(q[r / 8 * 8 * d + c / 8 * 64 + r % 8 * 8 + c % 8]) : 0;
        }
        if (me < ROWS)
            lse[me] = t + me < n ? a.lse[row + (size_t)(t + me)] : 0;
        __syncthreads();
        if (token >= old)
            continue;
        float product[ROWS];
        multiply<KEYS, ROWS>(key, query, d, product);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (r < rows) {
                const float p = expf(product[r] * a.map.scale - lse[r]), off = p - mean;
                mean += off / (float)(t - old + r + 1);
                square = fmaf(off, p - mean, square);
                entropy -= p * logf(p + 1e-10f);
            }
    }
    float variance = token < old ? square / (float)(n - old - 1) : 0;
    if (token < n)
        a.mass[row + (size_t)token] = token < old ? fmaf(a.rule.gamma, variance, mean) : 0;
    for (int step = 1; step < 32; step *= 2) {
        entropy += __shfl_xor_sync(0xffffffffu, entropy, step);
        variance += __shfl_xor_sync(0xffffffffu, variance, step);
    }
    if (me % 32 == 0) {
        of_warp[me / 32][0] = entropy;
        of_warp[me / 32][1] = variance;
    }
    __syncthreads();
    if (me < 2)
        u.spread[sums_of(a, h, b) + (size_t)(2 * (int)blockIdx.x + me)] =
            of_warp[0][me] + of_warp[1][me];
}

__global__ void __launch_bounds__(SUM)
    statistic_kernel(const __grid_constant__ kvd_uneven_prompts_args u)
{
    __shared__ double part[2][SUM];
    const kvd_evict_prompts_args &a = u.prompt;
    const int b = (int)blockIdx.x, pages = (a.q_len[b] + KEYS - 1) / KEYS, me = (int)threadIdx.x;
    double sum[2] = {0, 0};
    for (int i = me; i < a.map.n_heads * pages; i += SUM)
        for (int side = 0; side < 2; side++)
            sum[side] +=
                (double)u.spread[sums_of(a, i / pages, b) + (size_t)(2 * (i % pages) + side)];
    part[0][me] = sum[0];
    part[1][me] = sum[1];
    for (int step = SUM / 2; step > 0; step /= 2) {
        __syncthreads();
        for (int side = 0; side < 2 && me < step; side++)
            part[side][me] += part[side][me + step];
    }
    __syncthreads();
    if (me < 2)
        u.statistic[(size_t)a.slot[b] * 2 + (size_t)me] = part[me][0];
}

__global__ void __launch_bounds__(RANK)
    sums_kernel(const __grid_constant__ kvd_uneven_prompts_args u)
{
    const kvd_evict_prompts_args &a = u.prompt;
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, group = a.map.group, n = a.q_len[b];
    const size_t at = (size_t)a.q_start[b], row = (size_t)g * (size_t)a.n_q8 + at;
    float *const to = a.rule.smooth > 1 ? a.score + row : u.rank + row;
    sum_heads<RANK>(a, a.rule.whole_layer ? 0 : g * group,
                    a.rule.whole_layer ? a.map.n_heads : (g + 1) * group, at, n, to);
    if (a.rule.smooth > 1)
        smooth<RANK>(to, before_window(a.rule, n), a.rule.smooth, u.rank + row);
}

/* Writes the largest score over the query heads of the group; 2, above all, for first tokens. */
__global__ void __launch_bounds__(SUM)
    largest_kernel(const __grid_constant__ kvd_uneven_prompts_args u)
{
    const kvd_evict_prompts_args &a = u.prompt;
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, group = a.map.group,
              t = (int)(blockIdx.x * SUM + threadIdx.x);
    if (t >= a.q_len[b])
        return;
    const size_t at = (size_t)a.q_start[b] + (size_t)t;
    float most = 0;
    for (int h = g * group; h < (g + 1) * group; h++)
        most = fmaxf(most, a.mass[(size_t)h * (size_t)a.n_q8 + at]);
    u.rank[(size_t)g * (size_t)a.n_q8 + at] = t < a.rule.sink ? 2 : most;
}

__global__ void __launch_bounds__(MOVE)
    compact_kernel(const __grid_constant__ kvd_uneven_prompts_args u)
{
    enum { PLACES = MOVE / (DIMS / 8), EACH = RUN / PLACES };
    const kvd_evict_prompts_args &a = u.prompt;
    const int slices = KVD_WIDTH_NARROW / DIMS, b = (int)blockIdx.y, kv = a.map.n_kv_heads;
    const int slice = (int)blockIdx.x % slices, side = (int)blockIdx.x / slices % 2,
              g = (int)blockIdx.x / slices / 2;
    const int n = a.q_len[b], m = u.count[(size_t)a.slot[b] * (size_t)kv + (size_t)g],
              d_k = a.map.d_qk[g], d_v = a.map.d_v[g], d = side ? d_v : d_k,
              page_elements = KVD_PAGE_TOKENS * (d_k + d_v);
    const int block = slice * (DIMS / 8) + (int)threadIdx.x % (DIMS / 8);
    if (m == n || slice * DIMS >= d)
        return;
    const bool there = block * 8 < d;
    const int32_t *const kept = a.kept + (size_t)g * (size_t)a.n_q8 + (size_t)a.q_start[b];
    const int32_t *const page =
        u.table + ((size_t)b * (size_t)kv + (size_t)g) * (size_t)a.max_pages;
    uint16_t *const x = static_cast<uint16_t *>(u.heads) + (side ? KVD_PAGE_TOKENS * d_k : 0);
    const int end = (m + 7) / 8 * 8;
    for (int first = 0; first < end; first += RUN) {
        uint4 held[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int i = first + e * PLACES + (int)threadIdx.x / (DIMS / 8);
            held[e] = make_uint4(0, 0, 0, 0);
            if (there && i < m)
                held[e] = *reinterpret_cast<const uint4 *>(
                    x + piece(page, page_elements, kept[i], block, d));
        }
        __syncthreads();
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int i = first + e * PLACES + (int)threadIdx.x / (DIMS / 8);
            if (there && i < end)
                *reinterpret_cast<uint4 *>(x + piece(page, page_elements, i, block, d)) = held[e];
        }
        __syncthreads();
    }
}

__global__ void __launch_bounds__(SUM)
    review_kernel(const __grid_constant__ kvd_uneven_prompts_args u)
{
    const kvd_evict_prompts_args &a = u.prompt;
    const int b = (int)blockIdx.y, n = a.q_len[b], old = before_window(a.rule, n),
              window = (int)blockIdx.x * (SUM / 32) + (int)threadIdx.x / 32,
              lane = (int)threadIdx.x % 32, first = window * a.rule.review,
              tokens = min(a.rule.review, old - first), half = max(a.rule.review / 2, 1);
    if (first >= old)
        return;
    const size_t at = (size_t)a.q_start[b];
    float score = 0;
    for (int h = 0; h < a.map.n_heads; h++) {
        const float *const x = a.mass + (size_t)h * (size_t)a.n_q8 + at + (size_t)first;
        float sum = 0;
        for (int i = lane; i < tokens; i += 32) {
            int above = 0;
            for (int j = 0; j < tokens && a.rule.largest && half < tokens; j++)
                above += x[j] > x[i] || (x[j] == x[i] && j < i);
            sum += above < half || !a.rule.largest ? x[i] : 0;
        }
        score += over_warp(sum) / (float)(a.rule.largest ? min(half, tokens) : tokens);
    }
    if (lane == 0)
        a.score[at + (size_t)window] = score;
}

__global__ void __launch_bounds__(RANK)
    windows_kernel(const __grid_constant__ kvd_uneven_prompts_args u)
{
    __shared__ unsigned bin[KVD_SELECT_BINS];
    const kvd_evict_prompts_args &a = u.prompt;
    const int b = (int)blockIdx.x, n = a.q_len[b], old = before_window(a.rule, n),
              review = a.rule.review, windows = (old + review - 1) / review, kv = a.map.n_kv_heads,
              kept_old = a.budget[a.slot[b]].keep_old, k = kept_old / review;
    const size_t at = (size_t)a.q_start[b];
    const float *const score = a.score + at;
    unsigned long long least = kept_old >= old ? 0 : ~0ull;
    if (kept_old < old && k > 0)
        least = select_key<RANK>([score](int w) { return key_of(score[w], w); }, windows, k, bin);
    int place = 0;
    for (int first = 0; first < n; first += RANK) {
        const int t = first + (int)threadIdx.x, w = t / review;
        const bool stays = t < n && (t >= old || key_of(score[w], w) >= least);
        int all;
        const int i = place + select_place<RANK>(stays, &all);
        place += all;
        for (int g = 0; g < kv && stays; g++)
            a.kept[(size_t)g * (size_t)a.n_q8 + at + (size_t)i] = t;
    }
    for (int i = (int)threadIdx.x; i < u.layers * kv; i += RANK)
        u.count[(size_t)(i / kv) * u.layer_counts + (size_t)(a.slot[b] * kv + i % kv)] = place;
}

} // namespace

extern "C" cudaError_t kvd_uneven_windows(const kvd_uneven_prompts_args *u, cudaStream_t stream)
{
    const kvd_evict_prompts_args *const a = &u->prompt;
    const int most = a->rule.review > 0 ? (a->longest + a->rule.review - 1) / a->rule.review : 0,
              each = SUM / 32;
    if (a->batch < 1 || a->batch > 65535 || a->longest < 1 || most < 1 || !a->mass || !a->score ||
        !a->kept || !u->count || u->layers < 1 || a->rule.ranking != KVD_EVICT_ATTENTION)
        return cudaErrorInvalidValue;
    const cudaError_t e = kvd_evict_score_any(a, stream);
    if (e != cudaSuccess)
        return e;
    review_kernel<<<dim3((unsigned)((most + each - 1) / each), (unsigned)a->batch), SUM, 0,
                    stream>>>(*u);
    windows_kernel<<<(unsigned)a->batch, RANK, 0, stream>>>(*u);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_uneven_rank(const kvd_uneven_prompts_args *u, cudaStream_t stream)
{
    const kvd_evict_prompts_args *const a = &u->prompt;
    const unsigned batch = (unsigned)a->batch, heads = (unsigned)a->map.n_heads,
                   pages = ((unsigned)a->longest + KEYS - 1) / KEYS;
    const bool spreads = a->rule.ranking == KVD_EVICT_SPREAD,
               repeated = a->rule.ranking == KVD_EVICT_REPEATED;
    if (a->batch < 1 || a->batch > 65535 || a->longest < 1 || !a->mass || !a->score || !a->lse ||
        !u->rank || (spreads && (!u->statistic || !u->spread || a->rule.window < 2)) ||
        (!spreads && !repeated && a->rule.ranking != KVD_EVICT_ATTENTION) ||
        (a->rule.whole_layer && (repeated || a->rule.smooth > 1)))
        return cudaErrorInvalidValue;
    if (spreads) {
        spread_kernel<<<dim3(pages, heads, batch), KEYS, 0, stream>>>(*u);
        statistic_kernel<<<batch, SUM, 0, stream>>>(*u);
    } else {
        const cudaError_t e = kvd_evict_score_any(a, stream);
        if (e != cudaSuccess)
            return e;
    }
    if (repeated) {
        largest_kernel<<<dim3(((unsigned)a->longest + SUM - 1) / SUM, (unsigned)a->map.n_kv_heads,
                              batch),
                         SUM, 0, stream>>>(*u);
        return cudaGetLastError();
    }
    const unsigned ranks = a->rule.whole_layer ? 1 : (unsigned)a->map.n_kv_heads;
    sums_kernel<<<dim3(ranks, batch), RANK, 0, stream>>>(*u);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_uneven_compact(const kvd_uneven_prompts_args *u, cudaStream_t stream)
{
    const kvd_evict_prompts_args *const a = &u->prompt;
    if (a->batch < 1 || a->batch > 65535 || !a->kept || !u->count || !u->table || !u->heads)
        return cudaErrorInvalidValue;
    compact_kernel<<<dim3((unsigned)(a->map.n_kv_heads * 2 * (KVD_WIDTH_NARROW / DIMS)),
                          (unsigned)a->batch),
                     MOVE, 0, stream>>>(*u);
    return cudaGetLastError();
}
