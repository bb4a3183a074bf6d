/*
 * Steps under two widths: the lists of both stores, queries at the low widths, and the sum of what attention gives over each. A warp has
 * a query head of a request; lanes have 8 columns each.
 */
#include <cuda_bf16.h>

#include "serving/cuda/methods/zdc.h"
#include "serving/cuda/methods/zdc_pages.cuh"

namespace
{

enum { LISTS = 128, ROWS = 128, WARPS = ROWS / 32 };

__global__ void __launch_bounds__(LISTS) lists_kernel(const __grid_constant__ kvd_zdc_lists_args a)
{
    const int l = (int)blockIdx.x, b = (int)blockIdx.y, pitch = a.pages.pitch + 1;
    const int n_low = a.pages.n_low[(size_t)a.pages.slot[b] * (size_t)a.pages.n_layers + (size_t)l],
              n_high = a.kv_len[b] - n_low, low_pages = zdc_pages_of(n_low);
    const size_t row = (size_t)l * (size_t)a.rows + (size_t)b;
    if (threadIdx.x == 0) {
        a.len[KVD_ZDC_HIGH][row] = max(n_high, 1);
        a.len[KVD_ZDC_LOW][row] = max(n_low, 1);
    }
    for (int i = (int)threadIdx.x; i < zdc_pages_of(n_high); i += LISTS)
        a.high_table[row * (size_t)pitch + (size_t)i] = zdc_page(a.pages, b, low_pages + i);
    /* Layers need not have equally many low pages: each list is a beginning of the longest one. */
    for (int i = (int)threadIdx.x; l == 0 && i <= zdc_pages_of(a.kv_len[b]); i += LISTS)
        a.low_table[(size_t)b * (size_t)pitch + (size_t)i] = zdc_page(a.pages, b, i);
}

/* What stands before it on the stream is complete behind this. */
__device__ __forceinline__ void wait_for_kernel_before()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__global__ void __launch_bounds__(ROWS) cut_kernel(const __grid_constant__ kvd_zdc_rows_args a)
{
    const int h = (int)(blockIdx.x * WARPS + threadIdx.x / 32), lane = (int)threadIdx.x % 32;
    const size_t b = blockIdx.y;
    wait_for_kernel_before();
    if (h >= a.n_kv_heads * a.group)
        return;
    const kvd_zdc_head &head = a.head[h / a.group];
    const int j = h % a.group, wide = head.width[KVD_ZDC_HIGH][0], width = head.width[KVD_ZDC_LOW][0];
    const uint16_t *const from = static_cast<const uint16_t *>(a.high) + b * (size_t)a.pitch[KVD_ZDC_HIGH] +
                                 head.in_row[KVD_ZDC_HIGH][0] + j * wide;
    uint16_t *const to = static_cast<uint16_t *>(a.low) + b * (size_t)a.pitch[KVD_ZDC_LOW] +
                         head.in_row[KVD_ZDC_LOW][0] + j * width;
    if (lane < width / 8)
        reinterpret_cast<uint4 *>(to)[lane] = reinterpret_cast<const uint4 *>(from)[lane];
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

__global__ void __launch_bounds__(ROWS) merge_kernel(const __grid_constant__ kvd_zdc_rows_args a)
{
    const int n_heads = a.n_kv_heads * a.group, h = (int)(blockIdx.x * WARPS + threadIdx.x / 32),
              lane = (int)threadIdx.x % 32;
    const size_t b = blockIdx.y;
    wait_for_kernel_before();
    if (h >= n_heads)
        return;
    const kvd_zdc_head &head = a.head[h / a.group];
    const int j = h % a.group, wide = head.width[KVD_ZDC_HIGH][1], width = head.width[KVD_ZDC_LOW][1];
    const size_t at = b * (size_t)a.pitch[KVD_ZDC_HIGH] + (size_t)(head.in_row[KVD_ZDC_HIGH][1] + j * wide);
    const uint16_t *const low = static_cast<const uint16_t *>(a.low) + b * (size_t)a.pitch[KVD_ZDC_LOW] +
                                head.in_row[KVD_ZDC_LOW][1] + j * width;
    if (lane >= wide / 8)
        return;
    const uint4 x = reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(a.high) + at)[lane];
    uint4 y = make_uint4(0, 0, 0, 0);
    float w = 1;
    if (zdc_low(a.pages, (int)b) > 0) {
        const size_t i = b * (size_t)n_heads + (size_t)h;
        w = 1 / (1 + expf(a.lse[KVD_ZDC_LOW][i] - a.lse[KVD_ZDC_HIGH][i]));
        if (lane < width / 8)
            y = reinterpret_cast<const uint4 *>(low)[lane];
    }
    reinterpret_cast<uint4 *>(static_cast<uint16_t *>(a.out) + at)[lane] = mix(x, y, w, 1 - w);
}

cudaError_t launch_rows(void (*kernel)(kvd_zdc_rows_args), const kvd_zdc_rows_args *a, cudaStream_t stream)
{
    if (a->batch < 1 || a->batch > 65535 || a->n_kv_heads < 1 || a->group < 1 || !a->head || !a->high ||
        !a->low)
        return cudaErrorInvalidValue;
    /* On Hopper the launch overlaps the end of the kernel before. */
    cudaLaunchAttribute overlap;
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)((a->n_kv_heads * a->group + WARPS - 1) / WARPS), (unsigned)a->batch);
    config.blockDim = dim3(ROWS);
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = a->hopper ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, *a);
}

} // namespace

extern "C" cudaError_t kvd_zdc_lists(const kvd_zdc_lists_args *a, cudaStream_t stream)
{
    if (a->batch < 1 || a->batch > 65535 || a->rows < a->batch || !a->kv_len || !a->high_table ||
        !a->low_table || !a->pages.n_low)
        return cudaErrorInvalidValue;
    lists_kernel<<<dim3((unsigned)a->pages.n_layers, (unsigned)a->batch), LISTS, 0, stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_zdc_cut(const kvd_zdc_rows_args *a, cudaStream_t stream)
{
    return launch_rows(cut_kernel, a, stream);
}

extern "C" cudaError_t kvd_zdc_merge(const kvd_zdc_rows_args *a, cudaStream_t stream)
{
    return !a->lse[KVD_ZDC_HIGH] || !a->lse[KVD_ZDC_LOW] || !a->out ? cudaErrorInvalidValue
                                                                    : launch_rows(merge_kernel, a, stream);
}
