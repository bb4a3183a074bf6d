/*
 * Interface of compression methods in the CUDA engine that do more than project heads.
 *
 * A layer runs: append (RoPE, rotation, new K and V to bf16 pages), `appended`, attention of
 * prompts, attention of decode steps, `attended`. Callbacks queue work, never wait, and end timed
 * phases with kvd_clock_end(cache->clock, ...).
 *
 * Decode-step iterations are CUDA graphs: lengths, slots and positions must be read from device
 * lists. Padding has slot n_slots and the idle page.
 */
#ifndef KVD_METHODS_CUDA_GPU_METHOD_H
#define KVD_METHODS_CUDA_GPU_METHOD_H

#include <cuda_runtime_api.h>

#include "kernels/layout.h"
#include "methods/iteration.h"
#include "methods/plan.h"

struct kvd_host_codes;
struct kvd_host_entries;
struct kvd_paged_cache;
typedef struct kvd_gpu_method kvd_gpu_method;

typedef struct {
    int layer;
    /* Output of the QKV product: rows of Q, K and V, after RoPE unless hook.wants_raw is set. */
    const void *x;
    size_t ld;
    /* Q and K before RoPE, ld_pre elements per token, or NULL unless hook.wants_pre is set. */
    const void *q_pre, *k_pre;
    size_t ld_pre;
    /* Layer inputs, bf16 [tokens][d_model], or NULL unless hook.wants_input is set. */
    const void *input;
    /* Number of decode steps, which come first in the batch. */
    size_t steps;
    /* Number of prompts or chunks; 0 during graph capture. */
    size_t prompts;
    cudaStream_t stream;
} kvd_paged_rows;

/*
 * Page tables that are separate for each KV head. Element b * n_kv_heads + g is for KV head g of
 * decode step b.
 */
typedef struct {
    /* Attention map of one KV head and its query heads. */
    kvd_attn_map map;
    /* Number of elements: largest number of requests in an iteration times n_kv_heads. */
    size_t rows;
    /* [layers][rows] in device memory: number of cached tokens, the new one included. */
    const int32_t *kv_len;
    /* [1] in device memory: number of elements before the padding, n_kv_heads per decode step. */
    const int32_t *live;
    /* [layers][rows][max_pages] in device memory: numbers of the pages that hold the tokens. */
    const int32_t *table;
    void *pool;
} kvd_gpu_heads;

/* GPU state and callbacks of a compression method. Members that are NULL or 0 are not needed. */
struct kvd_gpu_method {
    struct kvd_paged_cache *cache; /* borrowed */
    const kvd_plan *plan;          /* borrowed, open */
    /*
     * Compressed rows that the CPU computes (methods/cuda/host_codes.h), used from
     * kvd_gpu_method_make to kvd_gpu_method_free. NULL if there are none.
     */
    struct kvd_host_codes *codes;
    struct kvd_host_entries *kept; /* such codes of entries that a method keeps, or NULL */
    /* True if all layers share bf16 pages, which `appended` fills anew for each layer. */
    bool one_layer;
    /* True if layers with a sliding window keep uncompressed K and V. */
    bool skips_windows;
    /*
     * [n_layers] True for layers without a window that keep uncompressed K and V, which `held` and
     * `bits` count. NULL: none.
     */
    const bool *skips;
    /* True if timing runs may read slots never written, which `make` fills with likely numbers. */
    bool anywhere;
    /* True if the method must process a prompt at once, not in chunks. */
    bool whole_prompts;
    /* True if decode steps need no Q and K before RoPE, although hook.wants_pre is set. */
    bool pre_of_prompts;
    /* True if iterations of decode steps alone need no call of `attended`. */
    bool attended_prompts;
    /* Phases (enum kvd_phase) that this method itself times: bit p for phase p. */
    unsigned apart;
    /*
     * Page tables of single KV heads, or NULL. `appended` must copy new K and V from the request's
     * bf16 page to the pages in these tables.
     */
    const kvd_gpu_heads *heads;
    /* Name of the kernels that replace the attention of decode steps, or NULL. */
    const char *kernels;
    /* Bytes per page, beyond those of bf16 pages, in layers without and with a sliding window. */
    size_t page_bytes, near_page_bytes;
    /* Bytes that a slot (running request) needs outside the pages, summed over layers. */
    size_t slot_bytes;
    /*
     * Allocates the method's memory for `pages` pages and `slots` slots. Layers with a window have
     * cache->near->n_pages pages.
     */
    int (*make)(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err);

    /* [n_heads][rows of Q] in device memory: natural log of prompt tokens' softmax denominators. */
    float *lse;
    /* [steps][n_heads] in device memory: natural log of decode steps' softmax denominators. */
    float *lse_steps;

    /* Called before and after an iteration. `begin` fails if the method cannot run it. */
    int (*begin)(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err);
    int (*ended)(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err);
    /*
     * Returns the cached tokens of a running request (slot) after `before` tokens. RoPE also counts
     * dropped ones.
     */
    size_t (*entries)(const kvd_gpu_method *m, size_t slot, size_t before);
    /*
     * Returns the cached tokens of a running request (slot), mean over KV heads and layers. NULL:
     * all are equal.
     */
    double (*mean)(const kvd_gpu_method *m, size_t slot);
    /*
     * Returns how many tokens of the request in a slot were merged into others, summed over KV
     * heads and layers. NULL: none.
     */
    size_t (*merged)(const kvd_gpu_method *m, size_t slot);
    /*
     * Returns the tokens of a running request (slot) at low precision (KVD_LEVEL_LOW), summed over
     * KV heads and layers. NULL: none.
     */
    size_t (*lowered)(const kvd_gpu_method *m, size_t slot);
    /*
     * Returns the tokens of a running request (slot) with pruned key channels, over KV heads and
     * layers. NULL: none.
     */
    size_t (*pruned)(const kvd_gpu_method *m, size_t slot);
    /* Frees a running request's memory outside the bf16 pages. */
    void (*drop)(kvd_gpu_method *m, size_t slot);
    /* Returns the compressed bytes of all running requests (slots). */
    double (*held)(const kvd_gpu_method *m);
    /*
     * Returns the bits of a running request (slot), less those of kvd_plan_entry_bits. NULL: the
     * cache's data type.
     */
    double (*bits)(const kvd_gpu_method *m, size_t slot);
    /*
     * Returns how many of a running request's `bits` left the window in the latest step. NULL:
     * none.
     */
    double (*unseen)(const kvd_gpu_method *m, size_t slot);
    /*
     * For methods whose steps read part of the cache. *side receives how many bits were read to
     * choose the tokens; they are not part of `bits`. *unread gets the number of skipped tokens,
     * mean over KV heads and layers. NULL: steps read everything.
     */
    void (*reads)(const kvd_gpu_method *m, size_t slot, double *side, double *unread);

    /*
     * Called after `ended` failed. Returns the number of outliers that a page must have room for,
     * or 0 if there was room. NULL: always 0.
     */
    size_t (*lacking)(const kvd_gpu_method *m);

    int (*appended)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    int (*attended)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    /*
     * Functions that replace those of the paged cache, or NULL. attend_steps writes rows 0 .. steps
     * - 1 of `out`, attend_prompts the rows after them.
     */
    int (*plan_steps)(kvd_gpu_method *m, size_t n, cudaStream_t stream, kvd_err *err);
    int (*append)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    int (*attend_steps)(kvd_gpu_method *m, const kvd_paged_rows *r, void *out, kvd_err *err);
    int (*attend_prompts)(kvd_gpu_method *m, const kvd_paged_rows *r, void *out, kvd_err *err);
    void (*free)(kvd_gpu_method *m);
};

/* Features of models that a method's GPU code may support, for kvd_gpu_kind.computes. */
enum {
    KVD_GPU_WINDOWS = 1,
    KVD_GPU_SINKS = 2,
    KVD_GPU_SCALE = 4, /* a scale of scores other than 1 / sqrt(d_head) */
    KVD_GPU_WIDE = 8   /* heads of more than KVD_WIDTH_NARROW dimensions */
};

/* Description of a method's GPU code. kvd_method_info.gpu of the method points to it. */
typedef struct kvd_gpu_kind {
    /* Returns the features that the code supports (KVD_GPU_* bits). NULL: none. */
    unsigned (*computes)(const kvd_plan *plan);
    /* True if several GPUs may divide the tokens of one prompt. */
    bool shares_prompts;
    /*
     * Returns why several GPUs may not divide the KV heads (a clause for a message), or NULL. If
     * joins_heads itself is NULL, the string `joined` is the reason for all compression methods.
     */
    const char *(*joins_heads)(const kvd_plan *plan);
    const char *joined;
    /*
     * Returns true if this GPU code can run the compression methods of `plan`. NULL: it always can.
     */
    bool (*runs)(const kvd_plan *plan);
    /*
     * Returns true if text can be generated. That requires prompts that attend to uncompressed K
     * and V, and functions `entries` and `bits` that count as on the CPU. NULL: never.
     */
    bool (*generates)(const kvd_plan *plan);
    /* Returns true if the CPU compresses the rows of generated text. NULL: never. */
    bool (*codes_on_host)(const kvd_plan *plan);
    /* Returns true if kernels support the model's heads. NULL: kvd_gpu_method_check decides. */
    bool (*fits)(const kvd_plan *plan, const kvd_config *config);
    /* Returns true if keys before RoPE are needed even without hook.wants_raw. NULL: never. */
    bool (*before_rope)(const kvd_plan *plan);
    /* Creates *m, which the cache owns even after a failure. Errors name what is not supported. */
    int (*open)(const kvd_plan *plan, struct kvd_paged_cache *cache, kvd_gpu_method **m,
                kvd_err *err);
} kvd_gpu_kind;

/* Makes CUDA stream `later` wait for all current work of CUDA stream `earlier`, by `event`. */
int kvd_gpu_queue_after(cudaStream_t later, cudaStream_t earlier, cudaEvent_t event,
                        const char *what, kvd_err *err);
/*
 * Returns the name of the first compression method in `plan`, in the order layers, tokens,
 * dimensions, bits, or NULL.
 */
const char *kvd_gpu_method_name(const kvd_plan *plan);

/* Returns the GPU code that runs the compression methods of `plan`, or NULL. */
const kvd_gpu_kind *kvd_gpu_kind_of(const kvd_plan *plan);

/*
 * Returns the GPU code with which the compression methods of `plan` generate text: their own or, if
 * that cannot, kvd_gpu_host_codes, which quantises on the CPU.
 */
const kvd_gpu_kind *kvd_gpu_kind_of_text(const kvd_plan *plan, const kvd_config *config,
                                         size_t max_len);

/* Returns why several GPUs cannot divide the KV heads among them, or NULL if they can. */
const char *kvd_gpu_heads_joined(const kvd_plan *plan);
/* Returns NULL: GPUs can always divide the KV heads. Serves as kvd_gpu_kind.joins_heads. */
const char *kvd_gpu_heads_apart(const kvd_plan *plan);

/*
 * Fails if the GPU code `kind` of a compression method (or NULL) lacks a feature that the model
 * needs for requests of max_len tokens.
 */
int kvd_gpu_method_check(const kvd_gpu_kind *kind, const kvd_plan *p, const kvd_config *c,
                         size_t max_len, kvd_err *err);

/* Returns the name of a compression method in `p` that does not choose tokens, or NULL. */
const char *kvd_gpu_method_beside_tokens(const kvd_plan *p);

/*
 * Creates the GPU state *m of the compression methods in `plan`, or sets NULL if they only project
 * heads. `cache` must have its layers, but no pool.
 */
int kvd_gpu_method_open(const kvd_plan *plan, struct kvd_paged_cache *cache, kvd_gpu_method **m,
                        kvd_err *err);

/*
 * Call the method's callbacks of these names, if it has them, and the functions of m->codes.
 * kvd_gpu_method_finish waits until the CPU has counted the bits of earlier iterations, and must be
 * called before kvd_gpu_method_bits and kvd_gpu_method_held. kvd_gpu_method_bits returns NaN if
 * every cached token is stored in the type of the cache.
 */
int kvd_gpu_method_make(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream,
                        kvd_err *err);
int kvd_gpu_method_begin(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err);
int kvd_gpu_method_ended(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err);
int kvd_gpu_method_finish(kvd_gpu_method *m, kvd_err *err);
void kvd_gpu_method_drop(kvd_gpu_method *m, size_t slot);
double kvd_gpu_method_held(const kvd_gpu_method *m);
double kvd_gpu_method_bits(const kvd_gpu_method *m, size_t slot);
void kvd_gpu_method_free(kvd_gpu_method *m);

/*
 * Queues a sum over GPUs: x [n] becomes the sum of the arrays x of all GPUs. Its time counts in
 * KVD_PHASE_COMM, the time before it in KVD_PHASE_COMPRESS.
 */
int kvd_gpu_method_add_up(const kvd_gpu_method *m, float *x, size_t n, cudaStream_t stream,
                          kvd_err *err);

#endif
