/* Second moments X^T X of each head's vectors X, on a GPU in float64. */
#ifndef KVD_COLLECT_CUDA_MOMENTS_H
#define KVD_COLLECT_CUDA_MOMENTS_H

#include "formats/moments.h"
#include "model/pass/cuda/attention.h"

typedef struct kvd_gpu_moments kvd_gpu_moments;

/* Returns second moments (sums of products) of Q, K and V, all 0, for this GPU's heads (`share`)
 * and the model and layers of `shape`, or NULL with *err. */
kvd_gpu_moments *kvd_gpu_moments_new(const kvd_moments *shape, const kvd_gpu_share *share,
                                     kvd_err *err);
/* Frees *m. Its device must be current, as for all functions of this header. */
void kvd_gpu_moments_free(kvd_gpu_moments *m);
size_t kvd_gpu_moments_bytes(const kvd_moments *shape, const kvd_gpu_share *share);

/* Queues, on in->stream, the addition of one layer's X^T X of Q, K and V to *m. Does nothing for a
 * layer that is not recorded. */
int kvd_gpu_moments_add(kvd_gpu_moments *m, const kvd_gpu_attention_in *in, kvd_err *err);
/* Queues the computation of one layer's second moments of W_O and W_V, which replace earlier
 * ones. */
int kvd_gpu_moments_weights(kvd_gpu_moments *m, const kvd_gpu_weights *w, int layer,
                            cudaStream_t stream, kvd_err *err);

/* kvd_gpu_moments_get copies the second moments to the host and fails if one is not finite;
 * kvd_gpu_moments_set copies them back to the GPU. Both wait for the copy. */
int kvd_gpu_moments_get(kvd_gpu_moments *m, kvd_moments *sums, cudaStream_t stream, kvd_err *err);
int kvd_gpu_moments_set(kvd_gpu_moments *m, const kvd_moments *sums, cudaStream_t stream,
                        kvd_err *err);

#endif
