/* Kernels for activation functions, softcap and conversions between number types. */
#include "model/pass/cuda/blocks.h"

#include <math.h>

#include "model/pass/cuda/rows.cuh"

namespace
{

enum { THREADS = 256, ROWS_MAX = 65535 /* largest grid dimension */ };

/* Returns the activation function of x; NaN stays NaN. */
template <kvd_activation KIND> __device__ __forceinline__ float activation(float x)
{
    if (KIND == KVD_GELU)
        return x * (0.5f * (1.0f + erff(x * 0.70710678f)));
    if (KIND == KVD_GELU_TANH || KIND == KVD_GEGLU_TANH)
        return gelu_tanh(x);
    if (KIND == KVD_RELU)
        return x < 0.0f ? 0.0f : x;
    if (KIND == KVD_RELU2)
        return x < 0.0f ? 0.0f : x * x;
    return silu(x);
}

template <kvd_activation KIND, class T, int N>
__global__ void __launch_bounds__(THREADS)
    activate_kernel(const void *in, const float *bias, size_t n, size_t ffn, void *y)
{
    constexpr bool GATE = KIND == KVD_SWIGLU || KIND == KVD_GEGLU_TANH;
    const size_t at = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * N,
                 pitch = GATE ? 2 * ffn : ffn;
    if (at >= ffn)
        return;
    for (size_t row = (size_t)blockIdx.y * blockDim.y + threadIdx.y; row < n;
         row += (size_t)gridDim.y * blockDim.y) {
        float x[N], up[N], b[N];
        load<T, N>(in, row * pitch + at, x);
        if (GATE)
            load<T, N>(in, row * pitch + ffn + at, up);
        if (bias) {
            load<f32, N>(bias, at, b);
#pragma unroll
            for (int i = 0; i < N; i++)
                x[i] += b[i];
            if (GATE) {
                load<f32, N>(bias, ffn + at, b);
#pragma unroll
                for (int i = 0; i < N; i++)
                    up[i] += b[i];
            }
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = GATE ? activation<KIND>(x[i]) * up[i] : activation<KIND>(x[i]);
        store<T, N>(y, row * ffn + at, x);
    }
}

template <kvd_activation KIND, class T, int N>
cudaError_t launch_pieces(const void *in, const float *bias, size_t n, size_t ffn, void *y,
                          cudaStream_t stream)
{
    const size_t pieces = ffn / N, wide = ceil_div(pieces, 32) * 32;
    const dim3 block((unsigned)smaller(wide, THREADS),
                     (unsigned)(wide < THREADS ? THREADS / wide : 1));
    const size_t rows = ceil_div(n, block.y);
    const dim3 grid((unsigned)ceil_div(pieces, block.x), (unsigned)smaller(rows, ROWS_MAX));
    activate_kernel<KIND, T, N><<<grid, block, 0, stream>>>(in, bias, n, ffn, y);
    return cudaGetLastError();
}

template <kvd_activation KIND, class T>
cudaError_t launch_activate(const void *in, const float *bias, size_t n, size_t ffn, void *y,
                            cudaStream_t stream)
{
    enum { N = 16 / sizeof(typename T::raw) };
    if (ffn % N == 0 && aligned16(in) && aligned16(bias) && aligned16(y))
        return launch_pieces<KIND, T, N>(in, bias, n, ffn, y, stream);
    return launch_pieces<KIND, T, 1>(in, bias, n, ffn, y, stream);
}

template <class T>
cudaError_t choose_activation(kvd_activation kind, const void *in, const float *bias, size_t n,
                              size_t ffn, void *y, cudaStream_t stream)
{
    switch (kind) {
    case KVD_SWIGLU:
        return launch_activate<KVD_SWIGLU, T>(in, bias, n, ffn, y, stream);
    case KVD_GEGLU_TANH:
        return launch_activate<KVD_GEGLU_TANH, T>(in, bias, n, ffn, y, stream);
    case KVD_GELU:
        return launch_activate<KVD_GELU, T>(in, bias, n, ffn, y, stream);
    case KVD_GELU_TANH:
        return launch_activate<KVD_GELU_TANH, T>(in, bias, n, ffn, y, stream);
    case KVD_RELU2:
        return launch_activate<KVD_RELU2, T>(in, bias, n, ffn, y, stream);
    default:
        return launch_activate<KVD_RELU, T>(in, bias, n, ffn, y, stream);
    }
}

template <kvd_activation KIND>
__global__ void __launch_bounds__(THREADS) plain_kernel(float *x, size_t n)
{
    const size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at < n)
        x[at] = activation<KIND>(x[at]);
}

template <kvd_activation KIND> cudaError_t launch_plain(float *x, size_t n, cudaStream_t stream)
{
    plain_kernel<KIND><<<(unsigned)ceil_div(n, THREADS), THREADS, 0, stream>>>(x, n);
    return cudaGetLastError();
}

__global__ void __launch_bounds__(THREADS) softcap_kernel(float *x, size_t n, float softcap)
{
    const size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= n)
        return;
    const float v[1] = {x[at]};
    x[at] = any_not_finite(v) ? NAN : softcap * tanhf(v[0] / softcap);
}

template <class From, class To, int N>
__global__ void __launch_bounds__(THREADS) convert_kernel(const void *from, void *to, size_t n)
{
    size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) * N;
    if (at + N <= n) {
        float v[N];
        load<From, N>(from, at, v);
        store<To, N>(to, at, v);
        return;
    }
    for (; at < n; at++) {
        float v[1];
        load<From, 1>(from, at, v);
        store<To, 1>(to, at, v);
    }
}

template <class From, class To>
cudaError_t launch_convert(const void *from, void *to, size_t n, cudaStream_t stream)
{
    enum { N = sizeof(typename To::raw) == 4 ? 4 : 8 };
    if (aligned16(from) && aligned16(to))
        convert_kernel<From, To, N>
            <<<(unsigned)ceil_div(n, N * THREADS), THREADS, 0, stream>>>(from, to, n);
    else
        convert_kernel<From, To, 1>
            <<<(unsigned)ceil_div(n, THREADS), THREADS, 0, stream>>>(from, to, n);
    return cudaGetLastError();
}

template <class From>
cudaError_t choose_target(const void *from, kvd_dtype to_type, void *to, size_t n,
                          cudaStream_t stream)
{
    return to_type == KVD_F32   ? launch_convert<From, f32>(from, to, n, stream)
           : to_type == KVD_F16 ? launch_convert<From, f16>(from, to, n, stream)
                                : launch_convert<From, bf16>(from, to, n, stream);
}

} // namespace

extern "C" cudaError_t kvd_gpu_activate(kvd_activation kind, kvd_dtype type, const void *in,
                                        const float *bias, size_t n, size_t ffn, void *y,
                                        cudaStream_t stream)
{
    if (n == 0)
        return cudaSuccess;
    return type == KVD_F32 ? choose_activation<f32>(kind, in, bias, n, ffn, y, stream)
                           : choose_activation<bf16>(kind, in, bias, n, ffn, y, stream);
}

extern "C" cudaError_t kvd_gpu_activate_plain(kvd_activation kind, float *x, size_t n,
                                              cudaStream_t stream)
{
    if (n == 0)
        return cudaSuccess;
    switch (kind) {
    case KVD_SWIGLU:
        return launch_plain<KVD_SWIGLU>(x, n, stream);
    case KVD_GELU:
        return launch_plain<KVD_GELU>(x, n, stream);
    case KVD_GEGLU_TANH:
    case KVD_GELU_TANH:
        return launch_plain<KVD_GELU_TANH>(x, n, stream);
    case KVD_RELU2:
        return launch_plain<KVD_RELU2>(x, n, stream);
    default:
        return launch_plain<KVD_RELU>(x, n, stream);
    }
}

extern "C" cudaError_t kvd_gpu_softcap(float *x, size_t n, float softcap, cudaStream_t stream)
{
    if (n == 0)
        return cudaSuccess;
    softcap_kernel<<<(unsigned)ceil_div(n, THREADS), THREADS, 0, stream>>>(x, n, softcap);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_gpu_convert(kvd_dtype from_type, const void *from, kvd_dtype to_type,
                                       void *to, size_t n, cudaStream_t stream)
{
    if (n == 0)
        return cudaSuccess;
    if (from_type == to_type)
        return cudaMemcpyAsync(to, from, n * (from_type == KVD_F32 ? 4 : 2),
                               cudaMemcpyDeviceToDevice, stream);
    return from_type == KVD_F32   ? choose_target<f32>(from, to_type, to, n, stream)
           : from_type == KVD_F16 ? choose_target<f16>(from, to_type, to, n, stream)
                                  : choose_target<bf16>(from, to_type, to, n, stream);
}
