/*
 * Interface of the inference engines. An engine runs iterations of a batch of requests through the
 * model, with the KV cache of a compression method, on a GPU or on the CPU.
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
    /* Number type of the weights and of the KV cache. */
    kvd_dtype type;
    /* First GPU and number of GPUs to use. The CPU engine ignores both fields. */
    int first_gpu, n_gpus;
    /*
     * True for sequence parallel: the GPUs divide the tokens of a prompt, and the engine runs only
     * prompts, one at a time. False for tensor parallel: the GPUs divide heads and weights.
     */
    bool sequence;
    bool graphs; /* true to replay decode steps from captured CUDA graphs */
    /* Attention kernels to use. The CPU engine ignores this field. */
    kvd_attention_choice attention;
    /* True to measure the time of each phase, not only the total. */
    bool phases;
    /*
     * True if prompts attend to uncompressed K and V, as text generation requires. An iteration
     * then holds either prompts or decode steps. The CPU engine refuses it.
     */
    bool exact_prompts;
    /*
     * Number of outliers (values that method kvquant stores exactly) for which a page of 64 tokens
     * has room among the keys of a KV head. 0: four times the number expected from the method's
     * parameter, plus 64. The CPU engine ignores it.
     */
    size_t outliers;
    /*
     * 4: the matrices of the layers have 4-bit codes with a scale and a zero point for each 128
     * weights (common/quantise.h). 0: weights are stored in `type`. The CPU engine refuses 4.
     */
    int weight_bits;
    /*
     * Borrowed weights in bf16 on one GPU, which several engines may use. If set, exact_prompts
     * must be true. If NULL, the engine loads its own weights. The CPU engine ignores it.
     */
    const struct kvd_gpu_weights *weights;
} kvd_engine_spec;

typedef struct {
    /*
     * Bytes of all pages of the KV cache, over all layers and GPUs. Layers with a sliding window
     * have pages only for the window and for the prompts of an iteration.
     */
    double cache_bytes;
    /*
     * Stored bytes per token, over all layers and GPUs. The GPU cache rounds the kept dimensions of
     * a head up to a multiple of 16. With a sliding window the value is the mean over a request of
     * max_len tokens.
     */
    double bytes_per_token;
    /*
     * Bytes of the weights, and of all memory of the engine, summed over devices. If the weights
     * have codes of 4 bits, weight_bytes counts only the codes. A bf16 copy for prompts, which is
     * also in memory, is not counted.
     */
    double weight_bytes, peak_bytes;
    /* Number of pages of 64 tokens in every layer without a window. */
    size_t pages;
    /*
     * Number of pages of layers with a window, not counting pages that prompts take only while they
     * run. window_share is the largest number of these pages that one request holds. Both are 0 if
     * no window is shorter than the requests.
     */
    size_t window_pages, window_share;
    /* Description such as "NVIDIA H200, bf16, cuBLAS 13.1.0, sm_90a kernels, CUDA graphs". */
    char what[256];
    /*
     * True if an iteration may continue a request whose earlier tokens were never processed. Their
     * K and V are then random numbers.
     */
    bool anywhere;
    /*
     * Bit p is set if phase p is not timed separately. The time of p is then reported as 0, and is
     * included in the time of the next phase of enum kvd_phase.
     */
    unsigned fused;
} kvd_engine_facts;

/* Contents of one request's cache. */
typedef struct {
    /*
     * Mean number of tokens that a KV head caches, over the layers without a sliding window. Layers
     * with a sliding window hold the newest tokens of the window, and are not counted.
     */
    double entries;
    /*
     * Bits of K and V in the cache. Not included are the bits in `side`, and the bits per cached
     * token that kvd_plan_entry_bits returns. If NaN, every cached token is stored unquantised with
     * the kept dimensions of the plan.
     */
    double bits;
    /*
     * Bits of the side information (such as summaries of pages) from which decode steps choose the
     * tokens that they read.
     */
    double side;
    /* Mean number of cached tokens of a KV head that the latest step did not read. */
    double unread;
    /* Number of tokens merged into others so far, summed over KV heads and layers. */
    size_t merged;
    /* Number of tokens stored at KVD_LEVEL_LOW, summed over KV heads and layers. */
    size_t lowered;
    /* Number of tokens whose keys lost channels (think), summed over KV heads and layers. */
    size_t pruned;
    /*
     * Bits of stored tokens that had left a sliding window, so that the latest step did not read
     * them. These bits were counted before that step.
     */
    double unseen;
} kvd_engine_count;

typedef struct kvd_engine kvd_engine;
struct kvd_engine {
    kvd_engine_facts facts;
    /*
     * Runs one iteration. id [n_tokens] holds the input tokens of all requests, in the order of
     * it->slice. For each request whose `emits` is set, next [n_slices] receives the token with the
     * largest logit (ties: the smaller id). `times` may be NULL. Fails on activations that are not
     * finite and on CUDA errors. After a failure the engine can only be freed.
     */
    int (*step)(kvd_engine *e, const kvd_iteration *it, const uint32_t *id, uint32_t *next,
                kvd_phase_times *times, kvd_err *err);
    /*
     * Returns the bytes that the KV cache held after the latest iteration. If this function pointer
     * is NULL, the cache holds kvd_engine_facts.bytes_per_token bytes for every cached token. If it
     * is not NULL, bytes_per_token is the amount reserved per token. The GPU engine counts whole
     * pages if the model has a window.
     */
    double (*held)(const kvd_engine *e);
    /*
     * Stores the bytes that GPUs sent to each other in the latest iteration: bytes[0] of Q, K and
     * V, bytes[1] of attention output. The pointer is NULL if the engine sends none.
     */
    void (*sent)(const kvd_engine *e, double bytes[2]);
    /*
     * Reports the cache of the request in `slot`, which has `tokens` tokens. The pointer is NULL if
     * the engine cannot count.
     */
    void (*count)(const kvd_engine *e, size_t slot, size_t tokens, kvd_engine_count *to);
    /*
     * Frees the slot of a request that was ended or preempted before its last iteration (the one
     * with kvd_slice.last). The pointer is NULL if the engine cannot do this.
     */
    void (*drop)(kvd_engine *e, size_t slot);
    /*
     * If the latest iteration failed because a page had too little room for outliers, returns how
     * many outliers a page needs room for (a value for kvd_engine_spec.outliers). Otherwise returns
     * 0. The pointer is NULL if the engine cannot tell.
     */
    size_t (*lacking)(const kvd_engine *e);
    /* Writes the logits [vocab_size] of the i-th request of the latest iteration. */
    int (*logits)(kvd_engine *e, size_t i, float *logits, kvd_err *err);
    void (*free)(kvd_engine *e);
};

/*
 * Open an engine. The plan must be open, and must remain valid until the engine is freed. On
 * failure return NULL and fill *err with a message that names the method.
 */
kvd_engine *kvd_engine_open_cpu(const kvd_checkpoint *c, const kvd_plan *plan,
                                const kvd_engine_spec *s, kvd_err *err);
#ifdef KVD_CUDA
kvd_engine *kvd_engine_open_cuda(const kvd_checkpoint *c, const kvd_plan *plan,
                                 const kvd_engine_spec *s, kvd_err *err);
#endif

#endif
