/*
 * Quality of next-token predictions (evaluate/quality.h), computed on the GPU from logits that stay
 * in GPU memory.
 */
#ifndef KVD_EVALUATE_CUDA_QUALITY_H
#define KVD_EVALUATE_CUDA_QUALITY_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "evaluate/quality.h"

typedef struct kvd_gpu_quality kvd_gpu_quality;

kvd_gpu_quality *kvd_gpu_quality_new(size_t max_rows, kvd_err *err);
void kvd_gpu_quality_free(kvd_gpu_quality *q);

/*
 * Adds the quality of n <= max_rows predictions to sums per sequence. Results and error messages
 * are those of kvd_quality_add_each on the CPU.
 *
 * Row i of the logits predicts the token target[i] and is added to per_sequence[sequence[i]]. A row
 * with sequence -1 is checked but not added; its target must still be below vocab. `logits` and
 * `reference` (uncompressed model) are in GPU memory, float32 [n][vocab]. If `reference` is NULL,
 * the sums of KL divergence and agreement and the array `each` are left as they are.
 *
 * The arrays `target`, `sequence` and `each`, [n], are in host memory; `each` may be NULL. Rows are
 * added in order, so equal logits give equal bits. Waits for the stream.
 */
int kvd_gpu_quality_add(kvd_gpu_quality *q, const float *logits, const float *reference,
                        const uint32_t *target, const int *sequence, size_t n, size_t vocab,
                        kvd_quality *per_sequence, kvd_prediction_change *each, cudaStream_t stream,
                        kvd_err *err);

#endif
