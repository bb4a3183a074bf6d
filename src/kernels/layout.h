/*
 * Memory layouts and limits of every attention kernel of kvdim.
 *
 * Heads. Query head h reads KV head g = h / (n_heads / n_kv_heads). The query heads of a KV head
 * share its d_qk[g] (width of Q and K) and d_v[g] (width of V and O).
 *
 * Requests. Request b has kv_len[b] tokens, the last q_len[b] of which are query tokens. Query t of
 * request b has position kv_len[b] - q_len[b] + t and attends to the keys at positions up to its
 * own. In a layer with a sliding window, a query attends to the newest `window` of these keys only.
 *
 * There are two layouts.
 *
 * PLAIN (CPU code): row-major matrices, one head after another, one request after another, no
 * padding. n_q is the sum of q_len, n_kv is the sum of kv_len.
 *
 * - Q head h: [n_q][d_qk]. O head h: [n_q][d_v].
 * - K head g: [n_kv][d_qk]. V head g: [n_kv][d_v].
 *
 * BLOCKED (kvdim's CUDA kernels), 16-bit elements. A matrix [tokens][d] is stored as blocks of 8
 * tokens x 8 dims, each 128 contiguous bytes. Element (t, i) has the index (t/8) * 8*d + (i/8) * 64
 * + (t%8) * 8 + i%8. A block is the core matrix that wgmma (without swizzle) and ldmatrix read.
 *
 * - Prefill, Q: head h starts at element q_offset[h] * n_q8 and is a blocked matrix [n_q8][d_qk].
 *   Request b starts at row q_start[b], a multiple of 8. n_q8 is the number of rows of all
 *   requests, each rounded up to 8.
 * - Prefill, O: row-major [n_q8][o_pitch], as the output projection reads it; head h is in columns
 *   o_offset[h] .. o_offset[h] + d_v - 1. Rows from q_start[b] + q_len[b] to the next request's
 *   first row are not written.
 * - Decode, Q: row-major [batch][q_pitch]; head h is the d_qk columns from column q_offset[h] on.
 *   Decode, O: row-major [batch][o_pitch].
 * - K and V: pages of KVD_PAGE_TOKENS tokens. Page p of the pool of one layer starts at element p *
 *   page_elements. It holds one KV head after another, each at element kv_offset[g] of the page: K
 *   blocked [64][d_qk], then V blocked [64][d_v]. A page has no padding: it holds exactly the kept
 *   dimensions. page_table [batch][max_pages] gives the page of tokens 64 j .. 64 j + 63 of request
 *   b. With a window, the kernels read no page before the page of the oldest key that a query sees.
 *
 * The group of 8 tokens that holds a request's last token is zero after that token (the code that
 * writes the group's first token sets the group to zero). Nothing else at or after kv_len is ever
 * read, so it may hold anything, NaN included.
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
    KVD_WIDTH_STEP = 16, /* CUDA kernels require d_qk and d_v to be 16, 32, ... 256 */
    KVD_WIDTH_MAX = 256,
    /*
     * Largest number of dimensions of a head in the kernels that compression methods launch in
     * addition to attention. Attention kernels themselves are compiled twice, for layers whose
     * widths are all up to this number and for layers with a wider head.
     */
    KVD_WIDTH_NARROW = 128,
    KVD_HEADS_MAX = 128, /* largest number of query heads of one launch */
    KVD_GROUP_MAX = 16   /* largest number of query heads per KV head in CUDA decode */
};

typedef struct {
    int n_heads, n_kv_heads;
    /* number of dimensions before compression; the scale of scores is 1/sqrt(d_head) */
    int d_head;
    int d_qk[KVD_HEADS_MAX]; /* [n_kv_heads] kept dimensions of Q and K */
    int d_v[KVD_HEADS_MAX];  /* [n_kv_heads] kept dimensions of V */
    /* Sliding window: number of keys, up to its own, to which a query attends. 0: no window. */
    int window;
} kvd_attn_heads;

/* Numbers of tokens of every request of a batch, in host memory. */
typedef struct {
    int batch;
    const int32_t *q_len;  /* [batch] number of new tokens, >= 1 */
    const int32_t *kv_len; /* [batch] number of all tokens, >= q_len */
} kvd_attn_batch;

/* Location of each head in the BLOCKED layout. Offsets and pitches are in elements. */
typedef struct {
    int32_t n_heads, n_kv_heads, group; /* group = n_heads / n_kv_heads */
    float scale;                        /* factor of scores, 1/sqrt(d_head) */
    /*
     * Number of elements per row of Q (sum of d_qk over query heads) and of O (sum of d_v over
     * query heads).
     */
    int32_t q_pitch, o_pitch;
    /* Elements per page: 64 * sum over KV heads of (d_qk + d_v). */
    int32_t page_elements;
    int32_t window;
    int16_t d_qk[KVD_HEADS_MAX], d_v[KVD_HEADS_MAX]; /* [n_kv_heads] kept dimensions */
    /* [n_heads] First column of query head h in a row of Q and of O. */
    int32_t q_offset[KVD_HEADS_MAX], o_offset[KVD_HEADS_MAX];
    /* [n_kv_heads] First element of K of KV head g in a page. V of the head follows K. */
    int32_t kv_offset[KVD_HEADS_MAX];
} kvd_attn_map;

/*
 * Fills *map. Returns -1 if a number is outside the limits of kvd_attn_heads or the window is
 * negative. d_head is at most KVD_WIDTH_MAX. Every d_qk and d_v must be a multiple of
 * KVD_WIDTH_STEP of at most KVD_WIDTH_MAX.
 */
int kvd_attn_map_make(const kvd_attn_heads *heads, kvd_attn_map *map);

/* Returns the largest d_qk or d_v among all KV heads. */
int kvd_attn_widest(const kvd_attn_map *map);

/* Returns the index of token t and dim i in a BLOCKED matrix [tokens][d]. */
static inline size_t kvd_blocked_index(size_t t, size_t i, size_t d)
{
    return t / 8 * 8 * d + i / 8 * 64 + t % 8 * 8 + i % 8;
}

/*
 * Returns the number of rows of Q, with each request rounded up to a multiple of 8. q_start [batch]
 * receives the first row of each request, unless it is NULL.
 */
size_t kvd_blocked_rows(const kvd_attn_batch *batch, int32_t *q_start);

/*
 * Convert PLAIN float32 tensors to BLOCKED 16-bit ones on the host. `dtype` is KVD_F16 or KVD_BF16.
 * kvd_pack_kv writes only existing tokens and the zeros that the layout requires.
 */
void kvd_pack_q(const kvd_attn_map *map, const kvd_attn_batch *batch, int dtype, const float *q,
                uint16_t *q_blocked);
void kvd_pack_q_decode(const kvd_attn_map *map, const kvd_attn_batch *batch, int dtype,
                       const float *q, uint16_t *q_rows);
void kvd_pack_kv(const kvd_attn_map *map, const kvd_attn_batch *batch, int dtype, const float *k,
                 const float *v, const int32_t *page_table, int max_pages, uint16_t *pool);
/*
 * Converts 16-bit row-major O to PLAIN float32. Query t of request b is row q_start[b] + t in
 * prefill (`decode` 0), and row b in decode (`decode` 1).
 */
void kvd_unpack_o(const kvd_attn_map *map, const kvd_attn_batch *batch, int dtype, int decode,
                  const uint16_t *o_rows, float *o);

#ifdef __cplusplus
}
#endif
#endif
