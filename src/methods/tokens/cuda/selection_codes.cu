/*
 * Selection at read time by mean keys (shadowkv.c): a warp computes the mean key of a selection
 * page, or its products with the queries of a group.
 *
 * Selection at read time by codes of keys (a2ats.c): a CTA computes the codes of 32 tokens of a KV
 * head, a warp the distances of 32 tokens to a share of the centroids. Angles of RoPE are double,
 * products and distances float32.
 */
#include <cuda_bf16.h>

#include "methods/tokens/cuda/evict_rank.cuh"
#include "methods/tokens/cuda/radix_select.cuh"
#include "methods/tokens/cuda/selection.h"

namespace
{

enum { TOKENS = 32, ENCODE = 256, AT_ONCE = 4, PRODUCT = 256, SCORE = 256, CHOOSE = 512 };
enum {
    WIDE = KVD_WIDTH_NARROW + 1
}; /* WIDE is an odd row length, so that reading a column has no bank conflicts */
typedef unsigned long long u64;

/* Returns the index of the two dimensions that pair p of RoPE rotates together. */
__device__ __forceinline__ int first_of(const kvd_selection_codes &c, int p)
{
    return c.interleaved ? 2 * p : p;
}

__device__ __forceinline__ int second_of(const kvd_selection_codes &c, int p)
{
    return c.interleaved ? 2 * p + 1 : p + c.dims / 2;
}

/* Rotates pair p of x by `positions` positions. */
__device__ __forceinline__ void turn(const kvd_selection_codes &c, int p, double positions,
                                     float *x)
{
    double sine, cosine;
    sincos(positions * c.frequency[p], &sine, &cosine);
    float *const a = x + first_of(c, p), *const b = x + second_of(c, p);
    const float u = *a, v = *b, cf = (float)cosine, sf = (float)sine;
    *a = u * cf - v * sf;
    *b = v * cf + u * sf;
}

/*
 * Returns the index of a KV head's page: (page of the pool that has token t of request b) *
 * n_kv_heads + g.
 */
__device__ __forceinline__ size_t head_page(const kvd_selection &s, int b, int g, int t)
{
    return (size_t)s.page_table[(size_t)b * (size_t)s.max_pages + (size_t)(t / KVD_PAGE_TOKENS)] *
               (size_t)s.map.n_kv_heads +
           (size_t)g;
}

__device__ __forceinline__ int code_of(const kvd_selection &s, const kvd_selection_codes &c, int b,
                                       int g, int t)
{
    return c.code[head_page(s, b, g, t) * KVD_PAGE_TOKENS + (size_t)(t % KVD_PAGE_TOKENS)];
}

/* Writes the key of token t before RoPE to x. Called by one warp. */
__device__ void load_key(const kvd_selection &s, const kvd_selection_codes &c, int b, int g, int t,
                         float *x)
{
    const int lane = (int)threadIdx.x % 32, d = s.map.d_qk[0];
    const uint16_t *const k =
        static_cast<const uint16_t *>(s.pool) +
        (size_t)s.page_table[(size_t)b * (size_t)s.max_pages + (size_t)(t / KVD_PAGE_TOKENS)] *
            (size_t)s.map.page_elements +
        (size_t)s.map.kv_offset[g];
    for (int i = lane; i < d; i += 32)
        x[i] = wide(k[piece(t, i / 8, d) + (size_t)(i % 8)]);
    __syncwarp();
    for (int p = lane; p < c.dims / 2; p += 32)
        turn(c, p, -(double)t, x);
}

/* Computes y = x L, L being the Cholesky factor, for all tokens of the CTA. */
__device__ void times_factor(const float *factor, int d, const float (*x)[WIDE], float (*y)[WIDE])
{
    enum { EACH = 8 };
    for (int i = (int)threadIdx.x; i < TOKENS / EACH * d; i += ENCODE) {
        const int j = i % d, first = i / d * EACH;
        float sum[EACH] = {};
        for (int a = j; a < d; a++) { /* L has zeros above its diagonal */
            const float f = factor[(size_t)a * (size_t)d + (size_t)j];
#pragma unroll
            for (int t = 0; t < EACH; t++)
                sum[t] = fmaf(x[first + t][a], f, sum[t]);
        }
#pragma unroll
        for (int t = 0; t < EACH; t++)
            y[first + t][j] = sum[t];
    }
}

/* Finds the centroid nearest to the lane's token, among the centroids that this warp compares. */
__device__ void nearest(const float *moved, int size, int d, const float *y, float *least,
                        int *best)
{
    const int warp = (int)threadIdx.x / 32;
    *least = INFINITY;
    *best = 0;
    for (int m = warp * AT_ONCE; m < size; m += ENCODE / 32 * AT_ONCE) {
        float sum[AT_ONCE] = {};
        for (int i = 0; i < d; i++) {
            const float x = y[i];
#pragma unroll
            for (int e = 0; e < AT_ONCE; e++) {
                const float off = x - moved[(size_t)min(m + e, size - 1) * (size_t)d + (size_t)i];
                sum[e] = fmaf(off, off, sum[e]);
            }
        }
#pragma unroll
        for (int e = 0; e < AT_ONCE; e++)
            if (m + e < size && sum[e] < *least) {
                *least = sum[e];
                *best = m + e;
            }
    }
}

__global__ void __launch_bounds__(ENCODE)
    encode_kernel(const __grid_constant__ kvd_selection s,
                  const __grid_constant__ kvd_selection_codes c, const int32_t *q_len)
{
    __shared__ float x[TOKENS][WIDE], y[TOKENS][WIDE], least[ENCODE / 32][TOKENS];
    __shared__ int best[ENCODE / 32][TOKENS];
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, d = s.map.d_qk[0],
              lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    if (s.slot[b] >= s.n_slots)
        return;
    const int n = s.kv_len[b], first = n - q_len[b] + (int)blockIdx.x * TOKENS;
    if (first >= n)
        return;
    for (int i = warp; i < TOKENS; i += ENCODE / 32) {
        if (first + i < n)
            load_key(s, c, b, g, first + i, x[i]);
        for (int k = lane; k < d && first + i >= n; k += 32)
            x[i][k] = 0;
    }
    __syncthreads();
    times_factor(c.factor + (size_t)g * (size_t)d * (size_t)d, d, x, y);
    __syncthreads();
    nearest(c.moved + (size_t)g * (size_t)c.size * (size_t)d, c.size, d, y[lane],
            &least[warp][lane], &best[warp][lane]);
    __syncthreads();
    const int t = first + lane;
    if (warp > 0 || t >= n)
        return;
    int found = 0;
    for (int w = 1; w < ENCODE / 32; w++)
        if (least[w][lane] < least[found][lane] ||
            (least[w][lane] == least[found][lane] && best[w][lane] < best[found][lane]))
            found = w;
    c.code[head_page(s, b, g, t) * KVD_PAGE_TOKENS + (size_t)(t % KVD_PAGE_TOKENS)] =
        (uint16_t)best[found][lane];
}

/* Computes the products of a centroid with the queries of the group, one warp per centroid. */
__global__ void __launch_bounds__(PRODUCT)
    product_kernel(const __grid_constant__ kvd_selection s,
                   const __grid_constant__ kvd_selection_codes c, const uint16_t *queries)
{
    enum { EACH = KVD_WIDTH_NARROW / 32 };
    __shared__ float q[KVD_GROUP_MAX][KVD_WIDTH_NARROW];
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, d = s.map.d_qk[0], group = s.map.group,
              lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    if (s.slot[b] >= s.n_slots)
        return;
    const int n = s.kv_len[b];
    for (int i = (int)threadIdx.x; i < group * d; i += PRODUCT)
        q[i / d][i % d] =
            wide(queries[(size_t)b * (size_t)s.map.q_pitch +
                         (size_t)s.map.q_offset[g * group + i / d] + (size_t)(i % d)]);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < group * (c.dims / 2); i += PRODUCT)
        turn(c, i % (c.dims / 2), (double)c.relative - (double)(n - 1), q[i / (c.dims / 2)]);
    __syncthreads();
    float *const to = c.product + ((size_t)b * (size_t)s.map.n_kv_heads + (size_t)g) *
                                      (size_t)group * (size_t)c.size;
    const float *const centroid = c.centroid + (size_t)g * (size_t)c.size * (size_t)d;
    for (int m = (int)blockIdx.x * (PRODUCT / 32) + warp; m < c.size;
         m += (int)gridDim.x * (PRODUCT / 32)) {
        float x[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++)
            x[e] =
                lane + 32 * e < d ? centroid[(size_t)m * (size_t)d + (size_t)(lane + 32 * e)] : 0;
        for (int j = 0; j < group; j++) {
            float sum = 0;
#pragma unroll
            for (int e = 0; e < EACH; e++)
                sum = fmaf(x[e], lane + 32 * e < d ? q[j][lane + 32 * e] : 0, sum);
            sum = over_warp(sum);
            if (lane == 0)
                to[(size_t)j * (size_t)c.size + (size_t)m] = sum;
        }
    }
}

__global__ void __launch_bounds__(SCORE) score_kernel(const __grid_constant__ kvd_selection s,
                                                      const __grid_constant__ kvd_selection_codes c,
                                                      const __grid_constant__ kvd_selected to)
{
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, group = s.map.group,
              t = (int)(blockIdx.x * SCORE + threadIdx.x);
    if (s.slot[b] >= s.n_slots || t >= s.kv_len[b])
        return;
    const size_t row = ((size_t)b * (size_t)s.map.n_kv_heads + (size_t)g) * (size_t)group,
                 most = (size_t)s.max_pages * (size_t)KVD_PAGE_TOKENS,
                 code = (size_t)code_of(s, c, b, g, t);
    for (int j = 0; j < group; j++)
        to.score[(row + (size_t)j) * most + (size_t)t] =
            c.product[(row + (size_t)j) * (size_t)c.size + code];
}

__global__ void __launch_bounds__(CHOOSE)
    choose_kernel(const __grid_constant__ kvd_selection s,
                  const __grid_constant__ kvd_selection_codes c,
                  const __grid_constant__ kvd_selected to)
{
    __shared__ unsigned bin[KVD_SELECT_BINS];
    __shared__ u64 least[KVD_GROUP_MAX];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, group = s.map.group;
    if (s.slot[b] >= s.n_slots)
        return;
    const int n = s.kv_len[b], sink = s.rule.sink, end = n > s.rule.newest ? n - s.rule.newest : 0,
              old = end > sink ? end - sink : 0;
    const size_t budget = s.rule.budget < 1 ? (size_t)(s.rule.budget * (double)n)
                                            : (size_t)s.rule.budget,
                 row = (size_t)b * (size_t)s.map.n_kv_heads + (size_t)g;
    const size_t most = (size_t)s.max_pages * (size_t)KVD_PAGE_TOKENS;
    const float *const score = to.score + row * (size_t)group * most + (size_t)sink;
    const auto key = [&](int j, int i) { return key_of(score[(size_t)j * most + (size_t)i], i); };
    for (int j = 0; j < group; j++) {
        u64 found = budget >= (size_t)old ? 0 : ~0ull;
        if (budget > 0 && budget < (size_t)old)
            found = select_key<CHOOSE>([&](int i) { return key(j, i); }, old, (int)budget, bin);
        if (threadIdx.x == 0)
            least[j] = found;
        __syncthreads();
    }
    int32_t *const chosen = to.chosen + row * most;
    int place = 0;
    for (int first = 0; first < n; first += CHOOSE) {
        const int i = first + (int)threadIdx.x;
        bool stays = i < n && (i < sink || i >= end);
        for (int j = 0; j < group && !stays && i < n; j++)
            stays = key(j, i - sink) >= least[j];
        int all;
        const int at = place + select_place<CHOOSE>(stays, &all);
        place += all;
        if (stays)
            chosen[at] = i;
    }
    if (threadIdx.x == 0) {
        to.len[row] = place;
        atomicAdd(to.read + b, (u64)place);
    }
}

enum { WARPS = 8, LANES = 32, EACH_LANE = KVD_WIDTH_NARROW / LANES };

__device__ __forceinline__ kvd_selection_marks marks_of(const kvd_selection &s,
                                                        const kvd_selection_shadow &x, int b)
{
    return kvd_selection_marks_of(&s.rule, (size_t)x.prompt[s.slot[b]]);
}

/* Returns the largest number of selection pages of a row, which is the row length of the scores. */
__device__ __forceinline__ size_t room_of(const kvd_selection &s)
{
    return (size_t)s.max_pages * ((size_t)KVD_PAGE_TOKENS / s.rule.page);
}

/* Returns the page of the pool that contains selection page i of request b. */
__device__ __forceinline__ size_t pool_page(const kvd_selection &s, int b, int i)
{
    const int each = KVD_PAGE_TOKENS / (int)s.rule.page;
    return (size_t)s.page_table[(size_t)b * (size_t)s.max_pages + (size_t)(i / each)];
}

/*
 * Returns the index of a selection page within its page of the pool: selection page i of the
 * request, KV head g.
 */
__device__ __forceinline__ size_t in_page(const kvd_selection &s, int g, int i)
{
    const int each = KVD_PAGE_TOKENS / (int)s.rule.page;
    return (size_t)(g * each + i % each);
}

__device__ __forceinline__ uint16_t *mean_of(const kvd_selection &s, const kvd_selection_shadow &x,
                                             int b, int g, int i)
{
    return reinterpret_cast<uint16_t *>(static_cast<char *>(s.bounds) +
                                        pool_page(s, b, i) * x.side) +
           in_page(s, g, i) * (size_t)s.map.d_qk[0];
}

/* Returns the byte that is 1 if the keys of selection page i are exact. */
__device__ __forceinline__ uint8_t *flag_of(const kvd_selection &s, const kvd_selection_shadow &x,
                                            int b, int g, int i)
{
    const size_t means = (size_t)s.map.n_kv_heads * ((size_t)KVD_PAGE_TOKENS / s.rule.page) *
                         (size_t)s.map.d_qk[0] * sizeof(uint16_t);
    return static_cast<uint8_t *>(s.bounds) + pool_page(s, b, i) * x.side + means +
           in_page(s, g, i);
}

/*
 * Computes the mean key of every selection page. Writes to `score` the negative of the smallest
 * cosine between a key of the page and its mean key.
 */
__global__ void __launch_bounds__(LANES *WARPS)
    mean_kernel(const __grid_constant__ kvd_selection s,
                const __grid_constant__ kvd_selection_shadow x, float *score)
{
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

/* Returns the smallest of the k largest keys of n scores. All CHOOSE threads must call it. */
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
    for (int i = (int)threadIdx.x; i < (int)m.all; i += CHOOSE)
        *flag_of(s, x, b, g, i) = key(i) >= least;
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

/*
 * Writes the scaled products of every query of a group with the mean keys. Selection pages with
 * exact keys get the score -INFINITY.
 */
__global__ void __launch_bounds__(LANES *WARPS)
    landmark_score_kernel(const __grid_constant__ kvd_selection s,
                          const __grid_constant__ kvd_selection_shadow x,
                          const __grid_constant__ kvd_selected to)
{
    __shared__ float q[KVD_GROUP_MAX][KVD_WIDTH_NARROW];
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, d = s.map.d_qk[0], group = s.map.group,
              lane = (int)threadIdx.x % LANES,
              i = (int)blockIdx.x * WARPS + (int)threadIdx.x / LANES;
    if (s.slot[b] >= s.n_slots)
        return;
    const int all = (int)marks_of(s, x, b).all;
    if ((int)blockIdx.x * WARPS >= all)
        return;
    const uint16_t *const queries =
        static_cast<const uint16_t *>(to.q) + (size_t)b * (size_t)s.map.q_pitch;
    for (int k = (int)threadIdx.x; k < group * d; k += LANES * WARPS)
        q[k / d][k % d] = wide(queries[s.map.q_offset[g * group + k / d] + k % d]);
    __syncthreads();
    if (i >= all)
        return;
    const uint16_t *const mean = mean_of(s, x, b, g, i);
    const bool exact = *flag_of(s, x, b, g, i);
    const size_t row = ((size_t)b * (size_t)s.map.n_kv_heads + (size_t)g) * (size_t)group;
    for (int h = 0; h < group; h++) {
        float sum = 0;
        for (int j = lane; j < d; j += LANES)
            sum = fmaf(q[h][j], wide(mean[j]), sum);
        sum = over_warp(sum);
        if (lane == 0)
            to.score[(row + (size_t)h) * room_of(s) + (size_t)i] =
                exact ? -INFINITY : sum * rsqrtf((float)d);
    }
}

/* Returns the maximum of x over all threads of the CTA. All CHOOSE threads must call it. */
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

/*
 * Computes, for each query head, the logarithm of every page's share in the softmax over all pages.
 * Replaces the scores of the first query head by the largest of these logarithms.
 */
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
    const kvd_selection_marks m = marks_of(s, x, b);
    const size_t row = (size_t)b * (size_t)s.map.n_kv_heads + (size_t)g, room = room_of(s);
    float *const score = to.score + row * (size_t)s.map.group * room;
    const int n = ((int)s.kv_len[b] + page - 1) / page, all = (int)m.all;
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

/*
 * Copies the latents of 64 chosen tokens whose keys are not exact, and writes the positions of the
 * tokens.
 */
__global__ void __launch_bounds__(SCORE)
    latent_kernel(const __grid_constant__ kvd_selection s,
                  const __grid_constant__ kvd_selection_shadow x,
                  const __grid_constant__ kvd_selected to)
{
    const int g = (int)blockIdx.x, part = (int)blockIdx.y, b = (int)blockIdx.z,
              page = (int)s.rule.page, in = (int)threadIdx.x % KVD_PAGE_TOKENS;
    if (s.slot[b] >= s.n_slots)
        return;
    const size_t row = (size_t)b * (size_t)s.map.n_kv_heads + (size_t)g,
                 vectors = (size_t)(KVD_PAGE_TOKENS * x.rank),
                 to_page = row * (size_t)to.row_pages + (size_t)part;
    const int at = part * KVD_PAGE_TOKENS + in;
    if (at >= to.len[row])
        return;
    const int i = to.chosen[row * room_of(s) + (size_t)(at / page)], t = i * page + at % page;
    const bool exact = i >= (int)marks_of(s, x, b).all || *flag_of(s, x, b, g, i);
    if ((int)threadIdx.x < KVD_PAGE_TOKENS)
        x.position[to_page * KVD_PAGE_TOKENS + (size_t)in] = exact ? -1 : t;
    if (exact)
        return;
    const uint16_t *const from = x.latents + pool_page(s, b, i) * vectors;
    uint16_t *const out = x.gathered + to_page * vectors;
    for (int run = (int)threadIdx.x / KVD_PAGE_TOKENS; run < x.rank / 8;
         run += SCORE / KVD_PAGE_TOKENS)
        *reinterpret_cast<uint4 *>(out + run * 512 + in / 8 * 64 + in % 8 * 8) =
            *reinterpret_cast<const uint4 *>(from + run * 512 + t % KVD_PAGE_TOKENS / 8 * 64 +
                                             t % 8 * 8);
}

bool has_landmarks(const kvd_selection *s, const kvd_selection_shadow *x)
{
    return s->batch > 0 && s->batch <= 65535 && s->rule.ranking == KVD_READ_LANDMARKS &&
           s->rule.page > 0 && s->rule.page < KVD_PAGE_TOKENS &&
           KVD_PAGE_TOKENS % s->rule.page == 0 && s->max_pages > 0 && s->kv_len && s->slot &&
           s->page_table && s->pool && s->bounds && s->map.d_qk[0] <= KVD_WIDTH_NARROW &&
           s->map.group <= KVD_GROUP_MAX && x->prompt && x->rank % 16 == 0;
}

bool looks_up(const kvd_selection *s, const kvd_selection_codes *c)
{
    return s->batch > 0 && s->batch <= 65535 && s->rule.ranking == KVD_READ_CODES &&
           s->rule.page == 1 && s->max_pages > 0 && s->kv_len && s->slot && s->page_table &&
           s->pool && s->map.d_qk[0] <= KVD_WIDTH_NARROW && s->map.group <= KVD_GROUP_MAX &&
           c->size > 0 && c->size <= 65536 && c->dims <= s->map.d_qk[0] && c->dims % 2 == 0 &&
           c->frequency && c->factor && c->moved && c->centroid && c->code;
}

} // namespace

extern "C" cudaError_t kvd_selection_encode(const kvd_selection *s, const kvd_selection_codes *c,
                                            const int32_t *q_len, int32_t longest,
                                            cudaStream_t stream)
{
    if (!looks_up(s, c) || !q_len || longest < 1)
        return cudaErrorInvalidValue;
    encode_kernel<<<dim3(((unsigned)longest + TOKENS - 1) / TOKENS, (unsigned)s->map.n_kv_heads,
                         (unsigned)s->batch),
                    ENCODE, 0, stream>>>(*s, *c, q_len);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_selection_lookup(const kvd_selection *s, const kvd_selection_codes *c,
                                            const kvd_selected *to, cudaStream_t stream)
{
    if (!looks_up(s, c) || !c->product || !to->read || !to->q || !to->score || !to->chosen ||
        !to->len)
        return cudaErrorInvalidValue;
    const unsigned kv = (unsigned)s->map.n_kv_heads, batch = (unsigned)s->batch,
                   ctas = ((unsigned)c->size + PRODUCT - 1) / PRODUCT;
    product_kernel<<<dim3(ctas, kv, batch), PRODUCT, 0, stream>>>(
        *s, *c, static_cast<const uint16_t *>(to->q));
    score_kernel<<<dim3(((unsigned)s->max_pages * KVD_PAGE_TOKENS + SCORE - 1) / SCORE, kv, batch),
                   SCORE, 0, stream>>>(*s, *c, *to);
    choose_kernel<<<dim3(kv, batch), CHOOSE, 0, stream>>>(*s, *c, *to);
    return kvd_selection_gather(s, to, stream);
}

extern "C" cudaError_t kvd_selection_landmarks(const kvd_selection *s,
                                               const kvd_selection_shadow *x, float *score,
                                               int32_t longest, cudaStream_t stream)
{
    if (!has_landmarks(s, x) || !score || longest < 1)
        return cudaErrorInvalidValue;
    const unsigned kv = (unsigned)s->map.n_kv_heads, batch = (unsigned)s->batch,
                   pages = (unsigned)longest / (unsigned)s->rule.page + 1;
    mean_kernel<<<dim3((pages + WARPS - 1) / WARPS, kv, batch), LANES * WARPS, 0, stream>>>(*s, *x,
                                                                                            score);
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
        to->row_pages < 1 || !x->latents || !x->gathered || !x->position)
        return cudaErrorInvalidValue;
    const unsigned kv = (unsigned)s->map.n_kv_heads, batch = (unsigned)s->batch,
                   most = (unsigned)s->max_pages * (unsigned)(KVD_PAGE_TOKENS / s->rule.page);
    landmark_score_kernel<<<dim3((most + WARPS - 1) / WARPS, kv, batch), LANES * WARPS, 0,
                            stream>>>(*s, *x, *to);
    landmark_choose_kernel<<<dim3(kv, batch), CHOOSE, 0, stream>>>(*s, *x, *to);
    const cudaError_t e = kvd_selection_gather(s, to, stream);
    if (e != cudaSuccess)
        return e;
    latent_kernel<<<dim3(kv, (unsigned)to->row_pages, batch), SCORE, 0, stream>>>(*s, *x, *to);
    return cudaGetLastError();
}
