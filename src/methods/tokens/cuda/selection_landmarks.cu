/* Method shadowkv: decode steps choose groups of adjacent tokens (selection pages) by the mean of
 * their keys, and read only the tokens in them. */
#include "methods/tokens/cuda/evict_rank.cuh"
#include "methods/tokens/cuda/radix_select.cuh"
#include "methods/tokens/cuda/selection.h"

#include <cuda_bf16.h>

namespace
{

enum { SCORE = 256, CHOOSE = 512, STORE = 256 };
typedef unsigned long long u64;

enum { WARPS = 8, LANES = 32, PAGES_OF_WARP = 8 };

__device__ __forceinline__ kvd_selection_marks marks_of(const kvd_selection &s,
                                                        const kvd_selection_shadow &x, int b)
{
    return kvd_selection_marks_of(&s.rule, (size_t)x.prompt[s.slot[b]]);
}

/* Counts the groups of adjacent tokens in the prompt of request b: groups with a mean key, groups
 * whose keys are also stored exactly, and groups that a decode step chooses. All threads of the CTA
 * must call it. */
__device__ __forceinline__ kvd_selection_marks shared_marks(const kvd_selection &s,
                                                            const kvd_selection_shadow &x, int b)
{
    __shared__ kvd_selection_marks m;
    if (threadIdx.x == 0)
        m = marks_of(s, x, b);
    __syncthreads();
    return m;
}

/* Returns log2 of the number of tokens in a selection page (a group of adjacent tokens). */
__device__ __forceinline__ int log_tokens(const kvd_selection &s)
{
    return __ffs((int)s.rule.page) - 1;
}

/* Returns log2 of the number of selection pages (groups of adjacent tokens) in a cache page. */
__device__ __forceinline__ int log_each(const kvd_selection &s)
{
    static_assert(KVD_PAGE_TOKENS == 64, "the logarithm is 6");
    return 6 - log_tokens(s);
}

/* Returns the largest possible number of selection pages (groups of adjacent tokens) of a request.
 * It is the row length of the array of scores. */
__device__ __forceinline__ size_t room_of(const kvd_selection &s)
{
    return (size_t)s.max_pages << log_each(s);
}

/* Returns the index of the cache page that contains the i-th group of adjacent tokens of request
 * b. */
__device__ __forceinline__ size_t pool_page(const kvd_selection &s, int b, int i)
{
    return (size_t)s.page_table[(size_t)b * (size_t)s.max_pages + (size_t)(i >> log_each(s))];
}

__device__ __forceinline__ size_t in_page(const kvd_selection &s, int g, int i)
{
    const int log = log_each(s);
    return (size_t)((g << log) + (i & ((1 << log) - 1)));
}

__device__ __forceinline__ uint16_t *mean_of(const kvd_selection &s, const kvd_selection_shadow &x,
                                             int b, int g, int i)
{
    return reinterpret_cast<uint16_t *>(static_cast<char *>(s.bounds) +
                                        pool_page(s, b, i) * x.side) +
           in_page(s, g, i) * (size_t)s.map.d_qk[0];
}

/* Returns the address of the flag of selection page i, a group of adjacent tokens. Flag 0: its keys
 * are not stored exactly. Flag n > 0: it is the n-th group with exactly stored keys. */
__device__ __forceinline__ uint8_t *flag_of(const kvd_selection &s, const kvd_selection_shadow &x,
                                            int b, int g, int i)
{
    const size_t means =
        ((size_t)(s.map.n_kv_heads * s.map.d_qk[0]) << log_each(s)) * sizeof(uint16_t);
    return static_cast<uint8_t *>(s.bounds) + pool_page(s, b, i) * x.side + means +
           in_page(s, g, i);
}

/* Computes for each selection page (group of adjacent tokens) the mean key and the score, which is
 * the negative of the smallest cosine between a key and the mean. */
template <int WIDTH>
__global__ void __launch_bounds__(LANES *WARPS)
    mean_kernel(const __grid_constant__ kvd_selection s,
                const __grid_constant__ kvd_selection_shadow x, float *score)
{
    constexpr int EACH_LANE = WIDTH / LANES;
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, d = s.map.d_qk[0],
              lane = (int)threadIdx.x % LANES, page = (int)s.rule.page,
              i = (int)blockIdx.x * WARPS + (int)threadIdx.x / LANES;
    if (s.slot[b] >= s.n_slots)
        return;
    const int n = s.kv_len[b];
    if (g == 0 && i == 0 && lane == 0)
        x.prompt[s.slot[b]] = n;
    if (i >= (int)kvd_selection_marks_of(&s.rule, (size_t)n).all)
        return;
    const uint16_t *const k = static_cast<const uint16_t *>(s.pool) +
                              pool_page(s, b, i) * (size_t)s.map.page_elements +
                              (size_t)s.map.kv_offset[g];
    const auto number = [&](int t, int j) {
        return j < d ? wide(k[piece(i * page + t, j / 8, d) + (size_t)(j % 8)]) : 0.0f;
    };
    float mean[EACH_LANE] = {}, length = 0, least = 1;
    for (int t = 0; t < page; t++)
#pragma unroll
        for (int e = 0; e < EACH_LANE; e++)
            mean[e] += number(t, lane + LANES * e);
#pragma unroll
    for (int e = 0; e < EACH_LANE; e++) {
        mean[e] /= (float)page;
        length = fmaf(mean[e], mean[e], length);
        if (lane + LANES * e < d)
            mean_of(s, x, b, g, i)[lane + LANES * e] =
                __bfloat16_as_ushort(__float2bfloat16_rn(mean[e]));
    }
    length = over_warp(length);
    for (int t = 0; t < page; t++) {
        float dot = 0, own = 0;
#pragma unroll
        for (int e = 0; e < EACH_LANE; e++) {
            const float y = number(t, lane + LANES * e);
            dot = fmaf(y, mean[e], dot);
            own = fmaf(y, y, own);
        }
        dot = over_warp(dot);
        own = over_warp(own);
        least = fminf(least, length > 0 && own > 0 ? dot / sqrtf(length * own) : 0);
    }
    if (lane == 0)
        score[((size_t)b * (size_t)s.map.n_kv_heads + (size_t)g) * room_of(s) + (size_t)i] = -least;
}

/* Returns a number x such that, of n sort keys, exactly the k largest are at least x. All CHOOSE
 * threads of the CTA must call it. */
template <typename KEY>
__device__ __forceinline__ u64 threshold_of(const KEY &key, size_t n, size_t k, unsigned *bin)
{
    u64 least = k >= n ? 0 : ~0ull;
    if (k > 0 && k < n)
        least = select_key<CHOOSE>(key, (int)n, (int)k, bin);
    __syncthreads();
    return least;
}

__global__ void __launch_bounds__(CHOOSE)
    outlier_kernel(const __grid_constant__ kvd_selection s,
                   const __grid_constant__ kvd_selection_shadow x, const float *all_scores)
{
    __shared__ unsigned bin[KVD_SELECT_BINS];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y;
    if (s.slot[b] >= s.n_slots)
        return;
    const kvd_selection_marks m = kvd_selection_marks_of(&s.rule, (size_t)s.kv_len[b]);
    const float *const score =
        all_scores + ((size_t)b * (size_t)s.map.n_kv_heads + (size_t)g) * room_of(s);
    const auto key = [score](int i) { return key_of(score[i], i); };
    const u64 least = threshold_of(key, m.all, m.outliers, bin);
    for (int first = 0, place = 0; first < (int)m.all; first += CHOOSE) {
        const int i = first + (int)threadIdx.x;
        const bool exact = i < (int)m.all && key(i) >= least;
        int some;
        const int at = place + select_place<CHOOSE>(exact, &some);
        place += some;
        if (i < (int)m.all)
            *flag_of(s, x, b, g, i) = static_cast<uint8_t>(exact ? at + 1 : 0);
    }
}

__global__ void landmark_lengths_kernel(const __grid_constant__ kvd_selection s,
                                        const __grid_constant__ kvd_selection_shadow x,
                                        const int32_t *live, int32_t *len, int32_t *heads)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), kv = s.map.n_kv_heads, b = i / kv;
    if (i >= s.batch * kv)
        return;
    const int slot = s.slot[b];
    const bool there = slot < s.n_slots;
    len[i] =
        there ? (int)kvd_selection_marked(&s.rule, (size_t)x.prompt[slot], (size_t)s.kv_len[b]) : 1;
    x.matrix[i] = there ? slot * x.n_layers * kv + i % kv : i % kv;
    if (i == 0)
        heads[0] = live[0] * kv;
}

/* Multiplies the queries by the mean key of each group of adjacent tokens. Groups whose keys are
 * also stored uncompressed get the score -INFINITY. */
template <int WIDTH>
__global__ void __launch_bounds__(LANES *WARPS)
    landmark_score_kernel(const __grid_constant__ kvd_selection s,
                          const __grid_constant__ kvd_selection_shadow x,
                          const __grid_constant__ kvd_selected to)
{
    constexpr int PARTS = WIDTH / (4 * LANES);
    __shared__ __align__(16) float q[KVD_GROUP_MAX][WIDTH];
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, d = s.map.d_qk[0], group = s.map.group,
              lane = (int)threadIdx.x % LANES,
              first = ((int)blockIdx.x * WARPS + (int)threadIdx.x / LANES) * PAGES_OF_WARP;
    if (s.slot[b] >= s.n_slots)
        return;
    const int all = (int)shared_marks(s, x, b).all;
    if ((int)blockIdx.x * WARPS * PAGES_OF_WARP >= all)
        return;
    const uint16_t *const queries =
        static_cast<const uint16_t *>(to.q) + (size_t)b * (size_t)s.map.q_pitch;
    for (int h = 0; h < group; h++)
        for (int j = (int)threadIdx.x; j < d; j += LANES * WARPS)
            q[h][j] = wide(queries[s.map.q_offset[g * group + h] + j]);
    __syncthreads();
    uint2 mean[PAGES_OF_WARP][PARTS] = {};
    bool exact[PAGES_OF_WARP];
#pragma unroll
    for (int k = 0; k < PAGES_OF_WARP; k++) {
        const int i = min(first + k, all - 1);
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            if (4 * (lane + LANES * p) < d)
                mean[k][p] =
                    reinterpret_cast<const uint2 *>(mean_of(s, x, b, g, i))[lane + LANES * p];
        exact[k] = *flag_of(s, x, b, g, i);
    }
    const size_t row = ((size_t)b * (size_t)s.map.n_kv_heads + (size_t)g) * (size_t)group,
                 room = room_of(s);
    for (int h = 0; h < group; h++) {
        float sums[PAGES_OF_WARP] = {};
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            const int at = 4 * (lane + LANES * p);
            const float4 y =
                at < d ? *reinterpret_cast<const float4 *>(&q[h][at]) : make_float4(0, 0, 0, 0);
#pragma unroll
            for (int k = 0; k < PAGES_OF_WARP; k++) {
                const float2 low = unpack<true>(mean[k][p].x), high = unpack<true>(mean[k][p].y);
                sums[k] += fmaf(y.x, low.x, fmaf(y.y, low.y, fmaf(y.z, high.x, y.w * high.y)));
            }
        }
#pragma unroll
        for (int k = 0; k < PAGES_OF_WARP; k++) {
            const float sum = over_warp(sums[k]);
            if (lane == 0 && first + k < all)
                to.score[(row + (size_t)h) * room + (size_t)(first + k)] =
                    exact[k] ? -INFINITY : sum * s.map.scale;
        }
    }
}

/* Returns the maximum of x over all CHOOSE threads of the CTA, which must all call it. */
__device__ float largest_of(float x)
{
    __shared__ float part[CHOOSE / LANES];
    for (int step = 1; step < LANES; step *= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    __syncthreads();
    if (threadIdx.x % LANES == 0)
        part[threadIdx.x / LANES] = x;
    __syncthreads();
    for (int w = 0; w < CHOOSE / LANES; w++)
        x = fmaxf(x, part[w]);
    return x;
}

/* Applies log softmax, over n groups of tokens, to each query head's scores. Writes each group's
 * largest result of all heads to score [n]. */
__device__ void take_largest_share(float *score, int group, size_t room, int n, float *shift)
{
    for (int h = 0; h < group; h++) {
        const float *const x = score + (size_t)h * room;
        float top = -INFINITY;
        double sum = 0;
        for (int i = (int)threadIdx.x; i < n; i += CHOOSE)
            top = fmaxf(top, x[i]);
        top = largest_of(top);
        for (int i = (int)threadIdx.x; i < n; i += CHOOSE)
            sum += (double)expf(x[i] - top);
        sum = sum_over<CHOOSE>(sum);
        if (threadIdx.x == 0)
            shift[h] = top + (float)log(sum);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n; i += CHOOSE) {
        float most = -INFINITY;
        for (int h = 0; h < group; h++)
            most = fmaxf(most, score[(size_t)h * room + (size_t)i] - shift[h]);
        score[i] = most;
    }
    __syncthreads();
}

__global__ void __launch_bounds__(CHOOSE)
    landmark_choose_kernel(const __grid_constant__ kvd_selection s,
                           const __grid_constant__ kvd_selection_shadow x,
                           const __grid_constant__ kvd_selected to)
{
    __shared__ unsigned bin[KVD_SELECT_BINS];
    __shared__ float shift[KVD_GROUP_MAX];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, page = (int)s.rule.page;
    if (s.slot[b] >= s.n_slots)
        return;
    const kvd_selection_marks m = shared_marks(s, x, b);
    const size_t row = (size_t)b * (size_t)s.map.n_kv_heads + (size_t)g, room = room_of(s);
    float *const score = to.score + row * (size_t)s.map.group * room;
    const int n = (s.kv_len[b] + page - 1) >> log_tokens(s), all = (int)m.all;
    if (m.outliers < m.all)
        take_largest_share(score, s.map.group, room, all, shift);
    const auto key = [score](int i) { return key_of(score[i], i); };
    const u64 least = threshold_of(key, m.all, m.chosen, bin);
    int place = 0;
    for (int first = 0; first < n; first += CHOOSE) {
        const int i = first + (int)threadIdx.x;
        const bool stays = i < n && (i >= all || *flag_of(s, x, b, g, i) || key(i) >= least);
        int some;
        const int at = place + select_place<CHOOSE>(stays, &some);
        place += some;
        if (stays)
            to.chosen[row * room + (size_t)at] = i;
    }
}

/* Returns the index in the request of the `at`-th token that a KV head reads. */
__device__ __forceinline__ int chosen_token(const kvd_selection &s, const kvd_selected &to,
                                            size_t row, int at)
{
    const int log = log_tokens(s);
    return (to.chosen[row * room_of(s) + (size_t)(at >> log)] << log) + (at & ((1 << log) - 1));
}

/* Copies the latent vectors and positions of 64 chosen tokens. A token whose key is stored exactly
 * gets position -1 and no latent vector. */
__global__ void __launch_bounds__(SCORE)
    latent_kernel(const __grid_constant__ kvd_selection s,
                  const __grid_constant__ kvd_selection_shadow x,
                  const __grid_constant__ kvd_selected to)
{
    __shared__ const uint16_t *latents[KVD_PAGE_TOKENS];
    const int g = (int)blockIdx.x, part = (int)blockIdx.y, b = (int)blockIdx.z,
              in = (int)threadIdx.x % KVD_PAGE_TOKENS, at = part * KVD_PAGE_TOKENS + in;
    if (s.slot[b] >= s.n_slots)
        return;
    const size_t row = (size_t)b * (size_t)s.map.n_kv_heads + (size_t)g,
                 vectors = (size_t)(KVD_PAGE_TOKENS * x.rank),
                 to_page = row * (size_t)to.row_pages + (size_t)part;
    if (part * KVD_PAGE_TOKENS >= to.len[row])
        return;
    const int all = (int)shared_marks(s, x, b).all;
    if ((int)threadIdx.x < KVD_PAGE_TOKENS) {
        const uint16_t *from = nullptr;
        if (at < to.len[row]) {
            const int t = chosen_token(s, to, row, at), i = t >> log_tokens(s);
            const bool exact = i >= all || *flag_of(s, x, b, g, i);
            x.position[to_page * KVD_PAGE_TOKENS + (size_t)in] = exact ? -1 : t;
            if (!exact)
                from = x.latents + pool_page(s, b, i) * vectors + t % KVD_PAGE_TOKENS / 8 * 64 +
                       t % 8 * 8;
        }
        latents[in] = from;
    }
    __syncthreads();
    const uint16_t *const from = latents[in];
    uint16_t *const out = x.gathered + to_page * vectors + in / 8 * 64 + in % 8 * 8;
    for (int run = (int)threadIdx.x / KVD_PAGE_TOKENS; from && run < x.rank / 8;
         run += SCORE / KVD_PAGE_TOKENS)
        *reinterpret_cast<uint4 *>(out + run * 512) =
            *reinterpret_cast<const uint4 *>(from + run * 512);
}

/* Returns the address of elements 8 * c to 8 * c + 7 of the key of token t, or NULL if this key is
 * not stored exactly. */
__device__ __forceinline__ uint4 *exact_key(const kvd_selection &s, const kvd_selection_shadow &x,
                                            int b, int g, int t, int c, int marked)
{
    const int d = s.map.d_qk[0], page = (int)s.rule.page, after = t - marked;
    const size_t kv = (size_t)s.map.n_kv_heads;
    if (after >= 0) {
        const size_t at =
            (size_t)x.table[(size_t)b * (size_t)s.max_pages + (size_t)(after / KVD_PAGE_TOKENS)];
        return reinterpret_cast<uint4 *>(
            x.keys + (at * kv + (size_t)g) * (size_t)(KVD_PAGE_TOKENS * d) + piece(after, c, d));
    }
    const int number = *flag_of(s, x, b, g, t >> log_tokens(s));
    const size_t row = ((size_t)s.slot[b] * kv + (size_t)g) * (size_t)(s.rule.outliers * page) +
                       (size_t)((number - 1) * page + (t & (page - 1)));
    return number ? reinterpret_cast<uint4 *>(x.outliers + row * (size_t)d + (size_t)(8 * c))
                  : nullptr;
}

__device__ __forceinline__ uint4 *value_of(const kvd_selection &s, const kvd_selection_shadow &x,
                                           int b, int g, int t, int c)
{
    const int d = s.map.d_v[0];
    const size_t page = pool_page(s, b, t >> log_tokens(s));
    return reinterpret_cast<uint4 *>(
        x.values + (page * (size_t)s.map.n_kv_heads + (size_t)g) * (size_t)(KVD_PAGE_TOKENS * d) +
        piece(t, c, d));
}

__device__ __forceinline__ size_t in_head(const kvd_selection &s, int t, int c)
{
    const int d = s.map.d_qk[0], k = d / 8;
    return c < k ? piece(t, c, d) : (size_t)(KVD_PAGE_TOKENS * d) + piece(t, c - k, s.map.d_v[0]);
}

__device__ __forceinline__ uint4 *stored(const kvd_selection &s, const kvd_selection_shadow &x,
                                         int b, int g, int t, int c, int marked)
{
    const int k = s.map.d_qk[0] / 8;
    return c < k ? exact_key(s, x, b, g, t, c, marked) : value_of(s, x, b, g, t, c - k);
}

/* Stores V and uncompressed keys of new tokens, in groups of 8 tokens. */
__global__ void __launch_bounds__(STORE)
    store_kernel(const __grid_constant__ kvd_selection s,
                 const __grid_constant__ kvd_selection_shadow x, const int32_t *q_len)
{
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, pieces = (s.map.d_qk[0] + s.map.d_v[0]) / 8;
    if (s.slot[b] >= s.n_slots)
        return;
    const int n = s.kv_len[b], from = n - q_len[b], part = from / KVD_PAGE_TOKENS + (int)blockIdx.x,
              first = max(from, part * KVD_PAGE_TOKENS), end = min(n, (part + 1) * KVD_PAGE_TOKENS),
              begin = first / 8 * 8, marked = (int)shared_marks(s, x, b).all * (int)s.rule.page;
    if (first >= end)
        return;
    const uint16_t *const page =
        static_cast<const uint16_t *>(s.pool) +
        pool_page(s, b, first >> log_tokens(s)) * (size_t)s.map.page_elements +
        (size_t)s.map.kv_offset[g];
    for (int i = (int)threadIdx.x; i < (end - begin + 7) / 8 * 8 * pieces; i += STORE) {
        const int t = begin + i / (8 * pieces) * 8 + i % 8, c = i / 8 % pieces;
        uint4 *const to = t >= first && t < end ? stored(s, x, b, g, t, c, marked) : nullptr;
        if (to)
            *to = *reinterpret_cast<const uint4 *>(page + in_head(s, t, c));
    }
}

/* Addresses of K and V of a token that a decode step reads. */
struct chosen_source {
    const uint16_t *key, *value; /* key: NULL if the token has no exact key */
    int step;
};

/* Copies V of 64 chosen tokens to a page, and the keys of tokens whose keys are stored
 * uncompressed. */
__global__ void __launch_bounds__(STORE) read_kernel(const __grid_constant__ kvd_selection s,
                                                     const __grid_constant__ kvd_selection_shadow x,
                                                     const __grid_constant__ kvd_selected to)
{
    __shared__ chosen_source from[KVD_PAGE_TOKENS];
    const int g = (int)blockIdx.x, part = (int)blockIdx.y, b = (int)blockIdx.z,
              first = part * KVD_PAGE_TOKENS, keys = s.map.d_qk[0] / 8,
              pieces = keys + s.map.d_v[0] / 8, j = (int)threadIdx.x;
    if (s.slot[b] >= s.n_slots)
        return;
    const size_t row = (size_t)b * (size_t)s.map.n_kv_heads + (size_t)g;
    const int m = to.len[row], rows = min(KVD_PAGE_TOKENS, (m - first + 7) / 8 * 8);
    if (rows <= 0)
        return;
    const int marked = (int)shared_marks(s, x, b).all * (int)s.rule.page;
    if (j < rows && first + j < m) {
        const int t = chosen_token(s, to, row, first + j);
        from[j] = {reinterpret_cast<const uint16_t *>(exact_key(s, x, b, g, t, 0, marked)),
                   reinterpret_cast<const uint16_t *>(value_of(s, x, b, g, t, 0)),
                   t >= marked ? 64 : 8};
    }
    __syncthreads();
    uint16_t *const page =
        static_cast<uint16_t *>(to.rows) +
        (row * (size_t)to.row_pages + (size_t)part) * (size_t)(KVD_PAGE_TOKENS * 8 * pieces);
    for (int c = j / 8; c < pieces; c += STORE / 8)
        for (int t = j % 8; t < rows; t += 8) {
            const bool there = first + t < m;
            const uint16_t *const source = !there     ? nullptr
                                           : c < keys ? from[t].key
                                                      : from[t].value;
            const int at = c < keys ? c * from[t].step : (c - keys) * 64;
            if (source || !there)
                *reinterpret_cast<uint4 *>(page + in_head(s, t, c)) =
                    source ? *reinterpret_cast<const uint4 *>(source + at) : make_uint4(0, 0, 0, 0);
        }
}

bool has_landmarks(const kvd_selection *s, const kvd_selection_shadow *x)
{
    return s->batch > 0 && s->batch <= 65535 && s->rule.ranking == KVD_READ_LANDMARKS &&
           s->rule.page > 0 && s->rule.page < KVD_PAGE_TOKENS &&
           KVD_PAGE_TOKENS % s->rule.page == 0 && s->max_pages > 0 && s->kv_len && s->slot &&
           s->page_table && s->pool && s->bounds && s->map.group <= KVD_GROUP_MAX && x->prompt &&
           x->rank % 16 == 0;
}

bool stores(const kvd_selection_shadow *x)
{
    return x->values && x->keys && x->table && x->outliers;
}

} // namespace

extern "C" cudaError_t kvd_selection_landmarks(const kvd_selection *s,
                                               const kvd_selection_shadow *x, float *score,
                                               int32_t longest, cudaStream_t stream)
{
    if (!has_landmarks(s, x) || !score || longest < 1)
        return cudaErrorInvalidValue;
    const unsigned kv = (unsigned)s->map.n_kv_heads, batch = (unsigned)s->batch,
                   pages = (unsigned)longest / (unsigned)s->rule.page + 1;
    const dim3 means((pages + WARPS - 1) / WARPS, kv, batch);
    if (s->map.d_qk[0] > KVD_WIDTH_NARROW)
        mean_kernel<KVD_WIDTH_MAX><<<means, LANES * WARPS, 0, stream>>>(*s, *x, score);
    else
        mean_kernel<KVD_WIDTH_NARROW><<<means, LANES * WARPS, 0, stream>>>(*s, *x, score);
    outlier_kernel<<<dim3(kv, batch), CHOOSE, 0, stream>>>(*s, *x, score);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_selection_landmark_lengths(const kvd_selection *s,
                                                      const kvd_selection_shadow *x,
                                                      const int32_t *live, int32_t *len,
                                                      int32_t *heads, cudaStream_t stream)
{
    if (!has_landmarks(s, x) || !live || !len || !heads || !x->matrix)
        return cudaErrorInvalidValue;
    const unsigned n = (unsigned)(s->batch * s->map.n_kv_heads);
    landmark_lengths_kernel<<<(n + 255) / 256, 256, 0, stream>>>(*s, *x, live, len, heads);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_selection_choose_landmarks(const kvd_selection *s,
                                                      const kvd_selection_shadow *x,
                                                      const kvd_selected *to, cudaStream_t stream)
{
    if (!has_landmarks(s, x) || !to->q || !to->score || !to->chosen || !to->len ||
        to->row_pages < 1 || !to->rows || !x->latents || !x->gathered || !x->position || !stores(x))
        return cudaErrorInvalidValue;
    const unsigned kv = (unsigned)s->map.n_kv_heads, batch = (unsigned)s->batch,
                   most = (unsigned)s->max_pages * (unsigned)(KVD_PAGE_TOKENS / s->rule.page);
    constexpr unsigned each = WARPS * PAGES_OF_WARP;
    const dim3 pages((most + each - 1) / each, kv, batch);
    if (s->map.d_qk[0] > KVD_WIDTH_NARROW)
        landmark_score_kernel<KVD_WIDTH_MAX><<<pages, LANES * WARPS, 0, stream>>>(*s, *x, *to);
    else
        landmark_score_kernel<KVD_WIDTH_NARROW><<<pages, LANES * WARPS, 0, stream>>>(*s, *x, *to);
    landmark_choose_kernel<<<dim3(kv, batch), CHOOSE, 0, stream>>>(*s, *x, *to);
    read_kernel<<<dim3(kv, (unsigned)to->row_pages, batch), STORE, 0, stream>>>(*s, *x, *to);
    latent_kernel<<<dim3(kv, (unsigned)to->row_pages, batch), SCORE, 0, stream>>>(*s, *x, *to);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_selection_shadow_store(const kvd_selection *s,
                                                  const kvd_selection_shadow *x,
                                                  const int32_t *q_len, int32_t longest,
                                                  cudaStream_t stream)
{
    if (!has_landmarks(s, x) || !stores(x) || !q_len || longest < 1)
        return cudaErrorInvalidValue;
    /* New tokens may begin in the middle of a page, so that they are spread over one page more. */
    const unsigned pages = (unsigned)((longest + KVD_PAGE_TOKENS - 2) / KVD_PAGE_TOKENS + 1);
    store_kernel<<<dim3(pages, (unsigned)s->map.n_kv_heads, (unsigned)s->batch), STORE, 0,
                   stream>>>(*s, *x, q_len);
    return cudaGetLastError();
}
