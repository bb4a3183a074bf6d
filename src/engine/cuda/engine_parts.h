/* Types and functions shared by the files of the CUDA engine. */
#ifndef KVD_ENGINE_CUDA_ENGINE_PARTS_H
#define KVD_ENGINE_CUDA_ENGINE_PARTS_H

#include "engine/engine.h"
#include "methods/cuda/paged_cache.h"

/*
 * CUDA graph of the decode steps of n requests. Each run of the graph records n_marks time stamps,
 * one at the end of each phase of the iteration; phase[i] is the phase that ends at time stamp i.
 */
typedef struct {
    cudaGraphExec_t exec;
    size_t n_marks;
    uint8_t *phase;
} kvd_step_graph;

typedef struct {
    /*
     * Interface of the engine, which must be the first field. If several GPUs share the model, only
     * its `facts` are used.
     */
    kvd_engine engine;
    kvd_engine_spec spec;
    int device;
    /* Free bytes of device memory before the engine allocates anything. */
    size_t left_before;
    kvd_gpu_worker w;
    kvd_paged_cache cache;
    kvd_step_batch batch;
    kvd_pages pages;
    kvd_pages near; /* pages of the layers with a sliding window; empty if the model has none */
    /*
     * Largest number of pages of `near` that a request holds between iterations, and number of
     * further pages that prompts may take while they run.
     */
    size_t near_share, near_spare;
    /* If the model has a window: bytes in the pages of all slots after the latest iteration. */
    double held;
    kvd_clock clock;
    kvd_device_memory memory;
    /* Residual stream of the tokens whose logits are computed, [max_slices][d_model]. */
    float *rows;
    /* Logits of the tokens that end a prompt or a decode step, [max_slices][vocab_size]. */
    float *logits;
    /*
     * Largest logit of each row of `logits` together with its index, as one number (small.h),
     * [max_slices].
     */
    unsigned long long *key;
    /* Copy of `key` in pinned host memory. */
    unsigned long long *host_key;
    /*
     * Copy in pinned host memory of the code (stage and row number) of the first activation row
     * that is not finite.
     */
    kvd_gpu_bad *host_bad;
    /*
     * Arguments, in device memory, of the kernel that divides the attention of decode steps among
     * CTAs (kvd_paged_cache_plan). They are those for `described` decode steps; 0 if none were
     * copied yet.
     */
    char *works;
    char *host_works; /* copy of `works` in pinned host memory */
    size_t described;
    /* CUDA graphs by number of decode steps, [max_slices + 1]. */
    kvd_step_graph *graph;
    /*
     * Device memory that the CUDA graphs read: for each graph, in the order of capture, the
     * arguments of the kernel that divides the attention of its decode steps among CTAs.
     */
    kvd_device_memory graph_memory;
    /*
     * Row of `logits` for each request of the latest iteration, [max_slices]. -1: the request emits
     * no token.
     */
    int32_t *emit;
    size_t n_slices, n_emit;
    int failed;
} kvd_cuda_engine;

/* ---- engine of one GPU, also as one of several (engine_cuda.c) ---- */

/*
 * Creates the engine of GPU number `index` among those of the spec. It does not yet allocate device
 * memory. On failure returns NULL and fills *err. The caller must free the engine with
 * kvd_cuda_engine_free even if a later call fails.
 */
kvd_cuda_engine *kvd_cuda_engine_new(const kvd_engine_spec *s, int index, kvd_err *err);
/*
 * Loads the model's weights and allocates lists and work memory. `sum` adds vectors over the GPUs;
 * NULL for one GPU. Sets *pages to the number of cache pages that the spec requests or, if it
 * requests none, to the number that fits into the remaining memory.
 */
int kvd_cuda_engine_load(kvd_cuda_engine *e, const kvd_checkpoint *c, const kvd_plan *plan,
                         kvd_gpu_sum *sum, size_t *pages, kvd_err *err);
/*
 * Allocates the KV cache with this number of pages, then captures the CUDA graphs and runs each
 * once. Collective: all GPUs must call it at the same time.
 */
int kvd_cuda_engine_ready(kvd_cuda_engine *e, size_t pages, kvd_err *err);
/*
 * kvd_cuda_engine_run runs an iteration on the device and waits for its end. It is collective: all
 * GPUs must call it at the same time. kvd_cuda_engine_conclude then writes the tokens that the
 * iteration emits to `next` (may be NULL). It fails if `bad`, the code (stage and row number) of
 * the first row on any of the GPUs that is not finite, names a row.
 */
int kvd_cuda_engine_run(kvd_cuda_engine *e, const kvd_iteration *it, const uint32_t *id,
                        kvd_err *err);
int kvd_cuda_engine_conclude(kvd_cuda_engine *e, const kvd_iteration *it, kvd_gpu_bad bad,
                             uint32_t *next, kvd_err *err);
int kvd_cuda_engine_logits(kvd_cuda_engine *e, size_t i, float *to, kvd_err *err);
/*
 * Returns the number of bytes that the cache held at the end of the latest iteration. May be called
 * only if kvd_cuda_engine_counts_held returns true.
 */
double kvd_cuda_engine_held(const kvd_cuda_engine *e);
/*
 * Returns true if the engine counts the bytes that the cache holds, because it may hold less than
 * all tokens: a method drops some, or the model has a window.
 */
bool kvd_cuda_engine_counts_held(const kvd_cuda_engine *e);
/* Frees the pages that a slot has in all layers. */
void kvd_cuda_engine_give_back(kvd_cuda_engine *e, size_t slot);
void kvd_cuda_engine_free(kvd_cuda_engine *e);

/*
 * These functions fail if the engine does not support the model, the compression plan or the spec.
 * kvd_cuda_engine_check is for one GPU, kvd_cuda_engine_check_several for the tensor parallel
 * engine.
 */
int kvd_cuda_engine_check(const kvd_config *c, const kvd_engine_spec *s, kvd_err *err);
int kvd_cuda_engine_check_several(const kvd_plan *plan, const kvd_engine_spec *s, kvd_err *err);

/*
 * These functions open an engine on several GPUs, with the contract of kvd_engine_open_cuda.
 * kvd_engine_open_parallel is tensor parallel (engine_parallel.c). kvd_engine_open_sequence is
 * sequence parallel (engine_sequence.c) and is used if s->sequence is true.
 */
kvd_engine *kvd_engine_open_parallel(const kvd_checkpoint *c, const kvd_plan *plan,
                                     const kvd_engine_spec *s, kvd_err *err);
kvd_engine *kvd_engine_open_sequence(const kvd_checkpoint *c, const kvd_plan *plan,
                                     const kvd_engine_spec *s, kvd_err *err);

/* ---- queueing of an iteration's work (steps.c) ---- */

/*
 * Queues the decode steps of n requests, from embedding to token. Their input lists must be on the
 * device. `works` are the arguments of kvd_paged_cache_plan, which divides the attention of n
 * decode steps among CTAs. If n is small (kvd_cuda_few), queues one launch per matrix product,
 * otherwise the layers of the forward pass.
 */
int kvd_cuda_steps(kvd_cuda_engine *e, size_t n, const void *works, kvd_err *err);
/*
 * Queues the decode steps of n requests as a CUDA graph, which is captured at the first call with
 * this n.
 */
int kvd_cuda_steps_replay(kvd_cuda_engine *e, size_t n, kvd_err *err);
/*
 * Destroy the CUDA graphs of all decode steps. kvd_cuda_graphs_destroy does not wait for a running
 * graph. kvd_cuda_graphs_release waits for the device and also frees the memory that the graphs
 * read.
 */
void kvd_cuda_graphs_destroy(kvd_cuda_engine *e);
void kvd_cuda_graphs_release(kvd_cuda_engine *e);
/*
 * Returns true if decode steps of n requests use the products of few_rows.h, which also compute
 * norms, activations and additions.
 */
int kvd_cuda_few(const kvd_cuda_engine *e, size_t n);
int kvd_cuda_has_head(const kvd_cuda_engine *e);
/*
 * Prepares the GPU's forward pass for tokens whose ids and positions are in device memory, and the
 * recording of the times at which its phases end.
 */
void kvd_cuda_layers_begin(kvd_cuda_engine *e, const uint32_t *id, const uint32_t *at);
/*
 * Queues the layers of the forward pass for a batch of n tokens whose ids and positions are in
 * device memory.
 */
int kvd_cuda_layers(kvd_cuda_engine *e, const uint32_t *id, const uint32_t *at, size_t n,
                    kvd_err *err);
/*
 * Queues the logits of n rows of the residual stream x, and the search for the largest logit of
 * each row. Does nothing on a GPU without the output head.
 */
int kvd_cuda_tokens(kvd_cuda_engine *e, float *x, size_t n, kvd_err *err);
/*
 * Queues the copies of an iteration's results to the host. n is the number of tokens that the
 * iteration emits.
 */
int kvd_cuda_fetch(kvd_cuda_engine *e, size_t n, kvd_err *err);

#endif
