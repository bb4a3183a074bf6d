/*
 * Interface of compression methods in the CUDA engine that do more than project heads
 * (paged_cache.h).
 *
 * The steps of a layer are: append (RoPE, rotation, storing new K and V in bf16 pages), callback
 * `appended`, attention of prompts, attention of decode steps, callback `attended`. Callbacks queue
 * work and must not wait for it. A callback marks the end of a timed phase with
 * kvd_clock_end(cache->clock, ...).
 *
 * An iteration of decode steps alone is captured into one CUDA graph per number of steps. Lengths,
 * slots and positions must therefore be read from the batch's lists on the device. The entries that
 * pad a batch have slot number n_slots, which is no request's, and the idle page.
 */
#ifndef KVD_METHODS_CUDA_GPU_METHOD_H
#define KVD_METHODS_CUDA_GPU_METHOD_H

#include <cuda_runtime_api.h>

#include "kernels/layout.h"
#include "methods/iteration.h"
#include "methods/plan.h"

struct kvd_paged_cache;
typedef struct kvd_gpu_method kvd_gpu_method;

typedef struct {
    int layer;
    /*
     * Output of the QKV product, in the layout of kvd_append_args.x. RoPE has been applied unless
     * hook.wants_raw is set.
     */
    const void *x;
    /* elements from one token of x to the next */
    size_t ld;
    /* Keys before RoPE, with ld_pre elements per token. NULL unless hook.wants_pre is set. */
    const void *k_pre;
    size_t ld_pre;
    /* Inputs of the layer, bf16 [tokens][d_model]. NULL unless hook.wants_input is set. */
    const void *input;
    /* Number of decode steps, which come first in the batch, one token each. */
    size_t steps;
    /*
     * Number of prompts, or chunks of prompts; they follow the decode steps. Their lengths are in
     * batch->host. The number is 0 during graph capture.
     */
    size_t prompts;
    cudaStream_t stream;
} kvd_paged_rows;

/*
 * Page tables for a cache whose KV heads hold different numbers of tokens, so that each page
 * belongs to one KV head. Attention treats each KV head of a decode step as if it were a request.
 * In all arrays of this struct, element b * n_kv_heads + g belongs to KV head g of step b.
 */
typedef struct {
    /* Shape of one KV head with its query heads. All KV heads have this shape. */
    kvd_attn_map map;
    /* Largest number of requests of an iteration, times n_kv_heads. */
    size_t rows;
    /*
     * Device [layers][rows]: number of cached tokens, including the new one. The layers are those
     * on which the method acts (kvd_paged_cache.kind_index).
     */
    const int32_t *kv_len;
    /*
     * Device [1]: number of elements that belong to requests, n_kv_heads per decode step. Later
     * elements are padding.
     */
    const int32_t *live;
    /* Device [layers][rows][max_pages]: page numbers. */
    const int32_t *table;
    void *pool; /* pages, device */
} kvd_gpu_heads;

/*
 * Data and callbacks of a method in the CUDA engine. NULL and 0 mean that the method does not need
 * the member.
 */
struct kvd_gpu_method {
    struct kvd_paged_cache *cache; /* borrowed */
    const kvd_plan *plan;          /* borrowed, open */
    /*
     * True if the bf16 pages hold only one layer at a time, in memory that all layers share. The
     * method then stores the compressed data in a pool of its own. The callback `appended` must
     * fill the bf16 pages anew for each layer. Layers on which the method does not act have pages
     * of their own.
     */
    bool one_layer;
    /*
     * True if the method does not act on layers with a sliding window. These layers then hold
     * uncompressed K and V of the tokens of the window. Callbacks of the method, `heads`,
     * `one_layer` and `lse` are not used in these layers.
     */
    bool skips_windows;
    /*
     * [n_layers] True for layers without a window on which the method does not act. They hold
     * uncompressed K and V of all tokens. `held` and `bits` count these layers. NULL: there are no
     * such layers.
     */
    const bool *skips;
    /*
     * True if attention may read a slot to which nothing was written, so that decode steps can be
     * timed alone. `make` must then fill the slot with numbers that lead to realistic times.
     */
    bool anywhere;
    /* True if the method cannot process a prompt in several chunks. */
    bool whole_prompts;
    /* True if iterations that have only decode steps need no call of `attended`. */
    bool attended_prompts;
    /* Bit p is set if this method itself times phase p of an iteration (enum kvd_phase). */
    unsigned apart;
    /*
     * Page tables of a cache whose KV heads hold different numbers of tokens, or NULL. The callback
     * `appended` must copy K and V of each new token to these pages, from the first row of the bf16
     * page of the request's slot.
     */
    const kvd_gpu_heads *heads;
    /* Name of the kernels that replace the attention of decode steps, or NULL. */
    const char *kernels;
    /*
     * Bytes that the method needs per page (one page number, in all layers), in addition to the
     * bf16 pages. page_bytes is the sum over layers without a sliding window, near_page_bytes the
     * sum over layers with one.
     */
    size_t page_bytes, near_page_bytes;
    /* Bytes that the method needs for each slot, summed over all layers. */
    size_t slot_bytes;
    /*
     * Allocates the method's memory. Layers without a window have `pages` pages. Layers with a
     * window have cache->near->n_pages pages.
     */
    int (*make)(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err);

    /*
     * Device [n_heads][rows of Q in blocked layout]: natural logarithms of the softmax denominators
     * of prompt tokens.
     */
    float *lse;
    /* Device [steps][n_heads]: natural logarithms of the softmax denominators of decode steps. */
    float *lse_steps;

    /*
     * `begin` is called on the host before an iteration; it fails if the method cannot run the
     * iteration. `ended` is called after the iteration.
     */
    int (*begin)(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err);
    int (*ended)(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err);
    /*
     * Returns the number of cached tokens of a slot whose sequence has `before` tokens. It is less
     * than `before` if tokens were dropped. New tokens are stored after the cached tokens. The RoPE
     * position of a token is its position in the sequence, so it counts dropped tokens.
     */
    size_t (*entries)(const kvd_gpu_method *m, size_t slot, size_t before);
    /*
     * Returns the number of cached tokens of a slot, averaged over all KV heads and layers. NULL:
     * all KV heads hold the same number.
     */
    double (*mean)(const kvd_gpu_method *m, size_t slot);
    /*
     * Returns the number of cached tokens of a slot that were merged into others since its request
     * began, summed over KV heads and layers, as of the latest iteration. NULL: the method merges
     * no tokens.
     */
    size_t (*merged)(const kvd_gpu_method *m, size_t slot);
    /*
     * Returns the number of tokens of a slot that are stored at KVD_LEVEL_LOW, summed over KV heads
     * and layers. NULL: the method lowers no tokens.
     */
    size_t (*lowered)(const kvd_gpu_method *m, size_t slot);
    /*
     * Returns the number of tokens of a slot whose keys lost channels, summed over KV heads and
     * layers. NULL: the method removes no channels.
     */
    size_t (*pruned)(const kvd_gpu_method *m, size_t slot);
    /* Frees the memory that a slot holds outside the bf16 pages. */
    void (*drop)(kvd_gpu_method *m, size_t slot);
    /* Returns the bytes of compressed K and V that all slots together hold. */
    double (*held)(const kvd_gpu_method *m);
    /*
     * Returns the bits that a slot holds after the latest iteration, except the bits that
     * kvd_plan_entry_bits counts. NULL: every cached token is stored in the data type of the cache.
     */
    double (*bits)(const kvd_gpu_method *m, size_t slot);
    /*
     * The latest step of a slot did not read tokens that had left a sliding window. Returns the
     * bits that the callback `bits` counted for these tokens before the step. NULL: there are no
     * such tokens.
     */
    double (*unseen)(const kvd_gpu_method *m, size_t slot);
    /*
     * For methods whose steps read only a part of the cache. *side receives the bits of the side
     * information with which a step of the slot chooses tokens, as of the latest iteration. `bits`
     * does not count this side information. *unread receives the number of cached tokens that a
     * step would not read, averaged over all KV heads and layers. NULL: steps read all that is
     * stored.
     */
    void (*reads)(const kvd_gpu_method *m, size_t slot, double *side, double *unread);

    /*
     * Called after the callback `ended` has failed. If a page had too little room for its outliers
     * (kvd_paged_cache.outliers), returns the number of outliers for which a page needs room;
     * otherwise 0. NULL: always 0.
     */
    size_t (*lacking)(const kvd_gpu_method *m);

    int (*appended)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    int (*attended)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    /*
     * Functions that replace those of the paged cache, or NULL.
     * plan_steps divides the attention of n decode steps between CTAs.
     * append stores new K and V.
     * attend_steps writes the outputs of decode steps to out [steps][o_pitch].
     * attend_prompts writes the outputs of prompts after the outputs of the steps.
     */
    int (*plan_steps)(kvd_gpu_method *m, size_t n, cudaStream_t stream, kvd_err *err);
    int (*append)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    int (*attend_steps)(kvd_gpu_method *m, const kvd_paged_rows *r, void *out, kvd_err *err);
    int (*attend_prompts)(kvd_gpu_method *m, const kvd_paged_rows *r, void *out, kvd_err *err);
    void (*free)(kvd_gpu_method *m);
};

/* Features of models that the GPU code of a method may support; bits of kvd_gpu_kind.computes. */
enum {
    /* layers with a sliding window shorter than the requests */
    KVD_GPU_WINDOWS = 1,
    KVD_GPU_SINKS = 2, /* attention sinks */
    KVD_GPU_SCALE = 4, /* a scale of scores other than 1 / sqrt(d_head) */
    KVD_GPU_WIDE = 8   /* heads of more than KVD_WIDTH_NARROW dimensions */
};

/* GPU implementation of the methods whose kvd_method_info.gpu points to it. */
typedef struct kvd_gpu_kind {
    /* Returns the features (KVD_GPU_* bits) that this code supports with the plan. NULL: none. */
    unsigned (*computes)(const kvd_plan *plan);
    /* True if several GPUs may divide the tokens of one prompt. */
    bool shares_prompts;
    /*
     * Returns NULL if tensor-parallel GPUs may divide the KV heads, because what is stored for a KV
     * head depends on that head alone, or on sums that the method forms over the GPUs. The method
     * then has only the heads of its GPU (kvd_paged_cache.share). Otherwise returns the reason as a
     * clause. NULL: the reason is always `joined`.
     */
    const char *(*joins_heads)(const kvd_plan *plan);
    const char *joined;
    /* Returns true if this GPU code can run the plan. NULL: always. */
    bool (*runs)(const kvd_plan *plan);
    /*
     * Returns true if text can be generated with the plan. Prompt tokens must then attend to each
     * other uncompressed, and `entries` and `bits` must give the same numbers for a slot as the CPU
     * methods. NULL: never.
     */
    bool (*generates)(const kvd_plan *plan);
    /*
     * Returns true if the kernels support the heads of the model. Text is generated on another path
     * otherwise. NULL: kvd_gpu_method_check decides alone.
     */
    bool (*fits)(const kvd_plan *plan, const kvd_config *config);
    /*
     * Returns true if this code reads keys before RoPE even in models for which hook.wants_raw is
     * not set, so that the forward pass applies RoPE itself: models with biases or norms of K, or
     * with partial RoPE. NULL: never.
     */
    bool (*before_rope)(const kvd_plan *plan);
    /*
     * Creates the method in `*m`. The error names the unsupported method, parameter or shape. The
     * cache owns `*m` even if the call fails.
     */
    int (*open)(const kvd_plan *plan, struct kvd_paged_cache *cache, kvd_gpu_method **m,
                kvd_err *err);
} kvd_gpu_kind;

/*
 * Returns the name of the plan's first method, in the order of the axes, or NULL if the plan has no
 * method.
 */
const char *kvd_gpu_method_name(const kvd_plan *plan);

/* Returns the GPU code that runs the plan, or NULL if no GPU code does. */
const kvd_gpu_kind *kvd_gpu_kind_of(const kvd_plan *plan);

/*
 * Returns why tensor-parallel GPUs cannot divide the KV heads under the plan, or NULL if they can
 * (kvd_gpu_kind.joins_heads).
 */
const char *kvd_gpu_heads_joined(const kvd_plan *plan);
/* Returns NULL: a kvd_gpu_kind.joins_heads for methods that always keep KV heads apart. */
const char *kvd_gpu_heads_apart(const kvd_plan *plan);

/*
 * Fails if the model has a feature that the GPU code of the plan does not compute, for requests of
 * up to max_len tokens. The plan must do more than project heads.
 */
int kvd_gpu_method_check(const kvd_plan *p, const kvd_config *c, size_t max_len, kvd_err *err);

/*
 * Returns the name of one of the plan's methods that is not on the tokens axis, or NULL if there is
 * none.
 */
const char *kvd_gpu_method_beside_tokens(const kvd_plan *p);

/*
 * Creates the GPU method of a plan in `*m`. `*m` is NULL if the plan only projects heads. The cache
 * must have its layers but no pool of pages yet. cache->pages is still empty, so memory that
 * depends on its max_pages must be allocated by `make`. The error names the unsupported feature.
 */
int kvd_gpu_method_open(const kvd_plan *plan, struct kvd_paged_cache *cache, kvd_gpu_method **m,
                        kvd_err *err);

#endif
