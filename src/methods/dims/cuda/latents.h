/*
 * Kernels of caches that store latent vectors, K or V times a projection: bf16, sums float32.
 *
 * Pages have KVD_PAGE_TOKENS tokens in the order [rank / 8][8 groups of tokens][8 tokens][8 ranks]:
 * element r of token t is at
 *
 *     (r / 8) * 512 + (t / 8) * 64 + t % 8 * 8 + r % 8,
 *
 * as in kernels/rivals/palu_layout.h. Ranks are multiples of 16. A page of latent vectors has the
 * same page number as the page of the cache with these tokens. Launchers return cudaError_t and
 * never synchronise, allocate or print.
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
 * Positions of a KV head's data, in elements, in pages of latent vectors and pages of the cache.
 * Index [2]: K, V.
 */
typedef struct {
    int32_t latent[2], page[2];
    /*
     * Element offset of B^T [d_head][rank], or of the head's first column if heads share B
     * (kvd_latent_restore_args.columns). -1: latent vectors are used directly.
     */
    int32_t matrix[2];
    int32_t rank[2];
} kvd_latent_head;

/* New tokens of a batch: the last q_len[b] of request b's kv_len[b] tokens. */
typedef struct {
    int32_t n, max_pages;
    int32_t most; /* upper bound of every q_len */
    /*
     * Device arrays [n]: first row of each request, number of its new tokens, number of all its
     * tokens; page_table [n][max_pages].
     */
    const int32_t *start, *q_len, *kv_len, *page_table;
} kvd_latent_slices;

static inline int kvd_latent_slices_bad(const kvd_latent_slices *s)
{
    return s->n < 1 || s->n > 65535 || s->most < 1 || !s->start || !s->q_len || !s->kv_len ||
           !s->page_table;
}

/*
 * Arguments of kvd_latent_put: stores queries after RoPE, and latent vectors of new tokens in
 * pages.
 */
typedef struct {
    kvd_latent_slices s;
    /* Number of query heads and of dimensions of a head. If n_heads is 0, there are no queries. */
    int32_t n_heads, d_head;
    /*
     * Queries in device memory, [tokens][n_heads * d_head], rows ld_q elements apart, aligned to 16
     * bytes.
     */
    const void *q;
    size_t ld_q;
    /* RoPE tables [position][d_head / 2]. NULL means that queries get no RoPE. */
    const float *cosine, *sine;
    /* 1 if RoPE pairs dimensions 2i and 2i + 1, 0 if it pairs i and i + d_head / 2. */
    int32_t interleaved;
    /*
     * [n] Position of each request's new token. NULL: new tokens have the positions from kv_len[b]
     * - q_len[b] on.
     */
    const uint32_t *position;
    /* [n] First row of each request in the blocked layout of Q. NULL means that Q is row-major. */
    const int32_t *q_start;
    int32_t n_q8;
    void *to_q;
    /*
     * Latent vectors of new tokens in device memory, 16-byte aligned: n_runs runs of 8 elements per
     * token, tokens ld_latent elements apart.
     */
    const void *latent;
    size_t ld_latent;
    /* [n_runs] Position in a page of each run of 8 elements, in device memory. */
    const int32_t *run;
    /*
     * [n_runs] Position in a token's row of each run, in elements, in device memory. NULL means
     * that rows have no gaps.
     */
    const int32_t *source;
    int32_t n_runs;
    void *pool;
    size_t page_elements;
    /*
     * Element of a page at which the positions of its tokens begin, int32 [n_kv_heads][64]. 0 means
     * that positions are not stored.
     */
    int32_t positions, n_kv_heads;
} kvd_latent_put_args;
cudaError_t kvd_latent_put(const kvd_latent_put_args *a, cudaStream_t stream);

/*
 * Largest rank that kvd_latent_restore supports. This function restores K and V: it writes pages x
 * = latent B, with RoPE for keys. Rows after the last token become 0 up to a multiple of 8; rows
 * after these are undefined.
 */
enum { KVD_LATENT_RANK_MAX = 1 << 14 };
typedef struct {
    int32_t n, max_pages, n_kv_heads, d_head, max_rank;
    /*
     * Number of newest tokens that are not restored. If it is not 0, rows from these on stay
     * unchanged.
     */
    int32_t newest;
    /*
     * Device arrays: number of tokens of each request, kv_len [n], and page_table [n][max_pages].
     */
    const int32_t *kv_len, *page_table;
    /*
     * [n][max_pages * KVD_PAGE_TOKENS] Position of each row in device memory; a negative one means
     * that the row stays unchanged. NULL means 0, 1, 2 ...
     */
    const int32_t *position;
    /*
     * Element of a page of latent vectors at which the positions of its rows begin (see
     * kvd_latent_put_args), which replace `position`. 0: none.
     */
    int32_t positions;
    /*
     * [n] in device memory: index of each running request (slot), which selects its matrices. NULL
     * means that all requests share the matrices.
     */
    const int32_t *slot;
    size_t matrix_slot;
    /* [n_kv_heads] Positions of each KV head's data, in device memory. */
    const kvd_latent_head *head;
    const void *latents, *matrix;
    /* Number of elements of a page of latent vectors, and of a page of the cache. */
    size_t latent_page, page;
    /*
     * Device or NULL. bias [2 n_kv_heads][d_head]: K, then V, before norms. gain [d_head]: RMS norm
     * of K before RoPE.
     */
    const float *bias, *gain;
    float eps;
    /* RoPE tables [position][d_head / 2]. NULL means that keys get no RoPE. */
    const float *cosine, *sine;
    int32_t interleaved;
    /*
     * 0: `matrix` has B^T [d_head][rank] of every KV head. Else it has matrices B [rank /
     * 8][columns][8] that adjacent heads share, head after head along `columns`, which requires
     * kvd_latent_joins and neither `position` nor `positions`.
     */
    int32_t columns;
    bool keys_alone; /* V is not written; requires `columns` */
    void *pages;
    int32_t n_sms;
} kvd_latent_restore_args;
cudaError_t kvd_latent_restore(const kvd_latent_restore_args *a, cudaStream_t stream);
/*
 * Returns true if kvd_latent_restore multiplies B of `heads` heads that share latent vectors by
 * wgmma: on compute capability 9.0, for 128 dimensions per head and an even number of heads.
 */
bool kvd_latent_joins(int32_t heads, int32_t d_head);
/* Called by kvd_latent_restore if a->columns is not 0. */
cudaError_t kvd_latent_restore_joint(const kvd_latent_restore_args *a, cudaStream_t stream);
/* Reorders B^T [columns][rank] to B [rank / 8][columns][8]. */
cudaError_t kvd_latent_join(const void *from, size_t columns, size_t rank, void *to,
                            cudaStream_t stream);

/*
 * Projects K and V of each request's last token by the matrix A [2 n_kv_heads][d_head][rank] (K
 * first) of its slot, and stores the latents.
 */
cudaError_t kvd_latent_cut(const kvd_latent_restore_args *a, void *latents, cudaStream_t stream);

/*
 * Copies new K and V to rows [tokens][2 n_kv_heads][d_head], K first. Token t of request b is row
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
 * A projection that begins at element `at`: `width` eigenvectors, then columns of zeros up to
 * `rank`.
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

/* Rows of prompts in which less important tokens keep fewer columns than others. */
typedef struct {
    kvd_latent_slices s;
    const int32_t *q_start; /* device [s.n]: each prompt's first token in `level` */
    const uint8_t *level;   /* device: bits of each prompt token */
    uint8_t important;      /* bit of `level`, set if a token keeps all columns */
    /* [n] Columns that less important tokens keep, in device memory. */
    const kvd_latent_basis *low;
    int32_t n, wide;
    /*
     * [tokens][n][wide] Rows of n heads in device memory. Token t of request b is row start[b] + t.
     */
    void *rows;
} kvd_latent_narrow_args;
cudaError_t kvd_latent_narrow(const kvd_latent_narrow_args *a, cudaStream_t stream);

/*
 * Largest number of bits to which method allot or kvquant quantises an element of a latent vector.
 */
enum { KVD_LATENT_CODE_BITS = 8 };
typedef struct {
    int32_t place; /* element offset in a page, for the page's first token */
    /*
     * First bit of the element in the bits of its token, and number of bits. An element with 0 bits
     * is replaced by `mean`.
     */
    int32_t bit, bits;
    int32_t side; /* 0: K, 1: V */
    /* Number of the group of KV heads that share the latent vector. */
    int32_t group;
    /*
     * Element x is quantised to the level nearest to (x - mean) / deviation. With kvquant these are
     * the middle and half width of a channel of K. The range of V is stored with each token.
     */
    float mean, deviation;
} kvd_latent_code;

/*
 * Latent vectors of K [0] and V [1] of a group of heads, quantised by kvquant. An outlier is a
 * 32-bit word, with the bf16 number in the upper half. The lower half of an outlier of V is the
 * element's index among all quantised elements of the token. The lower half of an outlier of K is
 * KVD_LATENT_APART * (token % 64) + index in the latent.
 */
typedef struct {
    /* Index of the first element among the token's, and number of elements without padding. */
    int32_t first[2], n[2];
    /* Number of outliers of V at each end of the range. */
    int32_t v_apart;
    /*
     * Index among the token's 32-bit words of the word with the range of V: float16 half width in
     * the lower half, middle in the upper half. The outliers of V follow.
     */
    int32_t v_at;
    /* Index in a page's words of the number of outliers of K, which follow it. */
    int32_t k_at;
} kvd_latent_vector;
enum { KVD_LATENT_APART = 1024 /* above the number of elements of a latent */ };

/*
 * Quantised latent vectors in device memory. kvd_latent_code_put quantises new tokens.
 * kvd_latent_code_restore decodes the other tokens into pages. The first n_sink tokens are not
 * quantised.
 */
typedef struct {
    kvd_latent_slices s;
    const int32_t *slot; /* [s.n] */
    /*
     * Number of quantised elements, which form runs of 8; number of 32-bit words per token; number
     * of first tokens that stay exact.
     */
    int32_t n_codes, words, n_sink;
    const kvd_latent_code *code; /* [n_codes] */
    /*
     * [2][KVD_LATENT_CODE_BITS + 1][2^KVD_LATENT_CODE_BITS] Quantisation levels for K and V and
     * each number of bits: those with which elements are compared, and those to which indices are
     * decoded.
     */
    const float *level, *decoded;
    /*
     * [pages][page_words] A page's quantised tokens [KVD_PAGE_TOKENS][words], then outliers of K by
     * group.
     */
    uint32_t *store;
    size_t page_words;
    uint16_t *exact; /* [slots][n_sink][n_codes] */
    void *pool;
    size_t page_elements; /* elements of a page of latents */
    /*
     * Number of groups of heads with kvquant, and description of their latent vectors [n_groups]. 0
     * with allot.
     */
    int32_t n_groups;
    const kvd_latent_vector *vector;
    /* Largest number of outliers of K of a group in a page. 0: K has no outliers. */
    int32_t room;
    /* Slot (index) of the requests that pad a batch. Their outliers of K are not stored. */
    int32_t idle;
    /*
     * prompts: the new tokens are whole prompts, so kvd_latent_code_put first empties the lists of
     * outliers in their pages and, if `recounts` is set, sets `apart` of their slots to 0.
     */
    bool prompts, recounts;
    /* [slots] Number of outliers of K. [1] Largest number of them for which a page lacked room. */
    uint32_t *apart, *beyond;
} kvd_latent_code_args;
cudaError_t kvd_latent_code_put(const kvd_latent_code_args *a, cudaStream_t stream);
/*
 * Turns `pages` pages of random bytes into valid codes of kvquant, for timing. `share` is the
 * fraction of the elements of K that are outliers.
 */
cudaError_t kvd_latent_code_make_plausible(const kvd_latent_code_args *a, size_t pages,
                                           double share, cudaStream_t stream);
cudaError_t kvd_latent_code_restore(const kvd_latent_code_args *a, int32_t n_sms,
                                    cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
/*
 * Returns the index of the position of token t of KV head g in its page of latent vectors, seen as
 * int32. `positions`: see kvd_latent_put_args.
 */
static __device__ __forceinline__ int kvd_latent_position(int32_t positions, int g, int t)
{
    return positions / 2 + g * KVD_PAGE_TOKENS + t % KVD_PAGE_TOKENS;
}

/*
 * Adds a bias to two rows of a product of one KV head and, if `gain` is not NULL, divides each row
 * by its root mean square and multiplies it by `gain`. bias (or NULL), gain: [8 BLOCKS].
 * c: accumulators of mma or wgmma, [BLOCKS of 8 columns][2 rows][2 columns].
 */
template <int BLOCKS>
__device__ __forceinline__ void kvd_latent_finish(float *c, const float *bias, const float *gain,
                                                  float eps, int lane)
{
    const int column = 2 * (lane % 4);
    if (bias) {
#pragma unroll
        for (int n = 0; n < BLOCKS; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                c[4 * n + e] += __ldg(bias + column + 8 * n + e % 2);
    }
    if (!gain)
        return;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum = 0;
#pragma unroll
        for (int n = 0; n < BLOCKS; n++) {
            const float x = c[4 * n + 2 * i], y = c[4 * n + 2 * i + 1];
            sum += x * x + y * y;
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const float factor = rsqrtf(sum / (8 * BLOCKS) + eps);
#pragma unroll
        for (int n = 0; n < BLOCKS; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                c[4 * n + 2 * i + e] *= factor * __ldg(gain + column + 8 * n + e);
    }
}
#endif

#ifndef __cplusplus
#include "common/cuda/libraries.h"
#include "methods/cuda/host_codes.h"
#include "methods/cuda/paged_cache.h"

/*
 * Latent vectors (K or V times a projection) of all layers, for caches whose bf16 pages hold one
 * layer (kvd_gpu_method.one_layer). Adjacent KV heads may share one.
 */

/*
 * Layout of the latent vectors of one layer. Index [2]: 0 is K, 1 is V. Set rank and matrix before
 * kvd_latent_store_init, up and applies_rope before the first launch.
 */
typedef struct {
    /* [n_groups] Number of elements of each group's latent, a multiple of 16. */
    int *rank[2];
    /*
     * [n_kv_heads] Element offset of kvd_latent_head.matrix in `up`. -1: latent vectors used
     * directly.
     */
    int *matrix[2];
    const void *up;
    int columns; /* of kvd_latent_restore_args */
    bool applies_rope;
    /*
     * Number of elements of a page of latent vectors, and position of the layer's first page in the
     * pool.
     */
    size_t page, at;
    int positions; /* of kvd_latent_put_args */
    int first_run, n_runs, max_rank;
    /* Number of latent elements of a token: sum of all ranks of K and V. */
    size_t latent_pitch;
} kvd_latent_layer;

typedef struct {
    kvd_paged_cache *cache; /* borrowed */
    kvd_device_memory memory;
    int heads; /* adjacent KV heads that share a latent */
    kvd_latent_layer *layer;
    /* [n_layers][n_kv_heads] Positions of each KV head's data, in device memory. */
    kvd_latent_head *head;
    /* [n_layers][n_runs] Position in a page of each run of 8 latent elements, in device memory. */
    int32_t *run;
    /*
     * Width to which new latent vectors are padded, [2][n_groups][wide]; 0 if they have no gaps.
     * Set before kvd_latent_store_init.
     */
    int wide;
    /*
     * True if K and V share latent vectors, stored as K's, of equal ranks. Set before
     * kvd_latent_store_init.
     */
    bool joint;
    /* True if all layers use the same pages. Must be set before kvd_latent_store_init. */
    bool one_layer;
    /*
     * True if pages also store the position of each KV head's tokens, of which some are dropped.
     * Set before kvd_latent_store_init; excludes one_layer.
     */
    bool positions;
    /*
     * [n_layers][n_runs] Position of each run of 8 elements among a token's latent vectors; NULL if
     * `wide` is 0.
     */
    int32_t *source;
    uint16_t *pool;
    /* Bytes of a page in all layers together or, with one_layer, in the largest layer. */
    size_t page_bytes;
    /*
     * Bytes that a token takes in all layers together: one of the first n_sink tokens, and a later
     * one.
     */
    double sink_bytes, token_bytes;
    uint32_t n_sink;
    /* True if each running request (slot) has projections of its own. */
    bool of_slots;
    size_t matrix_slot; /* elements of a slot's projection matrices */
    uint32_t *tokens;   /* [n_slots] */
    size_t n_slots, slot_bytes;
    /* [n_slots] Number of 32-bit words that a slot stores outside its tokens' codes. NULL: 0. */
    const uint32_t *apart;
    /* Bytes that all slots hold, including those of requests that have just finished. */
    double held;
} kvd_latent_store;

/*
 * Allocates the descriptions of layers. The caller must then set rank, matrix, up and applies_rope
 * of each.
 */
int kvd_latent_store_begin(kvd_latent_store *s, kvd_paged_cache *c, int heads, kvd_err *err);
/* Makes the tables on the device. Requires that kvd_cache_layer.map of all layers is set. */
int kvd_latent_store_init(kvd_latent_store *s, kvd_err *err);
/* Allocates the pool of pages and fills it with random numbers, for timing. */
int kvd_latent_store_make(kvd_latent_store *s, size_t pages, size_t slots, cudaStream_t stream,
                          kvd_err *err);
void kvd_latent_store_release(kvd_latent_store *s);

/*
 * Returns which tokens are new in the first n decode steps or, with `prompts`, in the first n
 * prompts.
 */
kvd_latent_slices kvd_latent_store_slices(const kvd_latent_store *s, bool prompts, size_t n);
/* Sets the tables and the pool in *a for a layer. The caller sets the queries. */
void kvd_latent_store_describe(const kvd_latent_store *s, int layer, kvd_latent_put_args *a);
/*
 * Returns the arguments with which kvd_latent_restore restores K and V of a layer, for n decode
 * steps or prompts.
 */
kvd_latent_restore_args kvd_latent_store_restored(const kvd_latent_store *s, int layer,
                                                  bool prompts, size_t n);
void *kvd_latent_store_pool(const kvd_latent_store *s, int layer);

/*
 * Sets `*own` to the projections of the KV heads of one GPU. `all` keeps the matrices. Fails if
 * heads that share a latent are on different GPUs. The caller must free own->head.
 */
int kvd_latent_store_share(const kvd_dims *all, const kvd_gpu_share *share, kvd_dims *own,
                           kvd_err *err);
/*
 * Makes the CPU quantise the latent vectors by the compression method of m->plan. Rows of new
 * latent vectors are `ld` elements apart. Must be called after kvd_latent_store_init.
 */
int kvd_latent_store_host(kvd_latent_store *s, kvd_gpu_method *m, const kvd_dims *dims, size_t ld,
                          kvd_err *err);

/*
 * Updates the counts of tokens and stored bytes, s->tokens and s->held. Must be called after each
 * iteration.
 */
void kvd_latent_store_note(kvd_latent_store *s, const kvd_iteration *it);

typedef struct {
    int32_t n, words;          /* coded numbers per token; 32-bit words of a token's code */
    size_t page_words;         /* 32-bit words of a page */
    size_t code, store, exact; /* offsets of the layer in three arrays of kvd_latent_codes */
} kvd_latent_codes_layer;

/*
 * Latents that method allot or kvquant has coded, except those of a request's first tokens. Pages
 * of `store` hold one layer.
 */
typedef struct {
    kvd_latent_store *store; /* borrowed; one_layer is true */
    kvd_latent_codes_layer *layer;
    const kvd_latent_code *code; /* device */
    /*
     * [n_layers][2][KVD_LATENT_CODE_BITS + 1][2^KVD_LATENT_CODE_BITS] Levels, by layer, K or V, and
     * number of bits, in device memory: those that elements are compared with, and decoded ones.
     */
    const float *level, *decoded;
    uint32_t *words;
    uint16_t *exact;
    size_t page_bytes, slot_bytes; /* in all layers together */
    /*
     * Bits that a token takes in all layers, one of the first n_sink tokens and a later one,
     * counted as on the CPU. The outliers of K (`apart`) are not included.
     */
    double sink_bits, token_bits;
    /* kvquant: number of groups, and device array [n_layers][n_groups]. NULL with allot. */
    int n_groups;
    const kvd_latent_vector *vector;
    /* Largest number of outliers of K of a group in a page, and their expected fraction. */
    int32_t room;
    double share;
    /*
     * Device [slots + 1]: number of outliers of K of each slot in all layers, then the largest
     * number for which a page lacked room. host_apart: pinned copy after the latest iteration. Both
     * are NULL if room is 0.
     */
    uint32_t *apart, *host_apart;
} kvd_latent_codes;

/*
 * Makes the tables of method allot or kvquant. `dims` has the projections of this GPU's KV heads.
 * Must be called after kvd_latent_store_init.
 */
int kvd_latent_codes_init(kvd_latent_codes *c, kvd_latent_store *store, const kvd_plan *plan,
                          const kvd_dims *dims, kvd_err *err);
/* Allocates memory for quantised latent vectors and fills it with random numbers, for timing. */
int kvd_latent_codes_make(kvd_latent_codes *c, size_t pages, size_t slots, cudaStream_t stream,
                          kvd_err *err);
/*
 * kvd_latent_codes_put quantises new tokens from the pages of latents. kvd_latent_codes_restore
 * decodes the other tokens of decode steps into these pages.
 */
int kvd_latent_codes_put(const kvd_latent_codes *c, const kvd_paged_rows *r, kvd_err *err);
int kvd_latent_codes_restore(const kvd_latent_codes *c, const kvd_paged_rows *r, kvd_err *err);
double kvd_latent_codes_bits(const kvd_latent_codes *c, size_t slot);
/*
 * Returns the number of outliers of K of a group for which a page would have needed room in the
 * latest iteration, or 0 if no page lacked room.
 */
size_t kvd_latent_codes_lacking(const kvd_latent_codes *c);

/* For tests only: returns the method that drops tokens, which method palu owns, or NULL. */
const kvd_gpu_method *kvd_gpu_palu_evict(const kvd_gpu_method *palu);
#endif
#endif
