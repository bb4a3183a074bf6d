/*
 * The backward pass on one GPU (model/pass/backward.h on the CPU).
 *
 * With KVD_BF16, inputs of products are rounded to bf16; all else is float32. The input of each
 * layer is kept, 4 (n_layers + 1) max_tokens d_model bytes; all other activations are recomputed.
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
 * Gradients of the loss in one layer of a batch, in device memory. They are valid until later work
 * on `stream`.
 */
typedef struct {
    const kvd_config *config;
    int layer;
    size_t n_sequences;
    /* Host array [n_sequences + 1]: first token of each sequence, then n_tokens. */
    const size_t *offset;
    size_t first_sequence, n_tokens;
    kvd_dtype type; /* KVD_F32 or KVD_BF16 */
    /*
     * Queries after RoPE (rows ld elements apart), attention outputs, and inputs of the QKV
     * projections.
     */
    const void *q, *o, *in;
    size_t ld;
    /* Gradients by Q and K after RoPE, by V, and by the attention output. */
    const float *dq, *dk, *dv, *d_o;
    size_t ld_d;
    /* Gradients by Q and K before RoPE. Equal to dq and dk in models without RoPE. */
    const float *dq_pre, *dk_pre;
    size_t ld_pre;
    /* Gradient by K before its norm. Equal to dk_pre in models that do not norm keys. */
    const float *dk_raw;
    cudaStream_t stream;
} kvd_gpu_gradients;

typedef struct {
    /*
     * Callback that queues work on the gradients of each layer, from the last layer to the first.
     */
    int (*take)(void *ctx, const kvd_gpu_gradients *g, kvd_err *err);
    /* Callback before every layer. If it returns an error, the run ends. May be NULL. */
    int (*give_up)(void *ctx, kvd_err *err);
    void *ctx;
} kvd_gpu_gradient_sink;

typedef struct kvd_gpu_backward kvd_gpu_backward;

/*
 * Opens a backward pass on device `gpu`, which is then current. On failure returns NULL and fills
 * *err.
 */
kvd_gpu_backward *kvd_gpu_backward_new(const kvd_checkpoint *c, kvd_dtype type, int gpu,
                                       size_t max_tokens, size_t max_len, kvd_err *err);
void kvd_gpu_backward_free(kvd_gpu_backward *w);

/*
 * Makes later runs draw target tokens from the model, with the random numbers of kvd_backward_draw.
 */
void kvd_gpu_backward_draw(kvd_gpu_backward *w, uint64_t seed);

/* Computes loss and gradients of a batch as kvd_backward_run does, and waits for the device. */
int kvd_gpu_backward_run(kvd_gpu_backward *w, const kvd_batch *b, int first_layer,
                         const kvd_gpu_gradient_sink *sink, double *loss, size_t *n_predicted,
                         kvd_err *err);

cudaStream_t kvd_gpu_backward_stream(const kvd_gpu_backward *w);
/*
 * Returns a description of device, number type and library, such as "NVIDIA H200, bf16, cuBLAS
 * 13.1.0".
 */
const char *kvd_gpu_backward_engine(const kvd_gpu_backward *w);

#endif
