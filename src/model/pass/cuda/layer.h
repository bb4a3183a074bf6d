/*
 * One GPU of a forward pass: the weights that it holds, its buffers, its stream, and its
 * computation of a batch, from the embedding through the layers to the final norm
 * (model/pass/layer.h and model/pass/forward.h on the CPU).
 *
 * All work is queued on the stream. If there are several GPUs, each holds the whole residual stream
 * and a part of the matrices. The products of O (attention output) and down are written into the
 * residual: the first GPU adds its product, the others overwrite, and the sum over the GPUs is the
 * new residual. Batches of many tokens are split into two halves, so that the sum of one half runs
 * on a second stream in parallel with the products of the other half. The phase KVD_GPU_SUM is then
 * the time that the products wait for a sum.
 */
#ifndef KVD_MODEL_PASS_CUDA_LAYER_H
#define KVD_MODEL_PASS_CUDA_LAYER_H

#include "model/pass/batch.h"
#include "model/pass/cuda/attention.h"
#include "model/pass/cuda/blocks.h"
#include "model/pass/cuda/forward.h"
#include "model/pass/cuda/sum.h"

/* Buffers of layers with routed experts; NULL without them. Rows are tokens. */
typedef struct {
    /*
     * Input of the router: [max_tokens][d_model]; equal to `normed` of the worker in a float32
     * pass.
     */
    float *normed;
    /* Inputs of one expert, in the element type of the pass: [max_tokens][d_model]. */
    void *in;
    float *out;    /* output of one expert: [max_tokens][d_model] */
    float *shared; /* factor on the shared expert's output for each token: [max_tokens] */
    kvd_gpu_routes routes;
    uint32_t *count; /* copy of routes.count in pinned host memory: [n_experts] */
} kvd_gpu_expert_buffers;

typedef struct {
    kvd_config config;
    int device;
    size_t max_tokens, max_len;
    kvd_gpu_weights weights;
    bool borrowed;        /* true if the arrays of `weights` belong to the caller */
    kvd_gpu_dense *dense; /* exact attention, or NULL */
    kvd_gpu_sum *sum;     /* computes sums over the GPUs, borrowed; NULL on one GPU */
    cudaStream_t stream;
    cudaStream_t sums; /* stream for the sums over GPUs of half a batch */
    /* For each half of the token rows: events before and after its sum over the GPUs. */
    cudaEvent_t written[2], summed[2];
    const kvd_cublas *lib;
    cublasHandle_t blas;
    kvd_gpu_queued queued; /* callback for timing, or NULL */
    void *queued_ctx;

    /*
     * Buffers. Elements have the type of the pass unless a comment names another; rows are tokens.
     */
    kvd_device_memory memory;
    float *x;     /* residual stream, float32: [max_tokens][d_model] */
    void *normed; /* input of the projections: [max_tokens][d_model] */
    /*
     * Input [max_tokens][d_model] of the feed-forward block, if attention and feed-forward block
     * are parallel and have different norms of the layer's input; else NULL.
     */
    void *second;
    /*
     * Output of attention or feed-forward block, float32 [max_tokens][d_model], in models that
     * apply a norm to it; NULL in other models.
     */
    float *branch;
    /*
     * Scale factors [max_tokens][2] of norms that cover all heads of Q and K (kvd_gpu_qkv); else
     * NULL.
     */
    float *factor;
    kvd_gpu_expert_buffers experts;
    /* Q, K and V of this GPU's heads: [max_tokens][(n_heads + 2 n_kv_heads) * d_head]. */
    void *qkv;
    /*
     * Buffer that serves several steps in turn, among them: an embedding that is to be projected,
     * before the first layer; Q and K before RoPE; gate and up projections.
     */
    void *wide;
    void *narrow; /* output of the activation; before that, the attention output */
    /*
     * Three parts, of max_tokens numbers each, of one device array: token ids, positions, and for
     * each token the index of its row in the RoPE tables.
     */
    uint32_t *id, *position, *rope_row;
    float *cosine, *sine;
    kvd_gpu_bad *bad; /* position of the first token row that is not finite */

    /*
     * The last three members are the state of the batch that is being computed. pending: an
     * addition to the residual stream that the next norm makes first, or NULL. If it points to
     * `branch`, row i of `branch` is added to row i of the residual; else it is a bias [d_model]
     * that is added to every row.
     */
    const float *pending;
    /*
     * Number (stage) of the next check for values that are not finite. It is recorded if that check
     * finds such a value in a row of the residual stream.
     */
    unsigned stage;
    /*
     * Sums over GPUs that run on the second stream: bit i is 1 from the time when the sum of half i
     * of the token rows is queued until `stream` has been made to wait for it.
     */
    unsigned under_way;
} kvd_gpu_worker;

/*
 * Returns the bytes of device memory that kvd_gpu_worker_open allocates. If `streamed`, routed
 * experts are not in device memory.
 */
size_t kvd_gpu_worker_bytes(const kvd_config *c, const kvd_gpu_forward_spec *s,
                            const kvd_gpu_share *share, bool dense, bool streamed);

/*
 * Opens a worker on the device first_gpu + share->index, which becomes current. *w must be zeroed
 * before; the caller must close it after a failure too. If `dense`, exact attention is created;
 * otherwise every run needs an attention hook. Routed experts that do not fit are streamed
 * (kvd_gpu_forward_spec). Returns 0, or -1 with *err.
 */
int kvd_gpu_worker_open(kvd_gpu_worker *w, const kvd_checkpoint *c, const kvd_gpu_forward_spec *s,
                        const kvd_gpu_share *share, bool dense, kvd_err *err);
void kvd_gpu_worker_close(kvd_gpu_worker *w);

/*
 * Starts a batch of n tokens. Copies three arrays from the pinned memory `rows` to the device:
 * token ids, positions, and the index of each token's row in the RoPE tables; they begin max_tokens
 * elements apart. Clears the record of the first token row that is not finite (w->bad).
 */
int kvd_gpu_worker_begin(kvd_gpu_worker *w, const uint32_t *rows, size_t n, kvd_err *err);

/*
 * Both set the residual stream of n tokens. kvd_gpu_embedding sets it to the token embeddings.
 * kvd_gpu_residual_in sets it to `residual`, the input of layer `layer`, an array on the first GPU.
 */
int kvd_gpu_embedding(kvd_gpu_worker *w, size_t n, kvd_err *err);
int kvd_gpu_residual_in(kvd_gpu_worker *w, const float *residual, int layer, size_t n,
                        kvd_err *err);

/*
 * Computes one layer; if `stop`, only up to the attention output. After every layer except the
 * last, sums over GPUs of half a batch may still be running.
 */
int kvd_gpu_layer_run(kvd_gpu_worker *w, const kvd_batch *b, int layer, kvd_gpu_attention *hook,
                      int stop, kvd_err *err);

/*
 * Adds the outputs of the experts to the residual stream of n tokens; w->experts.normed holds their
 * input. Waits until the router has chosen the experts. The caller must then queue the sum over the
 * GPUs.
 */
int kvd_gpu_experts_add(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err);

/*
 * Checks the result of a kernel launch in phase p, and reports the phase to the callback w->queued.
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
 * Bytes per token that latent attention needs in the worker's buffers `wide` and `narrow`; 0 for
 * models without it.
 */
typedef struct {
    size_t wide, narrow;
} kvd_gpu_latent_sizes;
kvd_gpu_latent_sizes kvd_gpu_latent_sizes_of(const kvd_config *c, kvd_dtype type);
/*
 * Compute the parts of latent attention (model/pass/latent.h). kvd_gpu_latent_project computes Q, K
 * and V of n tokens before RoPE from w->normed into w->qkv; `stage` is the check number recorded
 * for a token that is not finite. kvd_gpu_latent_values computes values [n][n_heads][d_value] in
 * w->wide from the attention output in w->narrow.
 */
int kvd_gpu_latent_project(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, unsigned stage,
                           kvd_err *err);
int kvd_gpu_latent_values(const kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err);

/* Makes the main stream wait for the sums over GPUs that run on the second stream. */
int kvd_gpu_join_sums(kvd_gpu_worker *w, kvd_err *err);

/* Queues the sum over the GPUs of the residual streams of n tokens. Does nothing on one GPU. */
int kvd_gpu_residual_sum(const kvd_gpu_worker *w, size_t n, kvd_err *err);

/*
 * kvd_gpu_residual_out copies the residual stream to an array [n][d_model] on this GPU;
 * kvd_gpu_hidden_out writes the output of the final norm to such an array.
 */
int kvd_gpu_residual_out(kvd_gpu_worker *w, size_t n, float *residual, kvd_err *err);
int kvd_gpu_hidden_out(kvd_gpu_worker *w, size_t n, float *hidden, kvd_err *err);

/* Computes logits [n][vocab_size] from n <= max_tokens rows of the output head's input `hidden`. */
int kvd_gpu_head(kvd_gpu_worker *w, const float *hidden, size_t n, float *logits, kvd_err *err);
/* Computes logits as kvd_gpu_head does, from rows `in` of the element type of the pass. */
int kvd_gpu_head_of(kvd_gpu_worker *w, const void *in, size_t n, float *logits, kvd_err *err);

/*
 * Waits for the device and copies w->bad, the position of the first token row that is not finite,
 * to *bad.
 */
int kvd_gpu_worker_wait(kvd_gpu_worker *w, kvd_gpu_bad *bad, kvd_err *err);

/*
 * Returns the number (stage) of the check of the residual stream that enters layer `layer`;
 * n_layers means the check before the final norm.
 */
unsigned kvd_gpu_stage_before(int layer);
/* Returns the number (stage) of the check of the final norm's output. */
unsigned kvd_gpu_stage_final(const kvd_config *c);
/*
 * Writes the name that check number `stage` has in messages: "embedding", "layer 3" or "final
 * norm".
 */
void kvd_gpu_stage_name(const kvd_config *c, unsigned stage, char *to, size_t size);

#endif
