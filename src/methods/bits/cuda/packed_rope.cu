/* Computes RoPE rotations for attention on keys that were quantised before RoPE. */
#include "methods/bits/cuda/packed_decode.h"
#include "methods/bits/cuda/packed_words.cuh"

namespace
{

/*
 * Fills a table of RoPE rotations for positions 0 .. 63, in the layout of levels_page.turn. The
 * rotations have length 1 even if the model's RoPE tables include a factor.
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
