/* Quality of next-token predictions, computed from logits in GPU memory. */
#ifndef KVD_EVALUATE_CUDA_QUALITY_H
#define KVD_EVALUATE_CUDA_QUALITY_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "evaluate/quality.h"

typedef struct kvd_gpu_quality kvd_gpu_quality;

kvd_gpu_quality *kvd_gpu_quality_new(size_t max_rows, kvd_err *err);
void kvd_gpu_quality_free(kvd_gpu_quality *q);

/*
 * Adds the quality of n <= max_rows predictions to per_sequence[sequence[i]], like
 * kvd_quality_add_each on the CPU. If sequence[i] is -1, prediction i is checked but not added; its
 * target must be below vocab all the same. Waits for the stream.
 *
 * `logits` and `reference` (uncompressed model) are float32 [n][vocab] in GPU memory. If
 * `reference` is NULL, KL divergence and agreement are not added, and `each` is not written.
 * `target`, `sequence` and `each` are [n] in host memory; `each` may be NULL. Sums are the same to
 * the last bit in every run.
 */
int kvd_gpu_quality_add(kvd_gpu_quality *q, const float *logits, const float *reference,
                        const uint32_t *target, const int *sequence, size_t n, size_t vocab,
                        kvd_quality *per_sequence, kvd_prediction_change *each, cudaStream_t stream,
                        kvd_err *err);

#endif
