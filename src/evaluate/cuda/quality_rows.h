#ifndef KVD_EVALUATE_CUDA_QUALITY_ROWS_H
#define KVD_EVALUATE_CUDA_QUALITY_ROWS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Quality of one row of logits. bad: first column that is not finite, which voids other fields, or
 * the vocabulary size.
 */
typedef struct {
    /* Negative log-likelihood of the next token; KL divergence, 0 without uncompressed model. */
    double nll, kl;
    /* Negative log-likelihood of the uncompressed model; nll without it. */
    double ref_nll;
    /* First column with the largest logit: compressed, uncompressed model. */
    uint32_t best, ref_best;
    uint32_t bad, ref_bad;
} kvd_quality_row;

/*
 * Computes the quality of each row, in one kernel; GPU memory. logits, reference (uncompressed; may
 * be NULL): [n][vocab]; target [n] below vocab; output row [n].
 * Sums are double: float would leave a KL of 1e-5 nats three digits. Equal logits give a KL of
 * exactly 0.
 */
cudaError_t kvd_quality_rows(const float *logits, const float *reference, const uint32_t *target,
                             size_t n, uint32_t vocab, kvd_quality_row *row, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
