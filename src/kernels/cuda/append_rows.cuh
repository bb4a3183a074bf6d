/* Device functions of append.cu that rotate, truncate and store Q, K and V of tokens. */
#ifndef KVD_KERNELS_CUDA_APPEND_ROWS_CUH
#define KVD_KERNELS_CUDA_APPEND_ROWS_CUH

#include "kernels/cuda/append.h"
#include "kernels/cuda/mma.cuh"

namespace
{

enum {
    ROWS = 16,
    /* Bytes of shared memory in which a warp stages its tokens. */
    STAGE_BYTES = 2 * ROWS * KVD_WIDTH_NARROW * 2,
    /* Number of blocks of 32 columns in a head of KVD_WIDTH_NARROW dimensions. */
    NARROW_SLABS = KVD_WIDTH_NARROW / 32,
    WIDE_SLABS = KVD_WIDTH_MAX / 32,
    PREFILL_WARPS = 6,
    PREFILL_CTAS = 2,
    WIDE_WARPS = 8, /* warps per CTA in prefill of wide heads, one CTA per SM */
    DECODE_WARPS = 8
};

/* Devices before sm_90 have too little shared memory for more than 4 warps per CTA. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
enum { BOUND_WARPS = PREFILL_WARPS - 2 };
#else
enum { BOUND_WARPS = PREFILL_WARPS };
#endif

/* Variants of RoPE, which differ in the thread that holds the second dimension of a rotated
 * pair. */
enum rope_kind {
    ROPE_NONE,
    ROPE_PAIRS,    /* pairs (2i, 2i+1): in one register */
    ROPE_HALF_128, /* Pairs (i, i + 64) of 128 dimensions: in another register of the lane. */
    ROPE_HALF, /* Pairs (i, i + half), half a multiple of 8: loaded from x, 16 bytes at a time. */
    ROPE_ANY,  /* any other pairs: loaded from x, one element at a time */
    ROPE_GIVEN /* kind of RoPE that is chosen at run time */
};

struct params {
    kvd_append_args a;
    rope_kind rope;
    uint32_t zero; /* always 0, which the compiler cannot know */
    int32_t x_pitch;
    int32_t r_pitch, r_rows; /* rotation matrix in shared memory: bytes per row, rows */
    int32_t columns;         /* Decode and wide heads: columns of the rotation matrix per CTA. */
    int32_t slots;           /* prefill: reserved blocks of 16 rows of all requests */
    /* In prefill, the CTAs first_cta[g] .. first_cta[g + 1] - 1 process KV head g. */
    int16_t first_cta[KVD_HEADS_MAX + 1];
};

template <bool BF> __device__ __forceinline__ float one(const uint16_t *x)
{
    return unpack<BF>(__ldg(x)).x;
}

/* Two tokens of a head: addresses, positions and sizes that one lane needs to process them. */
struct unit {
    /* Address of each token's vector in the input `x`; NULL if there is no such token. */
    const uint16_t *x[2];
    uint16_t *to[2];
    int pos[2];
    int d;
    int columns_8; /* distance in elements from one block of 8 columns of the output to the next */
    bool two;
    size_t second;
    bool rope;
    bool applies_rope;
    uint32_t r;   /* rotation matrix in shared memory */
    bool zero[2]; /* decode: the token starts a group of 8, whose other rows become zero */
};

/* A lane's elements of two tokens. Lane 4 r + c of the warp holds columns 8 c .. 8 c + 7 of each
 * block of 32 columns. */
template <int HEADS, int SLABS> struct rows {
    uint32_t f[HEADS][SLABS][2][4];
    __device__ __forceinline__ uint32_t &word(int h, int s, int i, int w)
    {
        return f[h][s][w / 2][w % 2 * 2 + i];
    }
};

template <int ROPE> __device__ __forceinline__ int columns_needed(const params &p, const unit &u)
{
    const int kind = ROPE == ROPE_GIVEN ? (int)p.rope : ROPE;
    return u.applies_rope || (u.rope && kind == ROPE_HALF_128) ? p.a.d_head : u.d;
}

/* Starts copying a lane's two tokens from global to shared memory. If one of the tokens does not
 * exist, its copy is zeros. */
template <int HEADS, int SLABS, int ROPE>
__device__ __forceinline__ void prefetch(const params &p, const unit &u, int lane, uint32_t stage)
{
    const int needed = columns_needed<ROPE>(p, u) - 8 * (lane % 4);
#pragma unroll
    for (int h = 0; h < HEADS; h++)
        if (h == 0 || u.two)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint16_t *from = u.x[i] ? u.x[i] + h * p.a.d_head + 8 * (lane % 4)
                                              : static_cast<const uint16_t *>(p.a.x);
#pragma unroll
                for (int s = 0; s < SLABS; s++) {
                    const bool there = u.x[i] && 32 * s < needed;
                    kvd_copy_16(stage + (uint32_t)((((h * 2 + i) * SLABS + s) * 32 + lane) * 16),
                                there ? from + 32 * s : static_cast<const uint16_t *>(p.a.x),
                                there ? 16 : 0);
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
                    asm volatile(
                        "ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                        : "=r"(a.word(h, s, i, 0)), "=r"(a.word(h, s, i, 1)),
                          "=r"(a.word(h, s, i, 2)), "=r"(a.word(h, s, i, 3))
                        : "r"(stage + (uint32_t)((((h * 2 + i) * SLABS + s) * 32 + lane) * 16))
                        : "memory");
}

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

/* Returns x cos - y sin. x and y hold two 16-bit numbers each. */
template <bool BF>
__device__ __forceinline__ uint32_t turn(uint32_t x, uint32_t y, float c0, float s0, float c1,
                                         float s1)
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

/* Applies RoPE to columns j and j + 64, with cosines co [8] and sines si [8]. */
template <bool BF, int HEADS>
__device__ __forceinline__ void turn_halves(rows<HEADS, 4> &a, int s, int i, const float *co,
                                            const float *si)
{
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

/* Rotates the pairs (2j, 2j + 1) by RoPE, for the lane's 8 columns of token i in the s-th block of
 * 32 columns. */
template <bool BF, int HEADS, int SLABS>
__device__ __forceinline__ void turn_pairs(rows<HEADS, SLABS> &a, int s, int i, const float *co,
                                           const float *si)
{
#pragma unroll
    for (int h = 0; h < HEADS; h++)
#pragma unroll
        for (int w = 0; w < 4; w++) {
            uint32_t &xy = a.word(h, s, i, w);
            const float2 v = unpack<BF>(xy);
            xy = pack<BF>(v.x * co[w] - v.y * si[w], v.y * co[w] + v.x * si[w]);
        }
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
                    turn_halves<BF>(a, s, i, co, si);
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
                turn_pairs<BF>(a, s, i, cs, sn);
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
                        const uint32_t y = w == 0   ? other.x
                                           : w == 1 ? other.y
                                           : w == 2 ? other.z
                                                    : other.w;
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

/* Changes no word, but makes the compiler keep the words in adjacent registers. */
template <int HEADS, int SLABS>
__device__ __forceinline__ void finish_rows(const params &p, rows<HEADS, SLABS> &a)
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

/* Multiplies the vectors of several tokens by n columns of the rotation matrix, and stores the
 * products. n is a multiple of 16. */
template <bool BF, bool DECODE, int COUNT, int HEADS, int SLABS>
__device__ __forceinline__ void rotate(const params &p, const unit &u, int lane, int first, int n,
                                       const rows<HEADS, SLABS> &a)
{
    const int c = lane % 4, i = lane % 8, columns_8 = DECODE ? u.columns_8 : 64;
    const uint32_t row =
        u.r + (uint32_t)(8 * (i / 2) + i % 2 + 2 * (lane / 8)) * (uint32_t)p.r_pitch;
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
        const uint32_t at = row + (uint32_t)((j ^ i) * 16),
                       at1 = row + (uint32_t)(((j + 1) ^ i) * 16);
#pragma unroll
        for (int s = 0; s < SLABS; s++) {
            uint32_t b[2][4];
            ldmatrix_trans(at + (uint32_t)(32 * s * p.r_pitch), b[0]);
            ldmatrix_trans(at1 + (uint32_t)(32 * s * p.r_pitch), b[1]);
#pragma unroll
            for (int w = 0; w < 2; w++)
#pragma unroll
                for (int h = 0; h < COUNT; h++)
#pragma unroll
                    for (int jj = 0; jj < 2; jj++)
                        mma_in_order<BF>(acc[h][jj], a.f[h][s][w], b[jj][2 * w], b[jj][2 * w + 1]);
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
                                *reinterpret_cast<uint32_t *>(to[h][k] + jj * columns_8 + 8 * z) =
                                    0;
                    }
                }
                to[h][k] += 2 * columns_8;
            }
    }
}

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
                    *reinterpret_cast<uint4 *>(to + 4 * s * u.columns_8) =
                        make_uint4(a.word(h, s, k, 0), a.word(h, s, k, 1), a.word(h, s, k, 2),
                                   a.word(h, s, k, 3));
                    if (DECODE && u.zero[k])
                        for (int z = 1; z < 8; z++)
                            *reinterpret_cast<uint4 *>(to + 4 * s * u.columns_8 + 8 * z) =
                                make_uint4(0, 0, 0, 0);
                }
        }
}

/* Starts copying n columns of a rotation matrix, beginning with column `first`, from global to
 * shared memory. */
__device__ __forceinline__ void fetch_r(const params &p, const void *r, int columns_before, int d,
                                        int first, int n, uint32_t to)
{
    const int piece = (int)threadIdx.x % 16, d_head = p.a.d_head;
    if (8 * piece >= n)
        return;
    const uint16_t *from =
        static_cast<const uint16_t *>(r) + (size_t)d_head * (size_t)columns_before;
#pragma unroll 4
    for (int row = (int)threadIdx.x / 16; row < p.r_rows; row += (int)blockDim.x / 16) {
        const int key = row / 8 % 4 * 2 + row % 2;
        const bool there = row < d_head;
        kvd_copy_16(to + (uint32_t)(row * p.r_pitch + (piece ^ key) * 16),
                    there ? from + (size_t)row * (size_t)d + (size_t)(first + 8 * piece) : from,
                    there ? 16 : 0);
    }
}

/* Returns the address of a token's K or V in a cache page. v_after: distance in elements from K to
 * V, or 0 for the address of K. */
__device__ __forceinline__ uint16_t *in_page(const kvd_append_args &a, int page, int pos, int g,
                                             int v_after, int d)
{
    return static_cast<uint16_t *>(a.pool) + (size_t)page * (size_t)a.map.page_elements +
           a.map.kv_offset[g] + v_after + (pos % KVD_PAGE_TOKENS) / 8 * 8 * d + pos % 8 * 8;
}

__device__ __forceinline__ uint16_t *cache_row(const kvd_append_args &a, int b, int pos, int g,
                                               int v_after, int d)
{
    const int page = __ldg(a.page_table + (size_t)b * (size_t)a.max_pages + pos / KVD_PAGE_TOKENS);
    return in_page(a, page, pos, g, v_after, d);
}

__device__ __forceinline__ int column_of(const kvd_append_args &a, int head, int g, bool is_v)
{
    return is_v && a.v_is_cut ? (a.map.n_heads + a.map.n_kv_heads) * a.d_head +
                                    a.map.o_offset[g * a.map.group] / a.map.group
                              : head * a.d_head;
}

/* Fills `u` with addresses and sizes for vector k of KV head g. The vectors are first the queries
 * of this head, then K (k = n_q), then V (k = n_q + 1). Returns the index of the vector among the
 * vectors of all heads of a token. */
__device__ __forceinline__ int choose_unit(const params &p, unit &u, int g, int k, int n_q,
                                           int heads, uint32_t r)
{
    const kvd_append_args &a = p.a;
    const bool is_q = k < n_q, is_v = k == n_q + 1;
    const int d_qk = a.map.d_qk[g];
    u.d = is_v ? a.map.d_v[g] : d_qk;
    u.two = is_q && heads == 2 && 2 * k + 1 < a.map.group;
    u.second = (size_t)d_qk * (size_t)a.n_q8;
    u.rope = !is_v;
    u.applies_rope = is_v ? a.r_v != NULL : a.r_qk != NULL;
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

enum {
    /* Largest number of requests that the decode kernel append_few takes. */
    FEW_REQUESTS = 8,
    FEW_WARPS = 2,
    FEW_COLUMNS = 16, /* columns of the rotation matrix per warp of append_few */
    FEW_SLABS = 4,
    FEW_R_BYTES = 32 * FEW_SLABS * FEW_COLUMNS * 2
};

/* Reads a word from L2. The volatile asm keeps the compiler from moving the read before
 * griddepcontrol.wait, after which the word is valid. */
__device__ __forceinline__ uint32_t read_word(const void *from)
{
    uint32_t v;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}

__device__ __forceinline__ uint4 read_words(const void *from)
{
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

/* Returns the offset in shared memory of 16 bytes of the rotation matrix. The xor avoids bank
 * conflicts. */
__device__ __forceinline__ uint32_t few_r_offset(int row, int piece)
{
    return (uint32_t)((row * 2 * FEW_COLUMNS + piece * 16) ^ ((row & 8) * 8 + (row & 16)));
}

/* Starts copying 16 columns of the rotation matrix to shared memory. */
__device__ __forceinline__ void few_fetch_r(const kvd_append_args &a, const unit &u, int g,
                                            bool is_v, int first, int lane, uint32_t to)
{
    const int before = (is_v ? a.map.o_offset : a.map.q_offset)[g * a.map.group] / a.map.group;
    const uint16_t *r = static_cast<const uint16_t *>(is_v ? a.r_v : a.r_qk) +
                        (size_t)a.d_head * (size_t)before + (first + lane % 2 * 8);
#pragma unroll
    for (int row = lane / 2; row < 32 * FEW_SLABS; row += 16) {
        const bool there = row < a.d_head;
        kvd_copy_16(to + few_r_offset(row, lane % 2), r + (there ? (size_t)row * (size_t)u.d : 0),
                    there ? 16 : 0);
    }
}

template <int ROPE>
__device__ __forceinline__ void few_find(const params &p, unit &u, int b, int head, int g, int k,
                                         int c, float4 (&cos)[4], float4 (&sin)[4])
{
    const kvd_append_args &a = p.a;
    const bool is_q = k < a.map.group, is_v = k == a.map.group + 1;
    const int row = (int)read_word(a.token_start + b), place = (int)read_word(a.kv_len + b) - 1;
    const int pos = a.position ? (int)read_word(a.position + b) : place;
    u.x[0] = static_cast<const uint16_t *>(a.x) + (size_t)row * (size_t)p.x_pitch +
             column_of(a, head, g, is_v);
    if (ROPE != ROPE_NONE && u.rope) {
        const size_t at = (size_t)pos * (size_t)(a.rope_dim / 2);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int f = ROPE == ROPE_PAIRS ? 16 * i + 4 * c : 32 * (i / 2) + 8 * c + 4 * (i % 2);
            uint4 v[2] = {};
            if (f < a.rope_dim / 2) {
                v[0] = read_words(a.rope_cos + at + f);
                v[1] = read_words(a.rope_sin + at + f);
            }
            cos[i] = *reinterpret_cast<const float4 *>(&v[0]);
            sin[i] = *reinterpret_cast<const float4 *>(&v[1]);
        }
    }
    if (is_q) {
        u.to[0] =
            static_cast<uint16_t *>(a.q) + (size_t)b * (size_t)a.map.q_pitch + a.map.q_offset[head];
    } else {
        const int page = (int)read_word(a.page_table + (size_t)b * (size_t)a.max_pages +
                                        place / KVD_PAGE_TOKENS);
        u.to[0] = in_page(a, page, place, g, is_v ? KVD_PAGE_TOKENS * a.map.d_qk[g] : 0, u.d);
        u.zero[0] = place % 8 == 0;
    }
}

template <int ROPE>
__device__ __forceinline__ void few_load(const params &p, const unit &u, int c, bool there,
                                         rows<1, FEW_SLABS> &x)
{
    const int needed = columns_needed<ROPE>(p, u) - 8 * c;
#pragma unroll
    for (int s = 0; s < FEW_SLABS; s++) {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (there && u.x[0] && 32 * s < needed)
            v = read_words(u.x[0] + 32 * s + 8 * c);
        x.word(0, s, 0, 0) = v.x;
        x.word(0, s, 0, 1) = v.y;
        x.word(0, s, 0, 2) = v.z;
        x.word(0, s, 0, 3) = v.w;
#pragma unroll
        for (int w = 0; w < 4; w++)
            x.word(0, s, 1, w) = 0;
    }
}

/* Multiplies tokens by 16 columns of the rotation matrix, whose mma fragments are in `b`, and
 * stores the products. */
template <bool BF>
__device__ __forceinline__ void few_rotate(const unit &u, int c, int first,
                                           const rows<1, FEW_SLABS> &x,
                                           const uint32_t (&b)[FEW_SLABS][2][4])
{
    float acc[2][4] = {};
#pragma unroll
    for (int s = 0; s < FEW_SLABS; s++)
#pragma unroll
        for (int w = 0; w < 2; w++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                mma_in_order<BF>(acc[j], x.f[0][s][w], b[s][j][2 * w], b[s][j][2 * w + 1]);
    if (!u.to[0])
        return;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint16_t *to = u.to[0] + (first / 8 + j) * u.columns_8 + 2 * c;
        *reinterpret_cast<uint32_t *>(to) = pack<BF>(acc[j][0], acc[j][1]);
        if (u.zero[0])
            for (int z = 1; z < 8; z++)
                *reinterpret_cast<uint32_t *>(to + 8 * z) = 0;
    }
}

/* Applies RoPE and the rotation matrix to one token's vector and stores the result. If `there` is
 * false, accesses no memory. */
template <bool BF, int ROPE>
__device__ __forceinline__ void few_compute(const params &p, unit u, int c, int first, bool there,
                                            const float4 (&cos)[4], const float4 (&sin)[4],
                                            const uint32_t (&b)[FEW_SLABS][2][4])
{
    rows<1, FEW_SLABS> x;
    few_load<ROPE>(p, u, c, there, x);
    const float *co = reinterpret_cast<const float *>(cos),
                *si = reinterpret_cast<const float *>(sin);
    if (u.rope && ROPE == ROPE_HALF_128) {
#pragma unroll
        for (int s = 0; s < 2; s++)
            turn_halves<BF>(x, s, 0, co + 8 * s, si + 8 * s);
    } else if (u.rope && ROPE == ROPE_PAIRS) {
#pragma unroll
        for (int s = 0; s < FEW_SLABS; s++)
            if (32 * s + 8 * c < p.a.rope_dim)
                turn_pairs<BF>(x, s, 0, co + 4 * s, si + 4 * s);
    }
    if (!there)
        u.to[0] = NULL;
    if (u.applies_rope)
        few_rotate<BF>(u, c, first, x, b);
    else
        cut<true, 1, FEW_SLABS>(u, c, x);
}

} // namespace

#endif
