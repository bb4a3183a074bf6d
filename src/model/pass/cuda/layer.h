/*
 * One GPU of a forward pass: its weights, buffers and stream, and the computation of a batch from
 * the embedding to the final norm. All work is queued on the stream.
 *
 * With several GPUs, each holds the whole residual stream and a part of the matrices. The first GPU
 * adds its products of O (attention output) and down to the residual, the others overwrite theirs,
 * and the sum over the GPUs is the new residual. In large batches, the sum over the GPUs for one
 * half of the tokens runs on a second stream while products of the other half run on the first.
 */
#ifndef KVD_MODEL_PASS_CUDA_LAYER_H
#define KVD_MODEL_PASS_CUDA_LAYER_H

#include "model/pass/batch.h"
#include "model/pass/cuda/attention.h"
#include "model/pass/cuda/blocks.h"
#include "model/pass/cuda/forward.h"
#include "model/pass/cuda/sum.h"

typedef struct {
    /*
     * Input of the router: [max_tokens][d_model]; in a float32 pass the same array as `normed` of
     * the worker.
     */
    float *normed;
    /* Inputs of one expert, in the element type of the pass: [max_tokens][d_model]. */
    void *in;
    float *out;
    float *shared; /* factor on the shared expert's output: [max_tokens] */
    kvd_gpu_routes routes;
    uint32_t *count; /* Copy of routes.count in pinned host memory: [n_experts] */
    /* True if all experts of a layer are timed as one phase, KVD_GPU_DOWN. */
    bool one_phase;
    /*
     * Largest number of tokens for which kvdim's own kernels compute the routed experts
     * (kvd_gpu_experts_few). Unless it is 0, `few` has the buffers of these kernels, and `table`
     * the experts of all layers, device [n_layers][n_experts].
     */
    size_t most_few;
    /* true: batches of more than most_few tokens use these kernels too, in several launches */
    bool many;
    kvd_gpu_few_experts few;
    kvd_gpu_expert *table;
} kvd_gpu_expert_buffers;

typedef struct {
    kvd_config config;
    int device;
    size_t max_tokens, max_len;
    kvd_gpu_weights weights;
    bool borrowed;        /* true if the arrays of `weights` belong to the caller */
    kvd_gpu_dense *dense; /* exact attention; NULL if the caller always passes an attention hook */
    kvd_gpu_sum *sum;     /* borrowed; NULL on one GPU */
    cudaStream_t stream;
    cudaStream_t sums; /* stream for the sums over GPUs, each of one half of the tokens */
    /* For each half of the tokens: events before and after its sum over the GPUs. */
    cudaEvent_t written[2], summed[2];
    const kvd_cublas *lib;
    cublasHandle_t blas;
    kvd_gpu_queued queued; /* callback for timing, or NULL */
    void *queued_ctx;

    /*
     * Owns all device memory of the worker. The elements of the arrays of type void * below have
     * the element type of the pass; their rows are tokens.
     */
    kvd_device_memory memory;
    float *x;     /* residual stream: [max_tokens][d_model] */
    void *normed; /* input of the projections: [max_tokens][d_model] */
    /*
     * Input [max_tokens][d_model] of the feed-forward block, if the block has a norm of the layer's
     * input of its own; otherwise NULL.
     */
    void *second;
    /*
     * Output [max_tokens][d_model] of attention or feed-forward block, in models that apply a norm
     * to it; else NULL.
     */
    float *branch;
    /*
     * [max_tokens][2] Factors 1 / rms of norms that each cover all heads of Q or of K
     * (kvd_gpu_qkv), or NULL.
     */
    float *factor;
    kvd_gpu_expert_buffers experts;
    /* Q, K and V of this GPU's heads: [max_tokens][(n_heads + 2 n_kv_heads) * d_head]. */
    void *qkv;
    /*
     * Scratch of several steps: an embedding before its projection, Q and K before RoPE, gate and
     * up projections.
     */
    void *wide;
    void *narrow; /* attention output; later in the layer, output of the activation */
    /*
     * Token ids, positions, and rows of the RoPE tables: max_tokens numbers each, in one device
     * array.
     */
    uint32_t *id, *position, *rope_row;
    float *cosine, *sine;
    kvd_gpu_bad *bad;

    /*
     * Vector or array that the next norm adds to the residual stream, or NULL: `branch`, or a bias
     * [d_model] for every row.
     */
    const float *pending;
    /* Number of the next check of the residual stream for values that are not finite. */
    unsigned stage;
    /*
     * Bit i is 1 if the sum over GPUs of half i of the tokens is queued and `stream` has not yet
     * been told to wait for it.
     */
    unsigned under_way;
} kvd_gpu_worker;

size_t kvd_gpu_worker_bytes(const kvd_config *c, const kvd_gpu_forward_spec *s,
                            const kvd_gpu_share *share, bool dense, bool streamed);

/*
 * Opens a worker on the device first_gpu + share->index, which becomes current. *w must be zeroed
 * before; the caller must close it after a failure too. Unless `dense` is true, every run needs an
 * attention hook. Returns 0, or -1 with *err.
 */
int kvd_gpu_worker_open(kvd_gpu_worker *w, const kvd_checkpoint *c, const kvd_gpu_forward_spec *s,
                        const kvd_gpu_share *share, bool dense, kvd_err *err);
void kvd_gpu_worker_close(kvd_gpu_worker *w);

/*
 * Starts a batch of n tokens. `rows` is pinned memory with three arrays of max_tokens numbers:
 * token ids, positions, and rows of the RoPE tables. Clears w->bad.
 */
int kvd_gpu_worker_begin(kvd_gpu_worker *w, const uint32_t *rows, size_t n, kvd_err *err);

/*
 * Both functions set the residual stream: kvd_gpu_embedding to the token embeddings,
 * kvd_gpu_residual_in to `residual` on the first GPU.
 */
int kvd_gpu_embedding(kvd_gpu_worker *w, size_t n, kvd_err *err);
int kvd_gpu_residual_in(kvd_gpu_worker *w, const float *residual, int layer, size_t n,
                        kvd_err *err);

/*
 * Runs one layer, or if `stop` is set only its part up to the attention output. Except after the
 * last layer, sums over GPUs of half a batch may still be running.
 */
int kvd_gpu_layer_run(kvd_gpu_worker *w, const kvd_batch *b, int layer, kvd_gpu_attention *hook,
                      int stop, kvd_err *err);

/*
 * Adds bias, norms and RoPE to Q, K and V of n tokens in w->qkv, unless hook->wants_raw is set. If
 * `began` is not NULL, *began in device memory receives the time when the preceding kernels have
 * ended.
 */
int kvd_gpu_finish_qkv(const kvd_gpu_worker *w, int layer, size_t n, const kvd_gpu_attention *hook,
                       unsigned long long *began, kvd_err *err);

/*
 * Adds the experts' outputs for the input w->experts.normed to the residual stream. If
 * kvd_gpu_experts_norm returns true, the function also computes that input, the norm of the
 * residual stream, and adds w->pending to the stream. If kvd_gpu_experts_stay returns false, the
 * function waits for the device until the router has chosen the experts. The caller must then queue
 * the sum over the GPUs.
 */
int kvd_gpu_experts_add(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err);
/*
 * Returns the largest number of tokens for which one launch of kvdim's own kernels computes the
 * experts (instead of cuBLAS products). The number is at least s->steps and, on average, at least
 * 32 tokens per expert. Returns 0 if these kernels do not support the experts. The weights need not
 * be loaded.
 */
size_t kvd_gpu_experts_few(const kvd_config *c, const kvd_gpu_forward_spec *s,
                           const kvd_gpu_share *share);
/*
 * Returns true if kvd_gpu_experts_add does not wait for the device with batches of up to n tokens.
 * A CUDA graph can then contain it.
 */
bool kvd_gpu_experts_stay(const kvd_gpu_worker *w, size_t n);
/*
 * Returns true if kvd_gpu_experts_add, called with n tokens, also computes the norm before the
 * experts.
 */
bool kvd_gpu_experts_norm(const kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n);

/*
 * Checks the result of a kernel launch or library call, and reports the phase to the callback
 * w->queued.
 */
int kvd_gpu_launched(const kvd_gpu_worker *w, cudaError_t e, kvd_gpu_phase p, kvd_err *err);

/*
 * Computes y [n][out] = x [n][in] W^T, or adds the product to y if `add` is not 0. x and the matrix
 * W [out][in] have `type`, y has y_type.
 */
int kvd_gpu_product(const kvd_gpu_worker *w, const void *x, const void *matrix, kvd_dtype type,
                    size_t n, size_t in, size_t out, void *y, kvd_dtype y_type, int add,
                    kvd_gpu_phase p, kvd_err *err);

/*
 * Bytes per token that latent attention needs in the worker's buffers wide and narrow; 0 for other
 * models.
 */
typedef struct {
    size_t wide, narrow;
} kvd_gpu_latent_sizes;
kvd_gpu_latent_sizes kvd_gpu_latent_sizes_of(const kvd_config *c, kvd_dtype type);
/*
 * kvd_gpu_latent_project computes Q, K and V before RoPE from w->normed into w->qkv.
 * kvd_gpu_latent_values computes values [n][n_heads][d_value] in w->wide from the attention output
 * in w->narrow (model/pass/latent.h). `stage` is the number of the check for values that are not
 * finite.
 */
int kvd_gpu_latent_project(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, unsigned stage,
                           kvd_err *err);
int kvd_gpu_latent_values(const kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err);

/* Makes `stream` wait for the sums over GPUs on the second stream. */
int kvd_gpu_join_sums(kvd_gpu_worker *w, kvd_err *err);

/* Replaces the residual stream by its sum over the GPUs; does nothing on one GPU. */
int kvd_gpu_residual_sum(const kvd_gpu_worker *w, size_t n, kvd_err *err);

/*
 * kvd_gpu_residual_out writes the residual stream to an array [n][d_model]; kvd_gpu_hidden_out
 * writes the output of the final norm.
 */
int kvd_gpu_residual_out(kvd_gpu_worker *w, size_t n, float *residual, kvd_err *err);
int kvd_gpu_hidden_out(kvd_gpu_worker *w, size_t n, float *hidden, kvd_err *err);

/* Computes logits [n][vocab_size] from n <= max_tokens rows of the output head's input. */
int kvd_gpu_head(kvd_gpu_worker *w, const float *hidden, size_t n, float *logits, kvd_err *err);
/* Computes logits as kvd_gpu_head does, from n rows `in` in the element type of the pass. */
int kvd_gpu_head_of(kvd_gpu_worker *w, const void *in, size_t n, float *logits, kvd_err *err);

/* Waits for the device and copies w->bad to *bad. */
int kvd_gpu_worker_wait(kvd_gpu_worker *w, kvd_gpu_bad *bad, kvd_err *err);

/*
 * Returns the number of the check of the residual stream that enters layer `layer`; for n_layers,
 * that of the check before the final norm.
 */
unsigned kvd_gpu_stage_before(int layer);
unsigned kvd_gpu_stage_final(const kvd_config *c);
/* Writes the name of a check, "embedding", "layer 3" or "final norm", to `to`. */
void kvd_gpu_stage_name(const kvd_config *c, unsigned stage, char *to, size_t size);

#endif
