/* Computes the loss and KL divergence of next-token predictions from logits in GPU memory. */
#ifndef KVD_EVALUATE_CUDA_QUALITY_H
#define KVD_EVALUATE_CUDA_QUALITY_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "evaluate/quality.h"

typedef struct kvd_gpu_quality kvd_gpu_quality;

kvd_gpu_quality *kvd_gpu_quality_new(size_t max_rows, kvd_err *err);
void kvd_gpu_quality_free(kvd_gpu_quality *q);

/* Adds the quality of prediction i < n <= max_rows to per_sequence[sequence[i]], unless sequence[i]
 * = -1. `logits` and `reference` [n][vocab] (uncompressed model, or NULL) are on the GPU, other
 * arrays on the host. `each` [n], unless NULL, receives changes by compression. Waits for the
 * stream. */
int kvd_gpu_quality_add(kvd_gpu_quality *q, const float *logits, const float *reference,
                        const uint32_t *target, const int *sequence, size_t n, size_t vocab,
                        kvd_quality *per_sequence, kvd_prediction_change *each, cudaStream_t stream,
                        kvd_err *err);

#endif
