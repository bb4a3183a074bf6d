#ifndef KVD_EVALUATE_CUDA_QUALITY_ROWS_H
#define KVD_EVALUATE_CUDA_QUALITY_ROWS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Quality of a row of logits. bad: first column that is not finite (other fields are void), or the
 * vocabulary size.
 */
typedef struct {
    /* -log p(next token); KL divergence, or 0. */
    double nll, kl;
    /* nll of the uncompressed model; nll without one. */
    double ref_nll;
    /* First column with the largest logit: compressed, uncompressed. */
    uint32_t best, ref_best;
    uint32_t bad, ref_bad;
} kvd_quality_row;

/*
 * Quality of each row; queues a kernel. GPU memory: logits, reference (may be NULL) [n][vocab];
 * target [n] below vocab; row [n].
 * Sums are double: float would leave a KL of 1e-5 three digits. Equal logits: KL exactly 0.
 */
cudaError_t kvd_quality_rows(const float *logits, const float *reference, const uint32_t *target,
                             size_t n, uint32_t vocab, kvd_quality_row *row, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
