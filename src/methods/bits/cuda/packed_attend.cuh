/* Decodes quantised pages to shared memory. From there, kernels compute attention or copy the
 * numbers to bf16 pages. */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_ATTEND_CUH
#define KVD_METHODS_BITS_CUDA_PACKED_ATTEND_CUH

#include "methods/bits/cuda/packed_decode.cuh"

namespace
{

enum {
    OCTETS = 8, /* octets of a page, and warps of a CTA */
    THREADS = 32 * OCTETS,
    D_MAX = KVD_WIDTH_NARROW,
    /* Distance in elements between blocks of 8 tokens x 8 channels: 64, plus 8 of padding against
     * bank conflicts. */
    BLOCK = 72,
    OCTET = D_MAX / 8 * BLOCK, /* numbers from an octet to the next one */
    TILE = OCTETS * OCTET      /* numbers of K or of V of a page */
};

/* Eight tokens, from token t0 of page p on, of KV head g of request b: addresses of their quantised
 * numbers and of their decoded K and V. */
struct octet {
    const kvd_packed_args &a;
    int b, g, p, m, t0;
    const char *codes;
    uint16_t *keys, *values;
};

__device__ __forceinline__ int first_token(const octet &o)
{
    return KVD_PAGE_TOKENS * o.p + o.t0;
}

__device__ __forceinline__ int width_of(const octet &o, int side)
{
    return side ? o.a.map.d_v[o.g] : o.a.map.d_qk[o.g];
}

__device__ __forceinline__ uint16_t *tile_of(const octet &o, int side)
{
    return side ? o.values : o.keys;
}

/* Returns the index of channel i of token t in a block of 8 decoded tokens in shared memory. */
__device__ __forceinline__ int tile_index(int t, int i)
{
    return i / 8 * BLOCK + 8 * t + i % 8;
}

/* Writes channel i of up to 8 tokens to `tile`: only tokens t with from <= t < to. x: two tokens
 * per word. */
__device__ __forceinline__ void put_pairs(uint16_t *tile, int i, const uint32_t (&x)[4], int from,
                                          int to)
{
    uint16_t *const at = tile + tile_index(0, i);
#pragma unroll
    for (int t = 0; t < 8; t += 2) {
        if (t >= from && t < to)
            at[8 * t] = (uint16_t)x[t / 2];
        if (t + 1 >= from && t + 1 < to)
            at[8 * t + 8] = (uint16_t)(x[t / 2] >> 16);
    }
}

template <bool HALF> __device__ __forceinline__ uint32_t pair_of(float low, float high)
{
    return HALF ? f16_pair(low, high) : bf16_pair(low, high);
}

template <bool HALF>
__device__ __forceinline__ void put_channel(uint16_t *tile, int i, const float (&x)[8], int from,
                                            int to)
{
    const uint32_t pairs[4] = {pair_of<HALF>(x[0], x[1]), pair_of<HALF>(x[2], x[3]),
                               pair_of<HALF>(x[4], x[5]), pair_of<HALF>(x[6], x[7])};
    put_pairs(tile, i, pairs, from, to);
}

/* Converts two bf16 numbers to float16. Numbers beyond the range of float16 are clamped. */
__device__ __forceinline__ uint32_t halves_of(uint32_t pair)
{
    constexpr float MOST = 65504;
    return f16_pair(fminf(fmaxf(bf16_of(pair, 0), -MOST), MOST),
                    fminf(fmaxf(bf16_of(pair, 1), -MOST), MOST));
}

/* Copies K or V of unquantised tokens from the ring buffer to shared memory, in float16 if HALF is
 * true, else in bf16. Tokens after the request's last token become 0. */
template <bool HALF>
__device__ __forceinline__ void put_uncoded(const octet &o, int side, int coded, int lane)
{
    const int t = lane % 8, token = first_token(o) + t;
    if (first_token(o) + 8 <= coded || token < coded)
        return;
    const uint16_t *const ring = in_ring(o.a, o.b, o.p, o.g);
    for (int i = lane / 8 * 8; i < width_of(o, side); i += 32) {
        uint4 x = token < o.m ? eight_at(ring + place_in_page(o.a, o.g, side, o.t0 + t, i))
                              : make_uint4(0, 0, 0, 0);
        if (HALF)
            x = make_uint4(halves_of(x.x), halves_of(x.y), halves_of(x.z), halves_of(x.w));
        *reinterpret_cast<uint4 *>(tile_of(o, side) + tile_index(t, i)) = x;
    }
}

/* Copies dequantised K or V of 8 tokens from shared memory to the bf16 page. */
__device__ __forceinline__ void put_rows(const octet &o, int side, int lane)
{
    uint16_t *const rows = in_rows(o.a, page_number(o.a, o.b, o.p), o.g);
    for (int i = lane / 8 * 8; i < width_of(o, side); i += 32)
        *reinterpret_cast<uint4 *>(rows + place_in_page(o.a, o.g, side, o.t0 + lane % 8, i)) =
            eight_at(tile_of(o, side) + tile_index(lane % 8, i));
}

/* Softmax state and attention output of a warp. `max` (the largest score times log2(e)) and `sum`
 * belong to query head lane / 4. */
struct attention {
    float max, sum, o[D_MAX / 16][4];
    /* unit: divisor of the queries. more: the lane's 4 elements of the product of probabilities and
     * left low-rank factor of V. */
    float unit, more[4];
};

__device__ __forceinline__ void clear(attention &s)
{
    s.max = -INFINITY;
    s.sum = 0;
    s.unit = 1;
#pragma unroll
    for (int i = 0; i < 4; i++)
        s.more[i] = 0;
#pragma unroll
    for (int i = 0; i < D_MAX / 4; i++)
        s.o[i / 4][i % 4] = 0;
}

/* Query heads `first` to `first` + n - 1 of request b. All of them attend to KV head g. */
struct query_heads {
    int b, g, first, n, share, shares;
};

__device__ __forceinline__ query_heads heads_of(const packed_params &p, int b, int g, int share,
                                                int shares)
{
    const int n = p.a.map.group / shares;
    return {b, g, g * p.a.map.group + share * n, n, share, shares};
}

/* Queries in shared memory, in the order in which mma instructions take operands. */
typedef uint32_t query_words[D_MAX / 8][32];

/* Loads the queries as float16, divided by a power of two so that they fit. Returns the power of
 * two. */
__device__ __forceinline__ float load_queries(const packed_params &p, const query_heads &h,
                                              query_words &q, int first, int step)
{
    const int lane = (int)threadIdx.x % 32, d = p.a.map.d_qk[h.g];
    const bool there = lane / 4 < h.n;
    const uint16_t *const from = static_cast<const uint16_t *>(p.d.q) +
                                 (size_t)h.b * (size_t)p.a.map.q_pitch + p.a.map.q_offset[h.first] +
                                 lane / 4 * d + lane % 4 * 2;
    float most = 0;
    for (int i = 0; there && 8 * i < d; i++) {
        const uint32_t x = *reinterpret_cast<const uint32_t *>(from + 8 * i);
        most = fmaxf(most, fmaxf(fabsf(bf16_of(x, 0)), fabsf(bf16_of(x, 1))));
    }
    const float unit = unit_of(most), over = 1 / unit;
    for (int i = first; 8 * i < d; i += step) {
        const uint32_t x = there ? *reinterpret_cast<const uint32_t *>(from + 8 * i) : 0;
        q[i][lane] = f16_pair(bf16_of(x, 0) * over, bf16_of(x, 1) * over);
    }
    return unit;
}

/* Adds the products of two keys with query number lane / 4 to x[0] and x[1]. */
__device__ __forceinline__ void add_products(const octet &o, const query_words &q, float (&x)[4],
                                             int lane)
{
    const uint32_t *const k = reinterpret_cast<const uint32_t *>(o.keys) + lane;
#pragma unroll
    for (int u = 0; u < D_MAX / 16; u++) {
        if (16 * u >= width_of(o, 0))
            break;
        const uint32_t rows[4] = {q[2 * u][lane], 0, q[2 * u + 1][lane], 0};
        mma_pure<false>(x, rows, k[BLOCK * u], k[BLOCK * u + BLOCK / 2]);
    }
}

/* Loads four adjacent 8 x 8 blocks and transposes them. In the result, rows are channels and
 * columns are tokens. */
__device__ __forceinline__ void load_transposed(const uint16_t *blocks, uint32_t (&x)[4], int lane)
{
    ldmatrix_trans((uint32_t)__cvta_generic_to_shared(blocks + lane / 8 * BLOCK + lane % 8 * 8), x);
}

/* Adds tokens `from` to `to` - 1 of the page to the softmax state and the output. The range must
 * not be empty. */
template <class PAGE>
__device__ __forceinline__ void attend_octet(const packed_params &p, const octet &o,
                                             const PAGE &page, const query_words &q, int from,
                                             int to, attention &s, int lane)
{
    float x[4] = {}, shrink[2];
    add_products(o, q, x, lane);
    if constexpr (PAGE::LOW_RANK)
        page.add_scores(o, x, lane);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int t = lane % 4 * 2 + e;
        x[e] = t >= from && t < to ? x[e] * (p.scale_log2 * s.unit) : -INFINITY;
    }
    float top = fmaxf(x[0], x[1]);
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    if (__any_sync(~0u, !(top - s.max <= LAZY))) {
        const float most = fmaxf(s.max, top), factor = kvd_exp2(s.max - most);
        s.max = most;
        s.sum *= factor;
        of_columns(factor, shrink, lane);
        s.more[0] *= shrink[0];
        s.more[1] *= shrink[1];
#pragma unroll
        for (int i = 0; i < D_MAX / 4; i++)
            s.o[i / 4][i % 4] *= shrink[i % 2];
    }
#pragma unroll
    for (int e = 0; e < 2; e++)
        x[e] = kvd_exp2(x[e] - (s.max - TOP));
    s.sum += x[0] + x[1];
    const uint32_t high = f16_pair(x[0], x[1]);
#pragma unroll
    for (int e = 0; e < 2; e++)
        x[e] -= half_of(high, e);
    const uint32_t low = f16_pair(x[0], x[1]);
    if constexpr (PAGE::LOW_RANK)
        page.add_values(o, high, low, s, lane);
#pragma unroll
    for (int j = 0; j < D_MAX / 32; j++) {
        if (32 * j >= width_of(o, 1))
            break;
        uint32_t v[4];
        load_transposed(o.values + 4 * BLOCK * j, v, lane);
        const uint32_t first[4] = {v[0], v[1], v[0], v[1]}, second[4] = {v[2], v[3], v[2], v[3]};
        mma_pure<false>(s.o[2 * j], first, high, low);
        mma_pure<false>(s.o[2 * j + 1], second, high, low);
    }
}

/* Range of pages that one CTA reads: pages `from` to `to` - 1 of one KV head of a request. The CTA
 * is number `part` of the `parts` CTAs that read this KV head. */
struct run_of {
    int from, to, part, parts;
};

/* Divides the pages that a request of m tokens reads among `ctas` CTAs. Some CTAs may get no
 * page. */
__device__ __forceinline__ run_of run_at(const kvd_packed_args &a, int m, int part, int ctas)
{
    const int first = first_seen(a, m) / KVD_PAGE_TOKENS,
              pages = (m + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS,
              each = max((pages - first + ctas - 1) / ctas, 1), from = first + part * each;
    return {from, min(from + each, pages), part, (pages - first + each - 1) / each};
}

/* Returns the address in the workspace at which CTA number `part` of `ctas` CTAs stores its partial
 * attention result. */
__device__ __forceinline__ float *slot_of(const packed_params &p, const query_heads &h, int part,
                                          int ctas)
{
    const size_t kv = (size_t)h.b * (size_t)p.a.map.n_kv_heads + (size_t)h.g,
                 all = kv * (size_t)h.shares + (size_t)h.share;
    return p.d.partial + (all * (size_t)ctas + (size_t)part) * (size_t)p.slot_floats;
}

/* Merges the attention results of the CTA's warps. Writes the result as a partial one if several
 * CTAs share the KV head. */
__device__ void put_attention(const packed_params &p, const query_heads &h, const run_of &run,
                              const attention &s, float *shared)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, d = p.a.map.d_v[h.g];
    float2 *const of_warp = reinterpret_cast<float2 *>(shared + OCTETS * HEADS * D_MAX);
    float sum = s.sum + __shfl_xor_sync(~0u, s.sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    __syncthreads();
    if (lane % 4 == 0)
        of_warp[warp * HEADS + lane / 4] = make_float2(s.max, sum);
#pragma unroll
    for (int i = 0; i < D_MAX / 4; i++)
        shared[(warp * HEADS + lane % 4 * 2 + i % 2) * D_MAX + i / 2 * 8 + lane / 4] =
            s.o[i / 4][i % 4];
    __syncthreads();
    float *const slot = run.parts > 1 ? slot_of(p, h, run.part, (int)gridDim.z) : NULL;
    for (int k = (int)threadIdx.x; k < h.n * d; k += THREADS) {
        const int row = k / d, i = k % d, head = h.first + row;
        float most = -INFINITY, all = 0, x = 0;
        for (int w = 0; w < OCTETS; w++)
            most = fmaxf(most, of_warp[w * HEADS + row].x);
        for (int w = 0; w < OCTETS; w++) {
            const float2 part = of_warp[w * HEADS + row];
            const float f = kvd_exp2(part.x - most);
            all += part.y * f;
            x += shared[(w * HEADS + row) * D_MAX + i] * f;
        }
        if (!slot) {
            output_of(p, h.b, head)[i] = __float2bfloat16_rn(x / (all + sink_term(p, head, most)));
            continue;
        }
        slot[2 * HEADS + row * D_MAX + i] = x;
        if (i == 0)
            *reinterpret_cast<float2 *>(slot + 2 * row) = make_float2(most, all);
    }
}

__global__ void __launch_bounds__(D_MAX)
    merge_parts_kernel(const __grid_constant__ packed_params p, int ctas)
{
    const int shares = (int)gridDim.x / p.a.map.n_kv_heads, g = (int)blockIdx.x / shares,
              b = (int)blockIdx.y, row = (int)blockIdx.z, i = (int)threadIdx.x;
    const query_heads h = heads_of(p, b, g, (int)blockIdx.x % shares, shares);
    const int head = h.first + row;
    if (p.d.live && b >= *p.d.live)
        return;
    const run_of run = run_at(p.a, p.a.kv_len[b], 0, ctas);
    if (run.parts < 2 || i >= p.a.map.d_v[g])
        return;
    float most = -INFINITY, all = 0, x = 0;
    for (int k = 0; k < run.parts; k++)
        most = fmaxf(most, slot_of(p, h, k, ctas)[2 * row]);
#pragma unroll 4
    for (int k = 0; k < run.parts; k++) {
        const float *const slot = slot_of(p, h, k, ctas);
        const float f = kvd_exp2(slot[2 * row] - most);
        all += slot[2 * row + 1] * f;
        x += slot[2 * HEADS + row * D_MAX + i] * f;
    }
    output_of(p, b, head)[i] = __float2bfloat16_rn(x / (all + sink_term(p, head, most)));
}

/* Starts copying a page's quantised numbers to shared memory. All threads of the CTA must call
 * it. */
__device__ __forceinline__ void copy_codes(const kvd_packed_args &a, int b, int g, int page,
                                           int bytes, char *to)
{
    const char *const from = in_codes(a, page_number(a, b, page), g);
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    for (int i = 16 * (int)threadIdx.x; i < bytes; i += 16 * THREADS)
        copy_16(address + (uint32_t)i, from + i);
}

/* Decodes the pages of a KV head of a request. If ATTEND is true, attends to them, otherwise copies
 * them to bf16 pages.
 *
 * PAGE decodes one number format. All warps must call PAGE.restore together, even warps without
 * tokens. */
template <class PAGE, bool ATTEND>
__global__ void __launch_bounds__(THREADS, ATTEND ? PAGE::CTAS : 3)
    restore_pages_kernel(const __grid_constant__ packed_params p)
{
    extern __shared__ __align__(128) char smem[];
    const int shares = (int)gridDim.x / p.a.map.n_kv_heads, share = (int)blockIdx.x % shares,
              g = (int)blockIdx.x / shares, b = (int)blockIdx.y, m = p.a.kv_len[b],
              warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    if (ATTEND && p.d.live && b >= *p.d.live)
        return;
    const run_of run = run_at(p.a, m, (int)blockIdx.z, (int)gridDim.z);
    if (run.from >= run.to)
        return;
    uint16_t *const tile = reinterpret_cast<uint16_t *>(smem);
    char *const stages = smem + 2 * TILE * sizeof(uint16_t);
    const int bytes = PAGE::bytes(p.a, g), seen = first_seen(p.a, m);
    copy_codes(p.a, b, g, run.from, bytes, stages);
    asm volatile("cp.async.commit_group;" ::: "memory");
    PAGE page(p.a, b, g, m, run.from, stages + 2 * p.stage_bytes);
    attention s;
    query_words *const q =
        reinterpret_cast<query_words *>(stages + 2 * p.stage_bytes + PAGE::SHARED);
    if (ATTEND)
        clear(s), s.unit = load_queries(p, heads_of(p, b, g, share, shares), *q, warp, OCTETS);
    if constexpr (ATTEND && PAGE::LOW_RANK) {
        __syncthreads();
        page.begin(*q, lane);
    }
#pragma unroll 1
    for (int i = run.from, stage = 0; i < run.to; i++, stage ^= 1) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if (i + 1 < run.to)
            copy_codes(p.a, b, g, i + 1, bytes, stages + (stage ^ 1) * p.stage_bytes);
        asm volatile("cp.async.commit_group;" ::: "memory");
        const octet o = {p.a,
                         b,
                         g,
                         i,
                         m,
                         8 * warp,
                         stages + stage * p.stage_bytes,
                         tile + warp * OCTET,
                         tile + TILE + warp * OCTET};
        page.restore(o);
        __syncwarp();
        const int from = max(seen - first_token(o), 0), to = min(m - first_token(o), 8);
        if (ATTEND && from < to)
            attend_octet(p, o, page, *q, from, to, s, lane);
        if (!ATTEND && to > 0) {
            put_rows(o, 0, lane);
            put_rows(o, 1, lane);
        }
        __syncwarp();
    }
    if constexpr (ATTEND && PAGE::LOW_RANK)
        page.end(s, lane);
    if (ATTEND)
        put_attention(p, heads_of(p, b, g, share, shares), run, s, reinterpret_cast<float *>(smem));
}

template <class PAGE> int stage_bytes(const kvd_packed_args *a)
{
    int most = 16;
    for (int g = 0; g < a->map.n_kv_heads; g++)
        most = max(most, PAGE::bytes(*a, g));
    return most;
}

template <class PAGE> int shared_bytes(const kvd_packed_args *a)
{
    return 2 * TILE * (int)sizeof(uint16_t) + 2 * stage_bytes<PAGE>(a) + PAGE::SHARED +
           (int)sizeof(query_words);
}

template <class PAGE> bool page_fits(const kvd_packed_args *a)
{
    return shared_bytes<PAGE>(a) <= most_shared();
}

inline packed_params params_of(const kvd_packed_args *a, const kvd_packed_decode_args *d, int stage)
{
    packed_params p = {};
    p.a = *a;
    if (d)
        p.d = *d;
    p.scale_log2 = a->map.scale * 1.4426950408889634f;
    p.slot_floats = HEADS * (2 + D_MAX);
    p.stage_bytes = stage;
    return p;
}

inline void launch_merge(const packed_params &p, int ctas, cudaStream_t stream)
{
    const int shares = shares_of(&p.a.map);
    const dim3 grid((unsigned)(p.a.map.n_kv_heads * shares), (unsigned)p.a.n,
                    (unsigned)(p.a.map.group / shares));
    if (ctas > 1)
        merge_parts_kernel<<<grid, D_MAX, 0, stream>>>(p, ctas);
}

/* Launches the kernel that decodes pages. If ATTEND is true, the kernel computes attention to the
 * pages, with arguments `d`. Otherwise, it writes them to bf16 pages, and `d` may be NULL. */
template <class PAGE, bool ATTEND>
cudaError_t launch(const kvd_packed_args *a, const kvd_packed_decode_args *d, int ctas,
                   cudaStream_t stream)
{
    const packed_params p = params_of(a, d, stage_bytes<PAGE>(a));
    const dim3 grid((unsigned)(a->map.n_kv_heads * (ATTEND ? shares_of(&a->map) : 1)),
                    (unsigned)a->n, (unsigned)ctas);
    const cudaError_t e = kvd_launch(restore_pages_kernel<PAGE, ATTEND>, grid, THREADS,
                                     (size_t)shared_bytes<PAGE>(a), stream, p);
    if (e != cudaSuccess || !ATTEND)
        return e;
    launch_merge(p, ctas, stream);
    return cudaGetLastError();
}

/* Returns the largest number of CTAs per KV head. It is limited by the workspace, which stores a
 * partial result per CTA. */
inline int most_ctas(const kvd_packed_args *a, const kvd_packed_decode_args *d)
{
    const int heads = a->n * a->map.n_kv_heads * shares_of(&a->map);
    return max(min(2 * WARPS_MOST * d->n_ctas / heads, a->max_pages), 1);
}

/* Returns the number of CTAs per KV head. It is reduced if each CTA would have few pages. */
inline int ctas_of(const kvd_packed_args *a, const kvd_packed_decode_args *d)
{
    const int heads = a->n * a->map.n_kv_heads * shares_of(&a->map),
              many = (16 * d->n_ctas + heads - 1) / heads,
              once = (3 * d->n_ctas + heads - 1) / heads;
    return min(max(min(many, a->max_pages / 4), once), most_ctas(a, d));
}

} // namespace

#endif
