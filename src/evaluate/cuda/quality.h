/* Quality of next-token predictions, from logits on the GPU. */
#ifndef KVD_EVALUATE_CUDA_QUALITY_H
#define KVD_EVALUATE_CUDA_QUALITY_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "evaluate/quality.h"

typedef struct kvd_gpu_quality kvd_gpu_quality;

kvd_gpu_quality *kvd_gpu_quality_new(size_t max_rows, kvd_err *err);
void kvd_gpu_quality_free(kvd_gpu_quality *q);

/* Adds the quality of n <= max_rows predictions to per_sequence[sequence[i]]; skips sequence -1.
 *
 * On the GPU: float32 `logits` and `reference` (uncompressed model, or NULL) [n][vocab]. On the
 * host, [n]: target, sequence and `each`, which receives each prediction's change (or NULL). Waits
 * for the stream. */
int kvd_gpu_quality_add(kvd_gpu_quality *q, const float *logits, const float *reference,
                        const uint32_t *target, const int *sequence, size_t n, size_t vocab,
                        kvd_quality *per_sequence, kvd_prediction_change *each, cudaStream_t stream,
                        kvd_err *err);

#endif
