/* Kernels that quantise tokens at high or low precision and decode them, with the same rounding as
 * on the CPU. */
#include "methods/tokens/cuda/lower.h"

#include <cuda_fp16.h>

#include "kernels/cuda/mma.cuh"
#include "methods/tokens/cuda/evict_rank.cuh"
#include "methods/tokens/cuda/radix_select.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32, CHOOSE = 1024, CHUNKS = KVD_WIDTH_MAX / 32 };

__device__ __forceinline__ size_t page_of(const kvd_lower_args &a, int b, int t)
{
    return (size_t)__ldg(a.page_table + (size_t)b * a.max_pages + t / KVD_PAGE_TOKENS);
}

/* Returns the index in the arrays a.level and a.score of token t of request b in KV head g. */
__device__ __forceinline__ size_t place_of(const kvd_lower_args &a, int b, int g, int t)
{
    return (page_of(a, b, t) * a.map.n_kv_heads + g) * KVD_PAGE_TOKENS + t % KVD_PAGE_TOKENS;
}

__device__ __forceinline__ int blocked(int t, int i, int d)
{
    return t / 8 * 8 * d + i / 8 * 64 + t % 8 * 8 + i % 8;
}

/* Vector K (side = 0) or V (side = 1) of token t of request b in KV head g. */
struct vector_of {
    int b, g, side, t;
};

__device__ __forceinline__ uint16_t *rows_of(const kvd_lower_args &a, const vector_of &v)
{
    return a.rows + page_of(a, v.b, v.t) * a.map.page_elements + a.map.kv_offset[v.g] +
           v.side * KVD_PAGE_TOKENS * a.d_head;
}

__device__ __forceinline__ uint32_t *record_of(const kvd_lower_args &a, const vector_of &v)
{
    const int words[2] = {kvd_lower_words(a.bits[0], a.d_head),
                          kvd_lower_words(a.bits[1], a.d_head)};
    const size_t head = page_of(a, v.b, v.t) * a.map.n_kv_heads + v.g;
    return a.codes + (head * (words[0] + words[1]) + (v.side ? words[0] : 0)) * KVD_PAGE_TOKENS +
           v.t % KVD_PAGE_TOKENS * words[v.side];
}

__device__ __forceinline__ float half_of(uint32_t bits)
{
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

__device__ __forceinline__ uint32_t half_bits(float x)
{
    return __half_as_ushort(__float2half_rn(x));
}

/* Returns the factors that multiply the channels of a low-precision key before it is quantised, or
 * NULL if the vector has none. */
__device__ __forceinline__ const uint16_t *factors_of(const kvd_lower_args &a, const vector_of &v,
                                                      int level)
{
    if (!a.factor || level == KVD_LOWER_HIGH || v.side || a.bits[0][KVD_LOWER_LOW] == 16)
        return NULL;
    return a.factor + ((size_t)__ldg(a.slot + v.b) * a.map.n_kv_heads + v.g) * a.d_head;
}

__device__ __forceinline__ float min_of_warp(float x)
{
#pragma unroll
    for (int step = 1; step < 32; step *= 2)
        x = fminf(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

/* A lane's part of a vector: the numbers with index 32 k + lane, and the step and zero point by
 * which the vector is quantised. */
struct numbers {
    float x[CHUNKS], step, zero;
};

/* Loads K or V of one token and KV head, and computes the step and zero point by which it is
 * quantised. One warp must call it. */
__device__ __forceinline__ numbers load_vector(const kvd_lower_args &a, const vector_of &v,
                                               int level)
{
    const int lane = (int)threadIdx.x % 32, d = a.d_head, bits = a.bits[v.side][level];
    const uint16_t *const row = rows_of(a, v), *const factor = factors_of(a, v, level);
    numbers n;
    float low = INFINITY, high = -INFINITY;
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        const int i = 32 * k + lane;
        if (i >= d)
            break;
        n.x[k] = unpack<true>(row[blocked(v.t % KVD_PAGE_TOKENS, i, d)]).x;
        if (factor)
            n.x[k] = __fmul_rn(n.x[k], half_of(factor[i]));
        low = fminf(low, n.x[k]);
        high = fmaxf(high, n.x[k]);
    }
    low = min_of_warp(low);
    high = -min_of_warp(-high);
    n.step = half_of(half_bits((high - low) / (float)((1 << bits) - 1)));
    n.zero = half_of(half_bits(low));
    return n;
}

/* Returns the quantised integer of the vector's number with index 32 k + lane. */
__device__ __forceinline__ uint32_t code_of(const numbers &n, int k, int bits)
{
    return bits == 16   ? half_bits(n.x[k])
           : n.step > 0 ? (uint32_t)fminf(fmaxf(rintf((n.x[k] - n.zero) / n.step), 0),
                                          (float)((1 << bits) - 1))
                        : 0;
}

/* Decodes a quantised integer. The caller must still divide the result by the factor of its
 * channel, if there is one (factors_of). */
__device__ __forceinline__ float number_of(uint32_t code, int bits, float step, float zero)
{
    return bits == 16 ? half_of(code) : __fadd_rn(__fmul_rn(step, (float)code), zero);
}

/* Quantises a vector that the bf16 pages a.rows hold. One warp must call it. */
__device__ void code_vector(const kvd_lower_args &a, const vector_of &v, int level)
{
    const int lane = (int)threadIdx.x % 32, d = a.d_head, bits = a.bits[v.side][level],
              chunks = (d + 31) / 32;
    uint32_t *const record = record_of(a, v);
    const numbers n = load_vector(a, v, level);
    if (bits < 16 && lane == 0)
        record[chunks * bits] = half_bits(n.step) | half_bits(n.zero) << 16;
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        const bool there = 32 * k + lane < d;
        if (32 * k >= d)
            break;
        const uint32_t code = there ? code_of(n, k, bits) : 0;
        for (int j = 0; j < bits; j++) {
            const uint32_t plane = __ballot_sync(~0u, code >> j & 1);
            if (lane == j)
                record[k * bits + j] = plane;
        }
    }
}

/* Decodes elements i .. i + 7 of a quantised vector. i must be a multiple of 8. */
__device__ uint4 decode_run(const kvd_lower_args &a, const vector_of &v, int level, int i)
{
    const int bits = a.bits[v.side][level];
    const uint16_t *const factor = factors_of(a, v, level);
    const uint32_t *const record = record_of(a, v);
    uint32_t code[8] = {}, y[4];
    float x[8];
    for (int j = 0; j < bits; j++) {
        const uint32_t plane = record[i / 32 * bits + j] >> i % 32;
#pragma unroll
        for (int e = 0; e < 8; e++)
            code[e] |= (plane >> e & 1) << j;
    }
    const uint32_t scale = bits < 16 ? record[(a.d_head + 31) / 32 * bits] : 0;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        x[e] = number_of(code[e], bits, half_of(scale), half_of(scale >> 16));
    }
    /* The error of the fast division is far below the precision of bf16, to which x is rounded. */
    if (factor) {
        const uint4 f = *reinterpret_cast<const uint4 *>(factor + i);
        const uint32_t w[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
        for (int e = 0; e < 8; e++)
            x[e] = __fdividef(x[e], half_of(w[e / 2] >> 16 * (e % 2)));
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
        y[e] = pack<true>(x[2 * e], x[2 * e + 1]);
    return make_uint4(y[0], y[1], y[2], y[3]);
}

__global__ void __launch_bounds__(THREADS) restore(const __grid_constant__ kvd_lower_args a)
{
    const int b = (int)blockIdx.y, g = (int)blockIdx.z / 2, side = (int)blockIdx.z % 2,
              lane = (int)threadIdx.x % 32, n = __ldg(a.kv_len + b), d = a.d_head;
    for (int o = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32; 8 * o < n;
         o += (int)gridDim.x * WARPS) {
        const vector_of v = {b, g, side, 8 * o + lane % 8};
        if (v.t == n - 1)
            continue;
        const int level = v.t < n ? a.level[place_of(a, b, g, v.t)] : 0;
        uint16_t *const row = rows_of(a, v);
        for (int i = lane / 8 * 8; i < d; i += 32)
            *reinterpret_cast<uint4 *>(row + blocked(v.t % KVD_PAGE_TOKENS, i, d)) =
                v.t < n ? decode_run(a, v, level, i) : make_uint4(0, 0, 0, 0);
    }
}

__global__ void __launch_bounds__(THREADS) code_prompts(const __grid_constant__ kvd_lower_args a)
{
    const int b = (int)blockIdx.y, g = (int)blockIdx.z / 2, side = (int)blockIdx.z % 2,
              n = __ldg(a.kv_len + b);
    for (int t = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32; t < n;
         t += (int)gridDim.x * WARPS)
        code_vector(a, {b, g, side, t}, a.level[place_of(a, b, g, t)]);
}

__global__ void __launch_bounds__(THREADS)
    round_rows(const __grid_constant__ kvd_lower_args a, const int32_t *q_len, int most)
{
    const int b = (int)blockIdx.y, g = (int)blockIdx.z / 2, side = (int)blockIdx.z % 2,
              lane = (int)threadIdx.x % 32, n = __ldg(a.kv_len + b), d = a.d_head,
              bits = a.bits[side][KVD_LOWER_HIGH];
    for (int t = n - min(__ldg(q_len + b), most) + (int)blockIdx.x * WARPS + (int)threadIdx.x / 32;
         t < n; t += (int)gridDim.x * WARPS) {
        const vector_of v = {b, g, side, t};
        const numbers x = load_vector(a, v, KVD_LOWER_HIGH);
        uint16_t *const row = rows_of(a, v);
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            const int i = 32 * k + lane;
            if (i < d)
                row[blocked(t % KVD_PAGE_TOKENS, i, d)] =
                    (uint16_t)pack<true>(number_of(code_of(x, k, bits), bits, x.step, x.zero), 0);
        }
    }
}

__global__ void __launch_bounds__(CHOOSE) choose(const __grid_constant__ kvd_lower_args a,
                                                 const __grid_constant__ kvd_lower_prompts_args p)
{
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, n = __ldg(a.kv_len + b),
              group = a.map.group;
    const kvd_lower_budget budget = a.budget[a.slot[b]];
    const int old = n - min(n, budget.recent), k = min(old, budget.heavy);
    for (int t = (int)threadIdx.x; t < n; t += CHOOSE) {
        float sum = 0;
        for (int h = g * group; h < (g + 1) * group; h++)
            sum += p.mass[(size_t)h * p.n_q8 + p.q_start[b] + t];
        a.score[place_of(a, b, g, t)] = sum;
    }
    __syncthreads();
    const auto key = [&](int t) { return key_of(a.score[place_of(a, b, g, t)], t); };
    const unsigned long long least = select_least<CHOOSE>(key, old, k);
    for (int t = (int)threadIdx.x; t < n; t += CHOOSE)
        a.level[place_of(a, b, g, t)] =
            t >= old || key(t) >= least ? KVD_LOWER_HIGH : KVD_LOWER_LOW;
}

/* Sets most[e] to the larger of most[e] and the magnitude of number e in `from`, for e = 0 to 7. */
__device__ __forceinline__ void raise(const uint16_t *from, float (&most)[8])
{
    const uint4 x = *reinterpret_cast<const uint4 *>(from);
    const uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const float2 u = unpack<true>(w[e]);
        most[2 * e] = fmaxf(most[2 * e], fabsf(u.x));
        most[2 * e + 1] = fmaxf(most[2 * e + 1], fabsf(u.y));
    }
}

/* Computes for each key channel the factor sqrt(max |q| / max |k|). The maxima are over the tokens
 * of the prompt. */
__global__ void __launch_bounds__(THREADS) balance(const __grid_constant__ kvd_lower_args a,
                                                   const __grid_constant__ kvd_lower_prompts_args p)
{
    __shared__ uint32_t most[2][KVD_WIDTH_MAX];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, n = __ldg(a.kv_len + b), d = a.d_head,
              me = (int)threadIdx.x, runs = d / 8, each = THREADS / runs, run = me % runs,
              group = a.map.group;
    float q[8] = {}, k[8] = {};
    for (int i = me; i < 2 * KVD_WIDTH_MAX; i += THREADS)
        most[i / KVD_WIDTH_MAX][i % KVD_WIDTH_MAX] = 0;
    __syncthreads();
    for (int t = me / runs; t < n && me < each * runs; t += each) {
        raise(rows_of(a, {b, g, 0, t}) + blocked(t % KVD_PAGE_TOKENS, 8 * run, d), k);
        for (int h = g * group; h < (g + 1) * group; h++)
            raise(static_cast<const uint16_t *>(p.q) + (size_t)a.map.q_offset[h] * p.n_q8 +
                      blocked(__ldg(p.q_start + b) + t, 8 * run, d),
                  q);
    }
#pragma unroll
    for (int e = 0; e < 8; e++) {
        atomicMax(&most[0][8 * run + e], __float_as_uint(q[e]));
        atomicMax(&most[1][8 * run + e], __float_as_uint(k[e]));
    }
    __syncthreads();
    for (int i = me; i < d; i += THREADS) {
        const float of_q = __uint_as_float(most[0][i]), of_k = __uint_as_float(most[1][i]),
                    f = half_of(half_bits(of_q > 0 && of_k > 0 ? sqrtf(of_q / of_k) : 1.0F));
        a.factor[((size_t)__ldg(a.slot + b) * a.map.n_kv_heads + g) * d + i] =
            (uint16_t)half_bits(f > 0 && !isinf(f) ? f : 1.0F);
    }
}

/* Adds a decode step's attention probabilities to the token scores. The newest token's score begins
 * at 0. */
__global__ void __launch_bounds__(THREADS)
    observe(const __grid_constant__ kvd_lower_args a, const uint16_t *q, const float *lse)
{
    const int b = (int)blockIdx.y, g = (int)blockIdx.z, lane = (int)threadIdx.x % 32,
              n = __ldg(a.kv_len + b), d = a.d_head, group = a.map.group;
    for (int o = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32; 8 * o < n;
         o += (int)gridDim.x * WARPS) {
        const vector_of v = {b, g, 0, 8 * o + lane % 8};
        const uint16_t *const row = rows_of(a, v);
        float sum = 0;
        for (int h = g * group; h < (g + 1) * group; h++) {
            const uint16_t *const of_h = q + (size_t)b * a.map.q_pitch + a.map.q_offset[h];
            float dot = 0;
            for (int i = lane / 8 * 8; i < d; i += 32) {
                const uint4 x = *reinterpret_cast<const uint4 *>(
                                row + blocked(v.t % KVD_PAGE_TOKENS, i, d)),
                            y = *reinterpret_cast<const uint4 *>(of_h + i);
                const uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const float2 u = unpack<true>(xs[e]), w = unpack<true>(ys[e]);
                    dot = fmaf(u.x, w.x, fmaf(u.y, w.y, dot));
                }
            }
            dot += __shfl_xor_sync(~0u, dot, 8);
            dot += __shfl_xor_sync(~0u, dot, 16);
            sum += expf(a.map.scale * dot - lse[(size_t)b * a.map.n_heads + h]);
        }
        if (lane < 8 && v.t < n) {
            float *const score = a.score + place_of(a, b, g, v.t);
            *score = v.t < n - 1 ? *score + sum : sum;
        }
    }
}

/* Quantises the newest token at high precision. If more than budget.heavy of the older tokens are
 * then at high precision, requantises the one with the smallest score at low precision. */
__global__ void __launch_bounds__(THREADS) lower(const __grid_constant__ kvd_lower_args a)
{
    __shared__ unsigned long long least;
    __shared__ int high;
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, n = __ldg(a.kv_len + b),
              me = (int)threadIdx.x;
    const kvd_lower_budget budget = a.budget[a.slot[b]];
    if (me < 64)
        code_vector(a, {b, g, me / 32, n - 1}, KVD_LOWER_HIGH);
    if (me == 0) {
        a.level[place_of(a, b, g, n - 1)] = KVD_LOWER_HIGH;
        least = ~0ull;
        high = 0;
    }
    __syncthreads();
    unsigned long long mine = ~0ull;
    int count = 0;
    for (int t = me; t < n - budget.recent; t += THREADS) {
        const size_t at = place_of(a, b, g, t);
        if (a.level[at] != KVD_LOWER_HIGH)
            continue;
        const unsigned long long key = key_of(a.score[at], t);
        mine = key < mine ? key : mine;
        count++;
    }
    atomicMin(&least, mine);
    atomicAdd(&high, count);
    __syncthreads();
    if (high <= budget.heavy || me >= 64)
        return;
    const int t = (int)(least & 0xffffffffu);
    code_vector(a, {b, g, me / 32, t}, KVD_LOWER_LOW);
    if (me == 0)
        a.level[place_of(a, b, g, t)] = KVD_LOWER_LOW;
}

/* Returns the x dimension of a grid with about 8 CTAs per multiprocessor. others: product of its y
 * and z dimensions. */
unsigned ctas(const kvd_lower_args *a, int others)
{
    const int wanted = (8 * a->n_sms + others - 1) / others;
    return (unsigned)(wanted < a->max_pages ? wanted : a->max_pages);
}

dim3 grid_of(const kvd_lower_args *a, int per_request)
{
    return dim3(ctas(a, a->n * per_request), a->n, per_request);
}

dim3 heads_of(const kvd_lower_args *a)
{
    return dim3(a->map.n_kv_heads, a->n);
}

} // namespace

extern "C" cudaError_t kvd_lower_prompts(const kvd_lower_args *a, const kvd_lower_prompts_args *p,
                                         cudaStream_t stream)
{
    choose<<<heads_of(a), CHOOSE, 0, stream>>>(*a, *p);
    if (a->factor)
        balance<<<heads_of(a), THREADS, 0, stream>>>(*a, *p);
    code_prompts<<<grid_of(a, 2 * a->map.n_kv_heads), THREADS, 0, stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_lower_round(const kvd_lower_args *a, const int32_t *q_len, int32_t most,
                                       cudaStream_t stream)
{
    if (a->n < 1 || a->n > 65535 || !q_len || most < 1 || !a->rows)
        return cudaErrorInvalidValue;
    const int vectors = (most + WARPS - 1) / WARPS;
    dim3 grid = grid_of(a, 2 * a->map.n_kv_heads);
    grid.x = (int)grid.x < vectors ? grid.x : (unsigned)vectors;
    round_rows<<<grid, THREADS, 0, stream>>>(*a, q_len, most);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_lower_restore(const kvd_lower_args *a, cudaStream_t stream)
{
    restore<<<grid_of(a, 2 * a->map.n_kv_heads), THREADS, 0, stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_lower_steps(const kvd_lower_args *a, const void *q, const float *lse,
                                       cudaStream_t stream)
{
    observe<<<grid_of(a, a->map.n_kv_heads), THREADS, 0, stream>>>(
        *a, static_cast<const uint16_t *>(q), lse);
    lower<<<heads_of(a), THREADS, 0, stream>>>(*a);
    return cudaGetLastError();
}
