/*
 * Second moments X^T X of the vectors X of every head, computed on a GPU in float64. They differ
 * from the CPU's results only by the order of addition.
 */
#ifndef KVD_COLLECT_CUDA_MOMENTS_H
#define KVD_COLLECT_CUDA_MOMENTS_H

#include "formats/moments.h"
#include "model/pass/cuda/attention.h"

typedef struct kvd_gpu_moments kvd_gpu_moments;

/*
 * Creates zeroed second moments for the heads of `share`. `shape` gives the model, the recorded
 * layers and has_pre. On failure returns NULL and fills *err.
 */
kvd_gpu_moments *kvd_gpu_moments_new(const kvd_moments *shape, const kvd_gpu_share *share,
                                     kvd_err *err);
/* Frees *m. The device on which m was created must be current, as for all functions below. */
void kvd_gpu_moments_free(kvd_gpu_moments *m);
/* Returns the bytes of device memory that kvd_gpu_moments_new allocates. */
size_t kvd_gpu_moments_bytes(const kvd_moments *shape, const kvd_gpu_share *share);

/*
 * Queues, on in->stream, the addition of the second moments of one layer's Q, K and V. Ignores a
 * layer that is not recorded.
 */
int kvd_gpu_moments_add(kvd_gpu_moments *m, const kvd_gpu_attention_in *in, kvd_err *err);
/*
 * Queues the computation of the second moments of W_O and W_V of a layer. They replace the second
 * moments that an earlier call computed for the same layer.
 */
int kvd_gpu_moments_weights(kvd_gpu_moments *m, const kvd_gpu_weights *w, int layer,
                            cudaStream_t stream, kvd_err *err);

/*
 * kvd_gpu_moments_get copies the second moments of this GPU's heads to the host, and fails if one
 * is not finite. kvd_gpu_moments_set copies them to the device. Both wait for the stream.
 */
int kvd_gpu_moments_get(kvd_gpu_moments *m, kvd_moments *sums, cudaStream_t stream, kvd_err *err);
int kvd_gpu_moments_set(kvd_gpu_moments *m, const kvd_moments *sums, cudaStream_t stream,
                        kvd_err *err);

#endif
