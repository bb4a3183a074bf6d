/* Kernels of caches that store latent vectors: K or V times a projection, bf16. Launchers return
 * cudaError_t and never synchronise or allocate.
 *
 * Element r of token t in a page is at (r / 8) * 512 + (t / 8) * 64 + t % 8 * 8 + r % 8. Ranks are
 * multiples of 16. */
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

/* Positions of a KV head's K [0] and V [1] in latent pages and cache pages, in elements. */
typedef struct {
    int32_t latent[2], page[2];
    /* Offset in elements, in the array of all projections, of the projection [d_head][rank] that
     * restores the head's K [0] or V [1]. -1: the latent vector is used as it is. */
    int32_t matrix[2];
    int32_t rank[2];
} kvd_latent_head;

/* New tokens of a batch: the last q_len[b] of request b's kv_len[b] tokens. */
typedef struct {
    int32_t n, max_pages;
    int32_t most; /* upper bound of every q_len */
    /* [n] for each request, on the device: index of its first new token, numbers of new and of all
     * tokens. page_table is [n][max_pages]. */
    const int32_t *start, *q_len, *kv_len, *page_table;
} kvd_latent_slices;

static inline int kvd_latent_slices_bad(const kvd_latent_slices *s)
{
    return s->n < 1 || s->n > 65535 || s->most < 1 || !s->start || !s->q_len || !s->kv_len ||
           !s->page_table;
}

/* Arguments for storing queries after RoPE, and latent vectors of new tokens. */
typedef struct {
    kvd_latent_slices s;
    /* Number of query heads and of dimensions of a head. If n_heads is 0, there are no queries. */
    int32_t n_heads, d_head;
    /* [tokens][n_heads * d_head] Queries on the device, ld_q apart, 16-byte aligned. */
    const void *q;
    size_t ld_q;
    /* [position][d_head / 2] RoPE tables. NULL means that queries get no RoPE. */
    const float *cosine, *sine;
    /* 1 if RoPE rotates dimensions 2i and 2i + 1, 0 if it rotates i and i + d_head / 2. */
    int32_t interleaved;
    /* [n] Position of each request's new token. NULL: new tokens have the last positions. */
    const uint32_t *position;
    /* [n] First row of each request in Q in 8 x 8 blocks. NULL means that Q is row-major. */
    const int32_t *q_start;
    int32_t n_q8;
    void *to_q;
    /* Latent vectors of new tokens on the device, ld_latent apart, 16-byte aligned. */
    const void *latent;
    size_t ld_latent;
    /* [n_runs] in device memory: position in a page of every 8 elements of a latent vector. */
    const int32_t *run;
    /* [n_runs] on the device: for every 8 stored elements, their index in a new token's latent
     * vectors. NULL: 0, 8, 16, ... */
    const int32_t *source;
    int32_t n_runs;
    void *pool;
    size_t page_elements;
    /* Element of a page at which the positions of its tokens begin, int32 [n_kv_heads][64]. 0 means
     * that positions are not stored. */
    int32_t positions, n_kv_heads;
} kvd_latent_put_args;
cudaError_t kvd_latent_put(const kvd_latent_put_args *a, cudaStream_t stream);

/* Largest rank of kvd_latent_restore, which multiplies latent vectors by projections and applies
 * RoPE to keys. After a request's last token it writes zeros, up to a multiple of 8 tokens. */
enum { KVD_LATENT_RANK_MAX = 1 << 14 };
typedef struct {
    int32_t n, max_pages, n_kv_heads, d_head, max_rank;
    /* Number of newest tokens whose K and V stay as they are, not restored from latent vectors. */
    int32_t newest;
    /* On the device: tokens of each request kv_len [n], and page_table [n][max_pages]. */
    const int32_t *kv_len, *page_table;
    /* [n][max_pages] Numbers of the pages with latent vectors, in device memory. NULL: those of
     * page_table. Must be NULL if heads share projections (columns > 0). */
    const int32_t *latent_table;
    /* Size of a sliding window in tokens, or 0. Pages that none of the q_len[b] newest tokens of
     * request b can see are not touched. q_len [n] is in device memory. The window must be 0 if
     * heads share projections (columns > 0). */
    int32_t window;
    const int32_t *q_len;
    /* [n][max_pages * KVD_PAGE_TOKENS] RoPE position of each cached token, in device memory.
     * Negative: K and V of the token are not written. NULL: positions 0, 1, 2 ... */
    const int32_t *position;
    /* Element of a page at which the positions of its tokens begin. 0: `position` has them. */
    int32_t positions;
    /* [n] on the device: slot of each request, which selects its matrices. NULL: all share them. */
    const int32_t *slot;
    size_t matrix_slot;
    /* [n_kv_heads] in device memory: offsets of each KV head's K and V in the pages. */
    const kvd_latent_head *head;
    const void *latents, *matrix;
    /* Number of elements of a page of latent vectors, and of a page of the cache. */
    size_t latent_page, page;
    /* On the device, or NULL: biases [2 n_kv_heads][d_head], K first; RMS norm weights [d_head]. */
    const float *bias, *gain;
    float eps;
    /* [position][d_head / 2] RoPE tables. NULL means that keys get no RoPE. */
    const float *cosine, *sine;
    int32_t interleaved;
    /* 0: every KV head has its own projection [d_head][rank] in `matrix`. Otherwise adjacent heads
     * share one, [rank / 8][columns][8]. Sharing requires that kvd_latent_joins returns true and
     * that no token positions are given (`position`, `positions`). */
    int32_t columns;
    bool keys_alone; /* V is not written; requires `columns` */
    void *pages;
    int32_t n_sms;
} kvd_latent_restore_args;
cudaError_t kvd_latent_restore(const kvd_latent_restore_args *a, cudaStream_t stream);
/* Returns true if kvd_latent_restore supports a projection shared by `heads` heads. */
bool kvd_latent_joins(int32_t heads, int32_t d_head);
/* Restores keys and values whose heads share latent vectors (a->columns is not 0). Only
 * kvd_latent_restore calls this. */
cudaError_t kvd_latent_restore_joint(const kvd_latent_restore_args *a, cudaStream_t stream);
/* Reorders a projection [columns][rank] to [rank / 8][columns][8]. */
cudaError_t kvd_latent_join(const void *from, size_t columns, size_t rank, void *to,
                            cudaStream_t stream);

/* Projects K and V of each request's last token by the matrices [2 n_kv_heads][d_head][rank] (K
 * first) of its slot, and stores the latent vectors. */
cudaError_t kvd_latent_cut(const kvd_latent_restore_args *a, void *latents, cudaStream_t stream);

/* Copies new K and V to [tokens][2 n_kv_heads][d_head], K first. */
cudaError_t kvd_latent_gather(const kvd_latent_slices *s, const kvd_latent_head *head,
                              int32_t n_kv_heads, int32_t d_head, const void *pages, size_t page,
                              void *rows, cudaStream_t stream);

/* Copies queries from 8 x 8 blocks to [tokens][n_heads][d_head]. */
cudaError_t kvd_latent_gather_queries(const kvd_latent_slices *s, const int32_t *q_start,
                                      int32_t n_q8, int32_t n_heads, int32_t d_head, const void *q,
                                      void *rows, cudaStream_t stream);

/* Projection at element `at`: `width` eigenvectors, then columns of zeros up to `rank`. */
typedef struct {
    int32_t width, rank, at;
} kvd_latent_basis;

/* Numbers of tokens from which the second moments of K and of V were computed. */
typedef struct {
    int32_t k, v;
} kvd_latent_rows;
/* Replaces eigenvectors whose eigenvalues are only rounding noise by vectors orthonormal to the
 * previous ones. vectors [n][d][d] are column-major, and their eigenvalues [n][d] rise. The first n
 * / 2 matrices are of K, the others of V. */
cudaError_t kvd_latent_complete(float *vectors, const float *values, const kvd_latent_basis *basis,
                                int32_t n, int32_t d, kvd_latent_rows rows, cudaStream_t stream);

/* Writes the basis[i].width leading eigenvectors of matrix i, largest eigenvalue first, to `to`
 * from element basis[i].at on, as [d][basis[i].rank]. `padded` [n][d][wide], or NULL, gets them
 * with zero columns up to `wide`. */
cudaError_t kvd_latent_leading(const float *vectors, const kvd_latent_basis *basis, int32_t n,
                               int32_t d, int32_t wide, void *to, void *padded,
                               cudaStream_t stream);

/* Projected K and V of prompts, of which less important tokens keep fewer dimensions. */
typedef struct {
    kvd_latent_slices s;
    const int32_t *q_start; /* device [s.n]: each prompt's first token in `level` */
    const uint8_t *level;   /* device: bits of each prompt token */
    uint8_t important;      /* bit of `level`, set if a token keeps all columns */
    /* [n] in device memory: projected dimensions that less important tokens keep. */
    const kvd_latent_basis *low;
    int32_t n, wide;
    /* [tokens][n][wide] on the device: projected K and V. */
    void *rows;
} kvd_latent_narrow_args;
cudaError_t kvd_latent_narrow(const kvd_latent_narrow_args *a, cudaStream_t stream);

/* Largest number of bits of a quantised element of a latent vector. */
enum { KVD_LATENT_CODE_BITS = 8 };
typedef struct {
    int32_t place; /* element offset in a page, for the page's first token */
    /* First bit of the element in its token, and number of bits, which may be 0. */
    int32_t bit, bits;
    int32_t side; /* 0: K, 1: V */
    /* Index of the group of KV heads whose latent vector has this element. */
    int32_t group;
    /* Element x is quantised to the level nearest to (x - mean) / deviation. */
    float mean, deviation;
} kvd_latent_code;

/* Latent vectors of K [0] and V [1] of a group of heads, quantised by kvquant. An outlier is a
 * 32-bit word: bf16 number in the upper half, index in the lower half. */
typedef struct {
    /* Index of the vector's first element in a token, and number of its elements without padding,
     * for K [0] and V [1]. */
    int32_t first[2], n[2];
    /* Number of largest, and of smallest, elements of a token's V that are stored as outliers. */
    int32_t v_apart;
    /* Index of the word with the range of V: half width and middle as float16. Outliers of V are in
     * the words after it. */
    int32_t v_at;
    /* Index in a page's words of the number of outliers of K. The outliers follow. */
    int32_t k_at;
} kvd_latent_vector;
enum { KVD_LATENT_APART = 1024 /* above the number of elements of a latent */ };

/* Quantised latent vectors on the device. */
typedef struct {
    kvd_latent_slices s;
    const int32_t *slot; /* [s.n] */
    /* Per token: quantised elements, 32-bit words. Number of first tokens that stay unquantised. */
    int32_t n_codes, words, n_sink;
    const kvd_latent_code *code; /* [n_codes] */
    /* [2][KVD_LATENT_CODE_BITS + 1][2^KVD_LATENT_CODE_BITS] Quantisation levels of K and V for each
     * number of bits. Encoding compares numbers with `level`, decoding returns numbers of
     * `decoded`. */
    const float *level, *decoded;
    /* [pages][page_words] Quantised tokens [KVD_PAGE_TOKENS][words], then outliers of K. */
    uint32_t *store;
    size_t page_words;
    uint16_t *exact; /* [slots][n_sink][n_codes] */
    void *pool;
    size_t page_elements; /* elements of a page of latents */
    /* Size of a sliding window in tokens, or 0. Pages before the window are not decoded. */
    int32_t window;
    /* Number of groups of heads that kvquant quantises together. Method allot has none (0). */
    int32_t n_groups;
    const kvd_latent_vector *vector;
    /* Most outliers of K per page and group of KV heads quantised together; 0: none are stored. */
    int32_t room;
    /* Slot of the padding requests of a batch. Outliers of their keys are not stored. */
    int32_t idle;
    /* `prompts`: new tokens are whole prompts, so the outlier lists of their pages are emptied
     * first. `recounts`: the requests' numbers of outliers (`apart`) are zeroed, too. */
    bool prompts, recounts;
    /* apart [slots]: number of outliers of K of each request. beyond [1]: largest number of
     * outliers that did not fit into one page. */
    uint32_t *apart, *beyond;
} kvd_latent_code_args;
cudaError_t kvd_latent_code_put(const kvd_latent_code_args *a, cudaStream_t stream);
/* Turns random pages into valid pages of kvquant, with fraction `share` of outliers. */
cudaError_t kvd_latent_code_make_plausible(const kvd_latent_code_args *a, size_t pages,
                                           double share, cudaStream_t stream);
cudaError_t kvd_latent_code_restore(const kvd_latent_code_args *a, int32_t n_sms,
                                    cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
/* Returns the int32 index in a page at which the position of token t of KV head g is stored. */
static __device__ __forceinline__ int kvd_latent_position(int32_t positions, int g, int t)
{
    return positions / 2 + g * KVD_PAGE_TOKENS + t % KVD_PAGE_TOKENS;
}

/* Adds a bias (or NULL) to mma accumulators. If `gain` is not NULL, then applies an RMS norm. */
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

/* Layout of one layer's latent vectors of K [0] and V [1]. The caller sets rank and matrix before
 * kvd_latent_store_init, and up and applies_rope before the first launch. */
typedef struct {
    /* [n_groups] Width of the latent K [0] or V [1] of each group of KV heads, a multiple of 16. */
    int *rank[2];
    /* [n_kv_heads] Offset in `up` of the projection that restores each head, or -1. */
    int *matrix[2];
    const void *up;
    int columns; /* of kvd_latent_restore_args */
    bool applies_rope;
    /* Number of elements of a page of latent vectors, and position of the layer's first page. */
    size_t page, at;
    int positions; /* of kvd_latent_put_args */
    int first_run, n_runs, max_rank;
    /* Number of latent elements of a token, of K and V together. */
    size_t latent_pitch;
} kvd_latent_layer;

/* Latent vectors of all layers, for caches whose bf16 pages hold one layer at a time. */
typedef struct {
    kvd_paged_cache *cache; /* borrowed */
    kvd_device_memory memory;
    int heads; /* adjacent KV heads that share a latent */
    kvd_latent_layer *layer;
    /* [n_layers][n_kv_heads] in device memory: offsets of each KV head's K and V in the pages. */
    kvd_latent_head *head;
    /* [n_layers][n_runs] in device memory: position in a page of every 8 latent elements. */
    int32_t *run;
    /* Width to which new latent vectors are padded, or 0. Set before kvd_latent_store_init. */
    int wide;
    /* True if K and V share latent vectors. Set before kvd_latent_store_init. */
    bool joint;
    /* True if all layers use the same pages. Set before kvd_latent_store_init. */
    bool one_layer;
    /* True if pages also store the position of each KV head's tokens, which dropping tokens
     * requires. Must be set before kvd_latent_store_init, and not together with one_layer. */
    bool positions;
    /* [n_layers][n_runs] For every 8 stored latent elements, their index in a new token's padded
     * latent vectors. NULL if these have no padding. */
    int32_t *source;
    uint16_t *pool;
    /* Bytes of a page in layers without, and in layers with a sliding window: sum over layers or,
     * if one_layer is set, the largest. */
    size_t page_bytes, near_page_bytes;
    /* Bytes that a token takes in all layers without a sliding window: one of the first n_sink
     * tokens, and a later one. Bytes that a token takes in all layers with a window. */
    double sink_bytes, token_bytes, near_token_bytes;
    uint32_t n_sink;
    /* True if each request has projections of its own. */
    bool of_slots;
    size_t matrix_slot; /* elements of a slot's projection matrices */
    uint32_t *tokens;   /* [n_slots] */
    size_t n_slots, slot_bytes;
    /* [n_slots] Number of outliers of each request, which take one 32-bit word each. NULL: none. */
    const uint32_t *apart;
    /* Cache bytes of all requests, including those that finished in the latest iteration: in all
     * layers, and in layers with a sliding window. `held` assumes that no method drops tokens. */
    double held, near_held;
} kvd_latent_store;

/* Allocates the layers, of which the caller must set rank, matrix, up and applies_rope. */
int kvd_latent_store_begin(kvd_latent_store *s, kvd_paged_cache *c, int heads, kvd_err *err);
/* Makes the layout of latent pages (head, run). Requires kvd_cache_layer.map of all layers. */
int kvd_latent_store_init(kvd_latent_store *s, kvd_err *err);
/* Allocates the pool of pages and fills it with random numbers, for timing. */
int kvd_latent_store_make(kvd_latent_store *s, size_t pages, size_t slots, cudaStream_t stream,
                          kvd_err *err);
void kvd_latent_store_release(kvd_latent_store *s);

/* Returns which tokens of a layer are new in the first n decode steps or, with `prompts`, in the
 * first n prompts. */
kvd_latent_slices kvd_latent_store_slices(const kvd_latent_store *s, int layer, bool prompts,
                                          size_t n);
/* Sets in *a how a layer's latent vectors are stored. The caller sets the tokens and queries. */
void kvd_latent_store_describe(const kvd_latent_store *s, int layer, kvd_latent_put_args *a);
/* Returns the arguments with which kvd_latent_restore restores K and V of a layer. */
kvd_latent_restore_args kvd_latent_store_restored(const kvd_latent_store *s, int layer,
                                                  bool prompts, size_t n);
void *kvd_latent_store_pool(const kvd_latent_store *s, int layer);

/* Sets `*own` to the projections of one GPU's KV heads. `all` keeps the matrices; the caller frees
 * own->head. Fails if heads that share a latent vector are on different GPUs. */
int kvd_latent_store_share(const kvd_dims *all, const kvd_gpu_share *share, kvd_dims *own,
                           kvd_err *err);
/* Makes the CPU quantise the latent vectors by the methods of m->plan. Tokens are `ld` elements
 * apart. Must be called after kvd_latent_store_init. */
int kvd_latent_store_host(kvd_latent_store *s, kvd_gpu_method *m, const kvd_dims *dims, size_t ld,
                          kvd_err *err);

/* Updates s->tokens and s->held. Must be called after each iteration. */
void kvd_latent_store_note(kvd_latent_store *s, const kvd_iteration *it);

typedef struct {
    int32_t n, words;          /* coded numbers per token; 32-bit words of a token's code */
    size_t page_words;         /* 32-bit words of a page */
    size_t code, store, exact; /* offsets of the layer in three arrays of kvd_latent_codes */
} kvd_latent_codes_layer;

/* Latent vectors quantised by method allot or kvquant. Pages of `store` hold one layer. */
typedef struct {
    kvd_latent_store *store; /* borrowed; one_layer is true */
    kvd_latent_codes_layer *layer;
    const kvd_latent_code *code; /* device */
    /* Tables in device memory for each layer, K or V, and number of bits: `level` is searched for
     * the level nearest to a number, `decoded` has the number that each code decodes to. */
    const float *level, *decoded;
    uint32_t *words;
    uint16_t *exact;
    /* Bytes of a page in layers without, and with a sliding window; of a slot. Sums over layers. */
    size_t page_bytes, near_page_bytes, slot_bytes;
    /* Bits of an unquantised first token, and of a later token, not counting outliers of K, in
     * layers without [0] and with [1] a sliding window. */
    double sink_bits[2], token_bits[2];
    uint32_t *prompt; /* [slots] Tokens of each request's prompt. */
    /* Number of groups of heads that kvquant quantises together. Method allot has none (0). */
    int n_groups;
    const kvd_latent_vector *vector;
    /* Largest number of outliers of K that a page can store per group of heads. */
    int32_t room;
    double share;
    /* [slots + 1] in device memory: number of outliers of K of each request, and then the largest
     * number that did not fit into one page. host_apart is a pinned copy. NULL if no outliers of K
     * are stored. */
    uint32_t *apart, *host_apart;
} kvd_latent_codes;

/* Copies the levels and bit widths of the quantisation method (allot or kvquant) to the device.
 * `store` must be initialised. */
int kvd_latent_codes_init(kvd_latent_codes *c, kvd_latent_store *store, const kvd_plan *plan,
                          const kvd_dims *dims, kvd_err *err);
/* Allocates memory for quantised latent vectors and fills it with random numbers, for timing. */
int kvd_latent_codes_make(kvd_latent_codes *c, size_t pages, size_t slots, cudaStream_t stream,
                          kvd_err *err);
/* kvd_latent_codes_put quantises the new tokens of requests. kvd_latent_codes_restore decodes their
 * earlier tokens. */
int kvd_latent_codes_put(const kvd_latent_codes *c, const kvd_paged_rows *r, kvd_err *err);
int kvd_latent_codes_restore(const kvd_latent_codes *c, const kvd_paged_rows *r, kvd_err *err);
/* Notes the lengths of prompts. Must be called after each iteration. */
void kvd_latent_codes_note(kvd_latent_codes *c, const kvd_iteration *it);
double kvd_latent_codes_bits(const kvd_latent_codes *c, size_t slot);
/* Returns the bits of tokens that the latest decode step did not read, because they had left the
 * window. */
double kvd_latent_codes_unseen(const kvd_latent_codes *c, size_t slot);
/* If a page had no room for its outliers of K in the latest iteration, returns how many outliers it
 * had (the largest such number), otherwise 0. */
size_t kvd_latent_codes_lacking(const kvd_latent_codes *c);

/* For tests only: returns the method that drops tokens, or NULL. Method palu owns it. */
const kvd_gpu_method *kvd_gpu_palu_evict(const kvd_gpu_method *palu);
#endif
#endif
