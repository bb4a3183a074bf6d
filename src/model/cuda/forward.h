/*
 * The forward pass of every family on one or several GPUs (model/forward.h is the CPU's; what a layer computes is the
 * same, and tests compare them). All weights stay on the device.
 *
 * Products are cuBLAS's: KVD_F32 in float32 without TF32, KVD_BF16 from bf16 with float32 sums. The residual stream is float32 in
 * both. Equal batches on equal GPUs give equal bits; how sequences are grouped into batches changes results by rounding.
 */
#ifndef KVD_MODEL_CUDA_FORWARD_H
#define KVD_MODEL_CUDA_FORWARD_H

#include "model/cuda/attention.h"
#include "model/forward.h"

enum { KVD_GPUS_MAX = 16 };

typedef struct kvd_gpu_forward kvd_gpu_forward;

typedef struct {
    kvd_dtype type;        /* KVD_F32 or KVD_BF16                             */
    int first_gpu, n_gpus; /* CUDA device numbers; sums over NCCL when n_gpus > 1 */
    size_t max_tokens, max_len;
} kvd_gpu_forward_spec;

/* Bytes that a pass takes on each GPU: weights, activations, attention's scratch. */
size_t kvd_gpu_forward_bytes(const kvd_config *c, const kvd_gpu_forward_spec *s);

/* Loads all weights. The checkpoint is not needed afterwards. Device first_gpu is current on return. */
kvd_gpu_forward *kvd_gpu_forward_new(const kvd_checkpoint *c, const kvd_gpu_forward_spec *s, kvd_err *err);
void kvd_gpu_forward_free(kvd_gpu_forward *f);

const kvd_gpu_weights *kvd_gpu_forward_weights(const kvd_gpu_forward *f, int gpu); /* gpu 0 .. n_gpus - 1 */
cudaStream_t kvd_gpu_forward_stream(const kvd_gpu_forward *f, int gpu);
/* Dense attention of each GPU, made once with the pass. */
kvd_gpu_attention *kvd_gpu_forward_dense(kvd_gpu_forward *f, int gpu);
/* What runs, for provenance: "2 x NVIDIA H200, bf16, cuBLAS 13.1.0, NCCL 2.28.9, attention: sm_90a kernel". */
const char *kvd_gpu_forward_engine(const kvd_gpu_forward *f);

/*
 * As kvd_forward_run, kvd_forward_residual, kvd_forward_run_from and kvd_forward_logits; door [n_gpus] (NULL: dense attention);
 * residual, hidden and logits are arrays on the first GPU, float32. All but logits return after the device has finished, with
 * the same messages; what a door queued has then run. On several GPUs an error of a door or of CUDA is that of the first GPU to
 * fail, and the pass is good for nothing but kvd_gpu_forward_free afterwards.
 */
int kvd_gpu_forward_run(kvd_gpu_forward *f, const kvd_batch *b, kvd_gpu_attention *const *door,
                        int last_layer, float *hidden, kvd_err *err);
int kvd_gpu_forward_residual(kvd_gpu_forward *f, const kvd_batch *b, kvd_gpu_attention *const *door,
                             int layer, float *residual, kvd_err *err);
int kvd_gpu_forward_run_from(kvd_gpu_forward *f, const kvd_batch *b, kvd_gpu_attention *const *door,
                             int first_layer, const float *residual, float *hidden, kvd_err *err);
/* Queues on the first GPU's stream, in pieces of max_tokens rows; the caller checks the logits (analysis/cuda/quality.h does). */
int kvd_gpu_forward_logits(kvd_gpu_forward *f, const float *hidden, size_t n, float *logits, kvd_err *err);

/*
 * What a run queues, in this order in every layer that norms first; the sum over GPUs behind O (but not where attention and feed-forward
 * block are parallel) and behind down.
 */
typedef enum {
    KVD_GPU_EMBED,
    KVD_GPU_NORM,
    KVD_GPU_QKV,
    KVD_GPU_ROPE, /* with bias and norms of Q and K */
    KVD_GPU_ATTENTION,
    KVD_GPU_O,
    KVD_GPU_GATE_UP,
    KVD_GPU_ACTIVATION,
    KVD_GPU_DOWN,
    KVD_GPU_SUM, /* over several GPUs */
    KVD_GPU_FINAL,
    KVD_GPU_PHASES
} kvd_gpu_phase;
const char *kvd_gpu_phase_name(kvd_gpu_phase p);

/* For times: called when a phase has been queued on the first GPU's stream; NULL: no longer. */
typedef void (*kvd_gpu_queued)(void *ctx, kvd_gpu_phase p, cudaStream_t stream);
void kvd_gpu_forward_watch(kvd_gpu_forward *f, kvd_gpu_queued queued, void *ctx);

#endif
