/*
 * RoPE, rotation, cut and store of the new tokens' Q, K and V, in one launch.
 *
 *   Q[t][h] = cut(rope(x_q[t][h]) R_qk[g])    K[t][g] = cut(rope(x_k[t][g]) R_qk[g])    V[t][g] = cut(x_v[t][g] [R_v[g]])
 *
 * Bound by memory: per token it reads (n_heads + n_kv_heads) d_head + sum of d_v (with R_v: n_kv_heads d_head) elements and writes
 * q_pitch + sum of (d_qk + d_v), 2 bytes each; the product costs 2 d_head (q_pitch + sum of d_qk) FLOP per token, which tensor cores
 * do in the shadow of the loads.
 *
 * A warp takes 16 rows of one or two heads. x goes from memory to registers in 16-byte pieces: lane (r, c) of the 8 x 4 holds
 * columns 32 s + 8 c .. + 7 of rows r and r + 8. mma.sync wants lane c to hold columns 2c, 2c+1, 2c+8, 2c+9 of each step of 16; since
 * a sum does not care about the order of its terms as long as both factors agree, the columns keep their places and the rows of R
 * are gathered in the same order by ldmatrix. RoPE therefore works on registers too, and no shared memory holds x.
 * The result leaves in the order of the layout: a fragment of 8 x 8 is 128 contiguous bytes.
 *
 * Prefill grid: (KV head, 64 rows of one request); 8 warps: 4 times 16 rows, units (pairs of query heads, K, V) over 2. K and V rows are
 * counted from the group of 8 in which the first new token lies, so that each group of the cache has one owner.
 * Decode grid: (KV head, 16 requests, 32 columns of R); units over 8 warps.
 * Each row's sum runs in one fixed order, so that a token's bits do not depend on what it was appended with.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/append.h"

extern "C" {
#include "common/half.h"
}

namespace
{

enum {
    ROW_WARPS = 4, /* prefill: warps of 16 rows, times PARTS warps that share the units */
    PARTS = 1,
    TILE = 16 * ROW_WARPS,
    PREFILL_THREADS = 32 * ROW_WARPS * PARTS,
    PREFILL_CTAS = 3, /* on an SM */
    DECODE_THREADS = 256,
    DECODE_ROWS = 16,
    DECODE_COLUMNS = 32
};

/* Bytes of a row of R in shared memory: whole rounds of the banks. */
__host__ __device__ constexpr int r_pitch(bool decode)
{
    return decode ? 128 : 2 * KVD_WIDTH_MAX;
}

/* How RoPE is done: which lane holds the partner of an element. */
enum rope_kind {
    ROPE_NONE,
    ROPE_PAIRS,    /* (2i, 2i+1): in the same register                              */
    ROPE_HALF_128, /* (i, i + 64): two slabs further, in the same lane              */
    ROPE_HALF,     /* (i, i + half), half a multiple of 8: 16 bytes are read again  */
    ROPE_ANY,      /* element by element                                            */
    ROPE_GIVEN     /* template argument: params say which at run time               */
};

struct params {
    kvd_append_args a;
    rope_kind rope;
    int32_t x_pitch;
};

template <bool BF> __device__ __forceinline__ float2 unpack(uint32_t w)
{
    if (BF)
        return make_float2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u));
    return __half22float2(*reinterpret_cast<__half2 *>(&w));
}

template <bool BF> __device__ __forceinline__ uint32_t pack(float lo, float hi)
{
    if (BF) {
        __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
        return *reinterpret_cast<uint32_t *>(&v);
    }
    __half2 v = __floats2half2_rn(lo, hi);
    return *reinterpret_cast<uint32_t *>(&v);
}

template <bool BF> __device__ __forceinline__ float one(const uint16_t *x)
{
    return unpack<BF>(__ldg(x)).x;
}

template <bool BF>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if (BF)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                     "{%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                     "{%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four 8 x 8 blocks of R, transposed: B of two steps of 16. */
__device__ __forceinline__ void read_r(uint32_t from, uint32_t (&b)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(from));
}

/* What a lane knows of the 16 rows that its warp works on: rows r and r + 8. */
struct unit {
    const uint16_t *x[2]; /* the head's d_head elements of the row; NULL where there is no token */
    uint16_t *to[2];      /* column 0 of the row in Q, K or V; NULL: nothing is written          */
    int pos[2];           /* position, for RoPE                                                  */
    int d;                /* width kept                                                          */
    int columns_8;        /* elements from one run of 8 columns to the next, at the destination  */
    bool two;             /* a second head follows: x + d_head, to + second                      */
    size_t second;
    bool rope;
    bool turns;   /* R is applied                                                        */
    uint32_t r;   /* where it lies in shared memory                                      */
    bool zero[2]; /* decode: the token starts a group of 8, whose other rows become zero */
};

/* 16 rows of one or two heads in the registers of a warp. Slab s is columns 32 s .. + 31; lane c holds columns 32 s + 8 c .. + 7 as the
 * words 0 .. 3, of rows r (i = 0) and r + 8 (i = 1). Words 2w and 2w + 1 of both rows are the A operand of the w-th mma of the slab. */
template <int HEADS, int SLABS> struct rows {
    uint32_t f[HEADS][SLABS][2][4];
    __device__ __forceinline__ uint32_t &word(int h, int s, int i, int w)
    {
        return f[h][s][w / 2][w % 2 * 2 + i];
    }
};

template <int HEADS, int SLABS, int ROPE>
__device__ __forceinline__ void load(const params &p, const unit &u, int c, rows<HEADS, SLABS> &a)
{
    const int kind = ROPE == ROPE_GIVEN ? (int)p.rope : ROPE;
    /* Without rotation only what is kept is read, and what RoPE turns into it. */
    const int needed = (u.turns || (u.rope && kind == ROPE_HALF_128) ? p.a.d_head : u.d) - 8 * c;
#pragma unroll
    for (int h = 0; h < HEADS; h++)
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int s = 0; s < SLABS; s++) {
                uint4 v = make_uint4(0, 0, 0, 0);
                if (u.x[i] && 32 * s < needed && (h == 0 || u.two))
                    v = __ldg(reinterpret_cast<const uint4 *>(u.x[i] + h * p.a.d_head + 8 * c) + 4 * s);
                a.word(h, s, i, 0) = v.x;
                a.word(h, s, i, 1) = v.y;
                a.word(h, s, i, 2) = v.z;
                a.word(h, s, i, 3) = v.w;
            }
}

/* (x, y) of the angle's pair: x' = x cos - y sin. */
template <bool BF>
__device__ __forceinline__ uint32_t turn(uint32_t x, uint32_t y, float c0, float s0, float c1, float s1)
{
    const float2 a = unpack<BF>(x), b = unpack<BF>(y);
    return pack<BF>(a.x * c0 - b.x * s0, a.y * c1 - b.y * s1);
}

__device__ __forceinline__ void read8(const float *from, float (&v)[8])
{
    const float4 a = __ldg(reinterpret_cast<const float4 *>(from)),
                 b = __ldg(reinterpret_cast<const float4 *>(from) + 1);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

template <bool BF, int HEADS, int SLABS, int ROPE>
__device__ __forceinline__ void rope(const params &p, const unit &u, int c, rows<HEADS, SLABS> &a)
{
    const int kind = ROPE == ROPE_GIVEN ? (int)p.rope : ROPE;
    const int dim = kind == ROPE_HALF_128 ? 128 : p.a.rope_dim, half = dim / 2;
    if (!u.rope || kind == ROPE_NONE)
        return;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (!u.x[i])
            continue;
        const float *cos = p.a.rope_cos + (size_t)u.pos[i] * (size_t)half,
                    *sin = p.a.rope_sin + (size_t)u.pos[i] * (size_t)half;
        float co[8], si[8];
        if constexpr (SLABS == 4 && (ROPE == ROPE_HALF_128 || ROPE == ROPE_GIVEN))
            if (kind == ROPE_HALF_128) {
#pragma unroll
                for (int s = 0; s < 2; s++) {
                    read8(cos + 32 * s + 8 * c, co);
                    read8(sin + 32 * s + 8 * c, si);
#pragma unroll
                    for (int h = 0; h < HEADS; h++)
#pragma unroll
                        for (int w = 0; w < 4; w++) {
                            uint32_t &lo = a.word(h, s, i, w), &hi = a.word(h, s + 2, i, w);
                            const uint32_t x = lo, y = hi;
                            lo = turn<BF>(x, y, co[2 * w], si[2 * w], co[2 * w + 1], si[2 * w + 1]);
                            hi = turn<BF>(y, x, co[2 * w], -si[2 * w], co[2 * w + 1], -si[2 * w + 1]);
                        }
                }
            }
#pragma unroll
        for (int s = 0; s < SLABS; s++) {
            const int col = 32 * s + 8 * c;
            if (kind == ROPE_HALF_128 || col >= dim)
                continue;
            if (kind == ROPE_PAIRS) {
                const float4 cc = __ldg(reinterpret_cast<const float4 *>(cos + col / 2)),
                             ss = __ldg(reinterpret_cast<const float4 *>(sin + col / 2));
                const float cs[4] = {cc.x, cc.y, cc.z, cc.w}, sn[4] = {ss.x, ss.y, ss.z, ss.w};
#pragma unroll
                for (int h = 0; h < HEADS; h++)
#pragma unroll
                    for (int w = 0; w < 4; w++) {
                        uint32_t &xy = a.word(h, s, i, w);
                        const float2 v = unpack<BF>(xy);
                        xy = pack<BF>(v.x * cs[w] - v.y * sn[w], v.y * cs[w] + v.x * sn[w]);
                    }
            } else if (kind == ROPE_HALF) {
                const bool low = col < half;
                read8(cos + (low ? col : col - half), co);
                read8(sin + (low ? col : col - half), si);
#pragma unroll
                for (int h = 0; h < HEADS; h++) {
                    if (h && !u.two)
                        continue;
                    const uint4 other = __ldg(reinterpret_cast<const uint4 *>(
                        u.x[i] + h * p.a.d_head + (low ? col + half : col - half)));
#pragma unroll
                    for (int w = 0; w < 4; w++) {
                        uint32_t &x = a.word(h, s, i, w);
                        const float s0 = low ? si[2 * w] : -si[2 * w],
                                    s1 = low ? si[2 * w + 1] : -si[2 * w + 1];
                        const uint32_t y = w == 0 ? other.x : w == 1 ? other.y : w == 2 ? other.z : other.w;
                        x = turn<BF>(x, y, co[2 * w], s0, co[2 * w + 1], s1);
                    }
                }
            } else {
#pragma unroll
                for (int h = 0; h < HEADS; h++) {
                    if (h && !u.two)
                        continue;
                    const uint16_t *x = u.x[i] + h * p.a.d_head;
#pragma unroll
                    for (int w = 0; w < 4; w++) {
                        float v[2];
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            const int k = col + 2 * w + e;
                            v[e] = one<BF>(x + k);
                            if (k < dim) {
                                const bool low = p.a.rope_interleaved ? k % 2 == 0 : k < half;
                                const int f = p.a.rope_interleaved ? k / 2 : low ? k : k - half;
                                const int step = p.a.rope_interleaved ? 1 : half;
                                const float y = one<BF>(low ? x + k + step : x + k - step);
                                v[e] = v[e] * __ldg(cos + f) + (low ? -y : y) * __ldg(sin + f);
                            }
                        }
                        a.word(h, s, i, w) = pack<BF>(v[0], v[1]);
                    }
                }
            }
        }
    }
}

/* Columns first .. first + n - 1 (n a multiple of 16) of the product with R, of which shared memory holds those columns. */
template <bool BF, bool DECODE, int HEADS, int SLABS>
__device__ __forceinline__ void rotate(const unit &u, int lane, int first, int n, const rows<HEADS, SLABS> &a)
{
    const int c = lane % 4, i = lane % 8;
    const uint32_t row = u.r + (uint32_t)(8 * (i / 2) + i % 2 + 2 * (lane / 8)) * r_pitch(DECODE);
#pragma unroll 1
    for (int j = 0; j < n / 8; j += 2) {
        float acc[HEADS][2][4] = {};
        const uint32_t at = row + (uint32_t)((j ^ i) * 16), at1 = row + (uint32_t)(((j + 1) ^ i) * 16);
#pragma unroll
        for (int s = 0; s < SLABS; s++) {
            uint32_t b[2][4];
            read_r(at + (uint32_t)(32 * s * r_pitch(DECODE)), b[0]);
            read_r(at1 + (uint32_t)(32 * s * r_pitch(DECODE)), b[1]);
#pragma unroll
            for (int h = 0; h < HEADS; h++)
#pragma unroll
                for (int w = 0; w < 2; w++)
#pragma unroll
                    for (int jj = 0; jj < 2; jj++)
                        mma<BF>(acc[h][jj], a.f[h][s][w], b[jj][2 * w], b[jj][2 * w + 1]);
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                if (!u.to[k] || (h && !u.two))
                    continue;
                uint16_t *to = u.to[k] + h * u.second + (first / 8 + j) * u.columns_8 + 2 * c;
#pragma unroll
                for (int jj = 0; jj < 2; jj++) {
                    *reinterpret_cast<uint32_t *>(to + jj * u.columns_8) =
                        pack<BF>(acc[h][jj][2 * k], acc[h][jj][2 * k + 1]);
                    if (DECODE && u.zero[k])
                        for (int z = 1; z < 8; z++)
                            *reinterpret_cast<uint32_t *>(to + jj * u.columns_8 + 8 * z) = 0;
                }
            }
    }
}

/* No rotation: the first d columns as they are. */
template <bool DECODE, int HEADS, int SLABS>
__device__ __forceinline__ void cut(const unit &u, int c, rows<HEADS, SLABS> &a)
{
#pragma unroll
    for (int h = 0; h < HEADS; h++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            if (!u.to[k] || (h && !u.two))
                continue;
            uint16_t *to = u.to[k] + h * u.second + c * u.columns_8;
#pragma unroll
            for (int s = 0; s < SLABS; s++)
                if (32 * s + 8 * c < u.d) {
                    *reinterpret_cast<uint4 *>(to + 4 * s * u.columns_8) = make_uint4(
                        a.word(h, s, k, 0), a.word(h, s, k, 1), a.word(h, s, k, 2), a.word(h, s, k, 3));
                    if (DECODE && u.zero[k])
                        for (int z = 1; z < 8; z++)
                            *reinterpret_cast<uint4 *>(to + 4 * s * u.columns_8 + 8 * z) =
                                make_uint4(0, 0, 0, 0);
                }
        }
}

/* Columns first .. first + n - 1 of R [d_head][d] into shared memory; rows from d_head to `rows` become zero. The 16-byte
 * pieces of a row are permuted so that the 8 rows which one ldmatrix reads lie in different banks. */
__device__ __forceinline__ void fetch_r(const void *r, size_t offset, int rows, int d_head, int d, int first,
                                        int n, uint32_t to, int pitch)
{
    const int piece = (int)threadIdx.x % 16;
    if (8 * piece >= n)
        return;
    for (int row = (int)threadIdx.x / 16; row < rows; row += (int)blockDim.x / 16) {
        const uint16_t *from = static_cast<const uint16_t *>(r) + offset;
        const int key = row / 8 % 4 * 2 + row % 2;
        if (row < d_head)
            from += (size_t)row * (size_t)d + (size_t)(first + 8 * piece);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                         to + (uint32_t)(row * pitch + (piece ^ key) * 16)),
                     "l"(from), "r"(row < d_head ? 16 : 0));
    }
}

/* Where position pos of request b lies in the K (or, v_after elements on, V) of head g. */
__device__ __forceinline__ uint16_t *cache_row(const kvd_append_args &a, int b, int pos, int g, int v_after,
                                               int d)
{
    const int page = __ldg(a.page_table + (size_t)b * (size_t)a.max_pages + pos / KVD_PAGE_TOKENS);
    return static_cast<uint16_t *>(a.pool) + (size_t)page * (size_t)a.map.page_elements + a.map.kv_offset[g] +
           v_after + (pos % KVD_PAGE_TOKENS) / 8 * 8 * d + pos % 8 * 8;
}

template <bool BF, bool DECODE, int SLABS, int ROPE>
__global__ void __launch_bounds__(DECODE ? DECODE_THREADS : PREFILL_THREADS, DECODE ? 1
                                                                             : ROPE == ROPE_GIVEN
                                                                                 ? 2
                                                                                 : PREFILL_CTAS)
    append_kernel(const __grid_constant__ params p)
{
    /* Two heads at a time share the angles and the fragments of R; the general forms of RoPE need the registers. */
    constexpr int THREADS = DECODE ? DECODE_THREADS : PREFILL_THREADS;
    constexpr int HEADS = ROPE == ROPE_GIVEN ? 1 : 2;
    extern __shared__ __align__(128) uint8_t smem[];
    const kvd_append_args &a = p.a;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, r = lane / 4, c = lane % 4;
    const int n_kv = a.map.n_kv_heads, group = a.map.group, g = (int)blockIdx.x % n_kv;
    const int d_qk = a.map.d_qk[g], d_v = a.map.d_v[g];
    const int first = DECODE ? (int)blockIdx.z * DECODE_COLUMNS : 0; /* columns of R of this CTA */
    const int n_qk = DECODE ? min(d_qk - first, (int)DECODE_COLUMNS) : d_qk;
    const int n_v = DECODE ? min(d_v - first, (int)DECODE_COLUMNS) : d_v;
    const uint32_t r_qk = (uint32_t)__cvta_generic_to_shared(smem),
                   r_v = r_qk + (uint32_t)(a.r_qk ? 32 * SLABS * r_pitch(DECODE) : 0);

    if (a.r_qk)
        fetch_r(a.r_qk, (size_t)a.d_head * (size_t)(a.map.q_offset[g * group] / group), 32 * SLABS, a.d_head,
                d_qk, first, n_qk, r_qk, r_pitch(DECODE));
    if (a.r_v)
        fetch_r(a.r_v, (size_t)a.d_head * (size_t)(a.map.o_offset[g * group] / group), 32 * SLABS, a.d_head,
                d_v, first, n_v, r_v, r_pitch(DECODE));

    /* Prefill: which 64 rows of which request. Request b has the slots from token_start[b] / 64 + 2 b on, which are at least as many
     * as it has tiles, wherever in a group of 8 its first token stands. */
    int b = 0, row0 = 0, q_len = 0, old = 0, shift = 0;
    if (!DECODE) {
        const int slot = (int)blockIdx.x / n_kv;
#pragma unroll 1
        for (int i = 0; i < a.batch; i += THREADS) {
            const int k = i + (int)threadIdx.x;
            b +=
                __syncthreads_count(k < a.batch && a.token_start[min(k, a.batch - 1)] / TILE + 2 * k <= slot);
        }
        b--;
        q_len = a.q_len[b];
        old = a.kv_len[b] - q_len;
        shift = old % 8;
        row0 = (slot - a.token_start[b] / TILE - 2 * b) * TILE + warp % ROW_WARPS * 16;
        if (row0 - warp % ROW_WARPS * 16 >= q_len + shift) {
            asm volatile("cp.async.wait_all;" ::: "memory");
            return;
        }
    }

    const int n_q = (group + HEADS - 1) / HEADS; /* units: n_q times Q, K, V */
    const int step = DECODE ? THREADS / 32 : PARTS;
    unit u;
    rows<HEADS, SLABS> x;

    auto prepare = [&](int k) {
        const bool is_q = k < n_q, is_v = k == n_q + 1;
        const int head = is_q ? g * group + k * HEADS : a.map.n_heads + (is_v ? n_kv : 0) + g;
        u.d = is_v ? d_v : d_qk;
        u.two = HEADS == 2 && is_q && k * HEADS + 1 < group;
        u.rope = !is_v;
        u.r = is_v ? r_v : r_qk;
        u.turns = is_v ? a.r_v != NULL : a.r_qk != NULL;
        u.columns_8 = DECODE && is_q ? 8 : 64;
        u.second = (size_t)d_qk * (size_t)a.n_q8;
        /* The part of the columns that is not this CTA's is left to the others. */
        const bool mine = !DECODE || first == 0 || (u.turns && first < u.d);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u.x[i] = NULL;
            u.to[i] = NULL;
            u.zero[i] = false;
            u.pos[i] = 0;
            if (DECODE) {
                const int request = (int)blockIdx.y * DECODE_ROWS + r + 8 * i;
                if (!mine || request >= a.batch)
                    continue;
                u.x[i] = static_cast<const uint16_t *>(a.x) +
                         (size_t)a.token_start[request] * (size_t)p.x_pitch + head * a.d_head;
                u.pos[i] = a.kv_len[request] - 1;
                if (is_q) {
                    u.to[i] = static_cast<uint16_t *>(a.q) + (size_t)request * (size_t)a.map.q_pitch +
                              a.map.q_offset[head];
                } else {
                    u.to[i] = cache_row(a, request, u.pos[i], g, is_v ? KVD_PAGE_TOKENS * d_qk : 0, u.d);
                    u.zero[i] = u.pos[i] % 8 == 0;
                }
                continue;
            }
            /* Token t of the request; the group of 8 in which it lies begins with token t - r. */
            const int t = row0 + r + 8 * i - (is_q ? 0 : shift);
            if (t >= 0 && t < q_len)
                u.x[i] = static_cast<const uint16_t *>(a.x) +
                         (size_t)(a.token_start[b] + t) * (size_t)p.x_pitch + head * a.d_head;
            u.pos[i] = old + t;
            if (is_q && t - r < q_len)
                u.to[i] = static_cast<uint16_t *>(a.q) + (size_t)a.map.q_offset[head] * (size_t)a.n_q8 +
                          (size_t)(a.q_start[b] + t - r) * (size_t)d_qk + 8 * r;
            /* Past the last token zeros are written, unless the group began before these tokens: then they stand there already. */
            if (!is_q && t >= 0 && (t < q_len || (t - r >= 0 && t - r < q_len)))
                u.to[i] = cache_row(a, b, old + t, g, is_v ? KVD_PAGE_TOKENS * d_qk : 0, u.d);
        }
        load<HEADS, SLABS, ROPE>(p, u, c, x);
    };

    int k = DECODE ? warp : warp / ROW_WARPS;
    bool waiting = true;
#pragma unroll 1
    do {
        if (k < n_q + 2)
            prepare(k);
        if (waiting) {
            asm volatile("cp.async.wait_all;" ::: "memory");
            __syncthreads();
            waiting = false;
        }
        if (k < n_q + 2 && __any_sync(0xffffffffu, u.to[0] || u.to[1])) {
            rope<BF, HEADS, SLABS, ROPE>(p, u, c, x);
            if (u.turns)
                rotate<BF, DECODE, HEADS, SLABS>(u, lane, first,
                                                 DECODE ? min(u.d - first, (int)DECODE_COLUMNS) : u.d, x);
            else
                cut<DECODE, HEADS, SLABS>(u, c, x);
        }
        k += step;
    } while (k < n_q + 2);
}

rope_kind choose_rope(const kvd_append_args *a)
{
    if (!a->rope_cos || a->rope_dim == 0)
        return ROPE_NONE;
    const bool aligned = ((uintptr_t)a->rope_cos | (uintptr_t)a->rope_sin) % 16 == 0;
    if (a->rope_interleaved)
        return aligned && a->rope_dim % 8 == 0 ? ROPE_PAIRS : ROPE_ANY;
    if (!aligned || a->rope_dim % 16)
        return ROPE_ANY;
    return a->rope_dim == 128 ? ROPE_HALF_128 : ROPE_HALF;
}

bool valid(const kvd_append_args *a)
{
    const kvd_attn_map *m = &a->map;
    if ((a->dtype != KVD_BF16 && a->dtype != KVD_F16) || a->batch < 1 || a->n_tokens < a->batch ||
        a->d_head < KVD_WIDTH_STEP || a->d_head > KVD_WIDTH_MAX || a->d_head % KVD_WIDTH_STEP ||
        a->max_pages < 1 || m->n_kv_heads < 1 || m->n_kv_heads > KVD_HEADS_MAX || m->group < 1 ||
        m->n_heads != m->n_kv_heads * m->group || m->n_heads > KVD_HEADS_MAX)
        return false;
    for (int g = 0; g < m->n_kv_heads; g++)
        if (m->d_qk[g] < KVD_WIDTH_STEP || m->d_qk[g] > a->d_head || m->d_qk[g] % KVD_WIDTH_STEP ||
            m->d_v[g] < KVD_WIDTH_STEP || m->d_v[g] > a->d_head || m->d_v[g] % KVD_WIDTH_STEP)
            return false;
    if (!a->rope_cos != !a->rope_sin ||
        (a->rope_cos && (a->rope_dim < 0 || a->rope_dim > a->d_head || a->rope_dim % 2)))
        return false;
    if (a->q_start ? a->n_q8 < a->n_tokens || a->n_q8 % 8 : a->n_tokens != a->batch)
        return false;
    return a->token_start && a->q_len && a->kv_len && a->page_table && a->x && a->q && a->pool &&
           ((uintptr_t)a->x | (uintptr_t)a->q | (uintptr_t)a->pool | (uintptr_t)a->r_qk | (uintptr_t)a->r_v) %
                   16 ==
               0;
}

template <bool BF, int SLABS> void (*prefill_kernel(rope_kind rope))(params)
{
    return rope == ROPE_NONE       ? append_kernel<BF, false, SLABS, ROPE_NONE>
           : rope == ROPE_PAIRS    ? append_kernel<BF, false, SLABS, ROPE_PAIRS>
           : rope == ROPE_HALF_128 ? append_kernel<BF, false, 4, ROPE_HALF_128>
                                   : append_kernel<BF, false, SLABS, ROPE_GIVEN>;
}

template <bool BF> cudaError_t launch(params *p, int widest_qk, int widest_v, cudaStream_t stream)
{
    const kvd_append_args *a = &p->a;
    const bool decode = !a->q_start;
    const int slabs = decode || a->d_head > 64 ? 4 : 2;
    const int bytes = 32 * slabs * r_pitch(decode) * ((a->r_qk != NULL) + (a->r_v != NULL));
    if (decode) {
        const int widest = max(a->r_qk ? widest_qk : 1, a->r_v ? widest_v : 1);
        const dim3 grid((unsigned)a->map.n_kv_heads, (unsigned)((a->batch + DECODE_ROWS - 1) / DECODE_ROWS),
                        (unsigned)((widest + DECODE_COLUMNS - 1) / DECODE_COLUMNS));
        append_kernel<BF, true, 4, ROPE_GIVEN><<<grid, DECODE_THREADS, (size_t)bytes, stream>>>(*p);
        return cudaGetLastError();
    }
    void (*const kernel)(params) =
        slabs == 4 ? prefill_kernel<BF, 4>(p->rope) : prefill_kernel<BF, 2>(p->rope);
    if (bytes > 48 * 1024) {
        const cudaError_t e =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        if (e != cudaSuccess)
            return e;
    }
    const unsigned slots = (unsigned)(a->n_tokens / TILE + 2 * a->batch);
    kernel<<<slots *(unsigned)a->map.n_kv_heads, PREFILL_THREADS, (size_t)bytes, stream>>>(*p);
    return cudaGetLastError();
}

} // namespace

extern "C" cudaError_t kvd_append(const kvd_append_args *args, cudaStream_t stream)
{
    if (!args || !valid(args))
        return cudaErrorInvalidValue;
    params p;
    p.a = *args;
    p.rope = choose_rope(args);
    p.x_pitch = (args->map.n_heads + 2 * args->map.n_kv_heads) * args->d_head;
    int widest_qk = 0, widest_v = 0;
    for (int g = 0; g < args->map.n_kv_heads; g++) {
        widest_qk = max(widest_qk, (int)args->map.d_qk[g]);
        widest_v = max(widest_v, (int)args->map.d_v[g]);
    }
    return args->dtype == KVD_BF16 ? launch<true>(&p, widest_qk, widest_v, stream)
                                   : launch<false>(&p, widest_qk, widest_v, stream);
}
