/* Distributes quantised pages to warps, and loads queries and pages. Included by the attention
 * kernels of decode steps. */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_DECODE_PAGES_CUH
#define KVD_METHODS_BITS_CUDA_PACKED_DECODE_PAGES_CUH

#include "common/cuda/launch.cuh"
#include "methods/bits/cuda/packed_codes.h"
#include "methods/bits/cuda/packed_words.cuh"

/* Number of warps per CTA in the kernels for 8-bit and 4-bit floating-point numbers, and in the
 * kernels for method turboquant. */
enum { FLOATS_WARPS = 12 };

/* Parameters of the kernels for attention to quantised pages. Members that all kernels read come
 * first, so that they are in few cache lines. */
struct kvd_packed_decode_params {
    float scale_log2;
    int32_t warps, slot_floats;
    /* Sizes in shared memory, in bytes. stage_bytes: a warp's copy of one page. newest_at: offset
     * of the newest token in this copy. scratch_bytes: scratch memory of a warp. shared_bytes:
     * tables that all warps share. */
    int32_t stage_bytes, newest_at, scratch_bytes, shared_bytes;
    /* k_shift: log2(number of tokens that share a scale of K) - 3. v_shift: log2(number of
     * dimensions that share a scale of V) - 4. */
    int32_t k_shift, v_shift;
    int32_t n_listed;
    /* True if KV heads have different numbers of dimensions. */
    bool uneven;
    /* Estimated cost of reading one page, summed over the KV heads. */
    int32_t weights;
    /* Number of equal parts into which the query heads of each KV head are divided. */
    int32_t shares;
    kvd_packed_parts parts;
    kvd_packed_decode_args d;
    kvd_packed_args a;
};

typedef void (*kvd_packed_decode_kernel)(kvd_packed_decode_params);

/* Functions kvd_packed_*_kernel return the attention kernel for number format a->form, or NULL if
 * there is none. `uneven`: KV heads have different numbers of dimensions. */
kvd_packed_decode_kernel kvd_packed_even_kernel(const kvd_packed_args *a, bool uneven);
kvd_packed_decode_kernel kvd_packed_levels_kernel(const kvd_packed_args *a);
void kvd_packed_levels_lay_out(kvd_packed_decode_params *p);
kvd_packed_decode_kernel kvd_packed_turned_kernel(const kvd_packed_args *a);
void kvd_packed_turned_lay_out(kvd_packed_decode_params *p);
kvd_packed_decode_kernel kvd_packed_rows_kernel(const kvd_packed_args *a);
void kvd_packed_rows_lay_out(kvd_packed_decode_params *p);
kvd_packed_decode_kernel kvd_packed_floats_kernel(const kvd_packed_args *a, bool uneven);
void kvd_packed_floats_lay_out(kvd_packed_decode_params *p);
/* Returns true if kvd_packed_attend, for methods allot and gear, supports the shapes in *a. */
bool kvd_packed_attends(const kvd_packed_args *a);
cudaError_t kvd_packed_attend(const kvd_packed_args *a, const kvd_packed_decode_args *d,
                              cudaStream_t stream);

namespace
{

enum {
    WARPS_MOST = 12,
    HEADS = 8,
    SHORT = 8, /* warps with at most SHORT pages first load their bf16 tokens into L2 */
    /* Softmax numerators are multiplied by 2^TOP. */
    TOP = 6,
    /* The online softmax rescales its sums only if a score exceeds the running maximum by over
     * LAZY. */
    LAZY = 2,
    /* Fixed part of the time to read a page, in units of the time to read 16 dimensions of it. */
    PAGE_COST = 2
};

typedef kvd_packed_decode_params packed_params;

/* Returns into how many parts of at most HEADS query heads each KV head is divided. If there would
 * be more than 4 parts, returns 0. */
inline int shares_of(const kvd_attn_map *map)
{
    for (int n = 1; n <= 4; n++)
        if (map->group % n == 0 && map->group / n <= HEADS)
            return n;
    return 0;
}

/* Returns how many bytes of shared memory a CTA may have, or 0 if the GPU cannot be queried. */
inline int most_shared()
{
    int most;
    return kvd_device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &most) == cudaSuccess
               ? most
               : 0;
}

/* Page of a KV head that a warp reads next. Member `place` is the estimated cost of reading all
 * pages of the batch before this page. */
struct cursor {
    int b, g, page, pages, m, keys, values, number, place, weight;
    const char *head;
    kvd_packed_parts parts;
    int k_units, v_units, next_units;
};

__device__ __host__ __forceinline__ int page_weight(const packed_params &p, int g)
{
    return p.uneven ? (p.a.map.d_qk[g] + p.a.map.d_v[g]) / 16 + PAGE_COST : 1;
}

__device__ __forceinline__ void load_numbers(const packed_params &p, cursor &at, int lane)
{
    const int i = at.page / 32 * 32 + lane;
    at.number = i < at.pages ? page_number(p.a, at.b, i) : 0;
}

__device__ __forceinline__ int weight_per_warp(const packed_params &p)
{
    const int warps = p.d.n_ctas * p.warps;
    return (p.d.pages_before[p.a.n] * p.weights + warps - 1) / warps;
}

__device__ __forceinline__ void begin_head(const packed_params &p, cursor &at)
{
    const int d_qk = p.a.map.d_qk[at.g], d_v = p.a.map.d_v[at.g];
    at.head = p.a.codes + p.a.head_at[at.g];
    at.weight = page_weight(p, at.g);
    at.parts = kvd_packed_parts_of(&p.a.form, d_qk, d_v);
    at.k_units = d_qk / 16;
    at.v_units = d_v / 16;
}

template <class PAGE>
__device__ __forceinline__ const kvd_packed_parts &parts_of(const packed_params &p,
                                                            const cursor &at)
{
    return PAGE::UNEVEN ? at.parts : p.parts;
}

template <class PAGE> __device__ __forceinline__ int k_units(const cursor &at)
{
    return PAGE::UNEVEN ? at.k_units : PAGE::UNITS;
}

template <class PAGE> __device__ __forceinline__ int v_units(const cursor &at)
{
    return PAGE::UNEVEN ? at.v_units : PAGE::UNITS;
}

template <class PAGE> __device__ __forceinline__ int next_units(const cursor &at)
{
    return PAGE::UNEVEN ? at.next_units : PAGE::UNITS;
}

/* Returns the address of the page's K in the request's ring buffer. V comes after K. */
__device__ __forceinline__ const uint16_t *ring_of(const packed_params &p, const cursor &at)
{
    const size_t page = (size_t)p.a.slot[at.b] * (size_t)p.a.ring_pages +
                        (size_t)((uint32_t)at.page % (uint32_t)p.a.ring_pages);
    return p.a.ring + page * (size_t)p.a.map.page_elements + p.a.map.kv_offset[at.g];
}

__device__ __forceinline__ int first_page(const packed_params &p, const cursor &at)
{
    return first_seen(p.a, at.m) / KVD_PAGE_TOKENS;
}

/* Returns how many of the page's first tokens are older than the sliding window. */
__device__ __forceinline__ int unseen_of(const packed_params &p, const cursor &at)
{
    return max(first_seen(p.a, at.m) - KVD_PAGE_TOKENS * at.page, 0);
}

__device__ __forceinline__ void begin_request(const packed_params &p, cursor &at)
{
    at.m = p.a.kv_len[at.b];
    at.pages = (at.m + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
    at.keys = keys_coded(p.a, at.m - 1);
    at.values = values_coded(p.a, at.m - 1);
}

__device__ __forceinline__ void advance(const packed_params &p, cursor &at, int lane)
{
    at.place += at.weight;
    if (++at.page == at.pages) {
        if (++at.g == p.a.map.n_kv_heads) {
            at.g = 0;
            if (++at.b == p.a.n)
                return;
            begin_request(p, at);
        }
        at.page = first_page(p, at);
        begin_head(p, at);
        load_numbers(p, at, lane);
    } else if (at.page % 32 == 0) {
        load_numbers(p, at, lane);
    }
}

/* Finds the page at which the estimated cost of all earlier pages of the batch reaches x. Returns
 * the end of the batch if there is no such page. */
__device__ cursor seek(const packed_params &p, int x, int lane)
{
    int lo = 0, hi = p.a.n - 1;
    while (lo < hi) {
        const int mid = (lo + hi + 1) / 2;
        if (p.d.pages_before[mid] * p.weights <= x)
            lo = mid;
        else
            hi = mid - 1;
    }
    cursor at = {};
    at.b = lo;
    begin_request(p, at);
    const int read = at.pages - first_page(p, at);
    at.place = p.d.pages_before[lo] * p.weights;
    while (at.g + 1 < p.a.map.n_kv_heads && at.place + read * page_weight(p, at.g) <= x)
        at.place += read * page_weight(p, at.g++);
    begin_head(p, at);
    const int skipped = (x - at.place + at.weight - 1) / at.weight, page = min(skipped, read - 1);
    at.page = first_page(p, at) + page;
    at.place += page * at.weight;
    load_numbers(p, at, lane);
    if (skipped > page)
        advance(p, at, lane);
    return at;
}

__device__ __forceinline__ void prefetch_head(const packed_params &p, const cursor &at, int lane)
{
    const int heads = p.a.map.group, width = p.a.map.d_qk[at.g];
    const uint16_t *const q = static_cast<const uint16_t *>(p.d.q) +
                              (size_t)at.b * (size_t)p.a.map.q_pitch +
                              p.a.map.q_offset[at.g * heads];
    if (64 * lane < heads * width)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(q + 64 * lane));
    if (p.a.range && 16 * lane < width)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(
            p.a.range + 2 * (size_t)(at.g / p.shares) * (size_t)p.a.range_width + 32 * lane));
}

/* Prefetches bytes into the L2 cache. `from` and `bytes` must be multiples of 16. */
__device__ __forceinline__ void prefetch_bytes(const void *from, int bytes, int lane)
{
#if __CUDA_ARCH__ >= 900
    if (lane == 0 && bytes > 0)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
#else
    for (int i = 128 * lane; i < bytes; i += 4096)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char *>(from) + i));
#endif
}

/* Prefetches a page's unquantised tokens, which are in the ring buffer, into the L2 cache. */
__device__ __forceinline__ void prefetch_ring(const packed_params &p, const cursor &at, int lane)
{
    const int first = KVD_PAGE_TOKENS * at.page, left = min(at.m - first, (int)KVD_PAGE_TOKENS);
    if (min(at.keys, at.values) >= first + left)
        return;
    const int k_bytes = 16 * p.a.map.d_qk[at.g], v_bytes = 16 * p.a.map.d_v[at.g],
              keys = max(at.keys - first, 0) / 8, values = max(at.values - first, 0) / 8,
              end = (left + 7) / 8;
    const char *const from = reinterpret_cast<const char *>(ring_of(p, at));
    prefetch_bytes(from + keys * k_bytes, (end - keys) * k_bytes, lane);
    prefetch_bytes(from + 8 * k_bytes + values * v_bytes, (end - values) * v_bytes, lane);
}

__device__ __forceinline__ void prefetch_rings(const packed_params &p, cursor at, int to, int lane)
{
#pragma unroll 1
    for (;;) {
        prefetch_ring(p, at, lane);
        if (at.place + at.weight >= to)
            return;
        advance(p, at, lane);
    }
}

__device__ __forceinline__ void copy_16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* Starts copying the newest token, K then V in bf16, to shared memory. */
template <class PAGE>
__device__ __forceinline__ void copy_newest(const packed_params &p, const cursor &at, uint32_t to,
                                            int lane)
{
    const int t = at.m - 1 - KVD_PAGE_TOKENS * at.page, k = 2 * k_units<PAGE>(at),
              v = 2 * v_units<PAGE>(at), side = lane >= k, i = side ? lane - k : lane;
    if (t >= KVD_PAGE_TOKENS || lane >= k + v)
        return;
    copy_16(to + 16 * (uint32_t)lane, ring_of(p, at) + side * KVD_PAGE_TOKENS * 8 * k +
                                          t / 8 * 64 * (side ? v : k) + i * 64 + t % 8 * 8);
}

__device__ __forceinline__ void copy_ahead(uint32_t to, const char *from, int bytes, int lane)
{
#pragma unroll
    for (int i = 0; i < 2048; i += 512)
        asm volatile(
            "{\n.reg .pred p;\nsetp.lt.s32 p, %2, %3;\n@p cp.async.cg.shared.global [%0], [%1], 16;\n}" ::
                "r"(to + (uint32_t)(16 * lane + i)),
            "l"(from + 16 * lane + i), "r"(16 * lane + i), "r"(bytes)
            : "memory");
#pragma unroll 1
    for (int i = 16 * lane + 2048; i < bytes; i += 512)
        copy_16(to + (uint32_t)i, from + i);
}

/* Starts copying bytes to shared memory as a cp.async group. All threads of the CTA must call
 * it. */
__device__ __forceinline__ void copy_by_all(const char *to, const uint32_t *from, int bytes)
{
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    for (int i = 16 * (int)threadIdx.x; i < bytes; i += 16 * (int)blockDim.x)
        copy_16(address + (uint32_t)i, from + i / 4);
    asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ const char *codes_of(const packed_params &p, const cursor &at)
{
    return at.head +
           (size_t)(uint32_t)__shfl_sync(~0u, at.number, at.page % 32) * (uint32_t)p.a.page_bytes;
}

template <int B> __device__ __forceinline__ void load_words(const char *from, uint32_t (&w)[B])
{
    if constexpr (B % 4 == 0) {
#pragma unroll
        for (int i = 0; i < B; i += 4)
            asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
                         : "=r"(w[i]), "=r"(w[i + 1]), "=r"(w[i + 2]), "=r"(w[i + 3])
                         : "l"(from + 4 * i));
    } else if constexpr (B == 2) {
        asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "l"(from));
    } else {
#pragma unroll
        for (int i = 0; i < B; i++)
            asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(w[i]) : "l"(from + 4 * i));
    }
}

/* Words of quantised numbers that a lane loads into registers ahead of their use. */
template <int B, int N, bool PAIRS> struct words_ahead {
    static constexpr int AHEAD = B * N <= 32 ? N : 32 / B;
    uint32_t w[AHEAD][B];

    static __device__ constexpr int unit(int side, int i)
    {
        return PAIRS && side == 0 ? i % 2 * (N / 2) + i / 2 : i;
    }
    static __device__ __forceinline__ size_t of_lane()
    {
        return 4 * B * (threadIdx.x % 32);
    }
    __device__ __forceinline__ void load(int i, int unit, const char *from)
    {
        load_words<B>(from + of_lane() + 128 * B * unit, w[i % AHEAD]);
    }
    __device__ __forceinline__ void begin(int side, const char *from, int units = N)
    {
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (unit(side, i) < units)
                load(i, unit(side, i), from);
    }
    /* Replaces block i (16 dimensions) in registers by the block that is used AHEAD blocks later.
     * Loads it from `same` or, if that array has ended, from `next`. */
    __device__ __forceinline__ void taken(int side, int i, const char *same, const char *next,
                                          int same_units = N, int next_units = N)
    {
        if (i + AHEAD < N) {
            if (unit(side, i + AHEAD) < same_units)
                load(i, unit(side, i + AHEAD), same);
        } else if (unit(1 - side, i + AHEAD - N) < next_units) {
            load(i, unit(1 - side, i + AHEAD - N), next);
        }
    }
};

/* Returns the power of two by which a query with largest magnitude `most` is divided, so that it
 * fits in float16. */
__device__ __forceinline__ float unit_of(float most)
{
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    return __uint_as_float(max(__float_as_uint(most) & 0x7f800000u, 0x20000000u));
}

/* Returns the address in queries [n][q_pitch] from which this lane loads its first elements. */
__device__ __forceinline__ const uint16_t *query_in(const packed_params &p, const void *queries,
                                                    int b, int g, int lane)
{
    return static_cast<const uint16_t *>(queries) + (size_t)b * (size_t)p.a.map.q_pitch +
           p.a.map.q_offset[g * p.a.map.group] + lane / 4 * p.a.map.d_qk[g] + lane % 4 * 2;
}

__device__ __forceinline__ const uint16_t *query_of(const packed_params &p, int b, int g, int lane)
{
    return query_in(p, p.d.q, b, g, lane);
}

/* In lane l, x is a number of query head l / 4. Stores the numbers of query heads 2 c and 2 c + 1
 * in y, where c = lane % 4. */
__device__ __forceinline__ void of_columns(float x, float (&y)[2], int lane)
{
    y[0] = __shfl_sync(~0u, x, lane % 4 * 8);
    y[1] = __shfl_sync(~0u, x, lane % 4 * 8 + 4);
}

/* Query heads of a KV head as an mma operand, each divided by a power of two so that it fits in
 * float16. */
template <int UNITS> struct queries {
    uint32_t half[UNITS][2];
    /* Scales of query heads c and c + 1, where c is 2 * (lane % 4). A query element is its float16
     * number times the scale. */
    float unit[2];
};

/* Loads the first `units` blocks of 16 dimensions of the queries, and sets the other blocks to
 * 0. */
template <int UNITS>
__device__ void load_queries(const packed_params &p, const void *queries_of_all, int b, int g,
                             int lane, queries<UNITS> &q, int units = UNITS)
{
    const uint16_t *const from = query_in(p, queries_of_all, b, g, lane);
    const bool there = lane / 4 < p.a.map.group;
    float most = 0;
#pragma unroll
    for (int i = 0; i < 2 * UNITS; i++) {
        uint32_t &w = q.half[i / 2][i % 2];
        w = there && i / 2 < units ? *reinterpret_cast<const uint32_t *>(from + 8 * i) : 0;
        most = fmaxf(most, fmaxf(fabsf(bf16_of(w, 0)), fabsf(bf16_of(w, 1))));
    }
    const float unit = unit_of(most), over = 1 / unit;
    of_columns(unit, q.unit, lane);
#pragma unroll
    for (int i = 0; i < 2 * UNITS; i++) {
        uint32_t &w = q.half[i / 2][i % 2];
        w = f16_pair(bf16_of(w, 0) * over, bf16_of(w, 1) * over);
    }
}

} // namespace

#endif
