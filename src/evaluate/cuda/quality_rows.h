#ifndef KVD_EVALUATE_CUDA_QUALITY_ROWS_H
#define KVD_EVALUATE_CUDA_QUALITY_ROWS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* quality of one prediction. `bad`: first column that is not finite, or the vocabulary size. If one
 * is not finite, other fields have no meaning. */
typedef struct {
    /* -log p(next token), and KL divergence from the uncompressed model or 0 */
    double nll, kl;
    /* -log p(next token) of the uncompressed model, or nll if its logits are not given */
    double ref_nll;
    /* most probable token, of this and of the uncompressed model */
    uint32_t best, ref_best;
    uint32_t bad, ref_bad;
} kvd_quality_row;

/* Queues the computation of the quality of n predictions, on the GPU: logits and reference
 * (uncompressed, or NULL) [n][vocab], target [n] below vocab, results `row` [n]. Equal logits have
 * KL divergence exactly 0. */
cudaError_t kvd_quality_rows(const float *logits, const float *reference, const uint32_t *target,
                             size_t n, uint32_t vocab, kvd_quality_row *row, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
