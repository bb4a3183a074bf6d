/* Second moments X^T X of each head's vectors X, on a GPU in float64. */
#ifndef KVD_COLLECT_CUDA_MOMENTS_H
#define KVD_COLLECT_CUDA_MOMENTS_H

#include "formats/moments.h"
#include "model/pass/cuda/attention.h"

typedef struct kvd_gpu_moments kvd_gpu_moments;

/* Allocates second moments X^T X of Q, K and V on the GPU and sets them to 0. `share` gives the
 * heads, and `shape` the model and layers. On failure, returns NULL and fills *err. */
kvd_gpu_moments *kvd_gpu_moments_new(const kvd_moments *shape, const kvd_gpu_share *share,
                                     kvd_err *err);
/* Frees *m. All functions of this header require that the GPU of *m is the current device. */
void kvd_gpu_moments_free(kvd_gpu_moments *m);
size_t kvd_gpu_moments_bytes(const kvd_moments *shape, const kvd_gpu_share *share);

/* Queues, on in->stream, the addition of one layer's X^T X of Q, K and V to *m. Does nothing for a
 * layer that is not recorded. */
int kvd_gpu_moments_add(kvd_gpu_moments *m, const kvd_gpu_attention_in *in, kvd_err *err);
/* Queues, on `stream`, the computation of the second moments of one layer's W_O and W_V. The result
 * replaces this layer's earlier second moments of W_O and W_V. */
int kvd_gpu_moments_weights(kvd_gpu_moments *m, const kvd_gpu_weights *w, int layer,
                            cudaStream_t stream, kvd_err *err);

/* kvd_gpu_moments_get copies the second moments to the host and fails if one is not finite;
 * kvd_gpu_moments_set copies them back to the GPU. Both wait for the copy. */
int kvd_gpu_moments_get(kvd_gpu_moments *m, kvd_moments *sums, cudaStream_t stream, kvd_err *err);
int kvd_gpu_moments_set(kvd_gpu_moments *m, const kvd_moments *sums, cudaStream_t stream,
                        kvd_err *err);

#endif
