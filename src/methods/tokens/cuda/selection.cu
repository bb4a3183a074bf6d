/* Chooses the selection pages (groups of adjacent tokens) that a decode step reads. */
#include "methods/tokens/cuda/evict_rank.cuh"
#include "methods/tokens/cuda/radix_select.cuh"
#include "methods/tokens/cuda/selection.h"

namespace
{

enum {
    BOUND = 128,
    SCORE = 256,
    WARP_PAGES = 8,
    SCORE_PAGES = WARP_PAGES * SCORE / 32,
    SUM = 256,
    CHOOSE = 512,
    RECALL = 128,
    KEYS = KVD_PAGE_TOKENS
};

/* Counts of groups of adjacent tokens. all: groups of a request. newest: groups that are always
 * read. chosen: older groups that a decode step chooses by score. */
struct pages {
    int all, newest, chosen;
};

__device__ __forceinline__ pages pages_of(const kvd_selection &s, int n)
{
    const kvd_selection_pages p = kvd_selection_pages_of(&s.rule, (size_t)n);
    return {(int)p.all, (int)p.newest, (int)p.chosen};
}

/* Returns true if a decode step must score the older groups of tokens, because it reads only some
 * of them. */
__device__ __forceinline__ bool scores(const pages &p)
{
    return p.chosen > 0 && p.chosen < p.all - p.newest;
}

__device__ __forceinline__ int page_of(const kvd_selection &s)
{
    return (int)s.rule.page;
}

/* Returns the largest possible number of selection pages (groups of adjacent tokens) of a request.
 * It is the row length of the array to.chosen. */
__device__ __forceinline__ size_t most_of(const kvd_selection &s)
{
    return (size_t)s.max_pages * (KVD_PAGE_TOKENS / page_of(s));
}

__device__ __forceinline__ size_t bounds_at(const kvd_selection &s, int b, int g, int i)
{
    const int each = KVD_PAGE_TOKENS / page_of(s),
              page = s.page_table[(size_t)b * s.max_pages + i / each];
    return (((size_t)page * s.map.n_kv_heads + g) * (size_t)each + i % each) *
           (size_t)(2 * s.map.d_qk[0]);
}

__device__ __forceinline__ int32_t piece_of(const kvd_selection &s, int b, int g, int i)
{
    const int each = KVD_PAGE_TOKENS / page_of(s),
              page = s.page_table[(size_t)b * s.max_pages + i / each];
    return (page * s.map.n_kv_heads + g) * each + i % each;
}

/* Adds group i of adjacent tokens to the lists of groups that KV head g of request b reads, at
 * index `at` of the lists. */
__device__ __forceinline__ void choose_page(const kvd_selection &s, const kvd_selected &to, int b,
                                            int g, int at, int i)
{
    const size_t place = ((size_t)b * s.map.n_kv_heads + g) * most_of(s) + at;
    to.chosen[place] = i;
    to.table[place] = piece_of(s, b, g, i);
}

/* Returns the index of the first element of K in the cache page that has token t of request b, for
 * KV head g. */
__device__ __forceinline__ size_t keys_at(const kvd_selection &s, int b, int g, int t)
{
    return (size_t)s.page_table[(size_t)b * s.max_pages + t / KVD_PAGE_TOKENS] *
               s.map.page_elements +
           s.map.kv_offset[g];
}

/* Packs eight floats into bf16 numbers. The floats must be exactly representable as bf16. */
__device__ __forceinline__ uint4 pack(const float x[8])
{
    uint32_t word[4];
#pragma unroll
    for (int e = 0; e < 4; e++)
        word[e] = __float_as_uint(x[2 * e]) >> 16 | (__float_as_uint(x[2 * e + 1]) & 0xffff0000u);
    return make_uint4(word[0], word[1], word[2], word[3]);
}

__global__ void __launch_bounds__(BOUND)
    bounds_kernel(const __grid_constant__ kvd_selection s, const int32_t *q_len)
{
    const int d = s.map.d_qk[0], threads = d / 8, each = BOUND / threads, g = (int)blockIdx.y,
              b = (int)blockIdx.z, block = (int)threadIdx.x % threads;
    if (s.slot[b] >= s.n_slots || (int)threadIdx.x >= each * threads)
        return;
    const int n = s.kv_len[b],
              page =
                  (n - q_len[b]) / page_of(s) + (int)blockIdx.x * each + (int)threadIdx.x / threads,
              first = page * page_of(s), end = min(n, first + page_of(s));
    if (first >= end)
        return;
    const uint16_t *const keys = static_cast<const uint16_t *>(s.pool) + keys_at(s, b, g, first);
    float low[8], high[8];
    for (int t = first; t < end; t++) {
        float x[8];
        unpack8(*reinterpret_cast<const uint4 *>(keys + piece(t, block, d)), x);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            low[e] = t == first ? x[e] : fminf(low[e], x[e]);
            high[e] = t == first ? x[e] : fmaxf(high[e], x[e]);
        }
    }
    uint16_t *const to = static_cast<uint16_t *>(s.bounds) + bounds_at(s, b, g, page) + 8 * block;
    *reinterpret_cast<uint4 *>(to) = pack(low);
    *reinterpret_cast<uint4 *>(to + d) = pack(high);
}

__global__ void lengths_kernel(const __grid_constant__ kvd_selection s, const int32_t *live,
                               int32_t *len, int32_t *heads)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), kv = s.map.n_kv_heads;
    if (i >= s.batch * kv)
        return;
    len[i] = (int)kvd_selection_tokens(&s.rule, (size_t)s.kv_len[i / kv]);
    if (i == 0)
        heads[0] = live[0] * kv;
}

/* Writes two factors per dimension, `rise` and `fall`, by which groups of tokens are scored. A
 * group's score is the sum over dimensions of rise * largest key element + fall * smallest key
 * element. All threads must call it. */
__device__ void factors(const kvd_selection &s, const void *queries, int b, int g, float *rise,
                        float *fall)
{
    const int me = (int)threadIdx.x, group = s.map.group;
    if (me < s.map.d_qk[0]) {
        const uint16_t *const q =
            static_cast<const uint16_t *>(queries) + (size_t)b * s.map.q_pitch + me;
        float up = 0, down = 0;
        for (int h = g * group; h < (g + 1) * group; h++) {
            const float x = __uint_as_float((uint32_t)q[s.map.q_offset[h]] << 16);
            up += fmaxf(x, 0);
            down += fminf(x, 0);
        }
        const bool clusters = s.rule.ranking == KVD_READ_CLUSTERS;
        const float alpha = (float)s.rule.alpha;
        rise[me] = clusters ? alpha * (up + down) : up;
        fall[me] = clusters ? (1 - alpha) * (up + down) : down;
    }
    __syncthreads();
}

/* Computes the scores of WARP_PAGES groups of adjacent tokens, from group `first` on, with one
 * warp. */
template <int CHUNKS>
__device__ __forceinline__ void score_pages(const kvd_selection &s, const float *rise,
                                            const float *fall, int b, int g, int first, int end,
                                            float *score)
{
    const int d = s.map.d_qk[0], lane = (int)threadIdx.x % 32;
    float sum[WARP_PAGES] = {};
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        const int at = 8 * (lane + 32 * k);
        const bool there = at < 2 * d;
        const float4 *const from = reinterpret_cast<const float4 *>(at < d  ? fall + at
                                                                    : there ? rise + at - d
                                                                            : fall);
        const float4 low = from[0], high = from[1];
        const float factor[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        float x[8];
        uint4 w[WARP_PAGES];
#pragma unroll
        for (int u = 0; u < WARP_PAGES; u++)
            w[u] = there && first + u < end
                       ? *reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(s.bounds) +
                                                          bounds_at(s, b, g, first + u) + at)
                       : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int u = 0; u < WARP_PAGES; u++) {
            unpack8(w[u], x);
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum[u] = fmaf(factor[e], x[e], sum[u]);
        }
    }
#pragma unroll
    for (int u = 0; u < WARP_PAGES; u++) {
        sum[u] = over_warp(sum[u]);
        if (lane == u && first + u < end)
            score[first + u] = sum[u];
    }
}

/* Computes a score for each group of adjacent tokens from its largest and smallest key elements. */
__global__ void __launch_bounds__(SCORE)
    score_kernel(const __grid_constant__ kvd_selection s, const __grid_constant__ kvd_selected to)
{
    __shared__ __align__(16) float rise[KVD_WIDTH_MAX], fall[KVD_WIDTH_MAX];
    const int kv = s.map.n_kv_heads, g = (int)blockIdx.y, b = (int)blockIdx.z,
              warp = (int)threadIdx.x / 32;
    if (s.slot[b] >= s.n_slots)
        return;
    const int n = s.kv_len[b], first = (int)blockIdx.x * SCORE_PAGES;
    const pages p = pages_of(s, n);
    const bool clusters = s.rule.ranking == KVD_READ_CLUSTERS;
    const int old = clusters ? p.all : p.all - p.newest;
    if (first >= old || (!clusters && !scores(p)))
        return;
    factors(s, to.q, b, g, rise, fall);
    float *const score = to.score + ((size_t)b * kv + g) * most_of(s) * (clusters ? 2 : 1);
    if (s.map.d_qk[0] <= KVD_WIDTH_NARROW)
        score_pages<1>(s, rise, fall, b, g, first + WARP_PAGES * warp, old, score);
    else
        score_pages<2>(s, rise, fall, b, g, first + WARP_PAGES * warp, old, score);
}

/* Scores large clusters of tokens by their largest and smallest key elements. These are computed
 * from the extremes of the small clusters in each large cluster. */
__global__ void __launch_bounds__(SCORE)
    large_kernel(const __grid_constant__ kvd_selection s, const __grid_constant__ kvd_selected to)
{
    __shared__ float rise[KVD_WIDTH_MAX], fall[KVD_WIDTH_MAX];
    const int d = s.map.d_qk[0], g = (int)blockIdx.y, b = (int)blockIdx.z,
              each = s.rule.large / page_of(s), lane = (int)threadIdx.x % 32,
              i = (int)blockIdx.x * (SCORE / 32) + (int)threadIdx.x / 32;
    if (s.slot[b] >= s.n_slots)
        return;
    const int small = pages_of(s, s.kv_len[b]).all;
    if ((int)blockIdx.x * (SCORE / 32) * each >= small)
        return;
    factors(s, to.q, b, g, rise, fall);
    if (i * each >= small)
        return;
    float sum = 0;
    for (int j = lane; j < d; j += 32) {
        float low = INFINITY, high = -INFINITY;
        for (int k = i * each; k < min((i + 1) * each, small); k++) {
            const uint16_t *const x =
                static_cast<const uint16_t *>(s.bounds) + bounds_at(s, b, g, k) + j;
            low = fminf(low, __uint_as_float((uint32_t)x[0] << 16));
            high = fmaxf(high, __uint_as_float((uint32_t)x[d] << 16));
        }
        sum = fmaf(rise[j], high, sum);
        sum = fmaf(fall[j], low, sum);
    }
    sum = over_warp(sum);
    const size_t row = (size_t)b * s.map.n_kv_heads + g;
    if (lane == 0)
        to.score[(2 * row + 1) * most_of(s) + i] = sum;
}

__global__ void __launch_bounds__(CHOOSE)
    cluster_kernel(const __grid_constant__ kvd_selection s, const __grid_constant__ kvd_selected to)
{
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, kv = s.map.n_kv_heads, page = page_of(s),
              each = s.rule.large / page;
    if (s.slot[b] >= s.n_slots)
        return;
    const int n = s.kv_len[b], small = pages_of(s, n).all, large = (small + each - 1) / each;
    const size_t row = (size_t)b * kv + g, most = most_of(s);
    const int wanted = (int)kvd_selection_wanted(&s.rule, (size_t)small);
    const float *const score = to.score + 2 * row * most, *const outer = score + most;
    const unsigned long long above = select_least<CHOOSE>(
        [outer](int i) { return key_of(outer[i], i); }, large, (int)(s.rule.first * (double)large));
    const auto examined = [&](int i) {
        const int l = i / each;
        return l == 0 || l == large - 1 || key_of(outer[l], l) >= above;
    };
    const auto key = [&](int i) { return key_of(examined(i) ? score[i] : -INFINITY, i); };
    const unsigned long long least = select_least<CHOOSE>(key, small, wanted);
    const int place = select_each<CHOOSE>(
        small,
        [&](int i) {
            return wanted >= small || i == 0 || i == small - 1 || (examined(i) && key(i) >= least);
        },
        [&](int at, int i) { choose_page(s, to, b, g, at, i); });
    if (threadIdx.x > 0)
        return;
    const int tokens = (place - 1) * page + n - (small - 1) * page;
    to.len[row] = tokens;
    atomicAdd(to.read + b, (unsigned long long)tokens);
}

__global__ void __launch_bounds__(CHOOSE)
    choose_kernel(const __grid_constant__ kvd_selection s, const __grid_constant__ kvd_selected to)
{
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, kv = s.map.n_kv_heads;
    if (s.slot[b] >= s.n_slots)
        return;
    const pages p = pages_of(s, s.kv_len[b]);
    const size_t row = (size_t)b * kv + g, most = most_of(s);
    const int old = p.all - p.newest;
    const float *const score = to.score + row * most;
    const bool some = scores(p);
    const auto key = [score](int i) { return key_of(score[i], i); };
    const unsigned long long least = select_least<CHOOSE>(key, old, p.chosen);
    select_each<CHOOSE>(
        p.all, [&](int i) { return i >= old || least == 0 || (some && key(i) >= least); },
        [&](int at, int i) { choose_page(s, to, b, g, at, i); });
}

/* Returns the address at which the attention probabilities of token t begin. A token's
 * probabilities, one per recent query, are KVD_PAGE_TOKENS floats apart. */
__device__ __forceinline__ float *recent_of(const kvd_selection &s, int b, int g, int t)
{
    const size_t page = (size_t)s.page_table[(size_t)b * s.max_pages + t / KVD_PAGE_TOKENS];
    return s.recent +
           (page * (size_t)s.map.n_kv_heads + g) * (size_t)(s.rule.history * KVD_PAGE_TOKENS) +
           t % KVD_PAGE_TOKENS;
}

__global__ void __launch_bounds__(SUM)
    sum_kernel(const __grid_constant__ kvd_selection s, const __grid_constant__ kvd_selected to)
{
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, t = (int)(blockIdx.x * SUM + threadIdx.x);
    if (s.slot[b] >= s.n_slots)
        return;
    const pages p = pages_of(s, s.kv_len[b]);
    if (t >= p.all - p.newest || !scores(p))
        return;
    const float *const x = recent_of(s, b, g, t);
    float sum = 0;
    for (int r = 0; r < s.rule.history; r++)
        sum += x[r * KVD_PAGE_TOKENS];
    to.score[((size_t)b * s.map.n_kv_heads + g) * most_of(s) + t] = sum;
}

/* Returns the index of dimension c of token t in a matrix with d columns, stored in blocks of 8 x
 * 8. */
__device__ __forceinline__ size_t element(int t, int c, int d)
{
    return (size_t)(t / 8 * 8 * d + c / 8 * 64 + t % 8 * 8 + c % 8);
}

/* Writes to s.recent the attention probabilities that each key got from the newest queries. Each
 * thread handles one key. WIDTH is the largest number of dimensions of a key. */
template <int WIDTH>
__global__ void __launch_bounds__(KEYS)
    recent_kernel(const __grid_constant__ kvd_selection s,
                  const __grid_constant__ kvd_selection_rows rows)
{
    constexpr int ROWS = WIDTH > KVD_WIDTH_NARROW ? 8 : 16;
    __shared__ uint16_t key[WIDTH][KEYS];
    __shared__ __align__(16) float query[WIDTH][ROWS];
    __shared__ float lse[ROWS];
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, me = (int)threadIdx.x,
              i = (int)blockIdx.x * KEYS + me, d = s.map.d_qk[0], group = s.map.group,
              history = s.rule.history, queries = history * group;
    if (s.slot[b] >= s.n_slots || (int)blockIdx.x * KEYS >= s.kv_len[b])
        return;
    const int n = s.kv_len[b], fresh = n - rows.q_len[b];
    const uint16_t *const k =
        static_cast<const uint16_t *>(s.pool) + keys_at(s, b, g, (int)blockIdx.x * KEYS);
    const uint16_t *const q = static_cast<const uint16_t *>(rows.q);
    float *const to = recent_of(s, b, g, (int)blockIdx.x * KEYS) + me;
    for (int c = 0; c < d && i < n; c++)
        key[c][me] = k[element(me, c, d)];
    float sum = 0;
    for (int first = 0; first < queries; first += ROWS) {
        __syncthreads();
        for (int x = me; x < ROWS * d; x += KEYS) {
            const int j = first + x % ROWS, c = x / ROWS, h = g * group + j % group,
                      t = n - 1 - (n - 1 - j / group % history + history) % history;
            const bool there = j < queries && t >= fresh;
            query[c][x % ROWS] =
                there ? wide(q[(size_t)s.map.q_offset[h] * rows.n_q8 + (size_t)rows.q_start[b] * d +
                               element(t - fresh, c, d)])
                      : 0;
            if (c == 0)
                lse[x % ROWS] =
                    there ? rows.lse[(size_t)h * rows.n_q8 + (rows.q_start[b] + t - fresh)] : 0;
        }
        __syncthreads();
        float product[ROWS];
        multiply<KEYS, ROWS>(key, query, d, product);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int j = first + r, row = j / group,
                      t = n - 1 - (n - 1 - row % history + history) % history;
            if (j >= queries || i >= n)
                continue;
            sum += t >= fresh && i <= t ? expf(product[r] * s.map.scale - lse[r]) : 0;
            if (j % group < group - 1)
                continue;
            /* If both query and key are in earlier parts of the prompt, their probability is
             * already stored. */
            if (t >= fresh || i >= fresh)
                to[row * KVD_PAGE_TOKENS] = sum;
            sum = 0;
        }
    }
}

/* Zeroes the attention probabilities in s.recent that the newest query will overwrite, and all
 * probabilities of the newest token. */
__global__ void __launch_bounds__(KEYS) forget_kernel(const __grid_constant__ kvd_selection s)
{
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, i = (int)(blockIdx.x * KEYS + threadIdx.x);
    if (s.slot[b] >= s.n_slots || i >= s.kv_len[b])
        return;
    const int now = s.kv_len[b] - 1, history = s.rule.history;
    float *const to = recent_of(s, b, g, i);
    to[now % history * KVD_PAGE_TOKENS] = 0;
    for (int r = 0; r < history && i == now; r++)
        to[r * KVD_PAGE_TOKENS] = 0;
}

/* Writes the decode step's attention probabilities to s.recent. Each warp handles 16 of the tokens
 * that were read. WIDTH is the largest number of dimensions of a key. */
template <int HALVES, int WIDTH>
__global__ void __launch_bounds__(RECALL)
    recall_kernel(const __grid_constant__ kvd_selection s, const __grid_constant__ kvd_selected to,
                  const float *lse)
{
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, lane = (int)threadIdx.x % 32,
              quad = lane % 4,
              first = (int)blockIdx.x * KVD_PAGE_TOKENS + (int)threadIdx.x / 32 * 16,
              i = first + lane / 4 + 8 * quad, d = s.map.d_qk[0], group = s.map.group;
    if (s.slot[b] >= s.n_slots)
        return;
    const size_t row = (size_t)b * s.map.n_kv_heads + g;
    const int n = s.kv_len[b], m = to.len[row];
    if (first >= m)
        return;
    const int32_t token = quad < 2 && i < m ? to.chosen[row * most_of(s) + i] : -1;
    const step_queries<HALVES, WIDTH / 32> q(static_cast<const uint16_t *>(to.q) +
                                                 (size_t)b * s.map.q_pitch,
                                             s.map.q_offset + g * group, group, d);
    const int32_t *const table = to.table + row * most_of(s);
    const auto key = [&](int place) {
        const int t = table[min(place, m - 1)];
        return static_cast<const uint16_t *>(s.pool) +
               (size_t)(t / KVD_PAGE_TOKENS) * (KVD_PAGE_TOKENS * (d + s.map.d_v[0])) +
               piece(t, quad, d);
    };
    float acc[HALVES][4], p[2] = {0, 0};
    step_products(key(first + lane / 4), key(first + lane / 4 + 8), d, q, acc);
#pragma unroll
    for (int h = 0; h < HALVES; h++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const int j = 8 * h + 2 * quad + c % 2;
            p[c / 2] +=
                j < group
                    ? kvd_exp2(LOG2E * fmaf(acc[h][c], s.map.scale, -lse[row * (size_t)group + j]))
                    : 0;
        }
#pragma unroll
    for (int c = 0; c < 2; c++) {
        p[c] += __shfl_xor_sync(0xffffffffu, p[c], 1);
        p[c] += __shfl_xor_sync(0xffffffffu, p[c], 2);
    }
    if (token >= 0)
        recent_of(s, b, g, token)[(n - 1) % s.rule.history * KVD_PAGE_TOKENS] = quad ? p[1] : p[0];
}

bool fits(const kvd_selection *s)
{
    for (int g = 1; g < s->map.n_kv_heads; g++)
        if (s->map.d_qk[g] != s->map.d_qk[0] || s->map.d_v[g] != s->map.d_v[0])
            return false;
    return s->batch > 0 && s->batch <= 65535 && s->rule.page > 0 &&
           KVD_PAGE_TOKENS % s->rule.page == 0 && s->max_pages > 0 && s->kv_len && s->slot;
}

} // namespace

extern "C" cudaError_t kvd_selection_bounds(const kvd_selection *s, const int32_t *q_len,
                                            int32_t longest, cudaStream_t stream)
{
    if (!fits(s) || !q_len || longest < 1 || !s->page_table || !s->pool || !s->bounds)
        return cudaErrorInvalidValue;
    const int each = BOUND / (s->map.d_qk[0] / 8), pages = (longest - 1) / (int)s->rule.page + 2;
    bounds_kernel<<<dim3(((pages + each - 1) / each), s->map.n_kv_heads, s->batch), BOUND, 0,
                    stream>>>(*s, q_len);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_selection_lengths(const kvd_selection *s, const int32_t *live,
                                             int32_t *len, int32_t *heads, cudaStream_t stream)
{
    if (!fits(s) || !live || !len || !heads)
        return cudaErrorInvalidValue;
    const unsigned n = (unsigned)(s->batch * s->map.n_kv_heads);
    lengths_kernel<<<(n + 255) / 256, 256, 0, stream>>>(*s, live, len, heads);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_selection_choose(const kvd_selection *s, const kvd_selected *to,
                                            cudaStream_t stream)
{
    const bool recent = s->rule.ranking == KVD_READ_RECENT;
    if (!fits(s) || !s->page_table || !s->pool || (recent ? !s->recent : !s->bounds) || !to->q ||
        !to->score || !to->chosen || !to->table || kvd_selection_varies(&s->rule))
        return cudaErrorInvalidValue;
    const unsigned kv = (unsigned)s->map.n_kv_heads, batch = (unsigned)s->batch,
                   most = (unsigned)s->max_pages * (unsigned)(KVD_PAGE_TOKENS / s->rule.page);
    if (recent)
        sum_kernel<<<dim3((most + SUM - 1) / SUM, kv, batch), SUM, 0, stream>>>(*s, *to);
    else
        score_kernel<<<dim3((most + SCORE_PAGES - 1) / SCORE_PAGES, kv, batch), SCORE, 0, stream>>>(
            *s, *to);
    choose_kernel<<<dim3(kv, batch), CHOOSE, 0, stream>>>(*s, *to);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_selection_clusters(const kvd_selection *s, const kvd_selected *to,
                                              cudaStream_t stream)
{
    const kvd_read_rule *const r = &s->rule;
    if (!fits(s) || r->ranking != KVD_READ_CLUSTERS || r->large < (int32_t)r->page ||
        r->large % (int32_t)r->page || !s->page_table || !s->pool || !s->bounds || !to->q ||
        !to->score || !to->chosen || !to->len || !to->read || !to->table)
        return cudaErrorInvalidValue;
    const unsigned kv = (unsigned)s->map.n_kv_heads, batch = (unsigned)s->batch,
                   most = (unsigned)s->max_pages * (unsigned)(KVD_PAGE_TOKENS / r->page),
                   large = (most + (unsigned)r->large / (unsigned)r->page - 1) /
                           ((unsigned)r->large / (unsigned)r->page);
    large_kernel<<<dim3((large + SCORE / 32 - 1) / (SCORE / 32), kv, batch), SCORE, 0, stream>>>(
        *s, *to);
    score_kernel<<<dim3((most + SCORE_PAGES - 1) / SCORE_PAGES, kv, batch), SCORE, 0, stream>>>(
        *s, *to);
    cluster_kernel<<<dim3(kv, batch), CHOOSE, 0, stream>>>(*s, *to);
    return cudaGetLastError();
}

static bool recalls(const kvd_selection *s)
{
    return fits(s) && s->rule.ranking == KVD_READ_RECENT && s->rule.page == 1 &&
           s->rule.history > 0 && s->page_table && s->pool && s->recent;
}

extern "C" cudaError_t kvd_selection_recent(const kvd_selection *s, const kvd_selection_rows *r,
                                            cudaStream_t stream)
{
    if (!recalls(s) || !r->q || !r->lse || !r->q_start || !r->q_len || r->longest < 1)
        return cudaErrorInvalidValue;
    const dim3 pages((r->longest + KEYS - 1) / KEYS, s->map.n_kv_heads, s->batch);
    if (s->map.d_qk[0] > KVD_WIDTH_NARROW)
        recent_kernel<KVD_WIDTH_MAX><<<pages, KEYS, 0, stream>>>(*s, *r);
    else
        recent_kernel<KVD_WIDTH_NARROW><<<pages, KEYS, 0, stream>>>(*s, *r);
    return cudaGetLastError();
}

template <int WIDTH>
static void recall(const kvd_selection &s, const kvd_selected &to, const float *lse,
                   cudaStream_t stream)
{
    const dim3 pages(to.row_pages, s.map.n_kv_heads, s.batch);
    if (s.map.group > 8)
        recall_kernel<2, WIDTH><<<pages, RECALL, 0, stream>>>(s, to, lse);
    else
        recall_kernel<1, WIDTH><<<pages, RECALL, 0, stream>>>(s, to, lse);
}

extern "C" cudaError_t kvd_selection_recall(const kvd_selection *s, const kvd_selected *to,
                                            const float *lse, cudaStream_t stream)
{
    if (!recalls(s) || !to->q || !to->chosen || !to->len || !to->table || to->row_pages < 1 || !lse)
        return cudaErrorInvalidValue;
    const unsigned kv = (unsigned)s->map.n_kv_heads, batch = (unsigned)s->batch;
    forget_kernel<<<dim3(s->max_pages, kv, batch), KEYS, 0, stream>>>(*s);
    if (s->map.d_qk[0] > KVD_WIDTH_NARROW)
        recall<KVD_WIDTH_MAX>(*s, *to, lse, stream);
    else
        recall<KVD_WIDTH_NARROW>(*s, *to, lse, stream);
    return cudaGetLastError();
}
