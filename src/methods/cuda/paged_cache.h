/*
 * The paged cache of an engine as an attention hook: K and V of all requests stay in it between
 * iterations. Heads have the widths of a plan's dims, rounded up to multiples of 16. Q and K are
 * rotated when they are appended, and V is already cut by its product (fold.h). The output is P V'
 * at its width, which the folded output projection reads. bf16, on the kernels of kernels/cuda.
 *
 * In each iteration the decode kernel computes the steps and the prefill kernel the pieces of
 * prompts, with one launch each over rows of one batch.
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
    kvd_cache_layer *layer; /* [n_layers] widths and matrices */
    const float *cosine, *sine;
    kvd_step_batch *batch;
    kvd_pages *pages;
    kvd_clock *clock;
    kvd_attention_choice attention; /* must be set before init */
    /*
     * Must be set before init. If true and the plan projects rows, the rows of a prompt attend to
     * each other at full width, with the worker's dense attention, and the weights must not be
     * folded: rows of V are projected when they are appended, and P V' of decode steps is projected
     * back. An iteration then holds either prompts or steps. init clears this field if the plan
     * projects nothing.
     */
    bool exact_prompts;
    /* [max_slices + 1] first row of each prompt of an iteration, if exact_prompts */
    size_t *offset;
    /*
     * [n_layers] layers of full width, if exact_prompts and there is a method. One of them at a
     * time has pages, with the page numbers of the pool, which hold an iteration's prompts at full
     * width. Their attention gives the log of the softmax denominators that the method reads, and
     * their Q is in q_prompts.
     */
    kvd_cache_layer *whole;
    void *whole_pool;
    kvd_dims widest; /* projections padded for KVD_ATTENTION_STOCK */
    /*
     * Projections that give the widths of heads. NULL: heads have full width, or the method sets
     * the widths.
     */
    const kvd_dims *dims;
    kvd_gpu_method *method; /* borrowed; NULL: no method beyond widths */
    kvd_device_memory memory;
    int hopper, n_sms;
    size_t max_len; /* number of tokens of the longest request */
    /*
     * [n_layers] number of each layer's work lists; layers of equal widths share them. With
     * method->heads, every layer has its own lists of decode steps.
     */
    int *work_of;
    int n_works;
    const kvd_attn_map **work_map; /* [n_works] */
    int n_step_works;              /* n_works, or n_layers with method->heads */
    void **workspace;              /* [n_step_works] workspaces of the decode kernel */
    void *q_steps, *q_prompts, *q_unused, *o;
    kvd_prefill_tile *tile;
    int32_t *first; /* [CTAs + 1] first work item of each CTA, for schedules without a queue */
    void *plan;
    int32_t *next;
    kvd_prefill_args prefill;
    int prepared;    /* number of the work lists whose tiles are in `tile`; -1: none */
    void *pool;      /* pages of all layers */
    size_t *pool_at; /* [n_layers] byte offset of a layer's first page */
    /* bytes per page number: sum over layers or, with one_layer, of the largest; plus `whole` */
    size_t page_bytes;
} kvd_paged_cache;

/*
 * Initialises everything but the pool. batch, pages and clock may still be empty; the plan must be
 * open. Fails naming what the kernels do not support: axes of the plan, types, heads or windows. *c
 * must be zeroed before, except for `attention` and `exact_prompts`. The caller releases it, after
 * a failure too.
 */
int kvd_paged_cache_init(kvd_paged_cache *c, kvd_gpu_worker *w, const kvd_plan *plan,
                         kvd_step_batch *batch, kvd_pages *pages, kvd_clock *clock, kvd_err *err);
/*
 * Allocates the pages of the pool, the method's memory for pages and slots, and the idle page. All
 * are filled with random numbers of variance 1. An iteration after tokens that were never computed
 * can therefore be timed, and reads as much as with real tokens.
 */
int kvd_paged_cache_make_pool(kvd_paged_cache *c, size_t pages, size_t slots, cudaStream_t stream,
                              kvd_err *err);
void kvd_paged_cache_release(kvd_paged_cache *c);
/* Returns the name of the attention kernels, for example "sm_90a kernels". */
const char *kvd_paged_cache_kernels(const kvd_paged_cache *c);

/*
 * Work lists of n decode steps. kvd_paged_cache_describe writes descriptions of all layers' lists,
 * kvd_paged_cache_works_bytes bytes, to be copied to the device. kvd_paged_cache_plan queues the
 * launch that makes the lists from these and from the lengths on the device.
 */
size_t kvd_paged_cache_works_bytes(const kvd_paged_cache *c);
int kvd_paged_cache_describe(const kvd_paged_cache *c, size_t n, void *works, kvd_err *err);
int kvd_paged_cache_plan(const kvd_paged_cache *c, size_t n, const void *works, cudaStream_t stream,
                         kvd_err *err);

/*
 * The two parts of the work on a layer. kvd_paged_cache_put stores its new rows in the pages and
 * ends the phases up to KVD_PHASE_APPEND, or lets the method do both. kvd_paged_cache_attend then
 * writes the attention output to out [steps, then tokens of prompts][o_pitch]. *open receives the
 * phase that the caller must end.
 */
int kvd_paged_cache_put(kvd_paged_cache *c, const kvd_paged_rows *r, kvd_err *err);
int kvd_paged_cache_attend(kvd_paged_cache *c, const kvd_paged_rows *r, void *out, kvd_phase *open,
                           kvd_err *err);
/* Returns the address of the pages of a layer, starting with page number 0. */
void *kvd_paged_cache_pool(const kvd_paged_cache *c, int layer);
/*
 * Stores the new rows of prompts in the pages of the layer, and the new rows of decode steps in the
 * pages `table` [steps][max_pages] of `pool`. Called by methods.
 */
int kvd_paged_cache_append(kvd_paged_cache *c, const kvd_paged_rows *r, void *pool,
                           const int32_t *table, kvd_err *err);
/*
 * Destination of the new rows of decode steps: in the pages `table` [steps][pitch] of `pool`, the
 * row is the last of the kv_len [steps] rows.
 */
typedef struct {
    void *pool;
    const int32_t *table, *kv_len; /* device */
    int32_t pitch;
} kvd_paged_place;
int kvd_paged_cache_append_at(kvd_paged_cache *c, const kvd_paged_rows *r,
                              const kvd_paged_place *at, kvd_err *err);
/* Returns the schedule that distributes the attention of decode steps, or of prompts, over CTAs. */
kvd_schedule kvd_paged_cache_schedule(const kvd_paged_cache *c, bool prompts);
/*
 * Returns the phase that precedes the work of the hook (KVD_PHASE_QKV or KVD_PHASE_ROPE). The hook
 * marks its end.
 */
kvd_phase kvd_paged_cache_behind(const kvd_paged_cache *c);
/*
 * Discards the work lists of the previous iteration's prompts. Must be called before the layers of
 * an iteration.
 */
void kvd_paged_cache_begin(kvd_paged_cache *c);

#endif
