/* Generates random weights on the GPU, 8 elements per thread. */
#include <cuda_bf16.h>

#include "model/checkpoint/cuda/random.h"
#include "model/checkpoint/random.h"

enum { THREADS = 256, GROUP = 8, PER_BLOCK = THREADS * GROUP };

const size_t MOST_BLOCKS = 65535;

namespace
{

struct rectangle {
    uint64_t key;
    float unit, constant;
    size_t first, stride, rows, cols, out_stride;
};

__device__ uint32_t element(const rectangle &a, uint64_t i)
{
    uint32_t even, odd;
    kvd_random_pair(a.key, a.unit, i / 2, &even, &odd);
    return i % 2 ? odd : even;
}

__device__ void store(float *to, uint32_t bits)
{
    *to = __uint_as_float(bits << 16);
}

__device__ void store(__nv_bfloat16 *to, uint32_t bits)
{
    *to = __ushort_as_bfloat16(static_cast<unsigned short>(bits));
}

__device__ void store8(float *to, const uint32_t (&x)[GROUP])
{
    reinterpret_cast<uint4 *>(to)[0] = make_uint4(x[0] << 16, x[1] << 16, x[2] << 16, x[3] << 16);
    reinterpret_cast<uint4 *>(to)[1] = make_uint4(x[4] << 16, x[5] << 16, x[6] << 16, x[7] << 16);
}

__device__ void store8(__nv_bfloat16 *to, const uint32_t (&x)[GROUP])
{
    *reinterpret_cast<uint4 *>(to) =
        make_uint4(x[0] | x[1] << 16, x[2] | x[3] << 16, x[4] | x[5] << 16, x[6] | x[7] << 16);
}

template <typename T>
__global__ void __launch_bounds__(THREADS) fill_kernel(const rectangle a, T *out)
{
    const bool is_constant = !(a.unit > 0);
    const uint32_t constant = __float_as_uint(a.constant) >> 16;
    const size_t step = static_cast<size_t>(gridDim.x) * PER_BLOCK;
    for (size_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
        T *const to = out + row * a.out_stride;
        const uint64_t from = a.first + row * a.stride;
        const bool aligned = from % 2 == 0 && reinterpret_cast<size_t>(to) % sizeof(uint4) == 0;
        for (size_t i = (static_cast<size_t>(blockIdx.x) * THREADS + threadIdx.x) * GROUP;
             i < a.cols; i += step) {
            if (!is_constant && aligned && i + GROUP <= a.cols) {
                uint32_t x[GROUP];
#pragma unroll
                for (int k = 0; k < GROUP; k += 2)
                    kvd_random_pair(a.key, a.unit, (from + i + k) / 2, &x[k], &x[k + 1]);
                store8(to + i, x);
                continue;
            }
            for (size_t j = i; j < i + GROUP && j < a.cols; j++)
                store(to + j, is_constant ? constant : element(a, from + j));
        }
    }
}

template <typename T> cudaError_t launch(const rectangle &a, void *out, cudaStream_t stream)
{
    const size_t blocks = (a.cols + PER_BLOCK - 1) / PER_BLOCK;
    const dim3 grid(static_cast<unsigned>(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS),
                    static_cast<unsigned>(a.rows < MOST_BLOCKS ? a.rows : MOST_BLOCKS));
    fill_kernel<<<grid, THREADS, 0, stream>>>(a, static_cast<T *>(out));
    return cudaGetLastError();
}

} // namespace

extern "C" cudaError_t kvd_gpu_random_fill_rows(kvd_dtype type, const kvd_random_tensor *t,
                                                size_t first, size_t stride, size_t rows,
                                                size_t cols, void *out, size_t out_stride,
                                                cudaStream_t stream)
{
    const size_t most = static_cast<size_t>(1) << 40;
    if ((type != KVD_F32 && type != KVD_BF16) || rows > most || cols > most ||
        (rows && cols > most / rows))
        return cudaErrorInvalidValue;
    if (rows == 0 || cols == 0)
        return cudaSuccess;
    const rectangle a = {
        t->key, kvd_random_unit(t->scale), t->constant, first, stride, rows, cols, out_stride};
    return type == KVD_F32 ? launch<float>(a, out, stream) : launch<__nv_bfloat16>(a, out, stream);
}

extern "C" cudaError_t kvd_gpu_random_fill(kvd_dtype type, const kvd_random_tensor *t, size_t first,
                                           size_t n, void *out, cudaStream_t stream)
{
    return kvd_gpu_random_fill_rows(type, t, first, 0, 1, n, out, 0, stream);
}
