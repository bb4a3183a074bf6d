/*
 * Interface of the inference engines. An engine runs iterations of a batch of requests through the
 * model, with the KV cache of a compression method, on a GPU (cuda/engine_cuda.c) or on the CPU
 * (engine_cpu.c). kvdim-jct times the engines; tests compare their tokens with those of the plain
 * forward pass.
 */
#ifndef KVD_ENGINE_ENGINE_H
#define KVD_ENGINE_ENGINE_H

#include "engine/limits.h"
#include "formats/phases.h"
#include "methods/iteration.h"
#include "methods/method.h"
#include "model/checkpoint/checkpoint.h"

typedef struct {
    /*
     * Limits of the batch of requests. If limits.pages is 0, the KV cache takes all memory that is
     * left.
     */
    kvd_batching_limits limits;
    /* Number of input and output tokens of the longest request. */
    size_t max_len;
    /* Number type of the weights and of the KV cache. */
    kvd_dtype type;
    /*
     * Index of the first GPU and number of GPUs that share the model. The CPU engine ignores both.
     */
    int first_gpu, n_gpus;
    /*
     * How several GPUs share the model. True: sequence parallel. The GPUs divide the tokens of a
     * prompt, each GPU has all weights, and the engine runs prompts only, one at a time. False:
     * tensor parallel. The GPUs divide the heads and weights.
     */
    bool sequence;
    /* True if decode steps are run by replaying captured CUDA graphs. */
    bool graphs;
    /* Attention kernels of the GPU engine. The CPU engine ignores this field. */
    kvd_attention_choice attention;
    /*
     * True if the time of each phase of an iteration (QKV product, attention, ...) is measured.
     * False: only the total time is.
     */
    bool phases;
    /*
     * True if the tokens of a prompt attend to each other with uncompressed K and V, also with
     * methods that reduce head dimensions. Text generation requires this. Weights are then not
     * folded, and an iteration holds either prompts or decode steps. The CPU engine refuses it.
     */
    bool exact_prompts;
    /*
     * Weights of the model in bf16 on the GPU (model/checkpoint/cuda/weights.h), borrowed. Several
     * engines may use them. NULL: the engine loads its own weights. A pointer requires
     * exact_prompts and one GPU. The CPU engine ignores it.
     */
    const struct kvd_gpu_weights *weights;
} kvd_engine_spec;

typedef struct {
    /*
     * Size in bytes of all pages of the KV cache, over all layers and GPUs. Layers with a sliding
     * window have pages only for the tokens in the window and for the prompts of an iteration.
     */
    double cache_bytes;
    /*
     * Stored bytes per token in the KV cache, over all layers and GPUs. The GPU cache rounds the
     * kept dimensions of a head up to a multiple of 16. If layers have a sliding window, it is the
     * mean over the tokens of a request of the longest length.
     */
    double bytes_per_token;
    /*
     * Size in bytes of the weights, and of all memory that the engine allocates, summed over the
     * devices.
     */
    double weight_bytes, peak_bytes;
    /* Number of pages of 64 tokens that the KV cache has in every layer without a window. */
    size_t pages;
    /*
     * Number of pages of the layers whose window is shorter than the requests, without those that
     * prompts take while they run, and largest number of them that one request holds. Both are 0 if
     * the model has no such layers.
     */
    size_t window_pages, window_share;
    /*
     * Description of the engine, such as "NVIDIA H200, bf16, cuBLAS 13.1.0, sm_90a kernels, CUDA
     * graphs".
     */
    char what[256];
    /*
     * True if an iteration may continue a request whose earlier tokens were never processed. Their
     * K and V are then random numbers, which changes no time, because no time depends on their
     * values.
     */
    bool anywhere;
    /*
     * Mask of phases whose time is reported as 0: bit p is set if the work of phase p is done in
     * the next phase of enum kvd_phase.
     */
    unsigned fused;
} kvd_engine_facts;

typedef struct kvd_engine kvd_engine;
struct kvd_engine {
    kvd_engine_facts facts;
    /*
     * Runs one iteration of the batch.
     *
     * id [n_tokens] holds the input tokens of all requests of the iteration, in the order of
     * it->slice, which has one element per request. For each request whose `emits` is set, next
     * [n_slices] receives the token with the largest logit (ties: the smaller id). Fails on
     * activations that are not finite and on CUDA errors; after a failure the engine can only be
     * freed. `times` may be NULL.
     */
    int (*step)(kvd_engine *e, const kvd_iteration *it, const uint32_t *id, uint32_t *next,
                kvd_phase_times *times, kvd_err *err);
    /*
     * Returns the number of bytes that the KV cache held at the end of the latest iteration. If
     * this function pointer is NULL, the cache holds bytes_per_token bytes for every cached token.
     * If it is not NULL, bytes_per_token is the amount reserved per token. In a model with a window
     * shorter than the requests, the GPU engine counts whole pages.
     */
    double (*held)(const kvd_engine *e);
    /*
     * Stores in `bytes` the bytes that the latest iteration sent between GPUs: bytes[0] in
     * exchanges of Q, K and V, bytes[1] in exchanges of the attention output. The pointer is NULL
     * if the engine sends none.
     */
    void (*sent)(const kvd_engine *e, double bytes[2]);
    /*
     * Reports the cache of the request in `slot`, which has `tokens` tokens. *entries receives the
     * number of tokens that a KV head caches; if heads cache different numbers, their mean. *bits
     * receives the bits that the request's cache takes, without the bits per cached token that
     * kvd_plan_entry_bits returns. *bits is NaN if every cached token is stored unquantised with
     * the kept dimensions of the compression plan. The pointer is NULL if the engine cannot count.
     */
    void (*count)(const kvd_engine *e, size_t slot, size_t tokens, double *entries, double *bits);
    /*
     * Frees the slot of a request that leaves the batch early: it was ended or preempted, and no
     * iteration marked its final step with kvd_slice.last. The pointer is NULL if the engine cannot
     * do this.
     */
    void (*drop)(kvd_engine *e, size_t slot);
    /* Writes the logits [vocab_size] of the i-th request of the latest iteration. Used by tests. */
    int (*logits)(kvd_engine *e, size_t i, float *logits, kvd_err *err);
    void (*free)(kvd_engine *e);
};

/*
 * These functions open an engine for a model and a compression plan, on the CPU or on GPUs. The
 * plan must be open, and must remain valid until the engine is freed. If the engine does not
 * support the plan, or on another failure, they return NULL and fill *err with a message that names
 * the method.
 */
kvd_engine *kvd_engine_open_cpu(const kvd_checkpoint *c, const kvd_plan *plan,
                                const kvd_engine_spec *s, kvd_err *err);
#ifdef KVD_CUDA
kvd_engine *kvd_engine_open_cuda(const kvd_checkpoint *c, const kvd_plan *plan,
                                 const kvd_engine_spec *s, kvd_err *err);
#endif

#endif
