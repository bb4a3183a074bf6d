/* Kernel for y = x W^T, with a weight matrix W and up to 8 rows (tokens) in x. It takes as long as
 * reading W.
 *
 * Each thread block (CTA) multiplies 16 rows of W at a time. Each of its 8 warps multiplies blocks
 * of 64 columns of these rows. */
#include "engine/cuda/few_rows.h"

#include "common/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "model/pass/cuda/rows.cuh"

namespace
{

enum {
    WARPS = 8,
    THREADS = 32 * WARPS,
    TILE = 16,
    SLAB = 64,
    SLAB_BYTES = TILE * SLAB * 2,
    MOST_PARTS = 8,
    /* distance in shared memory between the sums of two tokens: 16 sums and 4 unused floats */
    SUM_PITCH = 20,
    SUMS = KVD_FEW_ROWS * SUM_PITCH
};

struct params {
    kvd_few_rows a;
    /* Sizes: n tokens; `in` columns and `out` rows of W; `slabs` of 64 columns and `tiles` of 16
     * rows; `pitch` bytes between rows of x in shared memory. */
    int n, in, out, slabs, tiles, pitch;
    /* index of the first column of the weight matrix W that this launch multiplies */
    size_t first;
    /* number of blocks of 128 columns that this launch multiplies, if W has 4-bit weights */
    int units;
};

constexpr __host__ __device__ bool is_gated(int kind)
{
    return kind == KVD_FEW_SWIGLU || kind == KVD_FEW_GEGLU_TANH;
}

/* Returns the row of W that is row i of a tile. In a gated layer, W is the gate matrix above the up
 * matrix, and a tile has 8 rows of each. */
__device__ __forceinline__ int row_of(bool gated, int out, int tile, int i)
{
    if (gated)
        return min(tile * (TILE / 2) + i % (TILE / 2), out - 1) + (i < TILE / 2 ? 0 : out);
    return min(tile * TILE + i, out - 1);
}

template <int KIND>
__device__ __forceinline__ void fetch(const params &p, int tile, int slab, uint32_t stage, int lane)
{
    const int piece = lane % 8, column = slab * SLAB + 8 * piece;
#pragma unroll
    for (int i = lane / 8; i < TILE; i += 4) {
        const uint16_t *from = static_cast<const uint16_t *>(p.a.w) + p.first +
                               (size_t)row_of(is_gated(KIND), p.out, tile, i) * p.a.in +
                               (column < p.in ? column : 0);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                         stage + (uint32_t)(i * 2 * SLAB + ((piece ^ i % 8) * 16))),
                     "l"(from), "r"(column < p.in ? 16 : 0)
                     : "memory");
    }
}

struct place {
    int tile, slab;
    __device__ __forceinline__ void next(int slabs, int warp)
    {
        slab += WARPS;
        if (slab >= slabs) {
            slab = warp;
            tile += (int)gridDim.x;
        }
    }
};

/* Copies the input x (p.a.x), one row per token, to shared memory. */
__device__ __forceinline__ void copy_rows(const params &p, char *to)
{
    enum { TOGETHER = 8 };
    const int pieces = p.slabs * (SLAB / 8), all = p.n * pieces;
    for (int first = (int)threadIdx.x; first < all; first += TOGETHER * THREADS) {
        uint4 v[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int k = first + i * THREADS, row = k / pieces, column = 8 * (k % pieces);
            v[i] = make_uint4(0, 0, 0, 0);
            if (k < all && column < p.in)
                v[i] = __ldcg(reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(p.a.x) +
                                                              p.first + (size_t)row * p.a.in +
                                                              column));
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int k = first + i * THREADS;
            if (k < all)
                *reinterpret_cast<uint4 *>(to + k / pieces * p.pitch + k % pieces * 16) = v[i];
        }
    }
}

enum { TOGETHER = 4 };

__device__ __forceinline__ void load_gain(const params &p, int first, int step,
                                          float4 (&g)[TOGETHER])
{
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
        const int k = first + i * step;
        g[i] = k < p.in ? __ldg(reinterpret_cast<const float4 *>(p.a.gain + k))
                        : make_float4(0, 0, 0, 0);
    }
}

/* group of threads that together compute the norm of one row */
struct team {
    int row, first, step;
    __device__ __forceinline__ explicit team(const params &p)
    {
        const int size = THREADS / (p.n <= 1 ? 1 : p.n <= 2 ? 2 : p.n <= 4 ? 4 : 8);
        row = (int)threadIdx.x / size;
        first = 4 * ((int)threadIdx.x % size);
        step = 4 * size;
    }
};

/* Writes the residual stream times the gain of its RMS norm to `to`, and 1 / RMS of each row to
 * `scale`. Ends with a barrier of the CTA. */
__device__ __forceinline__ void norm_rows(const params &p, const team &t, float4 (&g)[TOGETHER],
                                          char *to, float *scale, float *part)
{
    float sum = 0;
    bool wrong = false;
    for (int first = t.first; t.row < p.n && first < p.slabs * SLAB; first += TOGETHER * t.step) {
        float4 v[TOGETHER];
        if (first != t.first)
            load_gain(p, first, t.step, g);
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int k = first + i * t.step;
            v[i] = make_float4(0, 0, 0, 0);
            if (k < p.in)
                v[i] = __ldcg(
                    reinterpret_cast<const float4 *>(p.a.residual + (size_t)t.row * p.in + k));
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int k = first + i * t.step;
            const float x[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
            wrong |= any_not_finite(x);
            sum += (x[0] * x[0] + x[1] * x[1]) + (x[2] * x[2] + x[3] * x[3]);
            if (k < p.slabs * SLAB)
                *reinterpret_cast<uint2 *>(to + t.row * p.pitch + 2 * k) =
                    make_uint2(::pack<true>(x[0] * g[i].x, x[1] * g[i].y),
                               ::pack<true>(x[2] * g[i].z, x[3] * g[i].w));
        }
    }
    if (wrong && blockIdx.x == 0)
        report_bad(p.a.bad, p.a.stage, (size_t)t.row);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = sum;
    __syncthreads();
    if ((int)threadIdx.x < p.n) {
        const int warps = t.step / 4 / 32;
        float s = 0;
        for (int w = 0; w < warps; w++)
            s += part[(int)threadIdx.x * warps + w];
        scale[threadIdx.x] = 1.0f / sqrtf(s / (float)p.in + (float)p.a.eps);
    }
    __syncthreads();
}

__device__ __forceinline__ float total(const float *sums, int n, int row)
{
    float s = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        s += sums[w * SUMS + n * SUM_PITCH + row];
    return s;
}

template <int KIND>
__device__ __forceinline__ void put(const params &p, int tile, const float *sums,
                                    const float *scale)
{
    constexpr int ROWS = is_gated(KIND) ? TILE / 2 : TILE;
    const int n = (int)threadIdx.x / ROWS, i = (int)threadIdx.x % ROWS, row = tile * ROWS + i;
    if (n >= p.n || row >= p.out)
        return;
    const float by = p.a.x ? 1.0f : scale[n], s = total(sums, n, i) * by;
    const size_t at = (size_t)n * p.out + row;
    if (KIND == KVD_FEW_ADD) {
        /* The returned value of atomicAdd is not used, so the thread does not wait for the
         * addition. */
        atomicAdd(static_cast<float *>(p.a.y) + at, s);
    } else if (KIND == KVD_FEW_LOGITS) {
        static_cast<float *>(p.a.y)[at] = s;
    } else if (is_gated(KIND)) {
        /* Rounds the products with the gate and up matrices to bf16, as separate matrix products
         * would. */
        const float gate = rounded<bf16>(s), up = rounded<bf16>(total(sums, n, i + TILE / 2) * by);
        static_cast<uint16_t *>(p.a.y)[at] =
            bf16::narrow((KIND == KVD_FEW_SWIGLU ? silu(gate) : gelu_tanh(gate)) * up);
    } else {
        static_cast<uint16_t *>(p.a.y)[at] = bf16::narrow(s);
    }
}

/* Kernel for bf16 weights. Shared memory holds, in this order: a ring buffer of W per warp, x, two
 * buffers of sums, and 1 / RMS of each row. */
template <int KIND, int STAGES>
__global__ void __launch_bounds__(THREADS) few_rows_kernel(const __grid_constant__ params p)
{
    extern __shared__ __align__(128) char smem[];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    char *const x = smem + WARPS * STAGES * SLAB_BYTES;
    float *const sums = reinterpret_cast<float *>(x + p.n * p.pitch);
    float *const scale = sums + 2 * WARPS * SUMS, *const part = scale + KVD_FEW_ROWS;
    const uint32_t ring =
        (uint32_t)__cvta_generic_to_shared(smem) + (uint32_t)(warp * STAGES * SLAB_BYTES);

    place ahead = {(int)blockIdx.x, warp};
    if (warp >= p.slabs)
        ahead.tile = p.tiles;
    for (int s = 0; s < STAGES - 1; s++) {
        if (ahead.tile < p.tiles) {
            fetch<KIND>(p, ahead.tile, ahead.slab, ring + (uint32_t)(s * SLAB_BYTES), lane);
            ahead.next(p.slabs, warp);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    const team mine_of(p);
    float4 gain[TOGETHER];
    if (!p.a.x)
        load_gain(p, mine_of.first, mine_of.step, gain);
    /* The kernel can start before preceding kernels end. Up to here it reads only weights, which no
     * kernel writes. */
    kvd_wait_preceding(p.a.began);
    if (p.a.x) {
        copy_rows(p, x);
        __syncthreads();
    } else {
        norm_rows(p, mine_of, gain, x, scale, part);
    }

    const int a_row = lane % 16, a_piece = lane / 16;
    const uint32_t a_at = ring + (uint32_t)(a_row * 2 * SLAB);
    const uint32_t x_at = (uint32_t)__cvta_generic_to_shared(x) +
                          (uint32_t)(min(lane % 8, p.n - 1) * p.pitch + lane / 8 * 16);
    int stage = 0, buffer = 0;
    for (int tile = (int)blockIdx.x; tile < p.tiles; tile += (int)gridDim.x) {
        float acc[4] = {0, 0, 0, 0};
        for (int slab = warp; slab < p.slabs; slab += WARPS) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            __syncwarp();
            /* The oldest block of W in the ring buffer has been multiplied, so the next block may
             * overwrite it. */
            if (ahead.tile < p.tiles) {
                const int to = stage == 0 ? STAGES - 1 : stage - 1;
                fetch<KIND>(p, ahead.tile, ahead.slab, ring + (uint32_t)(to * SLAB_BYTES), lane);
                ahead.next(p.slabs, warp);
            }
            asm volatile("cp.async.commit_group;" ::: "memory");
            uint32_t b[2][4];
            ldmatrix(x_at + (uint32_t)(slab * 2 * SLAB), b[0]);
            ldmatrix(x_at + (uint32_t)(slab * 2 * SLAB + SLAB), b[1]);
#pragma unroll
            for (int k = 0; k < SLAB / 16; k++) {
                uint32_t w[4];
                ldmatrix(
                    a_at + (uint32_t)(stage * SLAB_BYTES + (((2 * k + a_piece) ^ a_row % 8) * 16)),
                    w);
                mma_in_order<true>(acc, w, b[k / 2][k % 2 * 2], b[k / 2][k % 2 * 2 + 1]);
            }
            stage = stage == STAGES - 1 ? 0 : stage + 1;
        }
        float *const mine = sums + (buffer * WARPS + warp) * SUMS;
#pragma unroll
        for (int e = 0; e < 4; e++)
            mine[(2 * (lane % 4) + e % 2) * SUM_PITCH + lane / 4 + e / 2 * 8] = acc[e];
        __syncthreads();
        put<KIND>(p, tile, sums + buffer * WARPS * SUMS, scale);
        buffer ^= 1;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* One lane's part of a block of 4-bit weights: the codes, and their scales and zero points. */
struct piece {
    uint4 codes[2];
    uint32_t side[2];
};

__device__ __forceinline__ piece load_piece(const params &p, const place &at, int lane)
{
    const size_t unit =
        (size_t)at.tile * (p.a.in / KVD_FEW_UNIT) + p.first / KVD_FEW_UNIT + at.slab;
    const uint4 *const codes = static_cast<const uint4 *>(p.a.codes.codes) + unit * 64 + lane;
    const uint32_t *const side =
        static_cast<const uint32_t *>(p.a.codes.sides) + unit * TILE + lane / 4;
    return {{__ldcs(codes), __ldcs(codes + 32)}, {__ldcs(side), __ldcs(side + 8)}};
}

/* Converts the eight 4-bit codes in `word` to bf16. The bf16 with bits 0x4300 + code is 128 +
 * code. */
__device__ __forceinline__ void decode(uint32_t word, uint32_t (&a)[4])
{
    const __nv_bfloat162 by = __floats2bfloat162_rn(128, 128);
#pragma unroll
    for (int r = 0; r < 4; r++) {
        uint32_t x = (word >> 4 * r & 0x000f000fu) | 0x43004300u;
        const __nv_bfloat162 y = __hsub2(*reinterpret_cast<const __nv_bfloat162 *>(&x), by);
        a[r] = *reinterpret_cast<const uint32_t *>(&y);
    }
}

/* Multiplies 4-bit weights by x and adds the products to acc. A weight is step * code + zero, so a
 * product is step * sum(code * x) + zero * sum(x). */
__device__ __forceinline__ void multiply(const piece &w, uint32_t x_at, float (&acc)[4])
{
    const uint32_t ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
    const uint32_t word[8] = {w.codes[0].x, w.codes[0].y, w.codes[0].z, w.codes[0].w,
                              w.codes[1].x, w.codes[1].y, w.codes[1].z, w.codes[1].w};
    float of_codes[4] = {0, 0, 0, 0}, of_ones[4] = {0, 0, 0, 0};
#pragma unroll
    for (int k = 0; k < 8; k += 2) {
        uint32_t b[4], a[4];
        ldmatrix(x_at + (uint32_t)(k * 32), b);
        decode(word[k], a);
        mma_in_order<true>(of_codes, a, b[0], b[1]);
        mma_in_order<true>(of_ones, ones, b[0], b[1]);
        decode(word[k + 1], a);
        mma_in_order<true>(of_codes, a, b[2], b[3]);
        mma_in_order<true>(of_ones, ones, b[2], b[3]);
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const float2 side = __half22float2(*reinterpret_cast<const __half2 *>(&w.side[e / 2]));
        acc[e] += side.x * of_codes[e] + side.y * of_ones[e];
    }
}

enum { AHEAD = 3 /* units that a warp loads ahead */ };

/* Kernel that multiplies at most 8 rows (tokens) by a matrix of 4-bit weights. KIND selects the
 * output, for example KVD_FEW_LOGITS. */
template <int KIND>
__global__ void __launch_bounds__(THREADS, 2) few_codes_kernel(const __grid_constant__ params p)
{
    extern __shared__ __align__(128) char x[];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float *const sums = reinterpret_cast<float *>(x + p.n * p.pitch);
    float *const scale = sums + 2 * WARPS * SUMS, *const part = scale + KVD_FEW_ROWS;
    place ahead = {(int)blockIdx.x, warp};
    if (warp >= p.units)
        ahead.tile = p.tiles;
    piece next[AHEAD] = {};
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (ahead.tile < p.tiles) {
            next[i] = load_piece(p, ahead, lane);
            ahead.next(p.units, warp);
        }
    const team mine_of(p);
    float4 gain[TOGETHER];
    if (!p.a.x)
        load_gain(p, mine_of.first, mine_of.step, gain);
    kvd_wait_preceding(p.a.began);
    if (p.a.x) {
        copy_rows(p, x);
        __syncthreads();
    } else {
        norm_rows(p, mine_of, gain, x, scale, part);
    }
    const uint32_t x_at = (uint32_t)__cvta_generic_to_shared(x) +
                          (uint32_t)(min(lane % 8, p.n - 1) * p.pitch + lane / 8 * 16);
    int buffer = 0;
    for (int tile = (int)blockIdx.x; tile < p.tiles; tile += (int)gridDim.x) {
        float acc[4] = {0, 0, 0, 0};
        for (int unit = warp; unit < p.units; unit += WARPS) {
            const piece now = next[0];
#pragma unroll
            for (int i = 0; i + 1 < AHEAD; i++)
                next[i] = next[i + 1];
            if (ahead.tile < p.tiles) {
                next[AHEAD - 1] = load_piece(p, ahead, lane);
                ahead.next(p.units, warp);
            }
            multiply(now, x_at + (uint32_t)(unit * 2 * KVD_FEW_UNIT), acc);
        }
        float *const mine = sums + (buffer * WARPS + warp) * SUMS;
#pragma unroll
        for (int e = 0; e < 4; e++)
            mine[(2 * (lane % 4) + e % 2) * SUM_PITCH + lane / 4 + e / 2 * 8] = acc[e];
        __syncthreads();
        put<KIND>(p, tile, sums + buffer * WARPS * SUMS, scale);
        buffer ^= 1;
    }
}

/* Number of threads that quantise a tile: 16 for each row, with 8 columns each. */
enum { PACKERS = 16 * TILE };

/* Returns the index of the 32-bit word that contains the 4-bit code of a weight. *shift: position
 * of the code's first bit in this word. */
__device__ __forceinline__ int word_of(int row, int column, int *shift)
{
    const int step = column / 16, c = column % 16, lane = row % 8 * 4 + c % 8 / 2,
              r = row / 8 + c / 8 * 2;
    *shift = 4 * r + c % 2 * 16;
    return (step / 4 * 32 + lane) * 4 + step % 4;
}

__global__ void __launch_bounds__(PACKERS)
    pack_codes(const uint16_t *w, int out, size_t in, int gated, kvd_few_codes to)
{
    __shared__ uint32_t word[KVD_FEW_UNIT * TILE / 8];
    const int row = (int)threadIdx.x / 16, c = (int)threadIdx.x % 16 * 8;
    const size_t unit = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
    const uint16_t *const from = w + (size_t)row_of(gated, out, (int)blockIdx.y, row) * in +
                                 (size_t)blockIdx.x * KVD_FEW_UNIT + c;
    float x[8], low = INFINITY, high = -INFINITY;
    for (int i = 0; i < 8; i++) {
        x[i] = bf16::widen(from[i]);
        low = fminf(low, x[i]);
        high = fmaxf(high, x[i]);
    }
    for (int i = 1; i < 16; i *= 2) {
        low = fminf(low, __shfl_xor_sync(0xffffffffu, low, i));
        high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, i));
    }
    const float step = f16::widen(f16::narrow((high - low) / 15)),
                zero = f16::widen(f16::narrow(low));
    word[threadIdx.x] = 0;
    __syncthreads();
    for (int i = 0; i < 8; i++) {
        const float q = step > 0 ? rintf((x[i] - zero) / step) : 0;
        int shift;
        const int at = word_of(row, c + i, &shift);
        atomicOr(&word[at], (uint32_t)fminf(fmaxf(q, 0), 15) << shift);
    }
    if (c == 0)
        static_cast<uint32_t *>(to.sides)[unit * TILE + row] =
            (uint32_t)f16::narrow(step) | (uint32_t)f16::narrow(zero) << 16;
    __syncthreads();
    static_cast<uint32_t *>(to.codes)[unit * PACKERS + threadIdx.x] = word[threadIdx.x];
}

__global__ void __launch_bounds__(PACKERS)
    restore_codes(kvd_few_codes from, int out, size_t in, int gated, uint16_t *w)
{
    const int row = (int)threadIdx.x / 16, c = (int)threadIdx.x % 16 * 8, tile = (int)blockIdx.y;
    const size_t unit = (size_t)tile * gridDim.x + blockIdx.x;
    const uint32_t *const word = static_cast<const uint32_t *>(from.codes) + unit * PACKERS;
    const uint32_t side = static_cast<const uint32_t *>(from.sides)[unit * TILE + row];
    const float step = f16::widen((uint16_t)side), zero = f16::widen((uint16_t)(side >> 16));
    if ((gated ? tile * (TILE / 2) + row % (TILE / 2) : tile * TILE + row) >= out)
        return;
    uint16_t *const to =
        w + (size_t)row_of(gated, out, tile, row) * in + (size_t)blockIdx.x * KVD_FEW_UNIT + c;
    for (int i = 0; i < 8; i++) {
        int shift;
        const int at = word_of(row, c + i, &shift);
        to[i] = bf16::narrow(step * (float)(word[at] >> shift & 15) + zero);
    }
}

size_t shared_bytes(int stages, size_t n, size_t pitch)
{
    return (size_t)(WARPS * SLAB_BYTES) * stages + n * pitch +
           sizeof(float) * (size_t)(2 * WARPS * SUMS + KVD_FEW_ROWS + WARPS);
}

size_t pitch_of(size_t in)
{
    return ceil_div(in, SLAB) * SLAB * 2 + 16;
}

/* Possible lengths of a warp's ring buffer, in blocks of the weight matrix. The longest ring buffer
 * that fits into shared memory is used. */
enum { LONG_RING = 10, RING = 7, SHORT_RING = 5 };

template <int KIND, int STAGES>
cudaError_t launch(const params &p, int n_ctas, int most, int major, cudaStream_t stream)
{
    /* The CTA asks for more than half of a multiprocessor's shared memory, so that only one CTA
     * runs on a multiprocessor. */
    const size_t need = shared_bytes(STAGES, p.a.n, (size_t)p.pitch),
                 half = (size_t)most / 2 + 1024;
    const size_t bytes = need > half ? need : half;
    return kvd_launch_early(major >= 9, few_rows_kernel<KIND, STAGES>, dim3(n_ctas), THREADS, bytes,
                            stream, p);
}

struct machine {
    /* number of multiprocessors, major compute capability, and largest shared memory of a CTA in
     * bytes */
    int sms, major, most;
};

template <int KIND> cudaError_t launch_codes(const params &p, const machine &m, cudaStream_t stream)
{
    const size_t bytes = shared_bytes(0, p.a.n, (size_t)p.pitch);
    const int share = bytes <= (size_t)m.most / 2 - 1024 ? 2 : 1,
              n_ctas = p.tiles < share * m.sms ? p.tiles : share * m.sms;
    return kvd_launch_early(m.major >= 9, few_codes_kernel<KIND>, dim3(n_ctas), THREADS, bytes,
                            stream, p);
}

template <int KIND> cudaError_t launch(const params &p, const machine &m, cudaStream_t stream)
{
    if (p.a.codes.codes)
        return launch_codes<KIND>(p, m, stream);
    const int n_ctas = p.tiles < m.sms ? p.tiles : m.sms;
    if (shared_bytes(LONG_RING, p.a.n, (size_t)p.pitch) <= (size_t)m.most)
        return launch<KIND, LONG_RING>(p, n_ctas, m.most, m.major, stream);
    if (shared_bytes(RING, p.a.n, (size_t)p.pitch) <= (size_t)m.most)
        return launch<KIND, RING>(p, n_ctas, m.most, m.major, stream);
    return launch<KIND, SHORT_RING>(p, n_ctas, m.most, m.major, stream);
}

} // namespace

/* Returns how many columns each launch multiplies if `parts` launches divide `in` columns of W. */
static size_t columns_of(size_t in, size_t parts)
{
    return ceil_div(in, parts * KVD_FEW_UNIT) * KVD_FEW_UNIT;
}

/* Returns how many kernel launches must share the columns of W, so that the part of x for one
 * launch fits into shared memory. Returns 0 if the kernel does not support the sizes. */
static size_t parts_of(kvd_few_kind kind, size_t n, size_t in)
{
    int device = 0, most = 0;
    if (n < 1 || n > KVD_FEW_ROWS || in < 8 || in % 8 || in >= 1 << 20 ||
        cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
            cudaSuccess)
        return 0;
    const bool sums = kind == KVD_FEW_ADD || kind == KVD_FEW_PUT;
    for (size_t parts = 1; parts <= (sums ? MOST_PARTS : 1); parts++)
        if (shared_bytes(SHORT_RING, n, pitch_of(columns_of(in, parts))) <= (size_t)most)
            return parts;
    return 0;
}

extern "C" int kvd_few_rows_take(kvd_few_kind kind, size_t n, size_t in)
{
    return parts_of(kind, n, in) > 0;
}

static cudaError_t run_part(const params &p, const machine &m, cudaStream_t stream)
{
    switch (p.a.kind) {
    case KVD_FEW_STORE:
        return launch<KVD_FEW_STORE>(p, m, stream);
    case KVD_FEW_ADD:
        return launch<KVD_FEW_ADD>(p, m, stream);
    case KVD_FEW_SWIGLU:
        return launch<KVD_FEW_SWIGLU>(p, m, stream);
    case KVD_FEW_GEGLU_TANH:
        return launch<KVD_FEW_GEGLU_TANH>(p, m, stream);
    default: /* KVD_FEW_LOGITS and KVD_FEW_PUT */
        return launch<KVD_FEW_LOGITS>(p, m, stream);
    }
}

extern "C" cudaError_t kvd_few_rows_run(const kvd_few_rows *a, cudaStream_t stream)
{
    int device = 0;
    machine m = {};
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&m.sms, cudaDevAttrMultiProcessorCount, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&m.major, cudaDevAttrComputeCapabilityMajor, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&m.most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    const size_t parts = parts_of(a->kind, a->n, a->in);
    if (e != cudaSuccess || !parts || (a->codes.codes && a->in % KVD_FEW_UNIT))
        return e != cudaSuccess ? e : cudaErrorInvalidValue;
    const size_t columns = columns_of(a->in, parts);
    params p;
    p.a = *a;
    p.n = (int)a->n;
    p.out = (int)a->out;
    p.tiles = (int)ceil_div(a->out, is_gated(a->kind) ? TILE / 2 : TILE);
    for (p.first = 0; p.first < a->in && e == cudaSuccess; p.first += columns) {
        p.in = (int)smaller(columns, a->in - p.first);
        p.slabs = (int)ceil_div((size_t)p.in, SLAB);
        p.units = p.in / KVD_FEW_UNIT;
        p.pitch = (int)pitch_of((size_t)p.in);
        e = run_part(p, m, stream);
        p.a.began = NULL;
        /* The first launch stores its product. Later launches add theirs to it. */
        p.a.kind = p.a.kind == KVD_FEW_PUT ? KVD_FEW_ADD : p.a.kind;
    }
    return e;
}

extern "C" size_t kvd_few_codes_bytes(size_t rows, size_t in, size_t *sides)
{
    const size_t units = ceil_div(rows, TILE) * (in / KVD_FEW_UNIT);
    *sides = units * TILE * sizeof(uint32_t);
    return units * PACKERS * sizeof(uint32_t);
}

static dim3 packing_grid(size_t rows, size_t in)
{
    return dim3((in / KVD_FEW_UNIT), ceil_div(rows, TILE));
}

extern "C" cudaError_t kvd_few_codes_pack(const void *w, size_t rows, size_t in, bool gated,
                                          const kvd_few_codes *to, cudaStream_t stream)
{
    if (in % KVD_FEW_UNIT || rows < 1 || (gated && rows % 2) || ceil_div(rows, TILE) > 65535)
        return cudaErrorInvalidValue;
    pack_codes<<<packing_grid(rows, in), PACKERS, 0, stream>>>(
        static_cast<const uint16_t *>(w), (int)(gated ? rows / 2 : rows), in, gated, *to);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_few_codes_restore(const kvd_few_codes *from, size_t rows, size_t in,
                                             bool gated, void *w, cudaStream_t stream)
{
    if (in % KVD_FEW_UNIT || rows < 1 || (gated && rows % 2) || ceil_div(rows, TILE) > 65535)
        return cudaErrorInvalidValue;
    restore_codes<<<packing_grid(rows, in), PACKERS, 0, stream>>>(
        *from, (int)(gated ? rows / 2 : rows), in, gated, static_cast<uint16_t *>(w));
    return cudaGetLastError();
}
