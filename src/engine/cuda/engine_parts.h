/* Parts of the CUDA engine. Functions marked "All GPUs call it" must be called on all at once. */
#ifndef KVD_ENGINE_CUDA_ENGINE_PARTS_H
#define KVD_ENGINE_CUDA_ENGINE_PARTS_H

#include "engine/cuda/few_rows.h"
#include "engine/engine.h"
#include "methods/cuda/paged_cache.h"

/* Task of one GPU. If one GPU fails, sums over all are aborted. */
typedef int (*kvd_gpu_threads_task)(void *ctx, int gpu, kvd_err *err);

typedef struct kvd_gpu_threads kvd_gpu_threads;
/* Starts one CPU thread per GPU. Borrows `sum`. */
kvd_gpu_threads *kvd_gpu_threads_new(int first_gpu, int n, kvd_gpu_sum *sum, kvd_err *err);
void kvd_gpu_threads_free(kvd_gpu_threads *h);
/* Runs a task on all GPUs. On failure *err names the failed GPU, and all later runs fail. */
int kvd_gpu_threads_run(kvd_gpu_threads *h, kvd_gpu_threads_task task, void *ctx, kvd_err *err);

/* CUDA graph of a decode step of several requests. phase[i] ends at time stamp i. */
typedef struct {
    cudaGraphExec_t exec;
    size_t n_marks;
    uint8_t *phase;
} kvd_step_graph;

/* A layer's weight matrices in 4 bits. */
typedef struct {
    kvd_few_codes qkv, o, gate_up, down;
} kvd_layer_codes;

typedef struct {
    /* must be first; with several GPUs, only its member `facts` is used */
    kvd_engine engine;
    kvd_engine_spec spec;
    int device;
    /* number of times that the model reads a prompt */
    size_t copies;
    /* number of positions that a request can use */
    size_t positions;
    /* free bytes of device memory before the engine allocates its own */
    size_t left_before;
    kvd_gpu_worker w;
    kvd_paged_cache cache;
    kvd_step_batch batch;
    kvd_pages pages;
    kvd_pages near; /* pages of sliding-window layers; empty if none */
    /* pages of layers with a window: most that a request keeps, most that an iteration adds */
    size_t near_share, near_spare;
    /* bytes of cache pages in use; counted only if the model has layers with a window */
    double held;
    kvd_clock clock;
    kvd_device_memory memory;
    /* [max_slices][d_model] residual stream of tokens that get logits */
    float *rows;
    /* [max_slices][vocab_size] logits of the tokens in `rows` */
    float *logits;
    /* [max_slices] largest logit and its index as one number */
    unsigned long long *key;
    /* [max_slices] pinned host copy of `key`: largest logit and its index */
    unsigned long long *host_key;
    /* first non-finite activation, in pinned memory */
    kvd_gpu_bad *host_bad;
    /* lists on the device that divide the attention of decode steps among CTAs */
    char *works;
    char *host_works; /* pinned copy of `works` */
    size_t described;
    /* [n_layers] weights in 4 bits, or NULL, and their bytes */
    kvd_layer_codes *codes;
    size_t codes_bytes;
    /* [max_slices + 1] graph[n] is the CUDA graph that decodes one token of each of n requests */
    kvd_step_graph *graph;
    kvd_device_memory graph_memory;
    /* [max_slices] row of `logits` of each request; -1: it emits no token */
    int32_t *emit;
    size_t n_slices, n_emit;
    int failed;
} kvd_cuda_engine;

/* Creates the engine for GPU `index` of those in *s. Free it even if a later call on it fails. */
kvd_cuda_engine *kvd_cuda_engine_new(const kvd_engine_spec *s, int index, kvd_err *err);
/* Loads weights. *pages: number of cache pages. `sum` adds layer outputs of GPUs, or is NULL. */
int kvd_cuda_engine_load(kvd_cuda_engine *e, const kvd_checkpoint *c, const kvd_plan *plan,
                         kvd_gpu_sum *sum, size_t *pages, kvd_err *err);
/* Allocates the cache, captures and runs CUDA graphs. All GPUs call it. */
int kvd_cuda_engine_ready(kvd_cuda_engine *e, size_t pages, kvd_err *err);
/* Runs an iteration and waits for its end. All GPUs call it.
 *
 * kvd_cuda_engine_conclude writes emitted tokens to `next`, or fails if `bad` reports a NaN or
 * inf. */
int kvd_cuda_engine_run(kvd_cuda_engine *e, const kvd_iteration *it, const uint32_t *id,
                        kvd_err *err);
int kvd_cuda_engine_conclude(kvd_cuda_engine *e, const kvd_iteration *it, kvd_gpu_bad bad,
                             uint32_t *next, kvd_err *err);
/* Implementations of functions of kvd_engine. */
int kvd_cuda_engine_logits(kvd_engine *self, size_t i, float *to, kvd_err *err);
/* Returns how many bytes the cache holds, if kvd_cuda_engine_counts_held is true. */
double kvd_cuda_engine_held(const kvd_engine *self);
bool kvd_cuda_engine_counts_held(const kvd_cuda_engine *e);
/* Frees the pages of a running request (slot). */
void kvd_cuda_engine_drop(kvd_engine *self, size_t slot);
void kvd_cuda_engine_free(kvd_engine *self);

/* Fails if an iteration exceeds the engine's limits, or if a token is not in the vocabulary. */
int kvd_cuda_check_iteration(const kvd_cuda_engine *e, const kvd_iteration *it, const uint32_t *id,
                             kvd_err *err);
/* Fails if prompts are split (`chunk`) and the method must see whole ones. */
int kvd_cuda_check_whole(const kvd_cuda_engine *e, bool chunk, kvd_err *err);
void kvd_cuda_list_slices(kvd_cuda_engine *e, const kvd_iteration *it, const uint32_t *id);
/* Returns how many rows of the batch request i has: its tokens, times e->copies for a prompt. */
size_t kvd_cuda_rows(const kvd_cuda_engine *e, const kvd_iteration *it, size_t i);
/* Returns how many tokens each KV head has cached before the new tokens *s of a request. */
size_t kvd_cuda_entries(const kvd_cuda_engine *e, const kvd_slice *s);
/* Returns 1 if every request of the iteration is a decode step that emits a token. */
int kvd_cuda_only_steps(const kvd_cuda_engine *e, const kvd_iteration *it);
/* Fails if `bad` names a non-finite value. The message names request and token. */
int kvd_cuda_check_finite(const kvd_cuda_engine *e, const kvd_iteration *it, kvd_gpu_bad bad,
                          kvd_err *err);

/* Fail if one or several GPUs do not support the model, methods or options. */
int kvd_cuda_engine_check(const kvd_config *c, const kvd_engine_spec *s, size_t positions,
                          kvd_err *err);
int kvd_cuda_engine_check_several(const kvd_plan *plan, const kvd_engine_spec *s, kvd_err *err);

/* Open an engine on several GPUs. */
kvd_engine *kvd_engine_open_parallel(const kvd_checkpoint *c, const kvd_plan *plan,
                                     const kvd_engine_spec *s, kvd_err *err);
kvd_engine *kvd_engine_open_sequence(const kvd_checkpoint *c, const kvd_plan *plan,
                                     const kvd_engine_spec *s, kvd_err *err);

/* Queues one decode step of n requests. `works` divides their attention among CTAs. */
int kvd_cuda_steps(kvd_cuda_engine *e, size_t n, const void *works, kvd_err *err);
/* Replays the CUDA graph of a decode step of n requests, captured at the first call. */
int kvd_cuda_steps_replay(kvd_cuda_engine *e, size_t n, kvd_err *err);
/* Free the graphs. kvd_cuda_graphs_release first waits for the device. */
void kvd_cuda_graphs_destroy(void *engine);
void kvd_cuda_graphs_release(kvd_cuda_engine *e);
/* Quantises the weight matrices of all layers to 4 bits, for decode steps of few requests. */
int kvd_cuda_codes_make(kvd_cuda_engine *e, kvd_err *err);
/* Returns the size in bytes of the bf16 matrices that 4-bit weights replace. */
double kvd_cuda_codes_replace(kvd_cuda_engine *e);
/* Returns true if the kernels of few_rows.h can decode n requests at once. */
int kvd_cuda_few(const kvd_cuda_engine *e, size_t n);
int kvd_cuda_has_head(const kvd_cuda_engine *e);
/* Stores device pointers to token ids and positions. */
void kvd_cuda_layers_begin(kvd_cuda_engine *e, const uint32_t *id, const uint32_t *at);
int kvd_cuda_layers(kvd_cuda_engine *e, const uint32_t *id, const uint32_t *at, size_t n,
                    kvd_err *err);
/* Queues the logits of n tokens x, and their largest elements. */
int kvd_cuda_tokens(kvd_cuda_engine *e, float *x, size_t n, kvd_err *err);
/* Queues copies to the host: n next tokens, the first non-finite value, and phase times. */
int kvd_cuda_fetch(kvd_cuda_engine *e, size_t n, kvd_err *err);

#endif
