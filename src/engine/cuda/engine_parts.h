/* Types and functions shared by the files of the CUDA engine. */
#ifndef KVD_ENGINE_CUDA_ENGINE_PARTS_H
#define KVD_ENGINE_CUDA_ENGINE_PARTS_H

#include "engine/engine.h"
#include "methods/cuda/paged_cache.h"

/* CUDA graph of the decode steps of n requests, and the phase that each of its marks ends. */
typedef struct {
    cudaGraphExec_t exec;
    size_t n_marks;
    uint8_t *phase;
} kvd_step_graph;

typedef struct {
    /*
     * Must be the first field. If several GPUs share the model, only the facts of this field are
     * used.
     */
    kvd_engine engine;
    kvd_engine_spec spec;
    int device;
    size_t left_before; /* free bytes of device memory before any allocation */
    kvd_gpu_worker w;
    kvd_paged_cache cache;
    kvd_step_batch batch;
    kvd_pages pages;
    kvd_clock clock;
    kvd_device_memory memory;
    /* [max_slices][d_model] residual of the rows whose logits are computed */
    float *rows;
    /*
     * [max_slices] largest logit of each row and its index in one number (kvd_largest of small.h)
     */
    float *logits;
    /* [max_slices] keys of the largest logits (small.h) */
    unsigned long long *key;
    /* Copy of `key` in pinned host memory. */
    unsigned long long *host_key;
    kvd_gpu_bad *host_bad; /* pinned */
    /* Descriptions of the work lists of `described` steps. */
    char *works;
    char *host_works; /* pinned */
    size_t described;
    kvd_step_graph *graph; /* [max_slices + 1] by number of steps */
    /* Work list descriptions of the graphs, in the order in which the graphs were made. */
    kvd_device_memory graph_memory;
    /* [max_slices] row of the logits of slice i, -1: none; of the latest iteration */
    int32_t *emit;
    size_t n_slices, n_emit;
    int failed;
} kvd_cuda_engine;

/* ---- life and iterations (engine_cuda.c); with several GPUs, of one of them ---- */

/*
 * Returns the engine of GPU `index` of the spec; no device memory is allocated yet. On failure
 * returns NULL and fills *err. The caller must free the engine with kvd_cuda_engine_free even if a
 * later call fails.
 */
kvd_cuda_engine *kvd_cuda_engine_new(const kvd_engine_spec *s, int index, kvd_err *err);
/*
 * Loads the weights and allocates lists and work memory. `sum` adds over the GPUs; NULL for one
 * GPU. Sets *pages to the number of pages that the spec requests or, if it requests none, to the
 * number that fits into the remaining memory.
 */
int kvd_cuda_engine_load(kvd_cuda_engine *e, const kvd_checkpoint *c, const kvd_plan *plan,
                         kvd_gpu_sum *sum, size_t *pages, kvd_err *err);
/*
 * Allocates the cache with this number of pages and captures and runs the graphs. Collective: all
 * GPUs must call it at once.
 */
int kvd_cuda_engine_ready(kvd_cuda_engine *e, size_t pages, kvd_err *err);
/*
 * kvd_cuda_engine_run runs an iteration on the device and waits for its end; all GPUs must call it
 * at once. kvd_cuda_engine_conclude then returns the iteration's tokens in `next` (may be NULL) and
 * fails if `bad`, the first bad row on any of the GPUs, names a row.
 */
int kvd_cuda_engine_run(kvd_cuda_engine *e, const kvd_iteration *it, const uint32_t *id,
                        kvd_err *err);
int kvd_cuda_engine_conclude(kvd_cuda_engine *e, const kvd_iteration *it, kvd_gpu_bad bad,
                             uint32_t *next, kvd_err *err);
int kvd_cuda_engine_logits(kvd_cuda_engine *e, size_t i, float *to, kvd_err *err);
void kvd_cuda_engine_free(kvd_cuda_engine *e);

/* Fail if the engine, or its variant for several GPUs, does not support the model, plan or spec. */
int kvd_cuda_engine_check(const kvd_config *c, const kvd_engine_spec *s, kvd_err *err);
int kvd_cuda_engine_check_several(const kvd_plan *plan, const kvd_engine_spec *s, kvd_err *err);

/*
 * Open an engine on several GPUs, with the contract of kvd_engine_open_cuda: tensor parallel
 * (engine_parallel.c), or if s->sequence is true, sequence parallel (engine_sequence.c).
 */
kvd_engine *kvd_engine_open_parallel(const kvd_checkpoint *c, const kvd_plan *plan,
                                     const kvd_engine_spec *s, kvd_err *err);
kvd_engine *kvd_engine_open_sequence(const kvd_checkpoint *c, const kvd_plan *plan,
                                     const kvd_engine_spec *s, kvd_err *err);

/* ---- what is queued (steps.c) ---- */

/*
 * Queues the steps of n requests, whose lists are on the device, from embedding to token: a launch
 * per product where few rows take part, the layers of the pass otherwise. works: descriptions of n
 * steps.
 */
int kvd_cuda_steps(kvd_cuda_engine *e, size_t n, const void *works, kvd_err *err);
/*
 * Queues the steps of n requests as a CUDA graph, which is captured at the first call with this n.
 */
int kvd_cuda_steps_replay(kvd_cuda_engine *e, size_t n, kvd_err *err);
/*
 * kvd_cuda_graphs_destroy destroys the graphs, which may be running, and does not wait.
 * kvd_cuda_graphs_release also frees the memory that the graphs read, and waits for the device.
 */
void kvd_cuda_graphs_destroy(kvd_cuda_engine *e);
void kvd_cuda_graphs_release(kvd_cuda_engine *e);
/*
 * Returns true if steps of n requests use the products of few_rows.h, which also compute norms,
 * activations and additions.
 */
int kvd_cuda_few(const kvd_cuda_engine *e, size_t n);
int kvd_cuda_has_head(const kvd_cuda_engine *e);
/*
 * Prepares the worker's pass for tokens with these ids and positions, and the marks of its phases.
 */
void kvd_cuda_layers_begin(kvd_cuda_engine *e, const uint32_t *id, const uint32_t *at);
/* Queues the layers of a batch of n tokens whose ids and positions are in device memory. */
int kvd_cuda_layers(kvd_cuda_engine *e, const uint32_t *id, const uint32_t *at, size_t n,
                    kvd_err *err);
/*
 * Queues the logits of n rows of x and the search for the largest of each row. Does nothing on a
 * GPU without the output head.
 */
int kvd_cuda_tokens(kvd_cuda_engine *e, float *x, size_t n, kvd_err *err);
/* Queues the copies to the host of the results of an iteration that emits n tokens. */
int kvd_cuda_fetch(kvd_cuda_engine *e, size_t n, kvd_err *err);

#endif
