/*
 * The rows of latent attention (kvd_gpu_latent_rows): the norm of the latent, and the copies from
 * the products into the rows of Q, K and V.
 *
 * Bound by memory: a row of the product of LATENT is read twice, by one block, and written twice;
 * the rotated dimensions of Q are read and written once.
 */
#include "model/pass/cuda/blocks.h"

#include "model/pass/cuda/rows.cuh"

namespace
{

enum { THREADS = 128 };

template <class T> __global__ void __launch_bounds__(THREADS) latent_kernel(const kvd_gpu_latents a)
{
    __shared__ double part[32];
    const size_t token = blockIdx.x, d = (size_t)a.d_head, heads = (size_t)a.n_heads,
                 rope = (size_t)a.rope_dims, latent = d - rope, nope = (size_t)a.d_nope;
    const float *const down = a.down + token * d;
    const size_t q = token * (heads + 2) * d, k = q + heads * d, v = k + d,
                 raw = token * heads * (nope + rope);
    double sum = 0;
    for (size_t i = threadIdx.x; i < latent; i += THREADS)
        sum += (double)down[i] * (double)down[i];
    const float scale = (float)(1.0 / sqrt(block_sum(sum, part) / (double)latent + a.eps));
    for (size_t i = threadIdx.x; i < d; i += THREADS) {
        const float key[1] = {i < rope ? down[latent + i]
                                       : down[i - rope] * scale * a.gain[i - rope]};
        const float value[1] = {i < rope ? 0.0f : key[0]};
        store<T, 1>(a.qkv, k + i, key);
        store<T, 1>(a.qkv, v + i, value);
    }
    for (size_t i = threadIdx.x; i < heads * rope; i += THREADS) {
        const size_t head = i / rope, j = i % rope;
        float x[1];
        load<T, 1>(a.q_raw, raw + head * (nope + rope) + nope + j, x);
        store<T, 1>(a.qkv, q + head * d + j, x);
    }
}

} // namespace

extern "C" cudaError_t kvd_gpu_latent_rows(const kvd_gpu_latents *a, size_t n, cudaStream_t stream)
{
    if (n == 0)
        return cudaSuccess;
    if (a->type == KVD_F32)
        latent_kernel<f32><<<(unsigned)n, THREADS, 0, stream>>>(*a);
    else
        latent_kernel<bf16><<<(unsigned)n, THREADS, 0, stream>>>(*a);
    return cudaGetLastError();
}
