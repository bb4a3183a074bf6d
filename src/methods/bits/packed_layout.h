/*
 * Layout of a page: 64 tokens of one KV head, stored as codes of 1 .. 8 bits. The codes are in the
 * order in which the lanes of a warp hold the operands of mma.m16n8k16, so that a lane reads its
 * own words only. Plain C, shared by the kernels (cuda/packed_*.cu) and the tests.
 *
 * A unit is 16 dimensions of 64 tokens. Each of the 32 lanes has 32 numbers of a unit, in `bits`
 * words: [unit][lane][bits]. Numbers 2 p and 2 p + 1 of a lane fill register p of an operand.
 *
 * K and V are both A operands. A lane has four registers r = 0 .. 3 for each tile of 16 rows and 16
 * columns. The rows of a lane are lane / 4 and lane / 4 + 8. The columns of a lane are 2 c, 2 c +
 * 1, 2 c + 8 and 2 c + 9, with c = lane % 4. The number of token t and dimension i is in this lane,
 * at this index among the lane's numbers:
 *
 *   keys    rows are tokens, columns dims: lane 4 (t % 8) + i % 8 / 2,
 *           number 8 (t / 16) + 2 r + i % 2 with r = t % 16 / 8 + 2 (i % 16 / 8)
 *   values  rows are dims, columns tokens: lane 4 (i % 8) + t % 8 / 2,
 *           number 8 (t / 16) + 2 r + t % 2 with r = i % 16 / 8 + 2 (t % 16 / 8)
 *
 * Codes of equal steps (kivi) are split into planes by the binary digits of `bits`. For example, 3
 * bits are a plane of 2 bits, which holds the lower bits, and a plane of 1 bit. A plane of w bits
 * takes w words. Numbers 2 p and 2 p + 1 are 16 bits apart in a word, so that a mask makes two
 * float16 of them.
 *
 * Codes of quantisation levels (kvquant, turboquant; k_group is 0) are adjacent: number n starts at
 * bit n * bits of the lane's words. Adjacent bits look up two levels at once. The code of an
 * outlier, and of a token that is stored whole, is 0.
 *
 * Scales and zero points are float16. Keys have them per dimension, values per token. For 16
 * dimensions or tokens x there are 4 blocks of 16 bytes. Block c = (x % 8) / 2 holds the scales of
 * x = 2 c, 2 c + 1, 2 c + 8 and 2 c + 9, then their zero points.
 *
 *   keys    [64 / k_group][d / 16] such blocks
 *   values  [groups of channels][4] such blocks
 *
 * Floating-point codes (fp8, mxfp4, nvfp4) have 8 or 4 bits (sign, exponent, mantissa) in one
 * plane. A block of channels of a token has a scale of 8 bits, or no scale. The scales of a block
 * are 64 adjacent bytes, one per token (kvd_packed_block_scale), block after block.
 *
 * Codes of rotated vectors (turboquant) have norms, divided by KVD_PACKED_NORM, as scales. Norms of
 * values replace the scales of values. Norms of keys are 64 float16, one per token, after the norms
 * of values. With a sketch, the highest bit of a key's code is the sign of its sketched residual,
 * and 64 float16 after the norms of keys are the norms of the residuals, not divided.
 *
 * The parts of a page are: codes of keys, codes of values, scales of keys, scales of values,
 * outliers of values [64][v_apart], a count (16 bytes), outliers of keys [k_apart]. An outlier
 * takes 32 bits: its value as float16 in the lower half, its place in the upper half. The place is
 * the dimension; for keys it is dimension + 128 (token % 64).
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
     * Number of tokens of a key channel that share a scale in a page: 16, 32 or 64. 0: keys have no
     * scales. If more than 64 tokens share a scale, each page with some of these tokens has a copy
     * of the scale.
     */
    int32_t k_group;
    /*
     * Number of channels of a token's values that share a scale: 16, 32, 64, or KVD_WIDTH_NARROW
     * for all.
     */
    int32_t v_group;
    int32_t v_apart; /* outliers per value vector */
    /*
     * Number of key outliers for which a page has room, a multiple of 4. 0: no outliers are stored.
     */
    int32_t k_apart;
    /*
     * Number of exponent bits of floating-point codes. One bit is the sign, the rest are the
     * mantissa. 0: codes are integers.
     */
    int32_t exponent;
    /*
     * Number of channels of a token that share a scale of floating-point codes. 32: the scale is a
     * power of two (E8M0). 16: the scale is an E4M3 number. 0: no scales.
     */
    int32_t block;
    /*
     * true: vectors are rotated and divided by their norms, which are stored as scales (turboquant)
     */
    bool norms;
    /*
     * true: keys also store the signs of random projections (a sketch) of their residuals
     * (turboquant, qjl=1)
     */
    bool sketch;
    /*
     * True if values are stored like keys: as A operands with tokens in rows, and with one scale
     * per channel for k_group tokens (comet).
     */
    bool v_channels;
    /*
     * True if codes of equal steps have no zero point: x = s (code - (2^(bits - 1) - 1)). The
     * memory for zero points is unused.
     */
    bool symmetric;
    /*
     * True if every dimension has its own number of bits (allot). A KV head of a page then has only
     * codes: first those of K, dimension by dimension, then those of V. The codes of a dimension
     * begin at a new 32-bit word. In a dimension with n bits, the code of token t is bits t * n ..
     * t * n + n - 1 of these words.
     */
    bool allotted;
    /* true: pages have the layout of gear.h, and other members of this struct are not set */
    bool low_rank;
    /*
     * True if every token is coded independently of other tokens (layout: kvd_packed_rows). Other
     * members of this struct are not set.
     */
    bool rows;
    bool classes; /* true: pages have the layout of kvd_packed_classes; other members are not set */
    bool split;   /* true: pages have the layout of kvd_packed_split; other members are not set */
} kvd_packed_form;

/*
 * Returns true if the method codes tokens in blocks. The coded tokens of a prompt are then one
 * block.
 */
KVD_PACKED_INLINE bool kvd_packed_in_blocks(const kvd_packed_form *f)
{
    return f->low_rank || f->classes || f->split;
}

/*
 * Codes of single tokens (hetero, rotatekv). A vector of n numbers of a token takes
 * kvd_packed_row_words adjacent words: for each 32 numbers, word j has bit j of their codes; then a
 * word per scale. A page has these words of its 64 tokens for the first vector, then those for the
 * next vector, and so on.
 */
typedef struct {
    /* bits of keys and of values, at most 16; 16 means float16 numbers without scales */
    int32_t bits[2];
    int32_t group; /* numbers of a vector that share a scale; 0: all */
    bool joint;    /* true: the keys of all KV heads are one vector */
} kvd_packed_rows;

KVD_PACKED_INLINE int kvd_packed_row_groups(const kvd_packed_rows *r, int side, int n)
{
    return r->bits[side] == 16 ? 0 : r->group ? (n + r->group - 1) / r->group : 1;
}

KVD_PACKED_INLINE int kvd_packed_row_words(const kvd_packed_rows *r, int side, int n)
{
    return (n + 31) / 32 * r->bits[side] + kvd_packed_row_groups(r, side, n);
}

/*
 * Codes of two classes of tokens (zipcache): salient tokens [1] and the other tokens [0]. The
 * tokens of a class are numbered by their positions. A page has room for room[c] records of class
 * c. Token number n of class c of a request is record n % room[c] of page n / room[c], which need
 * not be the page of the token. The pages of a request thus fill up evenly.
 *
 * The parts of a page are: a bit for each of its 64 tokens, 1 if the token is salient (2 words);
 * the number of salient tokens before the page (1 word); 1 unused word; records of keys of class 0
 * and of class 1; records of values of class 0 and of class 1; and one area for each block of
 * tokens whose first token is in the page. All coded tokens of a prompt are one block.
 *
 *   record  words of codes: for each 32 numbers, word j has bit j of their codes; in a record of
 *           values then a word with the float16 step in its lower half and the zero point above
 *   area    [2][d_qk] words with the step and the zero point of a key channel in each class, then
 *           [d_v] largest magnitudes of the channels of values in bf16
 */
typedef struct {
    int32_t bits[2];
    int32_t room[2]; /* room for records in a page, for each class */
    int32_t block;   /* tokens of a block after the prompt */
    double share;    /* fraction of the tokens of a block that are salient */
} kvd_packed_classes;

/* Returns share * n rounded to the nearest integer. CPU and GPU give the same result. */
KVD_PACKED_INLINE int kvd_packed_share(double share, int n)
{
#ifdef __CUDA_ARCH__
    return (int)__dadd_rn(__dmul_rn(share, (double)n), 0.5);
#else
    return (int)(share * (double)n + 0.5);
#endif
}

/* Returns the number of salient tokens of a block of n tokens. */
KVD_PACKED_INLINE int kvd_packed_salient(const kvd_packed_classes *c, int n)
{
    return kvd_packed_share(c->share, n);
}

/*
 * Returns the number of salient tokens before the block that begins with token `first`, in a
 * request whose first `prompt` tokens are one block.
 */
KVD_PACKED_INLINE int kvd_packed_salient_before(const kvd_packed_classes *c, int first, int prompt)
{
    return first ? kvd_packed_salient(c, prompt) +
                       (first - prompt) / c->block * kvd_packed_salient(c, c->block)
                 : 0;
}

/* Byte offsets of the parts of a page (multiples of 16), and the sizes of records in words. */
typedef struct {
    /* for keys and values of each class: offset of the codes in a page, and words per record */
    int32_t codes[2][2], words[2][2];
    int32_t area, area_bytes, bytes; /* first area, size of an area, and of the page */
} kvd_packed_class_page;

KVD_PACKED_INLINE kvd_packed_class_page kvd_packed_class_page_of(const kvd_packed_classes *c,
                                                                 int d_qk, int d_v)
{
    kvd_packed_class_page p;
    p.bytes = 16;
    for (int side = 0; side < 2; side++)
        for (int k = 0; k < 2; k++) {
            p.words[side][k] = ((side ? d_v : d_qk) + 31) / 32 * c->bits[k] + side;
            p.codes[side][k] = p.bytes;
            p.bytes += (c->room[k] * p.words[side][k] * 4 + 15) / 16 * 16;
        }
    p.area = p.bytes;
    p.area_bytes = 8 * d_qk + 2 * d_v;
    p.bytes += (KVD_PAGE_TOKENS + c->block - 1) / c->block * p.area_bytes;
    return p;
}

/*
 * Returns the offset of a block's area in its page. The block begins with token `first`. Blocks
 * begin at multiples of c->block.
 */
KVD_PACKED_INLINE int kvd_packed_class_area(const kvd_packed_classes *c,
                                            const kvd_packed_class_page *p, int first)
{
    const int page = first / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS;
    return p->area + (first / c->block - (page + c->block - 1) / c->block) * p->area_bytes;
}

/*
 * Codes whose channels are divided in two parts, anew in every block of tokens (vidkv, turboquant
 * with a fraction of a bit): the chosen channels [0] and the other channels [1]. A page has a
 * record for each `group` of its tokens. All tokens of a group belong to one block.
 *
 * The parts of a record are, in this order: a bit for each key channel, 1 if the channel is chosen;
 * for turboquant, such a bit for each channel of values; codes and scales of keys, first of the
 * chosen channels; codes and scales of values. The bits are in words, padded to 16 bytes. Channels
 * of a part are in rising order. A channel with n bits has n bit planes of group / 8 bytes each, in
 * which token t is bit t % 8 of byte t / 8.
 *
 *   vidkv
 *     chosen keys  2 bits; a word per channel with the float16 step and the zero point above it
 *     other keys   1 bit per coefficient of their Fourier transform, 1 if it is negative; the
 *                  float16 mean magnitude of each coefficient
 *     values       as chosen keys. If `ternary` is set, a byte holds five ternary digits, the first
 *                  one the lowest, channel by channel. With the float16 number s of the channel,
 *                  digit 0 means 0, 1 means s, 2 means -s.
 *   turboquant     indices of levels of the rotated part; the float16 norms of the tokens. With a
 *                  sketch, the highest bit of a key is the sign of its sketched residual, and the
 *                  float16 norms of the residuals follow.
 */
typedef struct {
    int32_t group; /* 16, 32 or 64 */
    double share;  /* fraction of channels that are chosen */
    bool ternary;
    int32_t bits; /* turboquant: bits of the other channels; the chosen channels have one more */
    bool sketch;  /* turboquant: keys store signs of their sketched residuals */
} kvd_packed_split;

/*
 * Layout of a record: numbers of channels, sizes and byte offsets of its parts, for keys [0] and
 * values [1]. The second index is 0 for chosen channels and 1 for other channels.
 */
typedef struct {
    int32_t channels[2][2], planes[2][2];
    int32_t v_mask; /* offset of the bits that mark the chosen channels of values */
    int32_t codes[2][2], scales[2][2];
    int32_t bytes; /* bytes of a record, a multiple of 16 */
} kvd_packed_split_record;

/*
 * Returns how many of the d channels of a head's of keys (side 0) or of values (side 1) are chosen.
 */
KVD_PACKED_INLINE int kvd_packed_chosen(const kvd_packed_split *s, int side, int d)
{
    return s->bits ? kvd_packed_share(s->share, d) : side ? 0 : (int)(s->share * (double)d);
}

KVD_PACKED_INLINE kvd_packed_split_record kvd_packed_split_record_of(const kvd_packed_split *s,
                                                                     int d_qk, int d_v)
{
    kvd_packed_split_record r;
    r.v_mask = (d_qk + 127) / 128 * 16;
    r.bytes = r.v_mask + (s->bits ? (d_v + 127) / 128 * 16 : 0);
    for (int side = 0; side < 2; side++)
        for (int part = 0; part < 2; part++) {
            const int d = side ? d_v : d_qk, chosen = kvd_packed_chosen(s, side, d),
                      n = part ? d - chosen : chosen,
                      planes = s->bits         ? s->bits + !part
                               : side || !part ? 2
                                               : 1;
            const bool ternary = side && s->ternary;
            const int codes = ternary ? (s->group * n + 4) / 5 : planes * n * s->group / 8,
                      scales = s->bits                  ? s->group * (s->sketch && !side ? 4 : 2)
                               : ternary || planes == 1 ? 2 * n
                                                        : 4 * n;
            r.channels[side][part] = n;
            r.planes[side][part] = planes;
            r.codes[side][part] = r.bytes;
            r.bytes += (codes + 15) / 16 * 16;
            r.scales[side][part] = r.bytes;
            r.bytes += (scales + 15) / 16 * 16;
        }
    return r;
}

/*
 * Stored norms are divided by this power of two, so that probabilities times norms fit in float16.
 * The quantisation levels are multiplied by it.
 */
#define KVD_PACKED_NORM 8.0f

/*
 * Byte offsets of the parts of a page, multiples of 16. Codes of keys are at offset 0; `bytes` is
 * the size of the page.
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
        p.k_norm = p.v_side + (f->v_channels ? KVD_PAGE_TOKENS / f->k_group * d_v * 4
                                             : kvd_packed_groups(f, d_v) * KVD_PAGE_TOKENS * 4);
    }
    p.v_list = p.k_norm + (f->norms ? (f->sketch ? 4 : 2) * KVD_PAGE_TOKENS : 0);
    p.k_list = p.v_list + KVD_PAGE_TOKENS * 4 * f->v_apart;
    p.bytes = p.k_list + (f->k_apart ? 16 + 4 * f->k_apart : 0);
    return p;
}

/*
 * Returns the index of a lane's first word of a unit (16 dimensions of 64 tokens), counted from the
 * start of the codes of K or V.
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
 * Returns the index, in float16 numbers, of the scale of dimension x (keys) or token x (values)
 * within a group of 16 scales. The zero point is 4 numbers after the scale.
 */
KVD_PACKED_INLINE int kvd_packed_scale(int x)
{
    return x % 8 / 2 * 8 + x % 16 / 8 * 2 + x % 2;
}

/*
 * Returns the index of the scale of token t among the 64 scales of a block of channels. A lane
 * reads the scales of its tokens as 8 adjacent bytes for keys (side 0), and as 16 for values (side
 * 1).
 */
KVD_PACKED_INLINE int kvd_packed_block_scale(int side, int t)
{
    return side ? t % 8 / 2 * 16 + t / 8 * 2 + t % 2 : t % 8 * 8 + t / 8;
}

/*
 * Piece of a code that is in one word: the code's bits `below` to below + width - 1 are stored in
 * words[word], from bit `shift` of that word on. The next piece of the code starts at bit below +
 * width.
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
