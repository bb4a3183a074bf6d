/* The forward pass on one or several GPUs. KVD_F32 computes without TF32, KVD_BF16 with float32
 * sums. Equal batches on equal GPUs give equal bits. */
#ifndef KVD_MODEL_PASS_CUDA_FORWARD_H
#define KVD_MODEL_PASS_CUDA_FORWARD_H

#include "model/pass/cuda/attention.h"
#include "model/pass/forward.h"

enum { KVD_GPUS_MAX = 16 };

typedef struct kvd_gpu_forward kvd_gpu_forward;

typedef struct {
    kvd_dtype type; /* KVD_F32 or KVD_BF16 */
    int first_gpu, n_gpus;
    size_t max_tokens, max_len;
    /* weights already in device memory (one GPU only); NULL: load them */
    const kvd_gpu_weights *weights;
    /* largest number of bytes to use on a GPU; 0: all free memory */
    size_t memory;
    /* largest batch, in requests, that a serving engine decodes; 0 in a pass not for serving */
    size_t steps;
    /* true if experts must fit into device memory; false if they may be streamed */
    bool resident;
} kvd_gpu_forward_spec;

/* Returns how many bytes a forward pass takes on each GPU. */
size_t kvd_gpu_forward_bytes(const kvd_config *c, const kvd_gpu_forward_spec *s);

/* Loads the weights, unless s->weights is set. The checkpoint must stay open. */
kvd_gpu_forward *kvd_gpu_forward_new(const kvd_checkpoint *c, const kvd_gpu_forward_spec *s,
                                     kvd_err *err);
void kvd_gpu_forward_free(kvd_gpu_forward *f);

const kvd_gpu_weights *kvd_gpu_forward_weights(const kvd_gpu_forward *f, int gpu);
cudaStream_t kvd_gpu_forward_stream(const kvd_gpu_forward *f, int gpu);
/* Returns the hook for exact attention on GPU `gpu`. The forward pass owns it. */
kvd_gpu_attention *kvd_gpu_forward_dense(kvd_gpu_forward *f, int gpu);
/* Returns a description such as "2 x NVIDIA H200, bf16, cuBLAS 13.1.0, NCCL 2.28.9". */
const char *kvd_gpu_forward_engine(const kvd_gpu_forward *f);

/* GPU versions of model/pass/forward.h, with one hook per GPU or NULL for exact attention. Arrays
 * are float32 on the first GPU.
 *
 * All but kvd_gpu_forward_logits wait for the device. After an error on several GPUs, the pass can
 * only be freed. */
int kvd_gpu_forward_run(kvd_gpu_forward *f, const kvd_batch *b, kvd_gpu_attention *const *hook,
                        int last_layer, float *hidden, kvd_err *err);
int kvd_gpu_forward_residual(kvd_gpu_forward *f, const kvd_batch *b, kvd_gpu_attention *const *hook,
                             int layer, float *residual, kvd_err *err);
int kvd_gpu_forward_run_from(kvd_gpu_forward *f, const kvd_batch *b, kvd_gpu_attention *const *hook,
                             int first_layer, const float *residual, float *hidden, kvd_err *err);
/* Queues the logits of n tokens. The caller must check that they are finite. */
int kvd_gpu_forward_logits(kvd_gpu_forward *f, const float *hidden, size_t n, float *logits,
                           kvd_err *err);

/* phases that can be timed; KVD_GPU_SUM is the summation over GPUs */
typedef enum {
    KVD_GPU_EMBED,
    KVD_GPU_NORM,
    KVD_GPU_QKV,
    KVD_GPU_ROPE, /* includes the bias and norms of Q and K */
    KVD_GPU_ATTENTION,
    KVD_GPU_O,
    KVD_GPU_GATE_UP,
    KVD_GPU_ACTIVATION,
    KVD_GPU_DOWN,
    KVD_GPU_SUM,
    KVD_GPU_FINAL,
    KVD_GPU_PHASES
} kvd_gpu_phase;
const char *kvd_gpu_phase_name(kvd_gpu_phase p);

/* Is called when the work of a phase has been queued. */
typedef void (*kvd_gpu_queued)(void *ctx, kvd_gpu_phase p, cudaStream_t stream);
void kvd_gpu_forward_watch(kvd_gpu_forward *f, kvd_gpu_queued queued, void *ctx);

#endif
