/*
 * Second moments X^T X of every head's vectors on a GPU in float64; they differ from the CPU's only
 * by the order of addition.
 */
#ifndef KVD_COLLECT_CUDA_MOMENTS_H
#define KVD_COLLECT_CUDA_MOMENTS_H

#include "formats/moments.h"
#include "model/pass/cuda/attention.h"

typedef struct kvd_gpu_moments kvd_gpu_moments;

/*
 * Creates zeroed second moments for the heads of `share`; `shape`: model, recorded layers and
 * has_pre. On failure returns NULL and fills *err.
 */
kvd_gpu_moments *kvd_gpu_moments_new(const kvd_moments *shape, const kvd_gpu_share *share,
                                     kvd_err *err);
/* Frees *m. For all functions below, too, the device of *m must be current. */
void kvd_gpu_moments_free(kvd_gpu_moments *m);
/* Returns the device bytes of kvd_gpu_moments_new. */
size_t kvd_gpu_moments_bytes(const kvd_moments *shape, const kvd_gpu_share *share);

/* Queues on in->stream one layer's second moments. Ignores a layer that is not recorded. */
int kvd_gpu_moments_add(kvd_gpu_moments *m, const kvd_gpu_attention_in *in, kvd_err *err);
/* Queues a layer's second moments of W_O and W_V, which replace earlier ones. */
int kvd_gpu_moments_weights(kvd_gpu_moments *m, const kvd_gpu_weights *w, int layer,
                            cudaStream_t stream, kvd_err *err);

/*
 * Copy this GPU's second moments to the host (fails if one is not finite), or to the device. Both
 * wait for the stream.
 */
int kvd_gpu_moments_get(kvd_gpu_moments *m, kvd_moments *sums, cudaStream_t stream, kvd_err *err);
int kvd_gpu_moments_set(kvd_gpu_moments *m, const kvd_moments *sums, cudaStream_t stream,
                        kvd_err *err);

#endif
