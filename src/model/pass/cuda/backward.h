/*
 * Backward pass on one GPU (CPU: model/pass/backward.h), with equal losses, gradients and draws.
 *
 * KVD_F32 without TF32; KVD_BF16: products from bf16 with float32 sums; all else float32. Keeps
 * layer inputs, 4 (n_layers + 1) max_tokens d_model bytes, and recomputes all else.
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
 * Device gradients of one layer of one batch; row i is token i. Later work on `stream` overwrites
 * the arrays.
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
     * Q after RoPE (stride ld), attention output [n_tokens][n_heads * d_head], QKV input
     * [n_tokens][d_model].
     */
    const void *q, *o, *in;
    size_t ld;
    /* Gradients of Q, K after RoPE and V (stride ld_d), and of attention output. */
    const float *dq, *dk, *dv, *d_o;
    size_t ld_d;
    /* Gradients of Q and K before RoPE, token stride ld_pre; without RoPE: dq and dk. */
    const float *dq_pre, *dk_pre;
    size_t ld_pre;
    /* Gradient of K before its norm, token stride ld_d; without norm: dk_pre. */
    const float *dk_raw;
    cudaStream_t stream;
} kvd_gpu_gradients;

typedef struct {
    /* Queues work on a layer's gradients, last layer first; an error ends the run. */
    int (*take)(void *ctx, const kvd_gpu_gradients *g, kvd_err *err);
    /* Called before every layer of both passes; an error ends the run. Or NULL. */
    int (*give_up)(void *ctx, kvd_err *err);
    void *ctx;
} kvd_gpu_gradient_sink;

typedef struct kvd_gpu_backward kvd_gpu_backward;

/*
 * Device `gpu` is then current; the checkpoint may be closed. On failure returns NULL and fills
 * *err.
 */
kvd_gpu_backward *kvd_gpu_backward_new(const kvd_checkpoint *c, kvd_dtype type, int gpu,
                                       size_t max_tokens, size_t max_len, kvd_err *err);
void kvd_gpu_backward_free(kvd_gpu_backward *w);

/* Draws targets with the random numbers of kvd_backward_draw; rounding may change some. */
void kvd_gpu_backward_draw(kvd_gpu_backward *w, uint64_t seed);

/* kvd_backward_run on the device. Fails for non-finite gradients, after `take` received them. */
int kvd_gpu_backward_run(kvd_gpu_backward *w, const kvd_batch *b, int first_layer,
                         const kvd_gpu_gradient_sink *sink, double *loss, size_t *n_predicted,
                         kvd_err *err);

cudaStream_t kvd_gpu_backward_stream(const kvd_gpu_backward *w);
/* Returns a description such as "NVIDIA H200, bf16, cuBLAS 13.1.0". */
const char *kvd_gpu_backward_engine(const kvd_gpu_backward *w);

#endif
