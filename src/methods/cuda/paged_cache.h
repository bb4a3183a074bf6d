/* Paged bf16 KV cache on a GPU, which also computes attention. Head widths are multiples of 16. */
#ifndef KVD_METHODS_CUDA_PAGED_CACHE_H
#define KVD_METHODS_CUDA_PAGED_CACHE_H

#include "kernels/cuda/decode.h"
#include "kernels/cuda/prefill.h"
#include "kernels/cuda/prefill_plan.h"
#include "methods/cuda/cache_parts.h"
#include "methods/cuda/gpu_method.h"
#include "methods/cuda/pages.h"
#include "methods/cuda/phase_clock.h"
#include "methods/cuda/step_batch.h"
#include "model/pass/cuda/layer.h"

/* Work list for the attention of prompts: tiles, each of which has some query rows of one head.
 * Layers whose heads have equal dimensions share the list. */
typedef struct {
    kvd_prefill_tile *tile;
    /* [CTAs + 1] First tile of each CTA, unless CTAs take tiles from a queue. */
    int32_t *first;
    int32_t *next;
    void *plan;
    kvd_prefill_args args;
    /* Group of layers (with equal head dimensions) for which `tile` lists the attention tiles, or
     * -1. */
    int prepared;
} kvd_paged_prompts;

typedef struct kvd_paged_cache {
    kvd_gpu_attention hook; /* must be the first member */
    kvd_gpu_worker *worker; /* borrowed */
    const kvd_config *config;
    const kvd_gpu_share *share;
    /* [n_layers] Projections of each layer. */
    kvd_cache_layer *layer;
    const float *cosine, *sine;
    kvd_step_batch *batch;
    kvd_pages *pages;
    kvd_pages *near; /* pages of layers with a sliding window */
    size_t window;   /* sliding window in tokens, or 0 if none is shorter than max_len */
    /* [n_layers] Index of each layer among the layers of its kind: with a sliding window, or
     * without one. */
    int *kind_index;
    int n_full;
    kvd_clock *clock;
    kvd_attention_choice attention; /* must be set before kvd_paged_cache_init */
    /* True if prompts attend to K and V before projection, in iterations without decode steps. Must
     * be set before kvd_paged_cache_init, which resets it to false if no head is projected. */
    bool exact_prompts;
    /* True if the compression method lets prompts attend to unprojected K and V. */
    bool exact_method;
    /* True if the cache serves text generation, that is, if exact_prompts was set when
     * kvd_paged_cache_init was called. */
    bool generates;
    /* Number of key outliers that a KV head stores per page, or 0 for the default. Must be set
     * before kvd_paged_cache_init. */
    size_t outliers;
    /* [max_slices + 1] Index of each prompt's first token in the batch, then the number of tokens.
     * NULL unless exact_prompts is set. */
    size_t *offset;
    /* [n_layers] Layer descriptions without projections, for prompts that attend to unprojected K
     * and V. */
    kvd_cache_layer *whole;
    void *whole_pool;
    /* Projections padded to each layer's widest head, for kernels that require equal widths. */
    kvd_dims widest;
    /* Projections that the cache itself applies to the heads, or NULL. */
    const kvd_dims *dims;
    /* Compression method, borrowed. NULL if the compression only projects heads. */
    kvd_gpu_method *method;
    kvd_device_memory memory;
    int hopper, n_sms;
    size_t max_len; /* tokens of the longest request */
    /* [n_layers] Index of each layer's group in work_map. Layers with equal head dimensions form a
     * group, whose attention is divided among CTAs once. */
    int *work_of;
    int n_works, n_full_works;
    /* [n_works] Head dimensions of each group of layers. All layers of a group have equal head
     * dimensions. */
    const kvd_attn_map **work_map;
    /* Decode attention is divided among CTAs once per group of layers. n_step_works: number of
     * these groups. n_full_step_works: number of the groups whose layers have no sliding window. */
    int n_step_works, n_full_step_works;
    /* [n_step_works] Workspaces in device memory for decode attention, one per group of layers with
     * equal head dimensions. */
    void **workspace;
    /* [n_step_works][max_slices + 1] CTAs that decode attention uses per KV head and request.
     * Indices: group of layers with equal head dimensions, number of requests. -1: not yet
     * determined. */
    int8_t *ctas;
    void *q_steps, *q_prompts, *q_unused, *o;
    /* Tiles into which the attention of prompts is divided, in layers without a sliding window
     * (index 0) and in layers with one (index 1). */
    kvd_paged_prompts prompts[2];
    void *pool;
    size_t *pool_at; /* [n_layers] byte offset of a layer's first page */
    /* Bytes of a page, summed over the layers without a window. Layers that share pages count as
     * one. */
    size_t page_bytes;
    /* Bytes of a page, summed over the layers that have their own pages and no sliding window. */
    size_t kept_page_bytes;
    /* Bytes of a page, summed over the layers with a window. */
    size_t near_page_bytes;
} kvd_paged_cache;

/* Returns the number of tokens in a layer's sliding window, or 0 if the layer has no window shorter
 * than max_len. */
size_t kvd_paged_cache_window(const kvd_config *c, size_t max_len, int layer);
/* Opens the cache. *c must be zeroed, except attention, exact_prompts and outliers. `near` assigns
 * the pages of layers with a sliding window; NULL if no layer has one. The caller must release *c,
 * even after a failure. */
int kvd_paged_cache_init(kvd_paged_cache *c, kvd_gpu_worker *w, const kvd_plan *plan,
                         kvd_step_batch *batch, kvd_pages *pages, kvd_pages *near, kvd_clock *clock,
                         kvd_err *err);
/* Allocates the cache's pages and fills them with random numbers, for timing. Layers with a sliding
 * window get near_pages pages; other layers get `pages`, or twice as many if prompts are processed
 * twice. */
int kvd_paged_cache_make_pool(kvd_paged_cache *c, size_t pages, size_t near_pages, size_t slots,
                              cudaStream_t stream, kvd_err *err);
void kvd_paged_cache_release(kvd_paged_cache *c);
const char *kvd_paged_cache_kernels(const kvd_paged_cache *c);

/* Returns the size in bytes of the array `works` that kvd_paged_cache_describe fills. */
size_t kvd_paged_cache_works_bytes(const kvd_paged_cache *c);
/* Writes the arguments of the decode attention of n requests, such as array addresses, to `works`
 * in host memory. */
int kvd_paged_cache_describe(const kvd_paged_cache *c, size_t n, void *works, kvd_err *err);
/* Divides the decode attention of n requests among CTAs. `works` is a copy, in device memory, of
 * the array that kvd_paged_cache_describe filled. */
int kvd_paged_cache_plan(const kvd_paged_cache *c, size_t n, const void *works, cudaStream_t stream,
                         kvd_err *err);

/* Stores K and V of new tokens in the cache, and records the end of each timed phase up to
 * KVD_PHASE_APPEND. */
int kvd_paged_cache_put(kvd_paged_cache *c, const kvd_paged_rows *r, kvd_err *err);
/* Writes the attention output to `out`, o_pitch elements per token: the tokens of decode steps,
 * then the tokens of prompts. Sets *open to the timed phase that is still running. The caller must
 * record the end of this phase. */
int kvd_paged_cache_attend(kvd_paged_cache *c, const kvd_paged_rows *r, void *out, kvd_phase *open,
                           kvd_err *err);
void *kvd_paged_cache_pool(const kvd_paged_cache *c, int layer);
/* Returns the device address of K of the token at `place` in the pages of a running request (slot);
 * V is 64 d_head elements after it. If the token's page has left the window, the address is in the
 * padding page. */
uint16_t *kvd_paged_cache_row(const kvd_paged_cache *c, size_t slot, int layer, int kv_head,
                              size_t place);
/* Returns a layer's attention-sink logits on the device, or NULL. */
const float *kvd_paged_cache_sinks(const kvd_paged_cache *c, int layer);
/* Stores new K and V in the pages of `pool`. Row i of table [steps][max_pages] has the page numbers
 * of the i-th decoding request. */
int kvd_paged_cache_append(kvd_paged_cache *c, const kvd_paged_rows *r, void *pool,
                           const int32_t *table, kvd_err *err);
/* Pages in which the decode step of request b stores K and V of its new token, whose index is
 * kv_len[b] - 1. */
typedef struct {
    void *pool;
    const int32_t *table, *kv_len; /* device */
    int32_t pitch;
    /* True if the host copies the page table and the lengths to the device. If false, kernels write
     * these arrays, and their readers must wait for these kernels. */
    bool uploaded;
} kvd_paged_place;
int kvd_paged_cache_append_at(kvd_paged_cache *c, const kvd_paged_rows *r,
                              const kvd_paged_place *at, kvd_err *err);
/* New K and V, in device memory, of the last q_len[i] tokens of each request i, which has kv_len[i]
 * tokens. */
typedef struct {
    const void *x;                /* [n_rows][(n_heads + 2 n_kv_heads) d_head], Q is not used */
    size_t ld;                    /* elements from one row of x to the next */
    const int32_t *start, *q_len; /* [n] first row and number of rows of each request */
    const int32_t *kv_len;        /* [n] */
    const int32_t *q_start;       /* [n] sums of q_len rounded up to multiples of 8 */
    const int32_t *table;         /* [n][max_pages] */
    int32_t n, n_rows, n_q8;      /* n_q8: sum of q_len rounded up to multiples of 8 */
    bool turned;                  /* true: RoPE has been applied to K */
    bool cut;                     /* true: K and V have been projected, each head is [d_head] */
} kvd_paged_rewrite;
/* Overwrites K and V of tokens in a layer's pages with the rows r->x, which follow each other
 * without gaps (r->ld is ignored). Also overwrites the stored queries of prompts. */
int kvd_paged_cache_rewrite(kvd_paged_cache *c, int layer, const kvd_paged_rewrite *r,
                            kvd_err *err);
kvd_schedule kvd_paged_cache_schedule(const kvd_paged_cache *c, bool prompts);
/* Returns the timed phase that precedes the storing of new K and V: the QKV product or RoPE. The
 * code that stores K and V must record the end of this phase. */
kvd_phase kvd_paged_cache_behind(const kvd_paged_cache *c);
/* Marks the division of the prompts' attention into tiles as out of date. Must be called before the
 * first layer of each iteration. */
void kvd_paged_cache_begin(kvd_paged_cache *c);

/* Puts layers with equal head dimensions into one group. Also sums a page's bytes, separately over
 * the layers with and without a sliding window. */
int kvd_paged_works_number(kvd_paged_cache *c, kvd_err *err);
/* Allocates device memory for decode attention, once per group of layers. Layers with equal head
 * dimensions form a group. */
int kvd_paged_works_make(kvd_paged_cache *c, size_t max_len, kvd_err *err);
int kvd_paged_works_of(const kvd_paged_cache *c, int layer);
/* Returns the arguments of decode attention for n requests, in group `work` of layers with equal
 * head dimensions. The caller must set `pool`, `o` and `sinks`. */
kvd_decode_args kvd_paged_works_args(const kvd_paged_cache *c, int work, size_t n);

/* Returns the compression method if it acts on the layer, else NULL. */
kvd_gpu_method *kvd_paged_method_of(const kvd_paged_cache *c, int layer);
/* Returns the model's layer number of the l-th layer without a sliding window, l < c->n_full. */
int kvd_paged_full_layer(const kvd_paged_cache *c, size_t l);
/* Returns the pages of layers with a window if `map` has a window, else the pages of layers without
 * one. */
const kvd_pages *kvd_paged_pages_of(const kvd_paged_cache *c, const kvd_attn_map *map);
int32_t kvd_paged_longest(const kvd_paged_rows *r, const int32_t *n);
/* Returns how many tokens each request has in the layer that `map` describes. The number depends on
 * whether the layer has a sliding window. */
const int32_t *kvd_paged_lens_of(const kvd_attn_map *map, const kvd_batch_lists *lists);

#endif
