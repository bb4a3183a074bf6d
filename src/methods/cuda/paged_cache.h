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
     * Must be set before init. If true and the plan cuts rows, the rows of a prompt attend to each
     * other whole, on the worker's dense attention, and the weights must not be folded: rows of V
     * are cut when they are appended, and P V' of steps is turned back. An iteration then holds
     * prompts or steps. init clears it if the plan cuts no rows.
     */
    bool exact_prompts;
    size_t *offset; /* [max_slices + 1] rows of the prompts of an iteration, if exact_prompts */
    /*
     * If exact_prompts and there is a method: [n_layers] layers of full width, and pages of one of
     * them with the page numbers of the pool, which hold the prompts of an iteration whole. Their
     * attention has the log-sum-exp that the method reads, and their Q is in q_prompts.
     */
    kvd_cache_layer *whole;
    void *whole_pool;
    kvd_dims widest; /* padded dims of KVD_ATTENTION_STOCK */
    /* dims that give the widths of heads; NULL: full width, or the method sets them */
    const kvd_dims *dims;
    kvd_gpu_method *method; /* borrowed; NULL: no method beyond widths */
    kvd_device_memory memory;
    int hopper, n_sms;
    size_t max_len; /* tokens of the longest request */
    /*
     * [n_layers] layers of equal widths share work lists: layer l uses the lists number work_of[l].
     * With method->heads, the lists of steps are those of one layer each.
     */
    int *work_of;
    int n_works;
    const kvd_attn_map **work_map; /* [n_works] */
    int n_step_works;              /* n_works, or n_layers with method->heads */
    void **workspace;              /* [n_step_works] workspaces of the decode kernel */
    void *q_steps, *q_prompts, *q_unused, *o;
    kvd_prefill_tile *tile;
    int32_t *first; /* [CTAs + 1] for schedules without a queue */
    void *plan;
    int32_t *next;
    kvd_prefill_args prefill;
    int prepared;      /* number of the work lists whose tiles are in `tile`; -1: none */
    void *pool;        /* pages of all layers */
    size_t *pool_at;   /* [n_layers] byte offset of a layer's first page */
    size_t page_bytes; /* bytes per page number: of all layers, or of the largest */
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
 * are filled with random numbers (variance 1). An iteration that follows tokens that were never
 * computed can therefore be timed, and reads as much as with real tokens.
 */
int kvd_paged_cache_make_pool(kvd_paged_cache *c, size_t pages, size_t slots, cudaStream_t stream,
                              kvd_err *err);
void kvd_paged_cache_release(kvd_paged_cache *c);
/* returns for example "sm_90a kernels" */
const char *kvd_paged_cache_kernels(const kvd_paged_cache *c);

/*
 * Work lists of n steps. kvd_paged_cache_describe writes descriptions of all layers' lists, of
 * kvd_paged_cache_works_bytes bytes, to be copied to the device. kvd_paged_cache_plan queues the
 * launch that makes the lists from these and from the lengths on the device.
 */
size_t kvd_paged_cache_works_bytes(const kvd_paged_cache *c);
int kvd_paged_cache_describe(const kvd_paged_cache *c, size_t n, void *works, kvd_err *err);
int kvd_paged_cache_plan(const kvd_paged_cache *c, size_t n, const void *works, cudaStream_t stream,
                         kvd_err *err);

/*
 * The two parts of a layer. kvd_paged_cache_put stores its new rows in the pages; for steps alone
 * it sets the marks of the clock. kvd_paged_cache_attend then writes attention to out [steps, then
 * tokens of prompts][o_pitch]. *open receives the phase that the caller must end.
 */
int kvd_paged_cache_put(kvd_paged_cache *c, const kvd_paged_rows *r, kvd_err *err);
int kvd_paged_cache_attend(kvd_paged_cache *c, const kvd_paged_rows *r, void *out, kvd_phase *open,
                           kvd_err *err);
/* Returns the pages of a layer, starting with page number 0. */
void *kvd_paged_cache_pool(const kvd_paged_cache *c, int layer);
/*
 * Stores the new rows of prompts in the pages of the layer, and the new rows of steps in the pages
 * `table` [steps][max_pages] of `pool`. For methods.
 */
int kvd_paged_cache_append(kvd_paged_cache *c, const kvd_paged_rows *r, void *pool,
                           const int32_t *table, kvd_err *err);
/*
 * A place for the rows of steps: the newest row is the last of kv_len [steps] in pages `table`
 * [steps][pitch] of `pool`.
 */
typedef struct {
    void *pool;
    const int32_t *table, *kv_len; /* device */
    int32_t pitch;
} kvd_paged_place;
int kvd_paged_cache_append_at(kvd_paged_cache *c, const kvd_paged_rows *r,
                              const kvd_paged_place *at, kvd_err *err);
/* Returns the schedule that distributes the work of steps, or of prompts. */
kvd_schedule kvd_paged_cache_schedule(const kvd_paged_cache *c, bool prompts);
/*
 * Returns the phase before the hook's work (KVD_PHASE_QKV or KVD_PHASE_ROPE), whose end the hook
 * marks.
 */
kvd_phase kvd_paged_cache_behind(const kvd_paged_cache *c);
/* Must be called before the layers of an iteration, because its prompts have new work lists. */
void kvd_paged_cache_begin(kvd_paged_cache *c);

#endif
