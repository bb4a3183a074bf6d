/*
 * The backward pass of every model family on one GPU. model/pass/backward.h is the CPU version,
 * with the same losses, gradients and random draws.
 *
 * With KVD_F32, products are float32 without TF32. With KVD_BF16 their inputs, gradients included,
 * are rounded to bf16, and sums are float32. The residual stream, all gradients, softmaxes and
 * norms are float32 in both cases.
 *
 * The input of each layer is kept for the whole batch: 4 (n_layers + 1) max_tokens d_model bytes.
 * All other activations are recomputed.
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
    /* Host array: first token of each sequence, then n_tokens. */
    const size_t *offset;
    size_t first_sequence, n_tokens;
    kvd_dtype type; /* KVD_F32 or KVD_BF16 */
    /*
     * Arrays of `type`: queries after RoPE (q), tokens ld elements apart; outputs of attention (o)
     * [n_tokens][n_heads * d_head]; inputs of the projections to Q, K and V (in)
     * [n_tokens][d_model].
     */
    const void *q, *o, *in;
    size_t ld;
    /*
     * dq, dk and dv are the gradients of queries and keys after RoPE and of values; their tokens
     * are ld_d elements apart. d_o [n_tokens][n_heads * d_head] is the gradient of the attention
     * output.
     */
    const float *dq, *dk, *dv, *d_o;
    size_t ld_d;
    /*
     * Gradients of Q and K before RoPE, tokens ld_pre elements apart; equal to dq and dk without
     * RoPE.
     */
    const float *dq_pre, *dk_pre;
    size_t ld_pre;
    /*
     * Gradient of K before the norm of K; two adjacent tokens are ld_d elements apart. If the model
     * has no norm of K, it equals dk_pre.
     */
    const float *dk_raw;
    cudaStream_t stream;
} kvd_gpu_gradients;

typedef struct {
    /*
     * Callback that queues work on the gradients of one layer. It is called for the last layer
     * first. An error that it returns ends the run.
     */
    int (*take)(void *ctx, const kvd_gpu_gradients *g, kvd_err *err);
    /*
     * Callback that may end the run by returning an error. It is called before every layer of the
     * forward and of the backward pass; NULL if not needed.
     */
    int (*give_up)(void *ctx, kvd_err *err);
    void *ctx;
} kvd_gpu_gradient_sink;

typedef struct kvd_gpu_backward kvd_gpu_backward;

/*
 * Opens a backward pass on device `gpu`, which is current on return. `type` is KVD_F32 or KVD_BF16.
 * The caller may close the checkpoint afterwards. On failure returns NULL and fills *err.
 */
kvd_gpu_backward *kvd_gpu_backward_new(const kvd_checkpoint *c, kvd_dtype type, int gpu,
                                       size_t max_tokens, size_t max_len, kvd_err *err);
void kvd_gpu_backward_free(kvd_gpu_backward *w);

/*
 * Makes later runs draw target tokens from the model's probabilities, with the random numbers of
 * kvd_backward_draw. Rounding may change the drawn token if its random number is close to a
 * boundary.
 */
void kvd_gpu_backward_draw(kvd_gpu_backward *w, uint64_t seed);

/*
 * Computes gradients and loss as kvd_backward_run does. Returns after the device has finished,
 * including the work of the callbacks. Fails if a gradient is not finite, but only after the
 * callback `take` has received it.
 */
int kvd_gpu_backward_run(kvd_gpu_backward *w, const kvd_batch *b, int first_layer,
                         const kvd_gpu_gradient_sink *sink, double *loss, size_t *n_predicted,
                         kvd_err *err);

cudaStream_t kvd_gpu_backward_stream(const kvd_gpu_backward *w);
/* Returns a description such as "NVIDIA H200, bf16, cuBLAS 13.1.0". */
const char *kvd_gpu_backward_engine(const kvd_gpu_backward *w);

#endif
