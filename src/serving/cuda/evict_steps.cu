/*
 * Behind the attention of steps: what this step's probabilities add to the scores of the entries, and which entry leaves.
 *
 * The attention kernel keeps no probabilities, so q k is computed again: bytes 2 d_qk per entry and KV head, from L2 where a layer's keys fit.
 * A warp takes 16 entries at a time. A lane reads 16 bytes of an entry, 8 dims that lie together, and gives them to two products in
 * whatever order, for queries are read in the same one. The last CTA of a head to end has the rest: the softmax of every query head, sums,
 * the least score of those that may leave, and the newest entry's move into its place. All of it in a fixed order: the same bits
 * in every run and with any number of splits.
 *
 * Grid: splits x KV heads x rows.
 */
#include "kernels/cuda/mma.cuh"
#include "methods/tokens/gumbel.h"
#include "serving/cuda/evict.h"

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32, ENTRIES = 16, BLOCKS = KVD_WIDTH_MAX / 32 };
constexpr float LOG2E = 1.4426950408889634f;

__device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

struct row {
    int b, g, n, slot;
    uint32_t now;
    const int32_t *page;
    uint16_t *pool; /* of the KV head */
    float *x;       /* [n][wide] scores in powers of 2, with noise and temperature */
    float *score;
    uint32_t *position;
    kvd_evict_budget budget;
};

/* Temperature of a step (keyformer.c); it is 0 with methods that have none. */
__device__ __forceinline__ float temperature(const kvd_evict_rule &r, const row &w)
{
    const float progress =
        w.budget.steps > 1 ? (float)((int)w.now - w.budget.prompt) / (float)(w.budget.steps - 1) : 0;
    return r.tau0 + (r.tau1 - r.tau0) * progress;
}

/* Scores of the entries of this CTA. HALVES: of 8 query heads. */
template <int HALVES>
__device__ __forceinline__ void products(const kvd_evict_steps_args &a, const row &w, int wide)
{
    const int d = a.map.d_qk[w.g], group = a.map.group, lane = (int)threadIdx.x % 32, quad = lane % 4,
              line = lane / 4;
    const int each = ((w.n + (int)gridDim.x - 1) / (int)gridDim.x + ENTRIES - 1) / ENTRIES * ENTRIES;
    const int first = (int)blockIdx.x * each, end = min(w.n, first + each);
    const bool tempered = a.rule.tau0 > 0;
    const float inverse = tempered ? LOG2E / temperature(a.rule, w) : LOG2E, factor = a.map.scale * inverse;
    uint4 q[HALVES][BLOCKS];
#pragma unroll
    for (int h = 0; h < HALVES; h++)
#pragma unroll
        for (int k = 0; k < BLOCKS; k++) {
            const int j = 8 * h + line, at = (4 * k + quad) * 8;
            q[h][k] = make_uint4(0, 0, 0, 0);
            if (j < group && at < d)
                q[h][k] = *reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(a.q) +
                                                           (size_t)w.b * (size_t)a.map.q_pitch +
                                                           (size_t)a.map.q_offset[w.g * group + j] + at);
        }
    for (int e = first + (int)threadIdx.x / 32 * ENTRIES; e < end; e += WARPS * ENTRIES) {
        const uint16_t *const k0 = w.pool +
                                   (size_t)w.page[e / KVD_PAGE_TOKENS] * (size_t)a.map.page_elements +
                                   e % KVD_PAGE_TOKENS / 8 * 8 * d + quad * 64 + line * 8;
        float acc[HALVES][4] = {};
#pragma unroll
        for (int k = 0; k < BLOCKS; k++) {
            uint4 lo = make_uint4(0, 0, 0, 0), hi = lo;
            if ((4 * k + quad) * 8 < d) {
                lo = *reinterpret_cast<const uint4 *>(k0 + k * 256);
                hi = *reinterpret_cast<const uint4 *>(k0 + k * 256 + 8 * d);
            }
            const uint32_t front[4] = {lo.x, hi.x, lo.y, hi.y}, back[4] = {lo.z, hi.z, lo.w, hi.w};
#pragma unroll
            for (int h = 0; h < HALVES; h++) {
                mma<true>(acc[h], front, q[h][k].x, q[h][k].y);
                mma<true>(acc[h], back, q[h][k].z, q[h][k].w);
            }
        }
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const int i = e + line + c / 2 * 8, j = 8 * h + 2 * quad + c % 2;
                if (i >= end || j >= group)
                    continue;
                float x = acc[h][c] * factor;
                if (tempered)
                    x += inverse * kvd_gumbelf(kvd_gumbel_head(a.rule.seed, a.layer, w.g * group + j),
                                               i == w.n - 1 ? w.now : w.position[i]);
                w.x[(size_t)i * (size_t)wide + (size_t)j] = x;
            }
    }
}

/* Whether this CTA is the last of the head's to come here. */
__device__ bool last_to_end(uint32_t *counter)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicInc(counter, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    __threadfence();
    return last;
}

/* Logarithm of the softmax's denominator, in powers of 2, of query head j = threadIdx.x % wide. */
__device__ float denominator(const row &w, int wide, bool has)
{
    __shared__ float2 part[WARPS][KVD_GROUP_MAX];
    const int j = (int)threadIdx.x % wide, lane = (int)threadIdx.x % 32;
    float top = -1e30f, sum = 0;
    for (int i = (int)threadIdx.x / wide; has && i < w.n; i += THREADS / wide) {
        const float x = __ldcg(w.x + (size_t)i * (size_t)wide + (size_t)j), most = fmaxf(top, x);
        sum = sum * exp2_approx(top - most) + exp2_approx(x - most);
        top = most;
    }
    for (int step = wide; step < 32; step *= 2) {
        const float x = __shfl_xor_sync(0xffffffffu, top, step), s = __shfl_xor_sync(0xffffffffu, sum, step);
        const float most = fmaxf(top, x);
        sum = sum * exp2_approx(top - most) + s * exp2_approx(x - most);
        top = most;
    }
    if (lane < wide)
        part[threadIdx.x / 32][j] = make_float2(top, sum);
    __syncthreads();
    top = part[0][j].x;
    for (int i = 1; i < WARPS; i++)
        top = fmaxf(top, part[i][j].x);
    sum = 0;
    for (int i = 0; i < WARPS; i++)
        sum += part[i][j].y * exp2_approx(part[i][j].x - top);
    return top + log2f(sum);
}

struct candidate {
    unsigned long long key; /* score above position */
    int place;
};

__device__ __forceinline__ void take_less(candidate &c, unsigned long long key, int place)
{
    if (key < c.key)
        c = {key, place};
}

/* Adds the probabilities of this step; the least of those that may leave, all threads know it. */
__device__ candidate add(const row &w, int wide, int group)
{
    __shared__ candidate part[WARPS];
    const int j = (int)threadIdx.x % wide, each = THREADS / wide;
    const float lse = denominator(w, wide, j < group);
    candidate least = {~0ull, -1};
    for (int first = 0; first < w.n; first += each) {
        const int i = first + (int)threadIdx.x / wide;
        float p =
            i < w.n && j < group ? exp2_approx(__ldcg(w.x + (size_t)i * (size_t)wide + (size_t)j) - lse) : 0;
        for (int step = 1; step < wide; step *= 2)
            p += __shfl_xor_sync(0xffffffffu, p, step);
        if (i >= w.n || j)
            continue;
        const bool newest = i == w.n - 1;
        const uint32_t position = newest ? w.now : w.position[i];
        const float score = newest ? p : w.score[i] + p;
        w.score[i] = score;
        if (newest)
            w.position[i] = position;
        if ((unsigned long long)position + (unsigned)w.budget.recent <= w.now)
            take_less(least, (unsigned long long)__float_as_uint(score) << 32 | position, i);
    }
    __syncwarp();
#pragma unroll
    for (int step = 16; step; step /= 2) {
        const unsigned long long key = __shfl_xor_sync(0xffffffffu, least.key, step);
        const int place = __shfl_xor_sync(0xffffffffu, least.place, step);
        take_less(least, key, place);
    }
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = least;
    __syncthreads();
    for (int i = 0; i < WARPS; i++)
        take_less(least, part[i].key, part[i].place);
    return least;
}

/* The newest entry moves to a place. */
__device__ void replace(const kvd_evict_steps_args &a, const row &w, int place)
{
    const int from = w.n - 1, d_k = a.map.d_qk[w.g], d_v = a.map.d_v[w.g], c = (int)threadIdx.x;
    if (c < (d_k + d_v) / 8) {
        const int d = c < d_k / 8 ? d_k : d_v, block = c < d_k / 8 ? c : c - d_k / 8;
        uint16_t *const x = w.pool + (c < d_k / 8 ? 0 : KVD_PAGE_TOKENS * d_k) + block * 64;
        const auto at = [&](int i) {
            return reinterpret_cast<uint4 *>(
                x + (size_t)w.page[i / KVD_PAGE_TOKENS] * (size_t)a.map.page_elements +
                i % KVD_PAGE_TOKENS / 8 * 8 * d + i % 8 * 8);
        };
        *at(place) = *at(from);
    }
    if (threadIdx.x == 0) {
        w.score[place] = w.score[from];
        w.position[place] = w.position[from];
    }
}

template <int HALVES>
__global__ void __launch_bounds__(THREADS)
    steps_kernel(const __grid_constant__ kvd_evict_steps_args a, int wide)
{
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, slot = a.slot[b];
    if (slot >= a.state.n_slots)
        return;
    const size_t head = (size_t)b * (size_t)a.map.n_kv_heads + (size_t)g;
    const size_t state =
        (((size_t)slot * (size_t)a.state.n_layers + (size_t)a.layer) * (size_t)a.map.n_kv_heads + (size_t)g) *
        (size_t)a.state.room;
    const row w = {b,
                   g,
                   a.kv_len[b],
                   slot,
                   a.at[b],
                   a.page_table + (size_t)b * (size_t)a.max_pages,
                   static_cast<uint16_t *>(a.pool) + a.map.kv_offset[g],
                   a.work + head * (size_t)a.state.room * (size_t)wide,
                   a.state.score + state,
                   a.state.position + state,
                   a.budget[slot]};
    products<HALVES>(a, w, wide);
    if (!last_to_end(a.counter + head))
        return;
    const candidate least = add(w, wide, a.map.group);
    if (w.n > w.budget.limit && least.place >= 0 && least.place != w.n - 1)
        replace(a, w, least.place);
}

/* Numbers that an entry has in the work array: query heads of a group, rounded up to a power of 2. */
int width_of(const kvd_attn_map *m)
{
    int wide = 1;
    while (wide < m->group)
        wide *= 2;
    return wide;
}

} // namespace

extern "C" size_t kvd_evict_steps_bytes(const kvd_attn_map *m, size_t batch, size_t room)
{
    return batch * (size_t)m->n_kv_heads * room * (size_t)width_of(m) * sizeof(float);
}

extern "C" int32_t kvd_evict_splits(const kvd_attn_map *m, size_t batch, size_t room, int n_sms)
{
    const size_t heads = batch * (size_t)m->n_kv_heads, most = (room + 63) / 64, fill = 8 * (size_t)n_sms;
    const size_t wanted = (fill + heads - 1) / heads;
    return (int32_t)(wanted < most ? wanted : most);
}

extern "C" cudaError_t kvd_evict_steps(const kvd_evict_steps_args *a, cudaStream_t stream)
{
    if (a->batch < 1 || a->batch > 65535 || a->splits < 1 || a->map.group > KVD_GROUP_MAX || !a->state.score)
        return cudaErrorInvalidValue;
    const dim3 grid((unsigned)a->splits, (unsigned)a->map.n_kv_heads, (unsigned)a->batch);
    if (a->map.group > 8)
        steps_kernel<2><<<grid, THREADS, 0, stream>>>(*a, width_of(&a->map));
    else
        steps_kernel<1><<<grid, THREADS, 0, stream>>>(*a, width_of(&a->map));
    return cudaGetLastError();
}
