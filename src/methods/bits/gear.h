/*
 * Sizes of the blocks of gear, and the layout of its pages on a GPU. A page is 64 tokens of one KV
 * head. Plain C, shared by the method, the kernels (cuda/packed_gear.cu) and the tests.
 *
 * Codes are bit planes: bit j of 32 codes is one word. Keys have [d_qk][2][bits] words, where a
 * word has 32 tokens of a channel. Values have [64][(d_v + 31) / 32][bits] words, where a word has
 * 32 channels of a token. A scale word is the float16 step in the lower half and the float16 zero
 * point in the upper half. An outlier takes 32 bits: its value as float16 in the lower half, its
 * place (index of a token or channel) in the upper half. Factors are float16.
 *
 * The parts of a page are: codes of keys, codes of values, scales of values [64][groups], outliers
 * of values [64][v_apart] (place: channel), rows of the left factors of keys and of values
 * [64][left], and an area. The area holds the part of the prompt, if the page has tokens of it, and
 * one record for each later block whose first token is in the page.
 *
 *   part of the prompt  scales of keys [k_groups][d_qk] of the groups that begin in the page, then
 *                       outliers of keys [k_room][d_qk] (place: token of the prompt). A page need
 *                       not hold the outliers of its own tokens: outlier e of a channel is in page
 *                       e / k_room of the request.
 *   record              scales of keys [k_groups_later][d_qk], outliers of keys [k_later][d_qk]
 *                       (place: token of the block), right factors of keys [d_qk][right_later] and
 *                       of values [d_v][right_later]
 *
 * The right factors of the prompt belong to the slot of the request.
 */
#ifndef KVD_METHODS_BITS_GEAR_H
#define KVD_METHODS_BITS_GEAR_H

#include "methods/bits/packed_layout.h"

struct kvd_parameter_values;

/*
 * Largest rank on a GPU, and largest number of tokens of a prompt or of a block. The place of an
 * outlier, a token index, must fit into 16 bits.
 */
enum { KVD_GEAR_RANK = 8, KVD_GEAR_TOKENS = 65536 };

/* Parameters of method gear. */
typedef struct {
    int32_t bits, group, rank, rank_later, buffer, iterations;
    double outliers; /* fraction of numbers */
} kvd_gear;

kvd_gear kvd_gear_of(const struct kvd_parameter_values *v);

/*
 * Returns the number of outliers at the lower end of a line of n numbers (a key channel over
 * tokens, or a token's value). The line has as many outliers at the upper end.
 */
KVD_PACKED_INLINE int kvd_gear_apart(const kvd_gear *s, int n)
{
    const int k = (int)(s->outliers * (double)n / 2 + 0.5);
    return 2 * k < n ? k : 0;
}

/* Returns the rank of the low-rank part of a block of n tokens with d channels. */
KVD_PACKED_INLINE int kvd_gear_rank(const kvd_gear *s, int n, int d, bool prompt)
{
    const int wanted = prompt ? s->rank : s->rank_later, least = n < d ? n : d;
    return wanted < least ? wanted : least;
}

/* Returns the bits of a block of n tokens with d channels, except the bits of the codes. */
double kvd_gear_side_bits(const kvd_gear *s, bool keys, int n, int d, bool prompt);

KVD_PACKED_INLINE int kvd_gear_pieces(int n, int piece)
{
    return (n + piece - 1) / piece;
}

/* Returns the number of columns of a stored factor: `rank` rounded up to an even number. */
KVD_PACKED_INLINE int kvd_gear_columns(int rank)
{
    return (rank + 1) / 2 * 2;
}

/*
 * Byte offsets of the parts of a page of one KV head, and numbers of bytes in the page's area: of
 * the prompt's part and of a later block's record. All are multiples of 16. Codes of keys are at
 * offset 0.
 */
typedef struct {
    int32_t v, v_side, v_list, left[2], area, prompt, record;
    int32_t v_groups, v_apart, k_groups, k_groups_later, k_later;
    /*
     * columns of the right factors of a prompt, of the right factors of a later block, and of left
     * factors
     */
    int32_t columns, columns_later, columns_left;
} kvd_gear_page;

/*
 * Returns the layout of a page of a KV head. k_room is the number of outliers of one key channel of
 * a prompt that fit in a page.
 */
KVD_PACKED_INLINE kvd_gear_page kvd_gear_page_of(const kvd_gear *s, int k_room, int d_qk, int d_v)
{
    kvd_gear_page p;
    p.v_groups = kvd_gear_pieces(d_v, s->group);
    p.v_apart = 2 * kvd_gear_apart(s, d_v);
    p.k_groups = kvd_gear_pieces(KVD_PAGE_TOKENS, s->group);
    p.k_groups_later = kvd_gear_pieces(s->buffer, s->group);
    p.k_later = 2 * kvd_gear_apart(s, s->buffer);
    p.columns = kvd_gear_columns(s->rank);
    p.columns_later = kvd_gear_columns(s->rank_later);
    p.columns_left = p.columns > p.columns_later ? p.columns : p.columns_later;
    p.v = 8 * d_qk * s->bits;
    p.v_side = p.v + KVD_PAGE_TOKENS * kvd_gear_pieces(d_v, 32) * s->bits * 4;
    p.v_list = p.v_side + KVD_PAGE_TOKENS * p.v_groups * 4;
    p.left[0] = p.v_list + KVD_PAGE_TOKENS * p.v_apart * 4;
    p.left[1] = p.left[0] + KVD_PAGE_TOKENS * p.columns_left * 2;
    p.area = p.left[1] + KVD_PAGE_TOKENS * p.columns_left * 2;
    p.prompt = (p.k_groups + k_room) * d_qk * 4;
    p.record = (p.k_groups_later + p.k_later) * d_qk * 4 + p.columns_later * (d_qk + d_v) * 2;
    return p;
}

/*
 * Returns the offset of a block's record in the area of its page. The block begins with token
 * `first`. The first `prompt` tokens of the request (a multiple of `buffer`) are the prompt, which
 * was coded as one block.
 */
KVD_PACKED_INLINE int kvd_gear_record(const kvd_gear *s, const kvd_gear_page *p, int first,
                                      int prompt)
{
    const int page = first / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS,
              from = prompt > page ? prompt : page;
    return (page < prompt ? p->prompt : 0) +
           (first / s->buffer - kvd_gear_pieces(from, s->buffer)) * p->record;
}

/*
 * Returns the index of a group of tokens among the groups of the prompt that begin in the same
 * page. `first` is the first token of the group.
 */
KVD_PACKED_INLINE int kvd_gear_group(const kvd_gear *s, int first)
{
    return first / s->group - kvd_gear_pieces(first / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS, s->group);
}

#endif
