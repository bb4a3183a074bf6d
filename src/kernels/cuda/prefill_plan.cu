/*
 * Schedulers of prefill. One CTA of 1024 threads makes the whole list: a layer has thousands of tiles, not millions, and a
 * second launch would cost more than it saves.
 *
 * A unit is one (request, query head); unit u = request * n_heads + head. NONE and OURS cut its rows into tiles of
 * KVD_PREFILL_ROWS. The cost of a tile is that of kvd_prefill_cost for the key blocks that its last row sees.
 *
 * NONE    tile i of the order (request, head, row) goes to CTA i mod n_ctas.
 *
 * PAPERS  (ZACK section 5, FDC 4.3; readings Z-6, Z-20, Z-21 of docs/readings.md)
 *         B_r of head i is 192 d_sum_max / d_sum_i with d_sum = d_qk + d_v + 1, to the nearest multiple of 192: the kernel's
 *         three warpgroups of 64 rows take the place of the papers' 64-row tile, and a task of 384 rows is two tiles
 *         of the same CTA. Task i of the order (request, head, row) goes to CTA i mod n_ctas; of the last round, when
 *         it does not fill all CTAs, the mean load wl = sum of (rows d_sum s_kv) / n_ctas sets the height wl / (d_sum s_kv),
 *         to the nearest multiple of 64, to which its tasks are cut again; the pieces go one at a time, in order, to the
 *         CTA with the least accumulated load. s_kv of a task is the mean number of keys that its rows see.
 *
 * OURS    tiles by falling cost, in sections of KV heads whose K and V fit in 32 MB of L2, taken dynamically. Counting sort
 *         on the cost rounded to one of `levels` steps; the order of tiles within a step is not fixed, which no
 *         result depends on.
 */
#include "kernels/cuda/prefill_plan.h"

#include <string.h>

enum {
    THREADS = 1024,
    KEYS = 128,           /* keys of a block in the cost model                     */
    UNITS_SHARED = 4096,  /* units whose prefix sums fit in shared memory          */
    BUCKETS = 4096,       /* of the counting sort                                  */
    L2_SECTION = 32 << 20 /* bytes of K and V that the tiles in flight should share */
};

/* From bench_prefill on an H200: see results/h200/kernels. */
extern "C" const kvd_prefill_cost kvd_prefill_cost_h200 = {1024.f, 9.f, 3000.f};

namespace
{

typedef struct {
    kvd_attn_map map;
    kvd_prefill_cost cost;
    int32_t batch, n_ctas, n_tiles, schedule;
    const int32_t *q_len, *kv_len;
    kvd_prefill_tile *tile;
    int32_t *first, *next;
    int32_t *prefix;         /* [batch * n_heads + 1] tiles or tasks before unit u */
    int32_t *count;          /* [n_ctas]                                           */
    float *load;             /* [n_ctas]                                           */
    kvd_prefill_tile *piece; /* [n_ctas * pieces per task] of the last round */
    int32_t *owner;          /* likewise                                     */
} plan_args;

__device__ int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

__device__ int widths_of(const plan_args &p, int head)
{
    const int g = head / p.map.group;
    return p.map.d_qk[g] + p.map.d_v[g];
}

/* Keys that the last row of a tile sees. */
__device__ int last_key(const plan_args &p, int request, int row, int n_rows)
{
    return p.kv_len[request] - p.q_len[request] + row + n_rows;
}

__device__ float tile_cost(const plan_args &p, int request, int head, int row, int n_rows)
{
    const float blocks = (float)ceil_div(last_key(p, request, row, n_rows), KEYS);
    return blocks * (p.cost.per_block + p.cost.per_dim * (float)widths_of(p, head)) + p.cost.per_tile;
}

/* Exclusive prefix sums over n values by the whole CTA: value(i) -> out[i], out[n] = total. */
template <class F> __device__ void scan(int n, int32_t *out, const F &value)
{
    __shared__ int32_t part[THREADS / 32];
    const int t = (int)threadIdx.x, lane = t % 32, warp = t / 32;
    int carry = 0;
    for (int base = 0; base < n; base += THREADS) {
        const int i = base + t;
        const int v = i < n ? value(i) : 0;
        int s = v;
        for (int step = 1; step < 32; step *= 2) {
            const int o = __shfl_up_sync(~0u, s, step);
            s += lane >= step ? o : 0;
        }
        if (lane == 31)
            part[warp] = s;
        __syncthreads();
        if (warp == 0) {
            int q = part[lane];
            for (int step = 1; step < 32; step *= 2) {
                const int o = __shfl_up_sync(~0u, q, step);
                q += lane >= step ? o : 0;
            }
            part[lane] = q;
        }
        __syncthreads();
        if (i < n)
            out[i] = carry + s - v + (warp ? part[warp - 1] : 0);
        carry += part[THREADS / 32 - 1];
        __syncthreads();
    }
    if (t == 0)
        out[n] = carry;
    __syncthreads();
}

/* The unit that holds element i: prefix[u] <= i < prefix[u + 1]. */
__device__ int unit_of(const int32_t *prefix, int n_units, int i)
{
    int lo = 0, hi = n_units;
    while (hi - lo > 1) {
        const int mid = (lo + hi) / 2;
        if (prefix[mid] <= i)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

__device__ kvd_prefill_tile cut(const plan_args &p, const int32_t *prefix, int n_units, int i, int rows)
{
    const int u = unit_of(prefix, n_units, i);
    kvd_prefill_tile t;
    t.request = u / p.map.n_heads;
    t.head = u % p.map.n_heads;
    t.row = (i - prefix[u]) * rows;
    t.n_rows = min(rows, p.q_len[t.request] - t.row);
    return t;
}

__device__ void plan_none(const plan_args &p, const int32_t *prefix, int n_units)
{
    for (int c = (int)threadIdx.x; c <= p.n_ctas; c += THREADS) /* CTA c has the tiles c, c + n_ctas, ... */
        p.first[c] = c * (p.n_tiles / p.n_ctas) + min(c, p.n_tiles % p.n_ctas);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < p.n_tiles; i += THREADS)
        p.tile[p.first[i % p.n_ctas] + i / p.n_ctas] = cut(p, prefix, n_units, i, KVD_PREFILL_ROWS);
}

__device__ void plan_ours(const plan_args &p, const int32_t *prefix, int n_units)
{
    __shared__ int32_t bucket[BUCKETS + 1];
    __shared__ int32_t heads_per_section;
    __shared__ float top;
    __shared__ uint32_t top_bits;
    const int t = (int)threadIdx.x;

    if (t == 0) {
        int longest = 0, widest = 0;
        for (int b = 0; b < p.batch; b++)
            longest = max(longest, p.kv_len[b]);
        for (int g = 0; g < p.map.n_kv_heads; g++)
            widest += p.map.d_qk[g] + p.map.d_v[g];
        const float head_bytes = 2.f * (float)longest * (float)widest / (float)p.map.n_kv_heads;
        const int fit = max(1, (int)((float)L2_SECTION / head_bytes));
        /* Several requests in flight share L2 as well; short ones do so freely. */
        heads_per_section = min(fit, p.map.n_kv_heads);
        top_bits = 0;
    }
    for (int i = t; i <= BUCKETS; i += THREADS)
        bucket[i] = 0;
    __syncthreads();
    for (int u = t; u < n_units; u += THREADS) { /* the costliest tile of a unit is its last full one */
        const int b = u / p.map.n_heads, n = min(p.q_len[b], KVD_PREFILL_ROWS);
        atomicMax(&top_bits, __float_as_uint(tile_cost(p, b, u % p.map.n_heads, p.q_len[b] - n, n)));
    }
    __syncthreads();
    const int kv_sections = ceil_div(p.map.n_kv_heads, heads_per_section);
    /* A whole batch of short requests is one section; long requests are taken one after another. */
    const int sections = heads_per_section == p.map.n_kv_heads ? 1 : min(p.batch * kv_sections, BUCKETS / 64);
    const int levels = BUCKETS / sections;
    if (t == 0)
        top = __uint_as_float(top_bits);
    __syncthreads();

    auto place = [&](const kvd_prefill_tile &x) {
        const int section =
            sections == 1
                ? 0
                : (int)((long long)(x.request * kv_sections + x.head / p.map.group / heads_per_section) *
                        sections / (p.batch * kv_sections));
        const float c = tile_cost(p, x.request, x.head, x.row, x.n_rows);
        return section * levels + min(levels - 1, (int)((1.f - c / top) * (float)levels));
    };
    for (int i = t; i < p.n_tiles; i += THREADS)
        atomicAdd(&bucket[max(0, place(cut(p, prefix, n_units, i, KVD_PREFILL_ROWS)))], 1);
    __syncthreads();
    scan(BUCKETS, bucket, [&](int i) { return bucket[i]; });
    for (int i = t; i < p.n_tiles; i += THREADS) {
        const kvd_prefill_tile x = cut(p, prefix, n_units, i, KVD_PREFILL_ROWS);
        p.tile[atomicAdd(&bucket[max(0, place(x))], 1)] = x;
    }
    if (t == 0)
        *p.next = 0;
}

__device__ int papers_rows(const plan_args &p, int head, int d_max)
{
    const float rows = (float)KVD_PREFILL_ROWS * (float)d_max / (float)(widths_of(p, head) + 1);
    return max(1, (int)(rows / KVD_PREFILL_ROWS + 0.5f)) * KVD_PREFILL_ROWS;
}

/* rows d_sum s_kv of rows row .. row + n - 1: s_kv is the mean number of keys that they see. */
__device__ float papers_load(const plan_args &p, const kvd_prefill_tile &x)
{
    const float before = (float)(p.kv_len[x.request] - p.q_len[x.request] + x.row);
    return (float)x.n_rows * (float)(widths_of(p, x.head) + 1) * (before + 0.5f * (float)(x.n_rows + 1));
}

__device__ void plan_papers(const plan_args &p, int32_t *prefix, int n_units)
{
    __shared__ int32_t d_max, n_pieces;
    __shared__ float wl;
    const int t = (int)threadIdx.x, n = p.n_ctas;
    if (t == 0) {
        int d = 0;
        for (int g = 0; g < p.map.n_kv_heads; g++)
            d = max(d, p.map.d_qk[g] + p.map.d_v[g] + 1);
        d_max = d;
        wl = 0;
        n_pieces = 0;
    }
    __syncthreads();
    scan(n_units, prefix, [&](int u) {
        return ceil_div(p.q_len[u / p.map.n_heads], papers_rows(p, u % p.map.n_heads, d_max));
    });
    const int n_tasks = prefix[n_units], full = n_tasks / n * n;
    auto task = [&](int i) {
        const int u = unit_of(prefix, n_units, i);
        return cut(p, prefix, n_units, i, papers_rows(p, u % p.map.n_heads, d_max));
    };

    /* Full rounds: loads and numbers of tiles. */
    for (int c = t; c < n; c += THREADS) {
        float load = 0;
        int tiles = 0;
        for (int i = c; i < full; i += n) {
            const kvd_prefill_tile x = task(i);
            load += papers_load(p, x);
            tiles += ceil_div(x.n_rows, KVD_PREFILL_ROWS);
        }
        p.load[c] = load;
        p.count[c] = tiles;
    }
    for (int i = full + t; i < n_tasks; i += THREADS)
        atomicAdd(&wl, papers_load(p, task(i)) / (float)n);
    __syncthreads();

    /* Last round: cut again, then one warp hands the pieces out. */
    if (t < 32) {
        int made = 0;
        for (int i = full; i < n_tasks; i++) {
            const kvd_prefill_tile x = task(i);
            const float per_row = papers_load(p, x) / (float)x.n_rows;
            const int rows = min(KVD_PREFILL_ROWS, max(1, (int)(wl / per_row / 64 + 0.5f)) * 64);
            for (int r = 0; r < x.n_rows; r += rows, made++) {
                kvd_prefill_tile y = x;
                y.row = x.row + r;
                y.n_rows = min(rows, x.n_rows - r);
                float best = 3.4e38f;
                int who = 0;
                for (int c = t; c < n; c += 32)
                    if (p.load[c] < best) {
                        best = p.load[c];
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
                    p.load[who] += papers_load(p, y);
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
    for (int i = t; i < n_pieces; i += THREADS)
        atomicAdd(&p.count[p.owner[i]], 1);
    __syncthreads();
    scan(n, p.first, [&](int c) { return p.count[c]; });

    for (int c = t; c < n; c += THREADS) {
        int at = p.first[c];
        for (int i = c; i < full; i += n) {
            const kvd_prefill_tile x = task(i);
            for (int r = 0; r < x.n_rows; r += KVD_PREFILL_ROWS) {
                kvd_prefill_tile y = x;
                y.row = x.row + r;
                y.n_rows = min((int)KVD_PREFILL_ROWS, x.n_rows - r);
                p.tile[at++] = y;
            }
        }
        for (int i = 0; i < n_pieces; i++)
            if (p.owner[i] == c)
                p.tile[at++] = p.piece[i];
    }
}

__global__ void __launch_bounds__(THREADS, 1) plan_kernel(const __grid_constant__ plan_args p)
{
    __shared__ int32_t near_prefix[UNITS_SHARED + 1];
    const int n_units = p.batch * p.map.n_heads;
    int32_t *prefix = n_units <= UNITS_SHARED ? near_prefix : p.prefix;
    if (p.schedule == KVD_SCHEDULE_PAPERS) {
        plan_papers(p, prefix, n_units);
        return;
    }
    scan(n_units, prefix, [&](int u) { return ceil_div(p.q_len[u / p.map.n_heads], KVD_PREFILL_ROWS); });
    if (p.schedule == KVD_SCHEDULE_NONE)
        plan_none(p, prefix, n_units);
    else
        plan_ours(p, prefix, n_units);
}

size_t round256(size_t n)
{
    return (n + 255) / 256 * 256;
}

/* A task of the last round is at most this many rows and its pieces at least 64. */
size_t max_pieces(const kvd_attn_map *map, int n_ctas)
{
    int lo = 1 << 30, hi = 0;
    for (int g = 0; g < map->n_kv_heads; g++) {
        const int d = map->d_qk[g] + map->d_v[g] + 1;
        lo = d < lo ? d : lo;
        hi = d > hi ? d : hi;
    }
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

extern "C" size_t kvd_prefill_plan_bytes(const kvd_attn_map *map, const kvd_attn_batch *batch, int n_ctas)
{
    const size_t units = (size_t)batch->batch * (size_t)map->n_heads, n = (size_t)n_ctas;
    return round256((units + 1) * sizeof(int32_t)) + round256(n * sizeof(int32_t)) +
           round256(n * sizeof(float)) + round256(max_pieces(map, n_ctas) * sizeof(kvd_prefill_tile)) +
           round256(max_pieces(map, n_ctas) * sizeof(int32_t));
}

extern "C" cudaError_t kvd_prefill_plan(kvd_prefill_args *args, const kvd_attn_batch *batch,
                                        kvd_schedule schedule, const kvd_prefill_cost *cost,
                                        kvd_prefill_tile *tile, int32_t *first, int32_t *next, void *scratch,
                                        cudaStream_t stream)
{
    const int n_ctas = args->work.n_ctas;
    if (n_ctas < 1 || args->batch != batch->batch || batch->batch < 1 || !tile || !scratch ||
        (schedule == KVD_SCHEDULE_OURS ? !next : !first))
        return cudaErrorInvalidValue;
    size_t tiles = 0;
    for (int b = 0; b < batch->batch; b++) {
        if (batch->q_len[b] < 1 || batch->kv_len[b] < batch->q_len[b])
            return cudaErrorInvalidValue;
        tiles += ((size_t)batch->q_len[b] + KVD_PREFILL_ROWS - 1) / KVD_PREFILL_ROWS;
    }
    tiles *= (size_t)args->map.n_heads;
    if (tiles > (size_t)1 << 30)
        return cudaErrorInvalidValue;

    plan_args p;
    memset(&p, 0, sizeof p);
    p.map = args->map;
    p.cost = *cost;
    p.batch = args->batch;
    p.n_ctas = n_ctas;
    p.n_tiles = (int32_t)tiles;
    p.schedule = schedule;
    p.q_len = args->q_len;
    p.kv_len = args->kv_len;
    p.tile = tile;
    p.first = first;
    p.next = next;
    char *at = (char *)scratch;
    const size_t units = (size_t)batch->batch * (size_t)args->map.n_heads;
    p.prefix = (int32_t *)at;
    at += round256((units + 1) * sizeof(int32_t));
    p.count = (int32_t *)at;
    at += round256((size_t)n_ctas * sizeof(int32_t));
    p.load = (float *)at;
    at += round256((size_t)n_ctas * sizeof(float));
    p.piece = (kvd_prefill_tile *)at;
    at += round256(max_pieces(&args->map, n_ctas) * sizeof(kvd_prefill_tile));
    p.owner = (int32_t *)at;

    plan_kernel<<<1, THREADS, 0, stream>>>(p);
    args->work.tile = tile;
    args->work.n_tiles = (int32_t)tiles;
    args->work.first = schedule == KVD_SCHEDULE_OURS ? NULL : first;
    args->work.next = next;
    return cudaGetLastError();
}
