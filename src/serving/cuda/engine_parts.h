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
    kvd_engine engine; /* first */
    kvd_engine_spec spec;
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

/* Queues the steps of n requests, whose lists are on the device, from embedding to token: a launch per product where few rows take part, the
 * layers of the pass otherwise. works: descriptions of n steps. */
int kvd_cuda_steps(kvd_cuda_engine *e, size_t n, const void *works, kvd_err *err);
/* The same as a graph, made when it is first needed. */
int kvd_cuda_steps_replay(kvd_cuda_engine *e, size_t n, kvd_err *err);
void kvd_cuda_graphs_release(kvd_cuda_engine *e);
/* Whether steps of n requests run on the products of few_rows.h, which do norms, activation and additions as well. */
int kvd_cuda_few(const kvd_cuda_engine *e, size_t n);
/* Queues the layers of a batch of tokens whose ids and positions lie on the device. */
int kvd_cuda_layers(kvd_cuda_engine *e, const uint32_t *id, const uint32_t *at, size_t n, kvd_err *err);
/* Queues logits and the largest of them, of n rows of x. */
int kvd_cuda_tokens(kvd_cuda_engine *e, float *x, size_t n, kvd_err *err);
/* Queues the copies of what the host wants to know of an iteration with n tokens out. */
int kvd_cuda_fetch(kvd_cuda_engine *e, size_t n, kvd_err *err);

#endif
