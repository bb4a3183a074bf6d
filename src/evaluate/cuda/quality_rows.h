#ifndef KVD_EVALUATE_CUDA_QUALITY_ROWS_H
#define KVD_EVALUATE_CUDA_QUALITY_ROWS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Quality of the prediction by one row of logits. `bad` is the first column that is not finite, or
 * the vocabulary size. If a column is not finite, the other fields have no meaning.
 */
typedef struct {
    /* -log p(next token), and KL divergence from the uncompressed model (0 if it is not given). */
    double nll, kl;
    /* -log p(next token) of the uncompressed model. Equal to nll if that model is not given. */
    double ref_nll;
    /*
     * First column with the largest logit, of the row (`best`) and of the uncompressed model
     * (`ref_best`).
     */
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
