/* Interface of the inference engines, which run batched requests with a compressed KV cache. */
#ifndef KVD_ENGINE_ENGINE_H
#define KVD_ENGINE_ENGINE_H

#include "engine/limits.h"
#include "formats/phases.h"
#include "methods/iteration.h"
#include "methods/method.h"
#include "model/checkpoint/checkpoint.h"

typedef struct {
    /* Limits of a batch. If limits.pages is 0, the KV cache takes all memory that is left. */
    kvd_batching_limits limits;
    /* Input plus output tokens of the longest request. */
    size_t max_len;
    /* Number type of the weights and of the KV cache. */
    kvd_dtype type;
    /* Number of the first GPU, and number of GPUs; ignored by the CPU engine. */
    int first_gpu, n_gpus;
    /* true if GPUs divide a prompt's tokens, false if they divide heads and weights */
    bool sequence;
    bool graphs; /* true to replay decode steps from captured CUDA graphs */
    /* Attention kernels to use; ignored by the CPU engine. */
    kvd_attention_choice attention;
    /* True to measure the time of each phase, not only the total. */
    bool phases;
    /* True if prompts attend to uncompressed K and V. The CPU engine does not support it. */
    bool exact_prompts;
    /* Room for numbers that method kvquant keeps exactly, per page and head; 0: the default. */
    size_t outliers;
    /* Bits of the weights of the layers' matrices: 4, or 0 for weights in `type`. */
    int weight_bits;
    /* Weights in bf16 on one GPU, borrowed; if NULL, the engine loads its own weights. */
    const struct kvd_gpu_weights *weights;
} kvd_engine_spec;

typedef struct {
    /* Bytes of all KV cache pages, over all layers and GPUs. */
    double cache_bytes;
    /* Stored bytes per token, over layers and GPUs; with a window, mean over max_len tokens. */
    double bytes_per_token;
    /*
     * Bytes of the weights (of the quantised ones alone if weights have 4 bits), and peak bytes of
     * all memory, summed over devices.
     */
    double weight_bytes, peak_bytes;
    /* Number of 64-token pages in every layer without a window. */
    size_t pages;
    /* Pages of layers with a sliding window, and the most such pages that a request has. */
    size_t window_pages, window_share;
    /* Text such as "NVIDIA H200, bf16, cuBLAS 13.1.0, sm_90a kernels, CUDA graphs". */
    char what[256];
    /* True if a request can continue although earlier tokens were not processed. */
    bool anywhere;
    /* Bits of phases: if bit p is set, the time of phase p is counted in the next phase. */
    unsigned fused;
} kvd_engine_facts;

typedef struct {
    /* Mean number of cached tokens per KV head, over layers without a sliding window. */
    double entries;
    /* Bits of K and V in the cache, without the bits in `side`; NaN if not quantised. */
    double bits;
    /* Number of bits of page summaries by which decode steps choose the tokens to read. */
    double side;
    /* Mean number of cached tokens per KV head that the latest step did not read. */
    double unread;
    /* Number of tokens merged into other tokens, summed over KV heads and layers. */
    size_t merged;
    /* Number of tokens stored at low precision (KVD_LEVEL_LOW), summed over KV heads and layers. */
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
     * Runs one iteration on the input tokens id [n_tokens]. For each request that emits a token
     * (`emits`), next [n_slices] receives the id with the largest logit (ties: smaller id). `times`
     * may be NULL. After a failure the engine can only be freed.
     */
    int (*step)(kvd_engine *e, const kvd_iteration *it, const uint32_t *id, uint32_t *next,
                kvd_phase_times *times, kvd_err *err);
    /*
     * Waits until the CPU has quantised the tokens of earlier iterations, which `held` and `count`
     * need. NULL: the CPU quantises nothing.
     */
    int (*finish)(kvd_engine *e, kvd_err *err);
    /* Returns the bytes that the cache holds. If NULL, each token has bytes_per_token. */
    double (*held)(const kvd_engine *e);
    /* Writes the bytes that GPUs sent away: [0] Q, K and V, [1] attention output. May be NULL. */
    void (*sent)(const kvd_engine *e, double bytes[2]);
    /* Counts the tokens and bits in a request's cache. NULL if the engine cannot count. */
    void (*count)(const kvd_engine *e, size_t slot, size_t tokens, kvd_engine_count *to);
    /*
     * Frees the cache memory (slot) of a request that ends before its last token. NULL if not
     * supported.
     */
    void (*drop)(kvd_engine *e, size_t slot);
    /* Returns the kvd_engine_spec.outliers that the failed run needed, or 0 for other failures. */
    size_t (*lacking)(const kvd_engine *e);
    /* Writes the logits [vocab_size] of the i-th request of the latest iteration. */
    int (*logits)(kvd_engine *e, size_t i, float *logits, kvd_err *err);
    void (*free)(kvd_engine *e);
};

/*
 * Open an inference engine. The plan (compression methods with their parameters) must stay open. On
 * failure return NULL and fill *err.
 */
kvd_engine *kvd_engine_open_cpu(const kvd_checkpoint *c, const kvd_plan *plan,
                                const kvd_engine_spec *s, kvd_err *err);
#ifdef KVD_CUDA
kvd_engine *kvd_engine_open_cuda(const kvd_checkpoint *c, const kvd_plan *plan,
                                 const kvd_engine_spec *s, kvd_err *err);
#endif

#endif
