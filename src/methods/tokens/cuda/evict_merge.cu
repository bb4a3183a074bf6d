/* Merges dropped tokens into kept tokens of the same KV head, as weighted means of keys and of
 * values. */
#include "methods/tokens/cuda/evict_rank.cuh"
#include "methods/tokens/cuda/radix_select.cuh"

namespace
{

enum { HELD = 128, THREADS = 128, AHEAD = 8, RULE = 512, RANK = 1024, NEAR = 256, SPLITS = 16 };
constexpr float LEAST_LENGTH = 1e-12f;
constexpr float EULER = 2.718281828459045f;
typedef unsigned long long u64;

/* Tokens of one prompt in one KV head. `list` has the indices of the m tokens that stay, then the
 * indices of the dropped tokens. */
struct entries {
    int n, m;
    size_t row; /* index of the prompt's first element in arrays [n_kv_heads][n_q8] */
    const int32_t *list, *page;
    uint16_t *keys; /* keys in page 0 of the pool; values follow */
};

__device__ __forceinline__ entries entries_of(const kvd_evict_prompts_args &a, int g, int b)
{
    entries e;
    e.n = a.q_len[b];
    e.m = a.merging.count ? a.merging.count[a.slot[b] * a.map.n_kv_heads + g]
                          : evict_kept_of(a.budget[a.slot[b]], e.n);
    e.row = (size_t)g * a.n_q8 + a.q_start[b];
    e.list = a.kept + e.row;
    e.page = a.page_table + (size_t)b * a.max_pages;
    e.keys = static_cast<uint16_t *>(a.pool) + a.map.kv_offset[g];
    return e;
}

__device__ __forceinline__ float add_product(uint4 x, uint4 y, float sum)
{
    const uint32_t a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 u = unpack<true>(a[i]), v = unpack<true>(b[i]);
        sum = fmaf(u.x, v.x, sum);
        sum = fmaf(u.y, v.y, sum);
    }
    return sum;
}

__device__ __forceinline__ float add_square(uint4 x, uint4 y, float sum)
{
    const uint32_t a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 u = unpack<true>(a[i]), v = unpack<true>(b[i]);
        sum = fmaf(u.x - v.x, u.x - v.x, sum);
        sum = fmaf(u.y - v.y, u.y - v.y, sum);
    }
    return sum;
}

/* Writes 1 / |key| of every prompt token to a.merging.length. */
__global__ void __launch_bounds__(THREADS)
    lengths_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    const int g = (int)blockIdx.y, t = (int)(blockIdx.x * THREADS + threadIdx.x), d = a.map.d_qk[g];
    const entries e = entries_of(a, g, (int)blockIdx.z);
    if (t >= e.n || e.m == e.n)
        return;
    float sum = 0;
    for (int block = 0; block < d / 8; block++) {
        const uint4 x = *reinterpret_cast<const uint4 *>(
            e.keys + piece(e.page, a.map.page_elements, t, block, d));
        sum = add_product(x, x, sum);
    }
    a.merging.length[e.row + t] = 1 / fmaxf(sqrtf(sum), LEAST_LENGTH);
}

/* Loads K of tokens e.list[from] to e.list[from + 31] into registers, in the layout that mma.sync
 * needs. */
template <int STEPS>
__device__ __forceinline__ void hold(const entries &e, int page_elements, int d, int from, int lane,
                                     uint32_t (&x)[2][STEPS][4])
{
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = from + 16 * i + 8 * half + lane / 4;
            const bool there = at < e.n;
            const uint32_t *const p = reinterpret_cast<const uint32_t *>(
                e.keys + piece(e.page, page_elements, e.list[there ? at : 0], 0, d));
#pragma unroll
            for (int k = 0; k < STEPS; k++)
#pragma unroll
                for (int c = 0; c < 2; c++)
                    x[i][k][2 * c + half] =
                        there && 16 * k < d ? p[(2 * k + c) * 32 + lane % 4] : 0;
        }
}

/* Copies the keys of TILE tokens of e.list to shared memory. */
template <int TILE>
__device__ __forceinline__ void fetch(const entries &e, int page_elements, int d, int tile, int n,
                                      uint32_t to)
{
    for (int i = (int)threadIdx.x; i < TILE / 8 * d; i += THREADS) {
        const int at = tile * TILE + i / d * 8 + i % 8, block = i % d / 8;
        const bool there = at < n;
        kvd_copy_16(to + 16u * (uint32_t)i,
                    e.keys + piece(e.page, page_elements, e.list[there ? at : 0], block, d),
                    there ? 16 : 0);
    }
}

/* Returns the number of kept tokens into which dropped tokens may be merged. */
__device__ __forceinline__ int targets_of(const kvd_evict_prompts_args &a, const entries &e, int b)
{
    return a.rule.merge == KVD_MERGE_IMPORTANT ? e.m - min(e.n, a.budget[a.slot[b]].keep_new) : e.m;
}

/* Finds for each dropped token the kept token with the most similar key (the largest cosine). */
template <int WIDTH>
__global__ void __launch_bounds__(THREADS, WIDTH > KVD_WIDTH_NARROW ? 2 : 4)
    similar_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    constexpr int TILE = WIDTH > KVD_WIDTH_NARROW ? KVD_PAGE_TOKENS / 2 : KVD_PAGE_TOKENS,
                  STEPS = WIDTH / 16;
    /* ldmatrix reads up to 128 elements beyond a tile. */
    __shared__ __align__(128) uint16_t tiles[2][TILE * WIDTH + 128];
    __shared__ float column[2][TILE];
    const int g = (int)blockIdx.y, d = a.map.d_qk[g], lane = (int)threadIdx.x % 32;
    const entries e = entries_of(a, g, (int)blockIdx.z);
    const int base = e.m + (int)blockIdx.x * HELD, mine = base + (int)threadIdx.x / 32 * 32,
              targets = targets_of(a, e, (int)blockIdx.z), count = (targets + TILE - 1) / TILE;
    const bool last = a.rule.merge == KVD_MERGE_IMPORTANT;
    if (base >= e.n)
        return;
    uint32_t x[2][STEPS][4];
    hold(e, a.map.page_elements, d, mine, lane, x);
    float best[4];
    int like[4];
#pragma unroll
    for (int r = 0; r < 4; r++) {
        best[r] = -INFINITY;
        like[r] = -1;
    }
    const auto bring = [&](int tile, int stage) {
        fetch<TILE>(e, a.map.page_elements, d, tile, targets,
                    (uint32_t)__cvta_generic_to_shared(tiles[stage]));
        const int at = tile * TILE + (int)threadIdx.x;
        if (threadIdx.x < TILE)
            column[stage][threadIdx.x] = at < targets ? a.merging.length[e.row + e.list[at]] : NAN;
    };
    if (count > 0)
        bring(0, 0);
    for (int tile = 0, stage = 0; tile < count; tile++, stage ^= 1) {
        kvd_copies_done();
        __syncthreads();
        if (tile + 1 < count)
            bring(tile + 1, stage ^ 1);
        const uint32_t from =
            (uint32_t)__cvta_generic_to_shared(tiles[stage]) + 16u * (uint32_t)lane;
#pragma unroll 1
        for (int j = 0; j < TILE / 8; j += 2) {
            float acc[2][2][4];
            products(x, from + (uint32_t)(j * 16 * d), d, acc);
#pragma unroll
            for (int u = 0; u < 2; u++)
#pragma unroll
                for (int r = 0; r < 4; r++)
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        const int at = 8 * (j + u) + lane % 4 * 2 + c;
                        const float y = acc[u][r / 2][r % 2 * 2 + c] * column[stage][at];
                        if (y > best[r] || (last && y == best[r])) {
                            best[r] = y;
                            like[r] = tile * TILE + at;
                        }
                    }
        }
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
            const float y = __shfl_xor_sync(0xffffffffu, best[r], step);
            const int other = __shfl_xor_sync(0xffffffffu, like[r], step);
            const bool first = last ? other > like[r] : (unsigned)other < (unsigned)like[r];
            if (y > best[r] || (y == best[r] && first)) {
                best[r] = y;
                like[r] = other;
            }
        }
        const int p = mine + lane / 4 + 8 * r;
        if (lane % 4 || p >= e.n)
            continue;
        a.merging.into[e.row + p] = like[r];
        a.merging.weight[e.row + p] = best[r] * a.merging.length[e.row + e.list[p]];
    }
}

/* Method d2o: merges a dropped token if its key is similar enough to a kept key. The threshold is
 * the mean cosine of a KV head's dropped keys with their nearest kept keys. */
__global__ void __launch_bounds__(RULE)
    like_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, me = (int)threadIdx.x;
    const entries e = entries_of(a, g, b);
    int32_t *const into = a.merging.into + e.row;
    float *const weight = a.merging.weight + e.row;
    double sum = 0;
    for (int p = e.m + me; p < e.n; p += RULE)
        sum += (double)weight[p];
    /* Mean cosine of the dropped keys with their most similar kept keys. NaN if no token was
     * dropped. */
    const double mean = sum_over<RULE>(sum) / (double)(e.n - e.m);
    if (me == 0)
        a.merging.threshold[head_at(a.state, a.map.n_kv_heads, a.slot[b], g)] = mean;
    for (int p = me; p < e.n; p += RULE) {
        if (p >= e.m && !((double)weight[p] >= mean))
            into[p] = -1;
        weight[p] = p < e.m ? EULER : expf(weight[p]);
    }
}

/* Selects dropped tokens to merge into kept tokens: high-scored tokens whose key has a cosine of at
 * least rule.cosine with a kept key. */
__global__ void __launch_bounds__(RULE)
    important_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    const int g = (int)blockIdx.x, b = (int)blockIdx.y;
    const entries e = entries_of(a, g, b);
    const kvd_evict_budget budget = a.budget[a.slot[b]];
    const int old = e.n - min(e.n, budget.keep_new);
    const double most = (double)budget.keep_old * (1 + a.rule.most);
    const int k = most < (double)old ? (int)most : old;
    const float *const score = a.score + e.row;
    const auto key = [score](int t) { return key_of(score[t], t); };
    const u64 least = select_least<RULE>(key, old, k);
    for (int p = (int)threadIdx.x; p < e.n; p += RULE) {
        const int t = e.list[p];
        float *const weight = a.merging.weight + e.row + p;
        if (p >= e.m && !(score[t] > 0 && key(t) >= least && (double)*weight >= a.rule.cosine))
            a.merging.into[e.row + p] = -1;
        *weight = t < old ? score[t] : 1;
    }
}

/* Merges each dropped token into the kept token nearest by position, but not into the first
 * rule.sink tokens or the last one. */
__global__ void __launch_bounds__(THREADS)
    nearest_position_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    const entries e = entries_of(a, (int)blockIdx.y, (int)blockIdx.z);
    const int p = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (p >= e.n)
        return;
    a.merging.weight[e.row + p] = 1;
    if (p < e.m)
        return;
    const int t = e.list[p], after = t - (p - e.m), before = after - 1;
    const bool has_before = before >= a.rule.sink, has_after = after < e.m - 1;
    const bool forward = !has_before || (has_after && e.list[after] - t < t - e.list[before]);
    a.merging.into[e.row + p] = !forward ? before : has_after ? after : -1;
}

/* Marks the tokens that received the most attention, summed over query heads. Marked tokens are
 * never merged. */
__global__ void __launch_bounds__(RANK)
    heavy_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, n = a.q_len[b], group = a.map.group;
    const kvd_evict_budget budget = a.budget[a.slot[b]];
    const int old = n - min(n, budget.keep_new), k = min(old, budget.keep_old);
    const size_t at = (size_t)a.q_start[b], row = (size_t)g * a.n_q8 + at;
    float *const score = a.score + row;
    sum_heads<RANK>(a, g * group, (g + 1) * group, at, n, score);
    const auto key = [score](int t) { return key_of(score[t], t); };
    const u64 least = select_least<RANK>(key, old, k);
    for (int t = (int)threadIdx.x; t < old; t += RANK)
        a.merging.into[row + t] = key(t) >= least;
}

/* Writes 1 to merging.length for each token that joins the run of similar tokens before it, and 0
 * for each token that begins a new run. */
__global__ void __launch_bounds__(THREADS)
    joined_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, d = a.map.d_qk[g];
    const int t = (int)(blockIdx.x * THREADS + threadIdx.x), n = a.q_len[b];
    if (t >= n - min(n, a.budget[a.slot[b]].keep_new))
        return;
    const size_t row = (size_t)g * a.n_q8 + a.q_start[b];
    const int32_t *const heavy = a.merging.into + row;
    const int32_t *const page = a.page_table + (size_t)b * a.max_pages;
    const uint16_t *const keys = static_cast<const uint16_t *>(a.pool) + a.map.kv_offset[g];
    const bool may = t > 0 && !heavy[t] && !heavy[t - 1];
    float product = 0, own = 0, other = 0;
    for (int block = 0; block < d / 8 && may; block++) {
        const uint4 x = *reinterpret_cast<const uint4 *>(
                        keys + piece(page, a.map.page_elements, t, block, d)),
                    y = *reinterpret_cast<const uint4 *>(
                        keys + piece(page, a.map.page_elements, t - 1, block, d));
        product = add_product(x, y, product);
        own = add_product(x, x, own);
        other = add_product(y, y, other);
    }
    const float cosine = product / fmaxf(sqrtf(own) * sqrtf(other), 1e-30f);
    a.merging.length[row + t] = may && (double)cosine > a.rule.cosine ? 1 : 0;
}

/* Run of similar adjacent tokens, those with indices `from` to `to` - 1. They merge into one of
 * them, `pivot`. */
struct run {
    int from, to, pivot, j, m;
};

/* Returns the index of token t in a list with all kept tokens first, then all merged tokens. r: the
 * run of similar adjacent tokens that contains t. */
__device__ __forceinline__ int place_in(const run &r, int t)
{
    return t == r.pivot ? r.j : r.m + t - (r.j + (r.pivot < t));
}

/* Returns the array with the first token of each run of similar adjacent tokens, for KV head g of
 * prompt b. */
__device__ __forceinline__ int32_t *starts_of(const kvd_evict_prompts_args &a, int g, int b)
{
    return reinterpret_cast<int32_t *>(a.mass + (size_t)(g * a.map.group) * a.n_q8 + a.q_start[b]);
}

/* Finds the runs of similar adjacent tokens, and for each run the token into which the others
 * merge. */
__global__ void __launch_bounds__(RANK)
    runs_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, me = (int)threadIdx.x, lane = me % 32,
              n = a.q_len[b], old = n - min(n, a.budget[a.slot[b]].keep_new);
    const size_t row = (size_t)g * a.n_q8 + a.q_start[b];
    const float *const joined = a.merging.length + row, *const score = a.score + row;
    int32_t *const list = a.kept + row, *const start = starts_of(a, g, b);
    const int runs = select_each<RANK>(
        old, [joined](int t) { return joined[t] == 0; }, [start](int i, int t) { start[i] = t; });
    __syncthreads();
    for (int j = me / 32; j < runs; j += RANK / 32) {
        run r = {start[j], j + 1 < runs ? start[j + 1] : old, 0, j, runs + n - old};
        u64 most = 0;
        for (int t = r.from + lane; t < r.to; t += 32)
            most = max(most, key_of(score[t], 0) | (unsigned)~t);
#pragma unroll
        for (int step = 16; step; step /= 2)
            most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
        r.pivot = (int)~(unsigned)most;
        for (int t = r.from + lane; t < r.to; t += 32) {
            const int p = place_in(r, t);
            list[p] = t;
            if (t != r.pivot)
                a.merging.into[row + p] = j;
        }
    }
    for (int t = old + me; t < n; t += RANK)
        list[runs + t - old] = t;
    if (me == 0)
        a.merging.count[a.slot[b] * a.map.n_kv_heads + g] = runs + n - old;
}

/* Writes the merging weights exp(-(x / y)^2) of tokens. x is the distance of a token's key from the
 * key of the token into which it merges, y the mean of x over all tokens that merge into the same
 * token. */
__global__ void __launch_bounds__(NEAR)
    run_weights_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, d = a.map.d_qk[g],
              lane = (int)threadIdx.x % 32;
    const entries e = entries_of(a, g, b);
    const int old = e.n - min(e.n, a.budget[a.slot[b]].keep_new), runs = e.m - (e.n - old);
    const int32_t *const start = starts_of(a, g, b);
    float *const weight = a.merging.weight + e.row;
    const int j = (int)blockIdx.x * (NEAR / 32) + (int)threadIdx.x / 32;
    if (j >= runs)
        return;
    const run r = {start[j], j + 1 < runs ? start[j + 1] : old, e.list[j], j, e.m};
    float sum = 0;
    for (int t = r.from + lane; t < r.to; t += 32) {
        float square = 0;
        for (int block = 0; block < d / 8; block++) {
            const uint4 x = *reinterpret_cast<const uint4 *>(
                            e.keys + piece(e.page, a.map.page_elements, t, block, d)),
                        y = *reinterpret_cast<const uint4 *>(
                            e.keys + piece(e.page, a.map.page_elements, r.pivot, block, d));
            square = add_square(x, y, square);
        }
        sum += weight[place_in(r, t)] = sqrtf(square);
    }
#pragma unroll
    for (int step = 16; step; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const float mean = sum / (float)(r.to - r.from);
    for (int t = r.from + lane; t < r.to; t += 32) {
        float *const w = weight + place_in(r, t);
        const float x = mean > 0 ? *w / mean : 0;
        *w = expf(-x * x);
    }
}

/* Number of kept tokens per CTA, limited by shared memory. */
template <int WIDTH> constexpr int kept_each = WIDTH > KVD_WIDTH_NARROW ? 16 : 32;

/* Replaces K and V of each kept token by the weighted means over the token itself and all tokens
 * merged into it. */
template <int WIDTH>
__global__ void __launch_bounds__(2 * WIDTH)
    merge_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    constexpr int MERGE = 2 * WIDTH, KEPT = kept_each<WIDTH>;
    __shared__ float sum[KEPT][MERGE], total[KEPT];
    __shared__ int from[MERGE], to[MERGE];
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, me = (int)threadIdx.x, d_k = a.map.d_qk[g],
              d_v = a.map.d_v[g], first = (int)blockIdx.x * KEPT;
    const entries e = entries_of(a, g, b);
    const int32_t *const into = a.merging.into + e.row;
    const float *const weight = a.merging.weight + e.row;
    const bool is_key = me < d_k, there = me < d_k + d_v;
    const int c = is_key ? me : me - d_k, d = is_key ? d_k : d_v;
    uint16_t *const x = e.keys + (is_key ? 0 : KVD_PAGE_TOKENS * d_k) + c % 8;
    int merged = 0;
    if (first >= e.m || e.m == e.n)
        return;
    const auto at = [&](int p) {
        return x + piece(e.page, a.map.page_elements, e.list[p], c / 8, d);
    };
    for (int j = 0; j < KEPT; j++)
        sum[j][me] = 0;
    if (me < KEPT)
        total[me] = 0;
    for (int start = e.m; start < e.n; start += MERGE) {
        const int p = start + me, j = p < e.n && into[p] >= 0 ? into[p] - first : -1;
        const bool here = j >= 0 && j < KEPT;
        int all;
        const int i = select_place<MERGE>(here, &all);
        if (here) {
            from[i] = p;
            to[i] = j;
        }
        __syncthreads();
        for (int k = 0; k < all; k += AHEAD) {
            float y[AHEAD], w[AHEAD];
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                const int q = k + u < all ? from[k + u] : -1;
                w[u] = q >= 0 ? weight[q] : 0;
                y[u] = q >= 0 && there ? wide(*at(q)) : 0;
            }
#pragma unroll
            for (int u = 0; u < AHEAD; u++)
                if (k + u < all) {
                    sum[to[k + u]][me] += w[u] * y[u];
                    if (me == 0)
                        total[to[k + u]] += w[u];
                }
        }
        merged += all;
        __syncthreads();
    }
    for (int j = 0; j < KEPT && there; j++)
        if (total[j] > 0) {
            const float own = weight[first + j];
            uint16_t *const y = at(first + j);
            *y = __bfloat16_as_ushort(
                __float2bfloat16((own * wide(*y) + sum[j][me]) / (own + total[j])));
        }
    if (me == 0 && merged)
        atomicAdd(a.merging.merged + a.slot[b], merged);
}

/* Candidate for merging: a cached token into which a decode step may merge the token that it
 * drops. */
struct candidate {
    u64 key; /* sort key: cosine in the upper half, inverted position in the lower */
    int place, unused;
};

/* Returns a sort key that is larger for a larger cosine or, if cosines are equal, for an earlier
 * position. */
__device__ __forceinline__ u64 key_at(float cosine, uint32_t position)
{
    return (key_of(cosine, 0) & 0xffffffffull << 32) | (u64)(uint32_t)~position;
}

__device__ __forceinline__ float cosine_of(u64 key)
{
    const uint32_t rising = (uint32_t)(key >> 32);
    return __uint_as_float(rising >> 31 ? rising & 0x7fffffffu : ~rising);
}

/* Finds, among the cached tokens that this CTA handles, the one whose key is most similar to the
 * key of the dropped token. */
__global__ void __launch_bounds__(NEAR)
    nearest_kernel(const __grid_constant__ kvd_evict_steps_args a)
{
    __shared__ uint4 own[KVD_WIDTH_MAX / 8];
    __shared__ candidate part[NEAR];
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, slot = a.slot[b], me = (int)threadIdx.x,
              d = a.map.d_qk[g];
    if (slot >= a.state.n_slots)
        return;
    const size_t number = (size_t)b * a.map.n_kv_heads + g;
    const int victim = a.merging.victim[number], n = a.kv_len[b];
    if (victim < 0)
        return;
    const int32_t *const page = a.page_table + (size_t)b * a.max_pages;
    const uint16_t *const keys = static_cast<const uint16_t *>(a.pool) + a.map.kv_offset[g];
    const auto at = [&](int i, int block) {
        return *reinterpret_cast<const uint4 *>(keys +
                                                piece(page, a.map.page_elements, i, block, d));
    };
    if (me < d / 8)
        own[me] = at(victim, me);
    __syncthreads();
    float square = 0;
    for (int block = 0; block < d / 8; block++)
        square = add_product(own[block], own[block], square);
    const float length = fmaxf(sqrtf(square), LEAST_LENGTH);
    const uint32_t *const position =
        a.state.position + state_at(a.state, a.map.n_kv_heads, slot, g);
    candidate best = {0, -1, 0};
    for (int i = (int)blockIdx.x * NEAR + me; i < n; i += (int)gridDim.x * NEAR) {
        if (i == victim)
            continue;
        float product = 0, other = 0;
        for (int block = 0; block < d / 8; block++) {
            const uint4 x = at(i, block);
            product = add_product(own[block], x, product);
            other = add_product(x, x, other);
        }
        const float u = product / (length * fmaxf(sqrtf(other), LEAST_LENGTH));
        const u64 key = key_at(u, position[i]);
        if (key > best.key)
            best = {key, i, 0};
    }
    part[me] = best;
    for (int step = NEAR / 2; step > 0; step /= 2) {
        __syncthreads();
        if (me < step && part[me + step].key > part[me].key)
            part[me] = part[me + step];
    }
    if (me == 0)
        static_cast<candidate *>(a.merging.near)[number * SPLITS + blockIdx.x] = part[0];
}

/* Merges the dropped token into the most similar one, if the cosine of their keys reaches the
 * running mean of such cosines. Then moves the newest token to the freed index. */
__global__ void __launch_bounds__(2 * KVD_WIDTH_MAX)
    merge_step_kernel(const __grid_constant__ kvd_evict_steps_args a, int splits)
{
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, slot = a.slot[b], me = (int)threadIdx.x,
              d_k = a.map.d_qk[g], d_v = a.map.d_v[g];
    if (slot >= a.state.n_slots)
        return;
    const size_t number = (size_t)b * a.map.n_kv_heads + g;
    const int victim = a.merging.victim[number], newest = a.kv_len[b] - 1;
    if (victim < 0)
        return;
    const candidate *const near = static_cast<const candidate *>(a.merging.near) + number * SPLITS;
    const int32_t *const page = a.page_table + (size_t)b * a.max_pages;
    candidate best = near[0];
    for (int i = 1; i < splits; i++)
        if (near[i].key > best.key)
            best = near[i];
    double *const threshold = a.merging.threshold + head_at(a.state, a.map.n_kv_heads, slot, g);
    const double u = (double)cosine_of(best.key), old = *threshold,
                 mean = isnan(old) ? u : a.rule.beta * u + (1 - a.rule.beta) * old;
    const bool merges = best.place >= 0 && u >= mean;
    if (merges && me < d_k + d_v) {
        const bool is_key = me < d_k;
        const int c = is_key ? me : me - d_k, d = is_key ? d_k : d_v;
        uint16_t *const x = static_cast<uint16_t *>(a.pool) + a.map.kv_offset[g] +
                            (is_key ? 0 : KVD_PAGE_TOKENS * d_k) + c % 8;
        const float weight = expf((float)u);
        uint16_t *const to = x + piece(page, a.map.page_elements, best.place, c / 8, d);
        const float from = wide(x[piece(page, a.map.page_elements, victim, c / 8, d)]);
        *to = __bfloat16_as_ushort(
            __float2bfloat16((EULER * wide(*to) + weight * from) / (EULER + weight)));
    }
    __syncthreads();
    if (me == 0) {
        *threshold = best.place < 0 ? old : mean;
        if (merges)
            atomicAdd(a.merging.merged + slot, 1);
    }
    if (victim == newest)
        return;
    move_piece(a, b, g, newest, victim, me);
    if (me == 0) {
        const size_t state = state_at(a.state, a.map.n_kv_heads, slot, g);
        a.state.score[state + victim] = a.state.score[state + newest];
        a.state.position[state + victim] = a.state.position[state + newest];
    }
}

template <int WIDTH> cudaError_t launch_merge(const kvd_evict_prompts_args &a, cudaStream_t stream)
{
    const int each = kept_each<WIDTH>;
    merge_kernel<WIDTH>
        <<<dim3((a.longest + each - 1) / each, a.map.n_kv_heads, a.batch), 2 * WIDTH, 0, stream>>>(
            a);
    return cudaGetLastError();
}

} // namespace

extern "C" cudaError_t kvd_evict_merge(const kvd_evict_prompts_args *a, cudaStream_t stream)
{
    const kvd_evict_merging *const m = &a->merging;
    if (a->batch < 1 || a->batch > 65535 || a->longest < 1 || !a->kept || !m->into || !m->weight ||
        !m->length || !m->merged || (a->rule.merge == KVD_MERGE_LIKE && !m->threshold))
        return cudaErrorInvalidValue;
    const int kv = a->map.n_kv_heads, batch = a->batch, n = (unsigned)a->longest;
    const bool over = kvd_attn_widest(&a->map) > KVD_WIDTH_NARROW;
    const dim3 tokens((n + THREADS - 1) / THREADS, kv, batch);
    if (a->rule.merge == KVD_MERGE_NEAREST) {
        nearest_position_kernel<<<tokens, THREADS, 0, stream>>>(*a);
    } else if (a->rule.merge != KVD_MERGE_RUNS) {
        lengths_kernel<<<tokens, THREADS, 0, stream>>>(*a);
        const dim3 held((n + HELD - 1) / HELD, kv, batch);
        if (over)
            similar_kernel<KVD_WIDTH_MAX><<<held, THREADS, 0, stream>>>(*a);
        else
            similar_kernel<KVD_WIDTH_NARROW><<<held, THREADS, 0, stream>>>(*a);
    }
    if (a->rule.merge == KVD_MERGE_LIKE)
        like_kernel<<<dim3(kv, batch), RULE, 0, stream>>>(*a);
    if (a->rule.merge == KVD_MERGE_IMPORTANT)
        important_kernel<<<dim3(kv, batch), RULE, 0, stream>>>(*a);
    return over ? launch_merge<KVD_WIDTH_MAX>(*a, stream)
                : launch_merge<KVD_WIDTH_NARROW>(*a, stream);
}

extern "C" cudaError_t kvd_evict_runs(const kvd_evict_prompts_args *a, cudaStream_t stream)
{
    const kvd_evict_merging *const m = &a->merging;
    if (a->batch < 1 || a->batch > 65535 || a->longest < 1 || !a->kept || !a->mass || !a->score ||
        !m->into || !m->weight || !m->length || !m->count || a->rule.merge != KVD_MERGE_RUNS)
        return cudaErrorInvalidValue;
    const int kv = a->map.n_kv_heads, batch = a->batch, n = (unsigned)a->longest, each = NEAR / 32;
    heavy_kernel<<<dim3(kv, batch), RANK, 0, stream>>>(*a);
    joined_kernel<<<dim3((n + THREADS - 1) / THREADS, kv, batch), THREADS, 0, stream>>>(*a);
    runs_kernel<<<dim3(kv, batch), RANK, 0, stream>>>(*a);
    run_weights_kernel<<<dim3((n + each - 1) / each, kv, batch), NEAR, 0, stream>>>(*a);
    return cudaGetLastError();
}

extern "C" size_t kvd_evict_near_bytes(const kvd_attn_map *map, size_t batch)
{
    return batch * (size_t)map->n_kv_heads * SPLITS * sizeof(candidate);
}

extern "C" cudaError_t kvd_evict_merge_step(const kvd_evict_steps_args *a, cudaStream_t stream)
{
    const kvd_evict_merging *const m = &a->merging;
    if (!m->threshold || !m->merged || !m->victim || !m->near || a->rule.merge != KVD_MERGE_LIKE)
        return cudaErrorInvalidValue;
    const int wanted = (a->state.room + NEAR - 1) / NEAR,
              splits = wanted < SPLITS ? wanted : (int)SPLITS;
    const int kv = a->map.n_kv_heads, batch = a->batch;
    nearest_kernel<<<dim3(splits, kv, batch), NEAR, 0, stream>>>(*a);
    merge_step_kernel<<<dim3(kv, batch), 2 * kvd_attn_widest(&a->map), 0, stream>>>(*a, splits);
    return cudaGetLastError();
}
