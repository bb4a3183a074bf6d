/* Memory layouts of every attention kernel of kvdim, and the largest sizes that kernels support.
 *
 * Heads. Query head h reads KV head g = h / (n_heads / n_kv_heads). Q and K of g have d_qk[g]
 * dimensions, V and O have d_v[g].
 *
 * Requests. Request b has kv_len[b] tokens, and the last q_len[b] of them are queries. A query
 * attends to keys up to its own position; with a sliding window, only to the newest `window` of
 * these keys.
 *
 * PLAIN, for CPU code: a row-major matrix [tokens][dimensions] per head, one head after another.
 * The tokens of a head are those of all requests, one request after another.
 *
 * BLOCKED, for CUDA kernels: 16-bit elements in blocks of 8 tokens x 8 dimensions. Element (t, i)
 * of a matrix [tokens][d] has the index (t/8) * 8*d + (i/8) * 64 + (t%8) * 8 + i%8.
 * - Prefill, Q: matrix [n_q8][d_qk] of head h at element q_offset[h] * n_q8. Request b starts at
 *   row q_start[b], a multiple of 8. n_q8 is the sum of q_len, each rounded up to 8.
 * - Prefill, O: row-major [n_q8][o_pitch]. Head h starts at column o_offset[h].
 * - Decode: Q is row-major [batch][q_pitch], O is row-major [batch][o_pitch]. Head h starts at
 *   column q_offset[h] of Q and o_offset[h] of O.
 * - Pages: page p starts at element p * page_elements and holds KVD_PAGE_TOKENS tokens. KV head g
 *   is at element kv_offset[g] of the page: K [64][d_qk], then V [64][d_v], both in 8 x 8 blocks.
 *   page_table [batch][max_pages] has the page of tokens 64 j .. 64 j + 63 of each request.
 *
 * Kernels read whole groups of 8 tokens. In the group with a request's last token, elements after
 * this token must be 0. Kernels read no elements after this group. */
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
    /* Each kernel has two variants: one for layers whose widest head has at most this many
     * dimensions, and one for layers with wider heads. */
    KVD_WIDTH_NARROW = 128,
    KVD_HEADS_MAX = 128,
    /* Largest number of query heads per KV head that one launch of a CUDA decode kernel
     * computes. */
    KVD_GROUP_MAX = 16
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

/* Number of dimensions of each head, and index of its first element in Q, in the output O and in a
 * cache page. */
typedef struct {
    int32_t n_heads, n_kv_heads, group;
    float scale;              /* factor of scores, 1/sqrt(d_head) */
    int32_t q_pitch, o_pitch; /* number of elements per row of Q and of O */
    /* Elements per page: 64 * sum over KV heads of (d_qk + d_v). */
    int32_t page_elements;
    int32_t window;
    int16_t d_qk[KVD_HEADS_MAX], d_v[KVD_HEADS_MAX]; /* [n_kv_heads] kept dimensions */
    /* [n_heads] First column of each query head in Q and in the output O. */
    int32_t q_offset[KVD_HEADS_MAX], o_offset[KVD_HEADS_MAX];
    int32_t kv_offset[KVD_HEADS_MAX]; /* [n_kv_heads] first element of K in a page; V follows K */
} kvd_attn_map;

/* Returns 1 if d is a multiple of KVD_WIDTH_STEP up to `most`, as CUDA kernels require. */
static inline int kvd_width_fits(int d, int most)
{
    return d >= KVD_WIDTH_STEP && d <= most && d % KVD_WIDTH_STEP == 0;
}

/* Computes where each head begins in Q, in the output O and in a cache page. Returns -1 if a number
 * in *heads is invalid.
 *
 * Each d_qk and d_v must be a multiple of KVD_WIDTH_STEP, at most KVD_WIDTH_MAX. */
int kvd_attn_map_make(const kvd_attn_heads *heads, kvd_attn_map *map);

int kvd_attn_widest(const kvd_attn_map *map);

/* Returns the array index of dimension i of token t in a matrix [tokens][d] stored as 8 x 8
 * blocks. */
static inline size_t kvd_blocked_index(size_t t, size_t i, size_t d)
{
    return t / 8 * 8 * d + i / 8 * 64 + t % 8 * 8 + i % 8;
}

/* Returns the number of rows of Q in prefill, where every request starts at a multiple of 8 rows.
 * Writes the first row of each request to q_start [batch], unless q_start is NULL. */
size_t kvd_blocked_rows(const kvd_attn_batch *batch, int32_t *q_start);

/* kvd_pack_q, kvd_pack_q_decode and kvd_pack_kv convert row-major float32 matrices to the 16-bit
 * layouts that CUDA kernels read. kvd_pack_kv writes only elements that a kernel reads. */
void kvd_pack_q(const kvd_attn_map *map, const kvd_attn_batch *batch, int dtype, const float *q,
                uint16_t *q_blocked);
void kvd_pack_q_decode(const kvd_attn_map *map, const kvd_attn_batch *batch, int dtype,
                       const float *q, uint16_t *q_rows);
void kvd_pack_kv(const kvd_attn_map *map, const kvd_attn_batch *batch, int dtype, const float *k,
                 const float *v, const int32_t *page_table, int max_pages, uint16_t *pool);
/* Converts 16-bit attention output to float32, one row-major matrix per head. In prefill, query t
 * of request b is row q_start[b] + t of `o_rows`, with q_start from kvd_blocked_rows. */
void kvd_unpack_o(const kvd_attn_map *map, const kvd_attn_batch *batch, int dtype, int decode,
                  const uint16_t *o_rows, float *o);

#ifdef __cplusplus
}
#endif
#endif
