/*
 * Kernels of dense attention that fill page tables and remove the padding between sequences. The
 * functions launch on the stream and return the kernel's error.
 */
#ifndef KVD_MODEL_PASS_CUDA_DENSE_ROWS_H
#define KVD_MODEL_PASS_CUDA_DENSE_ROWS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Fills table [n][max_pages]: entry j of sequence b becomes first_page[b] + j. */
cudaError_t kvd_dense_page_table(const int32_t *first_page, int32_t n, int32_t max_pages,
                                 int32_t *table, cudaStream_t stream);

/*
 * Copies rows of `bytes` bytes, one row per token, to `to` [n_tokens][bytes]. Sequence b starts at
 * row q_start[b] of `from` and at row start[b] of `to`. start [n] is ascending and begins with 0.
 * bytes is a multiple of 16, and both arrays are aligned to 16 bytes.
 */
cudaError_t kvd_dense_rows_back(const void *from, const int32_t *start, const int32_t *q_start,
                                int32_t n, size_t n_tokens, size_t bytes, void *to,
                                cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
