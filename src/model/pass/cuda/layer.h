/*
 * One GPU of a forward pass: weights, buffers, and a batch queued on a stream.
 *
 * Several GPUs: each has the residual stream and a part of the matrices. The first adds its
 * products of O and down to the residual, others overwrite; the sum over GPUs is the new residual,
 * in large batches per half on a second stream.
 */
#ifndef KVD_MODEL_PASS_CUDA_LAYER_H
#define KVD_MODEL_PASS_CUDA_LAYER_H

#include "model/pass/batch.h"
#include "model/pass/cuda/attention.h"
#include "model/pass/cuda/blocks.h"
#include "model/pass/cuda/forward.h"
#include "model/pass/cuda/sum.h"

typedef struct {
    /* Router input, [max_tokens][d_model]; in a float32 pass kvd_gpu_worker.normed. */
    float *normed;
    /* Inputs of one expert in the pass's type, [max_tokens][d_model]. */
    void *in;
    float *out;
    float *shared; /* factor on the shared expert's output: [max_tokens] */
    kvd_gpu_routes routes;
    uint32_t *count; /* pinned copy of routes.count, [n_experts] */
    /* True if a layer's experts are timed as one phase, KVD_GPU_DOWN. */
    bool one_phase;
    /* Most tokens for own expert kernels (kvd_gpu_experts_few), or 0. */
    size_t most_few;
    /* true: larger batches use these kernels in several launches */
    bool many;
    kvd_gpu_few_experts few;
    kvd_gpu_expert *table;
} kvd_gpu_expert_buffers;

typedef struct {
    kvd_config config;
    int device;
    size_t max_tokens, max_len;
    kvd_gpu_weights weights;
    bool borrowed;        /* true if `weights` belongs to the caller */
    kvd_gpu_dense *dense; /* exact attention; NULL if hooks are always passed */
    kvd_gpu_sum *sum;     /* borrowed; NULL on one GPU */
    cudaStream_t stream;
    cudaStream_t sums; /* stream for sums over GPUs of half a batch */
    /* For each half: events before and after its sum over GPUs. */
    cudaEvent_t written[2], summed[2];
    const kvd_cublas *lib;
    cublasHandle_t blas;
    kvd_gpu_queued queued; /* callback for timing, or NULL */
    void *queued_ctx;

    /* Owns all device memory below; void * arrays have the pass's type. */
    kvd_device_memory memory;
    float *x;     /* residual stream: [max_tokens][d_model] */
    void *normed; /* input of the projections: [max_tokens][d_model] */
    /* Feed-forward input with its own norm, [max_tokens][d_model], or NULL. */
    void *second;
    /* Block output before its norm, [max_tokens][d_model], or NULL. */
    float *branch;
    /* 1 / rms over all heads of Q and of K (kvd_gpu_qkv), [max_tokens][2], or NULL. */
    float *factor;
    kvd_gpu_expert_buffers experts;
    /* This GPU's heads: [max_tokens][(n_heads + 2 n_kv_heads) * d_head]. */
    void *qkv;
    /* Scratch: unprojected embedding, Q and K before RoPE, gate and up. */
    void *wide;
    void *narrow; /* attention output, later the activation's output */
    /* Token ids, positions and RoPE rows, max_tokens each, in one array. */
    uint32_t *id, *position, *rope_row;
    float *cosine, *sine;
    kvd_gpu_bad *bad;

    /* Added by the next norm to the residual: `branch`, a bias [d_model], or NULL. */
    const float *pending;
    /* Number of the next check of the residual stream. */
    unsigned stage;
    /* Bit i: the sum over GPUs of half i is queued, and `stream` does not yet wait for it. */
    unsigned under_way;
} kvd_gpu_worker;

size_t kvd_gpu_worker_bytes(const kvd_config *c, const kvd_gpu_forward_spec *s,
                            const kvd_gpu_share *share, bool dense, bool streamed);

/*
 * Opens the zeroed *w on device first_gpu + share->index, then current. Without `dense`, runs need
 * a hook. Close *w even on failure.
 */
int kvd_gpu_worker_open(kvd_gpu_worker *w, const kvd_checkpoint *c, const kvd_gpu_forward_spec *s,
                        const kvd_gpu_share *share, bool dense, kvd_err *err);
void kvd_gpu_worker_close(kvd_gpu_worker *w);

/* Starts a batch. `rows`: pinned ids, positions and RoPE rows, max_tokens each. */
int kvd_gpu_worker_begin(kvd_gpu_worker *w, const uint32_t *rows, size_t n, kvd_err *err);

/* Set the residual stream to token embeddings, or (_in) to `residual` on the first GPU. */
int kvd_gpu_embedding(kvd_gpu_worker *w, size_t n, kvd_err *err);
int kvd_gpu_residual_in(kvd_gpu_worker *w, const float *residual, int layer, size_t n,
                        kvd_err *err);

/* Runs one layer, or if `stop` up to its attention output. Sums over GPUs may still be running. */
int kvd_gpu_layer_run(kvd_gpu_worker *w, const kvd_batch *b, int layer, kvd_gpu_attention *hook,
                      int stop, kvd_err *err);

/*
 * Finishes w->qkv, unless hook->wants_raw. *began (or NULL): device time when preceding kernels
 * end.
 */
int kvd_gpu_finish_qkv(const kvd_gpu_worker *w, int layer, size_t n, const kvd_gpu_attention *hook,
                       unsigned long long *began, kvd_err *err);

/*
 * Adds the experts to the residual stream, with kvd_gpu_experts_norm after norming. Without
 * kvd_gpu_experts_stay, waits for the router. The caller queues the sum over GPUs.
 */
int kvd_gpu_experts_add(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err);
/* Most tokens for one launch of own expert kernels, at least s->steps; 0 if unsupported. */
size_t kvd_gpu_experts_few(const kvd_config *c, const kvd_gpu_forward_spec *s,
                           const kvd_gpu_share *share);
/* True if kvd_gpu_experts_add of n tokens never waits, as CUDA graphs require. */
bool kvd_gpu_experts_stay(const kvd_gpu_worker *w, size_t n);
/* Returns true if kvd_gpu_experts_add also computes the norm before the experts. */
bool kvd_gpu_experts_norm(const kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n);

/* Checks a launch or library call, and reports the phase to w->queued. */
int kvd_gpu_launched(const kvd_gpu_worker *w, cudaError_t e, kvd_gpu_phase p, kvd_err *err);

/* y [n][out] = x [n][in] W^T, added to y if `add`; x and W [out][in] have `type`, y has y_type. */
int kvd_gpu_product(const kvd_gpu_worker *w, const void *x, const void *matrix, kvd_dtype type,
                    size_t n, size_t in, size_t out, void *y, kvd_dtype y_type, int add,
                    kvd_gpu_phase p, kvd_err *err);

/* Bytes per token of latent attention in kvd_gpu_worker.wide and narrow, or 0. */
typedef struct {
    size_t wide, narrow;
} kvd_gpu_latent_sizes;
kvd_gpu_latent_sizes kvd_gpu_latent_sizes_of(const kvd_config *c, kvd_dtype type);
/*
 * Computes Q, K, V of latent attention (model/pass/latent.h) in w->qkv; _values: w->narrow times
 * W_UV, in w->wide.
 */
int kvd_gpu_latent_project(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, unsigned stage,
                           kvd_err *err);
int kvd_gpu_latent_values(const kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err);

/* Makes `stream` wait for the sums over GPUs on the second stream. */
int kvd_gpu_join_sums(kvd_gpu_worker *w, kvd_err *err);

/* Replaces the residual stream by its sum over several GPUs. */
int kvd_gpu_residual_sum(const kvd_gpu_worker *w, size_t n, kvd_err *err);

/* Write the residual stream, or (hidden_out) the final norm's output, [n][d_model]. */
int kvd_gpu_residual_out(kvd_gpu_worker *w, size_t n, float *residual, kvd_err *err);
int kvd_gpu_hidden_out(kvd_gpu_worker *w, size_t n, float *hidden, kvd_err *err);

/* Computes logits [n][vocab_size] of n <= max_tokens rows. */
int kvd_gpu_head(kvd_gpu_worker *w, const float *hidden, size_t n, float *logits, kvd_err *err);
/* kvd_gpu_head for n rows `in` of the pass's type. */
int kvd_gpu_head_of(kvd_gpu_worker *w, const void *in, size_t n, float *logits, kvd_err *err);

/* Waits for the device and copies w->bad to *bad. */
int kvd_gpu_worker_wait(kvd_gpu_worker *w, kvd_gpu_bad *bad, kvd_err *err);

/* Check of the residual stream before a layer or (n_layers) the final norm. */
unsigned kvd_gpu_stage_before(int layer);
unsigned kvd_gpu_stage_final(const kvd_config *c);
/* Writes the name of a check: "embedding", "layer 3" or "final norm". */
void kvd_gpu_stage_name(const kvd_config *c, unsigned stage, char *to, size_t size);

#endif
