/* Second moments X^T X of the vectors X of every head, computed on a GPU in float64. */
#ifndef KVD_COLLECT_CUDA_MOMENTS_H
#define KVD_COLLECT_CUDA_MOMENTS_H

#include "formats/moments.h"
#include "model/pass/cuda/attention.h"

typedef struct kvd_gpu_moments kvd_gpu_moments;

/*
 * Creates second moments, all 0, for the heads that the current GPU has (`share`). `shape` gives
 * model, layers and has_pre.
 */
kvd_gpu_moments *kvd_gpu_moments_new(const kvd_moments *shape, const kvd_gpu_share *share,
                                     kvd_err *err);
/* Frees *m. The device on which m was created must be current, as for all functions below. */
void kvd_gpu_moments_free(kvd_gpu_moments *m);
size_t kvd_gpu_moments_bytes(const kvd_moments *shape, const kvd_gpu_share *share);

/* Queues adding one layer's moments on in->stream. Ignores a layer that is not recorded. */
int kvd_gpu_moments_add(kvd_gpu_moments *m, const kvd_gpu_attention_in *in, kvd_err *err);
/* Queues the second moments of W_O and W_V of a layer, which replace earlier ones. */
int kvd_gpu_moments_weights(kvd_gpu_moments *m, const kvd_gpu_weights *w, int layer,
                            cudaStream_t stream, kvd_err *err);

/* Copy this GPU's second moments to the host, or back, and wait. Fail if one is not finite. */
int kvd_gpu_moments_get(kvd_gpu_moments *m, kvd_moments *sums, cudaStream_t stream, kvd_err *err);
int kvd_gpu_moments_set(kvd_gpu_moments *m, const kvd_moments *sums, cudaStream_t stream,
                        kvd_err *err);

#endif
