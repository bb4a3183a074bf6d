/*
 * Computes second moments on the device, in float64: X^T X of every head of Q, K and V (and of Q
 * and K before RoPE), as collect/sums.h does on the CPU. Products of two bf16 or float32 values
 * are exact in float64, so the sums differ from the CPU's only by the order of adding.
 */
#ifndef KVD_COLLECT_CUDA_MOMENTS_H
#define KVD_COLLECT_CUDA_MOMENTS_H

#include "formats/moments.h"
#include "model/pass/cuda/attention.h"

typedef struct kvd_gpu_moments kvd_gpu_moments;

/*
 * Creates zeroed sums on the current device for the heads that one GPU computes (`share`). `shape`
 * gives the model, the recorded layers and has_pre. On failure returns NULL and fills *err.
 */
kvd_gpu_moments *kvd_gpu_moments_new(const kvd_moments *shape, const kvd_gpu_share *share,
                                     kvd_err *err);
/*
 * Frees the sums `m`. Here and in all functions below, the device on which m was created must be
 * current.
 */
void kvd_gpu_moments_free(kvd_gpu_moments *m);
/* Returns the size in bytes of the device memory that kvd_gpu_moments_new allocates. */
size_t kvd_gpu_moments_bytes(const kvd_moments *shape, const kvd_gpu_share *share);

/*
 * Queues, on in->stream, the addition of X^T X of one layer's Q, K and V. A layer outside the
 * recorded range is ignored.
 */
int kvd_gpu_moments_add(kvd_gpu_moments *m, const kvd_gpu_attention_in *in, kvd_err *err);
/*
 * Queues the computation of the second moments of W_O and W_V of one layer. The results replace
 * those of an earlier call for that layer.
 */
int kvd_gpu_moments_weights(kvd_gpu_moments *m, const kvd_gpu_weights *w, int layer,
                            cudaStream_t stream, kvd_err *err);

/*
 * kvd_gpu_moments_get copies the sums of this GPU's heads to the host; kvd_gpu_moments_set copies
 * them from the host. Both wait for the stream first. A copy to the host and back does not change
 * any later result. kvd_gpu_moments_get fails if a sum is not finite, naming tensor, layer and
 * head.
 */
int kvd_gpu_moments_get(kvd_gpu_moments *m, kvd_moments *sums, cudaStream_t stream, kvd_err *err);
int kvd_gpu_moments_set(kvd_gpu_moments *m, const kvd_moments *sums, cudaStream_t stream,
                        kvd_err *err);

#endif
