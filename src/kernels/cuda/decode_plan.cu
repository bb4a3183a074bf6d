/* Divides decode attention among CTAs, on the device, from the lengths of the requests. */
#include <string.h>

#include "common/cuda/launch.cuh"
#include "common/half.h"
#include "kernels/cuda/decode.h"
#include "kernels/cuda/decode_work.h"

typedef unsigned long long u64;

enum {
    N_THREADS = 1024,
    SMEM_KEYS = 16384, /* largest number of sort keys in shared memory */
    CTAS_MAX = 1024,
    /* Cost of processing 8 tokens, in addition to reading their K and V. Unit: time of reading 16
     * bytes, measured on an H200. */
    GROUP_COST = 16,
    /* Fixed cost of a CTA's work on one KV head. Unit: time of reading 16 bytes, measured on an
     * H200. */
    SEGMENT_COST = 2048,
    CUT_TOKENS = KVD_PAGE_TOKENS / 2, /* A KV head's tokens are cut at multiples of this number. */
    /* Cost of merging partial results, about 2 us on an SM of an H200. Unit: time of reading 16
     * bytes. */
    MERGE_COST = 4096
};

typedef struct {
    kvd_decode_work work;
    const int32_t *kv_len, *second_len, *live;
    int32_t batch, n_kv_heads, n_ctas, group;
    /* Number of KV heads that have kv_len tokens. The KV heads after them have second_len
     * tokens. */
    int32_t n_first;
    int32_t window;
    /* cost_before[g]: cost of 8 tokens, summed over the KV heads before head g. The unit is the
     * time of reading 16 bytes. The array has n_kv_heads + 1 elements. */
    int32_t cost_before[KVD_HEADS_MAX + 1];
} params;

static __device__ int pages_of(int tokens)
{
    return (tokens + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
}

static __device__ int pieces_of(const params &p, int tokens)
{
    return (tokens + CUT_TOKENS - 1) / CUT_TOKENS;
}

/* Returns how many pages at the start of request b's page table belong only to the second half of
 * the KV heads. 0: all KV heads use the same pages. */
static __device__ int pages_before(const params &p, int b)
{
    return p.second_len ? pages_of(p.second_len[b]) : 0;
}

static __device__ int tokens_before(const params &p, int b)
{
    return p.window ? max(0, p.kv_len[b] - p.window) : 0;
}

/* Returns the number of tokens that a KV head reads. With a sliding window, reading starts at a
 * multiple of CUT_TOKENS. */
static __device__ int tokens_of(const params &p, int b, int head)
{
    return head < p.n_first ? p.kv_len[b] - pages_before(p, b) * KVD_PAGE_TOKENS -
                                  tokens_before(p, b) / CUT_TOKENS * CUT_TOKENS
                            : p.second_len[b];
}

static __device__ kvd_decode_segment whole(const params &p, int task)
{
    kvd_decode_segment s;
    s.request = task / p.n_kv_heads;
    s.head = task % p.n_kv_heads;
    const int before = tokens_before(p, s.request);
    s.page = (s.head < p.n_first ? pages_before(p, s.request) : 0) + before / KVD_PAGE_TOKENS;
    s.skip = before % KVD_PAGE_TOKENS;
    s.n_tokens = tokens_of(p, s.request, s.head) + s.skip / CUT_TOKENS * CUT_TOKENS;
    s.first_cta = 0;
    s.span = s.live = 1;
    return s;
}

static __device__ void put_segment(kvd_decode_segment *to, const kvd_decode_segment &s)
{
    int4 *at = reinterpret_cast<int4 *>(to);
    at[0] = make_int4(s.request, s.head, s.page, s.n_tokens);
    at[1] = make_int4(s.first_cta, s.span, s.live, s.skip);
}

/* Stores a token range as the k-th range of CTA c. */
static __device__ void put(const params &p, int c, int k, int next_of_cta,
                           const kvd_decode_segment &s)
{
    put_segment(k ? p.work.list + next_of_cta + k - 1 : &p.work.cta[c].first_segment, s);
}

static __device__ void put_count(const params &p, int c, int count, int next)
{
    *reinterpret_cast<int4 *>(p.work.cta + c) = make_int4(count, next, 0, 0);
}

static __device__ __forceinline__ void plan_none(const params &p, int batch)
{
    const int tasks = batch * p.n_kv_heads, n = p.n_ctas;
    for (int c = (int)threadIdx.x; c < n; c += N_THREADS) {
        const int extra = tasks % n < c ? tasks % n : c;
        put_count(p, c, tasks / n + (c < tasks % n), c * (tasks / n) + extra);
        p.work.arrived[c] = 0;
    }
    for (int t = (int)threadIdx.x; t < tasks; t += N_THREADS) {
        const int c = t % n, extra = tasks % n < c ? tasks % n : c;
        put(p, c, t / n, c * (tasks / n) + extra, whole(p, t));
    }
}

/* Sorts key [n] in decreasing order; n is a power of 2. */
static __device__ void sort_falling(u64 *key, int n)
{
    for (int size = 2; size <= n; size *= 2)
        for (int stride = size / 2; stride; stride /= 2) {
            for (int k = (int)threadIdx.x; k < n / 2; k += N_THREADS) {
                const int i = k / stride * stride * 2 + k % stride, j = i + stride;
                const u64 a = key[i], b = key[j];
                if ((a < b) == !(i & size)) {
                    key[i] = b;
                    key[j] = a;
                }
            }
            __syncthreads();
        }
}

static __device__ __forceinline__ void plan_papers(const params &p, int batch)
{
    extern __shared__ u64 smem_keys[];
    __shared__ u64 load[CTAS_MAX], sorted[CTAS_MAX], lowest[N_THREADS / 32];
    __shared__ int16_t by_rank[CTAS_MAX];
    __shared__ int32_t count[CTAS_MAX];
    const int tasks = batch * p.n_kv_heads, n = p.n_ctas, tid = (int)threadIdx.x;
    int n_keys = 1;
    while (n_keys < tasks)
        n_keys *= 2;
    u64 *key = p.batch * p.n_kv_heads <= SMEM_KEYS ? smem_keys : p.work.scratch;

    for (int t = tid; t < n_keys; t += N_THREADS) {
        const int g = t % p.n_kv_heads;
        const u64 width = (u64)(p.cost_before[g + 1] - p.cost_before[g]) / 16;
        key[t] = t < tasks
                     ? (u64)tokens_of(p, t / p.n_kv_heads, g) * width << 24 | (u64)(0xffffff - t)
                     : 0;
    }
    if (tid < n) {
        load[tid] = 0;
        count[tid] = 0;
        p.work.arrived[tid] = 0;
    }
    __syncthreads();
    sort_falling(key, n_keys);

    for (int given = 0; given < tasks;) {
        for (int base = 0; base < n; base += N_THREADS / 4) {
            const int c = base + tid / 4;
            int rank = 0;
            if (c < n) {
                const u64 mine = load[c];
                for (int i = tid % 4; i < n; i += 4)
                    rank += load[i] < mine || (load[i] == mine && i < c);
            }
            rank += __shfl_xor_sync(~0u, rank, 1);
            rank += __shfl_xor_sync(~0u, rank, 2);
            if (c < n && tid % 4 == 0) {
                sorted[rank] = load[c];
                by_rank[rank] = (int16_t)c;
            }
        }
        __syncthreads();
        const bool candidate = tid < n && given + tid < tasks;
        const u64 then = candidate ? sorted[tid] + (key[given + tid] >> 24) : ~0ull;
        u64 least = then; /* smallest value of variable `then` in lanes 0 .. this one */
        for (int d = 1; d < 32; d *= 2) {
            const u64 other = __shfl_up_sync(~0u, least, d);
            if (tid % 32 >= d && other < least)
                least = other;
        }
        if (tid % 32 == 31)
            lowest[tid / 32] = least;
        __syncthreads();
        u64 before = __shfl_up_sync(~0u, least, 1);
        if (tid % 32 == 0)
            before = ~0ull;
        for (int w = 0; w < tid / 32 && w < (n + 31) / 32; w++)
            before = lowest[w] < before ? lowest[w] : before;
        const bool give = candidate && before >= sorted[tid];
        if (give) {
            const int c = by_rank[tid];
            load[c] = then;
            p.work.assigned[given + tid] = (uint32_t)c << 16 | (uint32_t)count[c]++;
        }
        given += __syncthreads_count(give);
    }

    __shared__ int32_t start[CTAS_MAX];
    if (tid < 32) {
        int sum = 0;
        for (int base = 0; base < n; base += 32) {
            const int mine = base + tid < n ? count[base + tid] : 0;
            const int up = kvd_sum_to_lane(mine);
            if (base + tid < n)
                start[base + tid] = sum + up - mine;
            sum += __shfl_sync(~0u, up, 31);
        }
    }
    __syncthreads();
    if (tid < n)
        put_count(p, tid, count[tid], start[tid]);
    for (int k = tid; k < tasks; k += N_THREADS) {
        const uint32_t a = p.work.assigned[k];
        const int c = (int)(a >> 16);
        put(p, c, (int)(a & 0xffff), start[c], whole(p, 0xffffff - (int)(key[k] & 0xffffff)));
    }
}

/* Returns the cost of attention for KV heads first .. end - 1 of request b, in 16-byte reads. These
 * KV heads must have equally many tokens. */
static __device__ u64 heads_cost(const params &p, int b, int first, int end)
{
    return (u64)((tokens_of(p, b, first) + 7) / 8) *
               (u64)(p.cost_before[end] - p.cost_before[first]) +
           (u64)(end - first) * (u64)SEGMENT_COST;
}

static __device__ u64 request_cost(const params &p, int b)
{
    return heads_cost(p, b, 0, p.n_first) +
           (p.n_first < p.n_kv_heads ? heads_cost(p, b, p.n_first, p.n_kv_heads) : 0);
}

static __device__ void sum_costs(const params &p, int batch, u64 *sum)
{
    __shared__ u64 of_warp[N_THREADS / 32];
    const int tid = (int)threadIdx.x;
    u64 done = 0;
    for (int base = 0; base < batch; base += N_THREADS) {
        const int b = base + tid;
        const u64 up = kvd_sum_to_lane(b < batch ? request_cost(p, b) : 0);
        if (tid % 32 == 31)
            of_warp[tid / 32] = up;
        __syncthreads();
        u64 before = tid % 32 < N_THREADS / 32 ? of_warp[tid % 32] : 0;
        const u64 scan = kvd_sum_to_lane(before);
        before = __shfl_sync(~0u, scan - before, tid / 32);
        if (b < batch)
            sum[b + 1] = done + before + up;
        done += __shfl_sync(~0u, scan, 31);
        __syncthreads();
    }
    if (tid == 0)
        sum[0] = 0;
    __syncthreads();
}

/* Returns where CTA c's part of the work begins. x: request * n_kv_heads + KV head. y: index of the
 * first block of CUT_TOKENS tokens in this KV head. */
static __device__ int2 cut(const params &p, int batch, const u64 *sum, int c)
{
    const int n_kv = p.n_kv_heads;
    if (c == p.n_ctas)
        return make_int2(batch * n_kv, 0);
    u64 at = sum[batch] * (u64)c / (u64)p.n_ctas;
    const int low = kvd_last_true(0, batch, [&](int i) { return sum[i] <= at; });
    at -= sum[low];
    int first = 0, above = p.n_first;
    if (above < n_kv && heads_cost(p, low, 0, above) <= at) {
        at -= heads_cost(p, low, 0, above);
        first = above;
        above = n_kv;
    }
    const int pieces = pieces_of(p, tokens_of(p, low, first));
    const int g =
        kvd_last_true(first, above, [&](int i) { return heads_cost(p, low, first, i) <= at; });
    at -= heads_cost(p, low, first, g);
    const u64 piece = (u64)(CUT_TOKENS / 8) * (u64)(p.cost_before[g + 1] - p.cost_before[g]);
    const u64 segment = (u64)SEGMENT_COST;
    const u64 rounded = at < segment ? 0 : (at - segment + piece / 2) / piece;
    const int task = low * n_kv + g;
    return rounded >= (u64)pieces ? make_int2(task + 1, 0) : make_int2(task, (int)rounded);
}

static __device__ u64 cost_before_task(const params &p, const u64 *sum, int task)
{
    const int b = task / p.n_kv_heads, g = task % p.n_kv_heads;
    if (g == 0)
        return sum[b];
    return sum[b] + heads_cost(p, b, 0, min(g, p.n_first)) +
           (g > p.n_first ? heads_cost(p, b, p.n_first, g) : 0);
}

/* Tries to divide the work such that no CTA reads tokens of two KV heads, because this saves
 * merging. Returns 0 if it is not possible. */
static __device__ int align(const params &p, int batch, const u64 *sum, int32_t *first_cta,
                            int2 *start)
{
    const int n = p.n_ctas, tasks = batch * p.n_kv_heads;
    const u64 total = sum[batch];
    int fits = 0;
    for (int attempt = 0; attempt < 2 && !fits; attempt++) {
        for (int t = (int)threadIdx.x; t <= tasks; t += N_THREADS)
            first_cta[t] =
                attempt == 0
                    ? t
                    : (int32_t)((2 * cost_before_task(p, sum, t) * (u64)n + total) / (2 * total));
        __syncthreads();
        fits = 1;
        for (int t = (int)threadIdx.x; t < tasks; t += N_THREADS) {
            const int ctas = first_cta[t + 1] - first_cta[t];
            const u64 cost = cost_before_task(p, sum, t + 1) - cost_before_task(p, sum, t);
            const u64 more = ctas == 1 ? 16 * (u64)MERGE_COST * (u64)n : 0;
            fits = fits && ctas > 0 && 16 * cost * (u64)n <= 17 * total * (u64)ctas + more;
        }
        fits = __syncthreads_and(fits);
    }
    if (!fits)
        return 0;
    for (int c = (int)threadIdx.x; c <= n; c += N_THREADS) {
        const int t = kvd_last_true(0, tasks + 1, [&](int i) { return first_cta[i] <= c; });
        start[c] = make_int2(t, 0);
        if (t < tasks)
            start[c].y = (int)((u64)(c - first_cta[t]) *
                               (u64)pieces_of(p, tokens_of(p, t / p.n_kv_heads, t % p.n_kv_heads)) /
                               (u64)(first_cta[t + 1] - first_cta[t]));
    }
    return 1;
}

/* The array start[] is sorted by x, then by y. Returns the smallest i < n for which start[i] is at
 * least (task, page), or n if there is none. */
static __device__ int first_at(const int2 *start, int n, int task, int page)
{
    int low = 0, high = n;
    while (low < high) {
        const int mid = (low + high) / 2;
        if (start[mid].x > task || (start[mid].x == task && start[mid].y >= page))
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

static __device__ __forceinline__ void plan_ours(const params &p, int batch)
{
    extern __shared__ u64 smem_keys[];
    __shared__ int2 start[CTAS_MAX + 1];
    __shared__ uint32_t works[CTAS_MAX / 32]; /* bit c is set if CTA c has work */
    const int n = p.n_ctas, tid = (int)threadIdx.x, tasks = batch * p.n_kv_heads;
    u64 *sum = p.batch + 1 <= SMEM_KEYS ? smem_keys : p.work.scratch;
    sum_costs(p, batch, sum);
    __shared__ int32_t first_cta[CTAS_MAX + 1];
    if (tasks > n || !align(p, batch, sum, first_cta, start))
        for (int c = tid; c <= n; c += N_THREADS)
            start[c] = cut(p, batch, sum, c);
    __syncthreads();
    {
        const int c = tid;
        const bool some = c < n && (start[c].x != start[c + 1].x || start[c].y != start[c + 1].y);
        const uint32_t mask = __ballot_sync(~0u, some);
        if (c % 32 == 0)
            works[c / 32] = mask;
        if (c < n) {
            put_count(p, c, some ? start[c + 1].x - start[c].x + (start[c + 1].y > 0) : 0,
                      start[c].x + c);
            p.work.arrived[c] = 0;
            /* A CTA without work must leave an empty partial result, because the last CTA of a KV
             * head may merge it. */
            if (!some)
                for (int i = 0; i < p.group; i++)
                    reinterpret_cast<float2 *>(
                        p.work.slot_ml)[2 * (size_t)c * (size_t)p.group + (size_t)i] =
                        make_float2(-INFINITY, -1);
        }
    }
    __syncthreads();

    for (int e = tid; e < tasks + n; e += N_THREADS) {
        const int c = kvd_last_true(0, n, [&](int i) { return start[i].x + i <= e; });
        const int2 from = start[c], to = start[c + 1];
        const int task = e - c;
        if (!(works[c / 32] >> c % 32 & 1) || task > to.x || (task == to.x && to.y == 0))
            continue;
        kvd_decode_segment s = whole(p, task);
        /* Splits the s.skip tokens before the sliding window into `half` blocks of CUT_TOKENS
         * tokens and `older` remaining tokens. */
        const int half = s.skip / CUT_TOKENS, older = s.skip % CUT_TOKENS,
                  pieces = pieces_of(p, s.n_tokens - half * CUT_TOKENS);
        const int piece0 = task == from.x ? from.y : 0, piece1 = task == to.x ? to.y : pieces;
        const int page0 = (half + piece0) * CUT_TOKENS / KVD_PAGE_TOKENS;
        s.page += page0;
        s.skip = (half + piece0) * CUT_TOKENS % KVD_PAGE_TOKENS + (piece0 ? 0 : older);
        s.n_tokens =
            (piece1 < pieces ? (half + piece1) * CUT_TOKENS : s.n_tokens) - page0 * KVD_PAGE_TOKENS;
        if (piece0 > 0 || piece1 < pieces) {
            const int first = first_at(start, n, task, 1) - 1,
                      end = first_at(start, n, task + 1, 0);
            int live = 0;
            for (int w = first / 32; w <= (end - 1) / 32; w++) {
                uint32_t mask = works[w];
                if (w == first / 32)
                    mask &= ~0u << first % 32;
                if (w == (end - 1) / 32)
                    mask &= ~0u >> (31 - (end - 1) % 32);
                live += __popc(mask);
            }
            s.first_cta = first;
            s.span = end - first;
            s.live = live;
        }
        put(p, c, task - from.x, from.x + c, s);
    }
}

template <int SCHEDULE> static __device__ __forceinline__ void plan(const params &p)
{
    const int batch = p.live ? min(*p.live, p.batch) : p.batch;
    if constexpr (SCHEDULE == KVD_SCHEDULE_NONE)
        plan_none(p, batch);
    else if constexpr (SCHEDULE == KVD_SCHEDULE_PAPERS)
        plan_papers(p, batch);
    else
        plan_ours(p, batch);
}

template <int SCHEDULE>
static __global__ void __launch_bounds__(N_THREADS) plan_kernel(const __grid_constant__ params p)
{
    plan<SCHEDULE>(p);
}

template <int SCHEDULE>
static __global__ void __launch_bounds__(N_THREADS) plan_layers_kernel(const params *p)
{
    plan<SCHEDULE>(p[blockIdx.x]);
}

size_t kvd_decode_plan_layer_bytes(void)
{
    return sizeof(params);
}

cudaError_t kvd_decode_plan_describe(const kvd_decode_args *args, kvd_schedule schedule,
                                     void *layer)
{
    const cudaError_t e = kvd_decode_check(args);
    if (e != cudaSuccess)
        return e;
    const kvd_attn_map *map = &args->map;
    const size_t tasks = (size_t)args->batch * (size_t)map->n_kv_heads;
    if (tasks >= 1 << 24 || args->n_ctas > CTAS_MAX ||
        (schedule == KVD_SCHEDULE_PAPERS && tasks > 0xffff))
        return cudaErrorInvalidValue;
    params p;
    memset(&p, 0, sizeof p);
    kvd_decode_work_lay(map, args->batch, args->n_ctas, args->workspace, &p.work);
    p.kv_len = args->kv_len;
    p.second_len = args->second_len;
    p.live = args->live;
    p.batch = args->batch;
    p.n_kv_heads = map->n_kv_heads;
    p.n_first = args->second_len ? map->n_kv_heads / 2 : map->n_kv_heads;
    p.n_ctas = args->n_ctas;
    p.group = kvd_decode_rows(map);
    p.window = map->window;
    const int per_group = schedule == KVD_SCHEDULE_OURS ? (int)GROUP_COST : 0;
    for (int g = 0; g < map->n_kv_heads; g++)
        p.cost_before[g + 1] = p.cost_before[g] + map->d_qk[g] + map->d_v[g] + per_group;
    memcpy(layer, &p, sizeof p);
    return cudaSuccess;
}

/* Divides the decode attention of one layer among CTAs. If `layers` is not NULL, does this for
 * n_layers layers. */
template <int SCHEDULE>
static cudaError_t launch(const params &p, const params *layers, int n_layers, cudaStream_t stream)
{
    const size_t tasks = (size_t)p.batch * (size_t)p.n_kv_heads;
    size_t keys = SCHEDULE == KVD_SCHEDULE_PAPERS ? kvd_decode_pow2(tasks) : (size_t)p.batch + 1;
    if (SCHEDULE == KVD_SCHEDULE_NONE || keys > SMEM_KEYS)
        keys = 0;
    const size_t bytes = keys * sizeof(u64);
    return layers ? kvd_launch(plan_layers_kernel<SCHEDULE>, (unsigned)n_layers, N_THREADS, bytes,
                               stream, layers)
                  : kvd_launch(plan_kernel<SCHEDULE>, 1, N_THREADS, bytes, stream, p);
}

static cudaError_t launch_any(const kvd_decode_args *args, kvd_schedule schedule,
                              const params *layers, int n_layers, cudaStream_t stream)
{
    params p;
    const cudaError_t e = kvd_decode_plan_describe(args, schedule, &p);
    if (e != cudaSuccess)
        return e;
    switch (schedule) {
    case KVD_SCHEDULE_NONE:
        return launch<KVD_SCHEDULE_NONE>(p, layers, n_layers, stream);
    case KVD_SCHEDULE_PAPERS:
        return launch<KVD_SCHEDULE_PAPERS>(p, layers, n_layers, stream);
    case KVD_SCHEDULE_OURS:
        return launch<KVD_SCHEDULE_OURS>(p, layers, n_layers, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

cudaError_t kvd_decode_plan(const kvd_decode_args *args, kvd_schedule schedule, cudaStream_t stream)
{
    return launch_any(args, schedule, NULL, 1, stream);
}

cudaError_t kvd_decode_plan_layers(const kvd_decode_args *args, kvd_schedule schedule,
                                   const void *layers, int n_layers, cudaStream_t stream)
{
    if (!layers || n_layers < 1)
        return cudaErrorInvalidValue;
    return launch_any(args, schedule, (const params *)layers, n_layers, stream);
}
