/*
 * Interface of the methods on axes other than dims in the CUDA engine; each kind of method has its
 * own file in this folder. The paged bf16 cache (paged_cache.h) and its attention kernels are the
 * base; a kind of method adds steps to the work on a layer's pages, or replaces steps.
 *
 * The steps of a layer are: append (RoPE, rotation, the new rows into bf16 pages), `appended`,
 * attention of prompts, attention of steps, `attended`.
 *
 * Hooks queue work and never wait for it. Work queued for an iteration of steps alone is captured
 * into one CUDA graph per number of rows. Its grids, pointers and numbers may depend on that number
 * and on the engine, but lengths, slots and positions must be read from the batch's lists on the
 * device. Rows that pad a batch have the slot after the last (batch->device.slot) and the idle
 * page. A hook marks the end of its phases with kvd_clock_end(cache->clock, KVD_PHASE_RESTORE or
 * _COMPRESS or _SCHEDULE ...).
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
     * Output of the QKV product, in the row layout of kvd_append_args.x. Includes RoPE unless
     * hook.wants_raw.
     */
    const void *x;
    size_t ld; /* elements from one row of x to the next */
    /* Keys before RoPE, rows ld_pre apart, if the method asked for them (hook.wants_pre). */
    const void *k_pre;
    size_t ld_pre;
    size_t steps; /* number of decode steps: slices 0 .. steps - 1, one row each */
    /*
     * Number of slices after the decode steps: pieces of prompts. Their lengths are also in
     * batch->host (0 during graph capture).
     */
    size_t prompts;
    cudaStream_t stream;
} kvd_paged_rows;

/*
 * Page tables of a method whose layers and KV heads hold different numbers of entries. A page holds
 * one KV head. For attention, each KV head of a decode step is treated as a request: row b
 * n_kv_heads + g of every list is KV head g of step b.
 */
typedef struct {
    /* shape of one KV head with its query heads; all KV heads have the same */
    kvd_attn_map map;
    size_t rows;           /* largest number of slices times n_kv_heads */
    const int32_t *kv_len; /* device [n_layers][rows] number of entries, including the new ones */
    const int32_t *live;   /* device [1] number of rows of decode steps that belong to requests */
    const int32_t *table;  /* device [n_layers][rows][max_pages] page table */
    void *pool;            /* device, the pages */
} kvd_gpu_heads;

/*
 * A method of the CUDA engine: data and callbacks that change the paged cache. A member that is
 * NULL or 0 keeps the behaviour of the cache without a method.
 */
struct kvd_gpu_method {
    struct kvd_paged_cache *cache; /* borrowed */
    const kvd_plan *plan;          /* borrowed, open */
    /*
     * True if the bf16 pages hold only one layer at a time, in memory that all layers share. The
     * method keeps the stored data in its own pool with the same page numbers, and `appended` fills
     * the batch's pages for each layer.
     */
    bool one_layer;
    /*
     * True if a slot may be read before it is written. `make` then fills it with numbers that are
     * valid for timing.
     */
    bool anywhere;
    bool whole_prompts;    /* the method does not support pieces of prompts */
    bool attended_prompts; /* `attended` has no work in iterations of decode steps alone */
    /*
     * Bit p is set if phase p is timed as its own launch, although append does its work if there is
     * no method.
     */
    unsigned apart;
    /*
     * Page tables of KV heads with different numbers of entries. NULL: all heads of a slot have the
     * same number. If given, attention of decode steps reads these pages; `appended` copies a
     * step's row there from the first row of the slot's page in the bf16 pages.
     */
    const kvd_gpu_heads *heads;
    /*
     * Name of the kernels that replace the cache's own attention of decode steps; NULL: no
     * replacement.
     */
    const char *kernels;
    /*
     * Bytes per page number, over all layers, that the method stores in addition to the bf16 pages.
     */
    size_t page_bytes;
    size_t slot_bytes; /* bytes per slot, over all layers */
    int (*make)(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err);

    /* Natural log of the softmax denominators of prompts, device [n_heads][rows of blocked Q]. */
    float *lse;
    /* Natural log of the softmax denominators of decode steps, device [steps][n_heads]. */
    float *lse_steps;

    /*
     * Callbacks on the host before an iteration and after it has ended. `begin` may refuse the
     * iteration.
     */
    int (*begin)(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err);
    int (*ended)(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err);
    /*
     * Returns the number of entries in the pages of a slot whose sequence has `before` tokens;
     * fewer than `before` if tokens were dropped. New rows are stored after these entries; RoPE
     * uses the position in the sequence.
     */
    size_t (*entries)(const kvd_gpu_method *m, size_t slot, size_t before);
    /*
     * Returns the number of entries of a slot, averaged over all KV heads and layers, if `heads` is
     * given.
     */
    double (*mean)(const kvd_gpu_method *m, size_t slot);
    /* Frees the memory that a slot holds outside the bf16 pages. */
    void (*drop)(kvd_gpu_method *m, size_t slot);
    /* Returns the bytes that all slots hold, by the method's own count. */
    double (*held)(const kvd_gpu_method *m);
    /*
     * Returns the bits that a slot holds after the latest iteration, without those that
     * kvd_plan_entry_bits counts. NULL: every entry is a row that is not coded, in the data type of
     * the cache.
     */
    double (*bits)(const kvd_gpu_method *m, size_t slot);

    int (*appended)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    int (*attended)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    /*
     * Replacements of parts of the cache: work lists of n decode steps; append; attention of decode
     * steps, written to out [steps][o_pitch]; attention of prompts, written to out after the rows
     * of the steps.
     */
    int (*plan_steps)(kvd_gpu_method *m, size_t n, cudaStream_t stream, kvd_err *err);
    int (*append)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    int (*attend_steps)(kvd_gpu_method *m, const kvd_paged_rows *r, void *out, kvd_err *err);
    int (*attend_prompts)(kvd_gpu_method *m, const kvd_paged_rows *r, void *out, kvd_err *err);
    void (*free)(kvd_gpu_method *m);
};

/*
 * Kind of methods that the same GPU code runs. The structures of these methods point to it
 * (kvd_method_info.gpu).
 */
typedef struct kvd_gpu_kind {
    /* True if several GPUs may share the tokens of a prompt. */
    bool shares_prompts;
    /*
     * Returns true if all that the plan stores of a KV head depends on that head alone, so that
     * tensor parallel GPUs may divide the heads. The method then has the heads of its GPU
     * (kvd_paged_cache.share). NULL: never.
     */
    bool (*by_head)(const kvd_plan *plan);
    /*
     * Returns true if this GPU code can run the plan, which has a method of this kind. NULL: it can
     * run every plan.
     */
    bool (*runs)(const kvd_plan *plan);
    /*
     * Returns true if text can be generated with the plan: the rows of a prompt attend to each
     * other uncompressed, and `entries` and `bits` count a slot as the CPU does. NULL: never.
     */
    bool (*generates)(const kvd_plan *plan);
    /*
     * Creates the method in *m. Fails, with a message that names the unsupported method, parameter
     * or shape of the plan. The cache owns *m even if the call fails.
     */
    int (*open)(const kvd_plan *plan, struct kvd_paged_cache *cache, kvd_gpu_method **m,
                kvd_err *err);
} kvd_gpu_kind;

/* Returns the GPU code (kind of method) that runs the plan, or NULL if there is none. */
const kvd_gpu_kind *kvd_gpu_kind_of(const kvd_plan *plan);

/*
 * Creates the method of a plan in *m, or sets *m to NULL if the plan needs nothing beyond the
 * widths of dims. The cache must have its layers but no pool yet. Fails, with a message that names
 * the unsupported feature.
 */
int kvd_gpu_method_open(const kvd_plan *plan, struct kvd_paged_cache *cache, kvd_gpu_method **m,
                        kvd_err *err);

#endif
