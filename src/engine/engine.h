/*
 * Interface of the inference engines, which run iterations of a batch of requests through the
 * model, with the KV cache of a compression method, on a GPU (cuda/engine_cuda.c) or on the CPU
 * (engine_cpu.c). kvdim-jct times them; tests compare their tokens with those of the plain forward
 * pass.
 */
#ifndef KVD_ENGINE_ENGINE_H
#define KVD_ENGINE_ENGINE_H

#include "engine/limits.h"
#include "formats/phases.h"
#include "methods/iteration.h"
#include "methods/method.h"
#include "model/checkpoint/checkpoint.h"

typedef struct {
    /* Limits of the batch. If limits.pages is 0, the KV cache takes all memory that is left. */
    kvd_batching_limits limits;
    /* Number of input and output tokens of the longest request. */
    size_t max_len;
    /* Number type of the weights and the KV cache. */
    kvd_dtype type;
    /* First GPU and number of GPUs that share the model; the CPU engine ignores both. */
    int first_gpu, n_gpus;
    /*
     * How several GPUs share the model. True: sequence parallel, the GPUs divide the tokens of a
     * prompt, each GPU has all weights, and the engine runs prompts only, one at a time. False:
     * tensor parallel.
     */
    bool sequence;
    /* True if decode steps are run by replaying captured CUDA graphs. */
    bool graphs;
    /* Attention kernel of the GPU engine; the CPU engine ignores it. */
    kvd_attention_choice attention;
    /* True if the time of each phase is measured; false: only the total time of an iteration. */
    bool phases;
    /*
     * True if the tokens of a prompt attend to each other with uncompressed K and V, as text
     * generation requires, also with methods that cut dimensions. Weights are then not folded, and
     * an iteration holds either prompts or decode steps. The CPU engine refuses it.
     */
    bool exact_prompts;
    /*
     * Weights of the model in bf16 on the GPU (model/checkpoint/cuda/weights.h), borrowed; several
     * engines may use them. NULL: the engine loads its own. Requires exact_prompts and one GPU. The
     * CPU engine ignores it.
     */
    const struct kvd_gpu_weights *weights;
} kvd_engine_spec;

typedef struct {
    /* Size in bytes of all pages of the KV cache, over all layers and GPUs. */
    double cache_bytes;
    /*
     * Stored bytes per token in the KV cache, over all layers and GPUs. The cache rounds widths up
     * to multiples of 16.
     */
    double bytes_per_token;
    /*
     * Size in bytes of the weights, and of all memory that the engine allocates, summed over the
     * devices.
     */
    double weight_bytes, peak_bytes;
    /* Number of pages of the KV cache, each of 64 tokens. */
    size_t pages;
    char what[256]; /* "NVIDIA H200, bf16, cuBLAS 13.1.0, sm_90a kernels, CUDA graphs" */
    /*
     * True if a slice may start after tokens that were never processed. Their cache entries are
     * then random numbers, which changes no time, because no time depends on their values.
     */
    bool anywhere;
    /*
     * Bit p is set if the time of phase p is 0 because the work is done in the next phase of
     * kvd_phase.
     */
    unsigned fused;
} kvd_engine_facts;

typedef struct kvd_engine kvd_engine;
struct kvd_engine {
    kvd_engine_facts facts;
    /*
     * Runs one iteration of the batch.
     *
     * id [n_tokens] holds the input tokens of its slices one after another. next [n_slices]
     * receives the token that each slice with `emits` produces, the one with the largest logit
     * (ties: the smaller id). Fails on activations that are not finite and on CUDA errors; after a
     * failure the engine can only be freed. `times` may be NULL.
     */
    int (*step)(kvd_engine *e, const kvd_iteration *it, const uint32_t *id, uint32_t *next,
                kvd_phase_times *times, kvd_err *err);
    /*
     * Returns the number of bytes that the KV cache held at the end of the latest iteration. If the
     * pointer is NULL, the cache holds tokens times bytes_per_token; if it is not NULL,
     * bytes_per_token is the amount reserved.
     */
    double (*held)(const kvd_engine *e);
    /*
     * Stores in `bytes` the bytes that the latest iteration sent between GPUs: [0] in exchanges of
     * Q, K and V, [1] in exchanges of the attention output. The pointer is NULL if the engine sends
     * none.
     */
    void (*sent)(const kvd_engine *e, double bytes[2]);
    /*
     * Writes the number of entries of a KV head in a slot, which holds a request with `tokens`
     * tokens, the mean if its heads hold different numbers; and the bits that all its entries hold,
     * without those that kvd_plan_entry_bits counts. NaN bits: whole rows of the plan's widths in
     * the type of the cache. NULL: the engine does not count slots.
     */
    void (*count)(const kvd_engine *e, size_t slot, size_t tokens, double *entries, double *bits);
    /*
     * Frees a slot whose request ends, or is preempted, without an iteration that has `last`. NULL:
     * the engine cannot.
     */
    void (*drop)(kvd_engine *e, size_t slot);
    /* Writes the logits [vocab_size] of slice i of the latest iteration. Used by tests. */
    int (*logits)(kvd_engine *e, size_t i, float *logits, kvd_err *err);
    void (*free)(kvd_engine *e);
};

/*
 * Open an engine for this model and compression plan, on the CPU or on GPUs. The plan must be open,
 * and must remain valid until the engine is freed. If the engine does not support the plan, or on
 * another failure, they return NULL and fill *err with a message that names the method.
 */
kvd_engine *kvd_engine_open_cpu(const kvd_checkpoint *c, const kvd_plan *plan,
                                const kvd_engine_spec *s, kvd_err *err);
#ifdef KVD_CUDA
kvd_engine *kvd_engine_open_cuda(const kvd_checkpoint *c, const kvd_plan *plan,
                                 const kvd_engine_spec *s, kvd_err *err);
#endif

#endif
