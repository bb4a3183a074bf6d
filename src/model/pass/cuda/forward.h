/*
 * The forward pass of every model family on one or several GPUs (model/pass/forward.h is the CPU
 * version).
 *
 * Products run on cuBLAS: KVD_F32 in float32 without TF32, KVD_BF16 from bf16 with float32 sums.
 * The residual stream is float32 in both cases. Equal batches on equal GPUs give bitwise equal
 * results. The grouping of sequences into batches changes results by rounding.
 */
#ifndef KVD_MODEL_PASS_CUDA_FORWARD_H
#define KVD_MODEL_PASS_CUDA_FORWARD_H

#include "model/pass/cuda/attention.h"
#include "model/pass/forward.h"

enum { KVD_GPUS_MAX = 16 };

typedef struct kvd_gpu_forward kvd_gpu_forward;

typedef struct {
    kvd_dtype type; /* KVD_F32 or KVD_BF16 */
    /* First CUDA device number, and number of devices. */
    int first_gpu, n_gpus;
    size_t max_tokens, max_len;
    /*
     * Borrowed weights of the whole model on the device, of data type `type`; only with one GPU.
     * NULL: the pass loads its own weights.
     */
    const kvd_gpu_weights *weights;
    /*
     * Largest number of bytes that the forward pass may take on each GPU. 0 means the free memory;
     * if possible, a twentieth of the device's memory stays free. Routed experts that do not fit
     * are streamed (model/checkpoint/cuda/weights.h), with the same results.
     */
    size_t memory;
    /*
     * For the serving engine: largest number of decode steps of a batch; 0 in other programs.
     * Routed experts of batches of up to this number of tokens are then computed without waiting
     * for the device. Larger batches with few tokens per expert are also computed without waiting
     * (kvd_gpu_experts_stay). The experts of a layer count as one timed phase.
     */
    size_t steps;
    /* True: routed experts that do not fit are an error, and are not streamed. */
    bool resident;
} kvd_gpu_forward_spec;

/*
 * Returns the bytes that a forward pass takes on each GPU. If s->memory is not 0 and too small for
 * all routed experts, only the buffers for streaming them are counted.
 */
size_t kvd_gpu_forward_bytes(const kvd_config *c, const kvd_gpu_forward_spec *s);

/*
 * Loads all weights, unless s->weights has them. The checkpoint must stay open as long as the pass
 * exists. Device first_gpu is current on return. On failure returns NULL and fills *err.
 */
kvd_gpu_forward *kvd_gpu_forward_new(const kvd_checkpoint *c, const kvd_gpu_forward_spec *s,
                                     kvd_err *err);
void kvd_gpu_forward_free(kvd_gpu_forward *f);

const kvd_gpu_weights *kvd_gpu_forward_weights(const kvd_gpu_forward *f, int gpu);
cudaStream_t kvd_gpu_forward_stream(const kvd_gpu_forward *f, int gpu);
/*
 * Returns the hook for exact attention on GPU number `gpu`; the hook belongs to the forward pass.
 */
kvd_gpu_attention *kvd_gpu_forward_dense(kvd_gpu_forward *f, int gpu);
/*
 * Returns a text such as "2 x NVIDIA H200, bf16, cuBLAS 13.1.0, NCCL 2.28.9, attention: sm_90a
 * kernel". The text ends with ", experts streamed" if routed experts are streamed.
 */
const char *kvd_gpu_forward_engine(const kvd_gpu_forward *f);

/*
 * GPU versions of the functions in model/pass/forward.h. `hook` has one attention hook per GPU;
 * NULL means exact attention. residual, hidden and logits are float32 arrays on the first GPU.
 *
 * All functions except kvd_gpu_forward_logits return after the device has finished, including the
 * work that the hooks queued. On several GPUs, an error is reported for the first GPU that fails;
 * the caller may then only free the forward pass.
 */
int kvd_gpu_forward_run(kvd_gpu_forward *f, const kvd_batch *b, kvd_gpu_attention *const *hook,
                        int last_layer, float *hidden, kvd_err *err);
int kvd_gpu_forward_residual(kvd_gpu_forward *f, const kvd_batch *b, kvd_gpu_attention *const *hook,
                             int layer, float *residual, kvd_err *err);
int kvd_gpu_forward_run_from(kvd_gpu_forward *f, const kvd_batch *b, kvd_gpu_attention *const *hook,
                             int first_layer, const float *residual, float *hidden, kvd_err *err);
/*
 * Queues the computation of logits on the first GPU's stream. The caller must check that the logits
 * are finite, for example with the functions of evaluate/cuda/quality.h.
 */
int kvd_gpu_forward_logits(kvd_gpu_forward *f, const float *hidden, size_t n, float *logits,
                           kvd_err *err);

/*
 * Phases of a forward pass that can be timed, in the order in which a layer executes them that has
 * its norms before attention and before the feed-forward block. KVD_GPU_SUM, the sum over several
 * GPUs, takes place twice: after KVD_GPU_O and after KVD_GPU_DOWN. In layers of KVD_ORDER_PARALLEL
 * it takes place only after KVD_GPU_DOWN.
 */
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

/*
 * Callback that is called when the work of a phase has been queued on the first GPU's stream.
 * kvd_gpu_forward_watch sets the callback or, if `queued` is NULL, removes it.
 */
typedef void (*kvd_gpu_queued)(void *ctx, kvd_gpu_phase p, cudaStream_t stream);
void kvd_gpu_forward_watch(kvd_gpu_forward *f, kvd_gpu_queued queued, void *ctx);

#endif
