/* Method a2ats: chooses the tokens that a decode step reads. Tokens are scored by the centroids
 * nearest to their keys. */
#include <cuda_bf16.h>

#include "methods/tokens/cuda/evict_rank.cuh"
#include "methods/tokens/cuda/radix_select.cuh"
#include "methods/tokens/cuda/selection.h"

namespace
{

enum { TOKENS = 32, ENCODE = 256, AT_ONCE = 4, PRODUCT = 256, SCORE = 256, CHOOSE = 512 };
typedef unsigned long long u64;

/* Returns the smaller of the two dimensions that RoPE's p-th rotation mixes. */
__device__ __forceinline__ int first_of(const kvd_selection_codes &c, int p)
{
    return c.interleaved ? 2 * p : p;
}

__device__ __forceinline__ int second_of(const kvd_selection_codes &c, int p)
{
    return c.interleaved ? 2 * p + 1 : p + c.dims / 2;
}

/* Applies RoPE's p-th rotation, for `positions` positions, to the two dimensions of x that it
 * mixes. */
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

/* Returns the index in arrays [page][n_kv_heads] for KV head g and token t of request b. */
__device__ __forceinline__ size_t head_page(const kvd_selection &s, int b, int g, int t)
{
    return (size_t)s.page_table[(size_t)b * s.max_pages + t / KVD_PAGE_TOKENS] * s.map.n_kv_heads +
           g;
}

__device__ __forceinline__ int code_of(const kvd_selection &s, const kvd_selection_codes &c, int b,
                                       int g, int t)
{
    return c.code[head_page(s, b, g, t) * KVD_PAGE_TOKENS + t % KVD_PAGE_TOKENS];
}

/* Copies the key of token t to x and undoes RoPE. One warp must call it. */
__device__ void load_key(const kvd_selection &s, const kvd_selection_codes &c, int b, int g, int t,
                         float *x)
{
    const int lane = (int)threadIdx.x % 32, d = s.map.d_qk[0];
    const uint16_t *const k =
        static_cast<const uint16_t *>(s.pool) +
        (size_t)s.page_table[(size_t)b * s.max_pages + t / KVD_PAGE_TOKENS] * s.map.page_elements +
        s.map.kv_offset[g];
    for (int i = lane; i < d; i += 32)
        x[i] = wide(k[piece(t, i / 8, d) + i % 8]);
    __syncwarp();
    for (int p = lane; p < c.dims / 2; p += 32)
        turn(c, p, -(double)t, x);
}

/* Multiplies the CTA's keys x by the Cholesky factor of the queries' second moment. All threads
 * must call it. PITCH, the row length of x, is WIDTH + 1, an odd number that avoids bank
 * conflicts. */
template <int PITCH> __device__ void times_factor(const float *factor, int d, float (*x)[PITCH])
{
    constexpr int EACH = 8, TURNS = TOKENS / EACH * (PITCH - 1) / ENCODE;
    float sum[TURNS][EACH] = {};
#pragma unroll
    for (int u = 0; u < TURNS; u++) {
        const int i = (int)threadIdx.x + u * ENCODE, j = i % d, first = i / d * EACH;
        if (i >= TOKENS / EACH * d)
            break;
        for (int a = j; a < d; a++) { /* L is zero above its diagonal */
            const float f = factor[(size_t)a * d + j];
#pragma unroll
            for (int t = 0; t < EACH; t++)
                sum[u][t] = fmaf(x[first + t][a], f, sum[u][t]);
        }
    }
    __syncthreads();
#pragma unroll
    for (int u = 0; u < TURNS; u++) {
        const int i = (int)threadIdx.x + u * ENCODE;
#pragma unroll
        for (int t = 0; t < EACH; t++)
            if (i < TOKENS / EACH * d)
                x[i / d * EACH + t][i % d] = sum[u][t];
    }
    __syncthreads();
}

/* Finds the centroid nearest to vector y. Each warp searches a part of the centroids. */
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
                const float off = x - moved[(size_t)min(m + e, size - 1) * d + i];
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

/* Finds the nearest centroid of each of the newest q_len[b] keys of request b. WIDTH is the largest
 * number of dimensions of a key. */
template <int WIDTH>
__global__ void __launch_bounds__(ENCODE)
    encode_kernel(const __grid_constant__ kvd_selection s,
                  const __grid_constant__ kvd_selection_codes c, const int32_t *q_len)
{
    __shared__ float x[TOKENS][WIDTH + 1], least[ENCODE / 32][TOKENS];
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
    times_factor(c.factor + (size_t)g * d * d, d, x);
    nearest(c.moved + (size_t)g * c.size * d, c.size, d, x[lane], &least[warp][lane],
            &best[warp][lane]);
    __syncthreads();
    const int t = first + lane;
    if (warp > 0 || t >= n)
        return;
    int found = 0;
    for (int w = 1; w < ENCODE / 32; w++)
        if (least[w][lane] < least[found][lane] ||
            (least[w][lane] == least[found][lane] && best[w][lane] < best[found][lane]))
            found = w;
    c.code[head_page(s, b, g, t) * KVD_PAGE_TOKENS + t % KVD_PAGE_TOKENS] =
        (uint16_t)best[found][lane];
}

/* Multiplies queries by centroids of keys. WIDTH is the largest supported number of dimensions. */
template <int WIDTH>
__global__ void __launch_bounds__(PRODUCT)
    product_kernel(const __grid_constant__ kvd_selection s,
                   const __grid_constant__ kvd_selection_codes c, const uint16_t *queries)
{
    constexpr int EACH = WIDTH / 32;
    __shared__ float q[KVD_GROUP_MAX][WIDTH];
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, d = s.map.d_qk[0], group = s.map.group,
              lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    if (s.slot[b] >= s.n_slots)
        return;
    const int n = s.kv_len[b];
    for (int i = (int)threadIdx.x; i < group * d; i += PRODUCT)
        q[i / d][i % d] =
            wide(queries[(size_t)b * s.map.q_pitch + s.map.q_offset[g * group + i / d] + i % d]);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < group * (c.dims / 2); i += PRODUCT)
        turn(c, i % (c.dims / 2), (double)c.relative - (double)(n - 1), q[i / (c.dims / 2)]);
    __syncthreads();
    float *const to = c.product + ((size_t)b * s.map.n_kv_heads + g) * (size_t)group * c.size;
    const float *const centroid = c.centroid + (size_t)g * c.size * d;
    for (int m = (int)blockIdx.x * (PRODUCT / 32) + warp; m < c.size;
         m += (int)gridDim.x * (PRODUCT / 32)) {
        float x[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++)
            x[e] = lane + 32 * e < d ? centroid[(size_t)m * d + (lane + 32 * e)] : 0;
        for (int j = 0; j < group; j++) {
            float sum = 0;
#pragma unroll
            for (int e = 0; e < EACH; e++)
                sum = fmaf(x[e], lane + 32 * e < d ? q[j][lane + 32 * e] : 0, sum);
            sum = over_warp(sum);
            if (lane == 0)
                to[(size_t)j * c.size + m] = sum;
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
    const size_t row = ((size_t)b * s.map.n_kv_heads + g) * (size_t)group,
                 most = (size_t)s.max_pages * KVD_PAGE_TOKENS,
                 code = (size_t)code_of(s, c, b, g, t);
    for (int j = 0; j < group; j++)
        to.score[(row + j) * most + t] = c.product[(row + j) * (size_t)c.size + code];
}

__global__ void __launch_bounds__(CHOOSE)
    choose_kernel(const __grid_constant__ kvd_selection s,
                  const __grid_constant__ kvd_selection_codes c,
                  const __grid_constant__ kvd_selected to)
{
    __shared__ u64 least[KVD_GROUP_MAX];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, group = s.map.group;
    if (s.slot[b] >= s.n_slots)
        return;
    const int n = s.kv_len[b], sink = s.rule.sink, end = n > s.rule.newest ? n - s.rule.newest : 0,
              old = end > sink ? end - sink : 0;
    const size_t budget = s.rule.budget < 1 ? (size_t)(s.rule.budget * (double)n)
                                            : (size_t)s.rule.budget,
                 row = (size_t)b * s.map.n_kv_heads + g;
    const size_t most = (size_t)s.max_pages * KVD_PAGE_TOKENS;
    const float *const score = to.score + row * (size_t)group * most + sink;
    const auto key = [&](int j, int i) { return key_of(score[(size_t)j * most + i], i); };
    for (int j = 0; j < group; j++) {
        const u64 found = select_least<CHOOSE>([&](int i) { return key(j, i); }, old, (int)budget);
        if (threadIdx.x == 0)
            least[j] = found;
        __syncthreads();
    }
    const int place = select_each<CHOOSE>(
        n,
        [&](int i) {
            bool stays = i < sink || i >= end;
            for (int j = 0; j < group && !stays; j++)
                stays = key(j, i - sink) >= least[j];
            return stays;
        },
        [&](int at, int i) {
            to.chosen[row * most + at] = i;
            to.table[row * most + at] =
                (int32_t)head_page(s, b, g, i) * KVD_PAGE_TOKENS + i % KVD_PAGE_TOKENS;
        });
    if (threadIdx.x == 0) {
        to.len[row] = place;
        atomicAdd(to.read + b, (u64)place);
    }
}

bool looks_up(const kvd_selection *s, const kvd_selection_codes *c)
{
    return s->batch > 0 && s->batch <= 65535 && s->rule.ranking == KVD_READ_CODES &&
           s->rule.page == 1 && s->max_pages > 0 && s->kv_len && s->slot && s->page_table &&
           s->pool && s->map.group <= KVD_GROUP_MAX && c->size > 0 && c->size <= 65536 &&
           c->dims <= s->map.d_qk[0] && c->dims % 2 == 0 && c->frequency && c->factor && c->moved &&
           c->centroid && c->code;
}

} // namespace

extern "C" cudaError_t kvd_selection_encode(const kvd_selection *s, const kvd_selection_codes *c,
                                            const int32_t *q_len, int32_t longest,
                                            cudaStream_t stream)
{
    if (!looks_up(s, c) || !q_len || longest < 1)
        return cudaErrorInvalidValue;
    const dim3 tokens((longest + TOKENS - 1) / TOKENS, s->map.n_kv_heads, s->batch);
    if (s->map.d_qk[0] > KVD_WIDTH_NARROW)
        encode_kernel<KVD_WIDTH_MAX><<<tokens, ENCODE, 0, stream>>>(*s, *c, q_len);
    else
        encode_kernel<KVD_WIDTH_NARROW><<<tokens, ENCODE, 0, stream>>>(*s, *c, q_len);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_selection_lookup(const kvd_selection *s, const kvd_selection_codes *c,
                                            const kvd_selected *to, cudaStream_t stream)
{
    if (!looks_up(s, c) || !c->product || !to->read || !to->q || !to->score || !to->chosen ||
        !to->table || !to->len)
        return cudaErrorInvalidValue;
    const unsigned kv = (unsigned)s->map.n_kv_heads, batch = (unsigned)s->batch,
                   ctas = ((unsigned)c->size + PRODUCT - 1) / PRODUCT;
    const dim3 centroids(ctas, kv, batch);
    const uint16_t *const q = static_cast<const uint16_t *>(to->q);
    if (s->map.d_qk[0] > KVD_WIDTH_NARROW)
        product_kernel<KVD_WIDTH_MAX><<<centroids, PRODUCT, 0, stream>>>(*s, *c, q);
    else
        product_kernel<KVD_WIDTH_NARROW><<<centroids, PRODUCT, 0, stream>>>(*s, *c, q);
    score_kernel<<<dim3((s->max_pages * KVD_PAGE_TOKENS + SCORE - 1) / SCORE, kv, batch), SCORE, 0,
                   stream>>>(*s, *c, *to);
    choose_kernel<<<dim3(kv, batch), CHOOSE, 0, stream>>>(*s, *c, *to);
    return cudaGetLastError();
}
