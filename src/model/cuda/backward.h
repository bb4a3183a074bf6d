/*
 * The backward pass of every family on one GPU (model/backward.h is the CPU's; loss, draws and gradients are the same, and tests compare
 * them). All weights stay on the device.
 *
 * Products are cuBLAS's: KVD_F32 in float32 without TF32; KVD_BF16 from bf16 with float32 sums, the gradients that go into them rounded
 * to bf16. The residual stream, its gradient, and all that is handed out as a gradient are float32 in both, softmaxes and norms too.
 *
 * The residual that enters each layer is kept for the whole batch, 4 (n_layers + 1) max_tokens d_model bytes; what lies inside a layer is
 * computed again when its turn comes.
 */
#ifndef KVD_MODEL_CUDA_BACKWARD_H
#define KVD_MODEL_CUDA_BACKWARD_H

#include <stdint.h>

#include "common/cuda/libraries.h"
#include "common/cuda/memory.h"
#include "common/half.h"
#include "model/batch.h"
#include "model/checkpoint.h"

/* One layer of one batch, on the device. Rows of all sequences stand one after another, heads of a row side by side. Work is queued on
 * `stream`; the arrays are overwritten by what the pass queues there afterwards. */
typedef struct {
    const kvd_config *config;
    int layer;
    size_t n_sequences;
    const size_t *offset; /* host [n_sequences + 1]                                                  */
    size_t first_sequence, n_tokens;
    kvd_dtype type; /* of the pass                                                                   */
    /* of `type`: queries after RoPE, rows ld apart; outputs of attention [n_tokens][n_heads * d_head]; what the
     * projections read [n_tokens][d_model] */
    const void *q, *o, *in;
    size_t ld;
    /* float32: gradients with respect to queries, keys and values after RoPE, rows ld_d apart, and to
     * outputs of attention [n_tokens][n_heads * d_head] */
    const float *dq, *dk, *dv, *d_o;
    size_t ld_d;
    const float *dq_pre, *dk_pre; /* before RoPE, rows ld_pre apart; the same without              */
    size_t ld_pre;
    const float *dk_raw; /* before a norm of K, rows ld_d apart; the same where there is none        */
    cudaStream_t stream;
} kvd_gpu_gradients;

typedef struct {
    /* Queues what it does with a layer. Layers come from the last to the first. */
    int (*take)(void *ctx, const kvd_gpu_gradients *g, kvd_err *err);
    int (*give_up)(void *ctx, kvd_err *err); /* asked before every layer, both ways; NULL: never */
    void *ctx;
} kvd_gpu_gradient_sink;

typedef struct kvd_gpu_backward kvd_gpu_backward;

/* On device `gpu`, which is current on return, in KVD_F32 or KVD_BF16. The checkpoint is not needed afterwards. */
kvd_gpu_backward *kvd_gpu_backward_new(const kvd_checkpoint *c, kvd_dtype type, int gpu, size_t max_tokens,
                                       size_t max_len, kvd_err *err);
void kvd_gpu_backward_free(kvd_gpu_backward *w);

/* As kvd_backward_draw, with the same numbers: where logits agree, so do the tokens, but for a tie of rounding. */
void kvd_gpu_backward_draw(kvd_gpu_backward *w, uint64_t seed);

/* As kvd_backward_run. Returns after the device has finished, also what the sink queued; that has then seen the layers in front of a gradient
 * that is not finite, with whatever they became. */
int kvd_gpu_backward_run(kvd_gpu_backward *w, const kvd_batch *b, int first_layer,
                         const kvd_gpu_gradient_sink *sink, double *loss, size_t *n_predicted, kvd_err *err);

cudaStream_t kvd_gpu_backward_stream(const kvd_gpu_backward *w);
/* What runs, for provenance: "NVIDIA H200, bf16, cuBLAS 13.1.0". */
const char *kvd_gpu_backward_engine(const kvd_gpu_backward *w);

#endif
