/*
 * The paged cache of an engine as an attention door: K and V of all requests stay in it between iterations. Heads have the widths of a
 * plan's dims, rounded up to multiples of 16; Q and K are rotated where they are appended, V comes cut out of its product (fold.h), and what
 * leaves is P V' at its width, which the folded output projection takes. bf16, the kernels of kernels/cuda.
 *
 * An iteration's steps go through the decode kernel, pieces of prompts through the prefill kernel, a launch each over rows of one batch.
 */
#ifndef KVD_SERVING_CUDA_CACHE_H
#define KVD_SERVING_CUDA_CACHE_H

#include "kernels/cuda/prefill.h"
#include "kernels/cuda/prefill_plan.h"
#include "methods/cuda/cache_parts.h"
#include "model/cuda/layer.h"
#include "serving/cuda/batch.h"
#include "serving/cuda/clock.h"
#include "serving/cuda/methods/method.h"
#include "serving/cuda/pages.h"
#include "serving/engine.h"

typedef struct kvd_serving_cache {
    kvd_gpu_attention door; /* first */
    kvd_gpu_worker *worker; /* borrowed */
    const kvd_config *config;
    const kvd_gpu_share *share;
    kvd_cache_layer *layer; /* [n_layers] widths and matrices                         */
    const float *cosine, *sine;
    kvd_step_batch *batch;
    kvd_pages *pages;
    kvd_clock *clock;
    kvd_attention_choice attention; /* set before init */
    kvd_dims widest;                /* of `stock`      */
    const kvd_dims *dims;           /* whose widths the heads have; NULL: whole, or the method's business */
    kvd_serving_method *method;     /* borrowed; NULL: none beyond widths    */
    kvd_device_memory memory;
    int hopper, n_sms;
    size_t max_len; /* tokens of the longest request */
    /* layers whose widths are equal share work lists: layer l has those of number work_of[l] */
    int *work_of;
    int n_works;
    const kvd_attn_map **work_map; /* [n_works] */
    void **workspace;              /* [n_works] of the decode kernel */
    void *q_steps, *q_prompts, *q_unused, *o;
    kvd_prefill_tile *tile;
    int32_t *first; /* [CTAs + 1] of schedules that are no queue */
    void *plan;
    int32_t *next;
    kvd_prefill_args prefill;
    int prepared;      /* number of the work lists that tile is of; -1: of none */
    void *pool;        /* all layers                                            */
    size_t *pool_at;   /* [n_layers] byte of its first page                     */
    size_t page_bytes; /* of a page number: of all layers, or of the largest    */
} kvd_serving_cache;

/*
 * Everything but the pool. batch, pages and clock may be empty still; the plan was opened. Fails naming what the kernels do not do: the
 * axes of the plan, types, heads, windows. Zeroed before but for `attention`; release it whatever came back.
 */
int kvd_serving_cache_init(kvd_serving_cache *c, kvd_gpu_worker *w, const kvd_plan *plan,
                           kvd_step_batch *batch, kvd_pages *pages, kvd_clock *clock, kvd_err *err);
/*
 * Pages for the pool, and of what the method stores for slots beside them, and the idle one, full of random numbers (variance 1): an iteration behind tokens that were never computed can be timed,
 * and reads what real ones would make it read.
 */
int kvd_serving_cache_make_pool(kvd_serving_cache *c, size_t pages, size_t slots, cudaStream_t stream,
                                kvd_err *err);
void kvd_serving_cache_release(kvd_serving_cache *c);
const char *kvd_serving_cache_kernels(const kvd_serving_cache *c); /* "sm_90a kernels" */

/*
 * Work lists of n steps: descriptions of all layers' lists, kvd_serving_cache_works_bytes of them, for the device; the launch that makes the
 * lists from the lengths there.
 */
size_t kvd_serving_cache_works_bytes(const kvd_serving_cache *c);
int kvd_serving_cache_describe(const kvd_serving_cache *c, size_t n, void *works, kvd_err *err);
int kvd_serving_cache_plan(const kvd_serving_cache *c, size_t n, const void *works, cudaStream_t stream,
                           kvd_err *err);

/* A layer: its new rows into the pages, of steps alone with the marks of the clock; then attention, out [steps, then tokens of prompts][o_pitch].
 * *open: the phase that the caller ends. */
int kvd_serving_cache_put(kvd_serving_cache *c, const kvd_serving_rows *r, kvd_err *err);
int kvd_serving_cache_attend(kvd_serving_cache *c, const kvd_serving_rows *r, void *out, kvd_phase *open,
                             kvd_err *err);
void *kvd_serving_cache_pool(const kvd_serving_cache *c, int layer); /* its pages, page number 0 first */
/* The new rows of prompts into the pages of the layer, those of steps into pages `table` [steps][max_pages] of `pool`, for methods. */
int kvd_serving_cache_append(kvd_serving_cache *c, const kvd_serving_rows *r, void *pool,
                             const int32_t *table, kvd_err *err);
/* The same, the newest row of steps the last of kv_len [steps] in pages `table` [steps][pitch]. */
typedef struct {
    void *pool;
    const int32_t *table, *kv_len; /* device */
    int32_t pitch;
} kvd_serving_place;
int kvd_serving_cache_append_at(kvd_serving_cache *c, const kvd_serving_rows *r, const kvd_serving_place *at,
                                kvd_err *err);
/* Who shares out the work of steps, or of prompts. */
kvd_schedule kvd_serving_cache_schedule(const kvd_serving_cache *c, bool prompts);
/* The phase in front of attention, whose end the door marks. */
kvd_phase kvd_serving_cache_behind(const kvd_serving_cache *c);
/* Before the layers of an iteration: its prompts have other work lists. */
void kvd_serving_cache_begin(kvd_serving_cache *c);

#endif
