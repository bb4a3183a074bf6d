/*
 * The backward pass of every model family on one GPU. model/pass/backward.h is the CPU version;
 * both compute the same losses and gradients and draw the same random target tokens, and tests
 * compare them. All weights stay on the device.
 *
 * Products run on cuBLAS. With KVD_F32 they are float32 without TF32. With KVD_BF16 their inputs,
 * gradients included, are rounded to bf16, and sums are float32. The residual stream, its gradient,
 * the gradients of Q, K, V and attention output, softmaxes and norms are float32 in both cases.
 *
 * The input of each layer is kept for the whole batch: 4 (n_layers + 1) max_tokens d_model bytes.
 * The activations inside a layer are recomputed when the backward pass reaches it.
 */
#ifndef KVD_MODEL_PASS_CUDA_BACKWARD_H
#define KVD_MODEL_PASS_CUDA_BACKWARD_H

#include <stdint.h>

#include "common/cuda/libraries.h"
#include "common/cuda/memory.h"
#include "common/half.h"
#include "model/checkpoint/checkpoint.h"
#include "model/pass/batch.h"

/*
 * The gradients of one layer of one batch, on the device. Row i of each array belongs to token i of
 * the batch; the heads of a token follow one another. The callback queues its work on `stream`; the
 * backward pass overwrites the arrays in later work on that stream.
 */
typedef struct {
    const kvd_config *config;
    int layer;
    size_t n_sequences;
    /* Host array: first token of each of the n_sequences sequences, followed by n_tokens. */
    const size_t *offset;
    size_t first_sequence, n_tokens;
    kvd_dtype type; /* element type of the pass: KVD_F32 or KVD_BF16 */
    /*
     * Arrays of `type`: queries after RoPE (q), tokens ld elements apart; outputs of attention (o)
     * [n_tokens][n_heads * d_head]; inputs of the projections to Q, K and V (in)
     * [n_tokens][d_model].
     */
    const void *q, *o, *in;
    size_t ld;
    /*
     * Gradients in float32 with respect to queries and keys after RoPE and to values, tokens ld_d
     * elements apart, and to outputs of attention (d_o) [n_tokens][n_heads * d_head].
     */
    const float *dq, *dk, *dv, *d_o;
    size_t ld_d;
    /*
     * Gradients of Q and K before RoPE, tokens ld_pre elements apart; equal to dq and dk in a model
     * without RoPE.
     */
    const float *dq_pre, *dk_pre;
    size_t ld_pre;
    /*
     * Gradient of K before the norm of K, tokens ld_d elements apart; equal to dk_pre in a model
     * without this norm.
     */
    const float *dk_raw;
    cudaStream_t stream;
} kvd_gpu_gradients;

typedef struct {
    /*
     * Callback that queues work on the gradients of one layer. It is called for layers from the
     * last to the first. An error that it returns ends the run.
     */
    int (*take)(void *ctx, const kvd_gpu_gradients *g, kvd_err *err);
    /*
     * Callback that may stop the run, or NULL. It is called before every layer of the forward and
     * of the backward pass; an error that it returns ends the run.
     */
    int (*give_up)(void *ctx, kvd_err *err);
    void *ctx;
} kvd_gpu_gradient_sink;

typedef struct kvd_gpu_backward kvd_gpu_backward;

/*
 * Returns a new backward pass of element type KVD_F32 or KVD_BF16 on CUDA device `gpu`, which is
 * current on return. The checkpoint is not needed afterwards. On failure returns NULL and fills
 * *err.
 */
kvd_gpu_backward *kvd_gpu_backward_new(const kvd_checkpoint *c, kvd_dtype type, int gpu,
                                       size_t max_tokens, size_t max_len, kvd_err *err);
void kvd_gpu_backward_free(kvd_gpu_backward *w);

/*
 * Makes later runs draw the target token of each position from the model's probabilities, as
 * kvd_backward_draw does, with the same random numbers. If logits are equal to the CPU's, the drawn
 * tokens are equal too, except if the random number is so close to the boundary between two tokens
 * that rounding decides.
 */
void kvd_gpu_backward_draw(kvd_gpu_backward *w, uint64_t seed);

/*
 * Computes gradients and loss as kvd_backward_run does. Returns after the device has finished,
 * including the work that the callbacks queued. If a gradient is not finite, fails, but `take` has
 * already been called for the layers below it, with whatever values they had.
 */
int kvd_gpu_backward_run(kvd_gpu_backward *w, const kvd_batch *b, int first_layer,
                         const kvd_gpu_gradient_sink *sink, double *loss, size_t *n_predicted,
                         kvd_err *err);

cudaStream_t kvd_gpu_backward_stream(const kvd_gpu_backward *w);
/*
 * Returns the description of device and libraries that result files record, such as "NVIDIA H200,
 * bf16, cuBLAS 13.1.0".
 */
const char *kvd_gpu_backward_engine(const kvd_gpu_backward *w);

#endif
