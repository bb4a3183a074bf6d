/* The forward pass on one or several GPUs. KVD_F32 computes without TF32; KVD_BF16 adds products in
 * float32. Equal batches on equal GPUs give equal bits. */
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
    /* weights that are already in device memory, for one GPU only; if NULL, kvd_gpu_forward_new
     * loads the weights */
    const kvd_gpu_weights *weights;
    /* largest number of bytes to use on each GPU; 0 means all free memory */
    size_t memory;
    /* largest batch, in requests, that a serving engine decodes with this pass; 0 if it is not for
     * serving */
    size_t steps;
    /* true if all experts must be in device memory; false if they may be streamed from the host */
    bool resident;
} kvd_gpu_forward_spec;

/* Returns how many bytes a forward pass takes on each GPU. */
size_t kvd_gpu_forward_bytes(const kvd_config *c, const kvd_gpu_forward_spec *s);

/* Creates a forward pass. Loads the weights, unless s->weights is set. The checkpoint must stay
 * open. */
kvd_gpu_forward *kvd_gpu_forward_new(const kvd_checkpoint *c, const kvd_gpu_forward_spec *s,
                                     kvd_err *err);
void kvd_gpu_forward_free(kvd_gpu_forward *f);

const kvd_gpu_weights *kvd_gpu_forward_weights(const kvd_gpu_forward *f, int gpu);
cudaStream_t kvd_gpu_forward_stream(const kvd_gpu_forward *f, int gpu);
/* Returns the hook that computes exact attention on GPU `gpu`. The hook belongs to the forward
 * pass. */
kvd_gpu_attention *kvd_gpu_forward_dense(kvd_gpu_forward *f, int gpu);
/* Returns a description of GPUs and libraries, such as "2 x NVIDIA H200, bf16, cuBLAS 13.1.0, NCCL
 * 2.28.9". */
const char *kvd_gpu_forward_engine(const kvd_gpu_forward *f);

/* GPU versions of functions in model/pass/forward.h. `hook` has an attention hook per GPU, or is
 * NULL for exact attention. Arrays are float32, on the first GPU.
 *
 * All functions except kvd_gpu_forward_logits wait for the GPUs. If a function fails and `f` uses
 * several GPUs, the caller can only free `f`. */
int kvd_gpu_forward_run(kvd_gpu_forward *f, const kvd_batch *b, kvd_gpu_attention *const *hook,
                        int last_layer, float *hidden, kvd_err *err);
int kvd_gpu_forward_residual(kvd_gpu_forward *f, const kvd_batch *b, kvd_gpu_attention *const *hook,
                             int layer, float *residual, kvd_err *err);
int kvd_gpu_forward_run_from(kvd_gpu_forward *f, const kvd_batch *b, kvd_gpu_attention *const *hook,
                             int first_layer, const float *residual, float *hidden, kvd_err *err);
/* Queues the computation of n tokens' logits. The caller must check that the logits are finite. */
int kvd_gpu_forward_logits(kvd_gpu_forward *f, const float *hidden, size_t n, float *logits,
                           kvd_err *err);

/* phases of the forward pass that can be timed; KVD_GPU_SUM is the summation over GPUs */
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

/* Callback: is called when the work of phase p has been queued on `stream`. */
typedef void (*kvd_gpu_queued)(void *ctx, kvd_gpu_phase p, cudaStream_t stream);
void kvd_gpu_forward_watch(kvd_gpu_forward *f, kvd_gpu_queued queued, void *ctx);

#endif
