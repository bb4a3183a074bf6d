/* Prediction quality (evaluate/quality.h) of every row of logits, computed on the GPU. */
#ifndef KVD_EVALUATE_CUDA_QUALITY_ROWS_H
#define KVD_EVALUATE_CUDA_QUALITY_ROWS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Contribution of one row of logits to the quality sums. bad: the first column that is not finite,
 * or vocab if all are. The other numbers are valid only if all columns are finite.
 */
typedef struct {
    double nll, kl;          /* kl is 0 without a reference */
    double ref_nll;          /* nll under the reference; nll without one */
    uint32_t best, ref_best; /* argmax; of equal logits the first */
    uint32_t bad, ref_bad;
} kvd_quality_row;

/*
 * Computes the contribution of every row. logits and reference (NULL means none): device
 * [n][vocab]; target: device [n], below vocab; row: device [n], output. Exponentials and sums are
 * double, as on the CPU: with float exponentials a KL of 1e-5 nats, by which single heads are
 * ranked, would be right to 1e-3 only. Sums run in one fixed order, equal for both sides, so equal
 * rows have a KL of exactly 0. Queues one kernel.
 */
cudaError_t kvd_quality_rows(const float *logits, const float *reference, const uint32_t *target,
                             size_t n, uint32_t vocab, kvd_quality_row *row, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
