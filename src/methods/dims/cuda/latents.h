/*
 * Kernels of caches that store latent vectors: K and V times a projection matrix. All numbers are
 * bf16, sums are float32.
 *
 * A page of latents has KVD_PAGE_TOKENS tokens. K or V of a head, or of a group of heads, is stored
 * in the order [rank / 8][8 groups of tokens][8 tokens][8 ranks]. So element r of token t is at
 *
 *     (r / 8) * 512 + (t / 8) * 64 + t % 8 * 8 + r % 8,
 *
 * as in kernels/rivals/palu_layout.h. Ranks are multiples of 16. The pool of latents and the
 * cache's pages (kernels/layout.h) have the same page numbers.
 *
 * Launchers return cudaError_t, launch on the stream, and never synchronise, allocate or print.
 */
#ifndef KVD_METHODS_DIMS_CUDA_LATENTS_H
#define KVD_METHODS_DIMS_CUDA_LATENTS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Layout of the latents of one KV head of a layer; index [2]: 0 is K, 1 is V. `latent` is the
 * head's offset in a page of latents, `page` its offset in a page of the cache, both in elements.
 */
typedef struct {
    int32_t latent[2], page[2];
    /*
     * Offset, in elements, of the matrix B^T [d_head][rank] that rebuilds K or V from latents. -1:
     * latents are used as they are.
     */
    int32_t matrix[2];
    int32_t rank[2];
} kvd_latent_head;

/*
 * New tokens of a batch. Request b has q_len[b] new tokens, which are the last of its kv_len[b]
 * tokens.
 */
typedef struct {
    int32_t n, max_pages;
    int32_t most; /* upper bound of every q_len[b] */
    /*
     * In device memory: start, q_len and kv_len are [n], page_table is [n][max_pages]. start[b] is
     * the first row of request b.
     */
    const int32_t *start, *q_len, *kv_len, *page_table;
} kvd_latent_slices;

/* Returns a nonzero number if a member of *s cannot be right. */
static inline int kvd_latent_slices_bad(const kvd_latent_slices *s)
{
    return s->n < 1 || s->n > 65535 || s->most < 1 || !s->start || !s->q_len || !s->kv_len ||
           !s->page_table;
}

/*
 * Arguments of kvd_latent_put. It stores queries after RoPE in the layout that attention reads, and
 * latents of new tokens in their pages.
 */
typedef struct {
    kvd_latent_slices s;
    /* Number of query heads and their dimension. If n_heads is 0, no queries are stored. */
    int32_t n_heads, d_head;
    /*
     * Queries in device memory, [tokens][n_heads * d_head]: rows are ld_q elements apart, aligned
     * to 16 bytes.
     */
    const void *q;
    size_t ld_q;
    /* RoPE tables, [position][d_head / 2]. If NULL, queries get no RoPE. */
    const float *cosine, *sine;
    /* 1: RoPE rotates dimensions 2i and 2i + 1 together; 0: i and i + d_head / 2. */
    int32_t interleaved;
    /*
     * [n] Position of each request's token if every request has one new token. If NULL, the new
     * tokens of request b have the positions kv_len[b] - q_len[b] .. kv_len[b] - 1.
     */
    const uint32_t *position;
    /* First row of each request in the blocked layout of Q, [n]. If NULL, Q is row-major. */
    const int32_t *q_start;
    int32_t n_q8;
    void *to_q;
    /*
     * Latents of the new tokens in device memory, n_runs blocks of 8 elements (runs) per token.
     * Tokens are ld_latent elements apart, aligned to 16 bytes.
     */
    const void *latent;
    size_t ld_latent;
    /* Offset in a page, in elements, of each run of 8 elements: [n_runs], in device memory. */
    const int32_t *run;
    /*
     * Offset of each run in the row of a token, in elements: [n_runs], in device memory. NULL: runs
     * follow each other without gaps.
     */
    const int32_t *source;
    int32_t n_runs;
    void *pool;
    size_t page_elements;
} kvd_latent_put_args;
cudaError_t kvd_latent_put(const kvd_latent_put_args *a, cudaStream_t stream);

/*
 * Limit of the ranks that kvd_latent_restore supports. That function computes pages of K and V from
 * latents: x = latent B, with RoPE applied to keys. Rows after the last token are set to 0 up to a
 * multiple of
 * 8. Later rows may be left as they are.
 */
enum { KVD_LATENT_RANK_MAX = 1 << 14 };
typedef struct {
    int32_t n, max_pages, n_kv_heads, d_head, max_rank;
    /*
     * Number of newest tokens of each request that are not restored. If it is not 0, the rows of
     * these tokens and of later positions are left as they are.
     */
    int32_t newest;
    /* Device memory: kv_len is [n], page_table is [n][max_pages]. */
    const int32_t *kv_len, *page_table;
    /*
     * [n][max_pages * KVD_PAGE_TOKENS] Position of each row, device. Rows with a negative position
     * keep their contents. NULL: rows have the positions 0, 1, 2 ...
     */
    const int32_t *position;
    /* Slot of each request, [n], in device memory. If NULL, all requests use the same matrices. */
    const int32_t *slot;
    /* Number of elements of the matrices of one slot. */
    size_t matrix_slot;
    /* Layout of the latents and matrices of each KV head, in device memory, [n_kv_heads]. */
    const kvd_latent_head *head;
    const void *latents, *matrix;
    /* Number of elements of a page of latents, and of a page of the cache. */
    size_t latent_page, page;
    /*
     * Device memory, or NULL. `bias` [2 n_kv_heads][d_head] holds the biases of all K heads, then
     * of all V heads; they are added before the norms. `gain` [d_head] has the gains of the RMS
     * norm of each head of K before RoPE, `eps` is the epsilon of the norm. Heads without a matrix
     * B use neither `bias` nor `gain`.
     */
    const float *bias, *gain;
    float eps;
    /* RoPE tables, [position][d_head / 2]. If NULL, keys get no RoPE. */
    const float *cosine, *sine;
    int32_t interleaved;
    /*
     * Only for kvd_latent_restore_joint, which reads the matrices `joint` and ignores `matrix`. All
     * KV heads share one latent of K and one latent of V. joint_latent has the offsets of the
     * latents of K and of V in a page, joint_rank their ranks (at least 16). joint[2] are the
     * matrices B in device memory, [rank / 8][n_kv_heads * d_head][8].
     */
    const void *joint[2];
    int32_t joint_latent[2], joint_rank[2];
    /* output */
    void *pages;
    int32_t n_sms;
} kvd_latent_restore_args;
cudaError_t kvd_latent_restore(const kvd_latent_restore_args *a, cudaStream_t stream);
/*
 * kvd_latent_restore_joint does the work of kvd_latent_restore if all KV heads share their latents.
 * It fails if there are slots, positions, biases or gains.
 * kvd_latent_joins returns true if kvd_latent_restore_joint supports the current device and these
 * heads: compute capability 9.0, 128 dimensions per head, and an even number of heads.
 */
bool kvd_latent_joins(int32_t n_kv_heads, int32_t d_head);
cudaError_t kvd_latent_restore_joint(const kvd_latent_restore_args *a, cudaStream_t stream);

/*
 * Multiplies the last token of each request, which is in the cache's pages, by the projection
 * matrix A of the request's slot, and stores the latents. The matrices of a slot are [2
 * n_kv_heads][d_head][rank], K first.
 */
cudaError_t kvd_latent_cut(const kvd_latent_restore_args *a, void *latents, cudaStream_t stream);

/*
 * Copies K and V of the new tokens from the cache's pages to `rows` [tokens][2 n_kv_heads][d_head],
 * heads of K first. Token t of request b goes to row start[b] + t.
 */
cudaError_t kvd_latent_gather(const kvd_latent_slices *s, const kvd_latent_head *head,
                              int32_t n_kv_heads, int32_t d_head, const void *pages, size_t page,
                              void *rows, cudaStream_t stream);

/*
 * Copies the queries of prompts from the blocked layout that attention reads, `q`, to `rows`
 * [tokens][n_heads][d_head]. q_start and n_q8 are as in kvd_latent_put_args. Token t of request b
 * goes to row start[b] + t.
 */
cudaError_t kvd_latent_gather_queries(const kvd_latent_slices *s, const int32_t *q_start,
                                      int32_t n_q8, int32_t n_heads, int32_t d_head, const void *q,
                                      void *rows, cudaStream_t stream);

/*
 * Projection matrix of one head: `width` eigenvectors and zero columns up to `rank`. `at` is the
 * offset of the matrix in an array, in elements.
 */
typedef struct {
    int32_t width, rank, at;
} kvd_latent_basis;

/* Numbers of rows of K, and of V, whose second moments were decomposed. */
typedef struct {
    int32_t k, v;
} kvd_latent_rows;
/*
 * Replaces the leading eigenvectors that the rows do not determine, as on the CPU (strawman.c): of
 * the basis[i].width last eigenvectors of each of n matrices [d][d], those beyond the number of
 * rows, and those whose eigenvalue is below 1e-6 of the largest. Each becomes the unit vector that
 * is farthest from the span of all earlier ones, made orthogonal to them and normalised. `vectors`
 * are as in kvd_latent_leading, `values` [n][d] are their eigenvalues; n is even, and the first
 * half of the matrices belongs to K.
 */
cudaError_t kvd_latent_complete(float *vectors, const float *values, const kvd_latent_basis *basis,
                                int32_t n, int32_t d, kvd_latent_rows rows, cudaStream_t stream);

/*
 * Writes the leading eigenvectors of each of n matrices [d][d] to `to`. The vectors of matrix i
 * begin at element basis[i].at and form a matrix [d][basis[i].rank], whose first column belongs to
 * the largest eigenvalue. In `vectors`, eigenvectors are column-major, in rising order of their
 * eigenvalues. `padded` [n][d][wide] receives the same matrices with zero columns up to `wide`; it
 * may be NULL. `basis` [n] is in device memory, and no rank is above `wide`.
 */
cudaError_t kvd_latent_leading(const float *vectors, const kvd_latent_basis *basis, int32_t n,
                               int32_t d, int32_t wide, void *to, void *padded,
                               cudaStream_t stream);

/* Rows of prompts in which less important tokens keep fewer columns than important ones. */
typedef struct {
    kvd_latent_slices s;
    const int32_t *q_start; /* device [s.n]: index in `level` of the first token of each prompt */
    const uint8_t *level;   /* device: bits of each token of the prompts */
    uint8_t important; /* bit of `level` that is set for important tokens, which keep all columns */
    /* Device [n]: number of columns (`width`) of each head that less important tokens keep. */
    const kvd_latent_basis *low;
    int32_t n, wide;
    /*
     * Device [tokens][n][wide], where n is the number of heads; token t of request b is row
     * start[b] + t
     */
    void *rows;
} kvd_latent_narrow_args;
/* Sets to 0, in the rows of less important tokens, the columns that such tokens do not store. */
cudaError_t kvd_latent_narrow(const kvd_latent_narrow_args *a, cudaStream_t stream);

/* One number of a token's latents in a code of scalar levels (method allot). */
enum { KVD_LATENT_CODE_BITS = 8 };
typedef struct {
    int32_t place; /* offset in a page of latents, for the first token of the page */
    /* First bit in the code of the token, and number of bits. 0 bits: the number becomes `mean`. */
    int32_t bit, bits;
    int32_t side; /* 0: K, 1: V */
    /* A number x is coded as the level nearest to (x - mean) / deviation. */
    float mean, deviation;
} kvd_latent_code;

/*
 * Arguments of kvd_latent_code_put, which codes the new tokens from the pages of latents, and of
 * kvd_latent_code_restore, which writes all tokens but the new ones into these pages. The first
 * n_sink tokens of a request are stored as they are. Arrays are in device memory.
 */
typedef struct {
    kvd_latent_slices s;
    const int32_t *slot; /* [s.n] */
    /*
     * n_codes is a multiple of 8: 8 consecutive numbers have consecutive places. words: number of
     * 32-bit words of the code of a token.
     */
    int32_t n_codes, words, n_sink;
    const kvd_latent_code *code; /* [n_codes] */
    /* [2][KVD_LATENT_CODE_BITS + 1][2^KVD_LATENT_CODE_BITS] levels, by side and number of bits */
    const float *level;
    uint32_t *store; /* [pages][KVD_PAGE_TOKENS][words] */
    uint16_t *exact; /* [slots][n_sink][n_codes] */
    void *pool;
    size_t page_elements; /* elements of a page of latents */
} kvd_latent_code_args;
cudaError_t kvd_latent_code_put(const kvd_latent_code_args *a, cudaStream_t stream);
cudaError_t kvd_latent_code_restore(const kvd_latent_code_args *a, int32_t n_sms,
                                    cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
