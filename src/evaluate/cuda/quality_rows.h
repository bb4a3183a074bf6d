#ifndef KVD_EVALUATE_CUDA_QUALITY_ROWS_H
#define KVD_EVALUATE_CUDA_QUALITY_ROWS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Quality of the prediction of one token. Valid only if no logit is infinite or NaN. */
typedef struct {
    /* -log p(next token), and KL divergence from the uncompressed model, 0 if its logits are not
     * given */
    double nll, kl;
    /* -log p(next token) of the uncompressed model, or nll if its logits are not given */
    double ref_nll;
    /* token with the largest logit in this model, and in the uncompressed model */
    uint32_t best, ref_best;
    /* First token whose logit is infinite or NaN, or the vocabulary size if there is none.
     * `ref_bad` is for the uncompressed model. */
    uint32_t bad, ref_bad;
} kvd_quality_row;

/* Queues the computation of losses and KL divergences of n predictions on the GPU.
 *
 * - logits: [n][vocab]
 * - reference: [n][vocab] logits of the uncompressed model, or NULL
 * - target: [n] correct next tokens
 * - row: [n] results; equal logits give a KL divergence of exactly 0 */
cudaError_t kvd_quality_rows(const float *logits, const float *reference, const uint32_t *target,
                             size_t n, uint32_t vocab, kvd_quality_row *row, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
