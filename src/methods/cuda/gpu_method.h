/*
 * Interface of compression methods in the CUDA engine that do more than project heads.
 *
 * A layer runs: append (RoPE, rotation, new K and V to bf16 pages), `appended`, attention of
 * prompts, attention of decode steps, `attended`. Callbacks queue work without waiting and mark the
 * end of a timed phase with kvd_clock_end(cache->clock, ...).
 *
 * Iterations of decode steps alone are CUDA graphs, one per number of steps: lengths, slots and
 * positions must be read from the batch's lists on the device. Padding has slot n_slots and the
 * idle page.
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
    /* Output of the QKV product, as kvd_append_args.x; RoPE is applied unless hook.wants_raw. */
    const void *x;
    size_t ld;
    /* Keys before RoPE, ld_pre elements per token. NULL unless hook.wants_pre is set. */
    const void *k_pre;
    size_t ld_pre;
    /* Inputs of the layer, bf16 [tokens][d_model]. NULL unless hook.wants_input is set. */
    const void *input;
    /* Number of decode steps: the first tokens of the batch. */
    size_t steps;
    /* Number of prompts or chunks after the decode steps; 0 during graph capture. */
    size_t prompts;
    cudaStream_t stream;
} kvd_paged_rows;

/*
 * Page tables of single KV heads, for methods whose heads hold different numbers of tokens. Element
 * b * n_kv_heads + g belongs to KV head g of step b.
 */
typedef struct {
    /* Shape of one KV head with its query heads, equal for all KV heads. */
    kvd_attn_map map;
    /* Largest number of requests of an iteration, times n_kv_heads. */
    size_t rows;
    /*
     * Device [layers][rows]: cached tokens, including the new one. Layers: as
     * kvd_paged_cache.kind_index.
     */
    const int32_t *kv_len;
    /* Device [1]: number of elements before the padding, n_kv_heads per decode step. */
    const int32_t *live;
    /* Device [layers][rows][max_pages]: page numbers. */
    const int32_t *table;
    void *pool;
} kvd_gpu_heads;

/* Data and callbacks of a method in the CUDA engine. NULL or 0: not needed. */
struct kvd_gpu_method {
    struct kvd_paged_cache *cache; /* borrowed */
    const kvd_plan *plan;          /* borrowed, open */
    /*
     * True if all layers share the bf16 pages and the method stores compressed data elsewhere.
     * `appended` must then refill the pages for each layer.
     */
    bool one_layer;
    /* True if layers with a sliding window keep uncompressed K and V, without the method. */
    bool skips_windows;
    /*
     * [n_layers] True for layers without a window that keep uncompressed K and V, without the
     * method. `held` and `bits` count these layers. NULL: none.
     */
    const bool *skips;
    /*
     * True if attention may read unwritten slots for timing; `make` must fill them with realistic
     * numbers.
     */
    bool anywhere;
    /* True if the method cannot process a prompt in several chunks. */
    bool whole_prompts;
    /* True if iterations of decode steps alone need no call of `attended`. */
    bool attended_prompts;
    /* Bit p: this method itself times phase p (enum kvd_phase). */
    unsigned apart;
    /*
     * Page tables of single KV heads, or NULL. `appended` must copy new K and V there from the
     * first row of the bf16 page of the request's slot.
     */
    const kvd_gpu_heads *heads;
    /* Name of the kernels that replace the attention of decode steps, or NULL. */
    const char *kernels;
    /*
     * Bytes per page number, in addition to bf16 pages, summed over layers without (page_bytes) and
     * with (near_page_bytes) a sliding window.
     */
    size_t page_bytes, near_page_bytes;
    /* Bytes of the method per slot, summed over all layers. */
    size_t slot_bytes;
    /* Allocates memory for `pages` pages; layers with a window have cache->near->n_pages. */
    int (*make)(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err);

    /*
     * Device [n_heads][rows of Q in blocked layout]: ln of the softmax denominators of prompt
     * tokens.
     */
    float *lse;
    /* Device [steps][n_heads]: ln of the softmax denominators of decode steps. */
    float *lse_steps;

    /*
     * Called on the host before (begin) and after (ended) an iteration. `begin` fails if the method
     * cannot run it.
     */
    int (*begin)(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err);
    int (*ended)(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err);
    /*
     * Returns the cached tokens of a slot whose sequence has `before` tokens, some perhaps dropped.
     * RoPE positions count dropped tokens.
     */
    size_t (*entries)(const kvd_gpu_method *m, size_t slot, size_t before);
    /* Returns a slot's cached tokens, averaged over KV heads and layers. NULL: equal everywhere. */
    double (*mean)(const kvd_gpu_method *m, size_t slot);
    /*
     * Returns a slot's tokens that were merged into others, summed over KV heads and layers. NULL:
     * none.
     */
    size_t (*merged)(const kvd_gpu_method *m, size_t slot);
    /*
     * Returns a slot's tokens stored at KVD_LEVEL_LOW, summed over KV heads and layers. NULL: none.
     */
    size_t (*lowered)(const kvd_gpu_method *m, size_t slot);
    /*
     * Returns a slot's tokens whose keys lost channels, summed over KV heads and layers. NULL:
     * none.
     */
    size_t (*pruned)(const kvd_gpu_method *m, size_t slot);
    /* Frees the memory that a slot holds outside the bf16 pages. */
    void (*drop)(kvd_gpu_method *m, size_t slot);
    /* Returns the bytes of compressed K and V of all slots. */
    double (*held)(const kvd_gpu_method *m);
    /*
     * Returns a slot's bits beyond those that kvd_plan_entry_bits counts. NULL: all tokens have the
     * cache's data type.
     */
    double (*bits)(const kvd_gpu_method *m, size_t slot);
    /*
     * Returns the bits, as counted by `bits` before the latest step, of tokens outside the sliding
     * window. NULL: none.
     */
    double (*unseen)(const kvd_gpu_method *m, size_t slot);
    /*
     * For methods whose steps read only a part of the cache.
     * *side: bits of side information that chooses tokens, not counted by `bits`.
     * *unread: cached tokens that a step skips, averaged over KV heads and layers.
     * NULL: steps read everything.
     */
    void (*reads)(const kvd_gpu_method *m, size_t slot, double *side, double *unread);

    /*
     * Called after `ended` failed. Returns the outliers for which a page needs room
     * (kvd_paged_cache.outliers), or 0. NULL: always 0.
     */
    size_t (*lacking)(const kvd_gpu_method *m);

    int (*appended)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    int (*attended)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    /*
     * Replacements for functions of the paged cache, or NULL.
     * plan_steps: divides n decode steps between CTAs. append: stores new K and V.
     * attend_steps: writes to out [steps][o_pitch]; attend_prompts: after these rows.
     */
    int (*plan_steps)(kvd_gpu_method *m, size_t n, cudaStream_t stream, kvd_err *err);
    int (*append)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    int (*attend_steps)(kvd_gpu_method *m, const kvd_paged_rows *r, void *out, kvd_err *err);
    int (*attend_prompts)(kvd_gpu_method *m, const kvd_paged_rows *r, void *out, kvd_err *err);
    void (*free)(kvd_gpu_method *m);
};

/* Features of models that GPU code may support; bits of kvd_gpu_kind.computes. */
enum {
    KVD_GPU_WINDOWS = 1,
    KVD_GPU_SINKS = 2, /* attention sinks */
    KVD_GPU_SCALE = 4, /* a scale of scores other than 1 / sqrt(d_head) */
    KVD_GPU_WIDE = 8   /* more than KVD_WIDTH_NARROW dimensions */
};

/* GPU code of the methods whose kvd_method_info.gpu points to it. */
typedef struct kvd_gpu_kind {
    /* Returns the features (KVD_GPU_* bits) that this code supports with the plan. NULL: none. */
    unsigned (*computes)(const kvd_plan *plan);
    /* True if several GPUs may divide the tokens of one prompt. */
    bool shares_prompts;
    /*
     * Returns NULL if tensor-parallel GPUs may divide the KV heads (kvd_paged_cache.share),
     * otherwise the reason as a clause. NULL: always `joined`.
     */
    const char *(*joins_heads)(const kvd_plan *plan);
    const char *joined;
    /* Returns true if this GPU code can run the plan. NULL: always. */
    bool (*runs)(const kvd_plan *plan);
    /*
     * Returns true if text can be generated. Requires uncompressed attention within prompts, and
     * `entries` and `bits` as on the CPU. NULL: never.
     */
    bool (*generates)(const kvd_plan *plan);
    /* Returns true if the kernels support the model's heads. NULL: kvd_gpu_method_check decides. */
    bool (*fits)(const kvd_plan *plan, const kvd_config *config);
    /*
     * Returns true if keys before RoPE are read even from models without hook.wants_raw (biases or
     * norms of K, partial RoPE). NULL: never.
     */
    bool (*before_rope)(const kvd_plan *plan);
    /*
     * Creates `*m`, which the cache owns even after a failure. Errors name the unsupported method,
     * parameter or shape.
     */
    int (*open)(const kvd_plan *plan, struct kvd_paged_cache *cache, kvd_gpu_method **m,
                kvd_err *err);
} kvd_gpu_kind;

/* Returns the name of the plan's first method, in the order of the axes, or NULL. */
const char *kvd_gpu_method_name(const kvd_plan *plan);

/* Returns NULL if no GPU code runs the plan. */
const kvd_gpu_kind *kvd_gpu_kind_of(const kvd_plan *plan);

/* Returns why tensor-parallel GPUs cannot divide the KV heads, or NULL if they can. */
const char *kvd_gpu_heads_joined(const kvd_plan *plan);
/* Returns NULL: the kvd_gpu_kind.joins_heads of methods that keep KV heads apart. */
const char *kvd_gpu_heads_apart(const kvd_plan *plan);

/*
 * Fails if the plan's GPU code lacks a feature of the model, for requests of up to max_len tokens.
 */
int kvd_gpu_method_check(const kvd_plan *p, const kvd_config *c, size_t max_len, kvd_err *err);

/* Returns the name of a method of the plan that is not on the tokens axis, or NULL. */
const char *kvd_gpu_method_beside_tokens(const kvd_plan *p);

/*
 * Creates `*m`, or NULL if the plan only projects heads. `cache` must have layers but no pool;
 * memory that depends on cache->pages belongs to `make`.
 */
int kvd_gpu_method_open(const kvd_plan *plan, struct kvd_paged_cache *cache, kvd_gpu_method **m,
                        kvd_err *err);

#endif
