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

/* The new rows of one layer in one iteration. */
typedef struct {
    int layer;
    /*
     * output of the QKV product, in the rows of kvd_append_args.x; includes RoPE if !hook.wants_raw
     */
    const void *x;
    size_t ld; /* distance of rows of x, in elements */
    /* keys before RoPE, rows ld_pre apart, if the method asked the hook for them (wants_pre) */
    const void *k_pre;
    size_t ld_pre;
    size_t steps; /* number of steps: slices 0 .. steps - 1, one row each */
    /*
     * number of slices after the steps, pieces of prompts; their lengths are in batch->host too (0
     * during graph capture)
     */
    size_t prompts;
    cudaStream_t stream;
} kvd_paged_rows;

/*
 * The entries of a method whose layers and KV heads hold different numbers of them. Pages hold one
 * KV head each. Steps attend to them with a KV head of a request in the place of a request: row b
 * n_kv_heads + g of every list is KV head g of step b.
 */
typedef struct {
    kvd_attn_map map;      /* one KV head and its query heads; all KV heads are alike */
    size_t rows;           /* largest number of slices times n_kv_heads */
    const int32_t *kv_len; /* device [n_layers][rows], with the new entries */
    const int32_t *live;   /* device [1] number of rows of the steps that belong to requests */
    const int32_t *table;  /* device [n_layers][rows][max_pages] */
    void *pool;            /* device, the pages */
} kvd_gpu_heads;

/*
 * A method of the CUDA engine. Members that are NULL or 0 keep the behaviour of the cache without a
 * method.
 */
struct kvd_gpu_method {
    struct kvd_paged_cache *cache; /* borrowed */
    const kvd_plan *plan;          /* borrowed, open */
    /*
     * The bf16 pages hold one layer at a time, and all layers share their memory. The method keeps
     * the lasting data in its own pool with the same page numbers, and `appended` fills the pages
     * of the batch again for each layer.
     */
    bool one_layer;
    /*
     * The contents of a slot may be read before they are written: `make` fills it with numbers that
     * are valid for timing.
     */
    bool anywhere;
    bool whole_prompts;    /* the method refuses pieces: prompts must come whole */
    bool attended_prompts; /* `attended` does nothing for steps */
    /* bit p: phase p is a launch of its own, although append does it without a method */
    unsigned apart;
    /*
     * Entries of heads with different numbers of them. NULL: all heads of a slot have as many. If
     * given, steps attend to these; `appended` stores a step's row there, from the first place of
     * the slot's page in the bf16 pages.
     */
    const kvd_gpu_heads *heads;
    /*
     * name of the kernels that replace the cache's own for attention of steps; NULL: no replacement
     */
    const char *kernels;
    /* bytes per page number, all layers, that the method stores in addition to the bf16 pages */
    size_t page_bytes;
    size_t slot_bytes; /* bytes per slot, all layers */
    int (*make)(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err);

    /* device [n_heads][rows of blocked Q]: log-sum-exp from attention of prompts, natural log */
    float *lse;
    /* device [steps][n_heads]: log-sum-exp from attention of steps, natural log */
    float *lse_steps;

    /*
     * Called on the host before an iteration, and after it has ended. `begin` may refuse the
     * iteration.
     */
    int (*begin)(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err);
    int (*ended)(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err);
    /*
     * Returns the number of entries in the pages of a slot, for a sequence with `before` tokens:
     * fewer than `before` if tokens were dropped. The new rows follow these entries; RoPE uses the
     * position.
     */
    size_t (*entries)(const kvd_gpu_method *m, size_t slot, size_t before);
    /* Returns the mean over all heads and layers of their entries, if `heads` is given. */
    double (*mean)(const kvd_gpu_method *m, size_t slot);
    /* Frees what a slot holds outside the bf16 pages. */
    void (*drop)(kvd_gpu_method *m, size_t slot);
    /* Returns the bytes that slots hold, by the method's own count. */
    double (*held)(const kvd_gpu_method *m);
    /*
     * Returns the bits that a slot holds after the latest iteration, without those that
     * kvd_plan_entry_bits counts. NULL: every entry has whole rows in the type of the cache.
     */
    double (*bits)(const kvd_gpu_method *m, size_t slot);

    int (*appended)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    int (*attended)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    /*
     * Replacements of the cache's own steps: work lists of n steps; append; attention of steps,
     * written to out [steps][o_pitch]; attention of prompts, written to out after the rows of the
     * steps.
     */
    int (*plan_steps)(kvd_gpu_method *m, size_t n, cudaStream_t stream, kvd_err *err);
    int (*append)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    int (*attend_steps)(kvd_gpu_method *m, const kvd_paged_rows *r, void *out, kvd_err *err);
    int (*attend_prompts)(kvd_gpu_method *m, const kvd_paged_rows *r, void *out, kvd_err *err);
    void (*free)(kvd_gpu_method *m);
};

/* A kind of method. The vtables of the methods that it runs point to it (kvd_method_info.gpu). */
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
     * Returns true if this kind can run the plan, which has a method of this kind. NULL if it can
     * run every plan.
     */
    bool (*runs)(const kvd_plan *plan);
    /*
     * Returns true if the rows of a prompt attend to each other uncompressed, and `entries` and
     * `bits` count a slot as the CPU does: text can be generated with the plan. NULL: never.
     */
    bool (*generates)(const kvd_plan *plan);
    /*
     * Creates the method in *m. Fails and names the member, key or shape of the plan that this kind
     * does not support. The cache owns *m even if the call fails.
     */
    int (*open)(const kvd_plan *plan, struct kvd_paged_cache *cache, kvd_gpu_method **m,
                kvd_err *err);
} kvd_gpu_kind;

/* Returns the kind that runs the plan, or NULL if there is none. */
const kvd_gpu_kind *kvd_gpu_kind_of(const kvd_plan *plan);

/*
 * Opens the method of a plan; *m becomes NULL if the plan needs nothing beyond the widths of dims.
 * The cache must have its layers but no pool yet. Fails naming the feature that the engine does not
 * support.
 */
int kvd_gpu_method_open(const kvd_plan *plan, struct kvd_paged_cache *cache, kvd_gpu_method **m,
                        kvd_err *err);

#endif
