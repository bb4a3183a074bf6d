/* Gradients of norms, activations, and the steps between QKV projection and attention. */
#include "model/pass/cuda/blocks_back.h"

#include "model/pass/cuda/rows.cuh"

namespace
{

enum { THREADS = 256, ROWS_MAX = 65535 /* largest grid dimension */ };

struct norm_args {
    const float *x, *gain, *dy;
    float *dx;
    double eps;
    size_t d;
    int add;
};

/* RMS norm: y = x s g with s = (mean(x^2) + eps)^-1/2; dx = s (g dy - x s^2 mean(g dy x)).
 *
 * Layer norm: y = z g + b with z = (x - mean(x)) s, s = 1 / std(x); dx = s (g dy - mean(g dy) - z
 * mean(g dy z)). */
template <bool LAYER> __global__ void __launch_bounds__(THREADS) norm_back_kernel(const norm_args a)
{
    __shared__ double part[4][32];
    const size_t at = blockIdx.x * a.d;
    const double n = (double)a.d;
    double sum = 0, square = 0, level = 0, along = 0;
    if (LAYER) {
        for (size_t j = threadIdx.x; j < a.d; j += THREADS)
            sum += (double)a.x[at + j];
        sum = block_sum(sum, part[0]) / n;
    }
    for (size_t j = threadIdx.x; j < a.d; j += THREADS) {
        const double away = (double)a.x[at + j] - sum, g = (double)a.gain[j] * (double)a.dy[at + j];
        square += away * away;
        level += g;
        along += g * away;
    }
    square = block_sum(square, part[1]);
    along = block_sum(along, part[2]);
    level = LAYER ? block_sum(level, part[3]) : 0;
    const double inverse = 1 / (square / n + a.eps);
    const float s = (float)sqrt(inverse), middle = (float)sum, mean = (float)(level / n),
                back = (float)(along / n * inverse);
    for (size_t j = threadIdx.x; j < a.d; j += THREADS) {
        const float v = s * (a.gain[j] * a.dy[at + j] - mean - (a.x[at + j] - middle) * back);
        a.dx[at + j] = a.add ? a.dx[at + j] + v : v;
    }
}

template <kvd_activation KIND> __device__ __forceinline__ float slope(float x)
{
    if (KIND == KVD_GELU)
        return 0.5f * (1.0f + erff(x * 0.70710678f)) + x * 0.39894228f * expf(-0.5f * x * x);
    /* Derivative of x s(u), for the sigmoid s and u = 2 sqrt(2/pi) (x + a x^3): s + x s (1 - s)
     * u'. */
    if (KIND == KVD_GELU_TANH) {
        const float twice = 1.59576912f, cube = 0.044715f;
        const float s = 1.0f / (1.0f + expf(-twice * (x + cube * x * x * x)));
        return s + x * s * (1.0f - s) * twice * (1.0f + 3.0f * cube * x * x);
    }
    if (KIND == KVD_RELU2)
        return x > 0 ? 2 * x : 0.0f;
    return x > 0 ? 1.0f : 0.0f;
}

template <kvd_activation KIND, class T, int N>
__global__ void __launch_bounds__(THREADS)
    activate_back_kernel(void *in, const float *bias, size_t n, size_t ffn, const float *dy)
{
    constexpr bool GATE = KIND == KVD_SWIGLU;
    const size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) * N,
                 pitch = GATE ? 2 * ffn : ffn;
    if (at >= ffn)
        return;
    float b[2][N] = {};
    if (bias) {
        load<f32, N>(bias, at, b[0]);
        if (GATE)
            load<f32, N>(bias, ffn + at, b[1]);
    }
    for (size_t row = blockIdx.y; row < n; row += gridDim.y) {
        float x[N], up[N], d[N];
        load<T, N>(in, row * pitch + at, x);
        load<f32, N>(dy, row * ffn + at, d);
        if (GATE)
            load<T, N>(in, row * pitch + ffn + at, up);
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] += b[0][i];
            if (GATE) {
                const float s = 1.0f / (1.0f + expf(-x[i])), silu = x[i] * s;
                x[i] = d[i] * (up[i] + b[1][i]) * (s + silu * (1.0f - s));
                up[i] = d[i] * silu;
            } else {
                x[i] = d[i] * slope<KIND>(x[i]);
            }
        }
        store<T, N>(in, row * pitch + at, x);
        if (GATE)
            store<T, N>(in, row * pitch + ffn + at, up);
    }
}

template <kvd_activation KIND, class T>
cudaError_t launch_activate(void *in, const float *bias, size_t n, size_t ffn, const float *dy,
                            cudaStream_t stream)
{
    enum { N = 4 };
    const bool pieces = ffn % N == 0 && aligned16(in) && aligned16(bias) && aligned16(dy);
    const dim3 grid((unsigned)ceil_div(ffn, (pieces ? N : 1) * THREADS),
                    (unsigned)smaller(n, ROWS_MAX));
    if (pieces)
        activate_back_kernel<KIND, T, N><<<grid, THREADS, 0, stream>>>(in, bias, n, ffn, dy);
    else
        activate_back_kernel<KIND, T, 1><<<grid, THREADS, 0, stream>>>(in, bias, n, ffn, dy);
    return cudaGetLastError();
}

template <class T>
cudaError_t choose_activation(kvd_activation kind, void *in, const float *bias, size_t n,
                              size_t ffn, const float *dy, cudaStream_t stream)
{
    switch (kind) {
    case KVD_SWIGLU:
        return launch_activate<KVD_SWIGLU, T>(in, bias, n, ffn, dy, stream);
    case KVD_GELU:
        return launch_activate<KVD_GELU, T>(in, bias, n, ffn, dy, stream);
    case KVD_GELU_TANH:
        return launch_activate<KVD_GELU_TANH, T>(in, bias, n, ffn, dy, stream);
    case KVD_RELU2:
        return launch_activate<KVD_RELU2, T>(in, bias, n, ffn, dy, stream);
    default:
        return launch_activate<KVD_RELU, T>(in, bias, n, ffn, dy, stream);
    }
}

/* indices of two elements of a head that RoPE rotates together */
struct couple {
    int i, j;
    bool pair;
};

__device__ __forceinline__ couple couple_of(int p, int d, kvd_rope_layout layout)
{
    const int half = d / 2;
    couple c = {d - 1, d - 1, p < half};
    if (c.pair) {
        c.i = layout == KVD_ROPE_HALF ? p : 2 * p;
        c.j = layout == KVD_ROPE_HALF ? p + half : 2 * p + 1;
    }
    return c;
}

template <class T>
__device__ __forceinline__ float taken(const kvd_gpu_qkv_back_args &a, size_t at, size_t column)
{
    float x[1];
    load<T, 1>(a.product, at, x);
    return a.bias ? x[0] + a.bias[column] : x[0];
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    qkv_back_kernel(const kvd_gpu_qkv_back_args a, size_t n, unsigned stage, kvd_gpu_bad *bad)
{
    const int lane = (int)threadIdx.x % 32, d = a.d_head, half = d / 2;
    const int turned = a.n_heads + a.n_kv_heads, heads = turned + a.n_kv_heads;
    const size_t unit = ((size_t)blockIdx.x * THREADS + threadIdx.x) / 32,
                 token = unit / (size_t)heads;
    if (token >= n)
        return; /* the whole warp returns, so that no lane misses a shuffle */
    const int head = (int)(unit % (size_t)heads);
    const size_t before = (size_t)head * (size_t)d, at = unit * (size_t)d;
    const float *const gain = head < a.n_heads ? a.gain_q : head < turned ? a.gain_k : NULL;
    float *const pre =
        head < turned ? a.d_pre + (token * (size_t)turned + (size_t)head) * (size_t)d : NULL;
    double square = 0, along = 0;
    bool wrong = false;
    for (int p = lane; p < half + d % 2; p += 32) {
        const couple c = couple_of(p, d, a.layout);
        float x = a.d[at + (size_t)c.i], y = a.d[at + (size_t)c.j];
        const float both[2] = {x, y};
        wrong |= any_not_finite(both);
        if (c.pair && a.cosine && head < turned) {
            const size_t table = (size_t)a.rope_row[token] * (size_t)half + (size_t)p;
            const float cosine = a.cosine[table], sine = a.sine[table], u = x, v = y;
            x = u * cosine + v * sine;
            y = v * cosine - u * sine;
        }
        if (pre) {
            pre[c.i] = x;
            pre[c.j] = y;
        }
        if (!gain) {
            a.d_raw[at + (size_t)c.i] = x;
            a.d_raw[at + (size_t)c.j] = y;
            continue;
        }
        for (int k = 0; k <= (int)c.pair; k++) {
            const int i = k ? c.j : c.i;
            const double r = (double)taken<T>(a, at + (size_t)i, before + (size_t)i);
            square += r * r;
            along += (double)gain[i] * (double)(k ? y : x) * r;
        }
    }
    if (wrong)
        report_bad(bad, stage, token);
    if (!gain)
        return;
    const double inverse = 1 / (warp_sum(square) / d + a.eps);
    const float s = (float)sqrt(inverse), back = (float)(warp_sum(along) / d * inverse);
    __syncwarp();
    for (int i = lane; i < d; i += 32)
        a.d_raw[at + (size_t)i] =
            s * (gain[i] * pre[i] - taken<T>(a, at + (size_t)i, before + (size_t)i) * back);
}

} // namespace

extern "C" cudaError_t kvd_gpu_norm_back(kvd_norm kind, const float *x, const float *gain,
                                         double eps, size_t n, size_t d, const float *dy, float *dx,
                                         int add, cudaStream_t stream)
{
    if (n == 0)
        return cudaSuccess;
    const norm_args a = {x, gain, dy, dx, eps, d, add};
    if (kind == KVD_NORM_LAYER)
        norm_back_kernel<true><<<(unsigned)n, THREADS, 0, stream>>>(a);
    else
        norm_back_kernel<false><<<(unsigned)n, THREADS, 0, stream>>>(a);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_gpu_activate_back(kvd_activation kind, kvd_dtype type, void *in,
                                             const float *bias, size_t n, size_t ffn,
                                             const float *dy, cudaStream_t stream)
{
    if (n == 0)
        return cudaSuccess;
    return type == KVD_F32 ? choose_activation<f32>(kind, in, bias, n, ffn, dy, stream)
                           : choose_activation<bf16>(kind, in, bias, n, ffn, dy, stream);
}

extern "C" cudaError_t kvd_gpu_qkv_back(const kvd_gpu_qkv_back_args *a, size_t n, unsigned stage,
                                        kvd_gpu_bad *bad, cudaStream_t stream)
{
    if (n == 0)
        return cudaSuccess;
    const size_t units = n * (size_t)(a->n_heads + 2 * a->n_kv_heads);
    const unsigned blocks = (unsigned)ceil_div(units * 32, THREADS);
    if (a->type == KVD_F32)
        qkv_back_kernel<f32><<<blocks, THREADS, 0, stream>>>(*a, n, stage, bad);
    else
        qkv_back_kernel<bf16><<<blocks, THREADS, 0, stream>>>(*a, n, stage, bad);
    return cudaGetLastError();
}
