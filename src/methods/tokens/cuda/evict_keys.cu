/*
 * Scores the tokens of a prompt by their keys alone:
 *
 *     KVD_EVICT_SHORT_KEYS   score[t] = -|k_t|
 *     KVD_EVICT_ODD_KEYS     score[t] = -(k_t / |k_t|) . (mean over s of k_s / |k_s|)
 *
 * A warp reads 8 keys at a time. Lane l reads token l % 8, blocks l / 8, l / 8 + 4, ... of 8
 * dimensions.
 */
#include "methods/tokens/cuda/evict.h"

namespace
{

enum { THREADS = 512, WARPS = THREADS / 32 };

template <int BLOCKS> struct part {
    float x[BLOCKS][8];
};

/* Keys of tokens n and later are read as 0. */
template <int BLOCKS>
__device__ __forceinline__ part<BLOCKS> load(const kvd_evict_prompts_args &a, const int32_t *page,
                                             int g, int t8, int n, int lane)
{
    const int d = a.map.d_qk[g], in_page = t8 % (KVD_PAGE_TOKENS / 8);
    const uint16_t *const keys =
        static_cast<const uint16_t *>(a.pool) +
        (size_t)page[t8 / (KVD_PAGE_TOKENS / 8)] * (size_t)a.map.page_elements +
        a.map.kv_offset[g] + in_page * 8 * d + lane * 8;
    part<BLOCKS> p;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        uint4 w = make_uint4(0, 0, 0, 0);
        if ((4 * i + lane / 8) * 8 < d && 8 * t8 + lane % 8 < n)
            w = *reinterpret_cast<const uint4 *>(keys + i * 256);
        const uint32_t word[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int e = 0; e < 8; e++)
            p.x[i][e] = __uint_as_float(e % 2 ? word[e / 2] & 0xffff0000u : word[e / 2] << 16);
    }
    return p;
}

template <int BLOCKS>
__device__ __forceinline__ float product(const part<BLOCKS> &x, const part<BLOCKS> &y)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
#pragma unroll
        for (int e = 0; e < 8; e++)
            sum = fmaf(x.x[i][e], y.x[i][e], sum);
    sum += __shfl_xor_sync(0xffffffffu, sum, 8);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 16);
}

template <int BLOCKS>
__global__ void __launch_bounds__(THREADS)
    short_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, n = a.q_len[b],
              warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int32_t *const page = a.page_table + (size_t)b * (size_t)a.max_pages;
    float *const score = a.score + (size_t)g * (size_t)a.n_q8 + (size_t)a.q_start[b];
    for (int t8 = warp; 8 * t8 < n; t8 += WARPS) {
        const part<BLOCKS> k = load<BLOCKS>(a, page, g, t8, n, lane);
        const float square = product(k, k);
        if (lane < 8 && 8 * t8 + lane < n)
            score[8 * t8 + lane] = -sqrtf(square);
    }
}

template <int BLOCKS>
__global__ void __launch_bounds__(THREADS)
    odd_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    constexpr int WIDTH = 32 * BLOCKS;
    __shared__ float of_warp[WARPS][WIDTH], anchor[WIDTH];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, n = a.q_len[b],
              warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int32_t *const page = a.page_table + (size_t)b * (size_t)a.max_pages;
    float *const score = a.score + (size_t)g * (size_t)a.n_q8 + (size_t)a.q_start[b];
    part<BLOCKS> sum = {};
    for (int t8 = warp; 8 * t8 < n; t8 += WARPS) {
        const part<BLOCKS> k = load<BLOCKS>(a, page, g, t8, n, lane);
        const float over = 1 / fmaxf(sqrtf(product(k, k)), 1e-12f);
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum.x[i][e] = fmaf(k.x[i][e], over, sum.x[i][e]);
    }
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
#pragma unroll
        for (int e = 0; e < 8; e++) {
#pragma unroll
            for (int step = 1; step < 8; step *= 2)
                sum.x[i][e] += __shfl_xor_sync(0xffffffffu, sum.x[i][e], step);
            if (lane % 8 == 0)
                of_warp[warp][(4 * i + lane / 8) * 8 + e] = sum.x[i][e];
        }
    __syncthreads();
    if (threadIdx.x < WIDTH) {
        float all = 0;
        for (int w = 0; w < WARPS; w++)
            all += of_warp[w][threadIdx.x];
        anchor[threadIdx.x] = all / (float)n;
    }
    __syncthreads();
    part<BLOCKS> mean;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
#pragma unroll
        for (int e = 0; e < 8; e++)
            mean.x[i][e] = anchor[(4 * i + lane / 8) * 8 + e];
    for (int t8 = warp; 8 * t8 < n; t8 += WARPS) {
        const part<BLOCKS> k = load<BLOCKS>(a, page, g, t8, n, lane);
        const float near = product(k, mean), over = 1 / fmaxf(sqrtf(product(k, k)), 1e-12f);
        if (lane < 8 && 8 * t8 + lane < n)
            score[8 * t8 + lane] = -near * over;
    }
}

template <int BLOCKS> cudaError_t launch(const kvd_evict_prompts_args &a, cudaStream_t stream)
{
    const dim3 grid((unsigned)a.map.n_kv_heads, (unsigned)a.batch);
    if (a.rule.ranking == KVD_EVICT_SHORT_KEYS)
        short_kernel<BLOCKS><<<grid, THREADS, 0, stream>>>(a);
    else if (a.rule.ranking == KVD_EVICT_ODD_KEYS)
        odd_kernel<BLOCKS><<<grid, THREADS, 0, stream>>>(a);
    else
        return cudaErrorInvalidValue;
    return cudaGetLastError();
}

} // namespace

extern "C" cudaError_t kvd_evict_score_keys(const kvd_evict_prompts_args *a, cudaStream_t stream)
{
    if (a->batch < 1 || a->batch > 65535 || !a->score)
        return cudaErrorInvalidValue;
    return kvd_attn_widest(&a->map) > KVD_WIDTH_NARROW ? launch<KVD_WIDTH_MAX / 32>(*a, stream)
                                                       : launch<KVD_WIDTH_NARROW / 32>(*a, stream);
}
