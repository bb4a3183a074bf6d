/* Declares the inference engines of the CPU and of GPUs, which run batches of requests with a
 * compressed KV cache. */
#ifndef KVD_ENGINE_ENGINE_H
#define KVD_ENGINE_ENGINE_H

#include "engine/limits.h"
#include "formats/phases.h"
#include "methods/iteration.h"
#include "methods/method.h"
#include "model/checkpoint/checkpoint.h"

typedef struct {
    /* Limits of a batch of requests. If limits.pages is 0, the cache takes all memory that is
     * free. */
    kvd_batching_limits limits;
    /* number of input and output tokens of the longest request */
    size_t max_len;
    /* number type of the weights, and of the uncompressed KV cache */
    kvd_dtype type;
    /* index of the first GPU, and number of GPUs; the CPU engine ignores both */
    int first_gpu, n_gpus;
    /* With several GPUs: true if each computes a part of a prompt's tokens, false if each computes
     * a part of the heads and weights. */
    bool sequence;
    bool graphs; /* true to replay decode steps from captured CUDA graphs */
    /* kind of attention kernels; the CPU engine ignores it */
    kvd_attention_choice attention;
    /* true to time each phase (kvd_phase) of a decode step, false to time only whole steps */
    bool phases;
    /* True if prompt tokens attend to uncompressed K and V. The CPU engine does not support it. */
    bool exact_prompts;
    /* For method kvquant: number of outliers per page and head that are stored exactly. 0 means the
     * default. */
    size_t outliers;
    /* Bits of the weight matrices in the layers: 4, or 0 to store them in number type `type`. */
    int weight_bits;
    /* bf16 weights that are already on the GPU, which the engine borrows; NULL: the engine loads
     * them */
    const struct kvd_gpu_weights *weights;
} kvd_engine_spec;

typedef struct {
    /* bytes of all cache pages, summed over layers and GPUs */
    double cache_bytes;
    /* Cache bytes per token, summed over layers and GPUs. If layers have a sliding window, this is
     * the mean over the tokens of a request of max_len tokens. */
    double bytes_per_token;
    /* Bytes of the weights as decode steps read them (4 bits instead of bf16 if chosen), and peak
     * bytes of all memory that the engine allocates. */
    double weight_bytes, peak_bytes;
    /* number of cache pages, of 64 tokens each, in every layer without a sliding window */
    size_t pages;
    /* cache pages in every layer with a sliding window: their number, and the largest number that
     * one request keeps */
    size_t window_pages, window_share;
    /* Description such as "NVIDIA H200, bf16, cuBLAS 13.1.0, sm_90a kernels, CUDA graphs". */
    char what[256];
    /* True if a timing run may start a decode step at any position, without computing the request's
     * earlier tokens. */
    bool anywhere;
    /* Bit p is set if phase p is not timed, because a kernel of the next phase does its work. */
    unsigned fused;
} kvd_engine_facts;

typedef struct {
    /* number of a request's tokens in the cache of a KV head, averaged over the heads of layers
     * without a sliding window */
    double entries;
    /* number of bits of the stored K and V of the request; NaN if the method does not quantise */
    double bits;
    /* number of bits of the request's page summaries, with which a decode step chooses tokens */
    double side;
    /* number of cached tokens that the last decode step did not read, averaged over KV heads */
    double unread;
    /* number of tokens that were merged into other tokens, summed over KV heads and layers */
    size_t merged;
    /* number of tokens that are stored at the method's low precision, summed over KV heads and
     * layers */
    size_t lowered;
    /* number of tokens whose keys lost dimensions (compression method think), summed over KV heads
     * and layers */
    size_t pruned;
    /* Number of bits of cached tokens that the last decode step did not read, because they had left
     * the sliding window. */
    double unseen;
} kvd_engine_count;

typedef struct kvd_engine kvd_engine;
struct kvd_engine {
    kvd_engine_facts facts;
    /* Runs an iteration on tokens id [n_tokens]. next [n_slices] receives, for each request, the
     * token with the largest logit (if equal, the smaller id). `times` may be NULL. After a
     * failure, only `free` may be called. */
    int (*step)(kvd_engine *e, const kvd_iteration *it, const uint32_t *id, uint32_t *next,
                kvd_phase_times *times, kvd_err *err);
    /* Waits until the CPU has quantised the tokens of earlier iterations. Callers must call it
     * before the engine functions `held` and `count`. NULL if there is nothing to wait for. */
    int (*finish)(kvd_engine *e, kvd_err *err);
    /* Returns how many bytes of K and V the cache holds. If NULL, each cached token takes
     * facts.bytes_per_token. */
    double (*held)(const kvd_engine *e);
    /* Counts the bytes that GPUs sent to each other in the last iteration: bytes of Q, K and V in
     * the first element, bytes of attention outputs in the second element. NULL if GPUs do not send
     * these. */
    void (*sent)(const kvd_engine *e, double bytes[2]);
    /* Counts the cached tokens and bits of the request in `slot`. NULL if the engine cannot count
     * them. */
    void (*count)(const kvd_engine *e, size_t slot, size_t tokens, kvd_engine_count *to);
    /* Frees the cache of a request that ends before its last token. NULL if not supported. */
    void (*drop)(kvd_engine *e, size_t slot);
    /* Called after a failed run. If it failed for lack of room for outliers, returns the
     * kvd_engine_spec.outliers that it needed, else 0. May be NULL. */
    size_t (*lacking)(const kvd_engine *e);
    /* Writes the logits [vocab_size] for the next token of the i-th request of the last
     * iteration. */
    int (*logits)(kvd_engine *e, size_t i, float *logits, kvd_err *err);
    void (*free)(kvd_engine *e);
};

/* Open an engine. The checkpoint and the plan (compression methods with parameters) must stay open
 * as long as the engine. On failure, returns NULL and fills *err. */
kvd_engine *kvd_engine_open_cpu(const kvd_checkpoint *c, const kvd_plan *plan,
                                const kvd_engine_spec *s, kvd_err *err);
#ifdef KVD_CUDA
kvd_engine *kvd_engine_open_cuda(const kvd_checkpoint *c, const kvd_plan *plan,
                                 const kvd_engine_spec *s, kvd_err *err);
#endif

#endif
