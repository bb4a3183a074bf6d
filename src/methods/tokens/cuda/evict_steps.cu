/* After a decode step, adds the attention probabilities to the scores of cached tokens and finds
 * the token to drop. The tokens of a KV head are divided among the CTAs of a cluster. */
#include <cooperative_groups.h>

#include "methods/tokens/cuda/evict_rank.cuh"
#include "methods/tokens/cuda/radix_select.cuh"
#include "methods/tokens/gumbel.h"

namespace
{

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    ENTRIES = 16,
    SPLITS = 8,
    AHEAD = 4,
    LAYER_WARPS = 32,
    DROP = 512
};
/* Ways in which a decode step updates a token's score:
 *
 * - SUMS: adds the token's attention probability
 * - TEMPERED: adds its attention probability, computed with a temperature and noise
 * - COUNTS: appends a bit, 1 if its attention probability is below the mean */
enum kind { SUMS, TEMPERED, COUNTS };

/* Waits for all CTAs of a KV head. Afterwards, each CTA can read the shared memory of the
 * others. */
__device__ __forceinline__ void head_barrier()
{
#if __CUDA_ARCH__ >= 900
    cooperative_groups::this_cluster().sync();
#else
    __syncthreads();
#endif
}

template <typename T> __device__ __forceinline__ const T *of_rank(T *x, int rank)
{
#if __CUDA_ARCH__ >= 900
    return cooperative_groups::this_cluster().map_shared_rank(x, (unsigned)rank);
#else
    (void)rank;
    return x;
#endif
}

struct candidate {
    /* Sort key: score of the token in the upper 32 bits, its position in the lower 32 bits. */
    unsigned long long key;
    int place;
};

struct shared {
    /* Softmax of each warp's tokens in each query head, as a pair (x, y): x is the maximum score, y
     * the sum of 2^(score - x). */
    float2 warp_sum[WARPS][KVD_GROUP_MAX];
    float2 sum[KVD_GROUP_MAX];
    candidate warp_least[WARPS], least;
};

/* Cached tokens first .. end - 1 of a KV head, which this CTA processes. */
struct head {
    int b, g, n, first, end, wide;
    uint32_t now;
    const int32_t *page;
    uint16_t *pool; /* the KV head's first element in page 0 */
    /* [n][wide] Attention logits of cached tokens in each query head, times log2(e). Method
     * keyformer also adds noise to them and divides them by a temperature. */
    float *x;
    float *score;
    uint32_t *position;
    kvd_evict_budget budget;
    /* True if a token's score is its probability in this decode step alone, false if it is a sum
     * over steps. */
    bool own;
    uint64_t *rows;
};

/* Returns the softmax temperature of this decode step in method keyformer, as in keyformer.c. */
__device__ __forceinline__ float temperature(const kvd_evict_rule &r, const head &w)
{
    const float progress = w.budget.steps > 1
                               ? (float)((int)w.now - w.budget.prompt) / (float)(w.budget.steps - 1)
                               : 0;
    return r.tau0 + (r.tau1 - r.tau0) * progress;
}

template <int HALVES, int BLOCKS>
__device__ __forceinline__ step_queries<HALVES, BLOCKS> queries_of(const kvd_evict_steps_args &a,
                                                                   const head &w)
{
    return {static_cast<const uint16_t *>(a.q) + (size_t)w.b * a.map.q_pitch,
            a.map.q_offset + w.g * a.map.group, a.map.group, a.map.d_qk[w.g]};
}

/* Multiplies the queries by the keys of cached tokens e .. e + 15. */
template <int HALVES, int BLOCKS>
__device__ __forceinline__ void products(const kvd_evict_steps_args &a, const head &w,
                                         const step_queries<HALVES, BLOCKS> &q, int e,
                                         float (&acc)[HALVES][4])
{
    const int d = a.map.d_qk[w.g], lane = (int)threadIdx.x % 32;
    const uint16_t *const k = w.pool + (size_t)w.page[e / KVD_PAGE_TOKENS] * a.map.page_elements +
                              e % KVD_PAGE_TOKENS / 8 * 8 * d + lane % 4 * 64 + lane / 4 * 8;
    step_products(k, k + 8 * d, d, q, acc);
}

template <int HALVES, int BLOCKS>
__device__ __forceinline__ void note(const kvd_evict_steps_args &a, const head &w)
{
    const int group = a.map.group, lane = (int)threadIdx.x % 32;
    const float inverse = LOG2E / temperature(a.rule, w), factor = a.map.scale * inverse;
    const auto q = queries_of<HALVES, BLOCKS>(a, w);
    for (int e = w.first + (int)threadIdx.x / 32 * ENTRIES; e < w.end; e += WARPS * ENTRIES) {
        float acc[HALVES][4];
        products(a, w, q, e, acc);
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const int i = e + lane / 4 + c / 2 * 8, j = 8 * h + lane % 4 * 2 + c % 2;
                if (i < w.end && j < group)
                    w.x[(size_t)i * w.wide + j] =
                        acc[h][c] * factor +
                        inverse * kvd_gumbelf(kvd_gumbel_head(a.rule.seed, a.layer,
                                                              a.rule.first_head + w.g * group + j),
                                              i == w.n - 1 ? w.now : w.position[i]);
            }
    }
    __syncthreads();
}

__device__ __forceinline__ void join(float2 &a, float2 b)
{
    const float most = fmaxf(a.x, b.x);
    a.y = a.y * kvd_exp2(a.x - most) + b.y * kvd_exp2(b.x - most);
    a.x = most;
}

/* Returns log2 of the softmax denominator of a query head in this decode step. */
__device__ __forceinline__ float denominator(const head &w, int group, shared &s)
{
    const int j = (int)threadIdx.x % w.wide, each = THREADS / w.wide;
    float2 sum = make_float2(-1e30f, 0);
    for (int i = w.first + (int)threadIdx.x / w.wide; j < group && i < w.end; i += AHEAD * each) {
        float x[AHEAD], most = sum.x;
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
            x[u] = i + u * each < w.end ? w.x[(size_t)(i + u * each) * w.wide + j] : -1e30f;
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
            most = fmaxf(most, x[u]);
        sum.y *= kvd_exp2(sum.x - most);
        sum.x = most;
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
            sum.y += i + u * each < w.end ? kvd_exp2(x[u] - most) : 0;
    }
    for (int step = w.wide; step < 32; step *= 2)
        join(sum, make_float2(__shfl_xor_sync(0xffffffffu, sum.x, step),
                              __shfl_xor_sync(0xffffffffu, sum.y, step)));
    if ((int)threadIdx.x % 32 < w.wide)
        s.warp_sum[threadIdx.x / 32][j] = sum;
    __syncthreads();
    if ((int)threadIdx.x < w.wide) {
        for (int i = 1; i < WARPS; i++)
            join(sum, s.warp_sum[i][j]);
        s.sum[j] = sum;
    }
    head_barrier();
    sum = make_float2(-1e30f, 0);
    for (int rank = 0; rank < (int)gridDim.x; rank++)
        join(sum, of_rank(s.sum, rank)[j]);
    return j < group ? sum.x + log2f(sum.y) : 0;
}

__device__ __forceinline__ void take_less(candidate &c, const candidate &other)
{
    if (other.key < c.key)
        c = other;
}

/* Adds attention probability p to the score of token i. Updates `least`, the droppable token with
 * the smallest score so far. */
__device__ __forceinline__ void add(const head &w, int i, float p, float score, uint32_t position,
                                    candidate &least)
{
    const float sum = w.own ? p : score + p;
    w.score[i] = sum;
    if (i == w.n - 1)
        w.position[i] = w.now;
    if ((unsigned long long)position + (unsigned)w.budget.recent <= w.now)
        take_less(least, {(unsigned long long)__float_as_uint(sum) << 32 | position, i});
}

/* Method keyformer: adds this decode step's attention probabilities to the scores. Returns the
 * token with the smallest score among this thread's tokens that may be dropped. */
__device__ __forceinline__ candidate add_noted(const head &w, int group, shared &s)
{
    const int j = (int)threadIdx.x % w.wide, each = THREADS / w.wide;
    const float lse = denominator(w, group, s);
    candidate least = {~0ull, -1};
    for (int first = w.first; first < w.end; first += AHEAD * each) {
        float p[AHEAD], score[AHEAD];
        uint32_t position[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const int i = first + u * each + (int)threadIdx.x / w.wide;
            const bool old = i < w.end && i < w.n - 1 && j == 0;
            p[u] = i < w.end && j < group ? w.x[(size_t)i * w.wide + j] : -INFINITY;
            score[u] = old ? w.score[i] : 0;
            position[u] = old ? w.position[i] : w.now;
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const int i = first + u * each + (int)threadIdx.x / w.wide;
            float sum = kvd_exp2(p[u] - lse);
            for (int step = 1; step < w.wide; step *= 2)
                sum += __shfl_xor_sync(0xffffffffu, sum, step);
            if (i < w.end && j == 0)
                add(w, i, sum, score[u], position[u], least);
        }
    }
    return least;
}

/* Appends `bit` to the history of token i: 1 if the attention that this decode step gave the token
 * is below the mean. */
__device__ __forceinline__ void add_bit(const head &w, int i, bool bit)
{
    const bool old = i < w.n - 1;
    w.rows[i] = (old ? w.rows[i] << 1 : 0) | (bit ? 1 : 0);
    if (!old) {
        w.score[i] = 0;
        w.position[i] = w.now;
    }
}

/* Updates the token scores with the attention probabilities of this decode step. Returns this
 * thread's droppable token with the smallest score. */
template <int HALVES, int BLOCKS, kind KIND>
__device__ __forceinline__ candidate add_products(const kvd_evict_steps_args &a, const head &w)
{
    const int group = a.map.group, lane = (int)threadIdx.x % 32, quad = lane % 4;
    const float factor = a.map.scale * LOG2E;
    const auto q = queries_of<HALVES, BLOCKS>(a, w);
    float lse[HALVES][2];
    candidate least = {~0ull, -1};
#pragma unroll
    for (int h = 0; h < HALVES; h++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const int j = 8 * h + 2 * quad + c;
            lse[h][c] = j < group ? LOG2E * a.lse[(size_t)w.b * a.map.n_heads + (w.g * group + j)]
                                  : INFINITY;
        }
    for (int e = w.first + (int)threadIdx.x / 32 * ENTRIES; e < w.end; e += WARPS * ENTRIES) {
        const int i = e + lane / 4 + 8 * quad;
        const bool mine = quad < 2 && i < w.end, old = mine && i < w.n - 1;
        const float score = old ? w.score[i] : 0;
        const uint32_t position = old ? w.position[i] : w.now;
        float acc[HALVES][4], p[2] = {0, 0};
        products(a, w, q, e, acc);
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const float y = kvd_exp2(fmaf(acc[h][c], factor, -lse[h][c % 2]));
                if (KIND != COUNTS)
                    p[c / 2] += y;
                else if (8 * h + 2 * quad + c % 2 < group && w.n > 1 && y * (float)w.n < 1)
                    p[c / 2] += 1;
            }
#pragma unroll
        for (int c = 0; c < 2; c++) {
            p[c] += __shfl_xor_sync(0xffffffffu, p[c], 1);
            p[c] += __shfl_xor_sync(0xffffffffu, p[c], 2);
        }
        if (mine && KIND == COUNTS)
            add_bit(w, i, 2 * (quad ? p[1] : p[0]) > (float)group);
        else if (mine)
            add(w, i, quad ? p[1] : p[0], score, position, least);
    }
    return least;
}

/* Returns, in every thread, the token with the smallest score among the candidates `least` of all
 * threads of the KV head. */
__device__ __forceinline__ candidate least_of_head(candidate least, shared &s)
{
    __syncwarp();
#pragma unroll
    for (int step = 16; step; step /= 2) {
        const candidate other = {__shfl_xor_sync(0xffffffffu, least.key, step),
                                 __shfl_xor_sync(0xffffffffu, least.place, step)};
        take_less(least, other);
    }
    if (threadIdx.x % 32 == 0)
        s.warp_least[threadIdx.x / 32] = least;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < WARPS; i++)
            take_less(least, s.warp_least[i]);
        s.least = least;
    }
    head_barrier();
    for (int rank = 0; rank < (int)gridDim.x; rank++)
        take_less(least, *of_rank(&s.least, rank));
    return least;
}

__device__ __forceinline__ void replace(const kvd_evict_steps_args &a, const head &w, int place)
{
    const int from = w.n - 1;
    move_piece(a, w.b, w.g, from, place, (int)threadIdx.x);
    if (threadIdx.x == THREADS - 1) {
        w.score[place] = w.score[from];
        w.position[place] = w.now;
    }
}

template <int HALVES, int BLOCKS, kind KIND>
__global__ void __launch_bounds__(THREADS)
    steps_kernel(const __grid_constant__ kvd_evict_steps_args a, int wide)
{
    __shared__ shared s;
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, slot = a.slot[b];
    if (slot >= a.state.n_slots)
        return;
    const size_t number = (size_t)b * a.map.n_kv_heads + g, room = (size_t)a.state.room;
    const size_t state = state_at(a.state, a.map.n_kv_heads, slot, g);
    const int n = a.kv_len[b],
              each = ((n + (int)gridDim.x - 1) / (int)gridDim.x + ENTRIES - 1) / ENTRIES * ENTRIES;
    const int first = min(n, (int)blockIdx.x * each);
    const head w = {b,
                    g,
                    n,
                    first,
                    min(n, first + each),
                    wide,
                    a.at[b],
                    a.page_table + (size_t)b * a.max_pages,
                    static_cast<uint16_t *>(a.pool) + a.map.kv_offset[g],
                    a.work + number * room * (size_t)wide,
                    a.state.score + state,
                    a.state.position + state,
                    a.budget[slot],
                    a.rule.whole_layer != 0,
                    KIND == COUNTS ? a.state.rows + state : nullptr};
    candidate mine;
    if (KIND == TEMPERED) {
        note<HALVES, BLOCKS>(a, w);
        mine = add_noted(w, a.map.group, s);
    } else {
        mine = add_products<HALVES, BLOCKS, KIND>(a, w);
    }
    if (KIND == COUNTS)
        return; /* drop_kernel drops the tokens */
    const candidate least = least_of_head(mine, s);
    if (a.rule.merge && blockIdx.x == 0 && threadIdx.x == 0)
        a.merging.victim[number] = n > w.budget.limit ? least.place : -1;
    if (!a.rule.merge && blockIdx.x == 0 && !w.own && n > w.budget.limit && least.place >= 0 &&
        least.place != n - 1)
        replace(a, w, least.place);
    head_barrier(); /* no CTA may exit while others read its shared memory */
}

/* Drops the cached token with the smallest sum of scores over all KV heads. */
__global__ void __launch_bounds__(32 * LAYER_WARPS)
    layer_kernel(const __grid_constant__ kvd_evict_steps_args a)
{
    __shared__ candidate of_warp[LAYER_WARPS];
    const int b = (int)blockIdx.x, slot = a.slot[b], warp = (int)threadIdx.x / 32,
              lane = (int)threadIdx.x % 32;
    if (slot >= a.state.n_slots)
        return;
    const int n = a.kv_len[b], room = a.state.room;
    const uint32_t now = a.at[b];
    const kvd_evict_budget budget = a.budget[slot];
    float *const score = a.state.score + state_at(a.state, a.map.n_kv_heads, slot, 0);
    uint32_t *const position = a.state.position + state_at(a.state, a.map.n_kv_heads, slot, 0);
    if (n <= budget.limit)
        return;
    candidate least = {~0ull, -1};
    for (int i = (int)threadIdx.x; i < n - 1; i += 32 * LAYER_WARPS) {
        const uint32_t at = position[i];
        float sum = a.sums ? a.sums[(size_t)b * room + i] : 0;
        for (int g = 0; g < a.map.n_kv_heads && !a.sums; g++)
            sum += score[(size_t)g * room + i];
        if ((unsigned long long)at + (unsigned)budget.recent <= now)
            take_less(least, {(unsigned long long)__float_as_uint(sum) << 32 | at, i});
    }
#pragma unroll
    for (int step = 16; step; step /= 2)
        take_less(least, {__shfl_xor_sync(0xffffffffu, least.key, step),
                          __shfl_xor_sync(0xffffffffu, least.place, step)});
    if (lane == 0)
        of_warp[warp] = least;
    __syncthreads();
    for (int w = 0; w < LAYER_WARPS; w++)
        take_less(least, of_warp[w]);
    if (least.place < 0)
        return;
    for (int g = warp; g < a.map.n_kv_heads; g += LAYER_WARPS) {
        const size_t first = (size_t)g * room;
        for (int c = lane; c < pieces_of(a, g); c += 32)
            move_piece(a, b, g, n - 1, least.place, c);
        if (lane == 0) {
            score[first + least.place] = score[first + n - 1];
            position[first + least.place] = now;
        }
    }
}

/* Returns a sort key for dropping tokens. Tokens to which many recent queries gave little attention
 * come first. */
__device__ __forceinline__ unsigned long long
pivotal_key(const kvd_evict_steps_args &a, const kvd_evict_budget &budget, uint32_t now, size_t at)
{
    const uint32_t position = a.state.position[at];
    if ((unsigned long long)position + (unsigned)budget.recent > now)
        return 0xffffffffull << 32 | position;
    const int history = a.rule.window, steps = (int)now - budget.prompt + 1,
              left = max(history - steps, 0), prompt = (int)-a.state.score[at];
    const uint64_t rows = a.state.rows[at] << (64 - history);
    const unsigned count = (unsigned)(__popcll(rows) * a.map.group * history + prompt * left);
    return (unsigned long long)(0xfffffffeu - count) << 32 | position;
}

/* If a KV head has more cached tokens than its limit, drops the tokens with the smallest sort keys,
 * and moves the last cached tokens to the freed indices. */
__global__ void __launch_bounds__(DROP) drop_kernel(const __grid_constant__ kvd_evict_steps_args a)
{
    __shared__ unsigned bin[KVD_SELECT_BINS];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, slot = a.slot[b], me = (int)threadIdx.x;
    if (slot >= a.state.n_slots)
        return;
    const int n = a.kv_len[b];
    const kvd_evict_budget budget = a.budget[slot];
    const int old = max(n - budget.recent, 0),
              stay = n - min(old, max(max(budget.drop, 1), n - budget.limit));
    if (n <= budget.limit || stay == n)
        return;
    const uint32_t now = a.at[b];
    const size_t state = state_at(a.state, a.map.n_kv_heads, slot, g), room = (size_t)a.state.room;
    const auto key = [&](int i) { return pivotal_key(a, budget, now, state + i); };
    const unsigned long long least =
        stay > 0 ? select_key<DROP>(key, n, stay, bin, now + 1) : ~0ull;
    int32_t *const hole = reinterpret_cast<int32_t *>(a.work) +
                          ((size_t)b * a.map.n_kv_heads + g) * room,
                   *const mover = hole + n / 2;
    int holes = 0, movers = 0, all;
    for (int first = 0; first < n; first += DROP) {
        const int i = first + me;
        const bool stays = i < n && key(i) >= least;
        const bool is_hole = i < stay && !stays, moves = i >= stay && stays;
        const int h = holes + select_place<DROP>(is_hole, &all);
        holes += all;
        const int m = movers + select_place<DROP>(moves, &all);
        movers += all;
        if (is_hole && h < n / 2)
            hole[h] = i;
        if (moves && m < n / 2)
            mover[m] = i;
    }
    __syncthreads();
    /* With the random data of timing runs, there may be more free indices than tokens to move, or
     * fewer. */
    holes = min(min(holes, movers), n / 2);
    const int pieces = pieces_of(a, g);
    for (int i = me; i < holes * pieces; i += DROP)
        move_piece(a, b, g, mover[i / pieces], hole[i / pieces], i % pieces);
    for (int i = me; i < holes; i += DROP) {
        const size_t to = state + hole[i], from = state + mover[i];
        a.state.score[to] = a.state.score[from];
        a.state.position[to] = a.state.position[from];
        a.state.rows[to] = a.state.rows[from];
    }
}

__global__ void __launch_bounds__(32) first_kernel(const __grid_constant__ kvd_evict_steps_args a)
{
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, slot = a.slot[b];
    if (slot >= a.state.n_slots)
        return;
    const int n = a.kv_len[b];
    const kvd_evict_budget budget = a.budget[slot];
    if (n <= budget.limit || budget.recent < 1)
        return;
    /* turns: number of earlier decode steps that overwrote a cached token. place: index of the
     * token to overwrite now. */
    const int turns = (int)a.at[b] - max(budget.prompt, budget.limit),
              place = budget.limit - budget.recent + turns % budget.recent;
    for (int c = (int)threadIdx.x; c < pieces_of(a, g); c += 32)
        move_piece(a, b, g, n - 1, place, c);
}

__global__ void __launch_bounds__(32) fixed_kernel(const __grid_constant__ kvd_evict_steps_args a)
{
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, slot = a.slot[b];
    if (slot >= a.state.n_slots || a.budget[slot].place < 0)
        return;
    for (int c = (int)threadIdx.x; c < pieces_of(a, g); c += 32)
        move_piece(a, b, g, a.kv_len[b] - 1, a.budget[slot].place, c);
}

/* Returns the number of query heads per KV head, rounded up to a power of 2. */
int width_of(const kvd_attn_map *m)
{
    int wide = 1;
    while (wide < m->group)
        wide *= 2;
    return wide;
}

template <int BLOCKS>
cudaError_t launch(const cudaLaunchConfig_t &config, const kvd_evict_steps_args &a, int wide)
{
    const bool tempered = a.rule.tau0 > 0, counts = a.rule.ranking == KVD_EVICT_PIVOTAL;
    return a.map.group > 8 ? cudaLaunchKernelEx(&config,
                                                counts     ? steps_kernel<2, BLOCKS, COUNTS>
                                                : tempered ? steps_kernel<2, BLOCKS, TEMPERED>
                                                           : steps_kernel<2, BLOCKS, SUMS>,
                                                a, wide)
                           : cudaLaunchKernelEx(&config,
                                                counts     ? steps_kernel<1, BLOCKS, COUNTS>
                                                : tempered ? steps_kernel<1, BLOCKS, TEMPERED>
                                                           : steps_kernel<1, BLOCKS, SUMS>,
                                                a, wide);
}

} // namespace

extern "C" size_t kvd_evict_steps_bytes(const kvd_attn_map *m, size_t batch, size_t room)
{
    return batch * (size_t)m->n_kv_heads * room * width_of(m) * sizeof(float);
}

/* Returns the number of CTAs per KV head: a power of 2, as large as needed to fill the GPU, but
 * with at least 64 cached tokens per CTA. */
extern "C" int32_t kvd_evict_splits(const kvd_attn_map *m, size_t batch, size_t room, int n_sms)
{
    const size_t heads = batch * (size_t)m->n_kv_heads;
    int splits = 1;
    while (splits < SPLITS && 2 * (size_t)splits * heads <= 8 * (size_t)n_sms &&
           128 * (size_t)splits <= room)
        splits *= 2;
    return splits;
}

extern "C" cudaError_t kvd_evict_steps(const kvd_evict_steps_args *a, cudaStream_t stream)
{
    if (a->batch < 1 || a->batch > 65535)
        return cudaErrorInvalidValue;
    const dim3 heads(a->map.n_kv_heads, a->batch);
    if (a->rule.fixed) {
        fixed_kernel<<<heads, 32, 0, stream>>>(*a);
        return cudaGetLastError();
    }
    if (a->rule.ranking == KVD_EVICT_FIRST) {
        first_kernel<<<heads, 32, 0, stream>>>(*a);
        return cudaGetLastError();
    }
    const int wide = width_of(&a->map), tempered = a->rule.tau0 > 0,
              counts = a->rule.ranking == KVD_EVICT_PIVOTAL;
    if (a->splits < 1 || a->splits > SPLITS || a->map.group > KVD_GROUP_MAX || !a->state.score ||
        (a->rule.ranking != KVD_EVICT_ATTENTION && !counts) ||
        (counts && (tempered || a->rule.whole_layer || !a->state.rows || !a->work ||
                    a->rule.window < 1 || a->rule.window > 64)) ||
        (a->rule.merge && (a->rule.whole_layer || counts)) ||
        (tempered ? a->rule.whole_layer : !a->lse))
        return cudaErrorInvalidValue;
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = (unsigned)a->splits;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(a->splits, a->map.n_kv_heads, a->batch);
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = a->splits > 1 ? 1 : 0;
    const cudaError_t e = kvd_attn_widest(&a->map) > KVD_WIDTH_NARROW
                              ? launch<KVD_WIDTH_MAX / 32>(config, *a, wide)
                              : launch<KVD_WIDTH_NARROW / 32>(config, *a, wide);
    if (e == cudaSuccess && counts)
        drop_kernel<<<heads, DROP, 0, stream>>>(*a);
    if (e == cudaSuccess && a->rule.merge)
        return kvd_evict_merge_step(a, stream);
    if (e != cudaSuccess || !a->rule.whole_layer)
        return e != cudaSuccess ? e : cudaGetLastError();
    return a->sums ? kvd_evict_steps_sum(a, stream) : kvd_evict_steps_drop(a, stream);
}

extern "C" cudaError_t kvd_evict_steps_drop(const kvd_evict_steps_args *a, cudaStream_t stream)
{
    if (a->batch < 1 || a->batch > 65535 || !a->rule.whole_layer || !a->state.score)
        return cudaErrorInvalidValue;
    layer_kernel<<<a->batch, 32 * LAYER_WARPS, 0, stream>>>(*a);
    return cudaGetLastError();
}
