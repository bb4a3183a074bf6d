/*
 * Shared types and functions of the CUDA engine. Functions whose comments say so must be called on
 * all GPUs at the same time.
 */
#ifndef KVD_ENGINE_CUDA_ENGINE_PARTS_H
#define KVD_ENGINE_CUDA_ENGINE_PARTS_H

#include "engine/cuda/few_rows.h"
#include "engine/engine.h"
#include "methods/cuda/paged_cache.h"

/* One CPU thread per GPU of an engine. If one GPU fails, the sums over all GPUs are aborted. */
typedef int (*kvd_gpu_threads_task)(void *ctx, int gpu, kvd_err *err);

typedef struct kvd_gpu_threads kvd_gpu_threads;
/* Starts threads of n GPUs; `sum` is borrowed. On failure returns NULL and fills *err. */
kvd_gpu_threads *kvd_gpu_threads_new(int first_gpu, int n, kvd_gpu_sum *sum, kvd_err *err);
void kvd_gpu_threads_free(kvd_gpu_threads *h);
/* Runs a task on all GPUs. On failure *err names the failed GPU, and all later runs fail. */
int kvd_gpu_threads_run(kvd_gpu_threads *h, kvd_gpu_threads_task task, void *ctx, kvd_err *err);

/* CUDA graph of decode steps. phase[i] is the phase that ends at time stamp i. */
typedef struct {
    cudaGraphExec_t exec;
    size_t n_marks;
    uint8_t *phase;
} kvd_step_graph;

/* Weight matrices of one layer as 4-bit codes. */
typedef struct {
    kvd_few_codes qkv, o, gate_up, down;
} kvd_layer_codes;

typedef struct {
    /* Must be the first field. On each of several GPUs, only its member `facts` is used. */
    kvd_engine engine;
    kvd_engine_spec spec;
    int device;
    /* Number of times that the model reads a prompt. */
    size_t copies;
    /* Number of positions that a request can use, if prompts are read `copies` times. */
    size_t positions;
    /* Free device memory in bytes before allocation. */
    size_t left_before;
    kvd_gpu_worker w;
    kvd_paged_cache cache;
    kvd_step_batch batch;
    kvd_pages pages;
    kvd_pages near; /* pages of sliding-window layers; empty if none */
    /* Largest number of pages of `near` per request, and of further pages that prompts need. */
    size_t near_share, near_spare;
    /* Bytes of the pages that requests hold, if layers have a sliding window. */
    double held;
    kvd_clock clock;
    kvd_device_memory memory;
    /* Residual stream of tokens that get logits, [max_slices][d_model]. */
    float *rows;
    /* Logits of the tokens in `rows`, [max_slices][vocab_size]. */
    float *logits;
    /* Largest logit of each row and its index as one number, [max_slices]. */
    unsigned long long *key;
    /* Pinned host copy of `key`. */
    unsigned long long *host_key;
    /* Model stage and token row of the first non-finite activation, in pinned memory. */
    kvd_gpu_bad *host_bad;
    /* Data on the device by which kvd_paged_cache_plan divides decode steps. */
    char *works;
    char *host_works; /* pinned copy of `works` */
    size_t described;
    /* Weights of each layer, quantised to 4 bits, [n_layers], or NULL, and their total bytes. */
    kvd_layer_codes *codes;
    size_t codes_bytes;
    /* CUDA graphs, indexed by the number of decode steps, [max_slices + 1]. */
    kvd_step_graph *graph;
    kvd_device_memory graph_memory;
    /* Row of `logits` of each request, [max_slices]; -1 if the request emits no token. */
    int32_t *emit;
    size_t n_slices, n_emit;
    int failed;
} kvd_cuda_engine;

/*
 * Creates the engine of one GPU, number `index` of the GPUs in *s. The caller must free the engine
 * even if a later call fails. On failure returns NULL and fills *err.
 */
kvd_cuda_engine *kvd_cuda_engine_new(const kvd_engine_spec *s, int index, kvd_err *err);
/*
 * Loads the model's weights. `sum`, which adds partial results of several GPUs, is NULL on one GPU.
 * *pages receives the number of cache pages.
 */
int kvd_cuda_engine_load(kvd_cuda_engine *e, const kvd_checkpoint *c, const kvd_plan *plan,
                         kvd_gpu_sum *sum, size_t *pages, kvd_err *err);
/* Allocates the KV cache, and captures and runs each CUDA graph. All GPUs call it. */
int kvd_cuda_engine_ready(kvd_cuda_engine *e, size_t pages, kvd_err *err);
/*
 * Runs an iteration and waits for its end. All GPUs call it.
 *
 * kvd_cuda_engine_conclude writes the emitted tokens to `next` (may be NULL). If `bad` names a
 * non-finite row, it fails.
 */
int kvd_cuda_engine_run(kvd_cuda_engine *e, const kvd_iteration *it, const uint32_t *id,
                        kvd_err *err);
int kvd_cuda_engine_conclude(kvd_cuda_engine *e, const kvd_iteration *it, kvd_gpu_bad bad,
                             uint32_t *next, kvd_err *err);
/* Callbacks of kvd_engine, for a kvd_cuda_engine. */
int kvd_cuda_engine_logits(kvd_engine *self, size_t i, float *to, kvd_err *err);
/* Returns the bytes that the cache holds. Only valid if kvd_cuda_engine_counts_held is true. */
double kvd_cuda_engine_held(const kvd_engine *self);
bool kvd_cuda_engine_counts_held(const kvd_cuda_engine *e);
/*
 * Frees the cache pages of a running request (slot), and the data that the compression method holds
 * for it.
 */
void kvd_cuda_engine_drop(kvd_engine *self, size_t slot);
void kvd_cuda_engine_free(kvd_engine *self);

/* Fails if an iteration does not fit, or a token is not in the vocabulary. */
int kvd_cuda_check_iteration(const kvd_cuda_engine *e, const kvd_iteration *it, const uint32_t *id,
                             kvd_err *err);
/* Fails if the method must see whole prompts and `chunk` is true (prompts are split). */
int kvd_cuda_check_whole(const kvd_cuda_engine *e, bool chunk, kvd_err *err);
void kvd_cuda_list_slices(kvd_cuda_engine *e, const kvd_iteration *it, const uint32_t *id);
/* Returns the number of token rows of slice i in the batch, with copies of its prompt. */
size_t kvd_cuda_rows(const kvd_cuda_engine *e, const kvd_iteration *it, size_t i);
/* Returns how many tokens each KV head has cached before the tokens of slice *s. */
size_t kvd_cuda_entries(const kvd_cuda_engine *e, const kvd_slice *s);
/* Returns 1 if the iteration has only decode steps, each of which emits a token. */
int kvd_cuda_only_steps(const kvd_cuda_engine *e, const kvd_iteration *it);
/* Fails if `bad` names a row that is not finite; the message gives its request and token. */
int kvd_cuda_check_finite(const kvd_cuda_engine *e, const kvd_iteration *it, kvd_gpu_bad bad,
                          kvd_err *err);

/*
 * Fail if one GPU or (_several) several GPUs do not support the model, the compression methods of
 * the plan, or the engine's options *s.
 */
int kvd_cuda_engine_check(const kvd_config *c, const kvd_engine_spec *s, size_t positions,
                          kvd_err *err);
int kvd_cuda_engine_check_several(const kvd_plan *plan, const kvd_engine_spec *s, kvd_err *err);

/* Open an engine on several GPUs; errors are those of kvd_engine_open_cuda. */
kvd_engine *kvd_engine_open_parallel(const kvd_checkpoint *c, const kvd_plan *plan,
                                     const kvd_engine_spec *s, kvd_err *err);
kvd_engine *kvd_engine_open_sequence(const kvd_checkpoint *c, const kvd_plan *plan,
                                     const kvd_engine_spec *s, kvd_err *err);

/* Queues n decode steps with token ids and positions on the device; `works` divides their work. */
int kvd_cuda_steps(kvd_cuda_engine *e, size_t n, const void *works, kvd_err *err);
/* Replays the CUDA graph of n decode steps, captured at the first call. */
int kvd_cuda_steps_replay(kvd_cuda_engine *e, size_t n, kvd_err *err);
/* Free the graphs. kvd_cuda_graphs_release waits for the device first, ..._destroy does not. */
void kvd_cuda_graphs_destroy(void *engine);
void kvd_cuda_graphs_release(kvd_cuda_engine *e);
/* Quantises all layer matrices to 4-bit codes, which decode steps of few requests use. */
int kvd_cuda_codes_make(kvd_cuda_engine *e, kvd_err *err);
/* Returns the bytes of the bf16 matrices that the 4-bit codes replace. */
double kvd_cuda_codes_replace(kvd_cuda_engine *e);
/* Returns true if n decode steps can use the matrix products of few_rows.h. */
int kvd_cuda_few(const kvd_cuda_engine *e, size_t n);
int kvd_cuda_has_head(const kvd_cuda_engine *e);
/* Stores device pointers to token ids and positions; kvd_cuda_layers does this first. */
void kvd_cuda_layers_begin(kvd_cuda_engine *e, const uint32_t *id, const uint32_t *at);
int kvd_cuda_layers(kvd_cuda_engine *e, const uint32_t *id, const uint32_t *at, size_t n,
                    kvd_err *err);
/* Queues the logits of n rows of x, and the search for the largest logit of each row. */
int kvd_cuda_tokens(kvd_cuda_engine *e, float *x, size_t n, kvd_err *err);
/* Queues the copies of the results of an iteration to the host. */
int kvd_cuda_fetch(kvd_cuda_engine *e, size_t n, kvd_err *err);

#endif
