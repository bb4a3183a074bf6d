/*
 * Kernels of caches that store latent vectors: rows of K and V times a projection matrix. All
 * numbers are bf16, sums are float32.
 *
 * A page of latents has KVD_PAGE_TOKENS tokens. K or V of a head, or of a group of heads, is stored
 * in the order [rank / 8][8 groups of tokens][8 tokens][8 ranks]. So element r of token t is at
 *     (r / 8) * 512 + (t / 8) * 64 + t % 8 * 8 + r % 8,
 * as in kernels/rivals/palu_layout.h. Ranks are multiples of 16. The pool of latents and the
 * cache's pages (kernels/layout.h) have the same page numbers.
 *
 * Launchers return cudaError_t, launch on the stream, and never synchronise, allocate or print.
 */
#ifndef KVD_METHODS_DIMS_CUDA_LATENTS_H
#define KVD_METHODS_DIMS_CUDA_LATENTS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Layout of the latents of one KV head of a layer; index [2]: 0 is K, 1 is V. `latent` is an offset
 * in a page of latents, `page` in a page of the cache, in elements.
 */
typedef struct {
    int32_t latent[2], page[2];
    /*
     * Offset of the matrix B^T [d_head][rank], in elements. -1: latents are read without a product.
     */
    int32_t matrix[2];
    int32_t rank[2];
} kvd_latent_head;

/* Request b of a batch has q_len[b] new rows, which are the last of its kv_len[b] tokens. */
typedef struct {
    int32_t n, max_pages;
    int32_t most; /* upper bound of q_len */
    /*
     * In device memory: start, q_len and kv_len are [n], page_table is [n][max_pages]. start[b] is
     * the first row of request b.
     */
    const int32_t *start, *q_len, *kv_len, *page_table;
} kvd_latent_slices;

/*
 * Arguments of kvd_latent_put, which stores new rows: queries after RoPE in the layout that
 * attention reads, and latents in their pages.
 */
typedef struct {
    kvd_latent_slices s;
    /* Query heads and their dimension. If n_heads is 0, no queries are stored. */
    int32_t n_heads, d_head;
    /*
     * Queries in device memory, [..][n_heads * d_head]: rows are ld_q elements apart, aligned to 16
     * bytes.
     */
    const void *q;
    size_t ld_q;
    /* RoPE tables, [position][d_head / 2]. If NULL, this kernel applies no RoPE. */
    const float *cosine, *sine;
    /* 1: RoPE rotates dimensions 2i and 2i + 1 together; 0: i and i + d_head / 2. */
    int32_t interleaved;
    /*
     * Position of the row of each request, [n], if every request has one row. If NULL, the rows of
     * request b have positions kv_len[b] - q_len[b], and so on.
     */
    const uint32_t *position;
    /* First row of each request in the blocked layout of Q, [n]. If NULL, Q is row-major. */
    const int32_t *q_start;
    int32_t n_q8;
    void *to_q;
    /*
     * Latents of the new tokens in device memory, n_runs runs of 8 elements per token. Rows are
     * ld_latent elements apart, aligned to 16 bytes.
     */
    const void *latent;
    size_t ld_latent;
    /* Offset in a page, in elements, of each run of a row: [n_runs], in device memory. */
    const int32_t *run;
    int32_t n_runs;
    void *pool;
    size_t page_elements;
} kvd_latent_put_args;
cudaError_t kvd_latent_put(const kvd_latent_put_args *a, cudaStream_t stream);

/*
 * Arguments of kvd_latent_restore, which computes pages from latents: x = latent B, with RoPE
 * applied to keys. In the 8 rows that contain the last token, rows beyond kv_len are set to 0.
 * Later rows may be left as they are.
 */
typedef struct {
    int32_t n, max_pages, n_kv_heads, d_head, max_rank;
    /* In device memory, [n] and [n][max_pages]. */
    const int32_t *kv_len, *page_table;
    /* Slot of each request, [n], in device memory. If NULL, all slots share one set of matrices. */
    const int32_t *slot;
    /* Elements of the matrices of one slot. */
    size_t matrix_slot;
    /* In device memory, [n_kv_heads]. */
    const kvd_latent_head *head;
    const void *latents, *matrix;
    /* Elements per page of latents, and per page of the cache. */
    size_t latent_page, page;
    /* RoPE tables, [position][d_head / 2]. If NULL, no RoPE is applied. */
    const float *cosine, *sine;
    int32_t interleaved;
    /* output */
    void *pages;
    int32_t n_sms;
} kvd_latent_restore_args;
cudaError_t kvd_latent_restore(const kvd_latent_restore_args *a, cudaStream_t stream);

/*
 * Projects the last row of each request, which is in the cache's pages, by the matrix A of its
 * slot. The matrices of a slot are [2 n_kv_heads][d_head][rank], K first.
 */
cudaError_t kvd_latent_cut(const kvd_latent_restore_args *a, void *latents, cudaStream_t stream);

/*
 * Copies the new rows from the cache's pages to rows [..][2 n_kv_heads][d_head], heads of K first.
 * Token t of request b goes to row start[b] + t.
 */
cudaError_t kvd_latent_gather(const kvd_latent_slices *s, const kvd_latent_head *head,
                              int32_t n_kv_heads, int32_t d_head, const void *pages, size_t page,
                              void *rows, cudaStream_t stream);

/*
 * Writes to `to` [n][d][rank] the last `width` eigenvectors of each matrix [d][d], the last first,
 * and 0 in the remaining columns. Eigenvectors are column-major, in rising order of their
 * eigenvalues.
 */
cudaError_t kvd_latent_leading(const float *vectors, int32_t n, int32_t d, int32_t width,
                               int32_t rank, void *to, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
