/* Interface of the inference engines, which run batched requests with a compressed KV cache. */
#ifndef KVD_ENGINE_ENGINE_H
#define KVD_ENGINE_ENGINE_H

#include "engine/limits.h"
#include "formats/phases.h"
#include "methods/iteration.h"
#include "methods/method.h"
#include "model/checkpoint/checkpoint.h"

typedef struct {
    /* If limits.pages is 0, the KV cache takes all memory that is left. */
    kvd_batching_limits limits;
    /* Input plus output tokens of the longest request. */
    size_t max_len;
    /* Number type of the weights and of the KV cache. */
    kvd_dtype type;
    /* First GPU and number of GPUs; ignored by the CPU engine. */
    int first_gpu, n_gpus;
    /* true if GPUs divide the tokens of a prompt, false if they divide heads and weights */
    bool sequence;
    bool graphs; /* true to replay decode steps from captured CUDA graphs */
    /* Attention kernels to use; ignored by the CPU engine. */
    kvd_attention_choice attention;
    /* True to measure the time of each phase, not only the total. */
    bool phases;
    /* True if prompts attend to uncompressed K and V. Not in the CPU engine. */
    bool exact_prompts;
    /* room for exact values of method kvquant per page and head, or 0 for the default */
    size_t outliers;
    /* Bits of the layer matrices: 4, or 0 for weights in `type`. */
    int weight_bits;
    /* borrowed bf16 weights on one GPU; if NULL, the engine loads its own */
    const struct kvd_gpu_weights *weights;
} kvd_engine_spec;

typedef struct {
    /* Bytes of all KV cache pages, over all layers and GPUs. */
    double cache_bytes;
    /* Stored bytes per token, over layers and GPUs; with a window, mean over max_len tokens. */
    double bytes_per_token;
    /* bytes of weights (only codes if 4-bit) and of all memory, over devices */
    double weight_bytes, peak_bytes;
    /* Number of 64-token pages in every layer without a window. */
    size_t pages;
    /* pages of layers with a window, and largest number of pages of one request */
    size_t window_pages, window_share;
    /* Text such as "NVIDIA H200, bf16, cuBLAS 13.1.0, sm_90a kernels, CUDA graphs". */
    char what[256];
    /* True if a request can continue although earlier tokens were not processed. */
    bool anywhere;
    /* Bit p: the time of phase p is part of the next phase's time. */
    unsigned fused;
} kvd_engine_facts;

typedef struct {
    /* Mean number of cached tokens per KV head, over layers without a sliding window. */
    double entries;
    /* bits of K and V in the cache, without the bits in `side`; NaN if not quantised */
    double bits;
    /* Number of bits of page summaries by which decode steps choose the tokens to read. */
    double side;
    /* Mean number of cached tokens per KV head that the latest step did not read. */
    double unread;
    /* Number of tokens merged into other tokens, summed over KV heads and layers. */
    size_t merged;
    /* Number of tokens stored at KVD_LEVEL_LOW, summed over KV heads and layers. */
    size_t lowered;
    /* Number of tokens whose keys lost channels (method think), over KV heads and layers. */
    size_t pruned;
    /* Number of bits of stored tokens outside the sliding window, before the step. */
    double unseen;
} kvd_engine_count;

typedef struct kvd_engine kvd_engine;
struct kvd_engine {
    kvd_engine_facts facts;
    /*
     * Runs one iteration on the input tokens id [n_tokens]. If `emits` is set, next [n_slices]
     * receives the token with the largest logit (ties: smaller id). `times` may be NULL. After a
     * failure the engine can only be freed.
     */
    int (*step)(kvd_engine *e, const kvd_iteration *it, const uint32_t *id, uint32_t *next,
                kvd_phase_times *times, kvd_err *err);
    /* Returns the bytes that the cache holds. If NULL, each token has bytes_per_token. */
    double (*held)(const kvd_engine *e);
    /* Writes the bytes that GPUs sent: [0] Q, K and V, [1] attention output. May be NULL. */
    void (*sent)(const kvd_engine *e, double bytes[2]);
    /* Counts the contents of a request's cache. NULL if the engine cannot count. */
    void (*count)(const kvd_engine *e, size_t slot, size_t tokens, kvd_engine_count *to);
    /* Frees the slot of a request that ends early. NULL if not supported. */
    void (*drop)(kvd_engine *e, size_t slot);
    /* Returns the kvd_engine_spec.outliers that would have avoided a failure, or 0. */
    size_t (*lacking)(const kvd_engine *e);
    /* Writes the logits [vocab_size] of the i-th request of the latest iteration. */
    int (*logits)(kvd_engine *e, size_t i, float *logits, kvd_err *err);
    void (*free)(kvd_engine *e);
};

/* Open an engine. The plan must stay open. On failure return NULL and fill *err. */
kvd_engine *kvd_engine_open_cpu(const kvd_checkpoint *c, const kvd_plan *plan,
                                const kvd_engine_spec *s, kvd_err *err);
#ifdef KVD_CUDA
kvd_engine *kvd_engine_open_cuda(const kvd_checkpoint *c, const kvd_plan *plan,
                                 const kvd_engine_spec *s, kvd_err *err);
#endif

#endif
