/* Internal types and functions of the CUDA engine, which its source files share. */
#ifndef KVD_ENGINE_CUDA_ENGINE_PARTS_H
#define KVD_ENGINE_CUDA_ENGINE_PARTS_H

#include "engine/cuda/few_rows.h"
#include "engine/engine.h"
#include "methods/cuda/paged_cache.h"

/* Function that a CPU thread runs for one GPU. If it fails for one GPU, sums over all GPUs are
 * aborted, so that the other GPUs do not wait for them. */
typedef int (*kvd_gpu_threads_task)(void *ctx, int gpu, kvd_err *err);

typedef struct kvd_gpu_threads kvd_gpu_threads;
/* Starts CPU threads that run tasks for n GPUs, from number first_gpu on. `sum` must stay valid
 * until kvd_gpu_threads_free. */
kvd_gpu_threads *kvd_gpu_threads_new(int first_gpu, int n, kvd_gpu_sum *sum, kvd_err *err);
void kvd_gpu_threads_free(kvd_gpu_threads *h);
/* Runs a task for all GPUs, and waits for its end. On failure, *err names the GPU that failed, and
 * all later calls fail too. */
int kvd_gpu_threads_run(kvd_gpu_threads *h, kvd_gpu_threads_task task, void *ctx, kvd_err *err);

/* CUDA graph of a decode step for a fixed number of requests. phase[i] is the phase that ends at
 * the i-th time stamp of the graph. */
typedef struct {
    cudaGraphExec_t exec;
    size_t n_marks;
    uint8_t *phase;
} kvd_step_graph;

/* The weight matrices of one layer, quantised to 4 bits. */
typedef struct {
    kvd_few_codes qkv, o, gate_up, down;
} kvd_layer_codes;

typedef struct {
    /* must be the first field, because pointers to it are cast to pointers to the whole struct */
    kvd_engine engine;
    kvd_engine_spec spec;
    int device;
    /* how often the model reads each prompt: 2 for methods that need two passes, else 1 */
    size_t copies;
    /* largest number of positions of a request; a prompt that is read twice counts twice */
    size_t positions;
    /* free bytes of GPU memory before the engine allocates memory */
    size_t left_before;
    kvd_gpu_worker w;
    kvd_paged_cache cache;
    kvd_step_batch batch;
    kvd_pages pages;
    kvd_pages near; /* pages of sliding-window layers; empty if none */
    /* Pages of layers with a sliding window: largest number that a request keeps between
     * iterations, and largest number that the new tokens of an iteration add. */
    size_t near_share, near_spare;
    /* bytes of cache pages in use; only counted if layers have a sliding window */
    double held;
    kvd_clock clock;
    kvd_device_memory memory;
    /* [max_slices][d_model] residual stream of the last token of each request that emits a token */
    float *rows;
    /* [max_slices][vocab_size] logits of the tokens whose residual streams are in `rows` */
    float *logits;
    /* [max_slices] for each request that emits a token: its largest logit and the index of that
     * logit, packed into one number */
    unsigned long long *key;
    /* [max_slices] copy, in pinned CPU memory, of the array `key` with the requests' largest
     * logits */
    unsigned long long *host_key;
    /* first NaN or infinity that the GPU found in an activation, copied to pinned CPU memory */
    kvd_gpu_bad *host_bad;
    /* lists in GPU memory that say which CTA computes which part of a decode step's attention */
    char *works;
    char *host_works; /* pinned copy of `works` */
    size_t described;
    /* [n_layers] each layer's weight matrices quantised to 4 bits; NULL if weights are bf16 */
    kvd_layer_codes *codes;
    size_t codes_bytes;
    /* graph[n] is the CUDA graph of a decode step of n requests, for n from 1 to max_slices */
    kvd_step_graph *graph;
    kvd_device_memory graph_memory;
    /* [max_slices] for each request of the iteration, its row of `logits`; -1 if it emits no
     * token */
    int32_t *emit;
    size_t n_slices, n_emit;
    int failed;
} kvd_cuda_engine;

/* Creates the engine for GPU number `index` of the GPUs in *s. The caller frees it with
 * kvd_cuda_engine_free, also if a later call fails. */
kvd_cuda_engine *kvd_cuda_engine_new(const kvd_engine_spec *s, int index, kvd_err *err);
/* Loads the weights. *pages receives the number of cache pages that fit. `sum` sums layer outputs
 * over several GPUs; it is NULL for one GPU. */
int kvd_cuda_engine_load(kvd_cuda_engine *e, const kvd_checkpoint *c, const kvd_plan *plan,
                         kvd_gpu_sum *sum, size_t *pages, kvd_err *err);
/* Allocates the cache, and captures the CUDA graphs of decode steps. The threads of all GPUs must
 * call it at the same time, because the GPUs wait for each other. */
int kvd_cuda_engine_ready(kvd_cuda_engine *e, size_t pages, kvd_err *err);
/* Computes an iteration, and waits for the GPU. The thread of each GPU must call it. */
int kvd_cuda_engine_run(kvd_cuda_engine *e, const kvd_iteration *it, const uint32_t *id,
                        kvd_err *err);
/* Must be called after kvd_cuda_engine_run. Writes the next token of each request to `next`. Fails
 * if `bad` says that the GPU found a NaN or infinity. */
int kvd_cuda_engine_conclude(kvd_cuda_engine *e, const kvd_iteration *it, kvd_gpu_bad bad,
                             uint32_t *next, kvd_err *err);
/* Functions that kvd_engine points to, for an engine on one GPU. */
int kvd_cuda_engine_logits(kvd_engine *self, size_t i, float *to, kvd_err *err);
/* Returns how many bytes of K and V the cache holds. Valid only if kvd_cuda_engine_counts_held
 * returns true. */
double kvd_cuda_engine_held(const kvd_engine *self);
bool kvd_cuda_engine_counts_held(const kvd_cuda_engine *e);
/* Frees the cache pages of the running request in `slot`. */
void kvd_cuda_engine_drop(kvd_engine *self, size_t slot);
void kvd_cuda_engine_free(kvd_engine *self);

/* Fails if an iteration exceeds the limits of the engine, or contains a token id outside the
 * vocabulary. */
int kvd_cuda_check_iteration(const kvd_cuda_engine *e, const kvd_iteration *it, const uint32_t *id,
                             kvd_err *err);
/* Fails if prompts may be split over iterations (`chunk`), but the method can compress only whole
 * prompts. */
int kvd_cuda_check_whole(const kvd_cuda_engine *e, bool chunk, kvd_err *err);
void kvd_cuda_list_slices(kvd_cuda_engine *e, const kvd_iteration *it, const uint32_t *id);
/* Returns how many rows (tokens) the i-th request has in the batch: 1 in a decode step, else the
 * number of its prompt tokens. If the model reads each prompt twice, these tokens count twice. */
size_t kvd_cuda_rows(const kvd_cuda_engine *e, const kvd_iteration *it, size_t i);
/* Returns how many tokens of a request each KV head has in the cache before the new tokens of
 * *s. */
size_t kvd_cuda_entries(const kvd_cuda_engine *e, const kvd_slice *s);
/* Returns 1 if all requests of the iteration are decode steps that emit a token, else 0. */
int kvd_cuda_only_steps(const kvd_cuda_engine *e, const kvd_iteration *it);
/* Fails if `bad` reports a NaN or infinity in an activation. The message names the request and the
 * token. */
int kvd_cuda_check_finite(const kvd_cuda_engine *e, const kvd_iteration *it, kvd_gpu_bad bad,
                          kvd_err *err);

/* Fails if the CUDA engine does not support the number type, the batch limits or the length of
 * requests. */
int kvd_cuda_engine_check(const kvd_config *c, const kvd_engine_spec *s, size_t positions,
                          kvd_err *err);
/* Fails if the requested GPUs do not exist, or if the compression method does not run on several
 * GPUs. */
int kvd_cuda_engine_check_several(const kvd_plan *plan, const kvd_engine_spec *s, kvd_err *err);

/* Open an engine on several GPUs, which divide heads and hidden units (kvd_engine_open_parallel) or
 * the tokens of a prompt (kvd_engine_open_sequence). */
kvd_engine *kvd_engine_open_parallel(const kvd_checkpoint *c, const kvd_plan *plan,
                                     const kvd_engine_spec *s, kvd_err *err);
kvd_engine *kvd_engine_open_sequence(const kvd_checkpoint *c, const kvd_plan *plan,
                                     const kvd_engine_spec *s, kvd_err *err);

/* Queues a decode step of n requests on the GPU. `works` says which CTA computes which part of
 * their attention. */
int kvd_cuda_steps(kvd_cuda_engine *e, size_t n, const void *works, kvd_err *err);
/* Runs the CUDA graph of a decode step of n requests. The first call for each n captures the
 * graph. */
int kvd_cuda_steps_replay(kvd_cuda_engine *e, size_t n, kvd_err *err);
/* Destroys all CUDA graphs, but keeps the memory that they used. */
void kvd_cuda_graphs_destroy(void *engine);
/* Destroys all CUDA graphs, and frees the memory that they used. */
void kvd_cuda_graphs_release(kvd_cuda_engine *e);
/* Quantises the weight matrices of all layers to 4 bits. Decode steps of few requests multiply by
 * the 4-bit codes. */
int kvd_cuda_codes_make(kvd_cuda_engine *e, kvd_err *err);
/* Returns the size in bytes of the bf16 weight matrices that decode steps replace by 4-bit
 * copies. */
double kvd_cuda_codes_replace(kvd_cuda_engine *e);
/* Returns true if the kernels of few_rows.h, for products with at most 8 rows, can run a decode
 * step of n requests of this model. */
int kvd_cuda_few(const kvd_cuda_engine *e, size_t n);
int kvd_cuda_has_head(const kvd_cuda_engine *e);
/* Sets where the layers find the token ids `id` and the positions `at`, which are in GPU memory. */
void kvd_cuda_layers_begin(kvd_cuda_engine *e, const uint32_t *id, const uint32_t *at);
int kvd_cuda_layers(kvd_cuda_engine *e, const uint32_t *id, const uint32_t *at, size_t n,
                    kvd_err *err);
/* Queues the computation of the logits of n tokens with residual streams x, and of the largest
 * logit of each. */
int kvd_cuda_tokens(kvd_cuda_engine *e, float *x, size_t n, kvd_err *err);
/* Queues copies from the GPU to the CPU: the next token of n requests, the first NaN or infinity in
 * an activation, and the times of phases. */
int kvd_cuda_fetch(kvd_cuda_engine *e, size_t n, kvd_err *err);

#endif
