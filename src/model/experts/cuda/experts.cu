/* Kernels that choose a token's experts, and compute experts for few tokens.
 *
 * Multiplying the weight matrix W of an expert by up to 32 tokens is bound by reading W. The warps
 * of a CTA take turns at blocks of 64 columns of W. */
#include "kernels/cuda/mma.cuh"
#include "model/experts/cuda/experts.cuh"
#include "model/pass/routing.h"

namespace
{

enum { ROUTE_THREADS = 64, LIST_THREADS = 512, ROW_THREADS = 128 };
enum {
    FEW_WARPS = 8,
    FEW_THREADS = 32 * FEW_WARPS,
    FEW_CTAS = 3, /* CTAs per SM, for which the compiler limits the registers */
    FEW_BLOCKS = KVD_FEW_TOKENS / 8,
    PAIRS = 8, /* (token, expert) pairs that a thread loads together */
    TILE = 16,
    SLAB = 64,
    SUM_PITCH = 9 /* floats per row of partial sums, one of them padding */
};

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
        /* If all experts that are not yet chosen have NaN logits, the routing weight is NaN. */
        factor[j] = best < experts ? 0.0f : NAN;
        of_chosen += best < experts ? exp((double)logit[best] - (double)top) : (double)NAN;
    }
    for (size_t j = 0; j < r.n_chosen; j++)
        factor[j] +=
            (float)(exp((double)logit[expert[j]] - (double)top) / (r.add_up ? of_chosen : sum));
}

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

__device__ __forceinline__ void route_warp(const kvd_gpu_routes &r, size_t token)
{
    const uint32_t lane = threadIdx.x % 32, experts = (uint32_t)r.n_experts;
    float *const logit = r.logit + token * experts, *const factor = r.factor + token * r.n_chosen;
    uint32_t *const expert = r.expert + token * r.n_chosen;
    float top = -INFINITY;
    for (uint32_t x = lane; x < experts; x += 32) {
        if (r.bias)
            logit[x] += r.bias[x];
        top = fmaxf(top, logit[x]);
    }
#pragma unroll
    for (int step = 16; step; step /= 2)
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    double sum = 0;
    for (uint32_t x = lane; x < experts && !r.add_up; x += 32)
        sum += exp((double)logit[x] - (double)top);
    sum = warp_sum(sum);
    candidate last = {INFINITY, experts};
    for (size_t j = 0; j < r.n_chosen; j++) {
        candidate mine = {-INFINITY, experts};
        for (uint32_t x = lane; x < experts; x += 32) {
            const float value = logit[x];
            const bool follows =
                j == 0 || value < last.value || (value == last.value && x > last.expert);
            if (follows && value >= -INFINITY && (mine.expert == experts || value > mine.value))
                mine = {value, x};
        }
        last = best_of_warp(mine, experts);
        /* If all experts that are not yet chosen have NaN logits, the routing weight is NaN. */
        const float value = last.expert < experts ? last.value : NAN;
        if (r.add_up)
            sum += exp((double)value - (double)top);
        if (lane == 0) {
            expert[j] = last.expert < experts ? last.expert : 0;
            factor[j] = value;
        }
    }
    __syncwarp();
    for (size_t j = lane; j < r.n_chosen; j += 32)
        factor[j] = (float)(exp((double)factor[j] - (double)top) / sum);
}

__global__ void __launch_bounds__(32) route_warp_kernel(const kvd_gpu_routes r)
{
    route_warp(r, blockIdx.x);
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

/* Chooses each token's experts. First ranks groups of experts by score, then chooses experts only
 * from the best-ranked groups. */
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
        of_group[g] = r.sigmoid && each > 1 ? first + second : first;
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
    /* Divides routing weights by their sum plus 1e-20, which avoids 0 / 0. */
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

__device__ __forceinline__ float swiglu_clamped(float gate, float up, float alpha, float limit)
{
    const float g = gate > limit ? limit : gate;
    float u = up > limit ? limit : up;
    u = u < -limit ? -limit : u;
    return g / (1.0f + expf(-alpha * g)) * (1.0f + u);
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
        const float result[1] = {swiglu_clamped(gate[0], up[0], alpha, limit)};
        store<T, 1>(y, row * ffn + j, result);
    }
}

/* Loads the expert indices of several (token, expert) pairs at once. */
__device__ __forceinline__ void load_experts(const kvd_gpu_routes &r, uint32_t first,
                                             uint32_t total, uint32_t (&x)[PAIRS])
{
#pragma unroll
    for (uint32_t k = 0; k < PAIRS; k++)
        x[k] = first + k * KVD_FEW_EXPERTS < total ? r.expert[first + k * KVD_FEW_EXPERTS] : 0;
}

/* Sorts (token, expert) pairs by expert. If ROUTE, first chooses the experts of each token. */
template <bool ROUTE>
__global__ void __launch_bounds__(KVD_FEW_EXPERTS)
    few_plan_kernel(const __grid_constant__ kvd_gpu_few_experts a)
{
    __shared__ uint32_t count[KVD_FEW_EXPERTS], next[KVD_FEW_EXPERTS], part[2][32];
    const kvd_gpu_routes &r = a.routes;
    const uint32_t mine = threadIdx.x, experts = (uint32_t)r.n_experts,
                   total = (uint32_t)(r.n * r.n_chosen), most = a.group_tokens;
    follow();
    if (ROUTE && mine / 32 < r.n)
        route_warp(r, mine / 32);
    count[mine] = 0;
    __syncthreads();
    for (uint32_t i = mine; i < total; i += PAIRS * KVD_FEW_EXPERTS) {
        uint32_t x[PAIRS];
        load_experts(r, i, total, x);
#pragma unroll
        for (uint32_t k = 0; k < PAIRS; k++)
            if (i + k * KVD_FEW_EXPERTS < total)
                atomicAdd(&count[x[k]], 1u);
    }
    __syncthreads();
    const uint32_t tokens = count[mine], first = sum_before(tokens, part[0]);
    uint32_t group = sum_before((tokens + most - 1) / most, part[1]);
    next[mine] = first;
    for (uint32_t k = 0; k < tokens; k += most)
        a.group[group++] = {mine, first + k, min(most, tokens - k)};
    if (mine == experts - 1)
        *a.n_groups = group;
    __syncthreads();
    for (uint32_t i = mine; i < total; i += PAIRS * KVD_FEW_EXPERTS) {
        uint32_t x[PAIRS];
        load_experts(r, i, total, x);
#pragma unroll
        for (uint32_t k = 0; k < PAIRS; k++) {
            const uint32_t pair = i + k * KVD_FEW_EXPERTS;
            if (pair < total) {
                const uint32_t at = atomicAdd(&next[x[k]], 1u);
                r.row[at] = pair / (uint32_t)r.n_chosen;
                a.place[pair] = at;
            }
        }
    }
}

/* Loads weights without keeping them in the L1 cache, because they are read only once. */
__device__ __forceinline__ uint4 load_weight(const uint16_t *from)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

/* Two weight rows of an expert that one lane loads. If UP: a row of the gate matrix and a row of
 * the up matrix; otherwise two rows of the down matrix. */
template <bool UP> struct tile_rows {
    const uint16_t *low, *high;

    __device__ __forceinline__ tile_rows(const kvd_gpu_few_experts &a, uint32_t expert,
                                         uint32_t tile)
    {
        const uint32_t lane = threadIdx.x % 32, out = (uint32_t)(UP ? a.ffn : a.d);
        const size_t in = UP ? a.d : a.ffn;
        const uint16_t *const w =
            static_cast<const uint16_t *>(UP ? a.expert[expert].gate_up : a.expert[expert].down) +
            lane % 4 * 8;
        const uint32_t row = tile * (UP ? TILE / 2 : TILE) + lane / 4;
        low = w + min(row, out - 1) * in;
        high = w + (UP ? min(row, out - 1) + out : min(row + 8, out - 1)) * in;
    }

    /* Loads this lane's weights: 16 of row `low` into even elements of w, 16 of row `high` into odd
     * elements. */
    __device__ __forceinline__ void load(uint4 (&w)[4], int slab, int in) const
    {
        const int column = slab * SLAB + (int)(threadIdx.x % 4) * 8;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const bool there = column + half * 32 < in;
            const int at = slab * SLAB + half * 32;
            w[2 * half] = there ? load_weight(low + at) : make_uint4(0, 0, 0, 0);
            w[2 * half + 1] = there ? load_weight(high + at) : make_uint4(0, 0, 0, 0);
        }
    }
};

/* Adds the products of 64 columns of the weight matrix W with n <= 32 tokens to `acc`. */
__device__ __forceinline__ void add_slab(float (&acc)[FEW_BLOCKS][4], const uint4 (&w)[4],
                                         const uint16_t *x, const uint32_t (&first)[FEW_BLOCKS],
                                         int slab, int in, int n)
{
    const int column = slab * SLAB + (int)(threadIdx.x % 4) * 8;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint4 &low = w[2 * half], &high = w[2 * half + 1];
        const uint32_t a0[4] = {low.x, high.x, low.y, high.y},
                       a1[4] = {low.z, high.z, low.w, high.w};
        const bool there = column + half * 32 < in;
#pragma unroll
        for (int b = 0; b < FEW_BLOCKS; b++)
            if (8 * b < n) {
                const uint4 v =
                    there
                        ? __ldg(reinterpret_cast<const uint4 *>(x + first[b] + column + half * 32))
                        : make_uint4(0, 0, 0, 0);
                mma_in_order<true>(acc[b], a0, v.x, v.y);
                mma_in_order<true>(acc[b], a1, v.z, v.w);
            }
    }
}

typedef float few_sums[FEW_WARPS][FEW_BLOCKS][TILE * SUM_PITCH];

/* Returns one element of the product of the weight matrix W and a token: the sum over all warps, in
 * a fixed order. */
__device__ __forceinline__ float few_total(const few_sums &sums, uint32_t token, uint32_t row)
{
    float s = 0;
#pragma unroll
    for (int w = 0; w < FEW_WARPS; w++)
        s += sums[w][token / 8][row * SUM_PITCH + token % 8];
    return s;
}

template <bool UP>
__device__ __forceinline__ void few_put(const kvd_gpu_few_experts &a, const few_sums &sums,
                                        const kvd_gpu_expert_group &g, uint32_t tile)
{
    constexpr uint32_t ROWS = UP ? TILE / 2 : TILE;
    const uint32_t out = (uint32_t)(UP ? a.ffn : a.d);
    const float *const bias = UP ? a.expert[g.expert].bias_gate_up : NULL;
    for (uint32_t i = threadIdx.x; i < g.n * ROWS; i += FEW_THREADS) {
        const uint32_t token = i / ROWS, row = i % ROWS, at = tile * ROWS + row;
        if (at >= out)
            continue;
        const size_t to = (size_t)(g.first + token) * out + at;
        const float s = few_total(sums, token, row);
        if (UP)
            static_cast<uint16_t *>(a.hidden)[to] =
                hidden_unit(a, bias, at, s, few_total(sums, token, row + TILE / 2));
        else
            a.out[to] = s;
    }
}

/* If UP, computes the experts' hidden units, otherwise their outputs (the down projection). */
template <bool UP>
__global__ void __launch_bounds__(FEW_THREADS, FEW_CTAS)
    few_kernel(const __grid_constant__ kvd_gpu_few_experts a)
{
    __shared__ few_sums sums;
    if (UP)
        follow();
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int in = (int)(UP ? a.d : a.ffn), out = (int)(UP ? a.ffn : a.d),
              slabs = (in + SLAB - 1) / SLAB;
    const uint32_t tiles =
                       (uint32_t)(UP ? (out + TILE / 2 - 1) / (TILE / 2) : (out + TILE - 1) / TILE),
                   items = __ldcg(a.n_groups) * tiles;
    uint32_t item = blockIdx.x;
    /* Double buffer: even-numbered and odd-numbered blocks of the weight matrix. */
    uint4 even[4], odd[4];
    kvd_gpu_expert_group g = load_group(a.group + (item < items ? item / tiles : 0));
    tile_rows<UP> rows(a, g.expert, item % tiles);
    rows.load(even, warp, in);
    rows.load(odd, warp + FEW_WARPS, in);
    /* The down projection (not UP) waits here, because it reads the preceding kernel's output. */
    if (!UP)
        follow();
    if (item >= items)
        return;
    const uint16_t *const x = static_cast<const uint16_t *>(UP ? a.x : a.hidden);
    while (item < items) {
        const uint32_t tile = item % tiles;
        uint32_t first[FEW_BLOCKS];
#pragma unroll
        for (uint32_t b = 0; b < FEW_BLOCKS; b++) {
            const uint32_t pair = g.first + min(8 * b + (uint32_t)lane / 4, g.n - 1);
            first[b] = (UP ? a.routes.row[pair] : pair) * (uint32_t)in;
        }
        float acc[FEW_BLOCKS][4] = {};
        for (int slab = warp; slab < slabs; slab += 2 * FEW_WARPS) {
            add_slab(acc, even, x, first, slab, in, (int)g.n);
            rows.load(even, slab + 2 * FEW_WARPS, in);
            add_slab(acc, odd, x, first, slab + FEW_WARPS, in, (int)g.n);
            rows.load(odd, slab + 3 * FEW_WARPS, in);
        }
        const kvd_gpu_expert_group now = g;
        item += gridDim.x;
        if (item < items) {
            g = load_group(a.group + item / tiles);
            rows = tile_rows<UP>(a, g.expert, item % tiles);
            rows.load(even, warp, in);
            rows.load(odd, warp + FEW_WARPS, in);
        }
#pragma unroll
        for (int b = 0; b < FEW_BLOCKS; b++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sums[warp][b][(lane / 4 + e / 2 * 8) * SUM_PITCH + 2 * (lane % 4) + e % 2] =
                    acc[b][e];
        __syncthreads();
        few_put<UP>(a, sums, now, tile);
        __syncthreads();
    }
}

/* Adds up each token's weighted expert outputs in the order in which experts were chosen. */
__global__ void __launch_bounds__(FEW_THREADS)
    few_add_kernel(const __grid_constant__ kvd_gpu_few_experts a)
{
    const size_t token = blockIdx.x, j = 4 * ((size_t)blockIdx.y * FEW_THREADS + threadIdx.x),
                 chosen = a.routes.n_chosen;
    float sum[4] = {}, add[4];
    kvd_wait_preceding(NULL);
    if (j >= a.d)
        return;
    if (a.first)
        load<f32, 4>(a.y, token * a.d + j, sum);
    if (a.add) {
        load<f32, 4>(a.add, j, add);
#pragma unroll
        for (int k = 0; k < 4; k++)
            sum[k] += add[k];
    }
#pragma unroll 4
    for (size_t i = token * chosen; i < (token + 1) * chosen; i++) {
        const float *const bias = a.first ? a.expert[a.routes.expert[i]].bias_down : NULL;
        const float factor = a.routes.factor[i];
        float out[4], extra[4] = {};
        load<f32, 4>(a.out, (size_t)a.place[i] * a.d + j, out);
        if (bias)
            load<f32, 4>(bias, j, extra);
#pragma unroll
        for (int k = 0; k < 4; k++)
            sum[k] += factor * (out[k] + extra[k]);
    }
    store<f32, 4>(a.y, token * a.d + j, sum);
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

template <class K>
static cudaError_t launch_few(cudaError_t e, K kernel, dim3 grid, unsigned threads,
                              const kvd_gpu_few_experts &a, cudaStream_t stream)
{
    return e == cudaSuccess ? kvd_launch_early(a.overlaps, kernel, grid, threads, 0, stream, a) : e;
}

extern "C" size_t kvd_gpu_few_groups(size_t n, size_t n_chosen, size_t n_experts)
{
    return smaller(n * n_chosen, n_experts + n * n_chosen / KVD_FEW_TOKENS);
}

/* Launches the kernels that multiply experts' matrices by up to KVD_FEW_TOKENS tokens at a time. */
static cudaError_t few_products(const kvd_gpu_few_experts &a, size_t groups, cudaStream_t stream)
{
    const size_t up = smaller(groups * ceil_div(a.ffn, TILE / 2), (size_t)(FEW_CTAS * a.sms)),
                 down = smaller(groups * ceil_div(a.d, TILE), (size_t)(FEW_CTAS * a.sms));
    const cudaError_t e =
        launch_few(cudaSuccess, few_kernel<true>, dim3((unsigned)up), FEW_THREADS, a, stream);
    return launch_few(e, few_kernel<false>, dim3((unsigned)down), FEW_THREADS, a, stream);
}

extern "C" cudaError_t kvd_gpu_few_experts_add(const kvd_gpu_few_experts *args, cudaStream_t stream)
{
    kvd_gpu_few_experts a = *args;
    const kvd_gpu_routes *const r = &a.routes;
    if (r->n == 0)
        return cudaSuccess;
    if (r->n_experts > KVD_FEW_EXPERTS || a.d % 8 || a.ffn % 8 ||
        r->n * r->n_chosen * (a.d > a.ffn ? a.d : a.ffn) > UINT32_MAX)
        return cudaErrorInvalidValue;
    const size_t groups = kvd_gpu_few_groups(r->n, r->n_chosen, r->n_experts);
    const bool many = a.overlaps && r->n * r->n_chosen > KVD_FEW_TOKENS * r->n_experts;
    a.group_tokens = many ? KVD_MANY_TOKENS : KVD_FEW_TOKENS;
    const bool route = !r->groups && r->n <= KVD_FEW_EXPERTS / 32;
    if (r->groups)
        route_groups_kernel<<<(unsigned)r->n, 32, 0, stream>>>(*r);
    else if (!route)
        route_warp_kernel<<<(unsigned)r->n, 32, 0, stream>>>(*r);
    cudaError_t e = cudaGetLastError();
    e = launch_few(e, route ? few_plan_kernel<true> : few_plan_kernel<false>, dim3(1),
                   KVD_FEW_EXPERTS, a, stream);
    if (e == cudaSuccess)
        e = many ? kvd_gpu_many_products(&a, groups, stream) : few_products(a, groups, stream);
    return launch_few(e, few_add_kernel,
                      dim3((unsigned)r->n, (unsigned)ceil_div(a.d, 4 * FEW_THREADS)), FEW_THREADS,
                      a, stream);
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
