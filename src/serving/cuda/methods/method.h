/*
 * What a method of another axis than dims does in the CUDA engine; a kind of methods is a file beside this one. The paged bf16 cache (cache.h)
 * and its attention kernels stand; a kind adds to what happens to a layer's pages, or replaces it.
 *
 * A layer is: append (RoPE, rotation, the new rows into bf16 pages), `appended`, attention of prompts, attention of steps, `attended`.
 *
 * Hooks queue work and never wait for it. What they queue for steps alone is captured into a graph per number of rows: grids, pointers and
 * numbers may depend on that number and on the engine; lengths, slots and positions are read from the batch's lists on the device. Rows that
 * fill a batch up have the slot after the last (batch->device.slot) and the idle page. A hook marks the end of its phases
 * with kvd_clock_end(cache->clock, KVD_PHASE_RESTORE or _COMPRESS or _SCHEDULE ...).
 */
#ifndef KVD_SERVING_CUDA_METHOD_H
#define KVD_SERVING_CUDA_METHOD_H

#include <cuda_runtime_api.h>

#include "methods/plan.h"
#include "serving/batching.h"

struct kvd_serving_cache;
typedef struct kvd_serving_method kvd_serving_method;

/* Rows of a layer that are at hand. */
typedef struct {
    int layer;
    const void *
        x; /* what came out of the QKV product, rows of kvd_append_args.x; RoPE is in them if !door.wants_raw */
    size_t ld; /* elements from row to row */
    const void *
        k_pre; /* keys before RoPE, rows ld_pre apart, where the method has asked the door for them (wants_pre) */
    size_t ld_pre;
    size_t steps; /* slices 0 .. steps - 1: a row each                                    */
    size_t
        prompts; /* slices behind them: pieces of prompts; lengths in batch->host too (0 while a graph is made) */
    cudaStream_t stream;
} kvd_serving_rows;

/* Members that are NULL or 0: as without a method. */
struct kvd_serving_method {
    struct kvd_serving_cache *cache; /* borrowed */
    const kvd_plan *plan;            /* borrowed, open */
    /* The bf16 pages hold one layer at a time, all layers the same memory: what lasts is the method's, whose pool has the same page numbers, and
     * `appended` fills the pages of the batch anew. */
    bool one_layer;
    /* What a slot holds may be read without having been written: `make` fills it with numbers that are as good as any for times. */
    bool anywhere;
    bool whole_prompts;    /* it refuses pieces of prompts */
    bool attended_prompts; /* `attended` has to do with prompts alone */
    unsigned apart;        /* bit p: phase p is a launch of its own, though append does it without a method */
    const char *kernels;   /* what attends steps in place of the cache's own kernel; NULL: nothing does */
    size_t page_bytes;     /* of a page number, all layers, that the method stores beside the bf16 pages */
    size_t slot_bytes;     /* of a slot, all layers                                                     */
    int (*make)(kvd_serving_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err);

    float *lse; /* device [n_heads][rows of blocked Q]: what attention of prompts gives out, natural log */
    float *lse_steps; /* device [steps][n_heads]: the same of attention of steps                        */

    /* Host, before an iteration and after it has ended. begin may refuse it. */
    int (*begin)(kvd_serving_method *m, const kvd_iteration *it, kvd_err *err);
    int (*ended)(kvd_serving_method *m, const kvd_iteration *it, kvd_err *err);
    /* Entries that the pages of a slot hold, of a sequence with `before` tokens: fewer where tokens were dropped. The new rows come behind
     * them; RoPE goes by position. */
    size_t (*entries)(const kvd_serving_method *m, size_t slot, size_t before);
    /* Bytes that slots hold, by its own count. */
    double (*held)(const kvd_serving_method *m);

    int (*appended)(kvd_serving_method *m, const kvd_serving_rows *r, kvd_err *err);
    int (*attended)(kvd_serving_method *m, const kvd_serving_rows *r, kvd_err *err);
    /* In place of the cache's own: work lists of n steps, append, and attention of steps, out [steps][o_pitch], and of prompts, out behind those. */
    int (*plan_steps)(kvd_serving_method *m, size_t n, cudaStream_t stream, kvd_err *err);
    int (*append)(kvd_serving_method *m, const kvd_serving_rows *r, kvd_err *err);
    int (*attend_steps)(kvd_serving_method *m, const kvd_serving_rows *r, void *out, kvd_err *err);
    int (*attend_prompts)(kvd_serving_method *m, const kvd_serving_rows *r, void *out, kvd_err *err);
    void (*free)(kvd_serving_method *m);
};

/*
 * The method of a plan; *m NULL: none beyond the widths of dims. The cache has its layers already, no pool yet. Fails naming what the engine does not do.
 */
int kvd_serving_method_open(const kvd_plan *plan, struct kvd_serving_cache *cache, kvd_serving_method **m,
                            kvd_err *err);

#endif
