/* Kernels that choose which prompt tokens stay, for methods that keep different numbers of tokens
 * in different layers or KV heads. */
#include "methods/tokens/cuda/evict_rank.cuh"
#include "methods/tokens/cuda/radix_select.cuh"
#include "methods/tokens/cuda/uneven.h"

namespace
{

enum { CHOOSE = 1024, COPY = 256, VECTOR = 512 };
/* Sort key larger than that of any token, used as a threshold that no token reaches. */
constexpr unsigned long long NONE = ~0ull;
typedef unsigned long long u64;

struct head {
    kvd_evict_budget budget;
    int n, old;
    int sink; /* number of first prompt tokens that always stay */
    size_t at;
    const float *rank;
};

/* Returns the description of KV head g of prompt b, where g is an index among the heads of all
 * GPUs. */
__device__ __forceinline__ head head_of(const kvd_uneven_prompts_args &u, int g, int b)
{
    const kvd_evict_prompts_args &a = u.prompt;
    head h;
    h.budget = a.budget[a.slot[b]];
    /* The first rule.sink tokens always stay, or only h.budget.keep_old of them if that is less. */
    h.sink = min(a.rule.sink, h.budget.keep_old);
    h.n = a.q_len[b];
    h.old = h.n - min(h.n, h.budget.keep_new);
    h.at = (size_t)a.q_start[b];
    /* Smoothed scores of a KV head are in the part of `mass` that belongs to its first query
     * head. */
    h.rank = a.rule.smooth > 1 ? a.mass + (size_t)(g * a.map.group) * a.n_q8 + h.at
                               : a.score + (size_t)g * a.n_q8 + h.at;
    if (u.rank)
        h.rank = u.rank + (size_t)(a.rule.whole_layer ? 0 : g) * a.n_q8 + h.at;
    return h;
}

/* Returns the sort key of token t by its score. The first h.sink tokens get the largest sort
 * keys. */
__device__ __forceinline__ u64 key_in(const head &h, int t)
{
    return t < h.sink ? 0xffffffffull << 32 | (unsigned)t : key_of(h.rank[t], t);
}

__device__ __forceinline__ bool shares(const kvd_evict_budget &b)
{
    return b.keep_own < b.keep_old;
}

/* Returns the sort key of token t of KV head g among the tokens of all heads. Tokens that head g
 * keeps in any case get the largest key. own: smallest key in head g of such tokens. */
__device__ __forceinline__ u64 key_among(const head &h, const float *rank, int g, int t, u64 own)
{
    const u64 key = key_of(rank[t], t);
    return (key >= own ? 0xffffffffull << 32 : key & 0xffffffffull << 32) |
           (unsigned)(g * h.old + t);
}

/* Method taskkv: sums the V vectors of all tokens of a KV head, weighted by the attention that the
 * tokens received. */
__global__ void __launch_bounds__(VECTOR)
    vector_kernel(const __grid_constant__ kvd_uneven_prompts_args u)
{
    __shared__ float part[VECTOR * 8];
    const kvd_evict_prompts_args &a = u.prompt;
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, me = (int)threadIdx.x, n = a.q_len[b],
              group = a.map.group, d = a.map.d_v[g], blocks = d / 8, rows = VECTOR / blocks,
              block = me % blocks;
    const float *const mass = a.mass + (size_t)(g * group) * a.n_q8 + a.q_start[b];
    const int32_t *const page = a.page_table + (size_t)b * a.max_pages;
    const uint16_t *const values = static_cast<const uint16_t *>(a.pool) + a.map.kv_offset[g] +
                                   KVD_PAGE_TOKENS * a.map.d_qk[g];
    float sum[8] = {};
    for (int t = me / blocks; t < n && me < rows * blocks; t += rows) {
        float weight = 0;
        for (int j = 0; j < group; j++)
            weight += mass[(size_t)j * a.n_q8 + t];
        const uint4 x = *reinterpret_cast<const uint4 *>(
            values + (size_t)page[t / KVD_PAGE_TOKENS] * a.map.page_elements + piece(t, block, d));
        float v[8];
        unpack8(x, v);
#pragma unroll
        for (int e = 0; e < 8; e++)
            sum[e] = fmaf(weight, v[e], sum[e]);
    }
#pragma unroll
    for (int e = 0; e < 8; e++)
        part[me * 8 + e] = sum[e];
    __syncthreads();
    if (me >= d)
        return;
    float all = 0;
    for (int r = 0; r < rows; r++)
        all += part[(r * blocks + me / 8) * 8 + me % 8];
    u.vector[((size_t)b * u.n_all + (u.first + g)) * (size_t)a.map.d_v[0] + me] = all;
}

/* Method taskkv: selects the KV heads that keep all tokens. Their vectors u.vector (weighted sums
 * of V) differ most from the mean over the heads. */
__global__ void __launch_bounds__(KVD_HEADS_MAX)
    whole_kernel(const __grid_constant__ kvd_uneven_prompts_args u)
{
    __shared__ float distance[KVD_HEADS_MAX];
    const int b = (int)blockIdx.x, g = (int)threadIdx.x, kv = u.n_all, d = u.prompt.map.d_v[0];
    const float *const x = u.vector + (size_t)(b * kv) * d;
    float sum = 0;
    for (int c = 0; c < d && g < kv && kv > 2; c++) {
        float centre = 0;
        for (int i = 0; i < kv; i++)
            centre += x[i * d + c];
        const float off = x[g * d + c] - centre / (float)kv;
        sum = fmaf(off, off, sum);
    }
    distance[g] = sum;
    __syncthreads();
    int farther = 0;
    for (int i = 0; i < kv; i++)
        farther += distance[i] > sum || (distance[i] == sum && i > g);
    if (g < kv)
        u.is_whole[b * kv + g] = farther < u.whole;
}

__global__ void __launch_bounds__(CHOOSE)
    rank_kernel(const __grid_constant__ kvd_uneven_prompts_args u)
{
    const kvd_evict_prompts_args &a = u.prompt;
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, group = a.map.group;
    const head h = head_of(u, g, b);
    float *const score = a.score + (size_t)g * a.n_q8 + h.at;
    const int k = shares(h.budget) ? h.budget.keep_own : h.budget.keep_old;
    if (!u.rank) {
        sum_heads<CHOOSE>(a, g * group, (g + 1) * group, h.at, h.n, score);
        if (a.rule.smooth > 1)
            smooth<CHOOSE>(score, h.old, a.rule.smooth,
                           a.mass + (size_t)(g * group) * a.n_q8 + h.at);
    }
    u64 least = select_least<CHOOSE>([h](int t) { return key_in(h, t); }, h.old, k);
    if (u.whole > 0 && u.is_whole[b * u.n_all + g])
        least = 0;
    if (threadIdx.x == 0)
        u.least[b * (u.n_all + 1) + g] = least;
}

__global__ void __launch_bounds__(CHOOSE)
    shared_kernel(const __grid_constant__ kvd_uneven_prompts_args u)
{
    __shared__ u64 own[KVD_HEADS_MAX];
    const kvd_evict_prompts_args &a = u.prompt;
    const int b = (int)blockIdx.x, kv = u.n_all;
    const head h = head_of(u, 0, b);
    const size_t stride = (size_t)(a.rule.smooth > 1 && !u.rank ? a.map.group : 1) * a.n_q8;
    u64 *const least = u.least + (size_t)b * (kv + 1);
    if (!shares(h.budget) || h.old == 0) {
        if (threadIdx.x == 0)
            least[kv] = NONE;
        return;
    }
    if ((int)threadIdx.x < kv)
        own[threadIdx.x] = least[threadIdx.x];
    __syncthreads();
    const u64 among = select_least<CHOOSE>(
        [&](int i) {
            const int g = i / h.old;
            return key_among(h, h.rank + (size_t)g * stride, g, i - g * h.old, own[g]);
        },
        kv * h.old, kv * h.budget.keep_old);
    if (threadIdx.x == 0)
        least[kv] = among;
}

__global__ void __launch_bounds__(CHOOSE)
    threshold_kernel(const __grid_constant__ kvd_uneven_prompts_args u, int n_layers)
{
    const kvd_evict_prompts_args &a = u.prompt;
    const int b = (int)blockIdx.x, kv = u.n_all, heads = n_layers * kv;
    const head h = head_of(u, 0, b);
    const size_t stride = (size_t)a.n_q8;
    u64 *const least = u.least + (size_t)b * (kv + 1);
    const u64 among = select_least<CHOOSE>(
        [&](int i) {
            const int g = i / h.old;
            return key_among(h, h.rank + (size_t)g * stride, g, i - g * h.old, NONE);
        },
        heads * h.old, heads * h.budget.keep_old);
    for (int g = (int)threadIdx.x; g <= kv; g += CHOOSE)
        least[g] = g < kv ? NONE : among;
}

__global__ void __launch_bounds__(CHOOSE)
    place_kernel(const __grid_constant__ kvd_uneven_prompts_args u)
{
    const kvd_evict_prompts_args &a = u.prompt;
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, kv = a.map.n_kv_heads, me = u.first + g;
    const head h = head_of(u, me, b);
    const u64 own = u.least[b * (u.n_all + 1) + me], among = u.least[b * (u.n_all + 1) + u.n_all];
    int32_t *const kept = a.kept + (size_t)g * a.n_q8 + h.at;
    const int place = select_each<CHOOSE>(
        h.n,
        [&](int t) {
            return t >= h.old || key_in(h, t) >= own ||
                   (among != NONE && key_among(h, h.rank, u.first_head + me, t, own) >= among);
        },
        [kept](int i, int t) { kept[i] = t; });
    if (threadIdx.x == 0)
        u.count[(size_t)a.slot[b] * kv + g] = place;
}

template <bool ALL>
__global__ void __launch_bounds__(COPY)
    copy_kernel(const __grid_constant__ kvd_uneven_prompts_args u)
{
    const kvd_evict_prompts_args &a = u.prompt;
    const int g = (int)blockIdx.x, page = (int)blockIdx.y, b = (int)blockIdx.z,
              kv = a.map.n_kv_heads, first = page * KVD_PAGE_TOKENS,
              m = ALL ? a.q_len[b] : u.count[(size_t)a.slot[b] * kv + g];
    if (first >= m)
        return;
    const int d_k = a.map.d_qk[g], d_v = a.map.d_v[g];
    const int32_t *const kept = a.kept + (size_t)g * a.n_q8 + a.q_start[b];
    const int32_t *const from_page = a.page_table + (size_t)b * a.max_pages;
    const uint16_t *const from = static_cast<const uint16_t *>(a.pool) + a.map.kv_offset[g];
    uint16_t *const to = static_cast<uint16_t *>(u.heads) +
                         (size_t)u.table[((size_t)b * kv + g) * (size_t)a.max_pages + page] *
                             (KVD_PAGE_TOKENS * (d_k + d_v));
    copy_page<COPY>(
        to, d_k, d_v, first, m, [&](int i) { return ALL ? i : kept[i]; },
        [&](int t) { return from + (size_t)from_page[t / KVD_PAGE_TOKENS] * a.map.page_elements; });
}

__global__ void __launch_bounds__(2 * KVD_WIDTH_MAX / 8)
    step_kernel(const __grid_constant__ kvd_uneven_step_args a)
{
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, kv = a.map.n_kv_heads, d_k = a.map.d_qk[g],
              d_v = a.map.d_v[g], c = (int)threadIdx.x;
    if (a.slot[b] >= a.n_slots || c >= (d_k + d_v) / 8)
        return;
    const size_t row = (size_t)b * kv + g, pitch = (size_t)a.max_pages;
    const int place = a.kv_len[row] - 1, d = c < d_k / 8 ? d_k : d_v,
              block = c < d_k / 8 ? c : c - d_k / 8,
              after = c < d_k / 8 ? 0 : KVD_PAGE_TOKENS * d_k;
    const uint16_t *const from = static_cast<const uint16_t *>(a.from) +
                                 (size_t)a.from_table[(size_t)b * pitch] * a.map.page_elements +
                                 a.map.kv_offset[g] + after + block * 64;
    uint16_t *const to =
        static_cast<uint16_t *>(a.heads) +
        (size_t)a.table[row * pitch + place / KVD_PAGE_TOKENS] * (KVD_PAGE_TOKENS * (d_k + d_v)) +
        after + piece(place, block, d);
    *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
    for (int z = 1; z < 8 && place % 8 == 0; z++)
        *reinterpret_cast<uint4 *>(to + 8 * z) = make_uint4(0, 0, 0, 0);
}

enum { KEYS = KVD_PAGE_TOKENS, SUM = 256, RANK = 1024, MOVE = 256, RUN = 256, DIMS = 32 };

__device__ __forceinline__ int before_window(const kvd_evict_rule &r, int n)
{
    return n - min(n, r.window);
}

/* Returns the index in u.spread of the data of query head h and prompt b: sums of the entropy and
 * variance of attention. */
__device__ __forceinline__ size_t sums_of(const kvd_evict_prompts_args &a, int h, int b)
{
    const size_t pages = (size_t)(a.n_q8 / KEYS + a.batch);
    return ((size_t)h * pages + (a.q_start[b] / KEYS + b)) * 2;
}

/* For KVD_EVICT_SPREAD: scores each token by the mean + gamma * variance of the attention
 * probabilities that it got. Also writes the sums of entropy and of variance for each page of
 * tokens to u.spread. WIDTH is the largest number of dimensions of a key. */
template <int WIDTH>
__global__ void __launch_bounds__(KEYS)
    spread_kernel(const __grid_constant__ kvd_uneven_prompts_args u)
{
    constexpr int ROWS = WIDTH > KVD_WIDTH_NARROW ? 8 : 16;
    __shared__ uint16_t key[WIDTH][KEYS];
    __shared__ __align__(16) float query[WIDTH][ROWS];
    __shared__ float lse[ROWS], of_warp[2][2];
    const kvd_evict_prompts_args &a = u.prompt;
    const int h = (int)blockIdx.y, g = h / a.map.group, b = (int)blockIdx.z, n = a.q_len[b],
              d = a.map.d_qk[g], first = (int)blockIdx.x * KEYS, old = before_window(a.rule, n),
              me = (int)threadIdx.x, token = first + me;
    if (first >= n)
        return;
    const size_t row = (size_t)h * a.n_q8 + a.q_start[b];
    const uint16_t *const q = queries_of(a, h, b, d);
    const uint16_t *const k =
        static_cast<const uint16_t *>(a.pool) +
        (size_t)a.page_table[(size_t)b * a.max_pages + blockIdx.x] * a.map.page_elements +
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
            lse[me] = t + me < n ? a.lse[row + (t + me)] : 0;
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
        a.mass[row + token] = token < old ? fmaf(a.rule.gamma, variance, mean) : 0;
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
        u.spread[sums_of(a, h, b) + (2 * (int)blockIdx.x + me)] = of_warp[0][me] + of_warp[1][me];
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
            sum[side] += (double)u.spread[sums_of(a, i / pages, b) + (2 * (i % pages) + side)];
    part[0][me] = sum[0];
    part[1][me] = sum[1];
    for (int step = SUM / 2; step > 0; step /= 2) {
        __syncthreads();
        for (int side = 0; side < 2 && me < step; side++)
            part[side][me] += part[side][me + step];
    }
    __syncthreads();
    if (me < 2)
        u.statistic[(size_t)a.slot[b] * 2 + me] = part[me][0];
}

__global__ void __launch_bounds__(RANK)
    sums_kernel(const __grid_constant__ kvd_uneven_prompts_args u)
{
    const kvd_evict_prompts_args &a = u.prompt;
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, group = a.map.group, n = a.q_len[b];
    const size_t at = (size_t)a.q_start[b], row = (size_t)g * a.n_q8 + at,
                 ranked = row + (size_t)(a.rule.whole_layer ? 0 : u.first) * a.n_q8;
    float *const to = a.rule.smooth > 1 ? a.score + row : u.rank + ranked;
    sum_heads<RANK>(a, a.rule.whole_layer ? 0 : g * group,
                    a.rule.whole_layer ? a.map.n_heads : (g + 1) * group, at, n, to);
    if (a.rule.smooth > 1)
        smooth<RANK>(to, before_window(a.rule, n), a.rule.smooth, u.rank + ranked);
}

/* Scores each token by the largest attention probability that it got in any query head of a KV
 * head. The first rule.sink tokens get scores above every probability. */
__global__ void __launch_bounds__(SUM)
    largest_kernel(const __grid_constant__ kvd_uneven_prompts_args u)
{
    const kvd_evict_prompts_args &a = u.prompt;
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, group = a.map.group,
              t = (int)(blockIdx.x * SUM + threadIdx.x);
    if (t >= a.q_len[b])
        return;
    const size_t at = (size_t)a.q_start[b] + t;
    float most = 0;
    for (int h = g * group; h < (g + 1) * group; h++)
        most = fmaxf(most, a.mass[(size_t)h * a.n_q8 + at]);
    u.rank[(size_t)(u.first + g) * a.n_q8 + at] =
        t < a.rule.sink ? (float)(1 + a.rule.sink - t) : most;
}

__global__ void __launch_bounds__(MOVE)
    compact_kernel(const __grid_constant__ kvd_uneven_prompts_args u)
{
    const kvd_evict_prompts_args &a = u.prompt;
    const int b = (int)blockIdx.y, kv = a.map.n_kv_heads, slices = (int)gridDim.x / (2 * kv);
    const int slice = (int)blockIdx.x % slices, side = (int)blockIdx.x / slices % 2,
              g = (int)blockIdx.x / slices / 2;
    const int n = a.q_len[b], m = u.count[(size_t)a.slot[b] * kv + g], d_k = a.map.d_qk[g],
              d_v = a.map.d_v[g], d = side ? d_v : d_k;
    if (m == n || slice * DIMS >= d)
        return;
    const page_rows x = {static_cast<uint16_t *>(u.heads) + (side ? KVD_PAGE_TOKENS * d_k : 0),
                         u.table + ((size_t)b * kv + g) * (size_t)a.max_pages,
                         (size_t)KVD_PAGE_TOKENS * (d_k + d_v),
                         d,
                         8 * d,
                         64};
    compact_rows<MOVE, RUN>(x, a.kept + (size_t)g * a.n_q8 + a.q_start[b], m, slice);
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
        const float *const x = a.mass + (size_t)h * a.n_q8 + at + first;
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
        a.score[at + window] = score;
}

__global__ void __launch_bounds__(RANK)
    windows_kernel(const __grid_constant__ kvd_uneven_prompts_args u)
{
    const kvd_evict_prompts_args &a = u.prompt;
    const int b = (int)blockIdx.x, n = a.q_len[b], old = before_window(a.rule, n),
              review = a.rule.review, windows = (old + review - 1) / review, kv = a.map.n_kv_heads,
              kept_old = a.budget[a.slot[b]].keep_old, k = kept_old / review;
    const size_t at = (size_t)a.q_start[b];
    const float *const score = a.score + at;
    const auto key = [score](int w) { return key_of(score[w], w); };
    const u64 least = kept_old >= old ? 0 : select_least<RANK>(key, windows, k);
    const int place = select_each<RANK>(
        n, [&](int t) { return t >= old || key(t / review) >= least; },
        [&](int i, int t) {
            for (int g = 0; g < kv; g++)
                a.kept[(size_t)g * a.n_q8 + at + i] = t;
        });
    for (int i = (int)threadIdx.x; i < u.layers * kv; i += RANK)
        u.count[(size_t)(i / kv) * u.layer_counts + (a.slot[b] * kv + i % kv)] = place;
}

} // namespace

static dim3 pages_of(const kvd_evict_prompts_args *a)
{
    return dim3(a->map.n_kv_heads, (a->longest + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS, a->batch);
}

extern "C" cudaError_t kvd_uneven_threshold(const kvd_uneven_prompts_args *u, int32_t n_layers,
                                            cudaStream_t stream)
{
    const kvd_evict_prompts_args *const a = &u->prompt;
    const long long keys = (long long)n_layers * u->n_all * a->longest;
    if (a->batch < 1 || a->batch > 65535 || a->longest < 1 || n_layers < 1 || keys > INT32_MAX ||
        !u->rank || !u->least || a->rule.whole_layer)
        return cudaErrorInvalidValue;
    threshold_kernel<<<a->batch, CHOOSE, 0, stream>>>(*u, n_layers);
    return cudaGetLastError();
}

static cudaError_t compact(const kvd_uneven_prompts_args *u, cudaStream_t stream)
{
    const kvd_evict_prompts_args *const a = &u->prompt;
    const int slices = (kvd_attn_widest(&a->map) + DIMS - 1) / DIMS;
    compact_kernel<<<dim3((a->map.n_kv_heads * 2 * slices), a->batch), MOVE, 0, stream>>>(*u);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_uneven_choose(const kvd_uneven_prompts_args *u, cudaStream_t stream)
{
    const kvd_evict_prompts_args *const a = &u->prompt;
    const int kv = a->map.n_kv_heads, batch = a->batch;
    const bool ranked = a->rule.ranking == KVD_EVICT_ATTENTION && !a->rule.whole_layer;
    if (a->batch < 1 || a->batch > 65535 || a->longest < 1 || !a->kept || !a->score || !a->mass ||
        (!u->rank && !ranked) || !u->least || !u->count || !u->table || !u->heads ||
        (u->whole > 0 && (!u->vector || !u->is_whole)) || u->n_all < u->first + (int)kv ||
        (!u->rank && u->n_all > (int)kv))
        return cudaErrorInvalidValue;
    if (u->whole > 0)
        whole_kernel<<<batch, KVD_HEADS_MAX, 0, stream>>>(*u);
    if (!u->decided) {
        rank_kernel<<<dim3(u->n_all, batch), CHOOSE, 0, stream>>>(*u);
        shared_kernel<<<batch, CHOOSE, 0, stream>>>(*u);
    }
    place_kernel<<<dim3(kv, batch), CHOOSE, 0, stream>>>(*u);
    return u->stored ? compact(u, stream) : kvd_uneven_copy(u, stream);
}

extern "C" cudaError_t kvd_uneven_copy(const kvd_uneven_prompts_args *u, cudaStream_t stream)
{
    const kvd_evict_prompts_args *const a = &u->prompt;
    if (a->batch < 1 || a->batch > 65535 || a->longest < 1 || !a->kept || !u->count || !u->table ||
        !u->heads)
        return cudaErrorInvalidValue;
    copy_kernel<false><<<pages_of(a), COPY, 0, stream>>>(*u);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_uneven_store(const kvd_uneven_prompts_args *u, cudaStream_t stream)
{
    const kvd_evict_prompts_args *const a = &u->prompt;
    if (a->batch < 1 || a->batch > 65535 || a->longest < 1 || !u->table || !u->heads)
        return cudaErrorInvalidValue;
    copy_kernel<true><<<pages_of(a), COPY, 0, stream>>>(*u);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_uneven_prompts(const kvd_uneven_prompts_args *u, cudaStream_t stream)
{
    cudaError_t e = kvd_evict_score_any(&u->prompt, stream);
    e = e == cudaSuccess ? kvd_uneven_vectors(u, stream) : e;
    return e == cudaSuccess ? kvd_uneven_choose(u, stream) : e;
}

extern "C" cudaError_t kvd_uneven_vectors(const kvd_uneven_prompts_args *u, cudaStream_t stream)
{
    const kvd_evict_prompts_args *const a = &u->prompt;
    if (!u->whole)
        return cudaSuccess;
    if (a->batch < 1 || a->batch > 65535 || !a->mass || !u->vector)
        return cudaErrorInvalidValue;
    vector_kernel<<<dim3(a->map.n_kv_heads, a->batch), VECTOR, 0, stream>>>(*u);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_uneven_runs(const kvd_uneven_prompts_args *u, cudaStream_t stream)
{
    kvd_evict_prompts_args a = u->prompt;
    a.merging.count = u->count;
    cudaError_t e = kvd_evict_score_any(&a, stream);
    e = e != cudaSuccess ? e : kvd_evict_runs(&a, stream);
    e = e != cudaSuccess ? e : kvd_evict_merge(&a, stream);
    return e != cudaSuccess ? e : kvd_uneven_copy(u, stream);
}

extern "C" cudaError_t kvd_uneven_step(const kvd_uneven_step_args *a, cudaStream_t stream)
{
    if (a->batch < 1 || a->batch > 65535 || !a->kv_len || !a->table || !a->heads)
        return cudaErrorInvalidValue;
    step_kernel<<<dim3(a->map.n_kv_heads, a->batch), (unsigned)(kvd_attn_widest(&a->map) / 4), 0,
                  stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_uneven_review(const kvd_uneven_prompts_args *u, cudaStream_t stream)
{
    const kvd_evict_prompts_args *const a = &u->prompt;
    const int most = a->rule.review > 0 ? (a->longest + a->rule.review - 1) / a->rule.review : 0,
              each = SUM / 32;
    if (a->batch < 1 || a->batch > 65535 || a->longest < 1 || most < 1 || !a->mass || !a->score ||
        a->rule.ranking != KVD_EVICT_ATTENTION)
        return cudaErrorInvalidValue;
    const cudaError_t e = kvd_evict_score_any(a, stream);
    if (e != cudaSuccess)
        return e;
    review_kernel<<<dim3(((most + each - 1) / each), a->batch), SUM, 0, stream>>>(*u);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_uneven_windows(const kvd_uneven_prompts_args *u, cudaStream_t stream)
{
    const kvd_evict_prompts_args *const a = &u->prompt;
    if (a->batch < 1 || a->batch > 65535 || a->rule.review < 1 || !a->score || !a->kept ||
        !u->count || u->layers < 1)
        return cudaErrorInvalidValue;
    windows_kernel<<<a->batch, RANK, 0, stream>>>(*u);
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
        const dim3 keys(pages, heads, batch);
        if (kvd_attn_widest(&a->map) > KVD_WIDTH_NARROW)
            spread_kernel<KVD_WIDTH_MAX><<<keys, KEYS, 0, stream>>>(*u);
        else
            spread_kernel<KVD_WIDTH_NARROW><<<keys, KEYS, 0, stream>>>(*u);
        statistic_kernel<<<batch, SUM, 0, stream>>>(*u);
    } else {
        const cudaError_t e = kvd_evict_score_any(a, stream);
        if (e != cudaSuccess)
            return e;
    }
    if (repeated) {
        largest_kernel<<<dim3((a->longest + SUM - 1) / SUM, a->map.n_kv_heads, batch), SUM, 0,
                         stream>>>(*u);
        return cudaGetLastError();
    }
    const unsigned ranks = a->rule.whole_layer ? 1 : (unsigned)a->map.n_kv_heads;
    sums_kernel<<<dim3(ranks, batch), RANK, 0, stream>>>(*u);
    return cudaGetLastError();
}
