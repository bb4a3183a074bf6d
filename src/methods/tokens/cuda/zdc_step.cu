/*
 * Decode steps of method zdc. In merge_kernel, a warp handles a query head of a request, and every
 * lane 8 columns.
 */
#include <cuda_bf16.h>

#include "common/cuda/launch.cuh"
#include "methods/tokens/cuda/zdc.h"
#include "methods/tokens/cuda/zdc_pages.cuh"

namespace
{

enum { LISTS = 128, ROWS = 128, WARPS = ROWS / 32 };

__global__ void __launch_bounds__(LISTS) lists_kernel(const __grid_constant__ kvd_zdc_lists_args a)
{
    const int b = (int)blockIdx.x;
    const int32_t *const n_low = a.pages.n_low + (size_t)a.pages.slot[b] * (size_t)a.pages.n_layers;
    for (int l = (int)threadIdx.x; l < a.pages.n_layers; l += LISTS) {
        const size_t row = (size_t)l * (size_t)a.rows + (size_t)b;
        a.low_len[row] = max(n_low[l], 1);
        a.end[row] = zdc_low_pages(n_low[l]) * KVD_PAGE_TOKENS + a.kv_len[b] - n_low[l];
    }
    /* Important and other tokens do not share pages, which takes at most one page more. */
    int32_t *const table = a.table + (size_t)b * (size_t)(a.pages.pitch + 1);
    for (int i = (int)threadIdx.x; i <= zdc_pages_of(a.kv_len[b]); i += LISTS)
        table[i] = zdc_page(a.pages, b, i);
}

/* Waits until the preceding kernel on the stream has ended. */
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
    float w = 1;
    if (zdc_low(a.pages, (int)b) > 0) {
        const float *const lse = a.lse + b * (size_t)(2 * n_heads) + h;
        w = 1 / (1 + expf(lse[n_heads] - lse[0]));
        if (lane < width / 8)
            y = reinterpret_cast<const uint4 *>(o + head.in_row[KVD_ZDC_LOW] + j * width)[lane];
    }
    reinterpret_cast<uint4 *>(static_cast<uint16_t *>(a.out) + b * (size_t)a.out_pitch + at)[lane] =
        mix(x, y, w, 1 - w);
}

} // namespace

extern "C" cudaError_t kvd_zdc_lists(const kvd_zdc_lists_args *a, cudaStream_t stream)
{
    if (a->batch < 1 || a->rows < a->batch || !a->kv_len || !a->end || !a->low_len || !a->table ||
        !a->pages.n_low)
        return cudaErrorInvalidValue;
    lists_kernel<<<(unsigned)a->batch, LISTS, 0, stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_zdc_merge(const kvd_zdc_merge_args *a, cudaStream_t stream)
{
    if (a->batch < 1 || a->batch > 65535 || a->n_kv_heads < 1 || a->group < 1 || !a->head ||
        !a->o || !a->lse || !a->out)
        return cudaErrorInvalidValue;
    const dim3 grid((unsigned)((a->n_kv_heads * a->group + WARPS - 1) / WARPS), (unsigned)a->batch);
    return kvd_launch_early(a->hopper, merge_kernel, grid, ROWS, 0, stream, *a);
}
