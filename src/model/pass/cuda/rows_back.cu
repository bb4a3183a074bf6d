/* Gradients of the softmax of attention scores and of logits.
 *
 * A warp handles one query's scores of up to 1024 keys; a block handles scores of more keys. */
#include "model/pass/cuda/blocks_back.h"

#include "model/pass/cuda/rows.cuh"

namespace
{

enum { THREADS = 256, WARP_KEYS = 1024, SEGMENTS = 1024 };

struct scores_args {
    const float *prob, *d_prob;
    size_t n_rows, ld, n_keys;
    float scale;
    void *d_scores, *prob_out;
};

template <class T, int TEAM>
__global__ void __launch_bounds__(THREADS) scores_kernel(const scores_args a)
{
    __shared__ double part[32];
    const size_t row = (size_t)blockIdx.x * (THREADS / TEAM) + threadIdx.x / TEAM, at = row * a.ld;
    if (row >= a.n_rows)
        /* All threads of a row return here together, so that none misses a later barrier. */
        return;
    double sum = 0;
    for (size_t j = threadIdx.x % TEAM; j < a.n_keys; j += TEAM)
        sum += (double)a.prob[at + j] * (double)a.d_prob[at + j];
    const float mean = (float)(TEAM == 32 ? warp_sum(sum) : block_sum(sum, part));
    for (size_t j = threadIdx.x % TEAM; j < a.n_keys; j += TEAM) {
        const float p[1] = {a.prob[at + j]}, d[1] = {p[0] * (a.d_prob[at + j] - mean) * a.scale};
        store<T, 1>(a.d_scores, at + j, d);
        if (sizeof(typename T::raw) < sizeof(float))
            store<T, 1>(a.prob_out, at + j, p);
    }
}

template <class T> cudaError_t launch_scores(const scores_args &a, cudaStream_t stream)
{
    if (a.n_keys <= WARP_KEYS)
        scores_kernel<T, 32><<<(unsigned)ceil_div(a.n_rows, THREADS / 32), THREADS, 0, stream>>>(a);
    else
        scores_kernel<T, THREADS><<<(unsigned)a.n_rows, THREADS, 0, stream>>>(a);
    return cudaGetLastError();
}

struct logits_args {
    const float *logits;
    size_t vocab, segment;
    uint32_t *target;
    const double *u;
    void *d_logits;
    double *loss;
};

__device__ __forceinline__ float block_max(float x, float *part)
{
#pragma unroll
    for (int step = 16; step; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    for (int w = 0; w < THREADS / 32; w++)
        x = fmaxf(x, part[w]);
    return x;
}

/* Returns the first token at which the cumulative sum of exp(logit - top) exceeds `goal`. */
__device__ uint32_t token_at(const float *row, const logits_args &a, const double *sums, float top,
                             double goal)
{
    double up_to = 0;
    size_t s = 0, j;
    for (; (s + 1) * a.segment < a.vocab && !(up_to + sums[s] > goal); s++)
        up_to += sums[s];
    for (j = s * a.segment; j + 1 < a.vocab; j++) {
        up_to += exp((double)row[j] - (double)top);
        if (up_to > goal)
            break;
    }
    return (uint32_t)j;
}

template <class T> __global__ void __launch_bounds__(THREADS) logits_kernel(const logits_args a)
{
    __shared__ float tops[THREADS / 32];
    __shared__ double sums[SEGMENTS], total, of_target;
    __shared__ uint32_t chosen;
    const size_t at = blockIdx.x * a.vocab;
    const float *const row = a.logits + at;
    const uint32_t wanted = a.target[blockIdx.x];
    if (wanted == UINT32_MAX) {
        const float nothing[1] = {0};
        for (size_t j = threadIdx.x; j < a.vocab; j += THREADS)
            store<T, 1>(a.d_logits, at + j, nothing);
        if (threadIdx.x == 0)
            a.loss[blockIdx.x] = 0;
        return;
    }
    float top = -INFINITY;
    for (size_t j = threadIdx.x; j < a.vocab; j += THREADS)
        top = fmaxf(top, row[j]);
    top = block_max(top, tops);
    for (size_t s = threadIdx.x / 32; s * a.segment < a.vocab; s += THREADS / 32) {
        const size_t end = min((s + 1) * a.segment, a.vocab);
        double sum = 0;
        for (size_t j = s * a.segment + threadIdx.x % 32; j < end; j += 32)
            sum += exp((double)row[j] - (double)top);
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0)
            sums[s] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double sum = 0;
        for (size_t s = 0; s * a.segment < a.vocab; s++)
            sum += sums[s];
        const uint32_t token = a.u ? token_at(row, a, sums, top, a.u[blockIdx.x] * sum) : wanted;
        const double loss = log(sum) + (double)top - (double)row[token];
        a.target[blockIdx.x] = token;
        a.loss[blockIdx.x] = loss;
        total = sum;
        of_target = expm1(-loss); /* p(target) - 1 without cancellation */
        chosen = token;
    }
    __syncthreads();
    const float inverse = (float)(1 / total);
    for (size_t j = threadIdx.x; j < a.vocab; j += THREADS) {
        const float p[1] = {j == chosen ? (float)of_target : expf(row[j] - top) * inverse};
        store<T, 1>(a.d_logits, at + j, p);
    }
}

} // namespace

extern "C" cudaError_t kvd_gpu_softmax_back(kvd_dtype type, const float *prob, const float *d_prob,
                                            size_t n_rows, size_t ld, size_t n_keys, float scale,
                                            void *d_scores, void *prob_out, cudaStream_t stream)
{
    if (n_rows == 0)
        return cudaSuccess;
    const scores_args a = {prob, d_prob, n_rows, ld, n_keys, scale, d_scores, prob_out};
    return type == KVD_F32 ? launch_scores<f32>(a, stream) : launch_scores<bf16>(a, stream);
}

extern "C" cudaError_t kvd_gpu_cross_entropy(kvd_dtype type, const float *logits, size_t n,
                                             size_t vocab, uint32_t *target, const double *u,
                                             void *d_logits, double *loss, cudaStream_t stream)
{
    if (n == 0)
        return cudaSuccess;
    const logits_args a = {logits,   vocab, ceil_div(ceil_div(vocab, SEGMENTS), 32) * 32, target, u,
                           d_logits, loss};
    if (type == KVD_F32)
        logits_kernel<f32><<<(unsigned)n, THREADS, 0, stream>>>(a);
    else
        logits_kernel<bf16><<<(unsigned)n, THREADS, 0, stream>>>(a);
    return cudaGetLastError();
}
