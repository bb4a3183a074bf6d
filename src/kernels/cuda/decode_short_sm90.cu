/* Decode attention of few tokens on Hopper, with a cluster of CTAs per KV head and request. */
#include <string.h>

#include "common/cuda/launch.cuh"
#include "common/half.h"
#include "kernels/cuda/decode.h"
#include "kernels/cuda/decode_merge.cuh"
#include "kernels/cuda/decode_tile.cuh"
#include "kernels/cuda/decode_work.h"

enum {
    SHORT_WARPS = 8,
    /* Number of groups of 8 tokens that a warp processes at a time. */
    SHORT_GROUPS = 2,
    UNIT = 8 * SHORT_GROUPS,
    PAGE_UNITS = KVD_PAGE_TOKENS / UNIT,
    RUN = 4,      /* number of consecutive units of 16 tokens per CTA */
    RESIDENT = 2, /* number of CTAs per SM for which registers suffice */
    SHORT_HEADS = 32,
    SHORT_GROUP_MAX = 8,
    SHORT_WIDTH_MAX = KVD_WIDTH_NARROW,
    CLUSTER_MAX = 16,
    SLOTS_MAX = 16, /* largest number of units (16 tokens) of a warp in shared memory */
    /* Half the number of dimensions of the widest head. */
    ROW_PAIRS = SHORT_WIDTH_MAX / 2,
    SHARE = 16, /* number of pairs of dimensions that a CTA merges at a time */
    PAIRS_MAX = SHORT_GROUP_MAX * ROW_PAIRS
};

/* Largest numbers of pages per CTA for which this file's kernel is used. For more pages, the kernel
 * of decode.cu is faster. */
enum {
    FEW_PAGES = 2,    /* Up to this number of pages, SMs may stay idle. */
    SOME_PAGES = 16,  /* limit if RESIDENT CTAs fit into the shared memory of an SM */
    MANY_PAGES = 128, /* limit if the CTA has all shared memory of an SM */
    /* Number of pages up to which a request gets at most CLUSTER_MAX / 2 CTAs per KV head. Larger
     * requests get up to CLUSTER_MAX. */
    SMALL_REQUEST = 16
};

typedef struct {
    int32_t kv; /* first element of K in a page */
    /* Column in Q of the first query head that reads this KV head, and number of columns from one
     * query head to the next. */
    int32_t q, q_stride;
    int32_t o; /* column of the first query head in O */
    int16_t d_qk, d_v;
    int16_t slots; /* units (16 tokens) that fit into a warp's shared memory */
    int16_t unused;
} short_head;

typedef struct {
    const int32_t *kv_len, *page_table, *live;
    const uint16_t *q;
    const char *pool;
    uint16_t *o;
    float *lse;
    unsigned long long *busy, *stamps;
    const float *sinks;
    int32_t n_sinks;
    int32_t batch, max_pages, n_heads, group, q_pitch, o_pitch, page_elements;
    /* Number of CTAs that record how long they were busy, and log2 of the number of CTAs per KV
     * head of a request. */
    int32_t n_ctas, log2_ctas;
    int32_t warp_bytes;
    float scale, scale_log2;
    short_head head[SHORT_HEADS];
} short_params;

/* Bytes of shared memory after K and V: for barriers, for the warps' score maxima and softmax sums,
 * and for partial results of CTAs. */
enum {
    SHORT_BARRIER_BYTES = SHORT_WARPS * SLOTS_MAX * 2 * 8 + 16,
    SHORT_ML_BYTES = SHORT_WARPS * KVD_GROUP_MAX * 8,
    SHORT_PART_BYTES = (PAIRS_MAX + SHARE * CLUSTER_MAX) * 16,
    SHORT_REST_BYTES = SHORT_BARRIER_BYTES + SHORT_ML_BYTES + SHORT_PART_BYTES
};

/* Place of a warp: its index in the CTA, the CTA's index in the cluster, and log2 of the number of
 * CTAs in the cluster. */
typedef struct {
    int warp, rank, log2_ctas;
} warp_place;

/* Returns the index in the request of the i-th block of 16 tokens that this warp computes. */
static __host__ __device__ __forceinline__ int unit_of(const warp_place &at, int i)
{
    const unsigned mine = (unsigned)(at.warp + SHORT_WARPS * i);
    return (int)((((mine / RUN) << at.log2_ctas) + (unsigned)at.rank) * RUN + mine % RUN);
}

static __host__ __device__ __forceinline__ int count_units(const warp_place &at, int n_units)
{
    const int last = n_units - 1 - at.warp % RUN;
    const int runs = last < 0 ? -1 : last / RUN - at.rank;
    const int most = runs < 0 ? -1 : (runs >> at.log2_ctas) - at.warp / RUN;
    return most < 0 ? 0 : most / (SHORT_WARPS / RUN) + 1;
}

#if __CUDA_ARCH__ >= 900

/* Lane i returns the index of the page that contains block number `first` + i of the warp. A block
 * has 16 tokens. */
static __device__ __forceinline__ int32_t load_unit_pages(const short_params &p,
                                                          const warp_place &at,
                                                          const int32_t *table, int first, int lane)
{
    const int page = unit_of(at, first + lane) / PAGE_UNITS;
    return load_now(table + min(page, p.max_pages - 1));
}

static __device__ __forceinline__ void copy_unit(const short_params &p, const short_head &h,
                                                 uint32_t to, uint32_t full, int32_t page, int unit,
                                                 int n_tokens, uint64_t policy)
{
    const int groups = min((int)SHORT_GROUPS, (n_tokens - unit * UNIT + 7) / 8);
    const int k_bytes = 16 * h.d_qk * groups, v_bytes = 16 * h.d_v * groups;
    const char *k = p.pool + 2 * ((size_t)page * (size_t)p.page_elements + (size_t)h.kv);
    const int at = unit % PAGE_UNITS * (2 * UNIT);
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(full),
                 "r"(k_bytes + v_bytes)
                 : "memory");
    bulk_copy(to, k + at * h.d_qk, k_bytes, full, policy);
    bulk_copy(to + (uint32_t)(2 * UNIT * h.d_qk), k + 2 * KVD_PAGE_TOKENS * h.d_qk + at * h.d_v,
              v_bytes, full, policy);
}

/* Initialises a barrier that waits for `bytes` bytes from the other CTAs of the cluster. The caller
 * must call cluster_arrive() afterwards. */
static __device__ __forceinline__ void expect_parts(uint32_t bar, int bytes)
{
    pipe_init(bar, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void cluster_arrive()
{
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

static __device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

/* Writes 16 bytes to `to` in CTA `rank`'s shared memory, and signals its barrier `bar`. */
static __device__ __forceinline__ void put_remote(uint32_t to, uint32_t bar, int rank, float4 x)
{
    asm volatile("{ .reg .b32 there, done; mapa.shared::cluster.u32 there, %0, %2; "
                 "mapa.shared::cluster.u32 done, %1, %2; "
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], "
                 "{%3, %4, %5, %6}, [done]; }" ::"r"(to),
                 "r"(bar), "r"(rank), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
                 : "memory");
}

static __device__ __forceinline__ int shares_of(int group, int log2_ctas)
{
    return (group * (ROW_PAIRS / SHARE) + (1 << log2_ctas) - 1) >> log2_ctas;
}

/* Returns the factor that rescales a partial result with maximum `part` to maximum `max`. */
static __device__ __forceinline__ float share_of(float part, float max, float scale_log2)
{
    return part == -INFINITY ? 0 : kvd_exp2((part - max) * scale_log2);
}

/* Merges the results of all warps for two elements of a query head's output. Returns the two
 * elements, the largest score and the softmax sum. */
static __device__ __forceinline__ float4 merge_pair(const char *units, const float2 *ml,
                                                    int warp_bytes, int row, int o_pitch, int pair,
                                                    float scale_log2)
{
    float max = -INFINITY;
    float4 r = make_float4(0, 0, 0, 0);
    float2 part[SHORT_WARPS];
#pragma unroll
    for (int w = 0; w < SHORT_WARPS; w++) {
        part[w] = ml[w * KVD_GROUP_MAX + row];
        max = fmaxf(max, part[w].x);
    }
#pragma unroll
    for (int w = 0; w < SHORT_WARPS; w++) {
        const float2 o =
            reinterpret_cast<const float2 *>(units + w * warp_bytes)[row * (o_pitch / 2) + pair];
        const float f = share_of(part[w].x, max, scale_log2);
        r.x = fmaf(o.x, f, r.x);
        r.y = fmaf(o.y, f, r.y);
        r.w = fmaf(part[w].y, f, r.w);
    }
    r.z = max;
    return r;
}

/* Merges the CTAs' partial results for two adjacent output dimensions of a query head. CTA c's
 * result is parts[c * pitch]: two output numbers, largest score, softmax sum. */
static __device__ __forceinline__ float4 merge_ctas(const float4 *parts, int pitch, int n_ctas,
                                                    float scale_log2, int lane)
{
    float max = -INFINITY;
    float4 part[CLUSTER_MAX / 2], r = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < CLUSTER_MAX / 2; i++) {
        const int c = 2 * i + lane / SHARE;
        part[i] = c < n_ctas ? parts[c * pitch] : make_float4(0, 0, -INFINITY, 0);
        max = fmaxf(max, part[i].z);
    }
    max = fmaxf(max, __shfl_xor_sync(~0u, max, SHARE));
#pragma unroll
    for (int i = 0; i < CLUSTER_MAX / 2; i++) {
        const float f = share_of(part[i].z, max, scale_log2);
        r.x = fmaf(part[i].x, f, r.x);
        r.y = fmaf(part[i].y, f, r.y);
        r.w = fmaf(part[i].w, f, r.w);
    }
    r.x += __shfl_xor_sync(~0u, r.x, SHARE);
    r.y += __shfl_xor_sync(~0u, r.y, SHARE);
    r.w += __shfl_xor_sync(~0u, r.w, SHARE);
    r.z = max;
    return r;
}

template <bool BF>
static __device__ __forceinline__ void put_short_pair(const short_params &p, const short_head &h,
                                                      int request, int kv_head, int row, int pair,
                                                      float4 r)
{
    const int head = kv_head * p.group + row;
    put_output<BF>(p.o + (size_t)request * (size_t)p.o_pitch + h.o + row * h.d_v,
                   p.lse ? p.lse + (size_t)request * (size_t)p.n_heads + head : NULL, p.scale, pair,
                   make_float2(r.x, r.y),
                   end_row(sinks_of(p.sinks, p.n_sinks, request, p.n_heads), head, r.z, r.w,
                           p.scale, p.scale_log2));
}

/* Copies K and V of this warp's tokens to shared memory, and accumulates attention to these tokens
 * in the softmax state `st`. */
template <bool BF>
static __device__ __forceinline__ void
compute_units(state<1, SHORT_WIDTH_MAX / 16> &st, const uint32_t (&q)[SHORT_WIDTH_MAX / 16][2],
              const short_params &p, const short_head &h, const warp_place &at,
              const int32_t *table, int32_t page, int n_tokens, uint32_t ring, uint32_t full,
              uint32_t empty, int lane)
{
    const uint64_t policy = read_once_policy();
    const int slots = h.slots, unit_bytes = 2 * UNIT * (h.d_qk + h.d_v);
    const int mine = count_units(at, (n_tokens + UNIT - 1) / UNIT);
    if (lane < min(mine, slots))
        copy_unit(p, h, ring + (uint32_t)(lane * unit_bytes), full + 8 * (uint32_t)lane, page,
                  unit_of(at, lane), n_tokens, policy);
    if (at.warp == 0 && lane == 0)
        stamp(p.stamps, AT_FIRST_COPY);
    /* These barriers protect slots of the ring buffer that are used again. Their initialisation is
     * slow, so the first copies start before it. */
    if (mine > slots) {
        if (lane < slots)
            pipe_init(empty + 8 * (uint32_t)lane, 32);
        __syncwarp();
    }
    uint32_t turn = 0;
    for (int i = 0, slot = 0; i < mine; i++) {
        const uint32_t to = ring + (uint32_t)(slot * unit_bytes);
        pipe_wait(full + 8 * (uint32_t)slot, turn);
        if (at.warp == 0 && lane == 0 && i == 0)
            stamp(p.stamps, AT_FIRST_PAGE);
        consume_unit<BF, 1, SHORT_GROUPS, false>(st, q, to, to + (uint32_t)(2 * UNIT * h.d_qk),
                                                 h.d_qk, h.d_v, n_tokens - UNIT * unit_of(at, i), 0,
                                                 p.scale_log2, lane);
        if (at.warp == 0 && lane == 0 && i == 0)
            stamp(p.stamps, AT_FIRST_DONE);
        const int next = i + slots;
        if (next < mine) {
            if (next % 32 == 0)
                page = load_unit_pages(p, at, table, next, lane);
            pipe_arrive(empty + 8 * (uint32_t)slot);
            if (lane == next % 32) {
                pipe_wait(empty + 8 * (uint32_t)slot, turn);
                copy_unit(p, h, to, full + 8 * (uint32_t)slot, page, unit_of(at, next), n_tokens,
                          policy);
            }
            __syncwarp();
        }
        if (++slot == slots) {
            slot = 0;
            turn ^= 1;
        }
    }
}

/* Merges the results of the CTA's warps, then of the cluster's CTAs. All CTAs must have started. */
template <bool BF>
static __device__ __forceinline__ void
merge_task(const short_params &p, const short_head &h, const warp_place &at, const char *units,
           const float2 *ml, float4 *parts, uint32_t arrived, int request, int kv_head, int lane)
{
    const int n_ctas = 1 << at.log2_ctas, shares = shares_of(p.group, at.log2_ctas);
    const int pitch = SHARE * shares;
    for (int i = 32 * at.warp + lane; i < pitch << at.log2_ctas; i += 32 * SHORT_WARPS) {
        const int row = i / ROW_PAIRS, pair = i % ROW_PAIRS, share = i / SHARE;
        const bool there = row < p.group && 2 * pair < h.d_v;
        float4 r = make_float4(0, 0, -INFINITY, 0);
        if (there)
            r = merge_pair(units, ml, p.warp_bytes, row, h.d_v + 4, pair, p.scale_log2);
        if (n_ctas > 1)
            put_remote(
                smem_address(parts + at.rank * pitch + (share >> at.log2_ctas) * SHARE + i % SHARE),
                arrived, share & (n_ctas - 1), r);
        else if (there)
            put_short_pair<BF>(p, h, request, kv_head, row, pair, r);
    }
    if (at.warp == 0 && lane == 0)
        stamp(p.stamps, AT_WARPS_MERGED);
    if (n_ctas == 1)
        return;
    /* All warps wait for the results of the other CTAs, because a CTA must not end while its shared
     * memory is written by others. */
    pipe_wait(arrived, 0);
    if (at.warp == 0 && lane == 0)
        stamp(p.stamps, AT_SLOTS_READ);
    for (int s = at.warp; s < shares; s += SHORT_WARPS) {
        const int i = ((s << at.log2_ctas) + at.rank) * SHARE + lane % SHARE;
        const int row = i / ROW_PAIRS, pair = i % ROW_PAIRS;
        const float4 r =
            merge_ctas(parts + s * SHARE + lane % SHARE, pitch, n_ctas, p.scale_log2, lane);
        if (row < p.group && 2 * pair < h.d_v && lane < SHARE)
            put_short_pair<BF>(p, h, request, kv_head, row, pair, r);
    }
}
#endif

template <bool BF>
static __global__ void __launch_bounds__(32 * SHORT_WARPS, RESIDENT)
    short_kernel(const __grid_constant__ short_params p)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char smem[];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    uint32_t rank, kv_head;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(kv_head));
    const warp_place at = {warp, (int)rank, p.log2_ctas};
    const int request = (int)blockIdx.y;
    const short_head h = p.head[kv_head];
    if (threadIdx.x == 0)
        stamp(p.stamps, AT_ENTRY);
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    const int32_t *table = p.page_table + (size_t)request * (size_t)p.max_pages;
    /* Loads of page numbers and lengths take longer than initialising the barriers, so they start
     * first. */
    const int32_t page = load_unit_pages(p, at, table, 0, lane);
    const int n_tokens = load_now(p.kv_len + request);
    const int live = p.live ? load_now(p.live) : p.batch;
    uint32_t q[SHORT_WIDTH_MAX / 16][2];
    load_q<1>(q, p.q + (size_t)request * (size_t)p.q_pitch + h.q, h.q_stride, p.group, h.d_qk,
              lane);
    const unsigned long long begun = p.busy ? now_ns() : 0;

    char *rest = smem + SHORT_WARPS * p.warp_bytes;
    const uint32_t full = smem_address(rest) + (uint32_t)(warp * SLOTS_MAX * 2 * 8),
                   empty = full + SLOTS_MAX * 8;
    const uint32_t arrived = smem_address(rest) + SHORT_BARRIER_BYTES - 16;
    float2 *ml = reinterpret_cast<float2 *>(rest + SHORT_BARRIER_BYTES);
    float4 *parts = reinterpret_cast<float4 *>(rest + SHORT_BARRIER_BYTES + SHORT_ML_BYTES);
    if (lane < h.slots)
        pipe_init(full + 8 * (uint32_t)lane, 1);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    if (p.log2_ctas) {
        if (threadIdx.x == 32 * SHORT_WARPS - 1)
            expect_parts(arrived, (SHARE * 16) * shares_of(p.group, p.log2_ctas) << p.log2_ctas);
        cluster_arrive();
    }
    __syncwarp();
    const bool works = request < live;
    if (works) {
        state<1, SHORT_WIDTH_MAX / 16> st;
        clear(st);
        compute_units<BF>(st, q, p, h, at, table, page, n_tokens,
                          smem_address(smem + warp * p.warp_bytes), full, empty, lane);
        if (threadIdx.x == 0)
            stamp(p.stamps, AT_LAST_DONE);
        /* Waits for all lanes, because put_state overwrites K and V that they still read in shared
         * memory. */
        __syncwarp();
        put_state(st, reinterpret_cast<float *>(smem + warp * p.warp_bytes),
                  ml + warp * KVD_GROUP_MAX, p.group, h.d_v + 4, h.d_v, lane);
        if (p.log2_ctas)
            cluster_wait();
        __syncthreads();
        merge_task<BF>(p, h, at, smem, ml, parts, arrived, request, (int)kv_head, lane);
    }
    if (threadIdx.x == 0)
        stamp(p.stamps, AT_END);
    if (p.busy) {
        __syncthreads();
        const int cta = (int)cta_number(), step = (int)(gridDim.x * gridDim.y);
        for (int c = cta; threadIdx.x == 0 && c < p.n_ctas; c += step)
            p.busy[c] = works && c == cta ? now_ns() - begun : 0;
    }
#endif
}

/* Arguments of a kernel launch. Must not be copied or moved, because `config` has a pointer to
 * `attribute`. */
typedef struct {
    cudaLaunchConfig_t config;
    cudaLaunchAttribute attribute[2];
    int warp_bytes; /* bytes of shared memory for one warp's units */
} short_launch;

static int pages_per_cta(const kvd_decode_args *args, int ctas)
{
    return (args->max_pages + ctas - 1) / ctas;
}

/* Divides the shared memory of an SM among CTAs such that `per_sm` CTAs fit on it. */
static cudaError_t divide_memory(int per_sm, short_launch *l)
{
    int major, all, reserved;
    cudaError_t e = kvd_compute_capability(&major);
    if (e == cudaSuccess)
        e = kvd_device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, &all);
    if (e == cudaSuccess)
        e = kvd_device_attribute(cudaDevAttrReservedSharedMemoryPerBlock, &reserved);
    if (e != cudaSuccess)
        return e;
    l->warp_bytes = (all / per_sm - reserved - SHORT_REST_BYTES) / SHORT_WARPS / 128 * 128;
    l->config.dynamicSmemBytes = (size_t)(SHORT_WARPS * l->warp_bytes + SHORT_REST_BYTES);
    return major == 9 && l->warp_bytes >= 2 * UNIT * 2 * SHORT_WIDTH_MAX
               ? cudaSuccess
               : cudaErrorInvalidConfiguration;
}

template <bool BF>
static cudaError_t short_prepare(const kvd_decode_args *args, int ctas, short_launch *l,
                                 cudaStream_t stream)
{
    *l = {};
    cudaError_t e = divide_memory(pages_per_cta(args, ctas) > SOME_PAGES ? 1 : RESIDENT, l);
    if (e == cudaSuccess)
        e = cudaFuncSetAttribute(short_kernel<BF>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)l->config.dynamicSmemBytes);
    if (e == cudaSuccess && ctas > 8)
        e = cudaFuncSetAttribute(short_kernel<BF>, cudaFuncAttributeNonPortableClusterSizeAllowed,
                                 1);
    if (e != cudaSuccess)
        return e;
    l->attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    l->attribute[0].val.programmaticStreamSerializationAllowed = 1;
    l->attribute[1].id = cudaLaunchAttributeClusterDimension;
    l->attribute[1].val.clusterDim.x = (unsigned)ctas;
    l->attribute[1].val.clusterDim.y = l->attribute[1].val.clusterDim.z = 1;
    l->config.gridDim = dim3((unsigned)(args->map.n_kv_heads * ctas), (unsigned)args->batch);
    l->config.blockDim = dim3(32 * SHORT_WARPS);
    l->config.stream = stream;
    l->config.attrs = l->attribute;
    l->config.numAttrs = ctas > 1 ? 2 : 1;
    return cudaSuccess;
}

static int log2_of(int n)
{
    int log2 = 0;
    while (1 << (log2 + 1) <= n)
        log2++;
    return log2;
}

template <bool BF> static cudaError_t launch_short(const kvd_decode_args *args, cudaStream_t stream)
{
    const kvd_attn_map &map = args->map;
    short_params p;
    short_launch l;
    const cudaError_t e = short_prepare<BF>(args, args->ctas_per_task, &l, stream);
    if (e != cudaSuccess)
        return e;
    memset(&p, 0, sizeof p);
    p.kv_len = args->kv_len;
    p.page_table = args->page_table;
    p.live = args->live;
    p.q = (const uint16_t *)args->q;
    p.pool = (const char *)args->pool;
    p.o = (uint16_t *)args->o;
    p.lse = args->lse;
    p.busy = args->busy;
    p.stamps = args->stamps;
    p.sinks = args->sinks;
    p.n_sinks = args->n_sinks;
    p.batch = args->batch;
    p.max_pages = args->max_pages;
    p.n_heads = map.n_heads;
    p.group = map.group;
    p.q_pitch = map.q_pitch;
    p.o_pitch = map.o_pitch;
    p.page_elements = map.page_elements;
    p.n_ctas = args->n_ctas;
    p.log2_ctas = log2_of(args->ctas_per_task);
    p.warp_bytes = l.warp_bytes;
    p.scale = map.scale;
    p.scale_log2 = map.scale * 1.4426950408889634f;
    for (int g = 0; g < map.n_kv_heads; g++) {
        short_head *h = &p.head[g];
        h->kv = map.kv_offset[g];
        h->q = map.q_offset[g * map.group];
        h->q_stride = q_stride(map, g);
        h->o = map.o_offset[g * map.group];
        h->d_qk = map.d_qk[g];
        h->d_v = map.d_v[g];
        h->slots =
            (int16_t)min((int)SLOTS_MAX, l.warp_bytes / (2 * UNIT * (map.d_qk[g] + map.d_v[g])));
    }
    return cudaLaunchKernelEx(&l.config, short_kernel<BF>, p);
}

static bool short_can(const kvd_decode_args *args, int ctas)
{
    const kvd_attn_map *map = &args->map;
    bool can = ctas >= 1 && ctas <= CLUSTER_MAX && !(ctas & (ctas - 1)) && !map->window &&
               !args->second_len && !args->piece_tokens && map->group <= SHORT_GROUP_MAX &&
               map->n_kv_heads <= SHORT_HEADS &&
               (long long)args->batch * map->n_kv_heads * ctas <= args->n_ctas;
    for (int g = 0; can && g < map->n_kv_heads; g++)
        can = map->d_qk[g] <= SHORT_WIDTH_MAX && map->d_v[g] <= SHORT_WIDTH_MAX;
    return can;
}

static bool short_pays(const kvd_decode_args *args, int ctas, int shortest)
{
    const int each = pages_per_cta(args, ctas), tasks = args->batch * args->map.n_kv_heads;
    if (each <= FEW_PAGES)
        return true;
    /* The general decode kernel uses all SMs. The kernel for short requests must use three quarters
     * of all SMs. */
    if (4 * tasks * ctas < 3 * args->n_ctas)
        return false;
    if (!shortest)
        return each <= SOME_PAGES;
    const int shortest_pages = (shortest + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
    return 4 * shortest_pages >= 3 * args->max_pages &&
           each <= (ctas == 1 ? MANY_PAGES : SOME_PAGES);
}

static bool short_fits(const kvd_decode_args *args, int ctas)
{
    const int tasks = args->batch * args->map.n_kv_heads;
    short_launch l;
    int fit = 0;
    cudaError_t e = short_prepare<true>(args, ctas, &l, NULL);
    if (e == cudaSuccess && ctas > 1) {
        e = cudaOccupancyMaxActiveClusters(&fit, short_kernel<true>, &l.config);
    } else if (e == cudaSuccess) {
        e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
            &fit, short_kernel<true>, 32 * SHORT_WARPS, l.config.dynamicSmemBytes);
        fit *= kvd_decode_ctas(&args->map);
    }
    if (e != cudaSuccess)
        (void)cudaGetLastError();
    return e == cudaSuccess && fit >= tasks;
}

int kvd_decode_ctas_per_task(const kvd_decode_args *args, int shortest)
{
    for (int ctas = args->max_pages > SMALL_REQUEST ? CLUSTER_MAX : CLUSTER_MAX / 2; ctas;
         ctas /= 2)
        if (short_can(args, ctas) && short_pays(args, ctas, shortest) && short_fits(args, ctas))
            return ctas;
    return 0;
}

cudaError_t kvd_decode_short(const kvd_decode_args *args, cudaStream_t stream)
{
    if (!short_can(args, args->ctas_per_task))
        return cudaErrorInvalidValue;
    return args->dtype == KVD_BF16 ? launch_short<true>(args, stream)
                                   : launch_short<false>(args, stream);
}
