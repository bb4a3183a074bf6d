/* Types and functions shared by the files of the CUDA engine. */
#ifndef KVD_ENGINE_CUDA_ENGINE_PARTS_H
#define KVD_ENGINE_CUDA_ENGINE_PARTS_H

#include "engine/cuda/few_rows.h"
#include "engine/engine.h"
#include "methods/cuda/paged_cache.h"

/*
 * CUDA graph of decode steps. When it runs, it records n_marks time stamps. phase[i] is the phase
 * that ends at time stamp i.
 */
typedef struct {
    cudaGraphExec_t exec;
    size_t n_marks;
    uint8_t *phase;
} kvd_step_graph;

/* Matrices of one layer as 4-bit codes. */
typedef struct {
    kvd_few_codes qkv, o, gate_up, down;
} kvd_layer_codes;

typedef struct {
    /* Must be the first field. In an engine on several GPUs, only the field `facts` is used. */
    kvd_engine engine;
    kvd_engine_spec spec;
    int device;
    /*
     * Number of times that the model reads a prompt (kvd_plan_copies). The engine appends the
     * copies to the prompt, at the positions after it; the caller's kvd_iteration does not contain
     * them.
     */
    size_t copies;
    /* Number of positions that the engine can use, those of copies of prompts included. */
    size_t positions;
    /* Free device memory in bytes before the engine allocates anything. */
    size_t left_before;
    kvd_gpu_worker w;
    kvd_paged_cache cache;
    kvd_step_batch batch;
    kvd_pages pages;
    kvd_pages near; /* pages of the layers with a sliding window; empty if there are none */
    /*
     * near_share: largest number of pages of `near` that a request holds between iterations.
     * near_spare: number of further pages that the prompts of an iteration need while it runs.
     */
    size_t near_share, near_spare;
    /*
     * Bytes of the pages that all requests hold after the latest iteration. Used only if the model
     * has a sliding window. Pages of a method are not included; kvd_gpu_method.held counts them.
     */
    double held;
    kvd_clock clock;
    kvd_device_memory memory;
    /* Residual stream of the tokens whose logits are computed, [max_slices][d_model]. */
    float *rows;
    /* Logits of the tokens in `rows`, [max_slices][vocab_size]. */
    float *logits;
    /* Largest logit of each row of `logits` and its index as one number (small.h), [max_slices]. */
    unsigned long long *key;
    /* Copy of `key` in pinned memory. */
    unsigned long long *host_key;
    /* Code (stage and row) of the first activation row that is not finite, in pinned memory. */
    kvd_gpu_bad *host_bad;
    /*
     * Device memory with the data from which kvd_paged_cache_plan divides the work of decode steps.
     * The number of these steps is `described`.
     */
    char *works;
    char *host_works; /* copy of `works` in pinned memory */
    size_t described;
    /* [n_layers] 4-bit codes of the layers, or NULL. codes_bytes: their size in device memory. */
    kvd_layer_codes *codes;
    size_t codes_bytes;
    /* CUDA graphs by number of decode steps, [max_slices + 1]. */
    kvd_step_graph *graph;
    /* Device memory that the CUDA graphs read. */
    kvd_device_memory graph_memory;
    /*
     * Row of `logits` for each request of the latest iteration, [max_slices]. -1: the request emits
     * no token.
     */
    int32_t *emit;
    size_t n_slices, n_emit;
    int failed;
} kvd_cuda_engine;

/*
 * Creates the part of an engine on the index-th GPU of the spec, without allocating device memory.
 * On failure returns NULL and fills *err. The caller must free the engine even if a later call
 * fails.
 */
kvd_cuda_engine *kvd_cuda_engine_new(const kvd_engine_spec *s, int index, kvd_err *err);
/*
 * Loads the weights and allocates work memory. `sum` adds up data of several GPUs; for one GPU it
 * must be NULL. *pages receives the number of cache pages: that of the spec, or, if the spec gives
 * none, as many as fit into the remaining memory.
 */
int kvd_cuda_engine_load(kvd_cuda_engine *e, const kvd_checkpoint *c, const kvd_plan *plan,
                         kvd_gpu_sum *sum, size_t *pages, kvd_err *err);
/*
 * Allocates the KV cache, captures the CUDA graphs and runs each once. Collective: all GPUs must
 * call it at the same time.
 */
int kvd_cuda_engine_ready(kvd_cuda_engine *e, size_t pages, kvd_err *err);
/*
 * kvd_cuda_engine_run runs an iteration and waits for its end. Collective: all GPUs must call it at
 * the same time.
 *
 * kvd_cuda_engine_conclude writes the emitted tokens to `next` (may be NULL). It fails if `bad`,
 * the smallest kvd_gpu_bad of all GPUs, is the position of a row that is not finite.
 */
int kvd_cuda_engine_run(kvd_cuda_engine *e, const kvd_iteration *it, const uint32_t *id,
                        kvd_err *err);
int kvd_cuda_engine_conclude(kvd_cuda_engine *e, const kvd_iteration *it, kvd_gpu_bad bad,
                             uint32_t *next, kvd_err *err);
int kvd_cuda_engine_logits(kvd_cuda_engine *e, size_t i, float *to, kvd_err *err);
/*
 * Returns the bytes that the cache held after the latest iteration. Requires
 * kvd_cuda_engine_counts_held.
 */
double kvd_cuda_engine_held(const kvd_cuda_engine *e);
/*
 * Returns true if the cache may hold less than all tokens, because a method drops some or the model
 * has a window.
 */
bool kvd_cuda_engine_counts_held(const kvd_cuda_engine *e);
/* Frees the pages that a slot has in all layers. */
void kvd_cuda_engine_give_back(kvd_cuda_engine *e, size_t slot);
/* Frees all that a slot has, also in the method. */
void kvd_cuda_engine_drop(kvd_cuda_engine *e, size_t slot);
void kvd_cuda_engine_free(kvd_cuda_engine *e);

/* Fails if an iteration does not fit the engine, or if a token is not in the vocabulary. */
int kvd_cuda_check_iteration(const kvd_cuda_engine *e, const kvd_iteration *it, const uint32_t *id,
                             kvd_err *err);
/* Fills the lists of e->batch on the host, and e->emit. */
void kvd_cuda_list_slices(kvd_cuda_engine *e, const kvd_iteration *it, const uint32_t *id);
/* Returns the number of rows of slice i in the batch, those of copies of a prompt included. */
size_t kvd_cuda_rows(const kvd_cuda_engine *e, const kvd_iteration *it, size_t i);
/* Returns the number of tokens that a KV head has cached before the slice's tokens. */
size_t kvd_cuda_entries(const kvd_cuda_engine *e, const kvd_slice *s);
/* Returns 1 if all slices are decode steps that emit a token. Requires kvd_cuda_list_slices. */
int kvd_cuda_only_steps(const kvd_cuda_engine *e, const kvd_iteration *it);
/*
 * Fails if `bad` is the code of a row of activations. Such a code means that a row has a value that
 * is not finite. The message names the stage, request and token.
 */
int kvd_cuda_check_finite(const kvd_cuda_engine *e, const kvd_iteration *it, kvd_gpu_bad bad,
                          kvd_err *err);

/*
 * kvd_cuda_engine_check fails if the engine does not support the model or the spec on one GPU.
 * kvd_cuda_engine_check_several fails if the engine, running tensor parallel on several GPUs, does
 * not support the plan or the spec. `positions` is kvd_cuda_engine.positions.
 */
int kvd_cuda_engine_check(const kvd_config *c, const kvd_engine_spec *s, size_t positions,
                          kvd_err *err);
int kvd_cuda_engine_check_several(const kvd_plan *plan, const kvd_engine_spec *s, kvd_err *err);

/*
 * These functions open an engine on several GPUs: tensor parallel or, if s->sequence is true,
 * sequence parallel. Arguments, result and errors are those of kvd_engine_open_cuda
 * (engine/engine.h).
 */
kvd_engine *kvd_engine_open_parallel(const kvd_checkpoint *c, const kvd_plan *plan,
                                     const kvd_engine_spec *s, kvd_err *err);
kvd_engine *kvd_engine_open_sequence(const kvd_checkpoint *c, const kvd_plan *plan,
                                     const kvd_engine_spec *s, kvd_err *err);

/*
 * Queues n decode steps, from embedding to emitted tokens. Their input must be on the device
 * already. `works` has been filled by kvd_paged_cache_describe.
 */
int kvd_cuda_steps(kvd_cuda_engine *e, size_t n, const void *works, kvd_err *err);
/* Replays the CUDA graph of n decode steps. The first call with this n captures the graph. */
int kvd_cuda_steps_replay(kvd_cuda_engine *e, size_t n, kvd_err *err);
/*
 * kvd_cuda_graphs_destroy does not wait for a running CUDA graph. kvd_cuda_graphs_release waits for
 * the device and also frees the memory that the graphs read.
 */
void kvd_cuda_graphs_destroy(kvd_cuda_engine *e);
void kvd_cuda_graphs_release(kvd_cuda_engine *e);
/*
 * Quantises the matrices of all layers to 4-bit codes. Decode steps of few requests, which use the
 * matrix products of few_rows.h, then read the codes. All other iterations restore the bf16
 * matrices of a layer from the codes before they use them. Fails if the model has matrices that are
 * not quantised.
 */
int kvd_cuda_codes_make(kvd_cuda_engine *e, kvd_err *err);
/* Returns the bytes of the bf16 matrices that the codes replace. */
double kvd_cuda_codes_replace(kvd_cuda_engine *e);
/* Returns true if n decode steps are few enough to use the matrix products of few_rows.h. */
int kvd_cuda_few(const kvd_cuda_engine *e, size_t n);
int kvd_cuda_has_head(const kvd_cuda_engine *e);
/*
 * kvd_cuda_layers runs all layers of the model on n tokens. kvd_cuda_layers_begin sets the input of
 * the layers: token ids `id` and positions `at`, both in device memory, whose pointers it stores.
 * kvd_cuda_layers calls kvd_cuda_layers_begin itself.
 */
void kvd_cuda_layers_begin(kvd_cuda_engine *e, const uint32_t *id, const uint32_t *at);
int kvd_cuda_layers(kvd_cuda_engine *e, const uint32_t *id, const uint32_t *at, size_t n,
                    kvd_err *err);
/*
 * Queues the logits of n rows of the residual stream x and the search for the largest logit of each
 * row. Does nothing on a GPU without the output head.
 */
int kvd_cuda_tokens(kvd_cuda_engine *e, float *x, size_t n, kvd_err *err);
/*
 * Queues the copies of an iteration's results to the host. The results include, for each of n
 * emitted tokens, the key that packs its largest logit and its id.
 */
int kvd_cuda_fetch(kvd_cuda_engine *e, size_t n, kvd_err *err);

#endif
