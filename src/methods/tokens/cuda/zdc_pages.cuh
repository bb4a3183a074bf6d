/* Device functions that locate the row of a token in the pages of method zdc (zdc.h). */
#ifndef KVD_METHODS_TOKENS_CUDA_ZDC_PAGES_CUH
#define KVD_METHODS_TOKENS_CUDA_ZDC_PAGES_CUH

#include "methods/tokens/cuda/zdc.h"

static __device__ __forceinline__ int zdc_pages_of(int tokens)
{
    return (tokens + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
}

/*
 * Returns the number of pages at the front of a page list that hold the n_low less important
 * tokens; at least one.
 */
static __device__ __forceinline__ int zdc_low_pages(int n_low)
{
    return zdc_pages_of(max(n_low, 1));
}

/* Returns the number of the i-th page in the page list of request b. */
static __device__ __forceinline__ int zdc_page(const kvd_zdc_pages &p, int b, int i)
{
    return i ? p.table[(size_t)b * (size_t)p.pitch + (size_t)(i - 1)] : p.own + p.slot[b];
}

static __device__ __forceinline__ int zdc_low(const kvd_zdc_pages &p, int b)
{
    return p.n_low[(size_t)p.slot[b] * (size_t)p.n_layers + p.layer];
}

/*
 * Returns the index of columns 8 block .. 8 block + 7 of token t in K or V of a page
 * (kernels/layout.h).
 */
static __device__ __forceinline__ int zdc_in_page(int t, int width, int block)
{
    return t / 8 * 8 * width + block * 64 + t % 8 * 8;
}

/* Returns the order of the d channels of keys of KV head g of request b (kvd_zdc_channels). */
template <typename INDEX>
static __device__ __forceinline__ INDEX *zdc_order(INDEX *order, const kvd_zdc_pages &p, int b,
                                                   int n_kv_heads, int g, int d)
{
    return order +
           (((size_t)p.slot[b] * (size_t)p.n_layers + (size_t)p.layer) * (size_t)n_kv_heads +
            (size_t)g) *
               (size_t)d;
}

#endif
