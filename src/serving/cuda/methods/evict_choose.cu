/*
 * Which tokens of a prompt stay, and their rows of K and V together at the front of the pages.
 *
 * choose: a CTA per KV head and prompt. Scores are summed over the query heads of the group and over neighbours; the k largest of the older
 * tokens are those whose key, score above position, is at least the k-th largest key, which a radix select of 8 bits a pass finds. What stays keeps its order.
 *
 * move: token kept[i] >= i goes to place i, in rising order of i and a run of places at a time: what a run overwrites was read by it or
 * by those before. A CTA has 32 dims of K or of V of a head, so they go side by side. Bound by latency: a few runs of 256 rows.
 */
#include "serving/cuda/methods/evict.h"

namespace
{

enum { CHOOSE = 1024, MOVE = 256, RUN = 256, DIMS = 32 };

__device__ __forceinline__ int kept_of(const kvd_evict_budget &b, int n)
{
    const int newest = min(n, b.keep_new);
    return newest + min(n - newest, b.keep_old);
}

/* Rises with the score, and with the position where scores are equal. No score is negative. */
__device__ __forceinline__ unsigned long long key_of(float score, int t)
{
    return (unsigned long long)__float_as_uint(score) << 32 | (unsigned)t;
}

/* One more of a bin; where all threads of a warp meet in one, they go there together. */
__device__ __forceinline__ void count(unsigned *bin, unsigned digit)
{
    const unsigned active = __activemask();
    int same;
    (void)__match_all_sync(active, digit, &same);
    if (!same)
        atomicAdd(bin + digit, 1u);
    else if ((int)threadIdx.x % 32 == __ffs((int)active) - 1)
        atomicAdd(bin + digit, (unsigned)__popc(active));
}

/* First warp: the digit at which the sum of bins from the last one down reaches *k, and what of k is left in that bin. */
__device__ void find_digit(const unsigned *bin, int lane, unsigned *digit, unsigned *k)
{
    unsigned mine = 0, above = 0;
    for (int i = 0; i < 8; i++)
        mine += bin[255 - 8 * lane - i];
    above = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const unsigned other = __shfl_up_sync(0xffffffffu, above, step);
        above += lane >= step ? other : 0;
    }
    above -= mine;
    const unsigned want = *k;
    __syncwarp();
    if (above < want && above + mine >= want)
        for (int i = 255 - 8 * lane;; i--) {
            if (above + bin[i] >= want) {
                *digit = (unsigned)i;
                *k = want - above;
                break;
            }
            above += bin[i];
        }
}

/* The k-th largest key of n scores, 0 < k < n. */
__device__ unsigned long long find_key(const float *score, int n, int k, unsigned *bin)
{
    __shared__ unsigned digit, left;
    unsigned long long found = 0, known = 0;
    if (threadIdx.x == 0)
        left = (unsigned)k;
    for (int shift = 56; shift >= 0; shift -= 8) {
        known |= 255ull << shift;
        if (shift < 32 && (n - 1) >> shift == 0 && shift > 0)
            continue; /* of positions that are smaller */
        for (int i = (int)threadIdx.x; i < 256; i += CHOOSE)
            bin[i] = 0;
        __syncthreads();
        for (int t = (int)threadIdx.x; t < n; t += CHOOSE) {
            const unsigned long long key = key_of(score[t], t);
            if ((key & (known << 8)) == found)
                count(bin, (unsigned)(key >> shift) & 255u);
        }
        __syncthreads();
        if (threadIdx.x < 32)
            find_digit(bin, (int)threadIdx.x, &digit, &left);
        __syncthreads();
        found |= (unsigned long long)digit << shift;
    }
    return found;
}

__device__ void sum_heads(const kvd_evict_prompts_args &a, int g, size_t at, int n, float *to)
{
    for (int t = (int)threadIdx.x; t < n; t += CHOOSE) {
        float s = 0;
        for (int j = 0; j < a.map.group; j++)
            s += a.mass[(size_t)(g * a.map.group + j) * (size_t)a.n_q8 + at + (size_t)t];
        to[t] = s;
    }
    __syncthreads();
}

/* Sums over neighbours among the first n. */
__device__ void smooth(const float *x, int n, int width, float *to)
{
    for (int t = (int)threadIdx.x; t < n; t += CHOOSE) {
        float s = 0;
        for (int i = max(0, t - width / 2); i < min(n, t + width / 2 + 1); i++)
            s += x[i];
        to[t] = s;
    }
    __syncthreads();
}

/* Places of the tokens of a block of CHOOSE of them: those in front of this one, *all of them. */
__device__ int place_of(bool stays, int *all)
{
    __shared__ int part[CHOOSE / 32];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const unsigned vote = __ballot_sync(0xffffffffu, stays);
    int before = __popc(vote & ((1u << lane) - 1)), sum = 0;
    if (lane == 0)
        part[warp] = __popc(vote);
    __syncthreads();
    for (int w = 0; w < CHOOSE / 32; w++) {
        before += w < warp ? part[w] : 0;
        sum += part[w];
    }
    __syncthreads();
    *all = sum;
    return before;
}

__global__ void __launch_bounds__(CHOOSE) choose_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    __shared__ unsigned bin[256];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, n = a.q_len[b], slot = a.slot[b];
    const kvd_evict_budget budget = a.budget[slot];
    const int old = n - min(n, budget.keep_new), k = min(old, budget.keep_old);
    const size_t at = (size_t)a.q_start[b], row = (size_t)g * (size_t)a.n_q8 + at;
    float *const score = a.score + row;
    int32_t *const kept = a.kept + row;
    sum_heads(a, g, at, n, score);
    const float *rank = score;
    if (a.rule.smooth > 1) { /* in the row of the group's first head, which nobody reads any more */
        float *const to = a.mass + (size_t)(g * a.map.group) * (size_t)a.n_q8 + at;
        smooth(score, old, a.rule.smooth, to);
        rank = to;
    }
    const unsigned long long least = k < old && k > 0 ? find_key(rank, old, k, bin) : 0;
    const size_t state =
        (((size_t)slot * (size_t)a.state.n_layers + (size_t)a.layer) * (size_t)a.map.n_kv_heads + (size_t)g) *
        (size_t)a.state.room;
    for (int first = 0, place = 0; first < n; first += CHOOSE) {
        const int t = first + (int)threadIdx.x;
        const bool stays = t < n && (t >= old || k == old || (k > 0 && key_of(rank[t], t) >= least));
        int all;
        const int i = place + place_of(stays, &all);
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

/* 8 dims of a token in the pages of a slot: first element of those of a KV head's K or V, d wide. */
__device__ __forceinline__ size_t piece(const kvd_evict_prompts_args &a, const int32_t *page, int t,
                                        int block, int d)
{
    return (size_t)page[t / KVD_PAGE_TOKENS] * (size_t)a.map.page_elements +
           (size_t)(t % KVD_PAGE_TOKENS / 8 * 8 * d + block * 64 + t % 8 * 8);
}

__global__ void __launch_bounds__(MOVE) move_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    enum { ROWS = MOVE / (DIMS / 8), EACH = RUN / ROWS };
    const int slices = KVD_WIDTH_MAX / DIMS, b = (int)blockIdx.y;
    const int slice = (int)blockIdx.x % slices, side = (int)blockIdx.x / slices % 2,
              g = (int)blockIdx.x / slices / 2;
    const int n = a.q_len[b], m = kept_of(a.budget[a.slot[b]], n), d = side ? a.map.d_v[g] : a.map.d_qk[g];
    const int block = slice * (DIMS / 8) + (int)threadIdx.x % (DIMS / 8);
    if (m == n || slice * DIMS >= d)
        return;
    const bool there = block * 8 < d;
    const int32_t *const kept = a.kept + (size_t)g * (size_t)a.n_q8 + (size_t)a.q_start[b];
    const int32_t *const page = a.page_table + (size_t)b * (size_t)a.max_pages;
    uint16_t *const x =
        static_cast<uint16_t *>(a.pool) + a.map.kv_offset[g] + (side ? KVD_PAGE_TOKENS * a.map.d_qk[g] : 0);
    const int end = (m + 7) / 8 * 8; /* zeros behind the last entry of its group */
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
    if (a->batch < 1 || a->batch > 65535 || !a->kept || !a->score || a->rule.smooth < 0)
        return cudaErrorInvalidValue;
    choose_kernel<<<dim3((unsigned)a->map.n_kv_heads, (unsigned)a->batch), CHOOSE, 0, stream>>>(*a);
    move_kernel<<<dim3((unsigned)(a->map.n_kv_heads * 2 * (KVD_WIDTH_MAX / DIMS)), (unsigned)a->batch), MOVE,
                  0, stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_evict_prompts(const kvd_evict_prompts_args *a, cudaStream_t stream)
{
    const cudaError_t e = a->hopper ? kvd_evict_score_sm90(a, stream) : kvd_evict_score(a, stream);
    return e == cudaSuccess ? kvd_evict_choose(a, stream) : e;
}
