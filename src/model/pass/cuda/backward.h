/* The backward pass on one GPU, as in model/pass/backward.h.
 *
 * With KVD_BF16, inputs of matrix products are rounded to bf16; all else is float32. The inputs of
 * all layers are kept, which takes 4 (n_layers + 1) max_tokens d_model bytes. */
#ifndef KVD_MODEL_PASS_CUDA_BACKWARD_H
#define KVD_MODEL_PASS_CUDA_BACKWARD_H

#include <stdint.h>

#include "common/cuda/libraries.h"
#include "common/cuda/memory.h"
#include "common/half.h"
#include "model/checkpoint/checkpoint.h"
#include "model/pass/batch.h"

/* gradients of the loss in one layer, in device memory; work that is queued later on `stream` may
 * overwrite them */
typedef struct {
    const kvd_config *config;
    int layer;
    size_t n_sequences;
    /* host array [n_sequences + 1]: index of the first token of each sequence, then n_tokens */
    const size_t *offset;
    size_t first_sequence, n_tokens;
    kvd_dtype type; /* KVD_F32 or KVD_BF16 */
    /* queries after RoPE, attention outputs, and input of the projections to Q, K and V; tokens of
     * q are ld elements apart */
    const void *q, *o, *in;
    size_t ld;
    /* gradients of Q and K after RoPE, of V, and of the attention output */
    const float *dq, *dk, *dv, *d_o;
    size_t ld_d;
    /* gradients of Q and K before RoPE */
    const float *dq_pre, *dk_pre;
    size_t ld_pre;
    /* gradient of the key projection's output, which is K without norm and RoPE */
    const float *dk_raw;
    cudaStream_t stream;
} kvd_gpu_gradients;

typedef struct {
    /* Receives the gradients of each layer, from the last layer to the first, and queues work on
     * them. */
    int (*take)(void *ctx, const kvd_gpu_gradients *g, kvd_err *err);
    /* Is called before every layer; if it fails, the backward pass ends. May be NULL. */
    int (*give_up)(void *ctx, kvd_err *err);
    void *ctx;
} kvd_gpu_gradient_sink;

typedef struct kvd_gpu_backward kvd_gpu_backward;

/* Creates a backward pass on GPU `gpu`, which becomes the current device. */
kvd_gpu_backward *kvd_gpu_backward_new(const kvd_checkpoint *c, kvd_dtype type, int gpu,
                                       size_t max_tokens, size_t max_len, kvd_err *err);
void kvd_gpu_backward_free(kvd_gpu_backward *w);

/* Makes later runs predict, in place of the text's next tokens, random tokens drawn from the
 * model's probabilities. */
void kvd_gpu_backward_draw(kvd_gpu_backward *w, uint64_t seed);

/* Computes the loss of a batch, passes the gradients of layers n_layers - 1 .. first_layer to
 * *sink, and waits for the device. */
int kvd_gpu_backward_run(kvd_gpu_backward *w, const kvd_batch *b, int first_layer,
                         const kvd_gpu_gradient_sink *sink, double *loss, size_t *n_predicted,
                         kvd_err *err);

cudaStream_t kvd_gpu_backward_stream(const kvd_gpu_backward *w);
/* Returns a description of the GPU and libraries, such as "NVIDIA H200, bf16, cuBLAS 13.1.0". */
const char *kvd_gpu_backward_engine(const kvd_gpu_backward *w);

#endif
