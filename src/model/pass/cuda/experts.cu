/*
 * Kernels for routed experts. One thread chooses the experts of a token; with groups of experts,
 * one warp does. Sums and comparisons are made in the same order as on the CPU. One block lists the
 * tokens of an expert.
 */
#include "model/pass/cuda/blocks.h"

#include "model/pass/cuda/rows.cuh"
#include "model/pass/routing.h"

namespace
{

enum { ROUTE_THREADS = 64, LIST_THREADS = 512, ROW_THREADS = 128 };

__global__ void __launch_bounds__(ROUTE_THREADS) route_kernel(const kvd_gpu_routes r)
{
    const size_t token = (size_t)blockIdx.x * ROUTE_THREADS + threadIdx.x, experts = r.n_experts;
    if (token >= r.n)
        return;
    float *const logit = r.logit + token * experts, *const factor = r.factor + token * r.n_chosen;
    uint32_t *const expert = r.expert + token * r.n_chosen;
    float top = -INFINITY;
    for (size_t x = 0; x < experts; x++) {
        if (r.bias)
            logit[x] += r.bias[x];
        top = logit[x] > top ? logit[x] : top;
    }
    double sum = 0, of_chosen = 0;
    for (size_t x = 0; x < experts && !r.add_up; x++)
        sum += exp((double)logit[x] - (double)top);
    size_t last = experts;
    for (size_t j = 0; j < r.n_chosen; j++) {
        const size_t best = kvd_route_next(logit, experts, last);
        last = best < experts ? best : 0;
        expert[j] = (uint32_t)last;
        /* If fewer than n_chosen logits are not NaN, the remaining factors are NaN. */
        factor[j] = best < experts ? 0.0f : NAN;
        of_chosen += best < experts ? exp((double)logit[best] - (double)top) : (double)NAN;
    }
    for (size_t j = 0; j < r.n_chosen; j++)
        factor[j] +=
            (float)(exp((double)logit[expert[j]] - (double)top) / (r.add_up ? of_chosen : sum));
}

/* An expert and the score by which it is ranked; `expert` is n_experts if there is none. */
struct candidate {
    float value;
    uint32_t expert;
};

__device__ __forceinline__ candidate better(candidate a, candidate b, uint32_t experts)
{
    const bool second = b.expert < experts && (a.expert == experts || b.value > a.value ||
                                               (b.value == a.value && b.expert < a.expert));
    return second ? b : a;
}

__device__ __forceinline__ candidate best_of_warp(candidate mine, uint32_t experts)
{
#pragma unroll
    for (int step = 16; step; step /= 2) {
        const candidate other = {__shfl_xor_sync(0xffffffffu, mine.value, step),
                                 __shfl_xor_sync(0xffffffffu, mine.expert, step)};
        mine = better(mine, other, experts);
    }
    return mine;
}

__device__ __forceinline__ void make_scores(const kvd_gpu_routes &r, float *score, uint32_t lane)
{
    const uint32_t experts = (uint32_t)r.n_experts;
    float top = -INFINITY;
    double sum = 0;
    for (uint32_t x = lane; x < experts && !r.sigmoid; x += 32)
        top = fmaxf(top, score[x]);
#pragma unroll
    for (int step = 16; step; step /= 2)
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    for (uint32_t x = lane; x < experts && !r.sigmoid; x += 32)
        sum += exp((double)score[x] - (double)top);
    sum = warp_sum(sum);
    for (uint32_t x = lane; x < experts; x += 32)
        score[x] = (float)(r.sigmoid ? 1 / (1 + exp(-(double)score[x]))
                                     : exp((double)score[x] - (double)top) / sum);
    __syncwarp();
}

/*
 * Chooses experts of the best groups. A NaN is never chosen. If fewer than n_chosen values are not
 * NaN, the factors are NaN.
 */
__global__ void __launch_bounds__(32) route_groups_kernel(const kvd_gpu_routes r)
{
    __shared__ float of_group[KVD_CONFIG_EXPERTS];
    __shared__ bool stays[KVD_CONFIG_EXPERTS];
    const size_t token = blockIdx.x;
    const uint32_t lane = threadIdx.x, experts = (uint32_t)r.n_experts, groups = (uint32_t)r.groups,
                   each = experts / groups;
    float *const score = r.logit + token * experts, *const factor = r.factor + token * r.n_chosen;
    uint32_t *const expert = r.expert + token * r.n_chosen;
    make_scores(r, score, lane);
    for (uint32_t g = lane; g < groups; g += 32) {
        float first = -INFINITY, second = -INFINITY;
        for (uint32_t x = g * each; x < (g + 1) * each; x++) {
            const float value = r.bias_choice ? score[x] + r.bias_choice[x] : score[x];
            if (value > first) {
                second = first;
                first = value;
            } else if (value > second) {
                second = value;
            }
        }
        of_group[g] = r.sigmoid ? first + second : first;
    }
    __syncwarp();
    for (uint32_t g = lane; g < groups; g += 32) {
        uint32_t before = 0;
        for (uint32_t i = 0; i < groups; i++)
            before += of_group[i] > of_group[g] || (of_group[i] == of_group[g] && i < g);
        stays[g] = of_group[g] > -INFINITY && before < r.groups_chosen;
    }
    __syncwarp();
    candidate last = {INFINITY, experts};
    double sum = 0;
    for (size_t j = 0; j < r.n_chosen; j++) {
        candidate mine = {-INFINITY, experts};
        for (uint32_t x = lane; x < experts; x += 32) {
            const float value = r.bias_choice ? score[x] + r.bias_choice[x] : score[x];
            const bool follows =
                j == 0 || value < last.value || (value == last.value && x > last.expert);
            if (stays[x / each] && follows && value > -INFINITY &&
                (mine.expert == experts || value > mine.value))
                mine = {value, x};
        }
        last = best_of_warp(mine, experts);
        const float chosen = last.expert < experts ? score[last.expert] : NAN;
        sum += (double)chosen;
        if (lane == 0) {
            expert[j] = last.expert < experts ? last.expert : 0;
            factor[j] = chosen;
        }
    }
    /* 1e-20 makes a sum of zeros give factors of 0 instead of 0 / 0, as on the CPU. */
    for (size_t j = 0; j < r.n_chosen && lane == 0; j++)
        factor[j] = (float)((double)factor[j] / (r.add_up ? sum + 1e-20 : 1) * r.scale);
}

__global__ void __launch_bounds__(LIST_THREADS) count_kernel(const kvd_gpu_routes r)
{
    __shared__ uint32_t part[32];
    const size_t total = r.n * r.n_chosen;
    uint32_t mine = 0;
    for (size_t i = threadIdx.x; i < total; i += LIST_THREADS)
        mine += r.expert[i] == blockIdx.x;
    mine = block_sum(mine, part);
    if (threadIdx.x == 0)
        r.count[blockIdx.x] = mine;
}

__global__ void __launch_bounds__(LIST_THREADS) list_kernel(const kvd_gpu_routes r)
{
    enum { WARPS = LIST_THREADS / 32 };
    __shared__ uint32_t part[32], found[WARPS];
    const size_t total = r.n * r.n_chosen;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t to = 0;
    for (uint32_t x = threadIdx.x; x < blockIdx.x; x += LIST_THREADS)
        to += r.count[x];
    to = block_sum(to, part);
    for (size_t first = 0; first < total; first += LIST_THREADS) {
        const size_t i = first + threadIdx.x;
        const bool mine = i < total && r.expert[i] == blockIdx.x;
        const uint32_t which = __ballot_sync(0xffffffffu, mine);
        if (lane == 0)
            found[warp] = (uint32_t)__popc(which);
        __syncthreads();
        uint32_t before = 0, all = 0;
        for (uint32_t k = 0; k < WARPS; k++) {
            before += k < warp ? found[k] : 0;
            all += found[k];
        }
        if (mine) {
            const uint32_t at = to + before + (uint32_t)__popc(which & ((1u << lane) - 1));
            r.row[at] = (uint32_t)(i / r.n_chosen);
            r.weight[at] = r.factor[i];
        }
        to += all;
        __syncthreads();
    }
}

template <class V>
__global__ void __launch_bounds__(ROW_THREADS)
    gather_kernel(const V *x, const uint32_t *row, size_t pieces, V *y)
{
    const size_t from = (size_t)row[blockIdx.x] * pieces, to = (size_t)blockIdx.x * pieces;
    for (size_t j = threadIdx.x; j < pieces; j += ROW_THREADS)
        y[to + j] = x[from + j];
}

__global__ void __launch_bounds__(ROW_THREADS)
    scatter_kernel(const float *y, const float *bias, const uint32_t *row, const float *weight,
                   size_t d, float *x)
{
    const size_t i = blockIdx.x, from = i * d, to = (row ? (size_t)row[i] : i) * d;
    const float p = weight ? weight[i] : 1.0f;
    for (size_t j = threadIdx.x; j < d; j += ROW_THREADS)
        x[to + j] += p * (bias ? y[from + j] + bias[j] : y[from + j]);
}

__global__ void __launch_bounds__(ROW_THREADS)
    gate_kernel(const float *x, const float *w, size_t n, size_t d, float *factor)
{
    const size_t i = ((size_t)blockIdx.x * ROW_THREADS + threadIdx.x) / 32;
    if (i >= n)
        return;
    double z = 0;
    for (size_t j = threadIdx.x % 32; j < d; j += 32)
        z += (double)x[i * d + j] * (double)w[j];
    z = warp_sum(z);
    if (threadIdx.x % 32 == 0)
        factor[i] = (float)(1 / (1 + exp(-z)));
}

template <class T>
__global__ void __launch_bounds__(ROW_THREADS)
    clamped_kernel(const void *in, const float *bias, size_t ffn, float alpha, float limit, void *y)
{
    const size_t row = blockIdx.x;
    for (size_t j = threadIdx.x; j < ffn; j += ROW_THREADS) {
        float gate[1], up[1];
        load<T, 1>(in, row * 2 * ffn + j, gate);
        load<T, 1>(in, row * 2 * ffn + ffn + j, up);
        if (bias) {
            gate[0] += bias[j];
            up[0] += bias[ffn + j];
        }
        const float g = gate[0] > limit ? limit : gate[0];
        float u = up[0] > limit ? limit : up[0];
        u = u < -limit ? -limit : u;
        const float result[1] = {g / (1.0f + expf(-alpha * g)) * (1.0f + u)};
        store<T, 1>(y, row * ffn + j, result);
    }
}

} // namespace

extern "C" cudaError_t kvd_gpu_route(const kvd_gpu_routes *r, cudaStream_t stream)
{
    if (r->n == 0)
        return cudaSuccess;
    const unsigned experts = (unsigned)r->n_experts;
    if (r->groups)
        route_groups_kernel<<<(unsigned)r->n, 32, 0, stream>>>(*r);
    else
        route_kernel<<<(unsigned)ceil_div(r->n, ROUTE_THREADS), ROUTE_THREADS, 0, stream>>>(*r);
    count_kernel<<<experts, LIST_THREADS, 0, stream>>>(*r);
    list_kernel<<<experts, LIST_THREADS, 0, stream>>>(*r);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_gpu_gather(kvd_dtype type, const void *x, const uint32_t *row, size_t n,
                                      size_t d, void *y, cudaStream_t stream)
{
    const size_t bytes = d * (type == KVD_F32 ? 4 : 2);
    if (n == 0)
        return cudaSuccess;
    if (bytes % 16 == 0 && aligned16(x) && aligned16(y))
        gather_kernel<<<(unsigned)n, ROW_THREADS, 0, stream>>>(static_cast<const uint4 *>(x), row,
                                                               bytes / 16, static_cast<uint4 *>(y));
    else
        gather_kernel<<<(unsigned)n, ROW_THREADS, 0, stream>>>(
            static_cast<const uint16_t *>(x), row, bytes / 2, static_cast<uint16_t *>(y));
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_gpu_scatter(const float *y, const float *bias, const uint32_t *row,
                                       const float *weight, size_t n, size_t d, float *x,
                                       cudaStream_t stream)
{
    if (n == 0)
        return cudaSuccess;
    scatter_kernel<<<(unsigned)n, ROW_THREADS, 0, stream>>>(y, bias, row, weight, d, x);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_gpu_gate(const float *x, const float *w, size_t n, size_t d,
                                    float *factor, cudaStream_t stream)
{
    if (n == 0)
        return cudaSuccess;
    gate_kernel<<<(unsigned)ceil_div(n * 32, ROW_THREADS), ROW_THREADS, 0, stream>>>(x, w, n, d,
                                                                                     factor);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_gpu_swiglu_clamped(kvd_dtype type, const void *in, const float *bias,
                                              size_t n, size_t ffn, float alpha, float limit,
                                              void *y, cudaStream_t stream)
{
    if (n == 0)
        return cudaSuccess;
    if (type == KVD_F32)
        clamped_kernel<f32>
            <<<(unsigned)n, ROW_THREADS, 0, stream>>>(in, bias, ffn, alpha, limit, y);
    else
        clamped_kernel<bf16>
            <<<(unsigned)n, ROW_THREADS, 0, stream>>>(in, bias, ffn, alpha, limit, y);
    return cudaGetLastError();
}
