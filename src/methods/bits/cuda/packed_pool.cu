/*
 * Computes page tables of ring buffers, and RoPE rotations for attention on keys that were
 * quantised before RoPE. Makes pages of random bytes valid, for timing.
 */
#include "methods/bits/cuda/packed_decode.h"
#include "methods/bits/cuda/packed_words.cuh"

namespace
{

__global__ void ring_table(const int32_t *slot, int max_pages, int ring_pages, int32_t *table)
{
    const int b = (int)blockIdx.y, p = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (p < max_pages)
        table[(size_t)b * (size_t)max_pages + (size_t)p] = slot[b] * ring_pages + p % ring_pages;
}

/*
 * Makes 8-bit floating-point codes finite by clearing the upper exponent bit (the numbers are then
 * below 2), and sets block scales to 1.
 */
__device__ void make_finite(const kvd_packed_form &f, const kvd_packed_parts &parts, char *codes)
{
    uint32_t *const word = reinterpret_cast<uint32_t *>(codes);
    for (int i = (int)threadIdx.x; f.bits == 8 && i < parts.k_side / 4; i += (int)blockDim.x)
        word[i] &= 0xbfbfbfbfu;
    const uint32_t one = f.block == 32 ? 0x7f7f7f7fu : 0x38383838u;
    for (int i = parts.k_side / 4 + (int)threadIdx.x; i < parts.v_list / 4; i += (int)blockDim.x)
        word[i] = one;
}

__global__ void plausible_kernel(const __grid_constant__ kvd_packed_args a, int per_page)
{
    const int g = (int)blockIdx.x, d_qk = a.map.d_qk[g], d_v = a.map.d_v[g];
    const kvd_packed_parts parts = kvd_packed_parts_of(&a.form, d_qk, d_v);
    char *const codes = in_codes(a, (int)blockIdx.y, g);
    uint32_t *const list = reinterpret_cast<uint32_t *>(codes + parts.k_list);
    uint32_t *const v_list = reinterpret_cast<uint32_t *>(codes + parts.v_list);
    const uint32_t half = half_bits(2);
    if (a.form.exponent)
        make_finite(a.form, parts, codes);
    for (int i = (int)threadIdx.x; i < a.form.k_apart; i += (int)blockDim.x)
        list[4 + i] =
            half | (uint32_t)(KVD_WIDTH_NARROW * (i * 37 % KVD_PAGE_TOKENS) + i * 11 % d_qk) << 16;
    if (a.form.k_apart && threadIdx.x == 0)
        list[0] = (uint32_t)min(per_page, a.form.k_apart);
    for (int i = (int)threadIdx.x; i < KVD_PAGE_TOKENS * a.form.v_apart; i += (int)blockDim.x)
        v_list[i] = half | (uint32_t)(i * 7 % d_v) << 16;
}

/*
 * Fills a table of RoPE rotations for positions 0 .. 63, in the layout of levels_page.turn. The
 * model's RoPE tables may include a factor, so cosines and sines are divided by the root of the sum
 * of their squares.
 */
__global__ void rope_table_kernel(const float *cosine, const float *sine, int half, uint4 *table)
{
    const int lane = (int)threadIdx.x, u = (int)blockIdx.x, t = 8 * (int)blockIdx.y + lane / 4;
    float c[4], s[4];
    for (int k = 0; k < 4; k++) {
        const int i = 16 * u + lane % 4 * 2 + k % 2 + k / 2 * 8;
        const double angle = atan2((double)sine[half + i], (double)cosine[half + i]);
        c[k] = (float)cos(angle * t);
        s[k] = (float)sin(angle * t);
    }
    table[((int)blockIdx.y * (int)gridDim.x + u) * 32 + lane] = make_uint4(
        f16_pair(c[0], c[1]), f16_pair(s[0], s[1]), f16_pair(c[2], c[3]), f16_pair(s[2], s[3]));
}

} // namespace

cudaError_t kvd_packed_ring_table(const int32_t *slot, int32_t n, int32_t max_pages,
                                  int32_t ring_pages, int32_t *table, cudaStream_t stream)
{
    if (n < 1 || max_pages < 1)
        return cudaErrorInvalidValue;
    const dim3 grid((unsigned)(max_pages + 127) / 128, (unsigned)n);
    ring_table<<<grid, 128, 0, stream>>>(slot, max_pages, ring_pages, table);
    return cudaGetLastError();
}

cudaError_t kvd_packed_make_plausible(const kvd_packed_args *a, size_t pages, int32_t per_page,
                                      cudaStream_t stream)
{
    for (size_t at = 0; at < pages; at += 65535) {
        kvd_packed_args some = *a;
        some.codes += at * a->page_bytes;
        const dim3 grid((unsigned)a->map.n_kv_heads,
                        (unsigned)(pages - at < 65535 ? pages - at : 65535));
        plausible_kernel<<<grid, 128, 0, stream>>>(some, per_page);
    }
    return cudaGetLastError();
}

size_t kvd_packed_rope_table_bytes(int d)
{
    return (size_t)(128 * d);
}

cudaError_t kvd_packed_rope_table(const float *cosine, const float *sine, int d, uint32_t *turn,
                                  cudaStream_t stream)
{
    if (d % 32)
        return cudaErrorInvalidValue;
    rope_table_kernel<<<dim3((unsigned)d / 32, 8), 32, 0, stream>>>(
        cosine, sine, d / 2, reinterpret_cast<uint4 *>(turn));
    return cudaGetLastError();
}
