/*
 * Kernels of caches that store latents: rows of K and V times a matrix, which a later read multiplies back. bf16, sums in float32.
 *
 * A page of latents has KVD_PAGE_TOKENS tokens. What a head (or a group of heads) has of one side is [rank / 8][8 tokens of 8 ..][8 tokens][8
 * ranks], so element (t, r) is at (r / 8) * 512 + (t / 8) * 64 + t % 8 * 8 + r % 8, as kernels/rivals/palu_layout.h has it; ranks are multiples of
 * 16. A page number is the same in the pool of latents and in the cache's pages (kernels/layout.h).
 *
 * Launchers return cudaError_t, launch on the stream, and never synchronise, allocate or print. Grids depend on the numbers of rows and heads
 * given, lengths are read on the device.
 */
#ifndef KVD_SERVING_CUDA_LATENTS_H
#define KVD_SERVING_CUDA_LATENTS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One KV head of a layer; [2]: K, V. Elements within a page of latents and of the cache, and within the matrices. */
typedef struct {
    int32_t latent[2], page[2];
    int32_t matrix[2]; /* of B^T [d_head][rank]; -1: the latents are what is read, rank wide */
    int32_t rank[2];
} kvd_latent_head;

/* Where rows are: slice b has q_len[b] of them, the last of its kv_len[b] tokens. */
typedef struct {
    int32_t n, max_pages;
    int32_t most; /* rows of the longest slice, or more */
    const int32_t *start, *q_len, *kv_len,
        *page_table; /* device [n], page_table [n][max_pages]; start: its first row */
} kvd_latent_slices;

/*
 * New rows: queries turned (RoPE) and stored as attention reads them, latents into their pages.
 */
typedef struct {
    kvd_latent_slices s;
    int32_t n_heads, d_head; /* of queries; n_heads 0: none */
    const void *q;           /* device rows of n_heads * d_head, ld_q apart, aligned to 16        */
    size_t ld_q;
    const float *cosine, *sine; /* [position][d_head / 2]; NULL: they are turned, or need not be     */
    int32_t interleaved;        /* pairs (2i, 2i + 1)                                                */
    const uint32_t *position;   /* [n] of slices with one row; NULL: as they follow, kv_len - q_len .. */
    const int32_t *q_start;     /* [n] rows of blocked Q; NULL: row-major, row b of slice b          */
    int32_t n_q8;
    void *to_q;
    const void *latent; /* device rows, ld_latent apart, runs of 8 side by side, aligned to 16 */
    size_t ld_latent;
    const int32_t *run; /* device [n_runs] element of a page where a run's ranks begin */
    int32_t n_runs;
    void *pool; /* of latents, of the layer */
    size_t page_elements;
} kvd_latent_put_args;
cudaError_t kvd_latent_put(const kvd_latent_put_args *a, cudaStream_t stream);

/*
 * Pages of the slices anew from their latents: x = latent B, keys turned. Rows beyond kv_len are zero in the group of 8 where it ends, and
 * either zero or not written behind it.
 */
typedef struct {
    int32_t n, max_pages, n_kv_heads, d_head, max_rank;
    const int32_t *kv_len, *page_table; /* device [n], [n][max_pages]        */
    const int32_t *slot;                /* device [n], or NULL: one matrix for all slots */
    size_t matrix_slot;                 /* elements from slot to slot        */
    const kvd_latent_head *head;        /* device [n_kv_heads]               */
    const void *latents, *matrix;       /* of the layer                      */
    size_t latent_page, page;           /* elements of their pages           */
    const float *cosine, *sine;         /* [position][d_head / 2]; NULL: keys are not turned */
    int32_t interleaved;
    void *pages; /* out, of the layer */
    int32_t n_sms;
} kvd_latent_restore_args;
cudaError_t kvd_latent_restore(const kvd_latent_restore_args *a, cudaStream_t stream);

/* ---- matrices of each request ---- */

/* The last row of each slice, which stands in the cache's pages, into latents: x A, A [2 n_kv_heads][d_head][rank] of its slot, K's first. */
cudaError_t kvd_latent_cut(const kvd_latent_restore_args *a, void *latents, cudaStream_t stream);

/* rows [..][2 n_kv_heads][d_head], K's heads first = those of the slices in the cache's pages; row start[b] + t is token t of slice b. */
cudaError_t kvd_latent_gather(const kvd_latent_slices *s, const kvd_latent_head *head, int32_t n_kv_heads,
                              int32_t d_head, const void *pages, size_t page, void *rows,
                              cudaStream_t stream);

/* to [n][d][rank] = the last `width` columns of eigenvectors [n][d][d], column-major by rising value, the last first; the others 0. */
cudaError_t kvd_latent_leading(const float *vectors, int32_t n, int32_t d, int32_t width, int32_t rank,
                               void *to, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
