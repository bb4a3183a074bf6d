#include "methods/bits/cuda/streams.h"

#include "kernels/cuda/mma.cuh"

namespace
{

enum { WARPS = 4 };

__device__ __forceinline__ int older(const kvd_stream_batch &a, int b, int m)
{
    return m - (a.q_len ? a.q_len[b] : 1);
}

__device__ __forceinline__ bool is_padding(const kvd_stream_batch &a, int b)
{
    return a.live && b >= __ldg(a.live);
}

__device__ __forceinline__ int rank_in(uint32_t mask, int lane)
{
    return __popc(mask & ((1u << lane) - 1));
}

/* State of a stream that is being encoded: the lane's rANS state, number of words, and number of
 * integers missing from the frequency tables. */
struct growing {
    uint32_t x;
    int words, exceptions;
};

/* Encodes one symbol of frequency f per lane, in lanes whose `here` is true. */
__device__ __forceinline__ void push(bool here, uint32_t low, uint32_t f, const block_of &to,
                                     int room, int lane, growing &g)
{
    const bool pushes = here && kvd_stream_pushes(g.x, f);
    const uint32_t mask = __ballot_sync(~0u, pushes);
    const int at = g.words + rank_in(mask, lane);
    if (pushes && at < room)
        to.word[at] = (uint16_t)g.x;
    g.words += __popc(mask);
    g.x = pushes ? g.x >> KVD_STREAM_WORD_BITS : g.x;
    g.x = here ? kvd_stream_put(g.x, low, f) : g.x;
}

struct code_args {
    kvd_stream_batch batch;
    kvd_stream_side side[2];
    float *y[2];
    size_t ld;
    uint32_t *units, *beyond;
};

__device__ __forceinline__ float *row_of(const code_args &a, int side, int b, int t, int old)
{
    return a.y[side] + (size_t)(a.batch.start ? a.batch.start[b] + t - old : b) * a.ld;
}

/* Returns the step and zero point with which numbers in lo .. hi are quantised. They are rounded as
 * on the CPU. */
__device__ __forceinline__ __half2 scale_of(float lo, float hi, float top)
{
#pragma unroll
    for (int i = KVD_LANES / 2; i > 0; i /= 2) {
        lo = fminf(lo, __shfl_xor_sync(~0u, lo, i));
        hi = fmaxf(hi, __shfl_xor_sync(~0u, hi, i));
    }
    return __floats2half2_rn(__fdiv_rn(__fsub_rn(hi, lo), top), lo);
}

__device__ __forceinline__ int code_of(float x, __half2 scale, float top)
{
    const float2 s = __half22float2(scale);
    const float q = s.x > 0 ? rintf(__fdiv_rn(__fsub_rn(x, s.y), s.x)) : 0;
    return (int)fminf(fmaxf(q, 0), top);
}

/* Quantises, in place, group g of the elements of a token's K or V after a linear transform, such
 * as a PCA. Stores the step and zero point of the group in the page. */
__device__ void quantise_group(const code_args &a, const kvd_stream_side &side, int b, int t, int g,
                               float *y, int lane)
{
    const kvd_stream_group group = side.group[g];
    const float *const bias = side.bias + group.first;
    float lo = INFINITY, hi = -INFINITY;
    y += group.first;
    for (int j = lane; j < group.size; j += KVD_LANES) {
        const float x = __fsub_rn(y[j], bias[j]);
        lo = fminf(lo, x);
        hi = fmaxf(hi, x);
    }
    const __half2 scale = scale_of(lo, hi, group.top);
    if (lane == 0)
        block_at(side, page_number(a.batch, b, t / KVD_PAGE_TOKENS), 0)
            .scale[t % KVD_PAGE_TOKENS * side.room.scales + g] = scale;
    for (int j = lane; j < group.size; j += KVD_LANES)
        y[j] = (float)code_of(__fsub_rn(y[j], bias[j]), scale, group.top);
}

__global__ void __launch_bounds__(32 * WARPS) quantise_kernel(const __grid_constant__ code_args a)
{
    const kvd_stream_side &side = a.side[blockIdx.z];
    const int b = (int)blockIdx.y, lane = (int)threadIdx.x % 32, n = side.room.scales;
    if (is_padding(a.batch, b))
        return;
    const int m = __ldg(a.batch.kv_len + b), old = older(a.batch, b, m);
    for (int item = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32; item < (m - old) * n;
         item += (int)gridDim.x * WARPS) {
        const int t = old + item / n;
        if (t >= a.batch.n_sink)
            quantise_group(a, side, b, t, item % n, row_of(a, (int)blockIdx.z, b, t, old), lane);
    }
}

/* Encodes a group of 32 components of a token: one component per lane. */
__device__ __forceinline__ void code_group(const kvd_stream_side &side, const block_of &to, int j,
                                           int t, const float *y, int lane, growing &g)
{
    const bool here = j < side.tables.kept;
    const kvd_stream_component of = here ? side.tables.component[j] : kvd_stream_component{0, 0, 1};
    const float v = !here ? 0 : side.room.scales ? y[j] : y[j] - side.bias[j];
    const double q = side.room.scales
                         ? (double)v
                         : fmin(fmax(kvd_stream_multiple((double)v, side.step), -2e9), 2e9);
    const bool has = kvd_stream_has(of, (int32_t)q), apart = here && !has;
    const uint32_t others = __ballot_sync(~0u, apart);
    const int place = g.exceptions + rank_in(others, lane);
    if (apart && place < side.room.exceptions)
        to.exception[place] = {(uint32_t)j | (uint32_t)t << 16, (int32_t)q};
    g.exceptions += __popc(others);
    const uint16_t *const start = side.tables.start + of.at + ((has ? (int)q : 0) - of.least);
    const uint32_t low = here ? start[0] : 0, f = here ? start[1] - low : 1u << KVD_STREAM_SHIFT;
    push(here, low, f, to, side.room.words, lane, g);
}

/* Entropy-codes new tokens of page p in request b. Stream number s has a part of the dimensions of
 * K (z = 0) or V (z = 1). */
__device__ void code_stream(const code_args &a, int z, int b, int p, int s, int lane)
{
    const kvd_stream_side &side = a.side[z];
    const int m = __ldg(a.batch.kv_len + b), old = older(a.batch, b, m), t0 = KVD_PAGE_TOKENS * p,
              begin = max(t0, a.batch.n_sink), from = max(begin, old),
              end = min(m, t0 + (int)KVD_PAGE_TOKENS), n = side.room.n_streams;
    if (from >= end)
        return;
    const block_of to = block_at(side, page_number(a.batch, b, p), s);
    growing g = {KVD_STREAM_LEAST, 0, 0};
    if (from > begin)
        g = {to.state[lane], min((int)to.counts[0], side.room.words),
             min((int)to.counts[1], side.room.exceptions)};
    const int words = g.words, exceptions = g.exceptions;
    __syncwarp();
    for (int t = from; t < end; t++) {
        const float *const y = row_of(a, z, b, t, old);
        for (int c = kvd_stream_last_group(side.tables.kept, s, n); c >= 0; c -= n)
            code_group(side, to, KVD_LANES * c + lane, t - t0, y, lane, g);
    }
    to.state[lane] = g.x;
    if (lane)
        return;
    to.counts[0] = (uint32_t)g.words;
    to.counts[1] = (uint32_t)g.exceptions;
    atomicAdd(a.units + a.batch.slot[b],
              (uint32_t)(g.words - words) +
                  (uint32_t)(g.exceptions - exceptions) * (KVD_STREAM_EXCEPTION_BITS / 16));
    const int wanted = max(
        g.words > side.room.words ? g.words : 0,
        g.exceptions > side.room.exceptions ? g.exceptions * KVD_STREAM_WORDS_PER_EXCEPTION : 0);
    if (wanted)
        atomicMax(a.beyond, (uint32_t)wanted);
}

__global__ void __launch_bounds__(32 * WARPS) code_kernel(const __grid_constant__ code_args a)
{
    const int b = (int)blockIdx.y, lane = (int)threadIdx.x % 32, z = (int)blockIdx.z,
              n = a.side[z].room.n_streams;
    if (is_padding(a.batch, b))
        return;
    const int m = __ldg(a.batch.kv_len + b), first = older(a.batch, b, m) / KVD_PAGE_TOKENS;
    for (int item = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32;
         KVD_PAGE_TOKENS * (first + item / n) < m; item += (int)gridDim.x * WARPS)
        code_stream(a, z, b, first + item / n, item % n, lane);
}

struct sink_args {
    kvd_stream_batch batch;
    kvd_attn_map map;
    uint16_t *pages, *sink;
    bool back;
};

__global__ void sink_kernel(const __grid_constant__ sink_args a)
{
    const int t = (int)blockIdx.x, b = (int)blockIdx.y, m = __ldg(a.batch.kv_len + b),
              old = older(a.batch, b, m), row = a.map.page_elements / KVD_PAGE_TOKENS;
    if (is_padding(a.batch, b) || (a.back ? t >= m - 1 : t < old || t >= m))
        return;
    uint16_t *const page = a.pages + (size_t)page_number(a.batch, b, t / KVD_PAGE_TOKENS) *
                                         (size_t)a.map.page_elements;
    uint16_t *const sink =
        a.sink + ((size_t)a.batch.slot[b] * (size_t)a.batch.n_sink + (size_t)t) * (size_t)row;
    for (int g = 0; g < a.map.n_kv_heads; g++) {
        const int k = a.map.d_qk[g], v = a.map.d_v[g], offset = a.map.kv_offset[g];
        for (int i = (int)threadIdx.x; i < k + v; i += (int)blockDim.x) {
            uint16_t *const at =
                page + offset +
                (i < k ? blocked(t % KVD_PAGE_TOKENS, i, k)
                       : KVD_PAGE_TOKENS * k + blocked(t % KVD_PAGE_TOKENS, i - k, v));
            uint16_t *const in = sink + offset / KVD_PAGE_TOKENS + i;
            *(a.back ? at : in) = *(a.back ? in : at);
        }
    }
}

/* Returns a pseudo-random word computed from x (the final step of MurmurHash3). */
__device__ __forceinline__ uint32_t mixed(uint32_t x)
{
    x = (x ^ x >> 16) * 0x85ebca6b;
    x = (x ^ x >> 13) * 0xc2b2ae35;
    return x ^ x >> 16;
}

__global__ void plausible_kernel(char *blocks, size_t block_bytes, kvd_stream_room room)
{
    const uint32_t seed = mixed(blockIdx.x + 1);
    for (int s = 0; s < room.n_streams; s++) {
        const block_of to = parts_of(blocks + blockIdx.x * block_bytes, room, s);
        if (threadIdx.x < KVD_LANES)
            to.state[threadIdx.x] = mixed(seed + threadIdx.x) | KVD_STREAM_LEAST;
        if (threadIdx.x < 2)
            to.counts[threadIdx.x] = threadIdx.x ? 0 : (uint32_t)room.words;
        for (int i = (int)threadIdx.x; i < room.words; i += (int)blockDim.x)
            to.word[i] = (uint16_t)mixed(seed ^ (uint32_t)(s << 24 | i));
    }
}

struct cachegen_args {
    kvd_stream_batch batch;
    kvd_cachegen_layer layer;
    uint32_t *units, *beyond;
};

__device__ __forceinline__ float number_of(const head_page &h, const uint16_t *from, int t, int j)
{
    return j < h.d ? __uint_as_float((uint32_t)from[blocked(t, j, h.d)] << 16) : 0;
}

/* Returns the difference between channel j of token t and the same channel of its group's first
 * token, as a number of quantisation steps. */
__device__ __forceinline__ int difference_of(const head_page &h, const uint16_t *from, int t, int j,
                                             float anchor)
{
    const float step = j < h.d ? h.step[j] : 0;
    const float x = __fsub_rn(number_of(h, from, t, j), anchor);
    const float q = step > 0 ? rintf(__fdiv_rn(x, step)) : 0;
    return (int)fminf(fmaxf(q, -KVD_CACHEGEN_ZERO), KVD_CACHEGEN_ZERO);
}

/* Quantises the first token of a group. Writes the quantised integers to `code`, and the decoded
 * numbers to `anchor`. */
__device__ void quantise_anchor(const head_page &h, const uint16_t *from, int t, int lane,
                                float (&anchor)[CHANNELS], int (&code)[CHANNELS])
{
    float x[CHANNELS], lo = INFINITY, hi = -INFINITY;
#pragma unroll
    for (int k = 0; k < CHANNELS; k++) {
        const int j = KVD_LANES * k + lane;
        x[k] = number_of(h, from, t, j);
        lo = j < h.d ? fminf(lo, x[k]) : lo;
        hi = j < h.d ? fmaxf(hi, x[k]) : hi;
    }
    const __half2 scale = scale_of(lo, hi, 255);
    if (lane == 0 && h.l.blocks)
        h.scale[t / h.l.group] = scale;
#pragma unroll
    for (int k = 0; k < CHANNELS; k++) {
        code[k] = code_of(x[k], scale, 255);
        anchor[k] = scaled(scale, (float)code[k]);
    }
}

/* Encodes one token for method cachegen. If `first` is true, the token is the first of its group.
 * Otherwise, `code` has its differences from the first token. */
__device__ __forceinline__ void push_token(const head_page &h, bool first,
                                           const int (&code)[CHANNELS], int lane, growing &g)
{
#pragma unroll
    for (int k = CHANNELS - 1; k >= 0; k--) {
        const int j = KVD_LANES * k + lane;
        if (KVD_LANES * k >= h.d)
            continue;
        const bool here = j < h.d;
        const uint16_t *const start =
            h.table + (first || !here ? 0 : (1 + j) * KVD_STREAM_TABLE) + (here ? code[k] : 0);
        const uint32_t low = start[0];
        push(here, low, start[1] - low, h.block, h.l.room.words, lane, g);
    }
}

/* Encodes a full page, from its newest token to its oldest. Returns the number of compressed
 * words. */
__device__ int code_page(const head_page &h, const uint16_t *from, int lane)
{
    growing g = {KVD_STREAM_LEAST, 0, 0};
    for (int first = KVD_PAGE_TOKENS - h.l.group; first >= 0; first -= h.l.group) {
        float anchor[CHANNELS];
        int anchor_code[CHANNELS], code[CHANNELS];
        quantise_anchor(h, from, first, lane, anchor, anchor_code);
        for (int t = first + h.l.group - 1; t > first; t--) {
#pragma unroll
            for (int k = 0; k < CHANNELS; k++) {
                const int j = KVD_LANES * k + lane;
                code[k] = difference_of(h, from, t, j, anchor[k]) + KVD_CACHEGEN_ZERO;
            }
            push_token(h, false, code, lane, g);
        }
        push_token(h, true, anchor_code, lane, g);
    }
    h.block.state[lane] = g.x;
    if (lane == 0) {
        h.block.counts[0] = (uint32_t)g.words;
        h.block.counts[1] = 0;
    }
    return g.words;
}

__global__ void __launch_bounds__(32 * WARPS)
    cachegen_code_kernel(const __grid_constant__ cachegen_args a)
{
    const int b = (int)blockIdx.y, lane = (int)threadIdx.x % 32, m = __ldg(a.batch.kv_len + b);
    if (is_padding(a.batch, b))
        return;
    const bool prompts = a.batch.q_len != nullptr;
    for (int p = (prompts ? 0 : (m - 1) / KVD_PAGE_TOKENS) + (int)blockIdx.x * WARPS +
                 (int)threadIdx.x / 32;
         KVD_PAGE_TOKENS * p < m; p += (int)gridDim.x * WARPS) {
        const int page = page_number(a.batch, b, p), left = m - KVD_PAGE_TOKENS * p;
        const head_page h = head_page_of(a.layer, page, (int)blockIdx.z);
        uint16_t *const rows = rows_of(h, a.layer.rows, (size_t)page), *const ring = rows_of(
                                                                           h, a.layer.ring,
                                                                           (size_t)a.batch.slot[b]);
        if (left < KVD_PAGE_TOKENS) {
            if (prompts)
                copy_page(rows, ring, left, h.d, lane);
            continue;
        }
        const int words = code_page(h, prompts ? rows : ring, lane);
        if (lane)
            continue;
        atomicAdd(a.units + a.batch.slot[b], (uint32_t)words);
        if (words > a.layer.room.words)
            atomicMax(a.beyond, (uint32_t)words);
    }
}

/* Returns the number of bits of symbol s. `start` has the cumulative frequencies. */
__device__ __forceinline__ float cost_of(const uint16_t *start, int s)
{
    return (float)KVD_STREAM_SHIFT - __log2f((float)(start[s + 1] - start[s]));
}

/* Quantises the tokens of a group, and overwrites them with the decoded numbers. Returns the size
 * in bits of the codes of the lane's channels. The codes are not stored. */
__device__ float replace_group(const head_page &h, const kvd_stream_batch &a, int b, int t0,
                               int lane)
{
    float anchor[CHANNELS], bits = 0;
    int anchor_code[CHANNELS];
    for (int t = t0; t < t0 + h.l.group; t++) {
        uint16_t *const row = rows_of(h, h.l.rows, (size_t)page_number(a, b, t / KVD_PAGE_TOKENS));
        const int in_page = t % KVD_PAGE_TOKENS;
        if (t == t0)
            quantise_anchor(h, row, in_page, lane, anchor, anchor_code);
#pragma unroll
        for (int k = 0; k < CHANNELS; k++) {
            const int j = KVD_LANES * k + lane;
            if (j >= h.d)
                continue;
            const int q = t == t0 ? 0 : difference_of(h, row, in_page, j, anchor[k]);
            bits += t == t0 ? cost_of(h.table, anchor_code[k])
                            : cost_of(h.table + (1 + j) * KVD_STREAM_TABLE, q + KVD_CACHEGEN_ZERO);
            row[blocked(in_page, j, h.d)] = kvd_bf16_bits(
                t == t0 ? anchor[k] : __fadd_rn(anchor[k], __fmul_rn(h.step[j], (float)q)));
        }
    }
    return bits;
}

/* Adds `sixteenths` / 16 bits to the size of a request's codes. This size is units[slot] 16-bit
 * words plus part[slot] sixteenths of a bit. */
__device__ __forceinline__ void add_bits(uint32_t *units, uint32_t *part, int slot, int sixteenths)
{
    atomicAdd(units + slot, (uint32_t)sixteenths / (16 * KVD_STREAM_WORD_BITS));
    atomicAdd(part + slot, (uint32_t)sixteenths % (16 * KVD_STREAM_WORD_BITS));
}

enum { STATE_BITS = 32 /* state at the end of a stream of rans.h */ };

__global__ void __launch_bounds__(32 * WARPS)
    cachegen_replace_kernel(const __grid_constant__ cachegen_args a, uint32_t *part)
{
    const int b = (int)blockIdx.y, lane = (int)threadIdx.x % 32, m = __ldg(a.batch.kv_len + b),
              block = a.layer.block, group = a.layer.group;
    if (is_padding(a.batch, b) || (!a.batch.q_len && m % block))
        return;
    const int first = a.batch.q_len ? 0 : m - block, end = m / block * block;
    const head_page h = head_page_of(a.layer, 0, (int)blockIdx.z);
    for (int t = first + ((int)blockIdx.x * WARPS + (int)threadIdx.x / 32) * group; t < end;
         t += (int)gridDim.x * WARPS * group) {
        const float bits = replace_group(h, a.batch, b, t, lane);
        const int sum =
            __reduce_add_sync(~0u, __float2int_rn(16 * bits)) + (t == first ? 16 * STATE_BITS : 0);
        if (lane)
            continue;
        add_bits(a.units, part, a.batch.slot[b], sum);
    }
}

/* Returns the index of token t of request b among the new tokens of the batch. `old`: number of
 * tokens that the request had before this iteration. */
__device__ __forceinline__ size_t new_row(const kvd_stream_batch &a, int b, int t, int old)
{
    return (size_t)(a.start ? a.start[b] + t - old : b);
}

/* Quantises and decodes the components of K or V of new tokens, and counts the bits that their
 * codes, which are not stored, would take. */
__global__ void __launch_bounds__(32 * WARPS)
    round_kernel(const __grid_constant__ kvd_stream_batch a,
                 const __grid_constant__ kvd_whole_stream s, uint32_t *units, uint32_t *part)
{
    const int b = (int)blockIdx.y, lane = (int)threadIdx.x % 32;
    if (is_padding(a, b))
        return;
    const int m = __ldg(a.kv_len + b), old = older(a, b, m);
    for (int t = max(old, a.n_sink) + (int)blockIdx.x * WARPS + (int)threadIdx.x / 32; t < m;
         t += (int)gridDim.x * WARPS) {
        const size_t row = new_row(a, b, t, old);
        const float *const y = s.y + row * (size_t)s.wide;
        uint16_t *const decoded = s.decoded + row * s.ld;
        float bits = 0;
        for (int j = lane; j < s.wide; j += KVD_LANES) {
            const double q = fmin(
                fmax(kvd_stream_multiple((double)(y[j] - s.bias[j]), (double)s.step), -2e9), 2e9);
            const kvd_stream_component of = s.component[j];
            const bool has = kvd_stream_has(of, (int32_t)q);
            bits += cost_of(s.start + of.at, (has ? (int)q : 0) - of.least) +
                    (has ? 0.F : (float)s.escape[j] / 16);
            const float f = (float)q;
            decoded[j] = kvd_bf16_bits((f + (f > 0 ? s.offset : f < 0 ? -s.offset : 0)) * s.step);
        }
        for (int j = s.wide + lane; j < (int)s.ld; j += KVD_LANES)
            decoded[j] = j == s.wide ? kvd_bf16_bits(1) : 0;
        const int sum = __reduce_add_sync(~0u, __float2int_rn(16 * bits));
        if (lane == 0)
            add_bits(units, part, a.slot[b], sum);
    }
}

__global__ void keep_kernel(const __grid_constant__ kvd_stream_batch a, const uint16_t *x,
                            size_t ld_x, uint16_t *to, size_t ld, int width)
{
    const int t = (int)blockIdx.x, b = (int)blockIdx.y;
    const int m = __ldg(a.kv_len + b), old = older(a, b, m);
    if (is_padding(a, b) || t < old || t >= m)
        return;
    const size_t row = new_row(a, b, t, old);
    for (int i = (int)threadIdx.x; i < width; i += (int)blockDim.x)
        to[row * ld + (size_t)i] = x[row * ld_x + (size_t)i];
}

/* Quantises a group of principal components of one token. Writes the codes to `to`, and the
 * dequantised components to `decoded`. */
__device__ void pack_group(const kvd_kvtc_packed_group &g, const float *y, const float *bias,
                           uint16_t *decoded, uint8_t *to, int lane)
{
    float lo = INFINITY, hi = -INFINITY;
    for (int j = lane; j < g.size; j += KVD_LANES) {
        const float x = __fsub_rn(y[j], bias[j]);
        lo = fminf(lo, x);
        hi = fmaxf(hi, x);
    }
    const int bits = (int)g.bits, each = 8 / bits;
    const float top = (float)((1 << bits) - 1);
    const __half2 scale = scale_of(lo, hi, top);
    for (int i = lane; i < g.size / each; i += KVD_LANES) {
        uint32_t byte = 0;
        for (int k = 0; k < each; k++) {
            const int j = i * each + k, q = code_of(__fsub_rn(y[j], bias[j]), scale, top);
            byte |= (uint32_t)q << bits * k;
            decoded[j] = kvd_bf16_bits(scaled(scale, (float)q));
        }
        to[i] = (uint8_t)byte;
    }
}

/* Quantises the principal components of K or V of prompts. A warp quantises one group of components
 * of one token at a time. */
__global__ void __launch_bounds__(32 * WARPS)
    pack_kernel(const __grid_constant__ kvd_kvtc_prompts p)
{
    const int b = (int)blockIdx.y, lane = (int)threadIdx.x % 32, items = p.n_groups + 1,
              start = __ldg(p.start + b), coded = __ldg(p.coded + b) - p.n_sink;
    for (int item = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32; item < coded * items;
         item += (int)gridDim.x * WARPS) {
        const int i = item / items, g = item % items;
        const size_t row = (size_t)(start + p.n_sink + i);
        uint16_t *const decoded = p.decoded + row * p.ld;
        if (g == p.n_groups) {
            for (int j = p.wide + lane; j < (int)p.ld; j += KVD_LANES)
                decoded[j] = j == p.wide ? kvd_bf16_bits(1) : 0;
            continue;
        }
        const kvd_kvtc_packed_group of = p.group[g];
        if (of.bits) {
            uint8_t *const to = p.packed + (size_t)start * p.token_bytes + (size_t)b * p.gap +
                                (size_t)of.at * (size_t)coded + (size_t)i * (of.size * of.bits / 8);
            pack_group(of, p.y + row * (size_t)p.wide + of.first, p.bias + of.first,
                       decoded + of.first, to, lane);
        } else {
            for (int j = lane; j < of.size; j += KVD_LANES)
                decoded[of.first + j] = 0;
        }
    }
}

unsigned ctas(size_t items, size_t times, int n_sms)
{
    const size_t want = (items + WARPS - 1) / WARPS, most = (32 * (size_t)n_sms + times) / times;
    return (unsigned)(want < most ? want : most);
}

} // namespace

cudaError_t kvd_streams_code(const kvd_stream_batch *b, const kvd_stream_side side[2],
                             float *const y[2], size_t ld, size_t most, uint32_t *units,
                             uint32_t *beyond, cudaStream_t stream)
{
    const code_args a = {*b, {side[0], side[1]}, {y[0], y[1]}, ld, units, beyond};
    const kvd_stream_room k = side[0].room, v = side[1].room;
    const size_t pages = (most + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS + (b->q_len ? 1 : 0),
                 n_streams = (size_t)(k.n_streams > v.n_streams ? k.n_streams : v.n_streams),
                 scales = (size_t)(k.scales > v.scales ? k.scales : v.scales), n = (size_t)b->n;
    if (bad(b) || k.n_streams < 1 || v.n_streams < 1 || !k.scales != !v.scales || most < 1)
        return cudaErrorInvalidValue;
    if (scales)
        quantise_kernel<<<dim3(ctas(most * scales, 2 * n, b->n_sms), (unsigned)b->n, 2), 32 * WARPS,
                          0, stream>>>(a);
    code_kernel<<<dim3(ctas(pages * n_streams, 2 * n, b->n_sms), (unsigned)b->n, 2), 32 * WARPS, 0,
                  stream>>>(a);
    return cudaGetLastError();
}

cudaError_t kvd_streams_sink(const kvd_stream_batch *b, const kvd_attn_map *map, uint16_t *pages,
                             uint16_t *sink, bool back, cudaStream_t stream)
{
    const sink_args a = {*b, *map, pages, sink, back};
    if (bad(b))
        return cudaErrorInvalidValue;
    if (!b->n_sink)
        return cudaSuccess;
    sink_kernel<<<dim3((unsigned)b->n_sink, (unsigned)b->n), 256, 0, stream>>>(a);
    return cudaGetLastError();
}

cudaError_t kvd_streams_make_plausible(char *blocks, size_t n, size_t block_bytes,
                                       kvd_stream_room room, cudaStream_t stream)
{
    plausible_kernel<<<(unsigned)n, 128, 0, stream>>>(blocks, block_bytes, room);
    return cudaGetLastError();
}

static dim3 grid_of(const kvd_stream_batch *b, const kvd_cachegen_layer *l, size_t pages)
{
    const unsigned sides = 2 * (unsigned)l->map.n_kv_heads;
    return dim3(ctas(pages, sides * (size_t)b->n, b->n_sms), (unsigned)b->n, sides);
}

cudaError_t kvd_cachegen_code(const kvd_stream_batch *b, const kvd_cachegen_layer *l,
                              uint32_t *units, uint32_t *beyond, cudaStream_t stream)
{
    const cachegen_args a = {*b, *l, units, beyond};
    if (bad(b) || bad_layer(l))
        return cudaErrorInvalidValue;
    const dim3 grid = grid_of(b, l, b->q_len ? (size_t)b->max_pages : 1);
    cachegen_code_kernel<<<grid, 32 * WARPS, 0, stream>>>(a);
    return cudaGetLastError();
}

cudaError_t kvd_cachegen_replace(const kvd_stream_batch *b, const kvd_cachegen_layer *l,
                                 uint32_t *units, uint32_t *part, cudaStream_t stream)
{
    const cachegen_args a = {*b, *l, units, NULL};
    if (bad(b) || l->group < 2 || l->block < l->group || l->block % l->group || !l->rows || !part ||
        kvd_attn_widest(&l->map) > KVD_WIDTH_NARROW || l->wide > KVD_WIDTH_NARROW)
        return cudaErrorInvalidValue;
    const size_t tokens = b->q_len ? (size_t)b->max_pages * KVD_PAGE_TOKENS : (size_t)l->block;
    cachegen_replace_kernel<<<grid_of(b, l, (tokens + (size_t)l->group - 1) / (size_t)l->group),
                              32 * WARPS, 0, stream>>>(a, part);
    return cudaGetLastError();
}

cudaError_t kvd_kvtc_pack(const kvd_kvtc_prompts *p, cudaStream_t stream)
{
    if (p->n < 1 || p->n > 65535 || p->n_groups < 1 || p->wide < 8 || p->wide % 8 ||
        p->ld <= (size_t)p->wide || !p->most || !p->packed)
        return cudaErrorInvalidValue;
    const size_t items = (p->most * (size_t)(p->n_groups + 1) + WARPS - 1) / WARPS;
    pack_kernel<<<dim3((unsigned)(items < 4096 ? items : 4096), (unsigned)p->n), 32 * WARPS, 0,
                  stream>>>(*p);
    return cudaGetLastError();
}

cudaError_t kvd_whole_stream_round(const kvd_stream_batch *b, const kvd_whole_stream *s,
                                   size_t most, uint32_t *units, uint32_t *part,
                                   cudaStream_t stream)
{
    if (bad(b) || s->wide < 1 || s->ld <= (size_t)s->wide || !most || !part)
        return cudaErrorInvalidValue;
    round_kernel<<<dim3(ctas(most, (size_t)b->n, b->n_sms), (unsigned)b->n), 32 * WARPS, 0,
                   stream>>>(*b, *s, units, part);
    return cudaGetLastError();
}

cudaError_t kvd_whole_stream_keep(const kvd_stream_batch *b, const uint16_t *x, size_t ld_x,
                                  uint16_t *to, size_t ld, size_t width, cudaStream_t stream)
{
    if (bad(b))
        return cudaErrorInvalidValue;
    if (!b->n_sink)
        return cudaSuccess;
    keep_kernel<<<dim3((unsigned)b->n_sink, (unsigned)b->n), 256, 0, stream>>>(*b, x, ld_x, to, ld,
                                                                               (int)width);
    return cudaGetLastError();
}
