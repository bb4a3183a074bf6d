/* Merges partial attention results of decode kernels, first over the warps of a CTA, then over the
 * CTAs that share a KV head. */
#ifndef KVD_KERNELS_CUDA_DECODE_MERGE_CUH
#define KVD_KERNELS_CUDA_DECODE_MERGE_CUH

#include "common/half.h"
#include "kernels/cuda/decode_tile.cuh"
#include "kernels/cuda/decode_work.h"

/* Number of CTAs whose partial results a warp loads at once. */
enum { SLOTS_AT_ONCE = 10 };

typedef struct {
    kvd_decode_args args;
    kvd_decode_work work;
    float scale_log2;
    int32_t d_v_max, o_pitch, ring_bytes;
    int32_t log2_pieces; /* log2 of the number of page table entries per page */
    /* This launch computes query heads first .. first + rows - 1 of each KV head. */
    int32_t first, rows;
} params;

/* Returns a query head's index in the model. `row`: index among those query heads of the KV head
 * that this kernel launch computes. */
static __device__ __forceinline__ int head_of(const params &p, int kv_head, int row)
{
    return kv_head * p.args.map.group + p.first + row;
}

/* Events in a CTA whose times are recorded for profiling. */
enum {
    AT_ENTRY,
    AT_WORK,       /* the copying warp knows its first tokens */
    AT_TABLE,      /* the copying warp has its first page numbers */
    AT_FIRST_COPY, /* the copying warp has started the first copy */
    AT_LAST_COPY,  /* the copying warp has started its last copy */
    AT_FIRST_PAGE, /* the first page is in shared memory */
    AT_FIRST_DONE, /* the first warp has computed its first half page */
    AT_LAST_DONE,  /* the first warp has computed its last half page */
    AT_WARPS_MERGED,
    AT_ARRIVED, /* the CTA's partial result is written */
    /* Timestamp for profiling: the last CTA of a KV head has read all partial results. */
    AT_SLOTS_READ,
    AT_END,
};

static __device__ __forceinline__ unsigned cta_number()
{
    return blockIdx.y * gridDim.x + blockIdx.x;
}

static __device__ __forceinline__ void stamp(unsigned long long *stamps, int i)
{
    if (stamps)
        stamps[cta_number() * KVD_DECODE_STAMPS + (unsigned)i] = now_ns();
}

static __device__ __forceinline__ void stamp(const params &p, int i)
{
    stamp(p.args.stamps, i);
}

/* Shared memory for merging the results of a CTA's warps. */
typedef struct {
    float *o;
    float2 *ml;        /* [warps][KVD_GROUP_MAX] maximum and sum */
    uint32_t free;     /* barrier where every warp arrives after reading the previous results */
    uint32_t *is_last; /* 1 in the CTA that finishes last among the CTAs of a KV head */
} merge_area;

static __device__ __forceinline__ unsigned long long &started(const merge_area &area)
{
    return *reinterpret_cast<unsigned long long *>(area.is_last + 2);
}

/* Writes a warp's part of the attention to shared memory: output before division by the softmax
 * denominator, score maxima and softmax sums. */
template <int HALVES, int WIDTH16>
static __device__ __forceinline__ void put_state(const state<HALVES, WIDTH16> &st, float *o,
                                                 float2 *ml, int group, int o_pitch, int d_v,
                                                 int lane)
{
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        float sum = st.sum[h];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (lane % 4 == 0)
            ml[lane / 4 + 8 * h] = make_float2(st.max[h], sum);
        const int head = 8 * h + lane % 4 * 2;
        float *row = o + head * o_pitch + lane / 4;
#pragma unroll
        for (int i = 0; i < WIDTH16; i++)
            if (16 * i < d_v) {
                if (head < group) {
                    row[16 * i] = st.o[h][i][0];
                    row[16 * i + 8] = st.o[h][i][2];
                }
                if (head + 1 < group) {
                    row[o_pitch + 16 * i] = st.o[h][i][1];
                    row[o_pitch + 16 * i + 8] = st.o[h][i][3];
                }
            }
    }
}

/* Result of the softmax of a query head: factor that turns the weighted sum of V into the output,
 * largest score before scaling, and denominator. */
typedef struct {
    float factor, max, sum;
} row_end;

static __device__ __forceinline__ const float *sinks_of(const float *sinks, int n_sinks,
                                                        int request, int n_heads)
{
    return sinks && n_sinks ? sinks + request * n_heads % n_sinks : sinks;
}

/* Ends the softmax of a query head: returns the scale factor for its output, the largest score and
 * the denominator. Adds the head's attention sink unless `sinks` is NULL. */
static __device__ __forceinline__ row_end end_row(const float *sinks, int head, float max,
                                                  float sum, float scale, float scale_log2)
{
    if (!sinks)
        return {1 / sum, max, sum};
    const float sink = sinks[head] / scale, most = fmaxf(max, sink),
                shrink = kvd_exp2((max - most) * scale_log2),
                all = fmaf(sum, shrink, kvd_exp2((sink - most) * scale_log2));
    return {shrink / all, most, all};
}

/* Writes two adjacent dimensions of a query head's output. The call for dimensions 0 and 1 also
 * writes the log of the softmax denominator. */
template <bool BF>
static __device__ __forceinline__ void put_output(uint16_t *row, float *lse, float scale, int pair,
                                                  float2 o, const row_end &end)
{
    reinterpret_cast<uint32_t *>(row)[pair] = pack<BF>(o.x * end.factor, o.y * end.factor);
    if (lse && pair == 0)
        *lse = fmaf(end.max, scale, logf(end.sum));
}

template <bool BF>
static __device__ __forceinline__ void put_result(const params &p, const kvd_decode_segment &s,
                                                  int row, int pair, float2 o, float max, float sum)
{
    const kvd_attn_map &map = p.args.map;
    const int head = head_of(p, s.head, row);
    put_output<BF>((uint16_t *)p.args.o + (size_t)s.request * (size_t)map.o_pitch +
                       map.o_offset[head],
                   p.args.lse ? p.args.lse + (size_t)s.request * (size_t)map.n_heads + head : NULL,
                   map.scale, pair, o,
                   end_row(sinks_of(p.args.sinks, p.args.n_sinks, s.request, map.n_heads), head,
                           max, sum, map.scale, p.scale_log2));
}

static __device__ __forceinline__ void put_pair(float *to, float x, float y)
{
    asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y)
                 : "memory");
}

/* Merges the outputs of `places` warps. Writes the KV head's final output if is_whole, otherwise
 * this CTA's partial result. */
template <bool BF, int WARPS, int WIDTH16>
static __device__ __forceinline__ void merge_warps(const params &p, const merge_area &area,
                                                   const kvd_decode_segment &s, int places,
                                                   bool is_whole, int tid)
{
    constexpr int PAIRS = 8 * WIDTH16;
    const int group = p.rows, d_v = p.args.map.d_v[s.head], pair = tid % PAIRS;
    const int cta = (int)blockIdx.x, slot = 2 * cta + (cta == s.first_cta);
    const int rows = 32 * WARPS / PAIRS;
    if (2 * pair >= d_v || tid >= rows * PAIRS)
        return;
    for (int row = tid / PAIRS; row < group; row += rows) {
        float max = -INFINITY, sum = 0;
        float2 o = make_float2(0, 0);
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            if (w < places)
                max = fmaxf(max, area.ml[w * KVD_GROUP_MAX + row].x);
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            if (w < places) {
                const float2 ml = area.ml[w * KVD_GROUP_MAX + row];
                const float2 x = reinterpret_cast<const float2 *>(
                    area.o + (size_t)(w * group + row) * p.o_pitch)[pair];
                const float f = kvd_exp2((ml.x - max) * p.scale_log2);
                sum = fmaf(ml.y, f, sum);
                o.x = fmaf(x.x, f, o.x);
                o.y = fmaf(x.y, f, o.y);
            }
        if (is_whole) {
            put_result<BF>(p, s, row, pair, o, max, sum);
        } else {
            const size_t at = (size_t)slot * group + row;
            put_pair(p.work.slot_o + at * p.d_v_max + 2 * pair, o.x, o.y);
            if (pair == 0)
                put_pair(p.work.slot_ml + 2 * at, max, sum);
        }
    }
}

/* Each warp merges some of the partial results that CTAs stored for a KV head. Returns how many
 * merged results remain. */
template <int WARPS, int WIDTH16>
static __device__ __forceinline__ int merge_slots(const params &p, const merge_area &area,
                                                  const kvd_decode_segment &s, int warp, int lane)
{
    constexpr int PARTS = WIDTH16 / 8, AT_ONCE = SLOTS_AT_ONCE / PARTS;
    const int group = p.rows, d_v = p.args.map.d_v[s.head];
    const int split = max(1, WARPS / group), sub = warp % split;
    const float2 *slot_ml = reinterpret_cast<const float2 *>(p.work.slot_ml);
    for (int row = warp / split; row < (warp < WARPS / split * split ? group : 0);
         row += WARPS / split) {
        float max = -INFINITY, sum = 0;
        float4 o[PARTS];
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            o[part] = make_float4(0, 0, 0, 0);
        for (int k0 = sub; k0 < s.span; k0 += AT_ONCE * split) {
            float2 ml[AT_ONCE];
            float4 x[AT_ONCE][PARTS];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int k = k0 + i * split;
                const size_t at =
                    (size_t)(2 * (s.first_cta + k) + (k == 0)) * (size_t)group + (size_t)row;
                ml[i] = k < s.span ? __ldcg(slot_ml + at) : make_float2(-INFINITY, 0);
#pragma unroll
                for (int part = 0; part < PARTS; part++)
                    x[i][part] = k < s.span && 4 * lane + 128 * part < d_v
                                     ? __ldcg(reinterpret_cast<const float4 *>(
                                                  p.work.slot_o + at * (size_t)p.d_v_max) +
                                              lane + 32 * part)
                                     : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                /* A CTA that had no tokens of this KV head has max = -inf. Its other numbers are
                 * undefined and must not be used. */
                if (ml[i].x != -INFINITY) {
                    const float top = fmaxf(max, ml[i].x);
                    const float f = kvd_exp2((max - top) * p.scale_log2);
                    const float g = kvd_exp2((ml[i].x - top) * p.scale_log2);
                    max = top;
                    sum = fmaf(ml[i].y, g, sum * f);
#pragma unroll
                    for (int part = 0; part < PARTS; part++) {
                        o[part].x = fmaf(x[i][part].x, g, o[part].x * f);
                        o[part].y = fmaf(x[i][part].y, g, o[part].y * f);
                        o[part].z = fmaf(x[i][part].z, g, o[part].z * f);
                        o[part].w = fmaf(x[i][part].w, g, o[part].w * f);
                    }
                }
        }
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            if (4 * lane + 128 * part < d_v)
                reinterpret_cast<float4 *>(
                    area.o + (size_t)((sub * group + row) * p.o_pitch))[lane + 32 * part] = o[part];
        if (lane == 0)
            area.ml[sub * KVD_GROUP_MAX + row] = make_float2(max, sum);
    }
    return split;
}

/* Writes the output of a KV head that one warp computed alone. */
template <bool BF, int HALVES, int WIDTH16>
static __device__ __forceinline__ void put_short(const state<HALVES, WIDTH16> &st, const params &p,
                                                 int request, int kv_head, int d_v, int lane)
{
    const kvd_attn_map &map = p.args.map;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        float sum = st.sum[h];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const int row = 8 * h + lane / 4, column = 8 * h + lane % 4 * 2;
        const int head = head_of(p, kv_head, min(row, p.rows - 1));
        const row_end end = end_row(sinks_of(p.args.sinks, p.args.n_sinks, request, map.n_heads),
                                    head, st.max[h], sum, map.scale, p.scale_log2);
        if (p.args.lse && lane % 4 == 0 && row < p.rows)
            p.args.lse[(size_t)request * (size_t)map.n_heads + (size_t)head] =
                fmaf(end.max, map.scale, logf(end.sum));
        const float r0 = __shfl_sync(~0u, end.factor, lane % 4 * 8),
                    r1 = __shfl_sync(~0u, end.factor, lane % 4 * 8 + 4);
        uint16_t *o = (uint16_t *)p.args.o + (size_t)request * (size_t)map.o_pitch +
                      map.o_offset[head_of(p, kv_head, 0)] + column * d_v + lane / 4;
#pragma unroll
        for (int i = 0; i < WIDTH16; i++)
            if (16 * i < d_v) {
                const uint32_t low = pack<BF>(st.o[h][i][0] * r0, st.o[h][i][1] * r1);
                const uint32_t high = pack<BF>(st.o[h][i][2] * r0, st.o[h][i][3] * r1);
                if (column < p.rows) {
                    o[16 * i] = (uint16_t)low;
                    o[16 * i + 8] = (uint16_t)high;
                }
                if (column + 1 < p.rows) {
                    o[d_v + 16 * i] = (uint16_t)(low >> 16);
                    o[d_v + 16 * i + 8] = (uint16_t)(high >> 16);
                }
            }
    }
}

#endif
