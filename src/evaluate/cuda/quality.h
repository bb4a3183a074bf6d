/* Computes the loss and KL divergence of next-token predictions from logits in GPU memory. */
#ifndef KVD_EVALUATE_CUDA_QUALITY_H
#define KVD_EVALUATE_CUDA_QUALITY_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "evaluate/quality.h"

typedef struct kvd_gpu_quality kvd_gpu_quality;

kvd_gpu_quality *kvd_gpu_quality_new(size_t max_rows, kvd_err *err);
void kvd_gpu_quality_free(kvd_gpu_quality *q);

/* Adds the quality (loss, KL divergence, right tokens) of n predictions to per_sequence. n must be
 * at most max_rows. Waits for the stream. Arrays on the GPU: logits, reference.
 *
 * - logits: [n][vocab]
 * - reference: [n][vocab] logits of the uncompressed model, or NULL
 * - target: [n] right tokens
 * - sequence: [n] index in per_sequence; -1 skips a prediction
 * - each: [n] receives the KL divergence and the change of the right token's probability; may be
 *   NULL */
int kvd_gpu_quality_add(kvd_gpu_quality *q, const float *logits, const float *reference,
                        const uint32_t *target, const int *sequence, size_t n, size_t vocab,
                        kvd_quality *per_sequence, kvd_prediction_change *each, cudaStream_t stream,
                        kvd_err *err);

#endif
