/* Layout of a page of quantised K and V: 64 tokens of one KV head. Shared by kernels and tests. */
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
    /* Number of tokens that share a scale of a key channel: 16, 32 or 64. 0: keys have no
     * scales. */
    int32_t k_group;
    /* Number of channels of a token's V that share a scale, or KVD_WIDTH_NARROW if all channels
     * do. */
    int32_t v_group;
    int32_t v_apart; /* number of outliers per value vector */
    /* Number of outliers of K for which a page has room, a multiple of 4. */
    int32_t k_apart;
    /* Number of exponent bits of floating-point codes. 0: codes are integers. */
    int32_t exponent;
    /* Number of channels of a token that share a scale, if quantised numbers are floating-point: 32
     * (scale in E8M0), 16 (scale in E4M3), 0 (no scales). */
    int32_t block;
    /* True if vectors are rotated and divided by their norms before quantisation (method
     * turboquant). */
    bool norms;
    /* True if signs of random projections of the quantisation errors of K are stored, too (method
     * turboquant, qjl=1). */
    bool sketch;
    /* True if V, like K, has one scale per channel (method comet), not per token. */
    bool v_channels;
    /* True if quantisation is symmetric, without a zero point: x = s (code - (2^(bits - 1) - 1)),
     * with scale s. */
    bool symmetric;
    /* True if each dimension has its own number of bits (method allot). The codes of a dimension
     * begin at a new word of the page. Codes of K come before codes of V. */
    bool allotted;
    /* True if pages have the layout kvd_gear_page (method gear). The other members are then
     * unset. */
    bool low_rank;
    /* True if pages have the layout of kvd_packed_rows (methods hetero and rotatekv). The other
     * members are then unset. */
    bool rows;
    bool classes; /* true: layout of kvd_packed_classes; other members unset */
    bool split;   /* true: layout of kvd_packed_split; other members unset */
} kvd_packed_form;

/* Returns true if the method quantises blocks of several tokens, not single tokens. */
KVD_PACKED_INLINE bool kvd_packed_in_blocks(const kvd_packed_form *f)
{
    return f->low_rank || f->classes || f->split;
}

/* Page layout of methods hetero and rotatekv, which quantise tokens one by one. A page has 64
 * tokens: for each KV head K, then V. If `joint` is true, K of all heads comes first. A vector is
 * stored as codes, then words with scales. For every 32 codes, word j has bit j of each code. */
typedef struct {
    /* Bits per number of K and of V, at most 16. With 16 bits, numbers are float16 and have no
     * scales. */
    int32_t bits[2];
    int32_t group; /* numbers of a vector per scale; 0: all */
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

/* Parameters of method zipcache, which stores salient tokens (class 1) with more bits than ordinary
 * tokens (class 0). Arrays have one element per class. Page n / room stores token n of a class. */
typedef struct {
    int32_t bits[2];
    int32_t room[2]; /* number of tokens per page, for each class */
    /* Number of tokens per block. A prompt is one block, whatever its length. */
    int32_t block;
    double share; /* fraction of a block's tokens that are salient */
} kvd_packed_classes;

/* Returns share * n rounded to the nearest integer, with equal results on CPU and GPU. */
KVD_PACKED_INLINE int kvd_packed_share(double share, int n)
{
#ifdef __CUDA_ARCH__
    return (int)__dadd_rn(__dmul_rn(share, (double)n), 0.5);
#else
    return (int)(share * (double)n + 0.5);
#endif
}

KVD_PACKED_INLINE int kvd_packed_salient(const kvd_packed_classes *c, int n)
{
    return kvd_packed_share(c->share, n);
}

/* Returns how many tokens before token `first` are salient (stored with more bits). A block must
 * begin at token `first`. */
KVD_PACKED_INLINE int kvd_packed_salient_before(const kvd_packed_classes *c, int first, int prompt)
{
    return first ? kvd_packed_salient(c, prompt) +
                       (first - prompt) / c->block * kvd_packed_salient(c, c->block)
                 : 0;
}

/* Layout of a page of method zipcache, which stores salient tokens with more bits than ordinary
 * tokens. Parts of a page, in this order:
 *   header  2 words: bit t is 1 if token t is salient
 *           1 word: number of salient tokens in earlier pages; 1 unused word
 *   codes   K of ordinary tokens, K of salient tokens, V of ordinary tokens, V of salient tokens
 *   area    for each block of tokens that begins in the page: scales of K of ordinary tokens and
 *           of salient tokens [2][d_qk], then bf16 largest magnitudes of the channels of V [d_v]
 * K or V of a token is stored as words: for every 32 codes, word j has bit j of each code. V ends
 * with a scale. A scale is a word: float16 step in the lower half, float16 zero point in the upper
 * half. */
typedef struct {
    /* [K, V][ordinary, important tokens] Byte offset of the codes in a page, and 32-bit words per
     * token. */
    int32_t codes[2][2], words[2][2];
    int32_t area, area_bytes, bytes;
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

/* Returns the byte offset of the scales of one block in a page of method zipcache. The block begins
 * at token `first`. */
KVD_PACKED_INLINE int kvd_packed_class_area(const kvd_packed_classes *c,
                                            const kvd_packed_class_page *p, int first)
{
    const int page = first / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS;
    return p->area + (first / c->block - (page + c->block - 1) / c->block) * p->area_bytes;
}

/* Parameters of methods vidkv and turboquant, which quantise some channels with more bits than the
 * others. K and V of `group` tokens are stored together, as one record. */
typedef struct {
    int32_t group;
    double share;
    /* True if vidkv stores V as digits 0, 1, 2, which decode to 0, s and -s, where s is the scale
     * of the channel. A byte has five digits, lowest first, channel by channel. */
    bool ternary;
    int32_t bits; /* bits of other channels (turboquant); chosen channels have one more */
    /* True if the highest bit of a code of K is the sign of a random projection of the quantisation
     * error (turboquant). */
    bool sketch;
} kvd_packed_split;

/* Layout of a record of `group` tokens in one KV head (methods vidkv and turboquant). Chosen
 * channels are stored with more bits than other channels. A record begins with a bit mask of the
 * chosen channels of K; turboquant has a second mask, for V. Arrays have the indices
 * [K, V][chosen channels, other channels]:
 *   channels  number of channels
 *   planes    number of bits of a code; with vidkv, 1-bit codes are signs of Fourier coefficients
 *   codes     byte offset of the codes [channels][planes][group / 8 bytes], one bit for each token
 *   scales    byte offset of the scales: one per channel (vidkv) or token (turboquant) */
typedef struct {
    int32_t channels[2][2], planes[2][2];
    int32_t v_mask; /* offset of the mask of chosen value channels */
    int32_t codes[2][2], scales[2][2];
    int32_t bytes;
} kvd_packed_split_record;

/* Returns how many of the d channels of K (side 0) or V (side 1) get more bits than the others. */
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

/* Norms are stored divided by this power of two, so that probability times norm fits in float16. */
#define KVD_PACKED_NORM 8.0f

/* Byte offsets, multiples of 16, of the parts of a quantised page of 64 tokens. The codes of K are
 * at offset 0. The other parts are:
 *   v       codes of V
 *   k_side  scales of K [64 tokens / k_group][d / 16][16 scales and 16 zero points]
 *   v_side  scales of V [groups of channels][64 tokens / 16][16 scales and 16 zero points]
 *   k_norm  norms of K (turboquant), then norms of the errors of K (turboquant with qjl=1)
 *   v_list  outliers of V [64 tokens][outliers per token]
 *   k_list  number of outliers of K (16 bytes), then the outliers of K
 * Scales of floating-point codes are bytes [blocks of channels][64 tokens] instead. An outlier is a
 * word: float16 value in the lower half, position in the upper half. The position of an outlier of
 * V is its dimension, of an outlier of K its dimension + 128 * (token % 64). */
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

/* Returns the index of the first word of `lane` in unit number `unit`. A unit has the codes of 16
 * dimensions of 64 tokens; each lane of a warp has 32 of them, in `bits` words. */
KVD_PACKED_INLINE int kvd_packed_words(int bits, int unit, int lane)
{
    return (unit * 32 + lane) * bits;
}

/* Returns the lane that has element i of token t's K. Lanes have the elements of operand A of
 * mma.m16n8k16 instructions, with tokens as rows. */
KVD_PACKED_INLINE int kvd_packed_key_lane(int t, int i)
{
    return t % 8 * 4 + i % 8 / 2;
}

/* Returns which of the 32 codes of a warp lane is the code of element i of token t's K. */
KVD_PACKED_INLINE int kvd_packed_key_number(int t, int i)
{
    return 8 * (t / 16) + i % 16 / 8 * 4 + t % 16 / 8 * 2 + i % 2;
}

/* Returns the lane that has element i of token t's V. Lanes have the elements of operand A of
 * mma.m16n8k16 instructions, with dimensions as rows. */
KVD_PACKED_INLINE int kvd_packed_value_lane(int t, int i)
{
    return i % 8 * 4 + t % 8 / 2;
}

/* Each lane of a warp holds 32 codes of V. Returns the index, among these 32, of the code of token
 * t, element i. */
KVD_PACKED_INLINE int kvd_packed_value_number(int t, int i)
{
    return 8 * (t / 16) + t % 16 / 8 * 4 + i % 16 / 8 * 2 + t % 2;
}

/* Returns the index of the scale of x (a token or a dimension) in an array of 16 scales and 16 zero
 * points (float16). In the array, 4 scales and their 4 zero points alternate. */
KVD_PACKED_INLINE int kvd_packed_scale(int x)
{
    return x % 8 / 2 * 8 + x % 16 / 8 * 2 + x % 2;
}

/* Returns the index of the scale of token t in an array of 64 scales, one for each token of a
 * page. */
KVD_PACKED_INLINE int kvd_packed_block_scale(int side, int t)
{
    return side ? t % 8 / 2 * 16 + t / 8 * 2 + t % 2 : t % 8 * 8 + t / 8;
}

/* Location of adjacent bits of a code in one word: `width` bits of words[word], beginning with bit
 * `shift`. */
typedef struct {
    int word, shift, width;
} kvd_packed_piece;

/* Returns where bit number `below` of code n is stored. If `levels` is true, the bits of a code are
 * adjacent. Otherwise they are split into pieces of 8, 4, 2 and 1 bits in separate words. */
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
