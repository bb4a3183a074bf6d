#ifndef KVD_METHODS_BITS_CUDA_PACKED_CODE_CUH
#define KVD_METHODS_BITS_CUDA_PACKED_CODE_CUH

#include "methods/bits/cuda/packed_words.cuh"

namespace
{

struct page_of {
    const kvd_packed_args &a;
    int b, g, p, page;
    const uint16_t *rows; /* bf16 numbers of the page: K, then V */
    char *codes;
    kvd_packed_parts parts;
    /* [2][2^bits] Midpoints between neighbouring quantisation levels of K and of V. */
    const float *middle;
    int before;
};

/* Returns the index of the quantisation level nearest to x. `middle` has the midpoints between n
 * levels. */
__device__ __forceinline__ uint32_t nearest(const float *middle, int n, float x)
{
    int at = 0;
    for (int step = n / 2; step; step /= 2)
        at += x > middle[at + step - 1] ? step : 0;
    return (uint32_t)at;
}

__device__ __forceinline__ uint32_t even_code(float x, float zero, float step, float top)
{
    const float q = step > 0 ? rintf((x - zero) / step) : 0;
    return (uint32_t)(q < 0 ? 0 : q > top ? top : q);
}

/* Returns the code of x quantised without zero point: round(x / step) + top, where top is 2^(bits -
 * 1) - 1. */
__device__ __forceinline__ uint32_t centred_code(float x, float step, float top)
{
    const float q = step > 0 ? rintf(x / step) : 0;
    return (uint32_t)((q < -top ? -top : q > top ? top : q) + top);
}

/* Returns `one`, outlier number i of a token's V. If KV head g has at most i outliers per token,
 * returns padding instead: an outlier with value 0. */
__device__ __forceinline__ uint32_t in_list(const kvd_packed_args &a, int g, int i, uint32_t one)
{
    return i < a.v_apart[g] ? one : (uint32_t)(KVD_WIDTH_NARROW - 1) << 16;
}

/* Returns two adjacent dimensions of K or V of token t in the bf16 page `rows`. */
__device__ __forceinline__ uint32_t row_pair(const page_of &o, const uint16_t *rows, int side,
                                             int u, int h, int t, int c)
{
    const int d_qk = o.a.map.d_qk[o.g], d = side ? o.a.map.d_v[o.g] : d_qk;
    return *reinterpret_cast<const uint32_t *>(rows + side * KVD_PAGE_TOKENS * d_qk +
                                               t / 8 * 8 * d + (2 * u + h) * 64 + t % 8 * 8 +
                                               2 * c);
}

__device__ __forceinline__ uint32_t key_pair(const page_of &o, int u, int h, int t, int c)
{
    const kvd_packed_args &a = o.a;
    if (!a.before_rope)
        return row_pair(o, o.rows, 0, u, h, t, c);
    const int row = a.start ? a.start[o.b] + KVD_PAGE_TOKENS * o.p + t - o.before : o.b;
    return *reinterpret_cast<const uint32_t *>(a.x + (size_t)row * a.ld + a.x_key + o.g * a.d_head +
                                               16 * u + 8 * h + 2 * c);
}

/* Appends an outlier of K to the page's list. If the list has no room, counts the outlier in
 * o.a.beyond. */
__device__ __forceinline__ void put_apart(const page_of &o, int t, int i, float x)
{
    uint32_t *const list = reinterpret_cast<uint32_t *>(o.codes + o.parts.k_list);
    const uint32_t at = atomicAdd(list, 1u);
    if (at < (uint32_t)o.a.form.k_apart)
        list[4 + at] = half_bits(x) | (uint32_t)(KVD_WIDTH_NARROW * t + i) << 16;
    else
        atomicMax(o.a.beyond, at + 1 - (uint32_t)o.a.form.k_apart);
}

/* Copies tokens `first` to m - 1 of a prompt to the ring buffer. Writes zeros after token m - 1, up
 * to a multiple of 8 tokens. */
__device__ void keep_newest(const kvd_packed_args &a, int b, int g, int first, int m, int worker,
                            int workers, int lane)
{
    const int d_qk = a.map.d_qk[g], d_v = a.map.d_v[g];
    for (int j = first / 8 + worker; 8 * j < m; j += workers) {
        const uint16_t *const from = in_rows(a, page_number(a, b, j / 8), g);
        uint16_t *const to = const_cast<uint16_t *>(in_ring(a, b, j / 8, g));
        for (int i = lane; i < d_qk + d_v; i += 32) {
            const int at = i < d_qk ? (j % 8 * d_qk + i) * 8
                                    : KVD_PAGE_TOKENS * d_qk + (j % 8 * d_v + i - d_qk) * 8;
            if (8 * j + i % 8 >= first)
                *reinterpret_cast<uint4 *>(to + at) = *reinterpret_cast<const uint4 *>(from + at);
        }
    }
}

} // namespace

#endif
