/*
 * The backward pass of every family on one GPU. model/pass/backward.h is the CPU version; loss,
 * draws and gradients are the same, and tests compare them. All weights stay on the device.
 *
 * Products run on cuBLAS: KVD_F32 in float32 without TF32; KVD_BF16 from bf16 with float32 sums,
 * where the gradients that enter products are rounded to bf16. The residual stream, its gradient,
 * all gradients that the sink receives, softmaxes and norms are float32 in both.
 *
 * The residual that enters each layer is kept for the whole batch: 4 (n_layers + 1) max_tokens
 * d_model bytes. The activations inside a layer are recomputed when the backward pass reaches it.
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
 * The gradients of one layer of one batch, on the device. Rows of all sequences are contiguous, and
 * so are the heads of a row. Work is queued on `stream`; the pass overwrites the arrays in later
 * work on that stream.
 */
typedef struct {
    const kvd_config *config;
    int layer;
    size_t n_sequences;
    const size_t *offset; /* host [n_sequences + 1] */
    size_t first_sequence, n_tokens;
    kvd_dtype type; /* type of the pass */
    /*
     * Arrays of `type`: queries after RoPE, rows ld apart; outputs of attention [n_tokens][n_heads
     * * d_head]; inputs of the projections [n_tokens][d_model].
     */
    const void *q, *o, *in;
    size_t ld;
    /*
     * Gradients in float32 with respect to queries, keys and values after RoPE, rows ld_d apart,
     * and to outputs of attention [n_tokens][n_heads * d_head].
     */
    const float *dq, *dk, *dv, *d_o;
    size_t ld_d;
    /*
     * gradients of Q and K before RoPE, rows ld_pre apart; equal to dq and dk in a model without
     * RoPE
     */
    const float *dq_pre, *dk_pre;
    size_t ld_pre;
    /*
     * gradient of K before its norm, rows ld_d apart; equal to dk_pre in a model without this norm
     */
    const float *dk_raw;
    cudaStream_t stream;
} kvd_gpu_gradients;

typedef struct {
    /*
     * Callback that queues work on the gradients of one layer. It is called for the layers from the
     * last to the first.
     */
    int (*take)(void *ctx, const kvd_gpu_gradients *g, kvd_err *err);
    /*
     * Callback that may stop the run, called before every layer forward and backward; an error that
     * it returns ends the run. NULL: no callback.
     */
    int (*give_up)(void *ctx, kvd_err *err);
    void *ctx;
} kvd_gpu_gradient_sink;

typedef struct kvd_gpu_backward kvd_gpu_backward;

/*
 * Returns a new backward pass of type KVD_F32 or KVD_BF16 on device `gpu`, which is current on
 * return. The checkpoint is not needed afterwards.
 */
kvd_gpu_backward *kvd_gpu_backward_new(const kvd_checkpoint *c, kvd_dtype type, int gpu,
                                       size_t max_tokens, size_t max_len, kvd_err *err);
void kvd_gpu_backward_free(kvd_gpu_backward *w);

/*
 * Draws targets as kvd_backward_draw does, with the same random numbers. If logits agree with the
 * CPU's, so do the drawn tokens, except in a tie of rounding.
 */
void kvd_gpu_backward_draw(kvd_gpu_backward *w, uint64_t seed);

/*
 * Runs as kvd_backward_run does. Returns after the device has finished, including the work that the
 * sink queued. If a gradient is not finite, the sink has already received the layers below it, with
 * whatever values they had.
 */
int kvd_gpu_backward_run(kvd_gpu_backward *w, const kvd_batch *b, int first_layer,
                         const kvd_gpu_gradient_sink *sink, double *loss, size_t *n_predicted,
                         kvd_err *err);

cudaStream_t kvd_gpu_backward_stream(const kvd_gpu_backward *w);
/*
 * Returns the description of the engine that result files record, such as "NVIDIA H200, bf16,
 * cuBLAS 13.1.0".
 */
const char *kvd_gpu_backward_engine(const kvd_gpu_backward *w);

#endif
