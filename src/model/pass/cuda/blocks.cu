/* Kernels for embedding and norms, which also add to the residual stream and check it for NaN and
 * infinity. One block handles one token.
 *
 * A norm's sum of squares is in float64; only four squares at a time are added in float32. */
#include "model/pass/cuda/blocks.h"

#include "common/cuda/launch.cuh"
#include "model/pass/cuda/rows.cuh"

namespace
{

enum { EMBED_THREADS = 128, PIECES = 4, THREADS_MAX = 1024, NORM_KEPT = 4 * PIECES * THREADS_MAX };

template <class T, int N>
__global__ void __launch_bounds__(EMBED_THREADS)
    embed_kernel(const void *table, float scale, const uint32_t *id, const float *positions,
                 const uint32_t *position, size_t width, float *x)
{
    const size_t token = blockIdx.x, from = (size_t)id[token] * width;
    const size_t place = positions ? ((size_t)position[token] + 2) * width : 0;
    for (size_t j = (size_t)threadIdx.x * N; j < width; j += EMBED_THREADS * N) {
        float v[N];
        load<T, N>(table, from + j, v);
        if (scale > 0)
#pragma unroll
            for (int i = 0; i < N; i++)
                v[i] = __fmul_rn(v[i], scale);
        if (positions) {
            float p[N];
            load<f32, N>(positions, place + j, p);
#pragma unroll
            for (int i = 0; i < N; i++)
                v[i] += p[i];
        }
        store<f32, N>(x, token * width + j, v);
    }
}

struct norm_args {
    float *x;
    const float *add;
    size_t add_ld;
    const float *gain, *bias;
    double eps;
    size_t first, d;
    void *y;
    unsigned stage;
    kvd_gpu_bad *bad;
};

__device__ __forceinline__ double square_of(const float (&v)[4])
{
    return (double)((v[0] * v[0] + v[1] * v[1]) + (v[2] * v[2] + v[3] * v[3]));
}

__device__ __forceinline__ double square_of(const float (&v)[1])
{
    return (double)v[0] * (double)v[0];
}

/* Loads N elements of x, and adds N elements of the vector a.add unless it is NULL. */
template <int N>
__device__ __forceinline__ void take(const norm_args &a, size_t row, size_t at, float (&v)[N],
                                     bool &wrong)
{
    float *const x = a.x + row * a.d;
    load<f32, N>(x, at, v);
    if (a.add) {
        float add[N];
        load<f32, N>(a.add, row * a.add_ld + at, add);
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] += add[i];
        store<f32, N>(x, at, v);
    }
    wrong |= any_not_finite(v);
}

template <class T, bool LAYER, int N>
__device__ __forceinline__ void put(const norm_args &a, size_t row, size_t at, float middle,
                                    float scale, float (&v)[N])
{
    float gain[N], bias[N] = {};
    load<f32, N>(a.gain, at, gain);
    if (LAYER && a.bias)
        load<f32, N>(a.bias, at, bias);
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = LAYER ? (v[i] - middle) * scale * gain[i] + bias[i] : v[i] * scale * gain[i];
    store<T, N>(a.y, row * a.d + at, v);
}

template <int N> __device__ __forceinline__ double plain_sum(const float (&v)[N])
{
    double s = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        s += (double)v[i];
    return s;
}

__device__ __forceinline__ float scale_of(double squares, size_t d, double eps)
{
    return (float)(1.0 / sqrt(squares / (double)d + eps));
}

template <class T, bool LAYER>
__global__ void __launch_bounds__(THREADS_MAX) norm_kept(const norm_args a)
{
    __shared__ double sums[32], squares[32];
    const size_t row = a.first + blockIdx.x;
    float v[PIECES][4];
    bool wrong = false;
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const size_t at = 4 * ((size_t)p * blockDim.x + threadIdx.x);
        if (at < a.d)
            take<4>(a, row, at, v[p], wrong);
        else
            v[p][0] = v[p][1] = v[p][2] = v[p][3] = 0;
    }
    if (wrong)
        report_bad(a.bad, a.stage, row);
    if (!a.y)
        return;
    float middle = 0, scale = 0;
    if (a.gain) {
        double s = 0, square = 0;
        if (LAYER) {
#pragma unroll
            for (int p = 0; p < PIECES; p++)
                s += plain_sum(v[p]);
            middle = (float)(block_sum(s, sums) / (double)a.d);
        }
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            float c[4] = {v[p][0], v[p][1], v[p][2], v[p][3]};
            if (LAYER && 4 * ((size_t)p * blockDim.x + threadIdx.x) < a.d)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    c[i] -= middle;
            square += square_of(c);
        }
        scale = scale_of(block_sum(square, squares), a.d, a.eps);
    }
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const size_t at = 4 * ((size_t)p * blockDim.x + threadIdx.x);
        if (at >= a.d)
            continue;
        if (a.gain)
            put<T, LAYER, 4>(a, row, at, middle, scale, v[p]);
        else
            store<T, 4>(a.y, row * a.d + at, v[p]);
    }
}

/* Normalises rows of any width. Each thread writes only elements that it has read, so y may be
 * x. */
template <class T, bool LAYER>
__global__ void __launch_bounds__(THREADS_MAX) norm_any(const norm_args a)
{
    __shared__ double sums[32], squares[32];
    const size_t row = a.first + blockIdx.x;
    const float *const x = a.x + row * a.d;
    double s = 0, square = 0;
    bool wrong = false;
    for (size_t at = threadIdx.x; at < a.d; at += blockDim.x) {
        float v[1];
        take<1>(a, row, at, v, wrong);
        s += (double)v[0];
        square += square_of(v);
    }
    if (wrong)
        report_bad(a.bad, a.stage, row);
    if (!a.y)
        return;
    float middle = 0, scale = 0;
    if (a.gain) {
        if (LAYER) {
            const double mean = block_sum(s, sums) / (double)a.d;
            middle = (float)mean;
            square = 0;
            for (size_t at = threadIdx.x; at < a.d; at += blockDim.x)
                square += ((double)x[at] - mean) * ((double)x[at] - mean);
        }
        scale = scale_of(block_sum(square, squares), a.d, a.eps);
    }
    for (size_t at = threadIdx.x; at < a.d; at += blockDim.x) {
        float v[1] = {x[at]};
        if (a.gain)
            put<T, LAYER, 1>(a, row, at, middle, scale, v);
        else
            store<T, 1>(a.y, row * a.d + at, v);
    }
}

__device__ __forceinline__ void prefetch_row(const float *row, size_t d)
{
    for (size_t k = 32 * (size_t)threadIdx.x; k < d; k += 32 * (size_t)blockDim.x)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(row + k));
}

/* Adds the normed output of a block (attention or feed-forward) to x. One CUDA block handles one
 * token. */
__global__ void __launch_bounds__(THREADS_MAX)
    branch_kernel(const __grid_constant__ kvd_gpu_branch a)
{
    __shared__ double sums[2][32];
    const size_t row = (size_t)blockIdx.x * a.d;
    float x[PIECES][4], branch[PIECES][4];
    double squares = 0;
    bool wrong = false;
    prefetch_row(a.gain_branch, a.d);
    if (a.gain)
        prefetch_row(a.gain, a.d);
    kvd_wait_preceding(NULL);
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const size_t at = 4 * ((size_t)p * blockDim.x + threadIdx.x);
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[p][i] = branch[p][i] = 0;
        if (at < a.d) {
            load<f32, 4>(a.branch, row + at, branch[p]);
            load<f32, 4>(a.x, row + at, x[p]);
        }
        wrong |= any_not_finite(branch[p]);
        squares += square_of(branch[p]);
    }
    const float by = scale_of(block_sum(squares, sums[0]), a.d, a.eps);
    squares = 0;
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const size_t at = 4 * ((size_t)p * blockDim.x + threadIdx.x);
        if (at >= a.d)
            continue;
        float gain[4];
        load<f32, 4>(a.gain_branch, at, gain);
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[p][i] += branch[p][i] * by * gain[i];
        store<f32, 4>(a.x, row + at, x[p]);
        wrong |= any_not_finite(x[p]);
        squares += square_of(x[p]);
    }
    if (wrong)
        report_bad(a.bad, a.stage, blockIdx.x);
    const float scale = a.gain ? scale_of(block_sum(squares, sums[1]), a.d, a.eps) : 1.0f;
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const size_t at = 4 * ((size_t)p * blockDim.x + threadIdx.x);
        if (at >= a.d)
            continue;
        float gain[4] = {1, 1, 1, 1};
        if (a.gain)
            load<f32, 4>(a.gain, at, gain);
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[p][i] = x[p][i] * scale * gain[i];
        store<bf16, 4>(a.y, row + at, x[p]);
    }
}

template <class T, bool LAYER>
cudaError_t launch_norm(const norm_args &a, size_t n, cudaStream_t stream)
{
    const bool kept = a.d % 4 == 0 && a.add_ld % 4 == 0 && a.d <= NORM_KEPT && aligned16(a.x) &&
                      aligned16(a.add) && aligned16(a.gain) && aligned16(a.bias) && aligned16(a.y);
    if (kept) {
        const size_t threads = ceil_div(a.d, 4 * PIECES * 32) * 32;
        norm_kept<T, LAYER><<<(unsigned)n, (unsigned)threads, 0, stream>>>(a);
    } else {
        const size_t threads = ceil_div(a.d, 4 * 32) * 32;
        norm_any<T, LAYER><<<(unsigned)n, (unsigned)smaller(threads, THREADS_MAX), 0, stream>>>(a);
    }
    return cudaGetLastError();
}

template <class T>
cudaError_t launch_embed(const void *table, float scale, const uint32_t *id, const float *positions,
                         const uint32_t *position, size_t n, size_t width, float *x,
                         cudaStream_t stream)
{
    enum { N = 4 };
    if (width % N == 0 && aligned16(table) && aligned16(positions) && aligned16(x))
        embed_kernel<T, N><<<(unsigned)n, EMBED_THREADS, 0, stream>>>(table, scale, id, positions,
                                                                      position, width, x);
    else
        embed_kernel<T, 1><<<(unsigned)n, EMBED_THREADS, 0, stream>>>(table, scale, id, positions,
                                                                      position, width, x);
    return cudaGetLastError();
}

enum { ROUTE_WARPS = 8, ROUTE_THREADS = 32 * ROUTE_WARPS };

/* Applies the norm to up to 8 tokens and multiplies them by the router's matrix. Each warp computes
 * one expert's logits. */
__global__ void __launch_bounds__(ROUTE_THREADS)
    norm_route_kernel(const __grid_constant__ kvd_gpu_norm_route a)
{
    extern __shared__ __align__(16) float rows[];
    __shared__ double part[ROUTE_WARPS];
    __shared__ float scale[KVD_ROUTE_ROWS];
    const int n = (int)a.n, d = (int)a.d, thread = (int)threadIdx.x, warp = thread / 32,
              lane = thread % 32;
    /* number of threads that process one token together */
    const int team = ROUTE_THREADS / (n <= 1   ? 1
                                      : n <= 2 ? 2
                                      : n <= 4 ? 4
                                               : 8),
              row = thread / team, warps = team / 32;
    const size_t expert = (size_t)blockIdx.x * ROUTE_WARPS + (size_t)warp;
    const float *const router = a.router + (expert < a.n_experts ? expert : 0) * a.d;
    for (int k = 32 * lane; k < d; k += 32 * 32)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(router + k));
    /* Waits for the preceding kernel only here: up to here, only weights are read, which no kernel
     * writes. */
    kvd_wait_preceding(NULL);
    double squares = 0;
    bool wrong = false;
    for (int k = 4 * (thread % team); row < n && k < d; k += 4 * team) {
        float v[4];
        load<f32, 4>(a.x, (size_t)row * a.d + (size_t)k, v);
        if (a.add) {
            float add[4];
            load<f32, 4>(a.add, (size_t)k, add);
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] += add[i];
        }
        wrong |= any_not_finite(v);
        squares += square_of(v);
        store<f32, 4>(rows, (size_t)(row * d + k), v);
    }
    if (wrong && blockIdx.x == 0)
        report_bad(a.bad, a.stage, (size_t)row);
    squares = warp_sum(squares);
    if (lane == 0)
        part[warp] = squares;
    __syncthreads();
    if (thread < n) {
        double sum = 0;
        for (int w = 0; w < warps; w++)
            sum += part[thread * warps + w];
        scale[thread] = (float)(1.0 / sqrt(sum / (double)d + a.eps));
    }
    __syncthreads();
    for (int i = 4 * thread, turn = 0; i < n * d; i += 4 * ROUTE_THREADS, turn++) {
        float v[4], gain[4];
        load<f32, 4>(rows, (size_t)i, v);
        load<f32, 4>(a.gain, (size_t)(i % d), gain);
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = v[j] * scale[i / d] * gain[j];
        store<f32, 4>(rows, (size_t)i, v);
        if (turn % (int)gridDim.x == (int)blockIdx.x)
            store<bf16, 4>(a.normed, (size_t)i, v);
    }
    __syncthreads();
    if (expert >= a.n_experts)
        return;
    float sum[KVD_ROUTE_ROWS] = {};
#pragma unroll 4
    for (int k = 4 * lane; k < d; k += 128) {
        float w[4];
        load<f32, 4>(router, (size_t)k, w);
#pragma unroll
        for (int t = 0; t < KVD_ROUTE_ROWS; t++)
            if (t < n) {
                float v[4];
                load<f32, 4>(rows, (size_t)(t * d + k), v);
                sum[t] += (w[0] * v[0] + w[1] * v[1]) + (w[2] * v[2] + w[3] * v[3]);
            }
    }
#pragma unroll
    for (int t = 0; t < KVD_ROUTE_ROWS; t++)
        if (t < n) {
            const float logit = warp_sum(sum[t]);
            if (lane == 0)
                a.logit[(size_t)t * a.n_experts + expert] = logit;
        }
}

} // namespace

extern "C" bool kvd_gpu_norm_route_takes(size_t n, size_t d)
{
    enum { STATIC = 256 /* bytes of static shared memory, rounded up */ };
    int device = 0, most = 0;
    return n >= 1 && n <= KVD_ROUTE_ROWS && d % 4 == 0 && cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) ==
               cudaSuccess &&
           n * d * sizeof(float) + STATIC <= (size_t)most;
}

extern "C" cudaError_t kvd_gpu_norm_route_run(const kvd_gpu_norm_route *a, cudaStream_t stream)
{
    const size_t bytes = a->n * a->d * sizeof(float);
    return kvd_launch_early(a->overlaps, norm_route_kernel,
                            dim3((unsigned)ceil_div(a->n_experts, ROUTE_WARPS)), ROUTE_THREADS,
                            bytes, stream, *a);
}

extern "C" cudaError_t kvd_gpu_embed(kvd_dtype type, const void *table, float scale,
                                     const uint32_t *id, const float *positions,
                                     const uint32_t *position, size_t n, size_t width, float *x,
                                     cudaStream_t stream)
{
    if (n == 0)
        return cudaSuccess;
    return type == KVD_F32
               ? launch_embed<f32>(table, scale, id, positions, position, n, width, x, stream)
               : launch_embed<bf16>(table, scale, id, positions, position, n, width, x, stream);
}

extern "C" cudaError_t kvd_gpu_norm_rows(kvd_norm kind, kvd_dtype type, float *x, const float *add,
                                         size_t add_ld, const float *gain, const float *bias,
                                         double eps, size_t first, size_t n, size_t d, void *y,
                                         unsigned stage, kvd_gpu_bad *bad, cudaStream_t stream)
{
    if (n == 0)
        return cudaSuccess;
    const norm_args a = {x, add, add_ld, gain, bias, eps, first, d, y, stage, bad};
    if (kind == KVD_NORM_LAYER)
        return type == KVD_F32 ? launch_norm<f32, true>(a, n, stream)
                               : launch_norm<bf16, true>(a, n, stream);
    return type == KVD_F32 ? launch_norm<f32, false>(a, n, stream)
                           : launch_norm<bf16, false>(a, n, stream);
}

extern "C" cudaError_t kvd_gpu_norm(kvd_norm kind, kvd_dtype type, float *x, const float *add,
                                    const float *gain, const float *bias, double eps, size_t n,
                                    size_t d, void *y, unsigned stage, kvd_gpu_bad *bad,
                                    cudaStream_t stream)
{
    return kvd_gpu_norm_rows(kind, type, x, add, 0, gain, bias, eps, 0, n, d, y, stage, bad,
                             stream);
}

extern "C" bool kvd_gpu_branch_takes(size_t d)
{
    return d % 4 == 0 && d <= NORM_KEPT;
}

extern "C" cudaError_t kvd_gpu_branch_add(const kvd_gpu_branch *a, cudaStream_t stream)
{
    int major = 0;
    const cudaError_t e = kvd_compute_capability(&major);
    if (e != cudaSuccess || a->n == 0)
        return e;
    if (!kvd_gpu_branch_takes(a->d) || !aligned16(a->x) || !aligned16(a->branch) ||
        !aligned16(a->gain_branch) || !aligned16(a->gain) || !aligned16(a->y))
        return cudaErrorInvalidValue;
    return kvd_launch_early(major >= 9, branch_kernel, dim3((unsigned)a->n),
                            (unsigned)(ceil_div(a->d, 4 * PIECES * 32) * 32), 0, stream, *a);
}

extern "C" cudaError_t kvd_gpu_check(const float *x, size_t n, size_t d, unsigned stage,
                                     kvd_gpu_bad *bad, cudaStream_t stream)
{
    /* const can be cast away, because kvd_gpu_norm only writes x if it adds a vector to it. */
    return kvd_gpu_norm(KVD_NORM_RMS, KVD_F32, const_cast<float *>(x), NULL, NULL, NULL, 0, n, d,
                        NULL, stage, bad, stream);
}
