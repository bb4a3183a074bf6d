/* Block sizes of gear and its page layout on a GPU. Shared by method, kernels and tests. A prompt
 * is one block; tokens after the prompt form later blocks of `buffer` tokens.
 *
 * A page holds 64 tokens of one KV head. Codes are bit planes: bit j of 32 codes is one word.
 * Low-rank factors are float16 matrices. Sizes such as v_groups and columns_left (columns of the
 * left factors) are members of kvd_gear_page.
 *   keys           [d_qk][2][bits] words of 32 tokens of a channel
 *   values         [64][(d_v + 31) / 32][bits] words of 32 channels of a token
 *   scale          word: float16 step in the lower half, float16 zero point in the upper half
 *   outlier        word: float16 value in the lower half, 16-bit place in the upper half
 *
 * Parts of a page, in this order:
 *   1. codes of keys, codes of values
 *   2. scales of values [64][v_groups], outliers of values [64][v_apart] (place: channel)
 *   3. left factors of keys and of values [64][columns_left]
 *   4. if the page has prompt tokens: scales of the prompt's keys [k_groups][d_qk], then outliers
 *      of these keys [k_room][d_qk] (place: token of the prompt), outlier e of a channel in page
 *      e / k_room
 *   5. a record for each later block that begins in the page: scales of keys
 *      [k_groups_later][d_qk], outliers of keys [k_later][d_qk] (place: token of the block), right
 *      factors of keys [d_qk][columns_later] and of values [d_v][columns_later]
 * Parts 4 and 5 begin at kvd_gear_page.area. The prompt's right factors are stored per slot, in
 * kvd_packed_gear.right. */
#ifndef KVD_METHODS_BITS_GEAR_H
#define KVD_METHODS_BITS_GEAR_H

#include "methods/bits/packed_layout.h"

struct kvd_parameter_values;

/* Largest rank of the low-rank factors of method gear on a GPU, and largest number of tokens in a
 * block. */
enum { KVD_GEAR_RANK = 8, KVD_GEAR_TOKENS = 65536 };

typedef struct {
    int32_t bits, group, rank, rank_later, buffer, iterations;
    double outliers;
} kvd_gear;

kvd_gear kvd_gear_of(const struct kvd_parameter_values *v);

/* Returns how many of n numbers are stored as outliers at each end: the smallest, and as many
 * largest. */
KVD_PACKED_INLINE int kvd_gear_apart(const kvd_gear *s, int n)
{
    const int k = (int)(s->outliers * (double)n / 2 + 0.5);
    return 2 * k < n ? k : 0;
}

KVD_PACKED_INLINE int kvd_gear_rank(const kvd_gear *s, int n, int d, bool prompt)
{
    const int wanted = prompt ? s->rank : s->rank_later, least = n < d ? n : d;
    return wanted < least ? wanted : least;
}

/* Returns the bits of scales, outliers and low-rank factors of K or V, for a block of n tokens of d
 * channels. */
double kvd_gear_side_bits(const kvd_gear *s, bool keys, int n, int d, bool prompt);

KVD_PACKED_INLINE int kvd_gear_pieces(int n, int piece)
{
    return (n + piece - 1) / piece;
}

KVD_PACKED_INLINE int kvd_gear_columns(int rank)
{
    return (rank + 1) / 2 * 2;
}

/* Byte offsets, multiples of 16, of the parts of a page of method gear for one KV head. */
typedef struct {
    int32_t v, v_side, v_list, left[2], area, prompt, record;
    int32_t v_groups, v_apart, k_groups, k_groups_later, k_later;
    /* Numbers of columns of low-rank factors: right factors of the prompt, right factors of later
     * blocks, left factors. */
    int32_t columns, columns_later, columns_left;
} kvd_gear_page;

/* Returns the layout of a page of method gear. `k_room` is the number of outliers of the prompt's K
 * that a page stores per channel. */
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

/* Returns the offset, from kvd_gear_page.area on, of the data of the block of tokens that begins at
 * token `first`. */
KVD_PACKED_INLINE int kvd_gear_record(const kvd_gear *s, const kvd_gear_page *p, int first,
                                      int prompt)
{
    const int page = first / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS,
              from = prompt > page ? prompt : page;
    return (page < prompt ? p->prompt : 0) +
           (first / s->buffer - kvd_gear_pieces(from, s->buffer)) * p->record;
}

/* Returns the index in its page of the group of tokens that begins at `first`. A group's tokens
 * share the scales of K. */
KVD_PACKED_INLINE int kvd_gear_group(const kvd_gear *s, int first)
{
    return first / s->group - kvd_gear_pieces(first / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS, s->group);
}

#endif
