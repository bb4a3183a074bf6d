/* Decode steps of methods zdc and think, and the order of key channels of method think. */
#include <cuda_bf16.h>

#include "common/cuda/launch.cuh"
#include "methods/tokens/cuda/zdc.h"

namespace
{

enum { LISTS = 128, ROWS = 128, WARPS = ROWS / 32 };

__global__ void __launch_bounds__(LISTS) lists_kernel(const __grid_constant__ kvd_zdc_lists_args a)
{
    const int b = (int)blockIdx.x;
    const int32_t *const n_low = a.pages.n_low + (size_t)a.pages.slot[b] * a.pages.n_layers;
    for (int l = (int)threadIdx.x; l < a.pages.n_layers; l += LISTS) {
        const size_t row = (size_t)l * a.rows + b;
        a.low_len[row] = max(n_low[l], 1);
        a.end[row] = zdc_low_pages(n_low[l]) * KVD_PAGE_TOKENS + a.kv_len[b] - n_low[l];
    }
    /* The page lists have pitch + 1 elements: important and less important tokens never share a
     * page, so a request may need one page more than its tokens fill. */
    int32_t *const table = a.table + (size_t)b * (a.pages.pitch + 1);
    for (int i = (int)threadIdx.x; i <= zdc_pages_of(a.kv_len[b]); i += LISTS)
        table[i] = zdc_page(a.pages, b, i);
}

__device__ __forceinline__ void wait_for_kernel_before()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ uint4 mix(uint4 x, uint4 y, float wx, float wy)
{
    const __nv_bfloat162 *const p = reinterpret_cast<const __nv_bfloat162 *>(&x),
                                *const q = reinterpret_cast<const __nv_bfloat162 *>(&y);
    uint4 z;
    __nv_bfloat162 *const to = reinterpret_cast<__nv_bfloat162 *>(&z);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 u = __bfloat1622float2(p[i]), v = __bfloat1622float2(q[i]);
        to[i] = __floats2bfloat162_rn(wx * u.x + wy * v.x, wx * u.y + wy * v.y);
    }
    return z;
}

__global__ void __launch_bounds__(ROWS) merge_kernel(const __grid_constant__ kvd_zdc_merge_args a)
{
    const int n_heads = a.n_kv_heads * a.group, h = (int)(blockIdx.x * WARPS + threadIdx.x / 32),
              lane = (int)threadIdx.x % 32;
    const size_t b = blockIdx.y;
    wait_for_kernel_before();
    if (h >= n_heads)
        return;
    const kvd_zdc_head &head = a.head[h / a.group];
    const int j = h % a.group, wide = head.width[KVD_ZDC_HIGH][1],
              width = head.width[KVD_ZDC_LOW][1];
    const uint16_t *const o = static_cast<const uint16_t *>(a.o) + b * (size_t)a.pitch;
    const int at = head.in_row[KVD_ZDC_HIGH] + j * wide;
    if (lane >= wide / 8)
        return;
    const uint4 x = reinterpret_cast<const uint4 *>(o + at)[lane];
    uint4 y = make_uint4(0, 0, 0, 0);
    const bool some = zdc_low(a.pages, (int)b) > 0;
    const float *const lse = a.lse + b * (size_t)(2 * n_heads) + h;
    const float high = lse[0], low = some ? lse[n_heads] : -INFINITY,
                sink = a.sinks ? a.sinks[h] : -INFINITY, top = fmaxf(fmaxf(high, low), sink);
    const float of_high = expf(high - top), of_low = expf(low - top),
                all = of_high + of_low + expf(sink - top);
    if (some && lane < width / 8)
        y = reinterpret_cast<const uint4 *>(o + head.in_row[KVD_ZDC_LOW] + j * width)[lane];
    reinterpret_cast<uint4 *>(static_cast<uint16_t *>(a.out) + b * (size_t)a.out_pitch + at)[lane] =
        mix(x, y, of_high / all, of_low / all);
}

enum { CHANNELS = 512, REORDER = 128 };

__device__ __forceinline__ float wide(uint16_t x)
{
    return __uint_as_float((uint32_t)x << 16);
}

__device__ __forceinline__ void add_squares(const uint16_t *row, float (&sum)[8])
{
    const uint4 four = *reinterpret_cast<const uint4 *>(row);
    const uint32_t two[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const float x = wide((uint16_t)(two[e / 2] >> e % 2 * 16));
        sum[e] = fmaf(x, x, sum[e]);
    }
}

/* Computes norm [d]: the norm of each of d channels over the rows t with from <= t < to. at(t) must
 * return the address of row t. All threads must call the function. */
template <typename AT>
__device__ void channel_norms(const AT &at, int from, int to, int d, float *norm)
{
    const int blocks = d / 8, each = CHANNELS / (8 * blocks), me = (int)threadIdx.x,
              block = me / 8 % blocks;
    __shared__ float part[CHANNELS][8];
    float sum[8] = {};
    for (int t = from / 8 * 8 + me / (8 * blocks) * 8 + me % 8; t < to && me < 8 * blocks * each;
         t += 8 * each)
        if (t >= from)
            add_squares(at(t) + block * 64, sum);
    __syncthreads();
#pragma unroll
    for (int e = 0; e < 8; e++)
        part[me][e] = sum[e];
    __syncthreads();
    for (int i = me; i < d; i += CHANNELS) {
        float all = 0;
        for (int k = 0; k < 8 * each; k++)
            all += part[(k / 8 * blocks + i / 8) * 8 + k % 8][i % 8];
        norm[i] = sqrtf(all);
    }
    __syncthreads();
}

/* Returns the page-pool offset of the key of token t, for prompt b and KV head g. A page stores
 * keys in blocks of 8 tokens x 8 dimensions. */
__device__ __forceinline__ size_t key_at(const kvd_zdc_channels_args &a, int b, int g, int t)
{
    return (size_t)a.pages.table[(size_t)b * a.pages.pitch + t / KVD_PAGE_TOKENS] *
               a.map.page_elements +
           a.map.kv_offset[g] + zdc_in_page(t % KVD_PAGE_TOKENS, a.map.d_qk[g], 0);
}

/* Computes the importance of each key channel from the prompt's last queries and from the keys of
 * token `from` and later tokens. Output: score [d]. norm [d] is scratch memory. All threads must
 * call it. */
__device__ void score_channels(const kvd_zdc_channels_args &a, int b, int g, int from, float *norm,
                               float *score)
{
    const int d = a.map.d_qk[0], n = a.q_len[b], me = (int)threadIdx.x;
    for (int i = me; i < d; i += CHANNELS)
        score[i] = 0;
    for (int h = g * a.map.group; h < (g + 1) * a.map.group; h++) {
        const uint16_t *const q = static_cast<const uint16_t *>(a.q) +
                                  (size_t)a.map.q_offset[h] * a.n_q8 + (size_t)a.q_start[b] * d;
        channel_norms([q, d](int t) { return q + t / 8 * 8 * d + t % 8 * 8; }, max(n - a.window, 0),
                      n, d, norm);
        for (int i = me; i < d; i += CHANNELS)
            score[i] += norm[i];
    }
    const uint16_t *const pages = static_cast<const uint16_t *>(a.from);
    channel_norms([&](int t) { return pages + key_at(a, b, g, t); }, from, n, d, norm);
    for (int i = me; i < d; i += CHANNELS)
        score[i] *= norm[i];
    __syncthreads();
}

/* Returns the number of key channels that are more important than channel i. */
__device__ __forceinline__ int rank_of(const float *score, int d, int i)
{
    int rank = 0;
    for (int k = 0; k < d; k++)
        rank += score[k] > score[i] || (!(score[k] < score[i]) && k < i);
    return rank;
}

__global__ void __launch_bounds__(CHANNELS)
    channels_kernel(const __grid_constant__ kvd_zdc_channels_args a)
{
    __shared__ float norm[KVD_WIDTH_MAX], score[KVD_WIDTH_MAX];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, d = a.map.d_qk[0], n = a.q_len[b],
              me = (int)threadIdx.x;
    score_channels(a, b, g, 0, norm, score);
    int16_t *const order = a.order + zdc_order_at(a.pages, b, a.map.n_kv_heads, g, d);
    for (int i = me; i < d; i += CHANNELS)
        order[rank_of(score, d, i)] = (int16_t)i;
    const int n_low = max(n - a.window, 0);
    for (int t = me; t < n && g == 0; t += CHANNELS) {
        a.level[a.q_start[b] + t] = t < n_low ? 0 : KVD_ZDC_RAW | KVD_ZDC_USED;
        a.place[a.q_start[b] + t] = t < n_low ? t : t - n_low;
    }
    if (g == 0 && me == 0)
        a.pages.n_low[(size_t)a.pages.slot[b] * a.pages.n_layers + a.pages.layer] = n_low;
}

__global__ void __launch_bounds__(CHANNELS)
    prune_kernel(const __grid_constant__ kvd_zdc_channels_args a, int near, int kept,
                 uint16_t *pages)
{
    __shared__ float norm[KVD_WIDTH_MAX], score[KVD_WIDTH_MAX];
    __shared__ bool pruned[KVD_WIDTH_MAX];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, d = a.map.d_qk[0], n = a.q_len[b],
              first = max(n - near, 0), n_low = max(n - a.window, 0), me = (int)threadIdx.x;
    if (first >= n_low)
        return;
    score_channels(a, b, g, first, norm, score);
    for (int i = me; i < d; i += CHANNELS)
        pruned[i] = rank_of(score, d, i) >= kept;
    __syncthreads();
    for (int x = me; x < (n_low - first) * d; x += CHANNELS)
        if (pruned[x % d])
            pages[key_at(a, b, g, first + x / d) + (size_t)(x % d / 8 * 64 + x % 8)] = 0;
}

__global__ void __launch_bounds__(REORDER)
    reorder_kernel(const __grid_constant__ kvd_zdc_reorder_args a)
{
    __shared__ uint16_t x[KVD_GROUP_MAX + 1][KVD_WIDTH_MAX];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, d = a.map.d_qk[0], group = a.map.group,
              t = a.end[b] - 1;
    const int16_t *const order = a.order + zdc_order_at(a.pages, b, a.map.n_kv_heads, g, d);
    uint16_t *const q = static_cast<uint16_t *>(a.q) + (size_t)b * a.map.q_pitch;
    uint16_t *const key =
        static_cast<uint16_t *>(a.store) +
        (size_t)a.table[(size_t)b * a.pitch + t / KVD_PAGE_TOKENS] * a.map.page_elements +
        a.map.kv_offset[g] + zdc_in_page(t % KVD_PAGE_TOKENS, d, 0);
    for (int i = (int)threadIdx.x; i < (group + 1) * d; i += REORDER) {
        const int h = i / d, c = i % d;
        x[h][c] = h < group ? q[a.map.q_offset[g * group + h] + c] : key[c / 8 * 64 + c % 8];
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < (group + 1) * d; i += REORDER) {
        const int h = i / d, c = i % d;
        *(h < group ? q + a.map.q_offset[g * group + h] + c : key + c / 8 * 64 + c % 8) =
            x[h][order[c]];
    }
}

} // namespace

extern "C" cudaError_t kvd_zdc_lists(const kvd_zdc_lists_args *a, cudaStream_t stream)
{
    if (a->batch < 1 || a->rows < a->batch || !a->kv_len || !a->end || !a->low_len || !a->table ||
        !a->pages.n_low)
        return cudaErrorInvalidValue;
    lists_kernel<<<a->batch, LISTS, 0, stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_zdc_merge(const kvd_zdc_merge_args *a, cudaStream_t stream)
{
    if (a->batch < 1 || a->batch > 65535 || a->n_kv_heads < 1 || a->group < 1 || !a->head ||
        !a->o || !a->lse || !a->out)
        return cudaErrorInvalidValue;
    const dim3 grid(((a->n_kv_heads * a->group + WARPS - 1) / WARPS), a->batch);
    return kvd_launch_early(a->hopper, merge_kernel, grid, ROWS, 0, stream, *a);
}

static bool ranks_channels(const kvd_zdc_channels_args *a)
{
    return a->batch >= 1 && a->batch <= 65535 && a->map.d_qk[0] <= KVD_WIDTH_MAX && a->q && a->from;
}

extern "C" cudaError_t kvd_zdc_channels(const kvd_zdc_channels_args *a, cudaStream_t stream)
{
    if (!ranks_channels(a) || !a->order || !a->level || !a->place || !a->pages.n_low)
        return cudaErrorInvalidValue;
    channels_kernel<<<dim3(a->map.n_kv_heads, a->batch), CHANNELS, 0, stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_zdc_prune(const kvd_zdc_channels_args *a, int32_t near, int32_t kept,
                                     void *pages, cudaStream_t stream)
{
    if (!ranks_channels(a) || near < 1 || kept < 0 || pages != a->from)
        return cudaErrorInvalidValue;
    prune_kernel<<<dim3(a->map.n_kv_heads, a->batch), CHANNELS, 0, stream>>>(
        *a, near, kept, static_cast<uint16_t *>(pages));
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_zdc_reorder(const kvd_zdc_reorder_args *a, cudaStream_t stream)
{
    if (a->batch < 1 || a->batch > 65535 || a->map.d_qk[0] > KVD_WIDTH_MAX ||
        a->map.group > KVD_GROUP_MAX || !a->end || !a->table || !a->order || !a->q || !a->store)
        return cudaErrorInvalidValue;
    reorder_kernel<<<dim3(a->map.n_kv_heads, a->batch), REORDER, 0, stream>>>(*a);
    return cudaGetLastError();
}
