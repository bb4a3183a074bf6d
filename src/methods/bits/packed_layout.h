/*
 * Layout of a page of 64 tokens of one KV head, whose numbers are codes of 1 .. 8 bits. Codes are
 * in the order in which the lanes of a warp hold the operands of mma.m16n8k16, so that a lane reads
 * its own words only. Plain C, shared by the kernels (cuda/packed_*.cu) and the tests.
 *
 * A unit is 16 dimensions of 64 tokens. Each of the 32 lanes has 32 of its numbers, in `bits`
 * words; the words are stored as [unit][lane][bits]. A register of an operand has two 16-bit
 * halves. Numbers 0 and 1 of a lane fill one register, numbers 2 and 3 the next one, and so on.
 *
 * K and V are both A operands: a lane has registers r = 0 .. 3 of each 16 rows and 16 columns. The
 * lane's rows are lane / 4 and lane / 4 + 8. Its columns are 2 c, 2 c + 1, 2 c + 8 and 2 c + 9,
 * with c = lane % 4. The number of token t and dimension i is at
 *
 *   keys    rows are tokens, columns dims: lane 4 (t % 8) + i % 8 / 2,
 *           number 8 (t / 16) + 2 r + i % 2 with r = t % 16 / 8 + 2 (i % 16 / 8)
 *   values  rows are dims, columns tokens: lane 4 (i % 8) + t % 8 / 2,
 *           number 8 (t / 16) + 2 r + t % 2 with r = i % 16 / 8 + 2 (t % 16 / 8)
 *
 * Codes of equal steps (kivi) are split into planes by the binary digits of `bits` (3 = 2 + 1, the
 * wider plane holds the lower bits). A plane of w bits takes w words. Numbers 2 p and 2 p + 1 are
 * 16 bits apart in the same word, so that a mask makes two float16 of them. Codes of quantisation
 * levels from a table (kvquant, turboquant; k_group is 0) follow one another: number n is in bits n
 * bits .. of the lane's words, so that adjacent bits look up two levels at once. The code of an
 * outlier, and of a token that is stored whole, is 0.
 *
 * Scales and zero points are float16 in the order in which a lane needs them. 16 positions x (dims
 * of a unit for keys, 16 tokens for values) have 4 blocks of 16 bytes; block (x % 8) / 2 holds the
 * scales of 2 c, 2 c + 1, 2 c + 8 and 2 c + 9, then their zero points.
 *   keys    [64 / k_group][d / 16] such blocks
 *   values  [groups of channels][4] such blocks
 *
 * Floating-point codes (fp8, mxfp4, nvfp4) are numbers of 8 or 4 bits (sign, exponent, mantissa) in
 * one plane. They have no scales and zero points in float16. A block of channels of a token has a
 * scale of 8 bits, or there are none. The scales of a block are 64 adjacent bytes, one per token of
 * the page (kvd_packed_block_scale), block after block.
 *
 * Codes of rotated vectors (turboquant) are indices of quantisation levels. Their scales are norms
 * divided by KVD_PACKED_NORM. Norms of values are in the place of scales; norms of keys are in 64
 * float16, one per token, after the scales of values.
 *
 * The page of a head consists of: codes of keys, codes of values, scales of keys, scales of values,
 * outliers of values [64][v_apart], then a count (16 bytes) and the outliers of keys [k_apart]. An
 * outlier takes 32 bits: its value as float16 in the lower half, its place in the upper half. The
 * place is the dim; for keys it is dim + 128 (token % 64).
 */
#ifndef KVD_METHODS_BITS_PACKED_LAYOUT_H
#define KVD_METHODS_BITS_PACKED_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/layout.h"

#ifdef __CUDACC__
#define KVD_PACKED_INLINE static __host__ __device__ __forceinline__
#else
#define KVD_PACKED_INLINE static inline
#endif

typedef struct {
    int32_t bits;
    /*
     * Number of tokens of a key channel that share a scale: 16, 32 or 64; 0: keys have no scales.
     */
    int32_t k_group;
    /*
     * Number of channels of a token's values that share a scale: 16, 32, 64, or KVD_WIDTH_MAX for
     * all channels.
     */
    int32_t v_group;
    int32_t v_apart; /* number of outliers that each value vector stores */
    /* Number of key outliers for which a page has room, a multiple of 4; 0: none are stored. */
    int32_t k_apart;
    /*
     * Number of exponent bits of floating-point codes. One bit is the sign, the others are the
     * mantissa. 0: codes are integers.
     */
    int32_t exponent;
    /*
     * Number of channels of a token that share a scale of floating-point codes: 32 (the scale is a
     * power of two, E8M0) or 16 (the scale is an E4M3 number). 0: the page has no scales.
     */
    int32_t block;
    bool norms; /* true: vectors are rotated (turboquant), and each key stores its norm */
} kvd_packed_form;

/*
 * Power of two by which stored norms are divided and quantisation levels multiplied, so that
 * attention probabilities times norms fit in float16.
 */
#define KVD_PACKED_NORM 8.0f

/*
 * Offsets in bytes of the parts of one KV head's page, multiples of 16. Codes of keys are at offset
 * 0; `bytes` is the size of the page.
 */
typedef struct {
    int32_t v, k_side, v_side, k_norm, v_list, k_list, bytes;
} kvd_packed_parts;

KVD_PACKED_INLINE int kvd_packed_groups(const kvd_packed_form *f, int d)
{
    return (d + f->v_group - 1) / f->v_group;
}

KVD_PACKED_INLINE int kvd_packed_blocks(const kvd_packed_form *f, int d)
{
    return f->block ? (d + f->block - 1) / f->block : 0;
}

KVD_PACKED_INLINE kvd_packed_parts kvd_packed_parts_of(const kvd_packed_form *f, int d_qk, int d_v)
{
    kvd_packed_parts p;
    p.v = 8 * d_qk * f->bits;
    p.k_side = p.v + 8 * d_v * f->bits;
    if (f->exponent) {
        p.v_side = p.k_side + kvd_packed_blocks(f, d_qk) * KVD_PAGE_TOKENS;
        p.k_norm = p.v_side + kvd_packed_blocks(f, d_v) * KVD_PAGE_TOKENS;
    } else {
        p.v_side = p.k_side + (f->k_group ? KVD_PAGE_TOKENS / f->k_group * d_qk * 4 : 0);
        p.k_norm = p.v_side + kvd_packed_groups(f, d_v) * KVD_PAGE_TOKENS * 4;
    }
    p.v_list = p.k_norm + (f->norms ? 2 * KVD_PAGE_TOKENS : 0);
    p.k_list = p.v_list + KVD_PAGE_TOKENS * 4 * f->v_apart;
    p.bytes = p.k_list + (f->k_apart ? 16 + 4 * f->k_apart : 0);
    return p;
}

/*
 * Returns the index of a lane's first word of a unit (16 dims), counted from the start of the codes
 * of K or V.
 */
KVD_PACKED_INLINE int kvd_packed_words(int bits, int unit, int lane)
{
    return (unit * 32 + lane) * bits;
}

KVD_PACKED_INLINE int kvd_packed_key_lane(int t, int i)
{
    return t % 8 * 4 + i % 8 / 2;
}

KVD_PACKED_INLINE int kvd_packed_key_number(int t, int i)
{
    return 8 * (t / 16) + i % 16 / 8 * 4 + t % 16 / 8 * 2 + i % 2;
}

KVD_PACKED_INLINE int kvd_packed_value_lane(int t, int i)
{
    return i % 8 * 4 + t % 8 / 2;
}

KVD_PACKED_INLINE int kvd_packed_value_number(int t, int i)
{
    return 8 * (t / 16) + t % 16 / 8 * 4 + i % 16 / 8 * 2 + t % 2;
}

/*
 * Returns the index, in float16 numbers, of one of 16 scales in 64 bytes that also hold their zero
 * points. x is the dim (keys) or token (values) of the scale, of which x % 16 counts. The zero
 * point is 4 numbers further.
 */
KVD_PACKED_INLINE int kvd_packed_scale(int x)
{
    return x % 8 / 2 * 8 + x % 16 / 8 * 2 + x % 2;
}

/*
 * Returns the index of the scale of token t in the 64 bytes of a block's scales. A lane reads the
 * scales of its tokens as 8 adjacent bytes for keys (side 0), and as 16 for values (side 1).
 */
KVD_PACKED_INLINE int kvd_packed_block_scale(int side, int t)
{
    return side ? t % 8 / 2 * 16 + t / 8 * 2 + t % 2 : t % 8 * 8 + t / 8;
}

/*
 * Location of a part of the code of number n (0 .. 31) of a lane. Bits `below` .. below + width - 1
 * of the code are in words[word] from bit `shift` on. The next part begins at below + width.
 */
typedef struct {
    int word, shift, width;
} kvd_packed_piece;

KVD_PACKED_INLINE kvd_packed_piece kvd_packed_piece_of(bool levels, int bits, int n, int below)
{
    kvd_packed_piece p;
    if (levels) {
        const int at = n * bits + below;
        p.word = at / 32;
        p.shift = at % 32;
        p.width = bits - below < 32 - p.shift ? bits - below : 32 - p.shift;
    } else {
        int w = 8;
        while (!((bits - below) & w))
            w /= 2;
        p.word = below + n / (32 / w);
        p.shift = n % 2 * 16 + n % (32 / w) / 2 * w;
        p.width = w;
    }
    return p;
}

KVD_PACKED_INLINE uint32_t kvd_packed_get(const uint32_t *words, bool levels, int bits, int n)
{
    uint32_t code = 0;
    for (int below = 0; below < bits;) {
        const kvd_packed_piece p = kvd_packed_piece_of(levels, bits, n, below);
        code |= (words[p.word] >> p.shift & ((1u << p.width) - 1)) << below;
        below += p.width;
    }
    return code;
}

KVD_PACKED_INLINE void kvd_packed_put(uint32_t *words, bool levels, int bits, int n, uint32_t code)
{
    for (int below = 0; below < bits;) {
        const kvd_packed_piece p = kvd_packed_piece_of(levels, bits, n, below);
        const uint32_t mask = (1u << p.width) - 1;
        words[p.word] = (words[p.word] & ~(mask << p.shift)) | (code >> below & mask) << p.shift;
        below += p.width;
    }
}

#endif
