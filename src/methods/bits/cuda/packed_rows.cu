/* Quantises and decodes tokens one by one (methods hetero and rotatekv), with the same results as
 * on the CPU. */
#include "common/cuda/launch.cuh"
#include "methods/bits/cuda/packed_code.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32 };

/* K (side 0) or V (side 1) of token t of request b, in all KV heads. */
struct token_of {
    const kvd_packed_args &a;
    int side, b, t;
};

__device__ __forceinline__ int width(const token_of &o, int g)
{
    return o.side ? o.a.map.d_v[g] : o.a.map.d_qk[g];
}

__device__ __forceinline__ int place_of(const token_of &o, int g, int i)
{
    return o.side * KVD_PAGE_TOKENS * o.a.map.d_qk[g] +
           page_index(o.t % KVD_PAGE_TOKENS, i, width(o, g));
}

/* Calls f(head, channel, index in shared memory) for every channel of every KV head of a token. */
template <class F> __device__ __forceinline__ void for_channels(const token_of &o, F f)
{
    for (int g = 0, base = 0; g < o.a.map.n_kv_heads; base += width(o, g), g++)
        for (int i = (int)threadIdx.x; i < width(o, g); i += THREADS)
            f(g, i, base + i);
}

/* Elements x of a token that are quantised together, in shared memory, and the words of the page to
 * which they are quantised. */
struct vector_of {
    uint32_t *word;
    float *x;
    const uint32_t *order;
    int n, planes; /* n: numbers without padding; planes: words of codes */
};

__device__ __forceinline__ bool is_joint(const token_of &o)
{
    return o.a.row.of.joint && !o.side;
}

__device__ __forceinline__ int vectors(const token_of &o)
{
    return is_joint(o) ? 1 : o.a.map.n_kv_heads;
}

__device__ __forceinline__ vector_of vector_at(const token_of &o, int v, float *x)
{
    const kvd_packed_args &a = o.a;
    const kvd_packed_rows &r = a.row.of;
    const int page = page_number(a, o.b, o.t / KVD_PAGE_TOKENS), t = o.t % KVD_PAGE_TOKENS,
              bits = r.bits[o.side];
    if (is_joint(o)) {
        const int n = a.map.n_kv_heads * a.d_head;
        uint32_t *const words = reinterpret_cast<uint32_t *>(a.codes + (size_t)page * a.page_bytes);
        return {words + t * kvd_packed_row_words(&r, 0, n), x, a.row.order, n,
                (n + 31) / 32 * bits};
    }
    const int d = width(o, v);
    uint32_t *word = reinterpret_cast<uint32_t *>(in_codes(a, page, v)) +
                     t * kvd_packed_row_words(&r, o.side, d);
    if (o.side && !r.joint)
        word += KVD_PAGE_TOKENS * kvd_packed_row_words(&r, 0, a.map.d_qk[v]);
    for (int g = 0; g < v; g++)
        x += width(o, g);
    return {word, x, NULL, a.width[o.side][v], (d + 31) / 32 * bits};
}

/* Multiplies every n consecutive numbers of x [all] by the Walsh-Hadamard matrix. Begins and ends
 * with a barrier of the CTA. */
__device__ void rotate(float *x, int all, int n)
{
    const float scale = 1 / sqrtf((float)n);
    __syncthreads();
    for (int half = 1; half < n; half *= 2) {
        for (int i = (int)threadIdx.x; i < all / 2; i += THREADS) {
            float *const p = x + i / half * 2 * half + i % half;
            const float a = p[0], b = p[half];
            p[0] = a + b;
            p[half] = a - b;
        }
        __syncthreads();
    }
    for (int i = (int)threadIdx.x; i < all; i += THREADS)
        x[i] *= scale;
    __syncthreads();
}

__device__ void rotate_token(const token_of &o, float *x)
{
    const int heads = o.a.row.turned, d = o.a.d_head;
    if (heads)
        rotate(x, o.a.map.n_kv_heads * d, o.side ? d : heads * d);
}

/* Returns the word that stores a scale: float16 step in the lower half, zero point in the upper
 * half. */
__device__ __forceinline__ uint32_t scale_word(float step, uint32_t zero)
{
    return half_bits(step) | zero << 16;
}

__device__ void code_group(const kvd_packed_args &a, const vector_of &v, int bits, int from, int to,
                           int group, int lane)
{
    const float top = (float)((1 << bits) - 1), clip = a.row.clip;
    float lo = INFINITY, hi = -INFINITY;
    for (int i = from + lane; i < to; i += 32) {
        const float x = v.x[v.order ? v.order[i] : i];
        lo = fminf(lo, x);
        hi = fmaxf(hi, x);
    }
    lo = min_of_warp(lo);
    hi = -min_of_warp(-hi);
    const float step = as_half(clip > 0 ? clip * (hi - lo) / top : (hi - lo) / top);
    const float zero =
        clip > 0 && step > 0 ? fminf(fmaxf(rintf(-clip * lo / step), -32767), 32767) : as_half(lo);
    if (bits < 16 && lane == 0)
        v.word[v.planes + group] =
            scale_word(step, clip > 0 && step > 0 ? (uint32_t)(int)zero & 0xffff : half_bits(lo));
    for (int first = from / 32 * 32; first < to; first += 32) {
        const int i = first + lane;
        const bool there = i >= from && i < to;
        const float x = there ? v.x[v.order ? v.order[i] : i] : 0;
        uint32_t code = bits == 16 ? half_bits(x) : even_code(x, zero, step, top);
        if (clip > 0 && bits < 16)
            code = step > 0 ? (uint32_t)fminf(fmaxf(rintf(x / step) + zero, 0), top) : 0;
        const uint32_t mask = __ballot_sync(~0u, there);
        for (int j = 0; j < bits; j++) {
            const uint32_t plane = __ballot_sync(~0u, there && (code >> j & 1));
            uint32_t *const at = v.word + first / 32 * bits + j;
            if (lane == j)
                *at = (*at & ~mask) | plane;
        }
    }
}

__device__ void code_vectors(const token_of &o, float *x)
{
    const kvd_packed_args &a = o.a;
    const kvd_packed_rows &r = a.row.of;
    const int bits = r.bits[o.side], warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32,
              most = is_joint(o) ? a.map.n_kv_heads * a.d_head : KVD_WIDTH_NARROW,
              group = r.group ? r.group : most, groups = (most + group - 1) / group;
    for (int task = warp; task < vectors(o) * groups; task += WARPS) {
        const vector_of v = vector_at(o, task / groups, x);
        const int from = task % groups * group;
        if (from < v.n)
            code_group(a, v, bits, from, min(from + group, v.n), task % groups, lane);
    }
}

__device__ __forceinline__ uint16_t *sink_at(const token_of &o, int g, int i)
{
    return in_sink(o.a, o.b, g, o.t) + (o.side ? o.a.map.d_qk[g] : 0) + i;
}

/* Loads K or V of a token, in all KV heads, to x in shared memory. */
__device__ void load_token(const token_of &o, int before, float *x)
{
    const kvd_packed_args &a = o.a;
    const int p = o.t / KVD_PAGE_TOKENS;
    const bool raw = a.before_rope && !o.side;
    const size_t row =
        (size_t)(a.start ? a.start[o.b] + o.t - before : o.b) * a.ld + (size_t)a.x_key;
    for_channels(o, [&](int g, int i, int at) {
        const uint16_t *const rows =
            a.q_len ? in_rows(a, page_number(a, o.b, p), g) : in_ring(a, o.b, p, g);
        x[at] = bf16_of(raw ? a.x[row + (size_t)(g * a.d_head + i)] : rows[place_of(o, g, i)], 0);
    });
}

__global__ void __launch_bounds__(THREADS)
    code_rows_kernel(const __grid_constant__ kvd_packed_args a)
{
    extern __shared__ float x[];
    const int b = (int)blockIdx.y, m = a.kv_len[b], before = m - (a.q_len ? a.q_len[b] : 1),
              side = (int)blockIdx.z % 2;
    for (int t = before + (int)blockIdx.x; t < m; t += (int)gridDim.x) {
        const token_of o = {a, side, b, t};
        load_token(o, before, x);
        if (t < a.n_sink) {
            for_channels(
                o, [&](int g, int i, int at) { *sink_at(o, g, i) = (uint16_t)half_bits(x[at]); });
        } else {
            rotate_token(o, x);
            __syncthreads();
            code_vectors(o, x);
        }
        __syncthreads();
    }
}

/* Scale of a vector. The code n decodes to step * ((2^23 + n) - zero) + add. */
struct scale_of {
    float step, zero, add;
};

/* Unpacks a stored scale. A scale without offset gets the offset `add` = -0, because adding -0
 * changes no number. */
__device__ __forceinline__ scale_of make_scale(const kvd_packed_args &a, uint32_t word)
{
    const float step = half_of(word, 0);
    if (a.row.clip > 0 && step > 0)
        return {step, RAISED + (float)(int16_t)(word >> 16), -0.0f};
    return {step, RAISED, half_of(word, 1)};
}

__device__ __forceinline__ int scale_at(const kvd_packed_args &a, int i)
{
    const uint32_t group = (uint32_t)a.row.of.group;
    /* The multiplication computes i / group exactly, because both numbers are below 2^16 and group
     * is above 1. */
    return group ? (int)__umulhi((uint32_t)i, 0xffffffffu / group + 1) : 0;
}

/* Decodes numbers i .. i + 7 of a quantised vector. i must be a multiple of 8. */
__device__ __forceinline__ void decode(const kvd_packed_args &a, const uint32_t *words, int bits,
                                       int planes, int i, float (&y)[8])
{
    const uint32_t *const piece = words + i / 32 * bits;
    const uint32_t scale = bits == 16 ? 0 : words[planes + scale_at(a, i)];
    uint32_t low[2], high[2] = {0, 0};
    codes_of_planes(piece, min(bits, 8), i % 32 / 8, low);
    if (bits > 8)
        codes_of_planes(piece + 8, bits - 8, i % 32 / 8, high);
    if (bits == 16) {
#pragma unroll
        for (int e = 0; e < 8; e++)
            y[e] = half_of(__byte_perm(low[e / 4], high[e / 4], 0x40u + 0x11u * (e % 4)), 0);
        return;
    }
    const scale_of s = make_scale(a, scale);
#pragma unroll
    for (int e = 0; e < 8; e++)
        y[e] =
            bits > 8 ? raised_pair(low[e / 4], high[e / 4], e % 4) : raised_byte(low[e / 4], e % 4);
#pragma unroll
    for (int e = 0; e < 8; e++)
        y[e] = __fadd_rn(__fmul_rn(s.step, y[e] - s.zero), s.add);
}

enum {
    PIECES = KVD_WIDTH_NARROW / 32,
    MOST_WORDS = 64, /* most words of a vector of a head */
    MOST_SHARED = 112 << 10
};

/* Copies n words to shared memory, by one warp. n must be a multiple of 4. */
__device__ __forceinline__ void stage(const uint32_t *from, uint32_t *to, int n, int lane)
{
    __syncwarp();
    for (int i = lane; i < n / 4; i += 32)
        reinterpret_cast<uint4 *>(to)[i] = reinterpret_cast<const uint4 *>(from)[i];
    __syncwarp();
}

/* Multiplies every n consecutive dimensions of a token by the Walsh-Hadamard matrix. Lanes with
 * equal lane % 8 hold the same token. */
__device__ __forceinline__ void rotate_head(float (&y)[PIECES][8], int n, int lane)
{
#pragma unroll
    for (int half = 1; half < 8; half *= 2)
#pragma unroll
        for (int k = 0; k < PIECES; k++)
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (!(e & half)) {
                    const float x = y[k][e], z = y[k][e + half];
                    y[k][e] = x + z;
                    y[k][e + half] = x - z;
                }
#pragma unroll
    for (int half = 8; half < 32; half *= 2) {
        const float sign = lane & half ? -1 : 1;
        if (half < n)
#pragma unroll
            for (int k = 0; k < PIECES; k++)
#pragma unroll
                for (int e = 0; e < 8; e++)
                    y[k][e] = __fmaf_rn(sign, y[k][e], __shfl_xor_sync(~0u, y[k][e], half));
    }
#pragma unroll
    for (int half = 1; half < PIECES; half *= 2)
        if (32 * half < n)
#pragma unroll
            for (int k = 0; k < PIECES; k++)
#pragma unroll
                for (int e = 0; e < 8; e++)
                    if (!(k & half)) {
                        const float x = y[k][e], z = y[k + half][e];
                        y[k][e] = x + z;
                        y[k + half][e] = x - z;
                    }
}

__device__ __forceinline__ uint4 eight_of_sink(const token_of &o, int g, int i)
{
    const uint4 x = *reinterpret_cast<const uint4 *>(sink_at(o, g, i));
    const uint32_t two[4] = {x.x, x.y, x.z, x.w};
    uint32_t y[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
        y[k] = bf16_pair(half_of(two[k], 0), half_of(two[k], 1));
    return make_uint4(y[0], y[1], y[2], y[3]);
}

/* Returns eight products x * scale as bf16 numbers. Products with index n or above are 0. */
__device__ __forceinline__ uint4 eight_of(const float (&x)[8], float scale, int n)
{
    uint32_t y[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
        y[k] =
            bf16_pair(2 * k < n ? x[2 * k] * scale : 0, 2 * k + 1 < n ? x[2 * k + 1] * scale : 0);
    return make_uint4(y[0], y[1], y[2], y[3]);
}

/* Decodes K or V of 8 adjacent tokens in KV head g, and writes them to a bf16 page. TURNED: vectors
 * were rotated before quantisation. */
template <bool TURNED>
__device__ __forceinline__ void restore_octet(const token_of &o, int g, int m, uint32_t *words,
                                              int lane)
{
    const kvd_packed_args &a = o.a;
    const int p = o.t / KVD_PAGE_TOKENS, page = page_number(a, o.b, p), d = width(o, g),
              bits = a.row.of.bits[o.side], n = kvd_packed_row_words(&a.row.of, o.side, d),
              t0 = o.t % KVD_PAGE_TOKENS / 8 * 8, planes = (d + 31) / 32 * bits;
    const uint32_t *const codes =
        reinterpret_cast<const uint32_t *>(in_codes(a, page, g)) +
        (o.side && !a.row.of.joint
             ? KVD_PAGE_TOKENS * kvd_packed_row_words(&a.row.of, 0, a.map.d_qk[g])
             : 0);
    stage(codes + t0 * n, words, 8 * n, lane);
    float y[PIECES][8] = {};
#pragma unroll
    for (int k = 0; k < PIECES; k++)
        if (32 * k + lane / 8 * 8 < d)
            decode(a, words + lane % 8 * n, bits, planes, 32 * k + lane / 8 * 8, y[k]);
    if (TURNED)
        rotate_head(y, d, lane);
    const float scale = TURNED ? 1 / sqrtf((float)d) : 1;
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
        const int i = 32 * k + lane / 8 * 8, place = place_of(o, g, i);
        if (i >= d)
            break;
        *reinterpret_cast<uint4 *>(in_rows(a, page, g) + place) =
            o.t >= m         ? make_uint4(0, 0, 0, 0)
            : o.t == m - 1   ? *reinterpret_cast<const uint4 *>(in_ring(a, o.b, p, g) + place)
            : o.t < a.n_sink ? eight_of_sink(o, g, i)
                             : eight_of(y[k], scale, a.width[o.side][g] - i);
    }
}

/* Decodes V to bf16 pages. Also decodes K, unless keys of all KV heads were quantised together. */
template <bool TURNED>
__global__ void __launch_bounds__(THREADS, 3)
    restore_heads_kernel(const __grid_constant__ kvd_packed_args a)
{
    __shared__ __align__(16) uint32_t words[WARPS][8 * MOST_WORDS];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, m = a.kv_len[b],
              warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    for (int first = (first_seen(a, m) / KVD_PAGE_TOKENS + (int)blockIdx.z) * KVD_PAGE_TOKENS;
         first + 8 * warp < m; first += (int)gridDim.z * KVD_PAGE_TOKENS)
        for (int side = a.row.of.joint; side < 2; side++)
            restore_octet<TURNED>({a, side, b, first + 8 * warp + lane % 8}, g, m, words[warp],
                                  lane);
}

/* Decodes K of `tokens` tokens, in all KV heads, to x. Channels are in their original order. */
__device__ void decode_keys(const token_of &o, int tokens, int m, int pitch, float *x)
{
    const kvd_packed_args &a = o.a;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, t = o.t + warp % tokens,
              n = a.map.n_kv_heads * a.d_head, bits = a.row.of.bits[0];
    if (t >= m - 1 || t < a.n_sink)
        return;
    const uint32_t *const words =
        reinterpret_cast<const uint32_t *>(
            a.codes + (size_t)page_number(a, o.b, t / KVD_PAGE_TOKENS) * a.page_bytes) +
        t % KVD_PAGE_TOKENS * kvd_packed_row_words(&a.row.of, 0, n);
    float *const row = x + warp % tokens * pitch;
#pragma unroll 2
    for (int i = 8 * (warp / tokens * 32 + lane); i < n; i += 8 * THREADS / tokens) {
        float y[8];
        decode(a, words, bits, (n + 31) / 32 * bits, i, y);
        const uint4 *const order = reinterpret_cast<const uint4 *>(a.row.order + i);
        const uint4 low = __ldg(order), high = __ldg(order + 1);
        row[low.x] = y[0];
        row[low.y] = y[1];
        row[low.z] = y[2];
        row[low.w] = y[3];
        row[high.x] = y[4];
        row[high.y] = y[5];
        row[high.z] = y[6];
        row[high.w] = y[7];
    }
}

/* Undoes the Walsh-Hadamard rotation of keys x within each KV head, except for a constant
 * factor. */
__device__ void rotate_heads(const kvd_packed_args &a, int tokens, int pitch, float *x)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, d = a.d_head;
    for (int g = warp; g < a.map.n_kv_heads; g += WARPS) {
        float y[PIECES][8] = {};
        float *const row = x + lane % 8 * pitch + g * d + lane / 8 * 8;
#pragma unroll
        for (int k = 0; k < PIECES; k++)
            if (lane % 8 < tokens && 32 * k + lane / 8 * 8 < d)
#pragma unroll
                for (int e = 0; e < 8; e += 4) {
                    const float4 z = *reinterpret_cast<const float4 *>(row + 32 * k + e);
                    y[k][e] = z.x, y[k][e + 1] = z.y, y[k][e + 2] = z.z, y[k][e + 3] = z.w;
                }
        rotate_head(y, d, lane);
#pragma unroll
        for (int k = 0; k < PIECES; k++)
            if (lane % 8 < tokens && 32 * k + lane / 8 * 8 < d)
#pragma unroll
                for (int e = 0; e < 8; e += 4)
                    *reinterpret_cast<float4 *>(row + 32 * k + e) =
                        make_float4(y[k][e], y[k][e + 1], y[k][e + 2], y[k][e + 3]);
    }
}

/* Undoes the Hadamard rotation of keys x that mixed each group of `heads` adjacent KV heads. Begins
 * and ends with a barrier of the CTA. */
__device__ void rotate_over_heads(const kvd_packed_args &a, int tokens, int heads, int pitch,
                                  float *x)
{
    const int d = a.d_head, all = a.map.n_kv_heads * d / 2;
    __syncthreads();
    for (int half = d; half < heads * d; half *= 2) {
        for (int i = (int)threadIdx.x; i < all * tokens; i += THREADS) {
            const int j = i % all;
            float *const p = x + i / all * pitch + j / half * 2 * half + j % half;
            const float y = p[0], z = p[half];
            p[0] = y + z;
            p[half] = y - z;
        }
        __syncthreads();
    }
}

/* Channels i and i + 1 (low), and i + d / 2 and i + 1 + d / 2 (high), of a key of d dimensions. */
struct channels_of {
    float low[2], high[2];
};

/* Reads the lane's channels of SPAN KV heads, and undoes the Walsh-Hadamard rotation across these
 * heads. */
template <int SPAN>
__device__ __forceinline__ void read_heads(const float *x, int d, channels_of (&y)[SPAN])
{
#pragma unroll
    for (int h = 0; h < SPAN; h++) {
        const float2 low = *reinterpret_cast<const float2 *>(x + h * d),
                     high = *reinterpret_cast<const float2 *>(x + h * d + d / 2);
        y[h].low[0] = low.x, y[h].low[1] = low.y;
        y[h].high[0] = high.x, y[h].high[1] = high.y;
    }
#pragma unroll
    for (int half = 1; half < SPAN; half *= 2)
#pragma unroll
        for (int h = 0; h < SPAN; h++)
            if (!(h & half))
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const channels_of u = y[h], v = y[h + half];
                    y[h].low[e] = u.low[e] + v.low[e];
                    y[h].high[e] = u.high[e] + v.high[e];
                    y[h + half].low[e] = u.low[e] - v.low[e];
                    y[h + half].high[e] = u.high[e] - v.high[e];
                }
}

/* Applies RoPE to the key channels y, and stores the result in the bf16 page. */
__device__ __forceinline__ void put_key(const token_of &o, int g, int i, channels_of y,
                                        const rope_of &rope)
{
    const kvd_packed_args &a = o.a;
    uint16_t *const to =
        in_rows(a, page_number(a, o.b, o.t / KVD_PAGE_TOKENS), g) + place_of(o, g, i);
    if (a.before_rope && a.cosine)
        apply_rope(a, rope, y.low, y.high);
    *reinterpret_cast<uint32_t *>(to) = bf16_pair(y.low[0], y.low[1]);
    *reinterpret_cast<uint32_t *>(to + 4 * a.d_head) = bf16_pair(y.high[0], y.high[1]);
}

/* Copies channels of a key that is not quantised. After the request's last token, writes zeros. */
__device__ __forceinline__ void copy_key(const token_of &o, int g, int i, int m)
{
    const kvd_packed_args &a = o.a;
    const int p = o.t / KVD_PAGE_TOKENS, place = place_of(o, g, i);
#pragma unroll
    for (int at = place; at <= place + 4 * a.d_head; at += 4 * a.d_head)
        *reinterpret_cast<uint32_t *>(in_rows(a, page_number(a, o.b, p), g) + at) =
            o.t < m ? *reinterpret_cast<const uint32_t *>(in_ring(a, o.b, p, g) + at) : 0;
}

/* Undoes the Hadamard rotation that mixed the keys of SPAN adjacent KV heads, and stores the keys.
 * a.d_head must be a power of two. */
template <int SPAN>
__device__ void put_keys(const kvd_packed_args &a, int b, int first, int tokens, int m, int pitch,
                         const float *x)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, d = a.d_head,
              blocks = d / 16, log_blocks = __ffs(blocks) - 1;
    const token_of o = {a, 0, b, first + lane % 8};
    const float scale = 1 / sqrtf((float)(a.row.turned * d));
    if (lane % 8 >= tokens)
        return;
    for (int task = warp; task < blocks * a.map.n_kv_heads / SPAN; task += WARPS) {
        const int i = (task & (blocks - 1)) * 8 + lane / 8 * 2, g = (task >> log_blocks) * SPAN;
        rope_of rope = {};
        channels_of y[SPAN];
        if (a.before_rope && a.cosine && o.t < m)
            rope = load_rope(a, o.t, i);
        read_heads<SPAN>(x + lane % 8 * pitch + g * d + i, d, y);
#pragma unroll
        for (int h = 0; h < SPAN; h++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                y[h].low[e] = __fmul_rn(y[h].low[e], scale);
                y[h].high[e] = __fmul_rn(y[h].high[e], scale);
                if (o.t < a.n_sink) {
                    y[h].low[e] = half_of(*sink_at(o, g + h, i + e), 0);
                    y[h].high[e] = half_of(*sink_at(o, g + h, i + d / 2 + e), 0);
                }
            }
            if (o.t < m - 1)
                put_key(o, g + h, i, y[h], rope);
            else
                copy_key(o, g + h, i, m);
        }
    }
}

/* Returns the distance in words between keys in shared memory, chosen against bank conflicts. */
__device__ __host__ __forceinline__ int pitch_of(const kvd_packed_args &a)
{
    return (a.map.n_kv_heads * a.d_head + 31) / 32 * 32 + 4;
}

/* Decodes keys of tokens whose KV heads were quantised together. Grid: x is the number of CTAs per
 * request, y the number of requests. */
__global__ void __launch_bounds__(THREADS, 3)
    restore_joint_kernel(const __grid_constant__ kvd_packed_args a, int tokens)
{
    extern __shared__ __align__(16) float x[];
    const int b = (int)blockIdx.y, m = a.kv_len[b], heads = a.row.turned, pitch = pitch_of(a);
    for (int first =
             first_seen(a, m) / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS + (int)blockIdx.x * tokens;
         first < (m + 7) / 8 * 8; first += (int)gridDim.x * tokens) {
        decode_keys({a, 0, b, first}, tokens, m, pitch, x);
        __syncthreads();
        rotate_heads(a, tokens, pitch, x);
        rotate_over_heads(a, tokens, heads > 4 ? heads : 1, pitch, x);
        if (heads == 2)
            put_keys<2>(a, b, first, tokens, m, pitch, x);
        else if (heads == 4)
            put_keys<4>(a, b, first, tokens, m, pitch, x);
        else
            put_keys<1>(a, b, first, tokens, m, pitch, x);
        __syncthreads();
    }
}

size_t shared_bytes(const kvd_packed_args *a)
{
    int keys = 0, values = 0;
    for (int g = 0; g < a->map.n_kv_heads; g++) {
        keys += a->map.d_qk[g];
        values += a->map.d_v[g];
    }
    return (size_t)(keys > values ? keys : values) * sizeof(float);
}

cudaError_t restore_joint(const kvd_packed_args *a, cudaStream_t stream)
{
    const int each = pitch_of(*a) * (int)sizeof(float);
    int tokens = 8;
    while (tokens > 1 && tokens * each > MOST_SHARED)
        tokens /= 2;
    const dim3 grid((unsigned)(a->pages_side_by_side * (KVD_PAGE_TOKENS / tokens)), (unsigned)a->n);
    return kvd_launch(restore_joint_kernel, grid, THREADS, (size_t)(tokens * each), stream, *a,
                      tokens);
}

} // namespace

cudaError_t kvd_packed_code_rows(const kvd_packed_args *a, cudaStream_t stream)
{
    const dim3 grid(a->q_len ? (unsigned)a->pages_side_by_side * 16 : 1, (unsigned)a->n, 2);
    return kvd_launch(code_rows_kernel, grid, THREADS, shared_bytes(a), stream, *a);
}

cudaError_t kvd_packed_restore_rows(const kvd_packed_args *a, cudaStream_t stream)
{
    const dim3 grid = grid_of(a);
    const cudaError_t e = a->row.of.joint ? restore_joint(a, stream) : cudaSuccess;
    if (e != cudaSuccess)
        return e;
    (a->row.turned ? restore_heads_kernel<true>
                   : restore_heads_kernel<false>)<<<grid, THREADS, 0, stream>>>(*a);
    return cudaGetLastError();
}
