#ifndef KVD_EVALUATE_CUDA_QUALITY_ROWS_H
#define KVD_EVALUATE_CUDA_QUALITY_ROWS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Quality of a row of logits. `bad` is the first column that is not finite (the other fields then
 * have no meaning), or the vocabulary size.
 */
typedef struct {
    /* -log p(next token), and the KL divergence (0 without a reference). */
    double nll, kl;
    /* nll of the uncompressed model, or equal to nll without a reference. */
    double ref_nll;
    /* First column with the largest logit, for both models. */
    uint32_t best, ref_best;
    uint32_t bad, ref_bad;
} kvd_quality_row;

/*
 * Queues a kernel that computes the quality of each row. GPU memory: logits and reference (may be
 * NULL) [n][vocab], target [n] (below vocab), row [n]. Sums are double, as float would leave three
 * digits of a KL divergence of 1e-5. Equal logits have KL divergence exactly 0.
 */
cudaError_t kvd_quality_rows(const float *logits, const float *reference, const uint32_t *target,
                             size_t n, uint32_t vocab, kvd_quality_row *row, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
