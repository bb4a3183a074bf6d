/*
 * One GPU of a forward pass: its share of the weights, its buffers, its stream, and its computation
 * of a batch, from the embedding through the layers to the final norm (model/pass/layer.h and
 * model/pass/forward.h on the CPU).
 *
 * All work is queued on the stream. With several GPUs each holds the whole residual stream. The
 * products of O and of down are written into it: the first GPU adds its product to the residual,
 * the others overwrite it, and the sum over the GPUs is the new residual. Batches of many rows are
 * split into two halves, so that the sum of one half runs on a second stream in parallel with the
 * products of the other. KVD_GPU_SUM is then the time that the products wait for a sum.
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
    float *normed; /* [max_tokens][d_model] input of the router, `normed` in a float32 pass */
    void *in;      /* [max_tokens][d_model] rows of one expert, of the type of the pass */
    float *out;    /* [max_tokens][d_model] output of one expert */
    float *shared; /* [max_tokens] factors of the shared expert's output */
    kvd_gpu_routes routes;
    uint32_t *count; /* pinned [n_experts] copy of routes.count */
} kvd_gpu_expert_buffers;

typedef struct {
    kvd_config config;
    int device;
    size_t max_tokens, max_len;
    kvd_gpu_weights weights;
    bool borrowed;        /* true if the arrays of `weights` belong to another owner */
    kvd_gpu_dense *dense; /* dense attention, or NULL */
    kvd_gpu_sum *sum;     /* sum over the GPUs, borrowed; NULL on one GPU */
    cudaStream_t stream;
    cudaStream_t sums; /* stream for the sums of halves */
    /* events for each half of the residual's rows: recorded before and after its sum over GPUs */
    cudaEvent_t written[2], summed[2];
    const kvd_cublas *lib;
    cublasHandle_t blas;
    kvd_gpu_queued queued; /* callback for timing, or NULL */
    void *queued_ctx;

    /* Buffers, of the type of the pass unless a comment names another type; rows are tokens. */
    kvd_device_memory memory;
    float *x;     /* [max_tokens][d_model] float32, the residual stream */
    void *normed; /* [max_tokens][d_model], input of the products */
    /*
     * [max_tokens][d_model], normed input of the feed-forward block if it is another norm of the
     * layer's input than attention's (parallel blocks); else NULL
     */
    void *second;
    /*
     * [max_tokens][d_model] float32, output of a branch with a norm after it; NULL in models
     * without such norms
     */
    float *branch;
    float *factor; /* [max_tokens][2] of norms over all heads of Q and K (kvd_gpu_qkv); else NULL */
    kvd_gpu_expert_buffers experts;
    void *qkv; /* [max_tokens][(n_heads + 2 n_kv_heads) * d_head] of the share */
    /*
     * buffer for gate and up; earlier in a layer for Q and K before RoPE, or before the layers for
     * the embedding that is then projected
     */
    void *wide;
    void *narrow; /* output of the activation; earlier in a layer the attention output */
    uint32_t *id, *position, *rope_row; /* [max_tokens] each, in one array */
    float *cosine, *sine;
    kvd_gpu_bad *bad; /* position of the first row that is not finite */

    /* state of the batch that is being computed */
    /*
     * addition to the residual that the next norm makes: a bias, added to every row, or `branch`,
     * whose rows are added; NULL: none
     */
    const float *pending;
    unsigned stage; /* stage recorded for a row of the residual that is not finite now */
    /*
     * bit set over the halves of the rows: bit i is 1 until `stream` has waited for the sum of half
     * i
     */
    unsigned under_way;
} kvd_gpu_worker;

/*
 * Returns the bytes of device memory that kvd_gpu_worker_open allocates, with all weights resident
 * or with streamed experts.
 */
size_t kvd_gpu_worker_bytes(const kvd_config *c, const kvd_gpu_forward_spec *s,
                            const kvd_gpu_share *share, bool dense, bool streamed);

/*
 * Opens a worker on the device first_gpu + share->index, which becomes current. *w must be zeroed
 * before; close it after a failure too. If `dense` is set, dense attention is created; otherwise
 * every run must bring a hook. Experts that do not fit are streamed (kvd_gpu_forward_spec).
 */
int kvd_gpu_worker_open(kvd_gpu_worker *w, const kvd_checkpoint *c, const kvd_gpu_forward_spec *s,
                        const kvd_gpu_share *share, bool dense, kvd_err *err);
void kvd_gpu_worker_close(kvd_gpu_worker *w);

/*
 * Copies ids, positions and rope rows of n tokens, max_tokens apart in pinned memory, to the
 * device, and clears the record of bad rows.
 */
int kvd_gpu_worker_begin(kvd_gpu_worker *w, const uint32_t *rows, size_t n, kvd_err *err);

/*
 * Set the residual to the embedding, or to a given residual (on the first GPU) that enters `layer`.
 */
int kvd_gpu_embedding(kvd_gpu_worker *w, size_t n, kvd_err *err);
int kvd_gpu_residual_in(kvd_gpu_worker *w, const float *residual, int layer, size_t n,
                        kvd_err *err);

/*
 * Runs one layer; with `stop` only up to its attention output. After any layer but the last, sums
 * over GPUs of halves of the rows may still be running.
 */
int kvd_gpu_layer_run(kvd_gpu_worker *w, const kvd_batch *b, int layer, kvd_gpu_attention *hook,
                      int stop, kvd_err *err);

/*
 * Adds the outputs of the experts to the residual of n tokens; w->experts.normed holds their input.
 * Waits for the routing of the tokens. The sum over the GPUs must follow.
 */
int kvd_gpu_experts_add(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err);

/*
 * Checks the result of a kernel launch of phase p, and reports the phase to the callback w->queued.
 */
int kvd_gpu_launched(const kvd_gpu_worker *w, cudaError_t e, kvd_gpu_phase p, kvd_err *err);

/*
 * Computes y [n][out] = x [n][in] W^T, or adds it to y if `add` is set. x and the matrix W
 * [out][in] have `type`.
 */
int kvd_gpu_product(const kvd_gpu_worker *w, const void *x, const void *matrix, kvd_dtype type,
                    size_t n, size_t in, size_t out, void *y, kvd_dtype y_type, int add,
                    kvd_gpu_phase p, kvd_err *err);

/*
 * Latent attention (model/pass/latent.h). kvd_gpu_latent_project computes Q, K and V of n tokens
 * before RoPE from w->normed into w->qkv; `stage` is recorded for a row that is not finite.
 * kvd_gpu_latent_values computes [n][n_heads][d_value] in w->wide from the attention output in
 * w->narrow.
 */
/*
 * Numbers of bytes per token that latent attention needs in w->wide and w->narrow; 0 for models
 * without it.
 */
typedef struct {
    size_t wide, narrow;
} kvd_gpu_latent_sizes;
kvd_gpu_latent_sizes kvd_gpu_latent_sizes_of(const kvd_config *c, kvd_dtype type);
int kvd_gpu_latent_project(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, unsigned stage,
                           kvd_err *err);
int kvd_gpu_latent_values(const kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err);

/* Makes the main stream wait for the sums over GPUs that run on the second stream. */
int kvd_gpu_join_sums(kvd_gpu_worker *w, kvd_err *err);

/* Queues the sum over the GPUs of the n rows in the residual buffers. Does nothing on one GPU. */
int kvd_gpu_residual_sum(const kvd_gpu_worker *w, size_t n, kvd_err *err);

/* Copy the residual, or the output of the final norm, to an array [n][d_model] on this GPU. */
int kvd_gpu_residual_out(kvd_gpu_worker *w, size_t n, float *residual, kvd_err *err);
int kvd_gpu_hidden_out(kvd_gpu_worker *w, size_t n, float *hidden, kvd_err *err);

/* Computes the output head: logits [n][vocab_size] of n <= max_tokens rows of hidden. */
int kvd_gpu_head(kvd_gpu_worker *w, const float *hidden, size_t n, float *logits, kvd_err *err);
/* Computes the logits as kvd_gpu_head does, from rows of the pass's type. */
int kvd_gpu_head_of(kvd_gpu_worker *w, const void *in, size_t n, float *logits, kvd_err *err);

/*
 * Waits for the device and copies w->bad, the record of the first row that is not finite, to *bad.
 */
int kvd_gpu_worker_wait(kvd_gpu_worker *w, kvd_gpu_bad *bad, kvd_err *err);

/*
 * Returns the check number (stage) of the residual that enters a layer; layer n_layers means the
 * final norm.
 */
unsigned kvd_gpu_stage_before(int layer);
/* Returns the check number (stage) of the output of the final norm. */
unsigned kvd_gpu_stage_final(const kvd_config *c);
/* Writes the name that a check (stage) has in messages: "embedding", "layer 3" or "final norm". */
void kvd_gpu_stage_name(const kvd_config *c, unsigned stage, char *to, size_t size);

#endif
