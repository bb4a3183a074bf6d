#ifndef KVD_EVALUATE_CUDA_QUALITY_ROWS_H
#define KVD_EVALUATE_CUDA_QUALITY_ROWS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Prediction quality for one row of logits. If a logit is not finite, `bad` is the first such
 * column and the other fields are invalid. Otherwise `bad` is the vocabulary size.
 */
typedef struct {
    /*
     * Negative log-likelihood of the next token; KL divergence from the uncompressed model, 0
     * without such a model.
     */
    double nll, kl;
    /* Negative log-likelihood under the uncompressed model; equals nll without such a model. */
    double ref_nll;
    /* First column with the largest logit, of the compressed and of the uncompressed model. */
    uint32_t best, ref_best;
    uint32_t bad, ref_bad;
} kvd_quality_row;

/*
 * Computes the prediction quality of every row of logits. `logits` and `reference` (uncompressed
 * model; may be NULL) are [n][vocab], `target` [n] holds token ids below vocab, and `row` [n] is
 * the output, all in GPU memory. Queues one kernel.
 *
 * Sums are in double, because with float a KL of 1e-5 nats would have only three correct digits.
 * Rows of equal logits have a KL of exactly 0.
 */
cudaError_t kvd_quality_rows(const float *logits, const float *reference, const uint32_t *target,
                             size_t n, uint32_t vocab, kvd_quality_row *row, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
