/* Adds biases to Q, K and V, applies norms of heads and RoPE, and checks that Q, K and V are then
 * finite, in one kernel, in float32.
 *
 * Each thread holds 16 bytes of a head's first half and 16 bytes of its second half, so RoPE needs
 * no exchange between threads. */
#include "model/pass/cuda/blocks.h"

#include "common/cuda/launch.cuh"
#include "model/pass/cuda/rows.cuh"

namespace
{

/* THREADS: threads per block. For up to FEW tokens, several blocks share the heads of a token. */
enum { THREADS = 128, FEW = 32 };

__device__ __forceinline__ const float *gain_of(const kvd_gpu_qkv &a, int head)
{
    const bool of_q = head < a.n_heads;
    const float *const gain = of_q ? a.gain_q : head < a.n_heads + a.n_kv_heads ? a.gain_k : NULL;
    return gain && a.factor ? gain + (size_t)(of_q ? head : head - a.n_heads) * (size_t)a.d_head
                            : gain;
}

__device__ __forceinline__ float whole_factor(const kvd_gpu_qkv &a, size_t token, int head)
{
    return a.factor[2 * token + (head < a.n_heads ? 0 : 1)];
}

__host__ __device__ __forceinline__ int dims_rotated(const kvd_gpu_qkv &a)
{
    return a.rope_dims ? a.rope_dims : a.d_head - a.d_head % 2;
}

__device__ __forceinline__ void apply_rope(float &x, float &y, float c, float s)
{
    const float u = x, v = y;
    x = u * c - v * s;
    y = v * c + u * s;
}

template <class T, int N>
__device__ __forceinline__ void add_bias(const float *bias, size_t at, float (&x)[N])
{
    float b[N];
    load<f32, N>(bias, at, b);
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] += b[i];
}

template <int N>
__device__ __forceinline__ void multiply(const float *gain, int at, float scale, float (&x)[N])
{
    float g[N];
    load<f32, N>(gain, (size_t)at, g);
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = x[i] * scale * g[i];
}

template <int N> __device__ __forceinline__ float squares(const float (&x)[N])
{
    float s = 0;
#pragma unroll
    for (int i = 0; i < N; i += 2)
        s += x[i] * x[i] + x[i + 1] * x[i + 1];
    return s;
}

template <class T, int N, int TEAM>
__global__ void __launch_bounds__(THREADS)
    finish_pieces(const kvd_gpu_qkv a, size_t n, unsigned stage, kvd_gpu_bad *bad)
{
    const int lane = (int)threadIdx.x % TEAM, team = (int)threadIdx.x / TEAM,
              teams = (int)blockDim.x / TEAM;
    const int half = a.d_head / 2, turned = a.n_heads + a.n_kv_heads, heads = turned + a.n_kv_heads;
    const size_t token = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    const bool mine = lane * N < half && token < n;
    const int at[2] = {lane * N, half + lane * N};

    /* cosines and sines of RoPE, one of each per rotated pair of elements */
    float c[N], s[N];
    kvd_wait_preceding(a.began);
    if (a.cosine && mine) {
        const size_t table = (size_t)a.rope_row[token] * (size_t)half;
        if (a.layout == KVD_ROPE_HALF) {
            load<f32, N>(a.cosine, table + (size_t)at[0], c);
            load<f32, N>(a.sine, table + (size_t)at[0], s);
        } else {
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float part[N / 2];
                load<f32, N / 2>(a.cosine, table + (size_t)(at[k] / 2), part);
#pragma unroll
                for (int i = 0; i < N / 2; i++)
                    c[k * N / 2 + i] = part[i];
                load<f32, N / 2>(a.sine, table + (size_t)(at[k] / 2), part);
#pragma unroll
                for (int i = 0; i < N / 2; i++)
                    s[k * N / 2 + i] = part[i];
            }
        }
    }

    bool wrong = false;
    for (int first = (int)blockIdx.y * teams; first < heads; first += (int)gridDim.y * teams) {
        const int head = first + team;
        const bool there = mine && head < heads, rotates = head < turned;
        const size_t before = (size_t)head * (size_t)a.d_head,
                     x_at = token * (size_t)heads * a.d_head + before;
        const float *const gain = gain_of(a, head);
        float x[N], y[N];
        if (there) {
            load<T, N>(a.qkv, x_at + (size_t)at[0], x);
            load<T, N>(a.qkv, x_at + (size_t)at[1], y);
            if (a.bias) {
                add_bias<T, N>(a.bias, before + (size_t)at[0], x);
                add_bias<T, N>(a.bias, before + (size_t)at[1], y);
            }
        }
        if (a.gain_q || a.gain_k) {
            float sum = there ? squares(x) + squares(y) : 0.0f;
#pragma unroll
            for (int step = TEAM / 2; step; step /= 2)
                sum += __shfl_xor_sync(0xffffffffu, sum, step);
            if (there && gain) {
                const float scale = a.factor ? whole_factor(a, token, head)
                                             : 1.0f / sqrtf(sum / (float)a.d_head + (float)a.eps);
                multiply<N>(gain, at[0], scale, x);
                multiply<N>(gain, at[1], scale, y);
            }
        }
        if (!there)
            continue;
        if (a.pre && rotates) {
            const size_t to = token * (size_t)turned * a.d_head + before;
            store<T, N>(a.pre, to + (size_t)at[0], x);
            store<T, N>(a.pre, to + (size_t)at[1], y);
        }
        if (a.cosine && rotates) {
#pragma unroll
            for (int i = 0; i < N; i++)
                if (a.layout == KVD_ROPE_HALF)
                    apply_rope(x[i], y[i], c[i], s[i]);
                else if (i < N / 2)
                    apply_rope(x[2 * i], x[2 * i + 1], c[i], s[i]);
                else
                    apply_rope(y[2 * i - N], y[2 * i - N + 1], c[i], s[i]);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] = rounded<T>(x[i]);
            y[i] = rounded<T>(y[i]);
        }
        wrong |= any_not_finite(x) || any_not_finite(y);
        if (a.bias || gain || (a.cosine && rotates)) {
            store<T, N>(a.qkv, x_at + (size_t)at[0], x);
            store<T, N>(a.qkv, x_at + (size_t)at[1], y);
        }
    }
    if (wrong)
        report_bad(bad, stage, token);
}

template <class T>
__device__ __forceinline__ float element(const kvd_gpu_qkv &a, size_t x_at, size_t before, int i)
{
    float x[1];
    load<T, 1>(a.qkv, x_at + (size_t)i, x);
    return a.bias ? x[0] + a.bias[before + (size_t)i] : x[0];
}

/* Computes 1 / rms over all heads of token t: block (t, 0) computes it for Q, block (t, 1) for
 * K. */
template <class T> __global__ void __launch_bounds__(THREADS) whole_factors(const kvd_gpu_qkv a)
{
    __shared__ double part[32];
    const size_t d = (size_t)a.d_head, q = (size_t)a.n_heads * d, k = (size_t)a.n_kv_heads * d;
    const size_t token = blockIdx.x, first = blockIdx.y ? q : 0, width = blockIdx.y ? k : q;
    double sum = 0;
    kvd_wait_preceding(a.began);
    for (size_t i = threadIdx.x; i < width; i += THREADS) {
        const double x = (double)element<T>(a, token * (q + 2 * k) + first, first, (int)i);
        sum += x * x;
    }
    sum = block_sum(sum, part);
    if (threadIdx.x == 0)
        a.factor[2 * token + blockIdx.y] = (float)(1.0 / sqrt(sum / (double)width + a.eps));
}

/* Computes norm and RoPE of a head in place. All lanes of the warp read before any lane writes. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    finish_any(const kvd_gpu_qkv a, size_t n, unsigned stage, kvd_gpu_bad *bad)
{
    const int lane = (int)threadIdx.x % 32, half = a.d_head / 2, d = a.d_head,
              pairs = dims_rotated(a) / 2;
    const int turned = a.n_heads + a.n_kv_heads, heads = turned + a.n_kv_heads;
    const size_t unit = ((size_t)blockIdx.x * THREADS + threadIdx.x) / 32,
                 token = unit / (size_t)heads;
    kvd_wait_preceding(a.began);
    if (token >= n)
        return;
    const int head = (int)(unit % (size_t)heads);
    const size_t before = (size_t)head * (size_t)d, x_at = unit * (size_t)d;
    const size_t pre_at = (token * (size_t)turned + (size_t)head) * (size_t)d;
    const float *const gain = gain_of(a, head);
    float scale = 0;
    if (gain && a.factor) {
        scale = whole_factor(a, token, head);
    } else if (gain) {
        double sum = 0;
        for (int i = lane; i < d; i += 32) {
            const double x = (double)element<T>(a, x_at, before, i);
            sum += x * x;
        }
        scale = (float)(1.0 / sqrt(warp_sum(sum) / d + a.eps));
        __syncwarp();
    }
    bool wrong = false;
    /* Each step computes two dimensions; an odd last dimension is computed alone. */
    for (int p = lane; p < half + d % 2; p += 32) {
        const bool pair = p < pairs, turns = pair && a.cosine && head < turned;
        const int i = pair && a.layout == KVD_ROPE_HALF ? p : 2 * p;
        const int j = pair && a.layout == KVD_ROPE_HALF ? p + pairs : i + 1 < d ? i + 1 : i;
        float x[1] = {element<T>(a, x_at, before, i)}, y[1] = {element<T>(a, x_at, before, j)};
        if (gain) {
            x[0] = x[0] * scale * gain[i];
            y[0] = y[0] * scale * gain[j];
        }
        if (a.pre && head < turned) {
            store<T, 1>(a.pre, pre_at + (size_t)i, x);
            store<T, 1>(a.pre, pre_at + (size_t)j, y);
        }
        if (turns) {
            const size_t table = (size_t)a.rope_row[token] * (size_t)half + (size_t)p;
            apply_rope(x[0], y[0], a.cosine[table], a.sine[table]);
        }
        x[0] = rounded<T>(x[0]);
        y[0] = rounded<T>(y[0]);
        wrong |= any_not_finite(x) || any_not_finite(y);
        store<T, 1>(a.qkv, x_at + (size_t)i, x);
        store<T, 1>(a.qkv, x_at + (size_t)j, y);
    }
    if (wrong)
        report_bad(bad, stage, token);
}

template <class T, int TEAM>
cudaError_t launch_pieces(const kvd_gpu_qkv &a, size_t n, unsigned stage, kvd_gpu_bad *bad,
                          bool early, cudaStream_t stream)
{
    enum { N = 16 / sizeof(typename T::raw) };
    const size_t wanted = ceil_div((size_t)(a.n_heads + 2 * a.n_kv_heads) * TEAM, 32) * 32;
    const unsigned x = (unsigned)smaller(wanted, THREADS);
    const dim3 block(x, THREADS / x);
    const size_t heads = (size_t)(a.n_heads + 2 * a.n_kv_heads), parts = ceil_div(heads, x / TEAM);
    const dim3 grid((unsigned)ceil_div(n, block.y), n <= FEW ? (unsigned)parts : 1);
    return kvd_launch_early(early, finish_pieces<T, N, TEAM>, grid, block, 0, stream, a, n, stage,
                            bad);
}

template <class T>
cudaError_t launch(const kvd_gpu_qkv &a, size_t n, unsigned stage, kvd_gpu_bad *bad, bool early,
                   cudaStream_t stream)
{
    enum { N = 16 / sizeof(typename T::raw) };
    const int pieces = a.d_head / 2 / N;
    const bool usual = dims_rotated(a) == a.d_head || a.layout == KVD_ROPE_INTERLEAVED;
    if (usual && a.d_head % (2 * N) == 0 && pieces <= 32 && aligned16(a.qkv) && aligned16(a.pre) &&
        aligned16(a.bias) && aligned16(a.gain_q) && aligned16(a.gain_k) && aligned16(a.cosine) &&
        aligned16(a.sine))
        return pieces == 1    ? launch_pieces<T, 1>(a, n, stage, bad, early, stream)
               : pieces == 2  ? launch_pieces<T, 2>(a, n, stage, bad, early, stream)
               : pieces <= 4  ? launch_pieces<T, 4>(a, n, stage, bad, early, stream)
               : pieces <= 8  ? launch_pieces<T, 8>(a, n, stage, bad, early, stream)
               : pieces <= 16 ? launch_pieces<T, 16>(a, n, stage, bad, early, stream)
                              : launch_pieces<T, 32>(a, n, stage, bad, early, stream);
    const size_t units = n * (size_t)(a.n_heads + 2 * a.n_kv_heads);
    return kvd_launch_early(early, finish_any<T>, dim3((unsigned)ceil_div(units * 32, THREADS)),
                            THREADS, 0, stream, a, n, stage, bad);
}

/* Writes K and V of latent attention, and the dimensions of Q that RoPE rotates. One block handles
 * one token. */
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

extern "C" cudaError_t kvd_gpu_qkv_finish(const kvd_gpu_qkv *a, size_t n, unsigned stage,
                                          kvd_gpu_bad *bad, cudaStream_t stream)
{
    kvd_gpu_qkv rest = *a;
    int major = 0;
    cudaError_t e = kvd_compute_capability(&major);
    if (e == cudaSuccess && n && a->factor) {
        e = kvd_launch_early(major >= 9,
                             a->type == KVD_F32 ? whole_factors<f32> : whole_factors<bf16>,
                             dim3((unsigned)n, 2), THREADS, 0, stream, *a);
        rest.began = NULL;
    }
    if (e != cudaSuccess || n == 0)
        return e;
    return a->type == KVD_F32 ? launch<f32>(rest, n, stage, bad, major >= 9, stream)
                              : launch<bf16>(rest, n, stage, bad, major >= 9, stream);
}

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
