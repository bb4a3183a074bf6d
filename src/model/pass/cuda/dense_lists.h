/* Arrays with the lengths and positions of a batch's sequences, which attention kernels read. */
#ifndef KVD_MODEL_PASS_CUDA_DENSE_LISTS_H
#define KVD_MODEL_PASS_CUDA_DENSE_LISTS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* arrays that describe a batch's sequences, one element for each sequence that is not empty */
typedef struct {
    /* index of the sequence's first token among all tokens that the same kernel launch processes */
    int32_t *start;
    int32_t *len;
    /* first row of the sequence in Q and output, both in a blocked layout with padding rows
     * (kernels/layout.h) */
    int32_t *q_start;
    int32_t *first_page; /* first page of K and V; the other pages follow */
} kvd_dense_columns;

/* consecutive sequences that one launch of an attention kernel processes */
typedef struct {
    /* index of the first sequence, and number of sequences */
    size_t first, n;
    /* row: index, in the batch, of the first token that the launch processes; n_tokens: number of
     * tokens that the launch processes */
    size_t row, n_tokens;
    size_t n_q8; /* rows of Q in the blocked layout, with padding */
    size_t max_pages;
    /* 1 if the output has no padding rows between sequences */
    int no_gaps;
} kvd_dense_run;

typedef struct {
    /* the arrays that describe sequences, in pinned host memory and on the device */
    kvd_dense_columns host, device;
    kvd_dense_run *run;
    size_t n_runs;
    size_t max_sequences, run_sequences, n_sequences;
    /* [n_sequences + 1] offsets of the batch that was uploaded last: index of the first token of
     * each sequence, then the number of tokens */
    size_t *offset;
    int described;
    void *pinned, *array;
    cudaEvent_t copied;
} kvd_dense_lists;

size_t kvd_dense_lists_bytes(size_t max_sequences);

/* Allocates arrays for max_sequences sequences. Call kvd_dense_lists_release even on failure. */
int kvd_dense_lists_init(kvd_dense_lists *l, size_t max_sequences, size_t run_sequences,
                         kvd_err *err);
void kvd_dense_lists_release(kvd_dense_lists *l);

/* Queues the upload of the lengths and first-token indices of a batch's sequences. offset
 * [n_sequences + 1] has the index of each sequence's first token, then the number of tokens. If the
 * device already has this batch, sets *changed to 0 and uploads nothing. All kernels that read the
 * lists must use one stream. */
int kvd_dense_lists_upload(kvd_dense_lists *l, const size_t *offset, size_t n_sequences,
                           cudaStream_t stream, int *changed, kvd_err *err);

/* Kernels that fill page tables and remove padding rows. Functions return the error of the
 * launch. */
#ifdef __cplusplus
extern "C" {
#endif

/* Fills the page table [n][max_pages]: entry j of sequence b is first_page[b] + j. */
cudaError_t kvd_dense_page_table(const int32_t *first_page, int32_t n, int32_t max_pages,
                                 int32_t *table, cudaStream_t stream);

/* Removes padding rows: copies the rows of sequence b, which begin at row q_start[b] of `from`, to
 * the rows of `to` that begin at row start[b]. A row has `bytes` bytes, a multiple of 16. */
cudaError_t kvd_dense_rows_back(const void *from, const int32_t *start, const int32_t *q_start,
                                int32_t n, size_t n_tokens, size_t bytes, void *to,
                                cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
