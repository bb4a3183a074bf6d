/*
 * Kernels of caches that store latents: rows of K and V times a matrix. Reading multiplies latents
 * by a second matrix. All numbers are bf16, sums are float32.
 *
 * A page of latents has KVD_PAGE_TOKENS tokens. One side (K or V) of a head or of a group of heads
 * is [rank / 8][8 groups of tokens][8 tokens][8 ranks], so element (t, r) is at (r / 8) * 512 + (t
 * / 8) * 64 + t % 8 * 8 + r % 8, as in kernels/rivals/palu_layout.h; ranks are multiples of 16. The
 * pool of latents and the cache's pages (kernels/layout.h) have the same page numbers.
 *
 * Launchers return cudaError_t, launch on the stream, and never synchronise, allocate or print.
 * Grid sizes depend on the numbers of rows and heads given; lengths are read on the device.
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
 * Layout of the latents of one KV head of a layer; index [2]: 0 is K, 1 is V. Members are offsets
 * in elements: within a page of latents, within a page of the cache, and within the matrices.
 */
typedef struct {
    int32_t latent[2], page[2];
    /* Offset of B^T [d_head][rank]; -1: latents are read without a product, `rank` wide. */
    int32_t matrix[2];
    int32_t rank[2];
} kvd_latent_head;

/*
 * Rows of the slices of a batch: slice b has q_len[b] new rows, which are the last of its kv_len[b]
 * tokens.
 */
typedef struct {
    int32_t n, max_pages;
    int32_t most; /* upper bound of q_len */
    /* On the device, [n] each; page_table [n][max_pages]. start[b] is the first row of slice b. */
    const int32_t *start, *q_len, *kv_len, *page_table;
} kvd_latent_slices;

/*
 * Arguments of kvd_latent_put, which stores new rows: queries in the layout that attention reads,
 * after RoPE, and latents in their pages.
 */
typedef struct {
    kvd_latent_slices s;
    /* Number and width of the query heads; if n_heads is 0, no queries are stored. */
    int32_t n_heads, d_head;
    /* queries on the device, rows of n_heads * d_head, ld_q elements apart, aligned to 16 bytes */
    const void *q;
    size_t ld_q;
    const float *cosine, *sine; /* [position][d_head / 2]; NULL: no RoPE is applied here */
    int32_t interleaved;        /* 1: RoPE pairs are (2i, 2i + 1) */
    /*
     * Positions [n] of slices with one row. NULL: the rows of a slice have positions from kv_len -
     * q_len on.
     */
    const uint32_t *position;
    /* [n] first row of each slice in blocked Q; NULL: row-major, slice b is row b */
    const int32_t *q_start;
    int32_t n_q8;
    void *to_q;
    /*
     * Latents on the device: rows, ld_latent elements apart, of consecutive runs of 8 elements,
     * aligned to 16 bytes.
     */
    const void *latent;
    size_t ld_latent;
    /* device [n_runs]: offset in a page, in elements, at which a run is stored */
    const int32_t *run;
    int32_t n_runs;
    void *pool; /* the layer's pool of latents */
    size_t page_elements;
} kvd_latent_put_args;
cudaError_t kvd_latent_put(const kvd_latent_put_args *a, cudaStream_t stream);

/*
 * Arguments of kvd_latent_restore, which writes the slices' pages from their latents: x = latent B,
 * with RoPE applied to keys. In the group of 8 rows that contains the last token, rows beyond
 * kv_len are set to 0. Later rows are either set to 0 or not written.
 */
typedef struct {
    int32_t n, max_pages, n_kv_heads, d_head, max_rank;
    const int32_t *kv_len, *page_table; /* device [n], [n][max_pages] */
    const int32_t *slot;                /* device [n]; NULL: all slots share one set of matrices */
    size_t matrix_slot;                 /* elements from one slot's matrices to the next */
    const kvd_latent_head *head;        /* device [n_kv_heads] */
    const void *latents, *matrix;       /* the layer's latents and matrices */
    size_t latent_page, page;           /* elements per page of latents and per page of the cache */
    const float *cosine, *sine;         /* [position][d_head / 2]; NULL: no RoPE */
    int32_t interleaved;
    void *pages; /* output, the layer's pages */
    int32_t n_sms;
} kvd_latent_restore_args;
cudaError_t kvd_latent_restore(const kvd_latent_restore_args *a, cudaStream_t stream);

/* ---- matrices of each request ---- */

/*
 * Projects the last row of each slice, which is in the cache's pages, by A and writes x A to
 * `latents`. A [2 n_kv_heads][d_head][rank] belongs to the slice's slot; the matrices of K come
 * first.
 */
cudaError_t kvd_latent_cut(const kvd_latent_restore_args *a, void *latents, cudaStream_t stream);

/*
 * Copies the rows of the slices from the cache's pages to rows [..][2 n_kv_heads][d_head], heads of
 * K first. Token t of slice b goes to row start[b] + t.
 */
cudaError_t kvd_latent_gather(const kvd_latent_slices *s, const kvd_latent_head *head,
                              int32_t n_kv_heads, int32_t d_head, const void *pages, size_t page,
                              void *rows, cudaStream_t stream);

/*
 * Writes to [n][d][rank] the last `width` columns of the eigenvectors [n][d][d], last column first,
 * and 0 in the other columns. Eigenvectors are column-major, in rising order of their eigenvalues.
 */
cudaError_t kvd_latent_leading(const float *vectors, int32_t n, int32_t d, int32_t width,
                               int32_t rank, void *to, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
