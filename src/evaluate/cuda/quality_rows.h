/*
 * Quality of each next-token prediction, computed on the GPU from one row of logits per token
 * position.
 */
#ifndef KVD_EVALUATE_CUDA_QUALITY_ROWS_H
#define KVD_EVALUATE_CUDA_QUALITY_ROWS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Contribution of one row of logits to the sums of prediction quality. If some column is not
 * finite, `bad` is the first such column and the other numbers are invalid; otherwise `bad` is the
 * vocabulary size.
 */
typedef struct {
    /*
     * Negative log-likelihood of the next token, and KL divergence from the uncompressed model (0
     * without one).
     */
    double nll, kl;
    /* Negative log-likelihood under the uncompressed model; equals nll without one. */
    double ref_nll;
    /* Predicted token (first column with the largest logit) of both models. */
    uint32_t best, ref_best;
    uint32_t bad, ref_bad;
} kvd_quality_row;

/*
 * Computes the contribution of every row of logits to the prediction quality. `logits` and
 * `reference` (uncompressed model; may be NULL) are [n][vocab], `target` [n] holds token ids below
 * vocab, `row` [n] is the output; all are in GPU memory. Exponentials and sums are double, as on
 * the CPU: with float exponentials a KL of 1e-5 nats, by which single heads are ranked, would be
 * right to 1e-3 only. Sums run in one fixed order, equal for both models, so equal rows have a KL
 * of exactly 0. Queues one kernel.
 */
cudaError_t kvd_quality_rows(const float *logits, const float *reference, const uint32_t *target,
                             size_t n, uint32_t vocab, kvd_quality_row *row, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
