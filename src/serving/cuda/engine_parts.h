/* What the files of the CUDA engine share. */
#ifndef KVD_SERVING_CUDA_ENGINE_PARTS_H
#define KVD_SERVING_CUDA_ENGINE_PARTS_H

#include "serving/cuda/cache.h"
#include "serving/engine.h"

/* Steps of n requests: what replays them, and which phase each of its marks ends. */
typedef struct {
    cudaGraphExec_t exec;
    size_t n_marks;
    uint8_t *phase;
} kvd_step_graph;

typedef struct {
    kvd_engine engine; /* first; of a GPU among several only its facts are used */
    kvd_engine_spec spec;
    int device;
    size_t left_before; /* bytes of device memory, before anything was allocated */
    kvd_gpu_worker w;
    kvd_serving_cache cache;
    kvd_step_batch batch;
    kvd_pages pages;
    kvd_clock clock;
    kvd_device_memory memory;
    float *rows;                  /* [max_slices][d_model] residual of rows whose logits are wanted */
    float *logits;                /* [max_slices][vocab_size]                                       */
    unsigned long long *key;      /* [max_slices] of the largest                                     */
    unsigned long long *host_key; /* pinned, the same                                               */
    kvd_gpu_bad *host_bad;        /* pinned                                                         */
    char *works;                  /* work lists' descriptions, of `described` steps                 */
    char *host_works;             /* pinned                                                         */
    size_t described;
    kvd_step_graph *graph;          /* [max_slices + 1] by number of steps */
    kvd_device_memory graph_memory; /* descriptions of their own, in the order in which they were made */
    int32_t *emit; /* [max_slices] row of the logits of slice i, -1: none; of the latest iteration */
    size_t n_slices, n_emit;
    int failed;
} kvd_cuda_engine;

/* ---- life and iterations (engine_cuda.c); with several GPUs, of one of them ---- */

/* On GPU `index` of the spec's; nothing is allocated on it yet. Free it with kvd_cuda_engine_free whatever comes back later. */
kvd_cuda_engine *kvd_cuda_engine_new(const kvd_engine_spec *s, int index, kvd_err *err);
/* Weights, lists, work memory; sum: over the GPUs, NULL for one. *pages: what is asked for, or goes into what is left. */
int kvd_cuda_engine_load(kvd_cuda_engine *e, const kvd_checkpoint *c, const kvd_plan *plan, kvd_gpu_sum *sum,
                         size_t *pages, kvd_err *err);
/* The cache, of so many pages, and the graphs, which run: on all GPUs at once. */
int kvd_cuda_engine_ready(kvd_cuda_engine *e, size_t pages, kvd_err *err);
/* An iteration to its end on the device, on all GPUs at once; then, with the first bad row on any of them, its tokens (next NULL: none). */
int kvd_cuda_engine_run(kvd_cuda_engine *e, const kvd_iteration *it, const uint32_t *id, kvd_err *err);
int kvd_cuda_engine_conclude(kvd_cuda_engine *e, const kvd_iteration *it, kvd_gpu_bad bad, uint32_t *next,
                             kvd_err *err);
int kvd_cuda_engine_logits(kvd_cuda_engine *e, size_t i, float *to, kvd_err *err);
void kvd_cuda_engine_free(kvd_cuda_engine *e);

/* What the engine does not do; the same of several GPUs. */
int kvd_cuda_engine_check(const kvd_config *c, const kvd_engine_spec *s, kvd_err *err);
int kvd_cuda_engine_check_several(const kvd_plan *plan, const kvd_engine_spec *s, kvd_err *err);

/* What runs on several GPUs, as kvd_engine_open_cuda: engine_parallel.c; and with s->sequence engine_sequence.c. */
kvd_engine *kvd_engine_open_parallel(const kvd_checkpoint *c, const kvd_plan *plan, const kvd_engine_spec *s,
                                     kvd_err *err);
kvd_engine *kvd_engine_open_sequence(const kvd_checkpoint *c, const kvd_plan *plan, const kvd_engine_spec *s,
                                     kvd_err *err);

/* ---- what is queued (steps.c) ---- */

/* Queues the steps of n requests, whose lists are on the device, from embedding to token: a launch per product where few rows take part, the
 * layers of the pass otherwise. works: descriptions of n steps. */
int kvd_cuda_steps(kvd_cuda_engine *e, size_t n, const void *works, kvd_err *err);
/* The same as a graph, made when it is first needed. */
int kvd_cuda_steps_replay(kvd_cuda_engine *e, size_t n, kvd_err *err);
/* Destroys them, which may be running, and does not wait; release frees what they read as well, and waits for the device. */
void kvd_cuda_graphs_destroy(kvd_cuda_engine *e);
void kvd_cuda_graphs_release(kvd_cuda_engine *e);
/* Whether steps of n requests run on the products of few_rows.h, which do norms, activation and additions as well. */
int kvd_cuda_few(const kvd_cuda_engine *e, size_t n);
int kvd_cuda_has_head(const kvd_cuda_engine *e);
/* The worker's pass goes over tokens with these ids and positions, and marks its parts. */
void kvd_cuda_layers_begin(kvd_cuda_engine *e, const uint32_t *id, const uint32_t *at);
/* Queues the layers of a batch of tokens whose ids and positions lie on the device. */
int kvd_cuda_layers(kvd_cuda_engine *e, const uint32_t *id, const uint32_t *at, size_t n, kvd_err *err);
/* Queues logits and the largest of them, of n rows of x; without a head nothing. */
int kvd_cuda_tokens(kvd_cuda_engine *e, float *x, size_t n, kvd_err *err);
/* Queues the copies of what the host wants to know of an iteration with n tokens out. */
int kvd_cuda_fetch(kvd_cuda_engine *e, size_t n, kvd_err *err);

#endif
