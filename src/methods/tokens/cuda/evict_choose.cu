/*
 * Chooses the tokens of a prompt that stay, and moves their rows of K and V to the front of the
 * pages. move_kernel moves token kept[i] to index i <= kept[i], RUN tokens at a time. A run reads
 * all its rows before it writes, so no row is overwritten before it was read.
 */
#include "methods/tokens/cuda/evict.h"
#include "methods/tokens/cuda/evict_rank.cuh"
#include "methods/tokens/cuda/radix_select.cuh"

namespace
{

enum { CHOOSE = 1024, MOVE = 256, RUN = 256, DIMS = 32 };

__device__ __forceinline__ int kept_of(const kvd_evict_budget &b, int n)
{
    const int newest = min(n, b.keep_new);
    return newest + min(n - newest, b.keep_old);
}

__global__ void __launch_bounds__(CHOOSE)
    choose_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    __shared__ unsigned bin[KVD_SELECT_BINS];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, n = a.q_len[b], slot = a.slot[b];
    const kvd_evict_budget budget = a.budget[slot];
    const int old = n - min(n, budget.keep_new), k = min(old, budget.keep_old);
    const size_t at = (size_t)a.q_start[b], row = (size_t)g * (size_t)a.n_q8 + at;
    float *const score = a.score + row;
    int32_t *const kept = a.kept + row;
    const int ranking = a.rule.ranking, group = a.map.group;
    if (ranking == KVD_EVICT_ATTENTION)
        sum_heads<CHOOSE>(a, a.rule.whole_layer ? 0 : g * group,
                          a.rule.whole_layer ? a.map.n_heads : (g + 1) * group, at, n, score);
    const float *rank = score;
    /*
     * Smoothed scores overwrite `mass` of the KV head's first query head, which is no longer
     * needed.
     */
    if (ranking == KVD_EVICT_ATTENTION && a.rule.smooth > 1) {
        float *const to = a.mass + (size_t)(g * group) * (size_t)a.n_q8 + at;
        smooth<CHOOSE>(score, old, a.rule.smooth, to);
        rank = to;
    }
    const auto key = [rank](int t) { return key_of(rank[t], t); };
    const bool by_score = ranking != KVD_EVICT_FIRST && k < old && k > 0;
    const unsigned long long least = by_score ? select_key<CHOOSE>(key, old, k, bin) : 0;
    const size_t state = (((size_t)slot * (size_t)a.state.n_layers + (size_t)a.state.layer) *
                              (size_t)a.map.n_kv_heads +
                          (size_t)g) *
                         (size_t)a.state.room;
    for (int first = 0, place = 0; first < n; first += CHOOSE) {
        const int t = first + (int)threadIdx.x;
        const bool stays = t < n && (t >= old || (by_score ? key_of(rank[t], t) >= least : t < k));
        int all;
        const int i = place + select_place<CHOOSE>(stays, &all);
        place += all;
        if (!stays)
            continue;
        kept[i] = t;
        if (a.state.score) {
            a.state.score[state + (size_t)i] = score[t];
            a.state.position[state + (size_t)i] = (uint32_t)t;
        }
    }
}

/*
 * Returns the index of dimensions 8 block .. 8 block + 7 of token t. It counts from the first
 * element of K or V (of width d) in page 0.
 */
__device__ __forceinline__ size_t piece(const kvd_evict_prompts_args &a, const int32_t *page, int t,
                                        int block, int d)
{
    return (size_t)page[t / KVD_PAGE_TOKENS] * (size_t)a.map.page_elements +
           (size_t)(t % KVD_PAGE_TOKENS / 8 * 8 * d + block * 64 + t % 8 * 8);
}

__global__ void __launch_bounds__(MOVE)
    move_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    enum { ROWS = MOVE / (DIMS / 8), EACH = RUN / ROWS };
    const int slices = (int)gridDim.x / (2 * a.map.n_kv_heads), b = (int)blockIdx.y;
    const int slice = (int)blockIdx.x % slices, side = (int)blockIdx.x / slices % 2,
              g = (int)blockIdx.x / slices / 2;
    const int n = a.q_len[b], m = kept_of(a.budget[a.slot[b]], n),
              d = side ? a.map.d_v[g] : a.map.d_qk[g];
    const int block = slice * (DIMS / 8) + (int)threadIdx.x % (DIMS / 8);
    if (m == n || slice * DIMS >= d)
        return;
    const bool there = block * 8 < d;
    const int32_t *const kept = a.kept + (size_t)g * (size_t)a.n_q8 + (size_t)a.q_start[b];
    const int32_t *const page = a.page_table + (size_t)b * (size_t)a.max_pages;
    uint16_t *const x = static_cast<uint16_t *>(a.pool) + a.map.kv_offset[g] +
                        (side ? KVD_PAGE_TOKENS * a.map.d_qk[g] : 0);
    const int end = (m + 7) / 8 * 8;
    for (int first = 0; first < end; first += RUN) {
        uint4 held[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int i = first + e * ROWS + (int)threadIdx.x / (DIMS / 8);
            held[e] = make_uint4(0, 0, 0, 0);
            if (there && i < m)
                held[e] = *reinterpret_cast<const uint4 *>(x + piece(a, page, kept[i], block, d));
        }
        __syncthreads();
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int i = first + e * ROWS + (int)threadIdx.x / (DIMS / 8);
            if (there && i < end)
                *reinterpret_cast<uint4 *>(x + piece(a, page, i, block, d)) = held[e];
        }
        __syncthreads();
    }
}

} // namespace

extern "C" cudaError_t kvd_evict_choose(const kvd_evict_prompts_args *a, cudaStream_t stream)
{
    /*
     * With `whole_layer` every CTA reads `mass` of all heads, so smoothing must not overwrite it.
     */
    if (a->batch < 1 || a->batch > 65535 || !a->kept || !a->score || a->rule.smooth < 0 ||
        (a->rule.whole_layer && a->rule.smooth > 1))
        return cudaErrorInvalidValue;
    choose_kernel<<<dim3((unsigned)a->map.n_kv_heads, (unsigned)a->batch), CHOOSE, 0, stream>>>(*a);
    const int slices = (kvd_attn_widest(&a->map) + DIMS - 1) / DIMS;
    move_kernel<<<dim3((unsigned)(a->map.n_kv_heads * 2 * slices), (unsigned)a->batch), MOVE, 0,
                  stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_evict_score_any(const kvd_evict_prompts_args *a, cudaStream_t stream)
{
    return a->rule.ranking == KVD_EVICT_FIRST       ? cudaSuccess
           : a->rule.ranking == KVD_EVICT_EXPECTED  ? kvd_evict_score_expected(a, stream)
           : a->rule.ranking != KVD_EVICT_ATTENTION ? kvd_evict_score_keys(a, stream)
           : a->hopper && kvd_attn_widest(&a->map) <= KVD_WIDTH_NARROW
               ? kvd_evict_score_sm90(a, stream)
               : kvd_evict_score(a, stream);
}

extern "C" cudaError_t kvd_evict_prompts(const kvd_evict_prompts_args *a, cudaStream_t stream)
{
    const cudaError_t e = kvd_evict_score_any(a, stream);
    return e == cudaSuccess ? kvd_evict_choose(a, stream) : e;
}
