/* Computes losses and KL divergences of next-token predictions from logits x. A thread block
 * handles one prediction. Each thread sums e^{x - top}, where `top` is the largest logit that this
 * thread has read. */
#include "evaluate/cuda/quality_rows.h"

namespace
{

enum { THREADS = 256, TILE = 8 };

struct part {
    float top;     /* largest logit so far, -inf at first */
    uint32_t best; /* first column with the largest logit */
    /* first column (token) whose logit is not finite, or the vocabulary size if all are finite */
    uint32_t bad;
    double sum; /* sum of e^{x - top} over logits x */
    /* sum of e^{x - top} (x - y) for the KL divergence: x is the uncompressed model's logit, `top`
     * the largest x, y the compressed model's logit */
    double diff;
};

/* Returns e^{value - top}, or 0 if that is below e^-700. The polynomial is twice as fast as
 * exp(). */
__device__ __forceinline__ double weight(float value, float top)
{
    /* Rounds to an integer by adding and subtracting 1.5 * 2^52. */
    const double x = (double)value - (double)top, round_to_int = 6755399441055744.0;
    const double t = fma(x, 1.4426950408889634, round_to_int), n = t - round_to_int;
    const double r = fma(n, -0x1.a39ef35793c76p-33, fma(n, -0x1.62e42fee00000p-1, x));
    double p = 1.0 / 39916800;
    p = fma(p, r, 1.0 / 3628800);
    p = fma(p, r, 1.0 / 362880);
    p = fma(p, r, 1.0 / 40320);
    p = fma(p, r, 1.0 / 5040);
    p = fma(p, r, 1.0 / 720);
    p = fma(p, r, 1.0 / 120);
    p = fma(p, r, 1.0 / 24);
    p = fma(p, r, 1.0 / 6);
    p = fma(p, r, 0.5);
    p = fma(p, r, 1.0);
    p = fma(p, r, 1.0);
    const int high = __double2hiint(p) + (__double2loint(t) << 20);
    return x > -700 ? __hiloint2double(high, __double2loint(p)) : 0;
}

__device__ __forceinline__ bool is_finite(float x)
{
    return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

/* Adds N logits x to the softmax statistics p; x[i] belongs to token `column` + i * THREADS. If
 * DIFF, also adds e^{x - top} (x - y) to p.diff, where y are the logits of the compressed model. */
template <bool DIFF, int N>
__device__ __forceinline__ void take(part &p, const float (&x)[N], const float (&y)[N],
                                     uint32_t column)
{
    float top = p.top;
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (x[i] > top) {
            top = x[i];
            p.best = column + (uint32_t)(i * THREADS);
        }
        if (!is_finite(x[i]))
            p.bad = min(p.bad, column + (uint32_t)(i * THREADS));
    }
    if (top > p.top) {
        /* factor that rescales earlier sums of e^{x - top}; 0 at first, because p.top is then
         * -inf */
        const double scale = weight(p.top, top);
        p.sum *= scale;
        if (DIFF)
            p.diff *= scale;
        p.top = top;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        const double w = weight(x[i], top);
        p.sum += w;
        if (DIFF)
            p.diff += w * ((double)x[i] - (double)y[i]);
    }
}

template <bool DIFF> __device__ __forceinline__ void merge(part &p, const part &q)
{
    const float top = fmaxf(p.top, q.top);
    const double mine = p.top == top ? 1 : weight(p.top, top),
                 its = q.top == top ? 1 : weight(q.top, top);
    p.best = q.top > p.top || (q.top == p.top && q.best < p.best) ? q.best : p.best;
    p.bad = min(p.bad, q.bad);
    p.sum = p.sum * mine + q.sum * its;
    if (DIFF)
        p.diff = p.diff * mine + q.diff * its;
    p.top = top;
}

/* Merges the statistics `p` of all threads of the block. Thread 0 receives the result. */
template <bool DIFF> __device__ __forceinline__ void gather(part &p)
{
    __shared__ part of_warp[THREADS / 32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int step = 16; step > 0; step /= 2) {
        part q;
        q.top = __shfl_down_sync(~0u, p.top, step);
        q.best = __shfl_down_sync(~0u, p.best, step);
        q.bad = __shfl_down_sync(~0u, p.bad, step);
        q.sum = __shfl_down_sync(~0u, p.sum, step);
        q.diff = DIFF ? __shfl_down_sync(~0u, p.diff, step) : 0;
        merge<DIFF>(p, q);
    }
    /* Waits, because thread 0 may still read the array of_warp in the previous call of this
     * function. */
    __syncthreads();
    if (lane == 0)
        of_warp[warp] = p;
    __syncthreads();
    for (int w = 1; threadIdx.x == 0 && w < THREADS / 32; w++)
        merge<DIFF>(p, of_warp[w]);
}

template <bool REFERENCE>
__global__ void __launch_bounds__(THREADS, 4)
    quality_rows(const float *__restrict__ logits, const float *__restrict__ reference,
                 const uint32_t *__restrict__ target, uint32_t vocab, kvd_quality_row *row)
{
    const float *const x = logits + (size_t)blockIdx.x * vocab;
    const float *const u = REFERENCE ? reference + (size_t)blockIdx.x * vocab : x;
    const part nothing = {-INFINITY, vocab, vocab, 0, 0};
    part mine = nothing, ref = nothing;
    uint32_t j = threadIdx.x;
    for (; j + (TILE - 1) * THREADS < vocab; j += TILE * THREADS) {
        float a[TILE], b[TILE];
#pragma unroll
        for (int i = 0; i < TILE; i++) {
            a[i] = __ldcs(x + j + i * THREADS);
            b[i] = REFERENCE ? __ldg(u + j + i * THREADS) : a[i];
        }
        take<false>(mine, a, b, j);
        if (REFERENCE)
            take<true>(ref, b, a, j);
    }
    for (; j < vocab; j += THREADS) {
        const float a[1] = {x[j]}, b[1] = {u[j]};
        take<false>(mine, a, b, j);
        if (REFERENCE)
            take<true>(ref, b, a, j);
    }
    gather<false>(mine);
    if (REFERENCE)
        gather<true>(ref);
    if (threadIdx.x == 0) {
        const double lse = (double)mine.top + log(mine.sum),
                     ref_lse = (double)ref.top + log(ref.sum);
        kvd_quality_row out;
        out.nll = lse - (double)x[target[blockIdx.x]];
        /* KL divergence of softmax(x) from p = softmax(u): E_p[u - x] - lse(u) + lse(x), where lse
         * is the logarithm of the sum of exponentials. */
        out.kl = REFERENCE ? ref.diff / ref.sum - ref_lse + lse : 0;
        out.ref_nll = REFERENCE ? ref_lse - (double)u[target[blockIdx.x]] : out.nll;
        out.best = mine.best;
        out.ref_best = ref.best;
        out.bad = mine.bad;
        out.ref_bad = ref.bad;
        row[blockIdx.x] = out;
    }
}

} // namespace

cudaError_t kvd_quality_rows(const float *logits, const float *reference, const uint32_t *target,
                             size_t n, uint32_t vocab, kvd_quality_row *row, cudaStream_t stream)
{
    if (n == 0)
        return cudaSuccess;
    if (n > 0x7fffffff || vocab == 0 || vocab > 0x7fffffff)
        return cudaErrorInvalidValue;
    if (reference)
        quality_rows<true>
            <<<(unsigned)n, THREADS, 0, stream>>>(logits, reference, target, vocab, row);
    else
        quality_rows<false>
            <<<(unsigned)n, THREADS, 0, stream>>>(logits, reference, target, vocab, row);
    return cudaGetLastError();
}
