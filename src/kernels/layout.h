/*
 * What every attention kernel of kvdim agrees on: heads of unequal width, ragged requests, and how Q, K, V and O
 * lie in memory. Plain C, no CUDA, no HDF5.
 *
 * Heads. Query head h reads KV head g = h / (n_heads / n_kv_heads). The heads of a group share d_qk[g] (Q and K) and
 * d_v[g] (V and O). Scores keep the scale 1/sqrt(d_head) of the uncut head.
 *
 * Requests. Request b has q_len[b] query tokens, the last of its kv_len[b] tokens: query t of b stands at position
 * kv_len[b] - q_len[b] + t and sees the keys up to itself. Decode is q_len = 1.
 *
 * Two layouts.
 *
 * PLAIN (reference, CPU kernels, rivals): row-major matrices, one head after another:
 *   Q  head h: [n_q][d_qk]    O  head h: [n_q][d_v]    n_q  = sum of q_len, requests one after another, no padding
 *   K  head g: [n_kv][d_qk]   V  head g: [n_kv][d_v]   n_kv = sum of kv_len
 *
 * BLOCKED (our CUDA kernels), 16-bit elements. A matrix [tokens][d] is stored as blocks of 8 tokens x 8 dims of 128
 * contiguous bytes: element (t, i) at index (t/8) * 8*d + (i/8) * 64 + (t%8) * 8 + i%8. That is the core matrix of
 * wgmma without swizzle and of ldmatrix, so tiles need no tensor map, no padding of d, and any run of 8-token
 * groups is one contiguous copy.
 *   Q  head h starts at element q_offset[h] * n_q8: blocked [n_q8][d_qk]; request b starts at row q_start[b], a
 *      multiple of 8; n_q8 = the rows of all requests, each rounded up to 8
 *   O  row-major [n_q8][o_pitch], head h in columns o_offset[h] .. + d_v: what the output projection reads.
 *      Rows between q_start[b] + q_len[b] and the next request are not written
 *   decode: Q row-major [batch][q_pitch], head h in columns q_offset[h] .. + d_qk; O row-major [batch][o_pitch]
 *   K, V  pages of KVD_PAGE_TOKENS tokens. Page p of the pool of one layer starts at element p * page_elements and
 *      holds, KV head after KV head, K blocked [64][d_qk] then V blocked [64][d_v] at element kv_offset[g]:
 *      the bytes of a page are those of the kept dimensions and no more. page_table [batch][max_pages] gives the
 *      page of tokens 64 j .. 64 j + 63 of request b.
 *   The group of 8 tokens that holds a request's last token is zero beyond it (the writer of its first token zeroes
 *   it); nothing else beyond kv_len is ever read, so it may hold anything, NaN included.
 */
#ifndef KVD_KERNELS_LAYOUT_H
#define KVD_KERNELS_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    KVD_PAGE_TOKENS = 64,
    KVD_WIDTH_STEP = 16, /* widths that CUDA kernels take: 16, 32, ... 128 */
    KVD_WIDTH_MAX = 128,
    KVD_HEADS_MAX = 128, /* query heads of one launch */
    KVD_GROUP_MAX = 16   /* query heads per KV head in the CUDA decode kernel */
};

/* The widths of one layer. */
typedef struct {
    int n_heads, n_kv_heads;
    int d_head;              /* before any cut: the scale is 1/sqrt(d_head)     */
    int d_qk[KVD_HEADS_MAX]; /* [n_kv_heads] */
    int d_v[KVD_HEADS_MAX];  /* [n_kv_heads] */
} kvd_attn_heads;

/* The requests of one launch, on the host. */
typedef struct {
    int batch;
    const int32_t *q_len;  /* [batch], >= 1 */
    const int32_t *kv_len; /* [batch], >= q_len */
} kvd_attn_batch;

/* Where each head lies in the blocked layout; small, copied by value into kernels. Offsets in elements. */
typedef struct {
    int32_t n_heads, n_kv_heads, group; /* group = n_heads / n_kv_heads                                */
    float scale;                        /* 1/sqrt(d_head)                                              */
    int32_t q_pitch, o_pitch;           /* sum over query heads of d_qk, of d_v                        */
    int32_t page_elements;              /* 64 * sum over KV heads of (d_qk + d_v)                      */
    int16_t d_qk[KVD_HEADS_MAX], d_v[KVD_HEADS_MAX];          /* [n_kv_heads]                          */
    int32_t q_offset[KVD_HEADS_MAX], o_offset[KVD_HEADS_MAX]; /* [n_heads]    columns before head h    */
    int32_t kv_offset[KVD_HEADS_MAX]; /* [n_kv_heads] elements within a page; V follows K */
} kvd_attn_map;

/* Fills *map. Returns 0, or -1 when a count or a width is outside the limits above (d_head <= KVD_WIDTH_MAX,
 * widths multiples of KVD_WIDTH_STEP up to KVD_WIDTH_MAX). */
int kvd_attn_map_make(const kvd_attn_heads *heads, kvd_attn_map *map);

/* Index of element (t, i) of a blocked [tokens][d] matrix. */
static inline size_t kvd_blocked_index(size_t t, size_t i, size_t d)
{
    return t / 8 * 8 * d + i / 8 * 64 + t % 8 * 8 + i % 8;
}

/* Rows of all requests, each rounded up to 8, and where each starts: q_start [batch] may be NULL. */
size_t kvd_blocked_rows(const kvd_attn_batch *batch, int32_t *q_start);

/* Host packing between PLAIN float32 (which the references read) and BLOCKED 16-bit, for tests and benchmarks.
 * dtype is KVD_F16 or KVD_BF16 (common/half.h). Outputs are the caller's; see layout above for sizes. The pool is
 * only written where tokens lie, plus the zeros that the layout asks for. */
void kvd_pack_q(const kvd_attn_map *map, const kvd_attn_batch *batch, int dtype, const float *q,
                uint16_t *q_blocked);
void kvd_pack_q_decode(const kvd_attn_map *map, const kvd_attn_batch *batch, int dtype, const float *q,
                       uint16_t *q_rows);
void kvd_pack_kv(const kvd_attn_map *map, const kvd_attn_batch *batch, int dtype, const float *k,
                 const float *v, const int32_t *page_table, int max_pages, uint16_t *pool);
/* O of prefill (rows q_start[b] + t) or of decode (rows b), 16-bit row-major, to PLAIN float32. */
void kvd_unpack_o(const kvd_attn_map *map, const kvd_attn_batch *batch, int dtype, int decode,
                  const uint16_t *o_rows, float *o);

#ifdef __cplusplus
}
#endif
#endif
