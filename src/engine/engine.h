/* Inference engines, which run batched requests with a compressed KV cache. */
#ifndef KVD_ENGINE_ENGINE_H
#define KVD_ENGINE_ENGINE_H

#include "engine/limits.h"
#include "formats/phases.h"
#include "methods/iteration.h"
#include "methods/method.h"
#include "model/checkpoint/checkpoint.h"

typedef struct {
    /* If limits.pages is 0, the cache takes all memory that is left. */
    kvd_batching_limits limits;
    /* input plus output tokens of the longest request */
    size_t max_len;
    /* number type of the weights and of the cache */
    kvd_dtype type;
    /* first GPU, and number of GPUs; ignored on the CPU */
    int first_gpu, n_gpus;
    /* true if GPUs divide a prompt's tokens instead of heads and weights */
    bool sequence;
    bool graphs; /* true to replay decode steps from captured CUDA graphs */
    /* attention kernels; ignored on the CPU */
    kvd_attention_choice attention;
    /* true to time each phase of a step (kvd_phase), not only the total */
    bool phases;
    /* true if prompts attend to uncompressed K and V, which the CPU engine does not support */
    bool exact_prompts;
    /* number of outliers that kvquant can keep exactly per page and head; 0: default */
    size_t outliers;
    /* bits of the layers' matrices: 4, or 0 for `type` */
    int weight_bits;
    /* bf16 weights on one GPU, borrowed, or NULL */
    const struct kvd_gpu_weights *weights;
} kvd_engine_spec;

typedef struct {
    /* bytes of all cache pages, over layers and GPUs */
    double cache_bytes;
    /* cache bytes per token, all layers and GPUs; with a window, mean over max_len tokens */
    double bytes_per_token;
    /* bytes of the weights (4-bit ones replace bf16 ones), and peak bytes of all memory */
    double weight_bytes, peak_bytes;
    /* 64-token pages in every layer without a window */
    size_t pages;
    /* pages of layers with a window: all, and the most that one request keeps */
    size_t window_pages, window_share;
    /* description: "NVIDIA H200, bf16, cuBLAS 13.1.0, sm_90a kernels, CUDA graphs" */
    char what[256];
    /* true if timing runs may continue requests whose earlier tokens were never computed */
    bool anywhere;
    /* bit p: the time of phase p is counted in the next phase */
    unsigned fused;
} kvd_engine_facts;

typedef struct {
    /* mean cached tokens per KV head, in layers without a window */
    double entries;
    /* bits of the request's K and V, without the page summaries in `side`; NaN if not quantised */
    double bits;
    /* bits of page summaries, by which steps choose tokens to read */
    double side;
    /* mean cached tokens per KV head that the last step did not read */
    double unread;
    /* number of tokens merged into others, summed over KV heads and layers */
    size_t merged;
    /* number of tokens at low precision, summed over KV heads and layers */
    size_t lowered;
    /* number of tokens whose keys lost channels (method think), summed over KV heads and layers */
    size_t pruned;
    /* bits that the last decode step did not read, because their tokens had left the window */
    double unseen;
} kvd_engine_count;

typedef struct kvd_engine kvd_engine;
struct kvd_engine {
    kvd_engine_facts facts;
    /* Runs an iteration on tokens id [n_tokens]. next [n_slices] receives the ids with the largest
     * logits (ties: smaller id). `times` may be NULL. After a failure the engine can only be
     * freed. */
    int (*step)(kvd_engine *e, const kvd_iteration *it, const uint32_t *id, uint32_t *next,
                kvd_phase_times *times, kvd_err *err);
    /* Waits until the CPU has quantised earlier tokens, before `held` or `count`. May be NULL. */
    int (*finish)(kvd_engine *e, kvd_err *err);
    /* Returns how many bytes the cache holds. NULL: each token takes bytes_per_token. */
    double (*held)(const kvd_engine *e);
    /* Counts the bytes sent between GPUs: [0] Q, K and V, [1] attention output. May be NULL. */
    void (*sent)(const kvd_engine *e, double bytes[2]);
    /* Counts a request's cached tokens and bits. NULL if not supported. */
    void (*count)(const kvd_engine *e, size_t slot, size_t tokens, kvd_engine_count *to);
    /* Frees the cache of a request that ends early. NULL if not supported. */
    void (*drop)(kvd_engine *e, size_t slot);
    /* After a failed run: returns the kvd_engine_spec.outliers that it needed, or 0. */
    size_t (*lacking)(const kvd_engine *e);
    /* Writes the logits [vocab_size] of the iteration's i-th request. */
    int (*logits)(kvd_engine *e, size_t i, float *logits, kvd_err *err);
    void (*free)(kvd_engine *e);
};

/* Open an engine. The plan (methods with parameters) must stay open. */
kvd_engine *kvd_engine_open_cpu(const kvd_checkpoint *c, const kvd_plan *plan,
                                const kvd_engine_spec *s, kvd_err *err);
#ifdef KVD_CUDA
kvd_engine *kvd_engine_open_cuda(const kvd_checkpoint *c, const kvd_plan *plan,
                                 const kvd_engine_spec *s, kvd_err *err);
#endif

#endif
