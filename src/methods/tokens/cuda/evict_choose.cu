/* Kernels that choose which prompt tokens stay, and move K and V of these tokens to the front of
 * the pages. */
#include "methods/tokens/cuda/evict.h"
#include "methods/tokens/cuda/evict_rank.cuh"
#include "methods/tokens/cuda/radix_select.cuh"

namespace
{

enum { CHOOSE = 1024, MOVE = 256, RUN = 256, DIMS = 32, BITS = 512 };

__global__ void __launch_bounds__(CHOOSE)
    choose_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, n = a.q_len[b], slot = a.slot[b];
    const kvd_evict_budget budget = a.budget[slot];
    const int old = n - min(n, budget.keep_new), k = min(old, budget.keep_old), m = n - old + k;
    const size_t at = (size_t)a.q_start[b], row = (size_t)g * a.n_q8 + at;
    float *const score = a.score + row;
    int32_t *const kept = a.kept + row;
    const int ranking = a.rule.ranking, group = a.map.group;
    if (ranking == KVD_EVICT_ATTENTION || ranking == KVD_EVICT_PIVOTAL)
        sum_heads<CHOOSE>(a, a.rule.whole_layer ? 0 : g * group,
                          a.summed             ? 1
                          : a.rule.whole_layer ? a.map.n_heads
                                               : (g + 1) * group,
                          at, n, score);
    const float *rank = score;
    /* The smoothed scores overwrite the part of `mass` that belongs to the KV head's first query
     * head. */
    if (ranking == KVD_EVICT_ATTENTION && a.rule.smooth > 1) {
        float *const to = a.mass + (size_t)(g * group) * a.n_q8 + at;
        smooth<CHOOSE>(score, old, a.rule.smooth, to);
        rank = to;
    }
    const int sink = ranking == KVD_EVICT_ATTENTION ? a.rule.sink : 0;
    const auto key = [rank, sink](int t) {
        return t < sink ? 0xffffffffull << 32 | (unsigned)t : key_of(rank[t], t);
    };
    const bool in_order = ranking == KVD_EVICT_FIRST;
    const unsigned long long least = in_order ? 0 : select_least<CHOOSE>(key, old, k);
    const size_t state = state_at(a.state, a.map.n_kv_heads, slot, g);
    for (int first = 0, place = 0; first < n; first += CHOOSE) {
        const int t = first + (int)threadIdx.x;
        const bool stays = t < n && (t >= old || (in_order ? t < k : key(t) >= least));
        int all;
        const int i = place + select_place<CHOOSE>(stays, &all);
        place += all;
        if (!stays && t < n && a.rule.merge)
            kept[m + t - i] = t;
        if (!stays)
            continue;
        kept[i] = t;
        if (a.state.score) {
            a.state.score[state + i] = score[t];
            a.state.position[state + i] = (uint32_t)t;
        }
        if (a.state.rows)
            a.state.rows[state + i] = 0;
    }
}

/* Sums, over the query heads of a KV head, the attention that each token received. */
__global__ void __launch_bounds__(CHOOSE)
    local_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, group = a.map.group;
    const size_t at = (size_t)a.q_start[b];
    sum_heads<CHOOSE>(a, g * group, (g + 1) * group, at, a.q_len[b],
                      a.score + (size_t)g * a.n_q8 + at);
}

/* Replaces the first row of a.mass by the sum of all rows. A row has the attention that tokens
 * received in one query head. */
__global__ void __launch_bounds__(CHOOSE)
    layer_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    const int b = (int)blockIdx.x;
    const size_t at = (size_t)a.q_start[b];
    sum_heads<CHOOSE>(a, 0, a.map.n_heads, at, a.q_len[b], a.mass + at);
}

/* Method ems: scores each token by the attention that it received from the last queries and from
 * all queries. */
__global__ void __launch_bounds__(CHOOSE)
    importance_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, n = a.q_len[b], group = a.map.group,
              old = n - min(n, a.rule.window), me = (int)threadIdx.x;
    const size_t at = (size_t)a.q_start[b];
    float *const score = a.score + (size_t)g * a.n_q8 + at;
    float *const mass = a.mass + (size_t)(g * group) * a.n_q8 + at;
    const auto mean_of = [&](int t) {
        float sum = 0;
        for (int j = 0; j < group; j++)
            sum += mass[(size_t)j * a.n_q8 + t];
        return sum / (float)(n - t);
    };
    double local = 0, global = 0;
    for (int t = me; t < old; t += CHOOSE) {
        local += (double)score[t];
        global += (double)mean_of(t);
    }
    local = sum_over<CHOOSE>(local) / old;
    global = sum_over<CHOOSE>(global) / old;
    /* The importance of a token is the larger of two numbers: the attention that it got from the
     * last queries, and from all queries, each divided by its mean over tokens. */
    for (int t = me; t < old; t += CHOOSE)
        mass[t] = (float)fmax((double)score[t] / local, (double)mean_of(t) / global);
    __syncthreads();
    smooth<CHOOSE>(mass, old, a.rule.smooth, score);
}

/* Method kvcrush: each query head votes to keep or to drop each token. Counts the votes on a token
 * that differ from the pattern chosen by a.rule.anchor. */
__global__ void __launch_bounds__(BITS)
    bits_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    const int h = (int)blockIdx.x, b = (int)blockIdx.y, n = a.q_len[b];
    const kvd_evict_budget budget = a.budget[a.slot[b]];
    const int old = n - min(n, budget.keep_new), k = min(old, budget.keep_old);
    const size_t at = (size_t)a.q_start[b];
    const float *const mass = a.mass + (size_t)h * a.n_q8 + at;
    const bool anchor =
        a.rule.anchor == 2 ? 2 * (long long)k > old : (a.rule.first_head + h) % 2 == 1;
    const auto key = [mass](int t) { return key_of(mass[t], t); };
    const unsigned long long least = select_least<BITS>(key, old, k);
    for (int t = (int)threadIdx.x; t < old; t += BITS)
        if ((key(t) >= least) != anchor)
            atomicAdd(a.distance + at + t, 1.0f);
}

__device__ __forceinline__ void keep(const kvd_evict_prompts_args &a, size_t at, int t)
{
    for (int g = 0; g < a.map.n_kv_heads; g++)
        a.kept[(size_t)g * a.n_q8 + at] = t;
}

/* Method kvcrush: keeps the tokens with the largest scores. Sorts the other tokens by a.distance,
 * and keeps every n-th of them. */
__global__ void __launch_bounds__(CHOOSE)
    represent_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    const int b = (int)blockIdx.x, n = a.q_len[b], me = (int)threadIdx.x;
    const kvd_evict_budget budget = a.budget[a.slot[b]];
    const int old = n - min(n, budget.keep_new),
              crush = (int)(a.rule.crush * (double)budget.keep_old),
              top = min(old, budget.keep_old - crush), others = old - top,
              every = others > crush && crush > 0 ? others / crush : 1;
    const size_t at = (size_t)a.q_start[b];
    float *const score = a.score + at, *const rank = a.mass + at;
    const float *const distance = a.distance + at;
    sum_heads<CHOOSE>(a, 0, a.summed ? 1 : a.map.n_heads, at, n, score);
    smooth<CHOOSE>(score, old, a.rule.smooth, rank);
    const auto key = [rank](int t) { return key_of(rank[t], t); };
    const unsigned long long least = select_least<CHOOSE>(key, old, top);
    for (int t = me; t < n; t += CHOOSE)
        score[t] = t >= old || key(t) >= least ? INFINITY : 0;
    __syncthreads();
    int all, before = 0;
    const int each = (old + CHOOSE - 1) / CHOOSE, from = min(old, me * each),
              to = min(old, from + each);
    /* Goes through the dropped tokens in rising order of `distance`. Marks the first token of each
     * group of `every` tokens to be kept. */
    for (int d = 0; d <= (a.summed ? a.n_heads : a.map.n_heads) && before < crush * every; d++) {
        int count = 0;
        for (int t = from; t < to; t++)
            count += score[t] == 0 && (int)distance[t] == d;
        int i = before + sum_before<CHOOSE>(count, &all);
        before += all;
        for (int t = from; t < to && count > 0; t++)
            if (score[t] == 0 && (int)distance[t] == d) {
                if (i % every == 0 && i / every < crush)
                    score[t] = -INFINITY;
                i++;
                count--;
            }
    }
    __syncthreads();
    select_each<CHOOSE>(
        n, [score](int t) { return score[t] != 0; }, [&](int i, int t) { keep(a, at + i, t); });
}

__global__ void __launch_bounds__(MOVE)
    move_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    const int slices = (int)gridDim.x / (2 * a.map.n_kv_heads), b = (int)blockIdx.y;
    const int slice = (int)blockIdx.x % slices, side = (int)blockIdx.x / slices % 2,
              g = (int)blockIdx.x / slices / 2;
    const int n = a.q_len[b], m = evict_kept_of(a.budget[a.slot[b]], n);
    const int32_t *const kept = a.kept + (size_t)g * a.n_q8 + a.q_start[b];
    const page_rows x = rows_of(a, b, g, side);
    if (m == n || slice * DIMS >= x.d)
        return;
    compact_rows<MOVE, RUN>(x, kept, m, slice);
    /* Stores the positions of the tokens that stay. The position of a prompt token is its index in
     * the prompt. */
    for (int i = (int)threadIdx.x; a.latents.pool && !slice && !side && i < m; i += MOVE)
        position_at(a, b, g, i) = kept[i];
}

__global__ void __launch_bounds__(CHOOSE)
    list_kernel(const __grid_constant__ kvd_evict_prompts_args a, int32_t *length,
                kvd_evict_budget *budget)
{
    const int b = (int)blockIdx.x, n = a.q_len[b];
    const size_t at = (size_t)a.q_start[b];
    const int place = select_each<CHOOSE>(
        n, [&](int t) { return t == n - 1 || a.mass[at + t] > 0; },
        [&](int i, int t) { keep(a, at + i, t); });
    if (threadIdx.x > 0)
        return;
    length[b] = place;
    budget[a.slot[b]].keep_new = 0;
    budget[a.slot[b]].keep_old = place;
}

void move(const kvd_evict_prompts_args *a, cudaStream_t stream)
{
    const int slices = (kvd_attn_widest(&a->map) + DIMS - 1) / DIMS;
    move_kernel<<<dim3((a->map.n_kv_heads * 2 * slices), a->batch), MOVE, 0, stream>>>(*a);
}

/* Sums the score of each cached token over the KV heads of this GPU. The newest token is not
 * included. */
__global__ void __launch_bounds__(CHOOSE)
    sums_kernel(const __grid_constant__ kvd_evict_steps_args a)
{
    const int b = (int)blockIdx.x, slot = a.slot[b], room = a.state.room;
    if (slot >= a.state.n_slots)
        return;
    const float *const score = a.state.score + state_at(a.state, a.map.n_kv_heads, slot, 0);
    for (int i = (int)threadIdx.x; i < a.kv_len[b] - 1; i += CHOOSE) {
        float sum = 0;
        for (int g = 0; g < a.map.n_kv_heads; g++)
            sum += score[(size_t)g * room + i];
        a.sums[(size_t)b * room + i] = sum;
    }
}

} // namespace

extern "C" cudaError_t kvd_evict_steps_sum(const kvd_evict_steps_args *a, cudaStream_t stream)
{
    if (a->batch < 1 || a->batch > 65535 || !a->state.score || !a->sums)
        return cudaErrorInvalidValue;
    sums_kernel<<<a->batch, CHOOSE, 0, stream>>>(*a);
    return cudaGetLastError();
}

static cudaError_t measure(const kvd_evict_prompts_args *a, cudaStream_t stream)
{
    const cudaError_t e =
        cudaMemsetAsync(a->distance, 0, (size_t)a->n_q8 * sizeof *a->distance, stream);
    if (e != cudaSuccess)
        return e;
    bits_kernel<<<dim3(a->map.n_heads, a->batch), BITS, 0, stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_evict_sum_heads(const kvd_evict_prompts_args *a, cudaStream_t stream)
{
    if (a->batch < 1 || a->batch > 65535 || !a->mass || !a->rule.whole_layer ||
        (a->rule.anchor && !a->distance))
        return cudaErrorInvalidValue;
    const cudaError_t e = a->rule.anchor ? measure(a, stream) : cudaSuccess;
    if (e != cudaSuccess)
        return e;
    layer_kernel<<<a->batch, CHOOSE, 0, stream>>>(*a);
    return cudaGetLastError();
}

static cudaError_t represent(const kvd_evict_prompts_args *a, cudaStream_t stream)
{
    if (!a->distance || !a->mass || a->rule.ranking != KVD_EVICT_ATTENTION || a->state.score)
        return cudaErrorInvalidValue;
    const cudaError_t e = a->summed ? cudaSuccess : measure(a, stream);
    if (e != cudaSuccess)
        return e;
    represent_kernel<<<a->batch, CHOOSE, 0, stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_evict_marked(const kvd_evict_prompts_args *a, int32_t *length,
                                        kvd_evict_budget *budget, cudaStream_t stream)
{
    if (a->batch < 1 || a->batch > 65535 || !a->mass || !a->kept || !length || a->budget != budget)
        return cudaErrorInvalidValue;
    list_kernel<<<a->batch, CHOOSE, 0, stream>>>(*a, length, budget);
    move(a, stream);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_evict_choose(const kvd_evict_prompts_args *a, cudaStream_t stream)
{
    /* Smoothing overwrites a->mass. With rule.whole_layer, the CTAs of other KV heads read it at
     * the same time. So these two options cannot be combined. */
    if (a->batch < 1 || a->batch > 65535 || !a->kept || !a->score || a->rule.smooth < 0 ||
        (a->rule.whole_layer && a->rule.smooth > 1 && !a->rule.anchor))
        return cudaErrorInvalidValue;
    const dim3 heads(a->map.n_kv_heads, a->batch);
    if (a->rule.anchor) {
        const cudaError_t e = represent(a, stream);
        if (e != cudaSuccess)
            return e;
    } else {
        choose_kernel<<<heads, CHOOSE, 0, stream>>>(*a);
    }
    if (a->rule.merge) {
        const cudaError_t e = kvd_evict_merge(a, stream);
        if (e != cudaSuccess)
            return e;
    }
    move(a, stream);
    return cudaGetLastError();
}

static cudaError_t score_important(const kvd_evict_prompts_args *a, cudaStream_t stream)
{
    const dim3 heads(a->map.n_kv_heads, a->batch);
    kvd_evict_prompts_args sums = *a;
    if (a->batch < 1 || a->batch > 65535 || !a->score || a->rule.window < 1)
        return cudaErrorInvalidValue;
    sums.rule.ranking = KVD_EVICT_ATTENTION;
    cudaError_t e = kvd_evict_score_any(&sums, stream);
    if (e != cudaSuccess)
        return e;
    local_kernel<<<heads, CHOOSE, 0, stream>>>(*a);
    sums.rule.window = 0;
    e = kvd_evict_score_any(&sums, stream);
    if (e != cudaSuccess)
        return e;
    importance_kernel<<<heads, CHOOSE, 0, stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_evict_score_any(const kvd_evict_prompts_args *a, cudaStream_t stream)
{
    const bool attends =
        a->rule.ranking == KVD_EVICT_ATTENTION || a->rule.ranking == KVD_EVICT_REPEATED;
    return a->rule.ranking == KVD_EVICT_FIRST       ? cudaSuccess
           : a->rule.ranking == KVD_EVICT_EXPECTED  ? kvd_evict_score_expected(a, stream)
           : a->rule.ranking == KVD_EVICT_PIVOTAL   ? kvd_evict_score(a, stream)
           : a->rule.ranking == KVD_EVICT_IMPORTANT ? score_important(a, stream)
           : !attends                               ? kvd_evict_score_keys(a, stream)
           : a->hopper && kvd_attn_widest(&a->map) <= KVD_WIDTH_NARROW
               ? kvd_evict_score_sm90(a, stream)
               : kvd_evict_score(a, stream);
}
