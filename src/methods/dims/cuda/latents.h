/* Kernels of caches that store latent vectors (K or V times a projection) in bf16. Functions that
 * return cudaError_t launch kernels, and neither wait nor allocate memory.
 *
 * Element r of token t in a page is at (r / 8) * 512 + (t / 8) * 64 + t % 8 * 8 + r % 8. */
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

/* Element offsets in a page at which K (index 0) and V (index 1) of one KV head begin. latent: in
 * pages of latent vectors. page: in pages of K and V computed from latent vectors. */
typedef struct {
    int32_t latent[2], page[2];
    /* Offset in elements, in the array of all projections, of the projection [d_head][rank] that
     * restores the head's K (index 0) or V (index 1). -1: no projection, the latent vector is used
     * as it is. */
    int32_t matrix[2];
    int32_t rank[2];
} kvd_latent_head;

/* New tokens of the requests of a batch. They are the last q_len[b] of the kv_len[b] tokens of
 * request b. */
typedef struct {
    int32_t n, max_pages;
    int32_t most; /* upper bound of every q_len */
    /* In device memory, for each request: index of its first new token in the batch (start), number
     * of new tokens (q_len), number of all tokens (kv_len), page numbers (page_table
     * [n][max_pages]). */
    const int32_t *start, *q_len, *kv_len, *page_table;
} kvd_latent_slices;

static inline int kvd_latent_slices_bad(const kvd_latent_slices *s)
{
    return s->n < 1 || s->n > 65535 || s->most < 1 || !s->start || !s->q_len || !s->kv_len ||
           !s->page_table;
}

/* Arguments of kvd_latent_put, which applies RoPE to queries, and stores the queries and the latent
 * vectors of new tokens. */
typedef struct {
    kvd_latent_slices s;
    /* n_heads: number of query heads; 0 if no queries are stored. d_head: number of dimensions of a
     * head. */
    int32_t n_heads, d_head;
    /* [tokens][n_heads * d_head] Queries in device memory, 16-byte aligned. Successive tokens are
     * ld_q elements apart. */
    const void *q;
    size_t ld_q;
    /* [position][d_head / 2] Cosines and sines of RoPE. NULL: the queries get no RoPE. */
    const float *cosine, *sine;
    /* 1 if RoPE rotates dimensions 2i and 2i + 1, 0 if it rotates i and i + d_head / 2. */
    int32_t interleaved;
    /* [n] RoPE position of each request's only new token. NULL: the position of a token is its
     * index in the request. */
    const uint32_t *position;
    /* NULL if `to_q` is row-major. Otherwise `to_q` has blocks of 8 x 8 elements, and q_start [n]
     * has the row of each request's first query. */
    const int32_t *q_start;
    int32_t n_q8;
    void *to_q;
    /* Latent vectors of new tokens in device memory, 16-byte aligned. Successive tokens are
     * ld_latent elements apart. */
    const void *latent;
    size_t ld_latent;
    /* [n_runs] in device memory. A token's latent vectors are stored in runs of 8 elements. run[i]:
     * offset of run i in a page, for the page's first token. */
    const int32_t *run;
    /* [n_runs] in device memory. A page stores a token's latent vectors in runs of 8 elements.
     * source[i]: index of run i's first element among the token's elements in `latent`. NULL: the
     * index is 8 i. */
    const int32_t *source;
    int32_t n_runs;
    void *pool;
    size_t page_elements;
    /* positions: offset in bf16 elements at which a page stores the RoPE positions of its tokens,
     * int32 [n_kv_heads][64]. 0: pages have no positions. */
    int32_t positions, n_kv_heads;
} kvd_latent_put_args;
cudaError_t kvd_latent_put(const kvd_latent_put_args *a, cudaStream_t stream);

/* Largest rank of a projection with which kvd_latent_restore can restore K or V. */
enum { KVD_LATENT_RANK_MAX = 1 << 14 };
typedef struct {
    int32_t n, max_pages, n_kv_heads, d_head, max_rank;
    /* Number of each request's newest tokens whose K and V are not computed from latent vectors,
     * because the cache's pages already have them. */
    int32_t newest;
    /* In device memory. kv_len [n]: number of tokens of each request. page_table [n][max_pages]:
     * numbers of each request's pages in the cache. */
    const int32_t *kv_len, *page_table;
    /* [n][max_pages] in device memory: page numbers of each request's latent vectors. NULL:
     * page_table has them. Must be NULL if KV heads share projections. */
    const int32_t *latent_table;
    /* Number of tokens in the layer's sliding window, or 0 for no window. Must be 0 if KV heads
     * share projections. */
    int32_t window;
    /* [n] in device memory: number of new tokens of each request. Pages outside the sliding windows
     * of these tokens are skipped. */
    const int32_t *q_len;
    /* [n][max_pages * KVD_PAGE_TOKENS] in device memory: RoPE position of each cached token.
     * Negative: K and V of the token are not computed from its latent vectors. NULL: positions are
     * 0, 1, 2, ... */
    const int32_t *position;
    /* Offset, in elements, at which a page of latent vectors has its tokens' RoPE positions. 0:
     * pages store no positions. */
    int32_t positions;
    /* [n] in device memory: slot of each request. The projections of slot i begin at element i *
     * matrix_slot of `matrix`. NULL: all requests share the projections. */
    const int32_t *slot;
    size_t matrix_slot;
    /* [n_kv_heads] in device memory: for each KV head, where pages store its latent vectors, and
     * the K and V computed from them. */
    const kvd_latent_head *head;
    const void *latents, *matrix;
    /* latent_page: number of elements of a page of latent vectors. page: number of elements of a
     * page of the cache. */
    size_t latent_page, page;
    /* In device memory. bias [2 n_kv_heads][d_head]: added to the K (first) and V computed from
     * latent vectors. gain [d_head]: weights of an RMS norm of this K. NULL: no bias, no norm. */
    const float *bias, *gain;
    float eps;
    /* [position][d_head / 2] Cosines and sines of RoPE. NULL: the keys get no RoPE. */
    const float *cosine, *sine;
    int32_t interleaved;
    /* 0 if each KV head has its own projection [d_head][rank]. Otherwise adjacent KV heads share a
     * projection [rank / 8][columns][8], which requires kvd_latent_joins() and RoPE positions 0, 1,
     * 2, ... */
    int32_t columns;
    bool keys_alone; /* V is not written; requires `columns` */
    void *pages;
    int32_t n_sms;
} kvd_latent_restore_args;
/* Computes K and V from latent vectors and projections, applies RoPE to K, and writes both to the
 * cache's pages. If a->newest is 0 and a->position is NULL, also writes zeros after each request's
 * last token, up to a multiple of 8 tokens. */
cudaError_t kvd_latent_restore(const kvd_latent_restore_args *a, cudaStream_t stream);
/* Returns true if kvd_latent_restore can use one projection for `heads` KV heads of d_head
 * dimensions on the current GPU. */
bool kvd_latent_joins(int32_t heads, int32_t d_head);
/* Restores K and V of KV heads that share latent vectors (a->columns is not 0). Only
 * kvd_latent_restore calls this function. */
cudaError_t kvd_latent_restore_joint(const kvd_latent_restore_args *a, cudaStream_t stream);
/* Reorders a projection [columns][rank] to [rank / 8][columns][8], the layout of projections that
 * KV heads share. */
cudaError_t kvd_latent_join(const void *from, size_t columns, size_t rank, void *to,
                            cudaStream_t stream);

/* Computes latent vectors of each request's last token: K and V times the projections that
 * a->matrix has for the request's slot. The projections of a slot are [2 n_kv_heads][d_head][rank],
 * K first. */
cudaError_t kvd_latent_cut(const kvd_latent_restore_args *a, void *latents, cudaStream_t stream);

/* Copies K and V of new tokens from the cache's pages to `rows` [tokens][2 n_kv_heads][d_head], K
 * first. */
cudaError_t kvd_latent_gather(const kvd_latent_slices *s, const kvd_latent_head *head,
                              int32_t n_kv_heads, int32_t d_head, const void *pages, size_t page,
                              void *rows, cudaStream_t stream);

/* Copies queries of new tokens, which are stored in 8 x 8 blocks, to `rows`
 * [tokens][n_heads][d_head]. */
cudaError_t kvd_latent_gather_queries(const kvd_latent_slices *s, const int32_t *q_start,
                                      int32_t n_q8, int32_t n_heads, int32_t d_head, const void *q,
                                      void *rows, cudaStream_t stream);

/* Projection [d][rank] that begins at element `at` of an array: `width` eigenvectors as columns,
 * then columns of zeros. */
typedef struct {
    int32_t width, rank, at;
} kvd_latent_basis;

/* Numbers of vectors whose second moments (sums of x x^T) were computed for K and for V. */
typedef struct {
    int32_t k, v;
} kvd_latent_rows;
/* Replaces eigenvectors that are only rounding noise by vectors orthonormal to the others. values
 * [n][d]: eigenvalues in ascending order. vectors [n][d][d]: eigenvectors in the same order,
 * column-major. The first n / 2 matrices are for K, the rest for V. */
cudaError_t kvd_latent_complete(float *vectors, const float *values, const kvd_latent_basis *basis,
                                int32_t n, int32_t d, kvd_latent_rows rows, cudaStream_t stream);

/* Writes the leading eigenvectors of n matrices [d][d] to `to`, as bf16 projections. basis [n]:
 * size and location of each projection. If `padded` is not NULL, also writes them to padded
 * [n][d][wide], followed by columns of zeros. */
cudaError_t kvd_latent_leading(const float *vectors, const kvd_latent_basis *basis, int32_t n,
                               int32_t d, int32_t wide, void *to, void *padded,
                               cudaStream_t stream);

/* Arguments of kvd_latent_narrow, which sets the last projected dimensions of less important prompt
 * tokens to 0. */
typedef struct {
    kvd_latent_slices s;
    const int32_t *q_start; /* device [s.n]: each prompt's first token in `level` */
    const uint8_t *level;   /* device: bits of each prompt token */
    uint8_t important;      /* bit of `level`, set if a token keeps all columns */
    /* [n] in device memory, for K of all KV heads, then for V: low[i].width is the number of
     * projected dimensions that less important tokens keep. */
    const kvd_latent_basis *low;
    int32_t n, wide;
    /* [tokens][n][wide] in device memory: projected K, then V, of each token. */
    void *rows;
} kvd_latent_narrow_args;
cudaError_t kvd_latent_narrow(const kvd_latent_narrow_args *a, cudaStream_t stream);

/* Largest number of bits of a quantised element of a latent vector. */
enum { KVD_LATENT_CODE_BITS = 8 };
typedef struct {
    int32_t place; /* element offset in a page, for the page's first token */
    /* bit: offset of the element's first bit in the quantised token. bits: number of bits of the
     * element, possibly 0. */
    int32_t bit, bits;
    int32_t side; /* 0: K, 1: V */
    /* Index of the group of KV heads whose latent vector has this element. */
    int32_t group;
    /* Element x is quantised to the level nearest to (x - mean) / deviation. */
    float mean, deviation;
} kvd_latent_code;

/* Layout of the latent K (index 0) and latent V (index 1) of a group of KV heads, quantised by
 * method kvquant. An outlier (a number stored exactly) takes one 32-bit word: the bf16 number is in
 * the upper half, its index in the lower half. */
typedef struct {
    /* [K, V] Latent K and latent V of a token. first: index of the first element among all elements
     * of the token. n: number of elements without padding. */
    int32_t first[2], n[2];
    /* The v_apart largest and the v_apart smallest elements of each token's latent V are stored as
     * outliers. */
    int32_t v_apart;
    /* Index of the 32-bit word that has two float16 numbers: (max - min) / 2 and (max + min) / 2 of
     * a token's latent V without outliers. The outliers of V are the next words. */
    int32_t v_at;
    /* Index of the word in which a page stores its number of outliers of K. The next words are
     * these outliers. */
    int32_t k_at;
} kvd_latent_vector;
enum { KVD_LATENT_APART = 1024 /* above the number of elements of a latent */ };

/* Arguments of the kernels that quantise and decode latent vectors. */
typedef struct {
    kvd_latent_slices s;
    const int32_t *slot; /* [s.n] */
    /* n_codes: number of quantised elements per token. words: number of 32-bit words per token.
     * n_sink: number of first tokens of a request that are not quantised. */
    int32_t n_codes, words, n_sink;
    const kvd_latent_code *code; /* [n_codes] */
    /* [2][KVD_LATENT_CODE_BITS + 1][2^KVD_LATENT_CODE_BITS] Indices: K or V, number of bits, code.
     *
     * - level: a number gets the code with the nearest level
     * - decoded: number to which the code decodes */
    const float *level, *decoded;
    /* [pages][page_words] Each page has quantised tokens [KVD_PAGE_TOKENS][words], then the
     * outliers of their K. */
    uint32_t *store;
    size_t page_words;
    uint16_t *exact; /* [slots][n_sink][n_codes] */
    void *pool;
    size_t page_elements; /* elements of a page of latents */
    /* Number of tokens in the layer's sliding window, or 0 for no window. Pages before the window
     * are not decoded. */
    int32_t window;
    /* Number of groups of KV heads. Method kvquant quantises the latent vectors of a group
     * together; method allot has no groups (0). */
    int32_t n_groups;
    const kvd_latent_vector *vector;
    /* Largest number of outliers of K that a page can store per group of KV heads. 0: outliers of K
     * are not stored. */
    int32_t room;
    /* Slot of the dummy requests that pad a batch. The outliers of their K are not stored. */
    int32_t idle;
    /* prompts: true if the new tokens are whole prompts; the lists of outliers in their pages are
     * emptied first. recounts: true if the outlier counts `apart` of these requests are also set to
     * 0. */
    bool prompts, recounts;
    /* apart [slots]: number of outliers of K of each request. beyond [1]: number of outliers that
     * did not fit into the fullest page, or 0. */
    uint32_t *apart, *beyond;
} kvd_latent_code_args;
cudaError_t kvd_latent_code_put(const kvd_latent_code_args *a, cudaStream_t stream);
/* Turns pages of random bits into valid pages of method kvquant, for timing. A fraction `share` of
 * K's elements become outliers. */
cudaError_t kvd_latent_code_make_plausible(const kvd_latent_code_args *a, size_t pages,
                                           double share, cudaStream_t stream);
cudaError_t kvd_latent_code_restore(const kvd_latent_code_args *a, int32_t n_sms,
                                    cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
/* Returns the index, in a page of int32 words, of the RoPE position of token t in KV head g. */
static __device__ __forceinline__ int kvd_latent_position(int32_t positions, int g, int t)
{
    return positions / 2 + g * KVD_PAGE_TOKENS + t % KVD_PAGE_TOKENS;
}

/* Adds `bias` to keys or values in the accumulators of mma instructions, unless it is NULL. Then
 * applies an RMS norm with weights `gain`, unless `gain` is NULL. */
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

/* Layout of one layer's latent vectors of K (index 0) and V (index 1), and of the projections that
 * restore K and V. */
typedef struct {
    /* [n_groups] Number of elements of the latent K (index 0) or V (index 1) of each group of KV
     * heads, a multiple of 16. */
    int *rank[2];
    /* [n_kv_heads] Offset in `up`, in elements, of the projection that restores each head's K
     * (index 0) or V (index 1). -1: no projection, the latent vector is used as it is. */
    int *matrix[2];
    const void *up;
    int columns; /* of kvd_latent_restore_args */
    bool applies_rope;
    /* page: number of elements of a page of latent vectors. at: offset of the layer's first page in
     * the pool of all pages, in elements. */
    size_t page, at;
    int positions; /* of kvd_latent_put_args */
    int first_run, n_runs, max_rank;
    /* Number of latent elements of a token, of K and V together. */
    size_t latent_pitch;
} kvd_latent_layer;

/* Stored latent vectors of all layers. K and V are restored from them, one layer at a time, to bf16
 * pages that all layers share. */
typedef struct {
    kvd_paged_cache *cache; /* borrowed */
    kvd_device_memory memory;
    int heads; /* adjacent KV heads that share a latent */
    kvd_latent_layer *layer;
    /* [n_layers][n_kv_heads] in device memory: for each KV head, where pages store its latent
     * vectors, and the K and V computed from them. */
    kvd_latent_head *head;
    /* [n_layers][n_runs] in device memory: index in a page at which each run of 8 latent elements
     * begins, for the page's first token. */
    int32_t *run;
    /* Number of elements to which each latent vector of a new token is padded; 0: no padding. Must
     * be set before kvd_latent_store_init. */
    int wide;
    /* True if K and V share latent vectors. Must be set before kvd_latent_store_init. */
    bool joint;
    /* True if all layers use the same pages of latent vectors, one layer at a time. Must be set
     * before kvd_latent_store_init. */
    bool one_layer;
    /* True if pages also store the RoPE position of each token and KV head, for methods that drop
     * tokens. Must be set before kvd_latent_store_init; not supported if layers share pages. */
    bool positions;
    /* [n_layers][n_runs] in device memory. Pages store latent vectors without padding, in runs of 8
     * elements. source: offset of each run in a new token's padded vectors. NULL: no padding. */
    int32_t *source;
    uint16_t *pool;
    /* Bytes of a page of latent vectors, summed over layers. page_bytes: layers without a sliding
     * window. near_page_bytes: layers with one. If layers share pages (one_layer), each sum is only
     * the largest page. */
    size_t page_bytes, near_page_bytes;
    /* Bytes of one token, summed over layers. sink_bytes: for one of the first n_sink tokens, in
     * layers without a sliding window. token_bytes: for a later token, in layers without a window.
     * near_token_bytes: for any token, in layers with a window. */
    double sink_bytes, token_bytes, near_token_bytes;
    uint32_t n_sink;
    /* True if projections differ between requests, false if all requests share them. */
    bool of_slots;
    size_t matrix_slot; /* elements of a slot's projection matrices */
    uint32_t *tokens;   /* [n_slots] */
    size_t n_slots, slot_bytes;
    /* [n_slots] Number of outliers of each request; an outlier takes 32 bits. NULL: outliers are
     * not stored. */
    const uint32_t *apart;
    /* held: cache bytes of all requests if no tokens were dropped. near_held: the part of these
     * bytes in layers with a sliding window. */
    double held, near_held;
} kvd_latent_store;

/* Allocates s->layer, the layouts of all layers. Each group of `heads` adjacent KV heads shares
 * latent vectors. The caller must then set the fields `rank`, `matrix`, `up` and `applies_rope` of
 * each layer. */
int kvd_latent_store_begin(kvd_latent_store *s, kvd_paged_cache *c, int heads, kvd_err *err);
/* Computes where the pages of each layer store latent vectors. The caller must have set the head
 * dimensions of all layers (kvd_cache_layer.map). */
int kvd_latent_store_init(kvd_latent_store *s, kvd_err *err);
/* Allocates `pages` pages of latent vectors and fills them with random numbers, so that timing runs
 * need not process prompts. */
int kvd_latent_store_make(kvd_latent_store *s, size_t pages, size_t slots, cudaStream_t stream,
                          kvd_err *err);
void kvd_latent_store_release(kvd_latent_store *s);

/* Returns the new tokens of n requests of the batch, with the requests' pages in one layer. The
 * requests are the first n decoding requests or, if `prompts` is true, the first n prompts. */
kvd_latent_slices kvd_latent_store_slices(const kvd_latent_store *s, int layer, bool prompts,
                                          size_t n);
/* Sets the fields of *a that describe how the pages of a layer store latent vectors. The caller
 * sets the other fields: new tokens and queries. */
void kvd_latent_store_describe(const kvd_latent_store *s, int layer, kvd_latent_put_args *a);
/* Returns arguments with which kvd_latent_restore restores K and V of n requests in one layer. The
 * requests are the first n decoding requests or, if `prompts` is true, the first n prompts. */
kvd_latent_restore_args kvd_latent_store_restored(const kvd_latent_store *s, int layer,
                                                  bool prompts, size_t n);
void *kvd_latent_store_pool(const kvd_latent_store *s, int layer);

/* Copies the projections of the KV heads in `share`, the heads of one GPU, from `all` to *own. The
 * matrices still belong to `all`; the caller frees own->head. Fails if a latent vector is shared by
 * KV heads on different GPUs. */
int kvd_latent_store_share(const kvd_dims *all, const kvd_gpu_share *share, kvd_dims *own,
                           kvd_err *err);
/* Makes the CPU, not the GPU, quantise latent vectors by the method in m->plan. Latent vectors of
 * successive tokens are `ld` elements apart. Must be called after kvd_latent_store_init. */
int kvd_latent_store_host(kvd_latent_store *s, kvd_gpu_method *m, const kvd_dims *dims, size_t ld,
                          kvd_err *err);

/* Updates the number of tokens of each request (s->tokens) and the size of the cache in bytes:
 * s->held in all layers, s->near_held in layers with a sliding window. Must be called after each
 * iteration. */
void kvd_latent_store_note(kvd_latent_store *s, const kvd_iteration *it);

typedef struct {
    int32_t n, words;          /* coded numbers per token; 32-bit words of a token's code */
    size_t page_words;         /* 32-bit words of a page */
    size_t code, store, exact; /* offsets of the layer in three arrays of kvd_latent_codes */
} kvd_latent_codes_layer;

/* Stored latent vectors, quantised by method allot or kvquant. They are decoded, one layer at a
 * time, to the pages of `store`. */
typedef struct {
    kvd_latent_store *store; /* borrowed; one_layer is true */
    kvd_latent_codes_layer *layer;
    const kvd_latent_code *code; /* device */
    /* Tables in device memory, one per layer, K or V, and number of bits. A number's code is the
     * index of the nearest entry of `level`. decoded: the number to which each code decodes. */
    const float *level, *decoded;
    uint32_t *words;
    uint16_t *exact;
    /* Bytes of a page of quantised latent vectors. page_bytes: sum over the layers without a
     * sliding window. near_page_bytes: sum over the layers with one. slot_bytes: bytes of a
     * request's first tokens, which are not quantised. */
    size_t page_bytes, near_page_bytes, slot_bytes;
    /* Number of bits of one token, summed over layers without (index 0) or with (index 1) a sliding
     * window. sink_bits: for one of the first tokens, which are not quantised. token_bits: for a
     * later token, without its outliers of K. */
    double sink_bits[2], token_bits[2];
    uint32_t *prompt; /* [slots] Tokens of each request's prompt. */
    /* Number of groups of KV heads. Method kvquant quantises the latent vectors of a group
     * together; method allot has no groups (0). */
    int n_groups;
    const kvd_latent_vector *vector;
    /* Largest number of outliers of K that a page can store per group of KV heads. */
    int32_t room;
    double share;
    /* [slots + 1] Number of K outliers of each request, in device memory (apart) and pinned memory
     * (host_apart). Last element: largest number of outliers that one page lacked room for. NULL:
     * outliers of K are not stored. */
    uint32_t *apart, *host_apart;
} kvd_latent_codes;

/* Copies the levels and bit widths of the quantisation method (allot or kvquant) to the GPU.
 * kvd_latent_store_init must have set up `store`. */
int kvd_latent_codes_init(kvd_latent_codes *c, kvd_latent_store *store, const kvd_plan *plan,
                          const kvd_dims *dims, kvd_err *err);
/* Allocates `pages` pages of quantised latent vectors and fills them with random numbers, so that
 * timing runs need not process prompts. */
int kvd_latent_codes_make(kvd_latent_codes *c, size_t pages, size_t slots, cudaStream_t stream,
                          kvd_err *err);
/* Quantises the latent vectors of the requests' new tokens. */
int kvd_latent_codes_put(const kvd_latent_codes *c, const kvd_paged_rows *r, kvd_err *err);
/* Decodes the quantised latent vectors of all tokens before the new tokens. */
int kvd_latent_codes_restore(const kvd_latent_codes *c, const kvd_paged_rows *r, kvd_err *err);
/* Records the prompt length of each request whose prompt began in this iteration. Must be called
 * after each iteration. */
void kvd_latent_codes_note(kvd_latent_codes *c, const kvd_iteration *it);
double kvd_latent_codes_bits(const kvd_latent_codes *c, size_t slot);
/* Returns how many stored bits of the request the latest decode step did not read, because their
 * tokens had left the sliding window. */
double kvd_latent_codes_unseen(const kvd_latent_codes *c, size_t slot);
/* Returns 0 if all outliers of K fitted into their pages. Otherwise returns the number of outliers
 * for which a page needs room. */
size_t kvd_latent_codes_lacking(const kvd_latent_codes *c);

/* For tests only: returns the method that drops tokens from the cache of method palu, or NULL if
 * there is none. `palu` owns the returned method. */
const kvd_gpu_method *kvd_gpu_palu_evict(const kvd_gpu_method *palu);
#endif
#endif
