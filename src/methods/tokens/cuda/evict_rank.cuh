/* Device functions that rank a prompt's tokens. All THREADS threads of a CTA must call them. */
#ifndef KVD_METHODS_TOKENS_CUDA_EVICT_RANK_CUH
#define KVD_METHODS_TOKENS_CUDA_EVICT_RANK_CUH

#include "methods/tokens/cuda/evict.h"

/* Returns the number of tokens that stay of a prompt of n tokens. */
static __device__ __forceinline__ int evict_kept_of(const kvd_evict_budget &b, int n)
{
    const int newest = min(n, b.keep_new);
    return newest + min(n - newest, b.keep_old);
}

/* Returns a sort key that rises with the score and, among equal scores, with the token index t. */
static __device__ __forceinline__ unsigned long long key_of(float score, int t)
{
    const uint32_t bits = __float_as_uint(score), rising = bits >> 31 ? ~bits : bits | 1u << 31;
    return (unsigned long long)rising << 32 | (unsigned)t;
}

template <int THREADS>
static __device__ void sum_heads(const kvd_evict_prompts_args &a, int from, int to, size_t at,
                                 int n, float *sum)
{
    for (int t = (int)threadIdx.x; t < n; t += THREADS) {
        float s = 0;
        for (int h = from; h < to; h++)
            s += a.mass[(size_t)h * (size_t)a.n_q8 + at + (size_t)t];
        sum[t] = s;
    }
    __syncthreads();
}

/* Writes to to[t] the sum of the scores of the `width` tokens centred on token t. */
template <int THREADS> static __device__ void smooth(const float *x, int n, int width, float *to)
{
    for (int t = (int)threadIdx.x; t < n; t += THREADS) {
        float s = 0;
        for (int i = max(0, t - width / 2); i < min(n, t + width / 2 + 1); i++)
            s += x[i];
        to[t] = s;
    }
    __syncthreads();
}

/* Returns the sum of x over all threads of the CTA, in every thread. */
template <int THREADS> static __device__ double sum_over(double x)
{
    __shared__ double part[THREADS];
    __syncthreads();
    part[threadIdx.x] = x;
    for (int step = THREADS / 2; step > 0; step /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < step)
            part[threadIdx.x] += part[threadIdx.x + (unsigned)step];
    }
    __syncthreads();
    return part[0];
}

#endif
