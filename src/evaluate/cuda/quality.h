/*
 * Prediction quality (evaluate/quality.h) computed on the GPU from rows of logits that stay there.
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
 * Adds rows as kvd_quality_add_each does, with the same numbers and messages, for n <= max_rows
 * rows of several sequences: row i predicts target[i] (host) and is added to
 * per_sequence[sequence[i]] (host). each [n] (host) may be NULL. Rows with sequence -1 are not
 * added, but non-finite values in them are refused as in other rows, and their target must be below
 * vocab too. logits, reference (NULL means kl, agree and `each` do not change): device [n][vocab]
 * float32. Rows are added in order, so equal logits give equal bits. Waits for the stream.
 */
int kvd_gpu_quality_add(kvd_gpu_quality *q, const float *logits, const float *reference,
                        const uint32_t *target, const int *sequence, size_t n, size_t vocab,
                        kvd_quality *per_sequence, kvd_prediction_change *each, cudaStream_t stream,
                        kvd_err *err);

#endif
