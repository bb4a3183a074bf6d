/* Divides the query rows of a batch into tiles and assigns the tiles to CTAs. */
#include "kernels/cuda/prefill_plan.h"

#include <string.h>

#include "common/cuda/launch.cuh"

enum {
    THREADS = 1024,
    WARPS = THREADS / 32,
    KEYS = 128,           /* number of keys per block in the cost model */
    LENGTHS_SHARED = 512, /* largest number of requests whose lengths fit into shared memory */
    /* Largest number of (request, query head) pairs for which the array `prefix` fits into shared
     * memory. */
    UNITS_SHARED = 2048,
    /* Largest number of CTAs for which the planner's arrays fit into shared memory. */
    CTAS_MAX = 1024,
    BUCKETS = 2048,
    /* Bytes of K and V that are assumed to fit into the L2 cache. */
    L2_SECTION = 32 << 20
};

/* Coefficients of the cost model, in SM clocks, fitted to measurements on an H200
 * (docs/kernels.md). */
extern "C" const kvd_prefill_cost kvd_prefill_cost_sm90 = {KVD_PREFILL_ROWS, 1600.f, 8.4f, 3000.f};
extern "C" const kvd_prefill_cost kvd_prefill_cost_mma = {128, 1700.f, 16.4f, 3000.f};

namespace
{

typedef struct {
    kvd_attn_map map;
    kvd_prefill_cost cost;
    /* Number of requests, of CTAs and of tiles; schedule by which tiles are assigned to CTAs;
     * largest d_qk + d_v of a head. */
    int32_t batch, n_ctas, n_tiles, schedule, widest;
    const int32_t *q_len, *kv_len;
    kvd_prefill_tile *tile;
    int32_t *first, *next;
    int32_t *before; /* [batch + 1] number of tiles of one head before request b */
    /* [batch * n_heads + 1] number of tasks before each (request, query head) pair. A task is a
     * range of query rows. */
    int32_t *prefix;
    /* [max_pieces] small tiles into which the last query rows are cut, so that all CTAs have
     * work */
    kvd_prefill_tile *piece;
    int32_t *owner; /* [max_pieces] CTA of each tile in `piece` */
} plan_args;

/* Lengths of the requests of a batch, in shared memory if they fit. */
typedef struct {
    const int32_t *q_len, *kv_len;
    const int32_t *tiles_before; /* number of tiles of one head before request b */
    int longest;
} lengths;

__device__ int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

__device__ int widths_of(const plan_args &p, int head)
{
    const int g = head / p.map.group;
    return p.map.d_qk[g] + p.map.d_v[g];
}

__device__ float block_cost(const plan_args &p, int widths)
{
    return p.cost.per_block + p.cost.per_dim * (float)widths;
}

__device__ int oldest_key(const plan_args &p, int position)
{
    return p.map.window ? max(0, position - p.map.window + 1) : 0;
}

/* Calls visit(tile, its index, modelled time for KEYS keys) for each tile of the batch. */
template <class F> __device__ void each_tile(const plan_args &p, const lengths &len, const F &visit)
{
    const int n_units = p.batch * p.map.n_heads, mean = ceil_div(p.n_tiles, n_units);
    const int team = mean >= 32 ? 32 : 1 << (32 - __clz(mean - 1));
    const int lane = (int)threadIdx.x & (team - 1);
    for (int u = (int)threadIdx.x / team; u < n_units; u += THREADS / team) {
        const int b = u / p.map.n_heads, h = u - b * p.map.n_heads, n = len.q_len[b];
        const int tiles = ceil_div(n, p.cost.rows),
                  before = len.tiles_before[b] * p.map.n_heads + h * tiles;
        const float per_block = block_cost(p, widths_of(p, h));
        for (int i = lane; i < tiles; i += team) {
            kvd_prefill_tile x;
            x.request = b;
            x.head = h;
            x.row = i * p.cost.rows;
            x.n_rows = min(p.cost.rows, n - x.row);
            visit(x, before + i, per_block);
        }
    }
}

/* Stores a tile by one store of 16 bytes, which is faster than four scattered ones of 4 bytes. */
__device__ void put(kvd_prefill_tile *to, const kvd_prefill_tile &x)
{
    static_assert(sizeof(kvd_prefill_tile) == sizeof(int4), "a tile is one 16-byte store");
    *reinterpret_cast<int4 *>(to) = make_int4(x.request, x.head, x.row, x.n_rows);
}

/* Writes prefix sums to `out`: out[i] = value(0) + ... + value(i - 1) for i = 0 .. n. */
template <class F> __device__ void scan(int n, int32_t *out, const F &value)
{
    __shared__ int32_t part[WARPS];
    const int t = (int)threadIdx.x, lane = t % 32, warp = t / 32;
    int carry = 0;
    for (int base = 0; base < n; base += 2 * THREADS) {
        const int i = base + 2 * t;
        const int v = i < n ? value(i) : 0, v2 = i + 1 < n ? value(i + 1) : 0;
        const int s = kvd_sum_to_lane(v + v2);
        if (lane == 31)
            part[warp] = s;
        __syncthreads();
        if (warp == 0)
            part[lane] = kvd_sum_to_lane(part[lane]);
        __syncthreads();
        const int before = carry + s - v - v2 + (warp ? part[warp - 1] : 0);
        if (i < n)
            out[i] = before;
        if (i + 1 < n)
            out[i + 1] = before + v;
        carry += part[WARPS - 1];
        __syncthreads();
    }
    if (t == 0)
        out[n] = carry;
    __syncthreads();
}

__device__ void plan_none(const plan_args &p, const lengths &len)
{
    const int each = p.n_tiles / p.n_ctas, more = p.n_tiles % p.n_ctas;
    for (int c = (int)threadIdx.x; c <= p.n_ctas; c += THREADS)
        p.first[c] = c * each + min(c, more);
    each_tile(p, len, [&](const kvd_prefill_tile &x, int i, float) {
        const int c = i % p.n_ctas;
        put(&p.tile[c * each + min(c, more) + i / p.n_ctas], x);
    });
}

__device__ void plan_ours(const plan_args &p, const lengths &len)
{
    __shared__ int32_t bucket[BUCKETS + 1];
    for (int i = (int)threadIdx.x; i <= BUCKETS; i += THREADS)
        bucket[i] = 0;

    /* If K and V of a request are too large for L2, its KV heads are divided into sections that fit
     * into L2. */
    const float head_bytes = (float)len.longest * (float)p.map.page_elements / KVD_PAGE_TOKENS *
                             2.f / (float)p.map.n_kv_heads;
    const int section_heads = min(p.map.n_kv_heads, max(1, (int)((float)L2_SECTION / head_bytes)));
    const int per_request =
        section_heads == p.map.n_kv_heads ? 0 : ceil_div(p.map.n_kv_heads, section_heads);
    const int want = max(1, p.batch * per_request), sections = min(want, BUCKETS / 64),
              levels = BUCKETS / sections;
    /* Largest number of keys that a tile reads, rounded up to whole blocks of keys */
    const int most_keys =
        p.map.window ? min(len.longest, p.map.window + p.cost.rows + KEYS) : len.longest;
    const float top = (float)ceil_div(most_keys, KEYS) * block_cost(p, p.widest) + p.cost.per_tile;
    const float step = (float)levels / top;

    auto place = [&](const kvd_prefill_tile &x, float per_block) {
        const int last_key = len.kv_len[x.request] - len.q_len[x.request] + x.row + x.n_rows;
        const int blocks = ceil_div(last_key, KEYS) - oldest_key(p, last_key - x.n_rows) / KEYS;
        const float cost = (float)blocks * per_block + p.cost.per_tile;
        int section = 0;
        if (sections > 1) {
            section = x.request * per_request + x.head / p.map.group / section_heads;
            section = want == sections ? section : (int)((long long)section * sections / want);
        }
        return section * levels + min(levels - 1, max(0, (int)((top - cost) * step)));
    };
    __syncthreads();
    each_tile(p, len,
              [&](const kvd_prefill_tile &x, int, float c) { atomicAdd(&bucket[place(x, c)], 1); });
    __syncthreads();
    scan(BUCKETS, bucket, [&](int i) { return bucket[i]; });
    each_tile(p, len, [&](const kvd_prefill_tile &x, int, float c) {
        put(&p.tile[atomicAdd(&bucket[place(x, c)], 1)], x);
    });
    if (threadIdx.x == 0)
        *p.next = 0;
}

__device__ int papers_rows(const plan_args &p, int head)
{
    const float rows = (float)(p.widest + 1) / (float)(widths_of(p, head) + 1);
    return max(1, (int)(rows + 0.5f)) * p.cost.rows;
}

/* Returns the work of a tile by the rule of KVD_SCHEDULE_PAPERS: rows * (d_qk + d_v + 1) * mean
 * number of keys per row. */
__device__ float papers_load(const plan_args &p, const lengths &len, const kvd_prefill_tile &x)
{
    const float before = (float)(len.kv_len[x.request] - len.q_len[x.request] + x.row);
    const float width = (float)(widths_of(p, x.head) + 1), rows = (float)x.n_rows;
    if (p.map.window) {
        /* The window is not yet full for the first `rising` queries, which attend to all earlier
         * keys. Later queries attend to `window` keys. */
        const float window = (float)p.map.window, rising = fminf(rows, fmaxf(0.f, window - before));
        return width * (rising * (before + 0.5f * (rising + 1)) + (rows - rising) * window);
    }
    return rows * width * (before + 0.5f * (float)(x.n_rows + 1));
}

__device__ void plan_papers(const plan_args &p, const lengths &len, int32_t *prefix)
{
    __shared__ kvd_prefill_tile tail[CTAS_MAX];
    __shared__ int32_t count[CTAS_MAX];
    __shared__ float load[CTAS_MAX];
    __shared__ int32_t n_pieces;
    __shared__ float wl;
    const int t = (int)threadIdx.x, n = p.n_ctas, n_units = p.batch * p.map.n_heads;
    if (t == 0) {
        wl = 0;
        n_pieces = 0;
    }
    scan(n_units, prefix, [&](int u) {
        return ceil_div(len.q_len[u / p.map.n_heads], papers_rows(p, u % p.map.n_heads));
    });
    const int n_tasks = prefix[n_units], full = n_tasks / n * n;
    auto task = [&](int i) {
        const int u = kvd_last_true(0, n_units, [&](int x) { return prefix[x] <= i; });
        kvd_prefill_tile x;
        x.request = u / p.map.n_heads;
        x.head = u % p.map.n_heads;
        const int rows = papers_rows(p, x.head);
        x.row = (i - prefix[u]) * rows;
        x.n_rows = min(rows, len.q_len[x.request] - x.row);
        return x;
    };

    for (int c = t; c < n; c += THREADS) {
        float sum = 0;
        int tiles = 0;
        for (int i = c; i < full; i += n) {
            const kvd_prefill_tile x = task(i);
            sum += papers_load(p, len, x);
            tiles += ceil_div(x.n_rows, p.cost.rows);
        }
        load[c] = sum;
        count[c] = tiles;
    }
    for (int i = full + t; i < n_tasks; i += THREADS) {
        const kvd_prefill_tile x = task(i);
        tail[i - full] = x;
        atomicAdd(&wl, papers_load(p, len, x) / (float)n);
    }
    __syncthreads();

    /* Fewer tasks than CTAs are left. Cuts these tasks into smaller tiles, so that all CTAs get
     * work. */
    const int last = n_tasks - full;
    if (t < 32) {
        int made = 0;
        for (int i = 0; i < last; i++) {
            const kvd_prefill_tile x = tail[i];
            const float per_row = papers_load(p, len, x) / (float)x.n_rows;
            const int rows = min(p.cost.rows, max(1, (int)(wl / per_row / 64 + 0.5f)) * 64);
            for (int r = 0; r < x.n_rows; r += rows, made++) {
                kvd_prefill_tile y = x;
                y.row = x.row + r;
                y.n_rows = min(rows, x.n_rows - r);
                float best = 3.4e38f;
                int who = 0;
                for (int c = t; c < n; c += 32)
                    if (load[c] < best) {
                        best = load[c];
                        who = c;
                    }
                for (int step = 16; step; step /= 2) {
                    const float o = __shfl_xor_sync(~0u, best, step);
                    const int w = __shfl_xor_sync(~0u, who, step);
                    if (o < best || (o == best && w < who)) {
                        best = o;
                        who = w;
                    }
                }
                if (t == 0) {
                    load[who] += papers_load(p, len, y);
                    count[who]++;
                    p.piece[made] = y;
                    p.owner[made] = who;
                }
                __syncwarp();
            }
        }
        if (t == 0)
            n_pieces = made;
    }
    __syncthreads();
    scan(n, p.first, [&](int c) { return count[c]; });

    for (int c = t; c < n; c += THREADS) {
        int at = p.first[c];
        for (int i = c; i < full; i += n) {
            const kvd_prefill_tile x = task(i);
            for (int r = 0; r < x.n_rows; r += p.cost.rows) {
                kvd_prefill_tile y = x;
                y.row = x.row + r;
                y.n_rows = min(p.cost.rows, x.n_rows - r);
                put(&p.tile[at++], y);
            }
        }
        for (int i = 0; i < n_pieces; i++)
            if (p.owner[i] == c)
                put(&p.tile[at++], p.piece[i]);
    }
}

__device__ __forceinline__ void plan(const plan_args &p)
{
    __shared__ int32_t near_q[LENGTHS_SHARED], near_kv[LENGTHS_SHARED],
        near_before[LENGTHS_SHARED + 1], longest;
    int32_t *const before = p.batch <= LENGTHS_SHARED ? near_before : p.before;
    lengths len = {p.q_len, p.kv_len, before, 0};
    if (threadIdx.x == 0)
        longest = 0;
    __syncthreads();
    for (int b = (int)threadIdx.x; b < p.batch; b += THREADS) {
        const int kv = p.kv_len[b];
        atomicMax(&longest, kv);
        if (p.batch <= LENGTHS_SHARED) {
            near_q[b] = p.q_len[b];
            near_kv[b] = kv;
        }
    }
    __syncthreads();
    len.longest = longest;
    if (p.batch <= LENGTHS_SHARED) {
        len.q_len = near_q;
        len.kv_len = near_kv;
    }
    scan(p.batch, before, [&](int b) { return ceil_div(len.q_len[b], p.cost.rows); });
    if (p.schedule == KVD_SCHEDULE_NONE)
        plan_none(p, len);
    else if (p.schedule == KVD_SCHEDULE_OURS)
        plan_ours(p, len);
    else {
        __shared__ int32_t near_prefix[UNITS_SHARED + 1];
        plan_papers(p, len, p.batch * p.map.n_heads <= UNITS_SHARED ? near_prefix : p.prefix);
    }
}

__global__ void __launch_bounds__(THREADS, 1) plan_kernel(const __grid_constant__ plan_args p)
{
    plan(p);
}

__global__ void __launch_bounds__(THREADS, 1) plan_layers_kernel(const plan_args *p)
{
    plan(p[blockIdx.x]);
}

size_t round256(size_t n)
{
    return (n + 255) / 256 * 256;
}

/* Returns the largest possible number of small tiles. Schedule KVD_SCHEDULE_PAPERS cuts the last
 * large tiles into small tiles, so that all CTAs get work. */
size_t max_pieces(const kvd_attn_map *map, int n_ctas)
{
    int lo = 1 << 30, hi = 0;
    for (int g = 0; g < map->n_kv_heads; g++) {
        const int d = map->d_qk[g] + map->d_v[g] + 1;
        lo = d < lo ? d : lo;
        hi = d > hi ? d : hi;
    }
    /* upper bound on the query rows of a large tile, which is cut into tiles of at least 64 rows */
    const size_t rows = ((size_t)hi / (size_t)lo + 2) * KVD_PREFILL_ROWS;
    return (size_t)n_ctas * (rows / 64);
}

} // namespace

extern "C" size_t kvd_prefill_max_tiles(const kvd_attn_map *map, const kvd_attn_batch *batch)
{
    size_t tiles = 0;
    for (int b = 0; b < batch->batch; b++)
        tiles += ((size_t)batch->q_len[b] + 63) / 64;
    return tiles * (size_t)map->n_heads;
}

extern "C" size_t kvd_prefill_plan_bytes(const kvd_attn_map *map, const kvd_attn_batch *batch,
                                         int n_ctas)
{
    const size_t units = (size_t)batch->batch * (size_t)map->n_heads;
    return round256((units + 1) * sizeof(int32_t)) +
           round256(((size_t)batch->batch + 1) * sizeof(int32_t)) +
           round256(max_pieces(map, n_ctas) * sizeof(kvd_prefill_tile)) +
           round256(max_pieces(map, n_ctas) * sizeof(int32_t));
}

extern "C" size_t kvd_prefill_plan_layer_bytes(void)
{
    return sizeof(plan_args);
}

extern "C" cudaError_t kvd_prefill_plan_describe(kvd_prefill_args *args,
                                                 const kvd_attn_batch *batch, kvd_schedule schedule,
                                                 const kvd_prefill_cost *cost,
                                                 kvd_prefill_tile *tile, int32_t *first,
                                                 int32_t *next, void *scratch, void *layer)
{
    const int n_ctas = args->work.n_ctas;
    if (cost->rows < 64 || cost->rows > KVD_PREFILL_ROWS || cost->rows % 64 || n_ctas < 1 ||
        n_ctas > CTAS_MAX || args->batch != batch->batch || batch->batch < 1 || !tile || !scratch ||
        (schedule == KVD_SCHEDULE_OURS ? !next : !first))
        return cudaErrorInvalidValue;
    const bool wide = kvd_attn_widest(&args->map) > KVD_WIDTH_NARROW;
    const int32_t rows =
        wide && cost->rows > KVD_PREFILL_WIDE_ROWS ? (int32_t)KVD_PREFILL_WIDE_ROWS : cost->rows;
    size_t tiles = 0;
    for (int b = 0; b < batch->batch; b++) {
        if (batch->q_len[b] < 1 || batch->kv_len[b] < batch->q_len[b])
            return cudaErrorInvalidValue;
        tiles += ((size_t)batch->q_len[b] + (size_t)rows - 1) / (size_t)rows;
    }
    tiles *= (size_t)args->map.n_heads;
    if (tiles > (size_t)1 << 30)
        return cudaErrorInvalidValue;

    plan_args p;
    memset(&p, 0, sizeof p);
    p.map = args->map;
    p.cost = *cost;
    p.cost.rows = rows;
    p.batch = args->batch;
    p.n_ctas = n_ctas;
    p.n_tiles = (int32_t)tiles;
    p.schedule = schedule;
    for (int g = 0; g < p.map.n_kv_heads; g++)
        if (p.widest < p.map.d_qk[g] + p.map.d_v[g])
            p.widest = p.map.d_qk[g] + p.map.d_v[g];
    p.q_len = args->q_len;
    p.kv_len = args->kv_len;
    p.tile = tile;
    p.first = first;
    p.next = next;
    char *at = (char *)scratch;
    const size_t units = (size_t)batch->batch * (size_t)args->map.n_heads;
    p.prefix = (int32_t *)at;
    at += round256((units + 1) * sizeof(int32_t));
    p.before = (int32_t *)at;
    at += round256(((size_t)batch->batch + 1) * sizeof(int32_t));
    p.piece = (kvd_prefill_tile *)at;
    at += round256(max_pieces(&args->map, n_ctas) * sizeof(kvd_prefill_tile));
    p.owner = (int32_t *)at;

    memcpy(layer, &p, sizeof p);
    args->work.tile = tile;
    args->work.n_tiles = (int32_t)tiles;
    args->work.first = schedule == KVD_SCHEDULE_OURS ? NULL : first;
    args->work.next = next;
    return cudaSuccess;
}

extern "C" cudaError_t kvd_prefill_plan(kvd_prefill_args *args, const kvd_attn_batch *batch,
                                        kvd_schedule schedule, const kvd_prefill_cost *cost,
                                        kvd_prefill_tile *tile, int32_t *first, int32_t *next,
                                        void *scratch, cudaStream_t stream)
{
    plan_args p;
    const cudaError_t e =
        kvd_prefill_plan_describe(args, batch, schedule, cost, tile, first, next, scratch, &p);
    if (e != cudaSuccess)
        return e;
    plan_kernel<<<1, THREADS, 0, stream>>>(p);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_prefill_plan_layers(const void *layers, int n_layers,
                                               cudaStream_t stream)
{
    if (!layers || n_layers < 1)
        return cudaErrorInvalidValue;
    plan_layers_kernel<<<(unsigned)n_layers, THREADS, 0, stream>>>((const plan_args *)layers);
    return cudaGetLastError();
}
