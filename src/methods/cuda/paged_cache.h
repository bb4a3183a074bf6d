/*
 * The paged KV cache of a CUDA engine, as an attention hook: K and V of all requests stay in it
 * between iterations. Each head keeps the number of dimensions that the plan gives, rounded up to a
 * multiple of 16. Q and K are rotated when they are appended. V already has its kept columns only,
 * because its projection is folded into W_V (fold.h). The attention output has the same columns,
 * which the folded output projection reads. Numbers are bf16; the kernels are those of
 * kernels/cuda.
 *
 * In each iteration the decode kernel computes the decode steps and the prefill kernel the chunks
 * of prompts, with one launch each over rows of one batch.
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

typedef struct kvd_paged_cache {
    kvd_gpu_attention hook; /* must be the first member */
    kvd_gpu_worker *worker; /* borrowed */
    const kvd_config *config;
    const kvd_gpu_share *share;
    /* Kept dimensions and matrices of each layer, [n_layers]. */
    kvd_cache_layer *layer;
    const float *cosine, *sine;
    kvd_step_batch *batch;
    kvd_pages *pages;
    kvd_pages *near; /* pages of the layers with a sliding window, only for tokens in it */
    size_t window;   /* window of those layers in tokens; 0 if none is shorter than max_len */
    kvd_clock *clock;
    kvd_attention_choice attention; /* kernels to use; must be set before init */
    /*
     * Must be set before init. If true and the plan projects heads, the tokens of a prompt attend
     * to each other unprojected, with the worker's dense attention. The weights must then not be
     * folded: rows of V are projected when they are appended, and the attention output of decode
     * steps is projected back. An iteration then holds either prompts or steps. init clears this
     * field if the plan projects nothing.
     */
    bool exact_prompts;
    /* First row of each prompt of an iteration, [max_slices + 1]; used if exact_prompts is set. */
    size_t *offset;
    /*
     * Layers without projections, [n_layers]; used if exact_prompts is set and there is a method.
     * They share one array of pages (whole_pool), which holds the unprojected K and V of an
     * iteration's prompts in one layer at a time. Attention on these pages writes the logarithms of
     * the softmax denominators that the method reads; its Q is in q_prompts.
     */
    kvd_cache_layer *whole;
    void *whole_pool;
    /* Projections padded to the widest head of each layer, for KVD_ATTENTION_STOCK. */
    kvd_dims widest;
    /*
     * Projections of the heads. NULL: heads have d_head dimensions, or the method sets their
     * dimensions.
     */
    const kvd_dims *dims;
    /* Method that does more than project heads; borrowed. NULL: the plan has none. */
    kvd_gpu_method *method;
    kvd_device_memory memory;
    int hopper, n_sms;
    size_t max_len; /* number of tokens of the longest request */
    /*
     * A work list is a table of which part of the attention each CTA computes; layers of equal
     * shape (kept dimensions of each head) share one. work_of is the index of each layer's work
     * list, [n_layers]. If method->heads is given, decode steps have a list per layer instead.
     */
    int *work_of;
    int n_works;
    /*
     * For each work list, [n_works]: the kept dimensions of the heads of the layers that share the
     * list.
     */
    const kvd_attn_map **work_map;
    /* Number of work lists of decode steps: n_works, or n_layers if method->heads is given. */
    int n_step_works;
    /* Workspaces of the decode kernel, one per work list of decode steps, [n_step_works]. */
    void **workspace;
    void *q_steps, *q_prompts, *q_unused, *o;
    kvd_prefill_tile *tile;
    /* First work item of each CTA, [CTAs + 1], for schedules without a work queue. */
    int32_t *first;
    void *plan;
    int32_t *next;
    kvd_prefill_args prefill;
    /* Index in work_map of the work list whose tiles are in `tile`; -1: none. */
    int prepared;
    void *pool;      /* pages of all layers */
    size_t *pool_at; /* byte offset in the pool of each layer's first page, [n_layers] */
    /*
     * Bytes of pool memory per page number of `pages`. The sum over all layers without a window or,
     * if method->one_layer, the largest layer. Pages for unprojected prompts (whole_pool) are
     * added.
     */
    size_t page_bytes;
    /* Bytes of pool memory per page number of `near`: the sum over all layers with a window. */
    size_t near_page_bytes;
} kvd_paged_cache;

/*
 * Returns the sliding window of a layer in tokens. Returns 0 if it has none, or none shorter than
 * max_len tokens, the longest request.
 */
size_t kvd_paged_cache_window(const kvd_config *c, size_t max_len, int layer);
/*
 * Initialises everything but the pool of pages. batch, pages, near and clock may still be empty;
 * the plan must be open. `near` may be NULL if no layer has a window shorter than the requests.
 * Fails, naming what the kernels do not support: methods, data types, heads, or a method in a model
 * with such a window. *c must be zeroed before, except for `attention` and `exact_prompts`. The
 * caller releases *c, also after a failure.
 */
int kvd_paged_cache_init(kvd_paged_cache *c, kvd_gpu_worker *w, const kvd_plan *plan,
                         kvd_step_batch *batch, kvd_pages *pages, kvd_pages *near, kvd_clock *clock,
                         kvd_err *err);
/*
 * Allocates the pages of the pool (`pages` in layers without a window, near_pages in the others),
 * the method's memory for pages and slots, and the idle page. All are filled with random numbers of
 * variance 1. An iteration whose earlier tokens were never computed can therefore be timed, and
 * reads as much as with real tokens.
 */
int kvd_paged_cache_make_pool(kvd_paged_cache *c, size_t pages, size_t near_pages, size_t slots,
                              cudaStream_t stream, kvd_err *err);
void kvd_paged_cache_release(kvd_paged_cache *c);
/* Returns the name of the attention kernels, for example "sm_90a kernels". */
const char *kvd_paged_cache_kernels(const kvd_paged_cache *c);

/*
 * A work list says which part of the attention of n decode steps each CTA computes.
 * kvd_paged_cache_describe writes kvd_paged_cache_works_bytes bytes, which describe the lists of
 * all layers and are to be copied to the device. kvd_paged_cache_plan queues the launch that makes
 * the lists from these descriptions and from the lengths on the device.
 */
size_t kvd_paged_cache_works_bytes(const kvd_paged_cache *c);
int kvd_paged_cache_describe(const kvd_paged_cache *c, size_t n, void *works, kvd_err *err);
int kvd_paged_cache_plan(const kvd_paged_cache *c, size_t n, const void *works, cudaStream_t stream,
                         kvd_err *err);

/*
 * The two steps of a layer's attention. kvd_paged_cache_put stores the layer's new rows of K and V
 * in the pages; if there is a method that stores them itself, it is called instead. All timed
 * phases up to KVD_PHASE_APPEND have then ended. kvd_paged_cache_attend writes the attention output
 * to `out`, the rows of decode steps first, then the tokens of prompts, o_pitch elements each.
 * *open receives the phase whose end the caller must mark.
 */
int kvd_paged_cache_put(kvd_paged_cache *c, const kvd_paged_rows *r, kvd_err *err);
int kvd_paged_cache_attend(kvd_paged_cache *c, const kvd_paged_rows *r, void *out, kvd_phase *open,
                           kvd_err *err);
/* Returns the device address of the pages of a layer, starting with page number 0. */
void *kvd_paged_cache_pool(const kvd_paged_cache *c, int layer);
/*
 * Stores the new rows of prompts in the pages of the layer, and the new rows of decode steps in the
 * pages of `pool` that `table` [steps][max_pages] lists. Called by methods.
 */
int kvd_paged_cache_append(kvd_paged_cache *c, const kvd_paged_rows *r, void *pool,
                           const int32_t *table, kvd_err *err);
/*
 * Destination of the new rows of decode steps: row kv_len[b] - 1 of the pages of `pool` that row b
 * of `table` [steps][pitch] lists.
 */
typedef struct {
    void *pool;
    const int32_t *table, *kv_len; /* in device memory */
    int32_t pitch;
} kvd_paged_place;
int kvd_paged_cache_append_at(kvd_paged_cache *c, const kvd_paged_rows *r,
                              const kvd_paged_place *at, kvd_err *err);
/* Returns the schedule that distributes the attention of prompts (or of decode steps) over CTAs. */
kvd_schedule kvd_paged_cache_schedule(const kvd_paged_cache *c, bool prompts);
/*
 * Returns the timed phase that ends when the attention hook of this cache is called: KVD_PHASE_QKV
 * or KVD_PHASE_ROPE. The hook marks the end of this phase.
 */
kvd_phase kvd_paged_cache_behind(const kvd_paged_cache *c);
/*
 * Discards the work lists (which part of the attention each CTA computes) of the previous
 * iteration's prompts. Must be called once per iteration, before its first layer.
 */
void kvd_paged_cache_begin(kvd_paged_cache *c);

#endif
