/* One GPU of a forward pass: weights, buffers, and the computation of a batch on a stream.
 *
 * Each GPU has the whole residual stream and a part of the matrices. The sum of all GPUs' results
 * is the new residual stream. */
#ifndef KVD_MODEL_PASS_CUDA_LAYER_H
#define KVD_MODEL_PASS_CUDA_LAYER_H

#include "model/pass/batch.h"
#include "model/pass/cuda/attention.h"
#include "model/pass/cuda/blocks.h"
#include "model/pass/cuda/forward.h"
#include "model/pass/cuda/sum.h"

typedef struct {
    /* float32 input of the router, [max_tokens][d_model] */
    float *normed;
    /* input of one expert, [max_tokens][d_model] in float32 or bf16 */
    void *in;
    float *out;
    float *shared; /* factor on the shared expert's output: [max_tokens] */
    kvd_gpu_routes routes;
    uint32_t *count; /* pinned copy of routes.count, [n_experts] */
    /* true if all work on a layer's experts is timed as one phase of the forward pass */
    bool one_phase;
    /* largest number of tokens per launch of kvdim's own expert kernels; 0 if these are not used */
    size_t most_few;
    /* true if kvdim's own expert kernels also compute large batches, in several launches; false if
     * cuBLAS computes large batches */
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
    kvd_gpu_dense *dense; /* exact attention, or NULL */
    kvd_gpu_sum *sum;     /* borrowed; NULL on one GPU */
    cudaStream_t stream;
    cudaStream_t sums; /* second stream, for sums over GPUs */
    /* events before and after the sum over GPUs, for each half of a batch */
    cudaEvent_t written[2], summed[2];
    const kvd_cublas *lib;
    cublasHandle_t blas;
    kvd_gpu_queued queued; /* callback for timing, or NULL */
    void *queued_ctx;

    kvd_device_memory memory;
    float *x;     /* residual stream: [max_tokens][d_model] */
    void *normed; /* input of the projections: [max_tokens][d_model] */
    /* input of the feed-forward block if attention and feed-forward block run in parallel and each
     * has its own norm; else NULL */
    void *second;
    /* [max_tokens][d_model] output of attention or of the feed-forward block, before it is
     * normalised; NULL if the model does not normalise these outputs */
    float *branch;
    /* factors 1 / rms of each token's Q and K, [max_tokens][2], if one norm covers all heads; else
     * NULL */
    float *factor;
    kvd_gpu_expert_buffers experts;
    /* Q, K and V of this GPU's heads: [max_tokens][(n_heads + 2 n_kv_heads) * d_head] */
    void *qkv;
    /* scratch memory: embeddings, later Q and K before RoPE, later outputs of gate and up
     * matrices */
    void *wide;
    void *narrow; /* attention output, later output of the activation */
    /* token ids, positions and RoPE table rows, max_tokens each */
    uint32_t *id, *position, *rope_row;
    float *cosine, *sine;
    kvd_gpu_bad *bad;

    /* bias or block output that must be added to the residual stream before the next norm, or
     * NULL */
    const float *pending;
    /* number of the next check for NaN or infinity; checks are numbered in the order of
     * execution */
    unsigned stage;
    /* bit i is 1 while half i of the batch is being summed over the GPUs */
    unsigned under_way;
} kvd_gpu_worker;

size_t kvd_gpu_worker_bytes(const kvd_config *c, const kvd_gpu_forward_spec *s,
                            const kvd_gpu_share *share, bool dense, bool streamed);

/* Prepares one GPU for forward passes: fills *w, which must be zeroed, and makes the GPU the
 * current device. Call kvd_gpu_worker_close even on failure. */
int kvd_gpu_worker_open(kvd_gpu_worker *w, const kvd_checkpoint *c, const kvd_gpu_forward_spec *s,
                        const kvd_gpu_share *share, bool dense, kvd_err *err);
void kvd_gpu_worker_close(kvd_gpu_worker *w);

/* Starts a batch of n tokens. `rows`, in pinned memory, has token ids, then positions, then rows of
 * the RoPE tables, max_tokens each. */
int kvd_gpu_worker_begin(kvd_gpu_worker *w, const uint32_t *rows, size_t n, kvd_err *err);

/* kvd_gpu_embedding sets the residual stream to the tokens' embeddings, kvd_gpu_residual_in sets it
 * to `residual`, the input of `layer`. */
int kvd_gpu_embedding(kvd_gpu_worker *w, size_t n, kvd_err *err);
int kvd_gpu_residual_in(kvd_gpu_worker *w, const float *residual, int layer, size_t n,
                        kvd_err *err);

/* Runs one layer or, if `stop`, only its steps up to the end of attention. */
int kvd_gpu_layer_run(kvd_gpu_worker *w, const kvd_batch *b, int layer, kvd_gpu_attention *hook,
                      int stop, kvd_err *err);

/* Applies biases, norms and RoPE to w->qkv. Unless NULL, *began receives the GPU's clock in ns when
 * preceding kernels have ended. */
int kvd_gpu_finish_qkv(const kvd_gpu_worker *w, int layer, size_t n, const kvd_gpu_attention *hook,
                       unsigned long long *began, kvd_err *err);

/* Adds the experts' outputs to the residual stream. May wait until the GPU has chosen the experts.
 * The caller must then queue the sum over GPUs. */
int kvd_gpu_experts_add(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err);
/* Returns the largest number of tokens per launch of kvdim's own expert kernels, or 0 if cuBLAS
 * computes the experts. */
size_t kvd_gpu_experts_few(const kvd_config *c, const kvd_gpu_forward_spec *s,
                           const kvd_gpu_share *share);
/* Returns true if kvd_gpu_experts_add never waits for the GPU when it is called for n tokens. CUDA
 * graphs require this. */
bool kvd_gpu_experts_stay(const kvd_gpu_worker *w, size_t n);
/* Returns true if kvd_gpu_experts_add, when it is called for n tokens, also computes the norm
 * before the experts. */
bool kvd_gpu_experts_norm(const kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n);

/* Checks the result e of a kernel launch or library call of phase p. If it is a success, calls
 * w->queued. */
int kvd_gpu_launched(const kvd_gpu_worker *w, cudaError_t e, kvd_gpu_phase p, kvd_err *err);

/* Computes the product x [n][in] W^T and writes it to y [n][out] or, if `add`, adds it to y. x and
 * W have number type `type`, y has y_type. */
int kvd_gpu_product(const kvd_gpu_worker *w, const void *x, const void *matrix, kvd_dtype type,
                    size_t n, size_t in, size_t out, void *y, kvd_dtype y_type, int add,
                    kvd_gpu_phase p, kvd_err *err);

/* bytes per token that latent attention needs in two scratch buffers of a GPU, `wide` and
 * `narrow` */
typedef struct {
    size_t wide, narrow;
} kvd_gpu_latent_sizes;
kvd_gpu_latent_sizes kvd_gpu_latent_sizes_of(const kvd_config *c, kvd_dtype type);
/* Computes Q, K and V of latent attention in w->qkv. */
int kvd_gpu_latent_project(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, unsigned stage,
                           kvd_err *err);
int kvd_gpu_latent_values(const kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err);

/* Makes w->stream wait for the sums over GPUs that have been queued on another stream. */
int kvd_gpu_join_sums(kvd_gpu_worker *w, kvd_err *err);

/* Replaces the residual stream by its sum over all GPUs. */
int kvd_gpu_residual_sum(const kvd_gpu_worker *w, size_t n, kvd_err *err);

/* kvd_gpu_residual_out writes the residual stream, kvd_gpu_hidden_out the output of the final norm.
 * Both arrays are [n][d_model]. */
int kvd_gpu_residual_out(kvd_gpu_worker *w, size_t n, float *residual, kvd_err *err);
int kvd_gpu_hidden_out(kvd_gpu_worker *w, size_t n, float *hidden, kvd_err *err);

/* Computes logits [n][vocab_size] from the float32 array `hidden`; n is at most max_tokens. */
int kvd_gpu_head(kvd_gpu_worker *w, const float *hidden, size_t n, float *logits, kvd_err *err);
/* Computes logits [n][vocab_size] from the hidden states `in` [n][d_model], which have the number
 * type of the weights. */
int kvd_gpu_head_of(kvd_gpu_worker *w, const void *in, size_t n, float *logits, kvd_err *err);

int kvd_gpu_worker_wait(kvd_gpu_worker *w, kvd_gpu_bad *bad, kvd_err *err);

/* Return the number of the check for NaN and infinity before a layer, or before the final norm.
 * Checks are numbered in the order of execution. */
unsigned kvd_gpu_stage_before(int layer);
unsigned kvd_gpu_stage_final(const kvd_config *c);
/* Writes which model part, such as "layer 3", check number `stage` tests for NaN and infinity. */
void kvd_gpu_stage_name(const kvd_config *c, unsigned stage, char *to, size_t size);

#endif
