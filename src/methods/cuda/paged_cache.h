/*
 * The paged KV cache of a CUDA engine, as an attention hook: K and V of all requests stay in it
 * between iterations. Each head keeps the number of dimensions that the plan gives, rounded up to a
 * multiple of 16. Q and K are rotated when they are appended; the projection of V is folded into
 * W_V (fold.h). Numbers are bf16.
 */
#ifndef KVD_METHODS_CUDA_PAGED_CACHE_H
#define KVD_METHODS_CUDA_PAGED_CACHE_H

#include "kernels/cuda/prefill.h"
#include "kernels/cuda/prefill_plan.h"
#include "methods/cuda/cache_parts.h"
#include "methods/cuda/gpu_method.h"
#include "methods/cuda/pages.h"
#include "methods/cuda/phase_clock.h"
#include "methods/cuda/step_batch.h"
#include "model/pass/cuda/layer.h"

/*
 * Tiles of the attention of an iteration's prompts. All layers whose heads have the same dimensions
 * share them.
 */
typedef struct {
    kvd_prefill_tile *tile;
    /* [CTAs + 1] First tile of each CTA. Not used if CTAs take tiles from a queue. */
    int32_t *first;
    int32_t *next;
    void *plan;
    kvd_prefill_args args;
    /*
     * Index in work_map of the layout of heads for which the list of tiles was made; -1: no tiles.
     */
    int prepared;
} kvd_paged_prompts;

typedef struct kvd_paged_cache {
    kvd_gpu_attention hook; /* must be the first member */
    kvd_gpu_worker *worker; /* borrowed */
    const kvd_config *config;
    const kvd_gpu_share *share;
    /* [n_layers] */
    kvd_cache_layer *layer;
    const float *cosine, *sine;
    kvd_step_batch *batch;
    kvd_pages *pages;
    kvd_pages *near; /* pages of the layers that have a sliding window */
    size_t window;   /* tokens; 0 if no window is shorter than max_len */
    /* [n_layers] Index of each layer among the layers of its kind (with or without a window). */
    int *kind_index;
    int n_full; /* number of layers without a window */
    kvd_clock *clock;
    kvd_attention_choice attention; /* must be set before kvd_paged_cache_init */
    /*
     * If true, prompt tokens attend to each other with unprojected K and V. The caller sets it
     * before kvd_paged_cache_init, which resets it to false if the plan projects nothing. If true,
     * V must not be folded into the weights, and an iteration must hold only prompts or only decode
     * steps.
     */
    bool exact_prompts;
    /*
     * True if exact_prompts was set and the plan rebuilds keys; kvd_paged_cache_init then sets this
     * field and clears exact_prompts. The method itself must let prompt tokens attend to each other
     * with unprojected K and V, and must not change the weights.
     */
    bool exact_method;
    /*
     * Number of outliers among the keys of a KV head for which a page has room; 0: the method's
     * default. Must be set before kvd_paged_cache_init.
     */
    size_t outliers;
    /* [max_slices + 1] First token of each prompt, if exact_prompts is set. */
    size_t *offset;
    /*
     * [n_layers] Layers without projections, used if exact_prompts is set and there is a method.
     * whole_pool then holds the unprojected K and V of an iteration's prompts for one layer at a
     * time.
     */
    kvd_cache_layer *whole;
    void *whole_pool;
    /* Projections padded to the widest head of each layer, for KVD_ATTENTION_STOCK. */
    kvd_dims widest;
    /* Projections of the heads. NULL: heads keep d_head dimensions, or the method projects them. */
    const kvd_dims *dims;
    /* Method that compresses the cache; borrowed. NULL: the plan only projects heads. */
    kvd_gpu_method *method;
    kvd_device_memory memory;
    int hopper, n_sms;
    size_t max_len; /* tokens of the longest request */
    /*
     * [n_layers] Index of each layer's work list, which divides attention between CTAs. Layers with
     * the same dimensions of heads and the same window share a work list. The first n_full_works
     * lists belong to layers without a window.
     */
    int *work_of;
    int n_works, n_full_works;
    /* [n_works] Layout of the heads for which each work list is made. */
    const kvd_attn_map **work_map;
    /*
     * Number of work lists of decode steps, and number of work lists of layers without a window.
     * Lists of layers without a window come first. If method->heads is given, each layer without a
     * window has its own list. Otherwise work_of maps layers to lists.
     */
    int n_step_works, n_full_step_works;
    /* [n_step_works] */
    void **workspace;
    /*
     * [n_step_works][max_slices + 1] Value of kvd_decode_args.ctas_per_task, by work list and
     * number of decode steps; -1: not computed yet.
     */
    int8_t *ctas;
    void *q_steps, *q_prompts, *q_unused, *o;
    /* Tiles of the prompts' attention: [0] for layers without a window, [1] for layers with one. */
    kvd_paged_prompts prompts[2];
    void *pool;
    size_t *pool_at; /* [n_layers] byte offset in the pool of each layer's first page */
    /*
     * Bytes of pool memory for each page number of the member `pages`: the sum over all layers
     * without a window or, if method->one_layer, the largest layer. Pages for unprojected prompts
     * (whole_pool) are added.
     */
    size_t page_bytes;
    /*
     * Part of page_bytes of those layers that have pages of their own although method->one_layer is
     * set.
     */
    size_t kept_page_bytes;
    /* Bytes of pool memory for each page number of `near`. */
    size_t near_page_bytes;
} kvd_paged_cache;

/* Returns the sliding window of a layer in tokens, or 0 if no window is shorter than max_len. */
size_t kvd_paged_cache_window(const kvd_config *c, size_t max_len, int layer);
/*
 * Initialises everything but the pool of pages. `*c` must be zeroed before, except for `attention`,
 * `exact_prompts` and `outliers`. The plan must be open; batch, pages, near and clock may still be
 * empty. `near` may be NULL if no layer has a window shorter than the requests. The error names
 * what the kernels do not support. The caller must release `*c`, also after a failure.
 */
int kvd_paged_cache_init(kvd_paged_cache *c, kvd_gpu_worker *w, const kvd_plan *plan,
                         kvd_step_batch *batch, kvd_pages *pages, kvd_pages *near, kvd_clock *clock,
                         kvd_err *err);
/*
 * Allocates the pages of the pool, the method's memory, and the idle page. Layers with a window
 * have near_pages pages. Each other layer has kvd_plan_copies() * `pages` pages. All memory is
 * filled with random numbers of variance 1, so that iterations can be timed without real tokens.
 */
int kvd_paged_cache_make_pool(kvd_paged_cache *c, size_t pages, size_t near_pages, size_t slots,
                              cudaStream_t stream, kvd_err *err);
void kvd_paged_cache_release(kvd_paged_cache *c);
const char *kvd_paged_cache_kernels(const kvd_paged_cache *c);

/*
 * Work lists divide the attention of n decode steps between CTAs.
 * kvd_paged_cache_describe writes kvd_paged_cache_works_bytes bytes to `works`, which the caller
 * must copy to the device.
 * kvd_paged_cache_plan queues the launch that makes the work lists from these bytes and from the
 * lengths on the device. If attention needs no work list for n steps, it queues nothing.
 */
size_t kvd_paged_cache_works_bytes(const kvd_paged_cache *c);
int kvd_paged_cache_describe(const kvd_paged_cache *c, size_t n, void *works, kvd_err *err);
int kvd_paged_cache_plan(const kvd_paged_cache *c, size_t n, const void *works, cudaStream_t stream,
                         kvd_err *err);

/*
 * kvd_paged_cache_put stores the layer's new K and V in the pages, or calls the method that stores
 * them. It marks the end of all timed phases up to KVD_PHASE_APPEND. kvd_paged_cache_attend writes
 * the attention outputs to `out`, o_pitch elements per token: first those of decode steps, then
 * those of prompt tokens. It sets `*open` to the timed phase that is still running; the caller must
 * mark the end of that phase.
 */
int kvd_paged_cache_put(kvd_paged_cache *c, const kvd_paged_rows *r, kvd_err *err);
int kvd_paged_cache_attend(kvd_paged_cache *c, const kvd_paged_rows *r, void *out, kvd_phase *open,
                           kvd_err *err);
/* Returns the device address of page 0 of a layer. */
void *kvd_paged_cache_pool(const kvd_paged_cache *c, int layer);
/* Returns the logits of a layer's attention sinks on the device, or NULL if there are none. */
const float *kvd_paged_cache_sinks(const kvd_paged_cache *c, int layer);
/*
 * Stores K and V of prompts in the pages of the layer, and those of decode steps in pages of
 * `pool`: table [steps][max_pages] has the numbers of these pages. Called by methods.
 */
int kvd_paged_cache_append(kvd_paged_cache *c, const kvd_paged_rows *r, void *pool,
                           const int32_t *table, kvd_err *err);
/*
 * Memory for the new K and V of decode steps. Step b is stored as token kv_len[b] - 1 in pages of
 * `pool`. table [steps][pitch] has the page numbers.
 */
typedef struct {
    void *pool;
    const int32_t *table, *kv_len; /* device */
    int32_t pitch;
    /*
     * True if `table` and `kv_len` are written only by the copy from the host, not by kernels of
     * the iteration.
     */
    bool uploaded;
} kvd_paged_place;
int kvd_paged_cache_append_at(kvd_paged_cache *c, const kvd_paged_rows *r,
                              const kvd_paged_place *at, kvd_err *err);
kvd_schedule kvd_paged_cache_schedule(const kvd_paged_cache *c, bool prompts);
/*
 * Returns the timed phase that is running when the attention hook is called: KVD_PHASE_QKV or
 * KVD_PHASE_ROPE. The hook marks the end of this phase.
 */
kvd_phase kvd_paged_cache_behind(const kvd_paged_cache *c);
/*
 * Discards the work lists of the previous iteration's prompts. Must be called once per iteration,
 * before its first layer.
 */
void kvd_paged_cache_begin(kvd_paged_cache *c);

#endif
