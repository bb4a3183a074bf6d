/*
 * Kernels of caches that store latents, K or V times a projection: bf16, sums float32.
 *
 * Pages have KVD_PAGE_TOKENS tokens in the order [rank / 8][8 groups of tokens][8 tokens][8 ranks]:
 * element r of token t is at
 *
 *     (r / 8) * 512 + (t / 8) * 64 + t % 8 * 8 + r % 8,
 *
 * as in kernels/rivals/palu_layout.h. Ranks are multiples of 16. A page of latents has the same
 * page number as the page of the cache with these tokens. Launchers return cudaError_t and never
 * synchronise, allocate or print.
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
 * Element offsets of one KV head in a page of latents and in a page of the cache. Index [2]: 0 is
 * K, 1 is V.
 */
typedef struct {
    int32_t latent[2], page[2];
    /* Element offset of B^T [d_head][rank]. -1: latents are used directly. */
    int32_t matrix[2];
    int32_t rank[2];
} kvd_latent_head;

/* New tokens of a batch: the last q_len[b] of request b's kv_len[b] tokens. */
typedef struct {
    int32_t n, max_pages;
    int32_t most; /* upper bound of every q_len */
    /*
     * Device [n]: first row, new tokens and all tokens of each request; page_table [n][max_pages].
     */
    const int32_t *start, *q_len, *kv_len, *page_table;
} kvd_latent_slices;

static inline int kvd_latent_slices_bad(const kvd_latent_slices *s)
{
    return s->n < 1 || s->n > 65535 || s->most < 1 || !s->start || !s->q_len || !s->kv_len ||
           !s->page_table;
}

/* Arguments of kvd_latent_put: stores queries after RoPE, and latents of new tokens in pages. */
typedef struct {
    kvd_latent_slices s;
    /* Number of query heads and their dimension. 0 heads: there are no queries. */
    int32_t n_heads, d_head;
    /* Device [tokens][n_heads * d_head], rows ld_q elements apart, aligned to 16 bytes. */
    const void *q;
    size_t ld_q;
    /* [position][d_head / 2] RoPE tables; NULL: queries get no RoPE. */
    const float *cosine, *sine;
    /* 1: RoPE pairs dimensions 2i and 2i + 1; 0: i and i + d_head / 2. */
    int32_t interleaved;
    /*
     * [n] Position of each request's single new token. NULL: kv_len[b] - q_len[b] .. kv_len[b] - 1.
     */
    const uint32_t *position;
    /* [n] First row in the blocked layout of Q. NULL: row-major. */
    const int32_t *q_start;
    int32_t n_q8;
    void *to_q;
    /*
     * Device: n_runs blocks of 8 elements per new token, ld_latent elements apart, aligned to 16
     * bytes.
     */
    const void *latent;
    size_t ld_latent;
    /* Device [n_runs] Page offset of each run of 8 elements. */
    const int32_t *run;
    /* Device [n_runs] Element offset of each run in a token's row. NULL: no gaps. */
    const int32_t *source;
    int32_t n_runs;
    void *pool;
    size_t page_elements;
} kvd_latent_put_args;
cudaError_t kvd_latent_put(const kvd_latent_put_args *a, cudaStream_t stream);

/*
 * Largest rank that kvd_latent_restore supports. kvd_latent_restore writes pages x = latent B, with
 * RoPE for keys. Rows after the last token become 0 up to a multiple of 8; rows after these are
 * undefined.
 */
enum { KVD_LATENT_RANK_MAX = 1 << 14 };
typedef struct {
    int32_t n, max_pages, n_kv_heads, d_head, max_rank;
    /* Number of newest tokens to skip. If nonzero, rows from these on stay unchanged. */
    int32_t newest;
    /* Device: kv_len [n], page_table [n][max_pages]. */
    const int32_t *kv_len, *page_table;
    /*
     * Device [n][max_pages * KVD_PAGE_TOKENS] Row positions; negative: unchanged. NULL: 0, 1, 2 ...
     */
    const int32_t *position;
    /* Device [n] Slot of each request. NULL: all requests share matrices. */
    const int32_t *slot;
    size_t matrix_slot;
    /* Device [n_kv_heads] */
    const kvd_latent_head *head;
    const void *latents, *matrix;
    /* Elements of a page of latents and of a page of the cache. */
    size_t latent_page, page;
    /*
     * Device or NULL. bias [2 n_kv_heads][d_head]: K, then V, before norms. gain [d_head]: RMS norm
     * of K before RoPE.
     */
    const float *bias, *gain;
    float eps;
    /* [position][d_head / 2] RoPE tables; NULL: keys get no RoPE. */
    const float *cosine, *sine;
    int32_t interleaved;
    /*
     * For kvd_latent_restore_joint, where KV heads share latents. `joint` is B [rank /
     * 8][n_kv_heads * d_head][8] and replaces `matrix`. joint_latent has page offsets, joint_rank
     * is at least 16.
     */
    const void *joint[2];
    int32_t joint_latent[2], joint_rank[2];
    void *pages;
    int32_t n_sms;
} kvd_latent_restore_args;
cudaError_t kvd_latent_restore(const kvd_latent_restore_args *a, cudaStream_t stream);
/*
 * kvd_latent_joins returns true on compute capability 9.0 for 128 dimensions per head and an even
 * number of heads. kvd_latent_restore_joint fails for slots, positions, biases or gains.
 */
bool kvd_latent_joins(int32_t n_kv_heads, int32_t d_head);
cudaError_t kvd_latent_restore_joint(const kvd_latent_restore_args *a, cudaStream_t stream);

/*
 * Projects each request's last token by its slot's A [2 n_kv_heads][d_head][rank], K first, and
 * stores the latents.
 */
cudaError_t kvd_latent_cut(const kvd_latent_restore_args *a, void *latents, cudaStream_t stream);

/*
 * Copies new K and V to rows [tokens][2 n_kv_heads][d_head], K first; token t of request b is row
 * start[b] + t.
 */
cudaError_t kvd_latent_gather(const kvd_latent_slices *s, const kvd_latent_head *head,
                              int32_t n_kv_heads, int32_t d_head, const void *pages, size_t page,
                              void *rows, cudaStream_t stream);

/*
 * Copies blocked queries to rows [tokens][n_heads][d_head]; token t of request b is row start[b] +
 * t. q_start, n_q8: as kvd_latent_put_args.
 */
cudaError_t kvd_latent_gather_queries(const kvd_latent_slices *s, const int32_t *q_start,
                                      int32_t n_q8, int32_t n_heads, int32_t d_head, const void *q,
                                      void *rows, cudaStream_t stream);

/*
 * Projection at element `at` of an array: `width` eigenvectors, then columns of zeros up to `rank`.
 */
typedef struct {
    int32_t width, rank, at;
} kvd_latent_basis;

/* Rows of K and V whose second moments were decomposed. */
typedef struct {
    int32_t k, v;
} kvd_latent_rows;
/*
 * Replaces eigenvectors beyond the number of rows, or with eigenvalues below 1e-6 of the largest,
 * by vectors orthonormal to the previous ones (strawman.c).
 * vectors [n][d][d]: column-major, eigenvalues rising. values [n][d]: eigenvalues. n is even, K
 * first.
 */
cudaError_t kvd_latent_complete(float *vectors, const float *values, const kvd_latent_basis *basis,
                                int32_t n, int32_t d, kvd_latent_rows rows, cudaStream_t stream);

/*
 * Writes leading eigenvectors to [d][basis[i].rank] at element basis[i].at, largest eigenvalue
 * first.
 * vectors [n][d][d]: column-major, eigenvalues rising. basis: device [n].
 * padded [n][d][wide], or NULL: zero columns up to `wide`.
 */
cudaError_t kvd_latent_leading(const float *vectors, const kvd_latent_basis *basis, int32_t n,
                               int32_t d, int32_t wide, void *to, void *padded,
                               cudaStream_t stream);

/* Prompt rows in which less important tokens keep fewer columns. */
typedef struct {
    kvd_latent_slices s;
    const int32_t *q_start; /* device [s.n]: each prompt's first token in `level` */
    const uint8_t *level;   /* device: bits of each prompt token */
    uint8_t important;      /* bit of `level`, set if a token keeps all columns */
    /* Device [n]: columns that less important tokens keep. */
    const kvd_latent_basis *low;
    int32_t n, wide;
    /* Device [tokens][n][wide], n heads; token t of request b is row start[b] + t. */
    void *rows;
} kvd_latent_narrow_args;
cudaError_t kvd_latent_narrow(const kvd_latent_narrow_args *a, cudaStream_t stream);

/* Codes of a latent's elements by scalar levels (method allot). */
enum { KVD_LATENT_CODE_BITS = 8 };
typedef struct {
    int32_t place; /* element offset in a page, for the page's first token */
    /* First bit in the token's code, and number of bits; with 0 bits, the number is `mean`. */
    int32_t bit, bits;
    int32_t side; /* 0: K, 1: V */
    /* x is coded as the level nearest to (x - mean) / deviation. */
    float mean, deviation;
} kvd_latent_code;

/*
 * kvd_latent_code_put codes new tokens; kvd_latent_code_restore decodes the others into pages. The
 * first n_sink tokens are uncoded. Device memory.
 */
typedef struct {
    kvd_latent_slices s;
    const int32_t *slot; /* [s.n] */
    /*
     * n_codes: number of coded elements, in runs of 8 adjacent elements. words: 32-bit words of a
     * token's code.
     */
    int32_t n_codes, words, n_sink;
    const kvd_latent_code *code; /* [n_codes] */
    /* [2][KVD_LATENT_CODE_BITS + 1][2^KVD_LATENT_CODE_BITS] levels, by side and bits */
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
