/*
 * Attention of steps on codes of even steps.
 *
 *   O[b, h] = softmax(Q[b, h] K[b, g]^T / sqrt(d_head)) V[b, g],   K = s code + zero per channel, V = s code + zero per token
 *
 * Bound by the bytes of codes and scales: per page of 64 tokens and KV head 8 bits (d_qk + d_v) + 256 (d_qk / k_group + d_v / v_group); at 4
 * bits, groups of 32 and d = 128 those are 10 KiB, of bf16 32. The work on them, some 1100 instructions of a warp,
 * leaves 55 % of that bound on an H200 (64 requests of 8192 tokens).
 *
 * Pages of all (request, KV head) are laid end to end and cut into equal runs, one per warp; warps share nothing. A warp copies its pages ahead
 * into stages of its own in shared memory (cp.async), reads codes in the order in which they lie (packed_layout.h), and has operands of mma.m16n8k16
 * after a mask and two packed operations on a pair: codes become float16 whole numbers, then s code + zero in float16 (2^-11, where bf16 has
 * 2^-9). Q is multiplied by a power of two per head, so that float16 holds it; P is float16. The newest rows are multiplied as the bf16 that they are.
 * S = Q K^T has heads as rows, O^T = V^T P^T dims: the accumulator of S, packed, is the operand of the second product.
 *
 * A run that ends within a head leaves a partial result; a second launch, grid (KV heads, requests, query heads of a group), merges those in the order of the
 * warps, so that results depend on lengths alone.
 */
#include "serving/cuda/methods/packed_decode.cuh"
#include "serving/cuda/methods/packed_decode_levels.h"

namespace
{

/* ---- operands ------------------------------------------------------------------------------------------- */

/*
 * Pairs of a word of a plane of W bits as float16 times `weight`. Bits 0 .. 7 of each half are put below those of 1024, where field r counts
 * 2^(W r), which one multiplication takes back with the 1024; every number on the way is exact.
 */
template <int W>
__device__ __forceinline__ void plane_of(uint32_t word, float weight, __half2 (&code)[16 / W])
{
#pragma unroll
    for (int r = 0; r < 16 / W; r++) {
        const int shift = W * r % 8;
        const uint32_t bits = (W * r < 8 ? word : word >> 8) & ((1u << W) - 1) * 0x10001u << shift;
        const float unit = weight / (float)(1 << shift);
        code[r] =
            __hfma2(as_halves(bits | 0x64006400u), __float2half2_rn(unit), __float2half2_rn(-1024 * unit));
    }
}

/* A lane's codes as float16: numbers 2 i and 2 i + 1. */
template <int B> __device__ __forceinline__ void codes_of(const char *words, __half2 (&code)[16])
{
    uint32_t w[B];
    if constexpr (B % 4 == 0) {
#pragma unroll
        for (int i = 0; i < B; i += 4) {
            const uint4 v = *reinterpret_cast<const uint4 *>(words + 4 * i);
            w[i] = v.x, w[i + 1] = v.y, w[i + 2] = v.z, w[i + 3] = v.w;
        }
    } else if constexpr (B == 2) {
        const uint2 v = *reinterpret_cast<const uint2 *>(words);
        w[0] = v.x, w[1] = v.y;
    } else {
#pragma unroll
        for (int i = 0; i < B; i++)
            w[i] = *reinterpret_cast<const uint32_t *>(words + 4 * i);
    }
    if constexpr (B == 3) {
        __half2 high[16];
        plane_of<1>(w[2], 4, high);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            __half2 low[8];
            plane_of<2>(w[i], 1, low);
#pragma unroll
            for (int r = 0; r < 8; r++)
                code[8 * i + r] = __hadd2(low[r], high[8 * i + r]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < B; i++) {
            __half2 some[16 / B];
            plane_of<B>(w[i], 1, some);
#pragma unroll
            for (int r = 0; r < 16 / B; r++)
                code[16 / B * i + r] = some[r];
        }
    }
}

/* s code + zero. */
__device__ __forceinline__ uint32_t restored(__half2 code, uint32_t scale, uint32_t zero)
{
    const __half2 x = __hfma2(code, as_halves(scale), as_halves(zero));
    return *reinterpret_cast<const uint32_t *>(&x);
}

/* Rows of Q as A operand: float16 over `unit`, a power of two. Rows from the group's size on are zero. */
template <int UNITS> struct queries {
    uint32_t half[UNITS][2];
    float unit;
};

template <int UNITS>
__device__ void load_queries(const packed_params &p, int b, int g, int lane, queries<UNITS> &q)
{
    const uint16_t *const from = query_of(p, b, g, lane);
    const bool there = lane / 4 < p.a.map.group;
    float most = 0;
#pragma unroll
    for (int i = 0; i < 2 * UNITS; i++) {
        uint32_t &w = q.half[i / 2][i % 2];
        w = there ? *reinterpret_cast<const uint32_t *>(from + 8 * i) : 0;
        most = fmaxf(most, fmaxf(fabsf(bf16_of(w, 0)), fabsf(bf16_of(w, 1))));
    }
    q.unit = unit_of(most);
    const float over = 1 / q.unit; /* exact */
#pragma unroll
    for (int i = 0; i < 2 * UNITS; i++) {
        uint32_t &w = q.half[i / 2][i % 2];
        w = f16_pair(bf16_of(w, 0) * over, bf16_of(w, 1) * over);
    }
}

/* ---- a page --------------------------------------------------------------------------------------------- */

/* S of all tokens of the page, in powers of two, from codes. */
template <int B, int UNITS>
__device__ __forceinline__ void even_scores(const packed_params &p, const char *stage,
                                            const queries<UNITS> &q, float (&s)[8][2], int lane)
{
    float sum[8][4] = {};
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        __half2 code[16];
        codes_of<B>(stage + 4 * kvd_packed_words(B, u, lane), code);
        const uint32_t a[4] = {q.half[u][0], 0, q.half[u][1], 0};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 side = *reinterpret_cast<const uint4 *>(
                stage + p.parts.k_side + 64 * ((2 * i >> p.k_shift) * UNITS + u) + lane % 4 * 16);
#pragma unroll
            for (int j = 2 * i; j < 2 * i + 2; j++)
                multiply<false>(sum[j], a, restored(code[2 * j], side.x, side.z),
                                restored(code[2 * j + 1], side.y, side.w));
        }
    }
    const float scale = p.scale_log2 * q.unit;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        s[j][0] = sum[j][0] * scale;
        s[j][1] = sum[j][1] * scale;
    }
}

template <int B, int UNITS>
__device__ __forceinline__ void even_values(const packed_params &p, const char *stage,
                                            const uint32_t (&prob)[8], state<UNITS> &st, int lane)
{
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        __half2 code[16];
        codes_of<B>(stage + p.parts.v + 4 * kvd_packed_words(B, u, lane), code);
        const char *const scales = stage + p.parts.v_side + (u >> p.v_shift) * 256 + lane % 4 * 16;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint4 side = *reinterpret_cast<const uint4 *>(scales + 64 * k);
            const uint32_t a[4] = {
                restored(code[4 * k], side.x, side.z), restored(code[4 * k + 1], side.x, side.z),
                restored(code[4 * k + 2], side.y, side.w), restored(code[4 * k + 3], side.y, side.w)};
            multiply<false>(st.o[u], a, prob[2 * k], prob[2 * k + 1]);
        }
    }
}

template <int B, int N> struct even_page {
    static constexpr int UNITS = N;
    queries<N> q;

    __device__ even_page(const packed_params &, char *, char *)
    {
    }
    __device__ __forceinline__ void begin(const packed_params &p, const cursor &at, int lane)
    {
        load_queries(p, at.b, at.g, lane, q);
    }
    __device__ __forceinline__ void copy(const packed_params &p, const cursor &at, uint32_t stage, int lane)
    {
        copy_codes(p, at, stage, p.stage_bytes, lane);
    }
    __device__ __forceinline__ void scores(const packed_params &p, const cursor &, const char *stage,
                                           float (&s)[8][2], int lane)
    {
        even_scores<B>(p, stage, q, s, lane);
    }
    __device__ __forceinline__ void values(const packed_params &p, const cursor &, const char *stage,
                                           const uint32_t (&prob)[8], state<N> &st, int lane)
    {
        even_values<B>(p, stage, prob, st, lane);
    }
};

/* ---- merging and planning ------------------------------------------------------------------------------- */

/* The parts of a query head of a request that several warps did; each warp here takes every eighth of them. */
__global__ void __launch_bounds__(32 * WARPS) merge_kernel(const __grid_constant__ packed_params p)
{
    __shared__ float o[WARPS][KVD_WIDTH_MAX];
    __shared__ float2 ml[WARPS];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, row = (int)blockIdx.z, warp = (int)threadIdx.x / 32,
              lane = (int)threadIdx.x % 32;
    const int pages = p.d.pages_before[b + 1] - p.d.pages_before[b], each = p.d.pages_before[p.a.n + 1];
    const int x0 = p.d.pages_before[b] * p.a.map.n_kv_heads + g * pages;
    const int first = x0 / each, last = (x0 + pages - 1) / each;
    if (first == last)
        return;
    float max = -INFINITY, sum = 0;
    float4 acc = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int w = first + warp; w <= last; w += WARPS) {
        const float *const slot = p.d.partial + (size_t)(2 * w + (w == first)) * (size_t)p.slot_floats;
        const float2 part = *reinterpret_cast<const float2 *>(slot + 2 * row);
        const float4 x = *reinterpret_cast<const float4 *>(slot + 2 * HEADS + row * KVD_WIDTH_MAX + 4 * lane);
        const float most = fmaxf(max, part.x), f = power_of_two(max - most), h = power_of_two(part.x - most);
        max = most;
        sum = sum * f + part.y * h;
        acc.x = acc.x * f + x.x * h;
        acc.y = acc.y * f + x.y * h;
        acc.z = acc.z * f + x.z * h;
        acc.w = acc.w * f + x.w * h;
    }
    *reinterpret_cast<float4 *>(&o[warp][4 * lane]) = acc;
    if (lane == 0)
        ml[warp] = make_float2(max, sum);
    __syncthreads();
    const int dim = (int)threadIdx.x;
    if (dim >= p.a.map.d_v[g])
        return;
    float most = -INFINITY, all = 0, x = 0;
    for (int w = 0; w < WARPS; w++)
        most = fmaxf(most, ml[w].x);
    for (int w = 0; w < WARPS; w++) {
        const float f = power_of_two(ml[w].x - most);
        all += ml[w].y * f;
        x += o[w][dim] * f;
    }
    store(p, b, g, row, dim, x / all);
}

/* One CTA: a sum over requests, 1024 at a time; behind it the pages of a warp. */
__global__ void __launch_bounds__(1024)
    plan_kernel(const int32_t *kv_len, int n, int heads, int warps_of_all, int32_t *before)
{
    __shared__ int32_t warps[32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int carried = 0;
    if (threadIdx.x == 0)
        before[0] = 0;
    for (int i0 = 0; i0 < n; i0 += 1024) {
        const int i = i0 + (int)threadIdx.x;
        int x = i < n ? (kv_len[i] + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS : 0;
        for (int k = 1; k < 32; k *= 2) {
            const int y = __shfl_up_sync(~0u, x, k);
            x += lane >= k ? y : 0;
        }
        if (lane == 31)
            warps[warp] = x;
        __syncthreads();
        int all = 0;
        for (int w = 0; w < 32; w++) {
            x += w < warp ? warps[w] : 0;
            all += warps[w];
        }
        if (i < n)
            before[i + 1] = carried + x;
        carried += all;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        before[n + 1] = (carried * heads + warps_of_all - 1) / warps_of_all;
}

/* ---- host ----------------------------------------------------------------------------------------------- */

template <int UNITS> kvd_packed_decode_kernel of_bits(int bits)
{
    return bits == 2   ? decode_kernel<even_page<2, UNITS>>
           : bits == 3 ? decode_kernel<even_page<3, UNITS>>
           : bits == 4 ? decode_kernel<even_page<4, UNITS>>
           : bits == 8 ? decode_kernel<even_page<8, UNITS>>
                       : NULL;
}

/* NULL: there is none. */
kvd_packed_decode_kernel kernel_of(const kvd_packed_args *a)
{
    const int d = a->map.d_qk[0];
    for (int g = 0; g < a->map.n_kv_heads; g++)
        if (a->map.d_qk[g] != d || a->map.d_v[g] != d)
            return NULL;
    if (a->map.group > HEADS)
        return NULL;
    if (a->level)
        return kvd_packed_levels_kernel(a);
    return d == 64 ? of_bits<4>(a->form.bits) : d == 128 ? of_bits<8>(a->form.bits) : NULL;
}

int log2_of(int x)
{
    int n = 0;
    while (x > 1 << n)
        n++;
    return n;
}

/* Warps, and stages of each, for which there is shared memory; two stages at least. False: not even for one warp. */
bool lay_out(const kvd_packed_args *a, packed_params *p)
{
    int device, most;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
        return false;
    *p = {};
    p->a = *a;
    p->parts = kvd_packed_parts_of(&a->form, a->map.d_qk[0], a->map.d_v[0]);
    p->scale_log2 = a->map.scale * 1.4426950408889634f;
    p->slot_floats = HEADS * (2 + KVD_WIDTH_MAX);
    p->k_shift = log2_of(a->form.k_group / 8);
    p->v_shift = log2_of(a->form.v_group / 16);
    p->stage_bytes = p->parts.v_list;
    if (a->level)
        kvd_packed_levels_lay_out(p);
    const int room = most - p->shared_bytes;
    p->warps = min(room / (2 * p->stage_bytes + p->scratch_bytes), (int)WARPS);
    p->stages = p->warps ? min((room / p->warps - p->scratch_bytes) / p->stage_bytes, (int)STAGES) : 0;
    return p->warps > 0;
}

} // namespace

bool kvd_packed_decodes(const kvd_packed_args *a)
{
    packed_params p;
    return kernel_of(a) && lay_out(a, &p);
}

size_t kvd_packed_decode_bytes(int n_ctas)
{
    return (size_t)n_ctas * WARPS * 2 * HEADS * (2 + KVD_WIDTH_MAX) * sizeof(float);
}

cudaError_t kvd_packed_decode_plan(const kvd_packed_args *a, const kvd_packed_decode_args *d,
                                   cudaStream_t stream)
{
    packed_params p;
    if (!kernel_of(a) || !lay_out(a, &p) || a->n < 1 || d->n_ctas < 1)
        return cudaErrorInvalidValue;
    plan_kernel<<<1, 1024, 0, stream>>>(a->kv_len, a->n, a->map.n_kv_heads, d->n_ctas * p.warps,
                                        d->pages_before);
    return cudaGetLastError();
}

cudaError_t kvd_packed_decode(const kvd_packed_args *a, const kvd_packed_decode_args *d, cudaStream_t stream)
{
    packed_params p;
    const kvd_packed_decode_kernel run = kernel_of(a);
    if (!run || !lay_out(a, &p) || a->n < 1 || a->n > 65535 || d->n_ctas < 1)
        return cudaErrorInvalidValue;
    p.d = *d;
    const size_t bytes = (size_t)(p.shared_bytes + p.warps * (p.stages * p.stage_bytes + p.scratch_bytes));
    cudaError_t e = cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e != cudaSuccess)
        return e;
    run<<<(unsigned)d->n_ctas, 32 * (unsigned)p.warps, bytes, stream>>>(p);
    e = cudaGetLastError();
    if (e != cudaSuccess)
        return e;
    const dim3 grid((unsigned)a->map.n_kv_heads, (unsigned)a->n, (unsigned)a->map.group);
    merge_kernel<<<grid, 32 * WARPS, 0, stream>>>(p);
    return cudaGetLastError();
}
