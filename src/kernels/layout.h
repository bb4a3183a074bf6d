/*
 * Memory layouts and limits of every attention kernel of kvdim.
 *
 * Heads. Query head h reads KV head g = h / (n_heads / n_kv_heads) and has its widths d_qk[g] (Q
 * and K) and d_v[g] (V and O).
 *
 * Requests. Request b has kv_len[b] tokens, the last q_len[b] of which are queries. Query t has
 * position kv_len[b] - q_len[b] + t and attends to keys up to its position, with a window to the
 * newest `window`.
 *
 * PLAIN (CPU code): row-major, head after head, request after request. n_q is the sum of q_len,
 * n_kv the sum of kv_len.
 *
 * - Q head h: [n_q][d_qk]. O head h: [n_q][d_v].
 * - K head g: [n_kv][d_qk]. V head g: [n_kv][d_v].
 *
 * BLOCKED (CUDA kernels): 16-bit elements; a matrix [tokens][d] is blocks of 8 tokens x 8 dims,
 * each 128 contiguous bytes. Element (t, i) has the index (t/8) * 8*d + (i/8) * 64 + (t%8) * 8 +
 * i%8.
 *
 * - Prefill, Q: head h is a blocked matrix [n_q8][d_qk] at element q_offset[h] * n_q8. Request b
 *   starts at row q_start[b], a multiple of 8. n_q8 is the sum of q_len, each rounded up to 8.
 * - Prefill, O: row-major [n_q8][o_pitch]; head h has columns o_offset[h] .. o_offset[h] + d_v - 1.
 *   Rows from q_start[b] + q_len[b] to the next request are not written.
 * - Decode, Q: row-major [batch][q_pitch], head h from column q_offset[h] on. O: row-major
 *   [batch][o_pitch].
 * - K and V: page p of a layer's pool has KVD_PAGE_TOKENS tokens and starts at element p *
 *   page_elements. KV head g is at element kv_offset[g] of the page: K blocked [64][d_qk], then V
 *   blocked [64][d_v]. page_table [batch][max_pages] has the page of tokens 64 j .. 64 j + 63 of
 *   request b.
 *
 * The group of 8 tokens that holds a request's last token is zero after that token. Nothing else at
 * or after kv_len is read.
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
    KVD_WIDTH_STEP = 16, /* d_qk and d_v are multiples of this number in CUDA */
    KVD_WIDTH_MAX = 256,
    /* Kernels are compiled twice: for layers with heads up to this width, and for wider heads. */
    KVD_WIDTH_NARROW = 128,
    KVD_HEADS_MAX = 128,
    KVD_GROUP_MAX = 16 /* largest number of query heads per KV head in CUDA decode */
};

typedef struct {
    int n_heads, n_kv_heads;
    int d_head; /* dimensions before compression; scores are scaled by 1/sqrt(d_head) */
    int d_qk[KVD_HEADS_MAX]; /* [n_kv_heads] kept dimensions of Q and K */
    int d_v[KVD_HEADS_MAX];  /* [n_kv_heads] kept dimensions of V */
    int window; /* number of newest keys, up to its own, to which a query attends; 0 for all keys */
} kvd_attn_heads;

/* Lengths of the requests of a batch, in host memory. */
typedef struct {
    int batch;
    const int32_t *q_len;  /* [batch] number of new tokens, >= 1 */
    const int32_t *kv_len; /* [batch] number of all tokens, >= q_len */
} kvd_attn_batch;

/* Location of each head in layout BLOCKED (8 x 8 blocks); offsets and pitches in elements. */
typedef struct {
    int32_t n_heads, n_kv_heads, group;
    float scale;              /* factor of scores, 1/sqrt(d_head) */
    int32_t q_pitch, o_pitch; /* number of elements per row of Q and of O */
    /* Elements per page: 64 * sum over KV heads of (d_qk + d_v). */
    int32_t page_elements;
    int32_t window;
    int16_t d_qk[KVD_HEADS_MAX], d_v[KVD_HEADS_MAX]; /* [n_kv_heads] kept dimensions */
    /* [n_heads] first column of each query head in a row of Q and of O */
    int32_t q_offset[KVD_HEADS_MAX], o_offset[KVD_HEADS_MAX];
    int32_t kv_offset[KVD_HEADS_MAX]; /* [n_kv_heads] first element of K in a page; V follows K */
} kvd_attn_map;

/*
 * Returns 1 if CUDA kernels take heads of d dimensions: multiples of KVD_WIDTH_STEP up to `most`.
 */
static inline int kvd_width_fits(int d, int most)
{
    return d >= KVD_WIDTH_STEP && d <= most && d % KVD_WIDTH_STEP == 0;
}

/* Fills *map. Returns -1 outside the limits, and for widths not a multiple of KVD_WIDTH_STEP. */
int kvd_attn_map_make(const kvd_attn_heads *heads, kvd_attn_map *map);

int kvd_attn_widest(const kvd_attn_map *map);

/* Returns the index of token t, dim i in a matrix [tokens][d] of 8 x 8 blocks (BLOCKED). */
static inline size_t kvd_blocked_index(size_t t, size_t i, size_t d)
{
    return t / 8 * 8 * d + i / 8 * 64 + t % 8 * 8 + i % 8;
}

/*
 * Returns the rows of Q, if each request's are rounded up to 8. q_start [batch], unless NULL, gets
 * each request's first row.
 */
size_t kvd_blocked_rows(const kvd_attn_batch *batch, int32_t *q_start);

/*
 * Convert row-major float32 (PLAIN) to 16-bit numbers in 8 x 8 blocks (BLOCKED). kvd_pack_kv writes
 * only the tokens and the zeros that the layout requires.
 */
void kvd_pack_q(const kvd_attn_map *map, const kvd_attn_batch *batch, int dtype, const float *q,
                uint16_t *q_blocked);
void kvd_pack_q_decode(const kvd_attn_map *map, const kvd_attn_batch *batch, int dtype,
                       const float *q, uint16_t *q_rows);
void kvd_pack_kv(const kvd_attn_map *map, const kvd_attn_batch *batch, int dtype, const float *k,
                 const float *v, const int32_t *page_table, int max_pages, uint16_t *pool);
/*
 * Converts the 16-bit output O of the kernels to row-major float32, head after head (PLAIN). In
 * prefill, query t of request b is row q_start[b] + t.
 */
void kvd_unpack_o(const kvd_attn_map *map, const kvd_attn_batch *batch, int dtype, int decode,
                  const uint16_t *o_rows, float *o);

#ifdef __cplusplus
}
#endif
#endif
