/*
 * Codes and restores tokens one by one (hetero, rotatekv). A CTA handles K or V of a token, whose
 * numbers in all KV heads are in shared memory as float32.
 *
 * hetero    every vector of a head has a step and a zero point, as in kvd_quantise_group
 * rotatekv  keys of several heads are rotated together before RoPE and sorted, values are rotated
 *           per head; s = clip (max - min) / (2^b - 1), x = s (code - zero), zero a 16-bit integer
 *
 * Sums and roundings are those of the CPU methods in the same order, so that codes are equal.
 */
#include "methods/bits/cuda/packed_code.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32 };

/* K (side 0) or V (side 1) of token t of request b. */
struct token_of {
    const kvd_packed_args &a;
    int side, b, t;
};

__device__ __forceinline__ int width(const token_of &o, int g)
{
    return o.side ? o.a.map.d_v[g] : o.a.map.d_qk[g];
}

/* Returns the index of channel i of KV head g in a bf16 page. */
__device__ __forceinline__ int place_of(const token_of &o, int g, int i)
{
    return o.side * KVD_PAGE_TOKENS * o.a.map.d_qk[g] +
           page_index(o.t % KVD_PAGE_TOKENS, i, width(o, g));
}

/* Calls f(g, i, channel i's index in shared memory) for all channels of all KV heads. */
template <class F> __device__ __forceinline__ void for_channels(const token_of &o, F f)
{
    for (int g = 0, base = 0; g < o.a.map.n_kv_heads; base += width(o, g), g++)
        for (int i = (int)threadIdx.x; i < width(o, g); i += THREADS)
            f(g, i, base + i);
}

/* A vector of numbers of a token: its words in the page, and its numbers in shared memory. */
struct vector_of {
    uint32_t *word;
    float *x;
    const uint32_t *order; /* order in which the numbers are coded, or NULL */
    int n, planes;         /* numbers without padding, and words of the codes */
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

/*
 * Multiplies each n of `all` numbers by the normalised Walsh-Hadamard matrix, which is its own
 * inverse. Begins and ends with a barrier of the CTA.
 */
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

/* Words that follow the codes hold a step as float16 and a zero point. */
__device__ __forceinline__ uint32_t scale_word(float step, uint32_t zero)
{
    return half_bits(step) | zero << 16;
}

/* Codes the numbers from .. to - 1 of a vector, which share a scale. One warp. */
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

/* Returns number i of a vector. */
__device__ __forceinline__ float decoded(const kvd_packed_args &a, const vector_of &v, int bits,
                                         int i)
{
    const uint32_t *const planes = v.word + i / 32 * bits;
    uint32_t code = 0;
    for (int j = 0; j < bits; j++)
        code |= (planes[j] >> i % 32 & 1) << j;
    if (bits == 16)
        return half_of(code, 0);
    const uint32_t scale = v.word[v.planes + (a.row.of.group ? i / a.row.of.group : 0)];
    const float step = half_of(scale, 0);
    if (a.row.clip > 0 && step > 0)
        return __fmul_rn(step, (float)((int)code - (int)(int16_t)(scale >> 16)));
    return __fadd_rn(__fmul_rn(step, (float)code), half_of(scale, 1));
}

/* Returns the address of channel i of KV head g of a sink token. */
__device__ __forceinline__ uint16_t *sink_at(const token_of &o, int g, int i)
{
    return in_sink(o.a, o.b, g, o.t) + (o.side ? o.a.map.d_qk[g] : 0) + i;
}

/* Reads the token's numbers to shared memory x. `before` is the request's length before. */
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

/* Decodes a token to shared memory. Begins and ends with a barrier of the CTA. */
__device__ void decode_token(const token_of &o, float *x)
{
    const kvd_packed_args &a = o.a;
    const int bits = a.row.of.bits[o.side];
    __syncthreads();
    if (o.t < a.n_sink) {
        for_channels(o, [&](int g, int i, int at) { x[at] = half_of(*sink_at(o, g, i), 0); });
        __syncthreads();
        return;
    }
    for (int k = 0; k < vectors(o); k++) {
        const vector_of v = vector_at(o, k, x);
        for (int i = (int)threadIdx.x; i < v.n; i += THREADS)
            v.x[v.order ? v.order[i] : i] = decoded(a, v, bits, i);
    }
    rotate_token(o, x);
    __syncthreads();
}

__global__ void __launch_bounds__(THREADS)
    restore_rows_kernel(const __grid_constant__ kvd_packed_args a)
{
    extern __shared__ float x[];
    const int b = (int)blockIdx.y, m = a.kv_len[b], side = (int)blockIdx.z % 2;
    for (int t = first_seen(a, m) / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS + (int)blockIdx.x;
         t < (m + 7) / 8 * 8; t += (int)gridDim.x) {
        const token_of o = {a, side, b, t};
        const int p = t / KVD_PAGE_TOKENS, page = page_number(a, b, p);
        const bool coded = t < m - 1, turned = !side && a.before_rope && a.cosine;
        if (coded)
            decode_token(o, x);
        for_channels(o, [&](int g, int i, int at) {
            const int place = place_of(o, g, i);
            uint16_t *const to = in_rows(a, page, g) + place;
            if (!coded)
                *to = t < m ? in_ring(a, b, p, g)[place] : (uint16_t)0;
            else if (i >= a.width[side][g])
                *to = 0;
            else
                *to = (uint16_t)(bf16_pair(turned ? after_rope(a, x + at - i, t, i) : x[at], 0) &
                                 0xffff);
        });
    }
}

int shared_bytes(const kvd_packed_args *a)
{
    int keys = 0, values = 0;
    for (int g = 0; g < a->map.n_kv_heads; g++) {
        keys += a->map.d_qk[g];
        values += a->map.d_v[g];
    }
    return (keys > values ? keys : values) * (int)sizeof(float);
}

cudaError_t launch(void (*kernel)(kvd_packed_args), const kvd_packed_args *a, unsigned tokens,
                   cudaStream_t stream)
{
    const int bytes = shared_bytes(a);
    const cudaError_t e =
        bytes > 48 << 10 ? cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                                                cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)
                         : cudaSuccess;
    if (e != cudaSuccess)
        return e;
    kernel<<<dim3(tokens, (unsigned)a->n, 2), THREADS, (size_t)bytes, stream>>>(*a);
    return cudaGetLastError();
}

} // namespace

cudaError_t kvd_packed_code_rows(const kvd_packed_args *a, cudaStream_t stream)
{
    return launch(code_rows_kernel, a, a->q_len ? (unsigned)a->pages_side_by_side * 16 : 1, stream);
}

cudaError_t kvd_packed_restore_rows(const kvd_packed_args *a, cudaStream_t stream)
{
    return launch(restore_rows_kernel, a, (unsigned)a->pages_side_by_side * 16, stream);
}
