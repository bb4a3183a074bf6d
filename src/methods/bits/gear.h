/* Parameters and page layout of method gear. A prompt is one block of tokens. Tokens after the
 * prompt form blocks of `buffer` tokens. */
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

/* Returns the number k of outliers at each end of n numbers. The k smallest and the k largest
 * numbers are outliers. */
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

/* Returns the number of bits of scales, outliers and low-rank factors of K or V, for a block of n
 * tokens of d channels. */
double kvd_gear_side_bits(const kvd_gear *s, bool keys, int n, int d, bool prompt);

KVD_PACKED_INLINE int kvd_gear_pieces(int n, int piece)
{
    return (n + piece - 1) / piece;
}

KVD_PACKED_INLINE int kvd_gear_columns(int rank)
{
    return (rank + 1) / 2 * 2;
}

/* Byte offsets of the parts of a page of method gear, multiples of 16. A page has 64 tokens of one
 * KV head. It begins with codes of K [d_qk][2][bits]; word j has bit j of the codes of 32 tokens.
 *   v       codes of V [64][(d_v + 31) / 32][bits]; word j has bit j of 32 channels
 *   v_side  scales of V [64][v_groups]
 *   v_list  outliers of V [64][v_apart]
 *   left    left low-rank factors of K and of V, float16 [64][columns_left]
 *   area    scales of K [k_groups][d_qk] and outliers of K [k_room][d_qk], if the page has prompt
 *           tokens; then a record for each block of tokens after the prompt that begins in the page
 * A record has scales of K [k_groups_later][d_qk], outliers of K [k_later][d_qk], and right
 * low-rank factors of K [d_qk][columns_later] and of V [d_v][columns_later].
 * A scale is a word: float16 step in the lower half, float16 zero point in the upper half. An
 * outlier is a word: float16 value in the lower half; channel (V) or token of the block (K) in the
 * upper half. */
typedef struct {
    int32_t v, v_side, v_list, left[2], area, prompt, record;
    int32_t v_groups, v_apart, k_groups, k_groups_later, k_later;
    /* Numbers of columns of low-rank factors. columns: right factors of the prompt. columns_later:
     * right factors of blocks of tokens after the prompt. columns_left: left factors. */
    int32_t columns, columns_later, columns_left;
} kvd_gear_page;

/* Returns the layout of a page of method gear. A page has room for `k_room` outliers per channel of
 * the prompt's K. Outlier e of a channel is in page e / k_room. */
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

/* A page has the scales, outliers and factors of the block that begins at token `first`. Returns
 * their offset in bytes, counted from kvd_gear_page.area on. */
KVD_PACKED_INLINE int kvd_gear_record(const kvd_gear *s, const kvd_gear_page *p, int first,
                                      int prompt)
{
    const int page = first / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS,
              from = prompt > page ? prompt : page;
    return (page < prompt ? p->prompt : 0) +
           (first / s->buffer - kvd_gear_pieces(from, s->buffer)) * p->record;
}

/* Returns the index, in its page, of the group of tokens that begins at token `first`. The tokens
 * of a group share scales of K. */
KVD_PACKED_INLINE int kvd_gear_group(const kvd_gear *s, int first)
{
    return first / s->group - kvd_gear_pieces(first / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS, s->group);
}

#endif
