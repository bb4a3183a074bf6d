/* Softmax of attention scores with causal mask, sliding window, softcap and sinks.
 *
 * Each thread writes only scores that it has read itself, so prob may be the array of scores. */
#include "model/pass/cuda/blocks.h"

#include <float.h>

#include "model/pass/cuda/rows.cuh"

namespace
{

enum {
    TEAM = 256,
    WARP_KEYS = 1024,
    BLOCK_KEYS = 8192,
    /* number of vector loads of scores that a thread issues at a time */
    CHUNK = 4
};

struct softmax_args {
    const float *scores;
    void *prob;
    size_t ld;
    /* n_rows: number of queries of all heads and sequences. rows: number of queries of one head of
     * one sequence. first: index of the last key that the first query sees. window: number of keys
     * that a query sees, or 0 for all. */
    uint32_t n_rows, rows, first, n_keys, window;
    float scale, scale_log2; /* scale times log2(e) */
    /* a score is softcap * tanh(inner * product) for the product q . k; inner is scale / softcap */
    float softcap, inner;
    const float *sinks;
    uint32_t first_head, n_heads;
};

/* index of a query's first score, and the keys k that the query sees: from <= k < to */
struct row_place {
    size_t at;
    uint32_t from, to;
};

__device__ __forceinline__ row_place place_of(const softmax_args &a, uint32_t row)
{
    row_place r;
    r.at = row * a.ld;
    r.to = min(a.first + row % a.rows + 1, a.n_keys);
    r.from = a.window && r.to > a.window ? r.to - a.window : 0;
    return r;
}

/* Returns exp(scale (x - top)) with relative error 2^-22; 0 below 2^-126. */
__device__ __forceinline__ float exponential(const softmax_args &a, float x, float top)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"((x - top) * a.scale_log2));
    return y;
}

template <int N> __device__ __forceinline__ bool inside(const row_place &r, uint32_t j)
{
    return j >= r.from && j + N <= r.to;
}

__device__ __forceinline__ bool seen(const row_place &r, uint32_t j)
{
    return j >= r.from && j < r.to;
}

/* Loads N scores and applies the softcap. Scores of keys that the query does not see are arbitrary
 * numbers. */
template <bool CAPPED, int N>
__device__ __forceinline__ void scores_at(const softmax_args &a, const row_place &r, uint32_t j,
                                          float (&x)[N])
{
    if (j + N > r.from && j < r.to) {
        load<f32, N>(a.scores, r.at + j, x);
        if (CAPPED)
#pragma unroll
            for (int i = 0; i < N; i++)
                x[i] = a.softcap * tanhf(x[i] * a.inner);
    }
}

/* Returns exp(sink - top * scale), or 0 if there are no sinks. */
__device__ __forceinline__ float sink_term(const softmax_args &a, uint32_t row, float top)
{
    return a.sinks ? expf(a.sinks[(a.first_head + row / a.rows) % a.n_heads] - top * a.scale)
                   : 0.0f;
}

template <int N> __device__ __forceinline__ void hide(const row_place &r, uint32_t j, float (&x)[N])
{
    if (inside<N>(r, j))
        return;
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = seen(r, j + i) ? x[i] : -INFINITY;
}

template <class T, int N>
__device__ __forceinline__ void put(const softmax_args &a, const row_place &r, uint32_t j,
                                    float (&p)[N])
{
    if (!inside<N>(r, j))
#pragma unroll
        for (int i = 0; i < N; i++)
            /* Gives 0 to keys that the query does not see. */
            p[i] = seen(r, j + i) ? p[i] : 0.0f;
    if (j + N <= a.n_keys) {
        store<T, N>(a.prob, r.at + j, p);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (j + i < a.n_keys) {
            const float one[1] = {p[i]};
            store<T, 1>(a.prob, r.at + j + i, one);
        }
}

__device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int step = 16; step; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

template <int THREADS> __device__ __forceinline__ float team_max(float x, float *part)
{
    x = warp_max(x);
    if (THREADS == 32)
        return x;
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_max(part[threadIdx.x % (THREADS / 32)]);
}

template <int THREADS> __device__ __forceinline__ float team_sum(float x, float *part)
{
    return THREADS == 32 ? warp_sum(x) : block_sum(x, part);
}

/* Computes the softmax of a query's scores if they fit into the registers of a warp or block. */
template <class T, bool CAPPED, int THREADS, int PIECES>
__global__ void __launch_bounds__(TEAM) softmax_kept(const softmax_args a)
{
    __shared__ float tops[32], sums[32];
    const uint32_t row = blockIdx.x * (TEAM / THREADS) + threadIdx.x / THREADS;
    if (row >= a.n_rows)
        /* All threads of a row return here together, so that none misses a later barrier. */
        return;
    const row_place r = place_of(a, row);
    const uint32_t first = threadIdx.x % THREADS * 4;
    float x[PIECES][4], top = -FLT_MAX, sum = 0;
#pragma unroll
    for (int p = 0; p < PIECES; p++)
        scores_at<CAPPED, 4>(a, r, first + p * THREADS * 4, x[p]);
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        hide<4>(r, first + p * THREADS * 4, x[p]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            top = fmaxf(top, x[p][i]);
    }
    top = team_max<THREADS>(top, tops);
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        float s = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[p][i] = exponential(a, x[p][i], top);
            s += x[p][i];
        }
        sum += s;
    }
    const float inverse = 1.0f / (team_sum<THREADS>(sum, sums) + sink_term(a, row, top));
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const uint32_t j = first + p * THREADS * 4;
        if (j >= a.n_keys)
            continue;
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[p][i] *= inverse;
        put<T, 4>(a, r, j, x[p]);
    }
}

/* Combines the largest scores and the sums of exponentials of two parts of a query's scores. */
__device__ __forceinline__ void join(float &top, float &sum, float other_top, float other_sum,
                                     float scale)
{
    const float t = fmaxf(top, other_top);
    sum = sum * expf((top - t) * scale) + other_sum * expf((other_top - t) * scale);
    top = t;
}

template <class T, bool CAPPED, int N>
__global__ void __launch_bounds__(TEAM) softmax_long(const softmax_args a)
{
    __shared__ float tops[TEAM / 32], sums[TEAM / 32];
    const row_place r = place_of(a, blockIdx.x);
    const uint32_t first = threadIdx.x * N, step = TEAM * N;
    float top = -FLT_MAX, sum = 0;
    for (uint32_t j = r.from / step * step + first; j < r.to; j += CHUNK * step) {
        float x[CHUNK][N], t = top, s = 0;
#pragma unroll
        for (int p = 0; p < CHUNK; p++)
            scores_at<CAPPED, N>(a, r, j + p * step, x[p]);
#pragma unroll
        for (int p = 0; p < CHUNK; p++) {
            hide<N>(r, j + p * step, x[p]);
#pragma unroll
            for (int i = 0; i < N; i++)
                t = fmaxf(t, x[p][i]);
        }
#pragma unroll
        for (int p = 0; p < CHUNK; p++)
#pragma unroll
            for (int i = 0; i < N; i++)
                s += exponential(a, x[p][i], t);
        join(top, sum, t, s, a.scale);
    }
#pragma unroll
    for (int lanes = 16; lanes; lanes /= 2)
        join(top, sum, __shfl_xor_sync(0xffffffffu, top, lanes),
             __shfl_xor_sync(0xffffffffu, sum, lanes), a.scale);
    if (threadIdx.x % 32 == 0) {
        tops[threadIdx.x / 32] = top;
        sums[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    top = tops[0];
    sum = sums[0];
    for (int w = 1; w < TEAM / 32; w++)
        join(top, sum, tops[w], sums[w], a.scale);
    const float inverse = 1.0f / (sum + sink_term(a, blockIdx.x, top));
    for (uint32_t j = first; j < a.n_keys; j += step) {
        float x[N];
        scores_at<CAPPED, N>(a, r, j, x);
        hide<N>(r, j, x);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = exponential(a, x[i], top) * inverse;
        put<T, N>(a, r, j, x);
    }
}

template <class T, bool CAPPED> cudaError_t launch(const softmax_args &a, cudaStream_t stream)
{
    const unsigned by_warp = (unsigned)ceil_div(a.n_rows, TEAM / 32), by_block = (unsigned)a.n_rows;
    if (a.ld % 4 || !aligned16(a.scores) || !aligned16(a.prob))
        softmax_long<T, CAPPED, 1><<<by_block, TEAM, 0, stream>>>(a);
    else if (a.n_keys <= WARP_KEYS / 4)
        softmax_kept<T, CAPPED, 32, 2><<<by_warp, TEAM, 0, stream>>>(a);
    else if (a.n_keys <= WARP_KEYS / 2)
        softmax_kept<T, CAPPED, 32, 4><<<by_warp, TEAM, 0, stream>>>(a);
    else if (a.n_keys <= WARP_KEYS)
        softmax_kept<T, CAPPED, 32, 8><<<by_warp, TEAM, 0, stream>>>(a);
    else if (a.n_keys <= BLOCK_KEYS / 2)
        softmax_kept<T, CAPPED, TEAM, 4><<<by_block, TEAM, 0, stream>>>(a);
    else if (a.n_keys <= BLOCK_KEYS)
        softmax_kept<T, CAPPED, TEAM, 8><<<by_block, TEAM, 0, stream>>>(a);
    else
        softmax_long<T, CAPPED, 4><<<by_block, TEAM, 0, stream>>>(a);
    return cudaGetLastError();
}

template <class T> cudaError_t choose_cap(const softmax_args &a, cudaStream_t stream)
{
    return a.softcap > 0 ? launch<T, true>(a, stream) : launch<T, false>(a, stream);
}

} // namespace

extern "C" cudaError_t kvd_gpu_softmax(kvd_dtype type, float *products, size_t units, size_t rows,
                                       size_t ld, size_t first, size_t n_keys, size_t window,
                                       const kvd_gpu_scores *scores, void *prob,
                                       cudaStream_t stream)
{
    if (units == 0 || rows == 0)
        return cudaSuccess;
    const bool capped = scores->softcap > 0;
    const float scale = capped ? 1.0f : scores->scale;
    const softmax_args a = {products,
                            prob,
                            ld,
                            (uint32_t)(units * rows),
                            (uint32_t)rows,
                            (uint32_t)first,
                            (uint32_t)n_keys,
                            (uint32_t)window,
                            scale,
                            scale * 1.44269504f,
                            scores->softcap,
                            capped ? scores->scale / scores->softcap : 0.0f,
                            scores->sinks,
                            scores->sinks ? (uint32_t)(scores->first % scores->n_heads) : 0,
                            (uint32_t)scores->n_heads};
    return type == KVD_F32 ? choose_cap<f32>(a, stream) : choose_cap<bf16>(a, stream);
}
