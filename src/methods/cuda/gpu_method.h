/*
 * Interface of compression methods that do more than project heads, in the CUDA engine. Each kind
 * of method has its own file. The paged bf16 cache (paged_cache.h) and its attention kernels are
 * the base; a kind of method adds steps to the work on a layer's pages, or replaces steps.
 *
 * The steps of a layer are: append (RoPE, rotation, storing the new rows in bf16 pages), callback
 * `appended`, attention of prompts, attention of decode steps, callback `attended`.
 *
 * Callbacks queue work and never wait for it. An iteration that consists of decode steps alone is
 * captured into one CUDA graph per number of rows. Grids, pointers and numbers of the queued work
 * may depend on that number of rows and on the engine, but lengths, slots and positions must be
 * read from the batch's lists on the device. Rows that pad a batch have the slot after the last one
 * (batch->device.slot) and the idle page. A callback marks the end of a timed phase with
 * kvd_clock_end(cache->clock, KVD_PHASE_RESTORE or _COMPRESS or _SCHEDULE ...).
 */
#ifndef KVD_METHODS_CUDA_GPU_METHOD_H
#define KVD_METHODS_CUDA_GPU_METHOD_H

#include <cuda_runtime_api.h>

#include "kernels/layout.h"
#include "methods/iteration.h"
#include "methods/plan.h"

struct kvd_paged_cache;
typedef struct kvd_gpu_method kvd_gpu_method;

/* Rows of K and V that an iteration adds to one layer. */
typedef struct {
    int layer;
    /*
     * Output of the matrix product of Q, K and V, in the row layout of kvd_append_args.x. RoPE has
     * been applied unless hook.wants_raw is set.
     */
    const void *x;
    /* Elements from one row of x to the next. */
    size_t ld;
    /*
     * Keys before RoPE, rows ld_pre elements apart. NULL unless the method asked for them
     * (hook.wants_pre).
     */
    const void *k_pre;
    size_t ld_pre;
    /* Number of decode steps. They are the first rows of the batch, one row each. */
    size_t steps;
    /*
     * Number of prompts, or chunks of prompts, that follow the decode steps in the batch. Their
     * lengths are also in batch->host (0 during graph capture).
     */
    size_t prompts;
    cudaStream_t stream;
} kvd_paged_rows;

/*
 * Page tables of a method whose layers and KV heads hold different numbers of tokens. A page holds
 * one KV head. For attention, each KV head of a decode step is treated as a request: row b *
 * n_kv_heads + g of every list is KV head g of step b.
 */
typedef struct {
    /* Shape of one KV head with its query heads. All KV heads have the same shape. */
    kvd_attn_map map;
    /* Largest number of requests of an iteration, times n_kv_heads. */
    size_t rows;
    /*
     * For each layer and each KV head of a decode step (a row), the number of cached tokens,
     * including the new one. In device memory, [n_layers][rows].
     */
    const int32_t *kv_len;
    /*
     * Number of rows (KV heads of decode steps) that belong to requests and not to padding, in
     * device memory, [1].
     */
    const int32_t *live;
    /*
     * Page numbers of each layer and each KV head of a decode step (a row), in device memory,
     * [n_layers][rows][max_pages].
     */
    const int32_t *table;
    void *pool; /* pages, in device memory */
} kvd_gpu_heads;

/*
 * A method of the CUDA engine: data and callbacks that change the paged cache. A member that is
 * NULL or 0 leaves the cache as it is without a method.
 */
struct kvd_gpu_method {
    struct kvd_paged_cache *cache; /* borrowed */
    const kvd_plan *plan;          /* borrowed, open */
    /*
     * True if the bf16 pages hold only one layer at a time, in memory that all layers share. The
     * method keeps the stored data in its own pool with the same page numbers, and its callback
     * `appended` fills the pages of the batch anew for each layer.
     */
    bool one_layer;
    /*
     * True if attention may read a slot before anything was written to it. The callback `make` must
     * then fill the slot with numbers that are valid for timing.
     */
    bool anywhere;
    /* True: the method does not support prompts that are processed in chunks. */
    bool whole_prompts;
    /* True: callback `attended` has no work in iterations of decode steps alone. */
    bool attended_prompts;
    /*
     * Mask of phases (bit p for phase p) whose work this method does in kernels of its own, so
     * these phases are timed separately. Without a method the append kernel does this work.
     */
    unsigned apart;
    /*
     * Page tables for KV heads that hold different numbers of tokens. NULL: all heads of a slot
     * hold the same number. If not NULL, attention of decode steps reads the pages that these
     * tables list. `appended` must then copy K and V of each new token to them. It finds K and V of
     * the new token in the first row of the slot's page in the bf16 pages.
     */
    const kvd_gpu_heads *heads;
    /*
     * Name of the kernels that replace the cache's own attention of decode steps. NULL: the cache's
     * own kernels run.
     */
    const char *kernels;
    /*
     * Bytes per page number, summed over all layers, that the method stores in addition to the bf16
     * pages.
     */
    size_t page_bytes;
    /* Bytes per slot, summed over all layers, that the method stores. */
    size_t slot_bytes;
    int (*make)(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err);

    /*
     * Natural log of the softmax denominators of prompt tokens, in device memory, [n_heads][rows of
     * Q in blocked layout].
     */
    float *lse;
    /*
     * Natural log of the softmax denominators of decode steps, in device memory, [steps][n_heads].
     */
    float *lse_steps;

    /*
     * Callbacks on the host: `begin` is called before an iteration and may refuse it; `ended` is
     * called after the iteration has ended.
     */
    int (*begin)(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err);
    int (*ended)(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err);
    /*
     * Returns the number of cached tokens of a slot whose sequence has `before` tokens so far. It
     * is less than `before` if tokens were dropped. New rows are stored after these tokens; RoPE
     * uses the position in the sequence.
     */
    size_t (*entries)(const kvd_gpu_method *m, size_t slot, size_t before);
    /*
     * Returns the number of cached tokens of a slot, averaged over all KV heads and layers. Used if
     * `heads` is given.
     */
    double (*mean)(const kvd_gpu_method *m, size_t slot);
    /* Frees the memory that a slot holds outside the bf16 pages. */
    void (*drop)(kvd_gpu_method *m, size_t slot);
    /* Returns the bytes that all slots together hold, by the method's own count. */
    double (*held)(const kvd_gpu_method *m);
    /*
     * Returns the bits that a slot holds after the latest iteration, without those that
     * kvd_plan_entry_bits counts. NULL: every cached token is stored unquantised, in the data type
     * of the cache.
     */
    double (*bits)(const kvd_gpu_method *m, size_t slot);

    int (*appended)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    int (*attended)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    /*
     * Replacements of parts of the cache. plan_steps decides which part of the attention of n
     * decode steps each CTA computes. append stores new rows. attend_steps computes the attention
     * of decode steps into out [steps][o_pitch]. attend_prompts computes the attention of prompts
     * into `out` after the rows of the steps.
     */
    int (*plan_steps)(kvd_gpu_method *m, size_t n, cudaStream_t stream, kvd_err *err);
    int (*append)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    int (*attend_steps)(kvd_gpu_method *m, const kvd_paged_rows *r, void *out, kvd_err *err);
    int (*attend_prompts)(kvd_gpu_method *m, const kvd_paged_rows *r, void *out, kvd_err *err);
    void (*free)(kvd_gpu_method *m);
};

/*
 * Group of methods that the same GPU code runs. The structures of these methods point to it
 * (kvd_method_info.gpu).
 */
typedef struct kvd_gpu_kind {
    /* True if several GPUs may divide the tokens of one prompt between them. */
    bool shares_prompts;
    /*
     * Returns true if everything that the plan stores for a KV head depends on that head alone, so
     * that tensor-parallel GPUs may divide the heads. The method then has only the heads of its GPU
     * (kvd_paged_cache.share). NULL: never.
     */
    bool (*by_head)(const kvd_plan *plan);
    /*
     * Returns true if this GPU code can run the plan, which has a method of this kind. NULL: it can
     * run every such plan.
     */
    bool (*runs)(const kvd_plan *plan);
    /*
     * Returns true if text can be generated with the plan: the tokens of a prompt attend to each
     * other uncompressed, and callbacks `entries` and `bits` count a slot as the CPU does. NULL:
     * never.
     */
    bool (*generates)(const kvd_plan *plan);
    /*
     * Creates the method in *m. Fails, with a message that names the unsupported method, parameter
     * or shape of the plan. The cache owns *m even if the call fails.
     */
    int (*open)(const kvd_plan *plan, struct kvd_paged_cache *cache, kvd_gpu_method **m,
                kvd_err *err);
} kvd_gpu_kind;

/* Returns the GPU code that runs the plan, or NULL if there is none. */
const kvd_gpu_kind *kvd_gpu_kind_of(const kvd_plan *plan);

/*
 * Creates the GPU method of a plan in *m, or sets *m to NULL if the plan does nothing but project
 * heads. The cache must have its layers but no pool of pages yet. Fails, with a message that names
 * the unsupported feature.
 */
int kvd_gpu_method_open(const kvd_plan *plan, struct kvd_paged_cache *cache, kvd_gpu_method **m,
                        kvd_err *err);

#endif
