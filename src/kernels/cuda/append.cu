/*
 * RoPE, rotation, cut and store of the new tokens' Q, K and V, in one launch.
 *
 *   Q[t][h] = cut(rope(x_q[t][h]) R_qk[g])    K[t][g] = cut(rope(x_k[t][g]) R_qk[g])    V[t][g] = cut(x_v[t][g] [R_v[g]])
 *
 * Bound by memory: per token it reads (n_heads + n_kv_heads) d_head + sum of d_v (with R_v: n_kv_heads d_head) elements and writes
 * q_pitch + sum of (d_qk + d_v), 2 bytes each; the product costs 2 d_head (q_pitch + sum of d_qk) FLOP per token, which tensor cores
 * do in the shadow of the loads.
 *
 * A warp takes 16 rows of one or two heads. Lane (r, c) of the 8 x 4 holds columns 32 s + 8 c .. + 7 of rows r and r + 8, 16-byte pieces
 * as they lie in memory. mma.sync wants lane c to hold columns 2c, 2c+1, 2c+8, 2c+9 of each step of 16; since a sum does not care about
 * the order of its terms as long as both factors agree, the columns keep their places and the rows of R are gathered in the same order by
 * ldmatrix. So RoPE works on registers, and a lane only ever reads what it copied itself.
 * The result leaves in the order of the layout: a fragment of 8 x 8 is 128 contiguous bytes.
 *
 * Prefill: a persistent grid, two CTAs on an SM; each KV head has a number of CTAs in proportion to its bytes, each of which keeps that
 * head's R in shared memory. A CTA's share is a run of items (16 rows, unit), units being pairs of query heads, K and V; its warps take
 * them one by one, each copying its next item while it works on one. K and V rows are counted from the group of 8 in which the first
 * new token lies, so that each group of the cache has one owner.
 * Decode: grid (KV head, 16 requests, some columns of R); the units are spread over 8 warps.
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
    ROWS = 16,                                  /* of an item                              */
    STAGE_BYTES = 2 * ROWS * KVD_WIDTH_MAX * 2, /* x of an item: two heads                 */
    PREFILL_WARPS = 6,                          /* at most; 2 stages each                  */
    PREFILL_CTAS = 2,                           /* on an SM                                */
    DECODE_WARPS = 8
};

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
    uint32_t zero; /* 0 */
    int32_t x_pitch;
    int32_t r_pitch, r_rows; /* R in shared memory: bytes of a row, rows                              */
    int32_t columns;         /* decode: columns of R of one CTA                                       */
    int32_t slots;           /* prefill: 16-row slots of all requests                                 */
    int16_t first_cta[KVD_HEADS_MAX +
                      1]; /* prefill: KV head g has the CTAs first_cta[g] .. first_cta[g + 1] - 1 */
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

/* Columns of x that are needed: without rotation only what is kept, and what RoPE turns into it. */
template <int ROPE> __device__ __forceinline__ int columns_needed(const params &p, const unit &u)
{
    const int kind = ROPE == ROPE_GIVEN ? (int)p.rope : ROPE;
    return u.turns || (u.rope && kind == ROPE_HALF_128) ? p.a.d_head : u.d;
}

/* A lane's pieces of x into its warp's stage: piece (h, i, s) of all lanes together are 512 bytes. Zeros where there is no token. */
template <int HEADS, int SLABS, int ROPE>
__device__ __forceinline__ void prefetch(const params &p, const unit &u, int lane, uint32_t stage)
{
    const int needed = columns_needed<ROPE>(p, u) - 8 * (lane % 4);
#pragma unroll
    for (int h = 0; h < HEADS; h++)
        if (h == 0 || u.two)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint16_t *from =
                    u.x[i] ? u.x[i] + h * p.a.d_head + 8 * (lane % 4) : static_cast<const uint16_t *>(p.a.x);
#pragma unroll
                for (int s = 0; s < SLABS; s++) {
                    const bool there = u.x[i] && 32 * s < needed;
                    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                                     stage + (uint32_t)((((h * 2 + i) * SLABS + s) * 32 + lane) * 16)),
                                 "l"(there ? from + 32 * s : static_cast<const uint16_t *>(p.a.x)),
                                 "r"(there ? 16 : 0)
                                 : "memory");
                }
            }
}

template <int HEADS, int SLABS>
__device__ __forceinline__ void take(const unit &u, int lane, uint32_t stage, rows<HEADS, SLABS> &a)
{
#pragma unroll
    for (int h = 0; h < HEADS; h++)
        if (h == 0 || u.two)
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int s = 0; s < SLABS; s++)
                    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                                 : "=r"(a.word(h, s, i, 0)), "=r"(a.word(h, s, i, 1)),
                                   "=r"(a.word(h, s, i, 2)), "=r"(a.word(h, s, i, 3))
                                 : "r"(stage + (uint32_t)((((h * 2 + i) * SLABS + s) * 32 + lane) * 16))
                                 : "memory");
}

/* The same from memory into registers at once. */
template <int SLABS, int ROPE>
__device__ __forceinline__ void load(const params &p, const unit &u, int lane, rows<1, SLABS> &a)
{
    const int needed = columns_needed<ROPE>(p, u) - 8 * (lane % 4);
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int s = 0; s < SLABS; s++) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (u.x[i] && 32 * s < needed)
                v = __ldg(reinterpret_cast<const uint4 *>(u.x[i] + 8 * (lane % 4)) + 4 * s);
            a.word(0, s, i, 0) = v.x;
            a.word(0, s, i, 1) = v.y;
            a.word(0, s, i, 2) = v.z;
            a.word(0, s, i, 3) = v.w;
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

/* Words come out of shared memory and of RoPE in the order of a row; mma wants those of two rows side by side. Copied here once, they need
 * not be moved before each mma; xor with a zero that the compiler does not know keeps it from undoing this. */
template <int HEADS, int SLABS> __device__ __forceinline__ void settle(const params &p, rows<HEADS, SLABS> &a)
{
#pragma unroll
    for (int h = 0; h < HEADS; h++)
#pragma unroll
        for (int s = 0; s < SLABS; s++)
#pragma unroll
            for (int w = 0; w < 2; w++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    a.f[h][s][w][e] ^= p.zero;
}

/* Columns first .. first + n - 1 (n a multiple of 16) of the product with R, of which shared memory holds those columns, for the first
 * COUNT heads. */
template <bool BF, bool DECODE, int COUNT, int HEADS, int SLABS>
__device__ __forceinline__ void rotate(const params &p, const unit &u, int lane, int first, int n,
                                       const rows<HEADS, SLABS> &a)
{
    const int c = lane % 4, i = lane % 8, columns_8 = DECODE ? u.columns_8 : 64;
    const uint32_t row = u.r + (uint32_t)(8 * (i / 2) + i % 2 + 2 * (lane / 8)) * (uint32_t)p.r_pitch;
    uint16_t *to[COUNT][2];
#pragma unroll
    for (int h = 0; h < COUNT; h++)
#pragma unroll
        for (int k = 0; k < 2; k++)
            to[h][k] = u.to[k] + h * u.second + first / 8 * columns_8 + 2 * c;
    const bool there[2] = {u.to[0] != NULL, u.to[1] != NULL};
#pragma unroll 1
    for (int j = 0; j < n / 8; j += 2) {
        float acc[COUNT][2][4] = {};
        const uint32_t at = row + (uint32_t)((j ^ i) * 16), at1 = row + (uint32_t)(((j + 1) ^ i) * 16);
#pragma unroll
        for (int s = 0; s < SLABS; s++) {
            uint32_t b[2][4];
            read_r(at + (uint32_t)(32 * s * p.r_pitch), b[0]);
            read_r(at1 + (uint32_t)(32 * s * p.r_pitch), b[1]);
#pragma unroll
            for (int w = 0; w < 2; w++)
#pragma unroll
                for (int h = 0; h < COUNT; h++)
#pragma unroll
                    for (int jj = 0; jj < 2; jj++)
                        mma<BF>(acc[h][jj], a.f[h][s][w], b[jj][2 * w], b[jj][2 * w + 1]);
        }
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int h = 0; h < COUNT; h++) {
                if (there[k]) {
#pragma unroll
                    for (int jj = 0; jj < 2; jj++) {
                        *reinterpret_cast<uint32_t *>(to[h][k] + jj * columns_8) =
                            pack<BF>(acc[h][jj][2 * k], acc[h][jj][2 * k + 1]);
                        if (DECODE && u.zero[k])
                            for (int z = 1; z < 8; z++)
                                *reinterpret_cast<uint32_t *>(to[h][k] + jj * columns_8 + 8 * z) = 0;
                    }
                }
                to[h][k] += 2 * columns_8;
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

/* Columns first .. first + n - 1 of R [d_head][d] into shared memory; rows from d_head on become zero. The 16-byte pieces of a row are
 * permuted so that the 8 rows which one ldmatrix reads lie in different banks. */
__device__ __forceinline__ void fetch_r(const params &p, const void *r, int columns_before, int d, int first,
                                        int n, uint32_t to)
{
    const int piece = (int)threadIdx.x % 16, d_head = p.a.d_head;
    if (8 * piece >= n)
        return;
    const uint16_t *from = static_cast<const uint16_t *>(r) + (size_t)d_head * (size_t)columns_before;
#pragma unroll 4
    for (int row = (int)threadIdx.x / 16; row < p.r_rows; row += (int)blockDim.x / 16) {
        const int key = row / 8 % 4 * 2 + row % 2;
        const bool there = row < d_head;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                         to + (uint32_t)(row * p.r_pitch + (piece ^ key) * 16)),
                     "l"(there ? from + (size_t)row * (size_t)d + (size_t)(first + 8 * piece) : from),
                     "r"(there ? 16 : 0)
                     : "memory");
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

/* Unit k of KV head g: n_q units of query heads, then K, then V. Everything but the rows. Returns the head's place in a row of x. */
__device__ __forceinline__ int choose_unit(const params &p, unit &u, int g, int k, int n_q, int heads,
                                           uint32_t r)
{
    const kvd_append_args &a = p.a;
    const bool is_q = k < n_q, is_v = k == n_q + 1;
    const int d_qk = a.map.d_qk[g];
    u.d = is_v ? a.map.d_v[g] : d_qk;
    u.two = is_q && heads == 2 && 2 * k + 1 < a.map.group;
    u.second = (size_t)d_qk * (size_t)a.n_q8;
    u.rope = !is_v;
    u.turns = is_v ? a.r_v != NULL : a.r_qk != NULL;
    u.r = r + (uint32_t)(is_v && a.r_qk ? p.r_rows * p.r_pitch : 0);
    u.columns_8 = 64;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u.x[i] = NULL;
        u.to[i] = NULL;
        u.zero[i] = false;
        u.pos[i] = 0;
    }
    return is_q ? g * a.map.group + k * heads : a.map.n_heads + (is_v ? a.map.n_kv_heads : 0) + g;
}

/* What a warp knows of an item: 16 rows of a request. Request b has the slots from token_start[b] / 16 + 2 b on, which are at least as
 * many as it has items, wherever in a group of 8 its first token stands. */
struct place {
    int b, start, next; /* the request's first slot, and the next request's */
};

__device__ __forceinline__ int first_slot(const kvd_append_args &a, int b)
{
    return b < a.batch ? __ldg(a.token_start + b) / ROWS + 2 * b : INT32_MAX;
}

__device__ __forceinline__ void find(const kvd_append_args &a, int slot, place &at)
{
    if (at.b < 0) {
        int n = 0;
        for (int b = (int)threadIdx.x % 32; b < a.batch; b += 32)
            n += first_slot(a, b) <= slot;
        at.b = __reduce_add_sync(0xffffffffu, n) - 1;
        at.start = first_slot(a, at.b);
        at.next = first_slot(a, at.b + 1);
    }
    while (slot >= at.next) {
        at.b++;
        at.start = at.next;
        at.next = first_slot(a, at.b + 1);
    }
}

/* The rows of an item. */
__device__ __forceinline__ void prefill_rows(const params &p, unit &u, int head, int g, bool is_q, bool is_v,
                                             int slot, const place &at, int r)
{
    const kvd_append_args &a = p.a;
    const int q_len = __ldg(a.q_len + at.b), old = __ldg(a.kv_len + at.b) - q_len;
    const int token0 = __ldg(a.token_start + at.b);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        /* Token t of the request; the group of 8 in which it lies begins with token t - r. */
        const int t = (slot - at.start) * ROWS + r + 8 * i - (is_q ? 0 : old % 8);
        if (t >= 0 && t < q_len)
            u.x[i] = static_cast<const uint16_t *>(a.x) + (size_t)(token0 + t) * (size_t)p.x_pitch +
                     head * a.d_head;
        u.pos[i] = old + t;
        if (is_q && t - r < q_len)
            u.to[i] = static_cast<uint16_t *>(a.q) + (size_t)a.map.q_offset[head] * (size_t)a.n_q8 +
                      (size_t)(__ldg(a.q_start + at.b) + t - r) * (size_t)u.d + 8 * r;
        /* Past the last token zeros are written, unless the group began before these tokens: then they stand there already. */
        if (!is_q && t >= 0 && (t < q_len || (t - r >= 0 && t - r < q_len)))
            u.to[i] = cache_row(a, at.b, old + t, g, is_v ? KVD_PAGE_TOKENS * a.map.d_qk[g] : 0, u.d);
    }
}

template <bool BF, int SLABS, int ROPE>
__global__ void __launch_bounds__(32 * PREFILL_WARPS, ROPE == ROPE_GIVEN ? 1 : PREFILL_CTAS)
    append_prefill(const __grid_constant__ params p)
{
    /* Two heads at a time share the angles and the fragments of R; the general forms of RoPE need the registers. */
    constexpr int HEADS = ROPE == ROPE_GIVEN ? 1 : 2;
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ int32_t next_item;
    const kvd_append_args &a = p.a;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, r = lane / 4, c = lane % 4;
    int g = 0;
    while ((int)blockIdx.x >= p.first_cta[g + 1])
        g++;
    const int n_ctas = p.first_cta[g + 1] - p.first_cta[g], cta = (int)blockIdx.x - p.first_cta[g];
    const int group = a.map.group, n_q = (group + HEADS - 1) / HEADS, n_units = n_q + 2;
    const long long n_items = (long long)p.slots * n_units;
    const int begin = (int)(n_items * cta / n_ctas), end = (int)(n_items * (cta + 1) / n_ctas);

    const uint32_t r_smem = (uint32_t)__cvta_generic_to_shared(smem);
    const uint32_t stages = r_smem + (uint32_t)(p.r_rows * p.r_pitch * ((a.r_qk != NULL) + (a.r_v != NULL))) +
                            (uint32_t)(warp * 2 * STAGE_BYTES);
    if (a.r_qk)
        fetch_r(p, a.r_qk, a.map.q_offset[g * group] / group, a.map.d_qk[g], 0, a.map.d_qk[g], r_smem);
    if (a.r_v)
        fetch_r(p, a.r_v, a.map.o_offset[g * group] / group, a.map.d_v[g], 0, a.map.d_v[g],
                r_smem + (uint32_t)(a.r_qk ? p.r_rows * p.r_pitch : 0));
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (threadIdx.x == 0)
        next_item = begin + (int)blockDim.x / 32;

    /* The item after the one in work: where its rows go is looked up while the other is computed, like its x. */
    place at = {-1, 0, 0};
    int slot = begin / n_units, kind = begin % n_units, last = begin;
    auto start = [&](int k, unit &u, int stage) {
        if (k < end) {
            kind += k - last;
            last = k;
            while (kind >= n_units) {
                kind -= n_units;
                slot++;
            }
            find(a, slot, at);
            const int head = choose_unit(p, u, g, kind, n_q, HEADS, r_smem);
            prefill_rows(p, u, head, g, kind < n_q, kind == n_q + 1, slot, at, r);
            prefetch<HEADS, SLABS, ROPE>(p, u, lane, stages + (uint32_t)(stage * STAGE_BYTES));
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    unit u, next;
    int item = begin + warp, odd = 0;
    start(item, next, 0);
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
#pragma unroll 1
    while (item < end) {
        int following = 0;
        if (lane == 0)
            following = atomicAdd(&next_item, 1);
        following = __shfl_sync(0xffffffffu, following, 0);
        u = next;
        start(following, next, odd ^ 1);
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        if (__any_sync(0xffffffffu, u.to[0] || u.to[1])) {
            rows<HEADS, SLABS> x;
            take<HEADS, SLABS>(u, lane, stages + (uint32_t)(odd * STAGE_BYTES), x);
            rope<BF, HEADS, SLABS, ROPE>(p, u, c, x);
            if (!u.turns) {
                cut<false, HEADS, SLABS>(u, c, x);
            } else {
                settle(p, x);
                if (HEADS == 2 && u.two)
                    rotate<BF, false, HEADS>(p, u, lane, 0, u.d, x);
                else
                    rotate<BF, false, 1>(p, u, lane, 0, u.d, x);
            }
        }
        item = following;
        odd ^= 1;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

template <bool BF, int ROPE>
__global__ void __launch_bounds__(32 * DECODE_WARPS, ROPE == ROPE_GIVEN ? 1 : 2)
    append_decode(const __grid_constant__ params p)
{
    constexpr int SLABS = KVD_WIDTH_MAX / 32;
    extern __shared__ __align__(128) uint8_t smem[];
    const kvd_append_args &a = p.a;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, r = lane / 4, c = lane % 4;
    const int g = (int)blockIdx.x, group = a.map.group, d_qk = a.map.d_qk[g], d_v = a.map.d_v[g];
    const int first = (int)blockIdx.z * p.columns; /* columns of R of this CTA */
    const uint32_t r_smem = (uint32_t)__cvta_generic_to_shared(smem);
    if (a.r_qk)
        fetch_r(p, a.r_qk, a.map.q_offset[g * group] / group, d_qk, first, min(d_qk - first, p.columns),
                r_smem);
    if (a.r_v)
        fetch_r(p, a.r_v, a.map.o_offset[g * group] / group, d_v, first, min(d_v - first, p.columns),
                r_smem + (uint32_t)(a.r_qk ? p.r_rows * p.r_pitch : 0));
    bool waiting = true;
    int k = warp;
#pragma unroll 1
    do {
        unit u;
        rows<1, SLABS> x;
        bool mine = k < group + 2;
        if (mine) {
            const bool is_q = k < group;
            const int head = choose_unit(p, u, g, k, group, 1, r_smem);
            /* Columns that are not this CTA's are left to the others. */
            mine = first == 0 || (u.turns && first < u.d);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int b = (int)blockIdx.y * ROWS + r + 8 * i;
                if (!mine || b >= a.batch)
                    continue;
                u.x[i] = static_cast<const uint16_t *>(a.x) +
                         (size_t)__ldg(a.token_start + b) * (size_t)p.x_pitch + head * a.d_head;
                u.pos[i] = __ldg(a.kv_len + b) - 1;
            }
            load<SLABS, ROPE>(p, u, lane, x);
            u.columns_8 = is_q ? 8 : 64;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int b = (int)blockIdx.y * ROWS + r + 8 * i;
                if (!u.x[i])
                    continue;
                u.zero[i] = !is_q && u.pos[i] % 8 == 0;
                if (is_q)
                    u.to[i] = static_cast<uint16_t *>(a.q) + (size_t)b * (size_t)a.map.q_pitch +
                              a.map.q_offset[head];
                else
                    u.to[i] = cache_row(a, b, u.pos[i], g, k == group + 1 ? KVD_PAGE_TOKENS * d_qk : 0, u.d);
            }
        }
        if (waiting) {
            asm volatile("cp.async.wait_all;" ::: "memory");
            __syncthreads();
            waiting = false;
        }
        if (mine) {
            rope<BF, 1, SLABS, ROPE>(p, u, c, x);
            if (u.turns)
                rotate<BF, true, 1>(p, u, lane, first, min(u.d - first, p.columns), x);
            else
                cut<true, 1, SLABS>(u, c, x);
        }
        k += DECODE_WARPS;
    } while (k < group + 2);
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

typedef void (*append_kernel)(params);

template <bool BF, int SLABS> append_kernel prefill_kernel(rope_kind rope)
{
    return rope == ROPE_NONE       ? append_prefill<BF, SLABS, ROPE_NONE>
           : rope == ROPE_PAIRS    ? append_prefill<BF, SLABS, ROPE_PAIRS>
           : rope == ROPE_HALF_128 ? append_prefill<BF, 4, ROPE_HALF_128>
                                   : append_prefill<BF, SLABS, ROPE_GIVEN>;
}

template <bool BF> append_kernel decode_kernel(rope_kind rope)
{
    return rope == ROPE_NONE       ? append_decode<BF, ROPE_NONE>
           : rope == ROPE_PAIRS    ? append_decode<BF, ROPE_PAIRS>
           : rope == ROPE_HALF_128 ? append_decode<BF, ROPE_HALF_128>
                                   : append_decode<BF, ROPE_GIVEN>;
}

int widest(const kvd_append_args *a)
{
    int w = 0;
    for (int g = 0; g < a->map.n_kv_heads; g++)
        w = max(w, max(a->r_qk ? (int)a->map.d_qk[g] : 0, a->r_v ? (int)a->map.d_v[g] : 0));
    return w;
}

cudaError_t launch_decode(params *p, append_kernel kernel, cudaStream_t stream)
{
    const kvd_append_args *a = &p->a;
    const int tiles = (a->batch + ROWS - 1) / ROWS, w = max(widest(a), (int)KVD_WIDTH_STEP);
    /* Few requests: R is cut into columns, so that more SMs share the latency; many: it is read once per 16 requests. */
    p->columns = tiles * a->map.n_kv_heads >= 96 ? 128 : tiles * a->map.n_kv_heads >= 48 ? 64 : 32;
    p->r_pitch = p->columns > 64 ? 256 : 128;
    p->r_rows = KVD_WIDTH_MAX;
    const int bytes = p->r_rows * p->r_pitch * ((a->r_qk != NULL) + (a->r_v != NULL));
    if (bytes > 48 * 1024) {
        const cudaError_t e =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        if (e != cudaSuccess)
            return e;
    }
    const dim3 grid((unsigned)a->map.n_kv_heads, (unsigned)tiles,
                    (unsigned)((w + p->columns - 1) / p->columns));
    kernel<<<grid, 32 * DECODE_WARPS, (size_t)bytes, stream>>>(*p);
    return cudaGetLastError();
}

/* CTAs of each KV head in proportion to the bytes that it moves, at least one, and no more than it has items for. */
int share_ctas(params *p, int n_ctas, int warps)
{
    const kvd_append_args *a = &p->a;
    const int n_kv = a->map.n_kv_heads, units = (a->map.group + 1) / 2 + 2;
    const long long items = (long long)p->slots * units;
    const int most = (int)((items + warps - 1) / warps < n_ctas ? (items + warps - 1) / warps : n_ctas);
    long long weight[KVD_HEADS_MAX], total = 0;
    int n[KVD_HEADS_MAX], given = 0;
    for (int g = 0; g < n_kv; g++) {
        weight[g] = (a->map.group + 1) * (a->d_head + a->map.d_qk[g]) + a->map.d_v[g] +
                    (a->r_v ? a->d_head : a->map.d_v[g]);
        total += weight[g];
    }
    for (int g = 0; g < n_kv; g++) {
        const int share = (int)(n_ctas * weight[g] / total);
        n[g] = share < 1 ? 1 : share > most ? most : share;
        given += n[g];
    }
    while (given < n_ctas) { /* the next one to whom it helps most */
        int best = -1;
        for (int g = 0; g < n_kv; g++)
            if (n[g] < most && (best < 0 || weight[g] * n[best] > weight[best] * n[g]))
                best = g;
        if (best < 0)
            break;
        n[best]++;
        given++;
    }
    p->first_cta[0] = 0;
    for (int g = 0; g < n_kv; g++)
        p->first_cta[g + 1] = (int16_t)(p->first_cta[g] + n[g]);
    return p->first_cta[n_kv];
}

cudaError_t launch_prefill(params *p, append_kernel kernel, int slabs, cudaStream_t stream)
{
    const kvd_append_args *a = &p->a;
    int device = 0, sms = 0, room = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    if (e != cudaSuccess)
        return e;
    p->r_pitch = widest(a) > 64 ? 256 : 128;
    p->r_rows = 32 * slabs;
    const int r_bytes = p->r_rows * p->r_pitch * ((a->r_qk != NULL) + (a->r_v != NULL));
    const int cta_room = room / PREFILL_CTAS - 1024 - 256; /* what the system and next_item take */
    int warps = (cta_room - r_bytes) / (2 * STAGE_BYTES);
    if (warps < 1)
        warps = 1;
    if (warps > PREFILL_WARPS)
        warps = PREFILL_WARPS;
    const int bytes = r_bytes + warps * 2 * STAGE_BYTES;
    e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e != cudaSuccess)
        return e;
    p->slots = a->n_tokens / ROWS + 2 * a->batch;
    const int n_ctas = share_ctas(p, PREFILL_CTAS * sms, warps);
    kernel<<<(unsigned)n_ctas, (unsigned)(32 * warps), (size_t)bytes, stream>>>(*p);
    return cudaGetLastError();
}

template <bool BF> cudaError_t launch(params *p, cudaStream_t stream)
{
    if (!p->a.q_start)
        return launch_decode(p, decode_kernel<BF>(p->rope), stream);
    return p->a.d_head > 64 ? launch_prefill(p, prefill_kernel<BF, 4>(p->rope), 4, stream)
                            : launch_prefill(p, prefill_kernel<BF, 2>(p->rope), 2, stream);
}

} // namespace

extern "C" cudaError_t kvd_append(const kvd_append_args *args, cudaStream_t stream)
{
    if (!args || !valid(args))
        return cudaErrorInvalidValue;
    params p;
    p.a = *args;
    p.zero = 0;
    p.rope = choose_rope(args);
    p.x_pitch = (args->map.n_heads + 2 * args->map.n_kv_heads) * args->d_head;
    return args->dtype == KVD_BF16 ? launch<true>(&p, stream) : launch<false>(&p, stream);
}
