/*
 * Lists of the lengths and positions of a batch's sequences, which the attention kernels read. The
 * lists are copied to the device only if they differ from those of the last batch.
 */
#ifndef KVD_MODEL_PASS_CUDA_DENSE_LISTS_H
#define KVD_MODEL_PASS_CUDA_DENSE_LISTS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* Arrays with one entry per sequence; empty sequences have no entry. */
typedef struct {
    /* First token of the sequence, relative to the first token that the kernel launch processes. */
    int32_t *start;
    int32_t *len;
    /* First row of the sequence in the blocked layout of Q and O (kernels/layout.h). */
    int32_t *q_start;
    int32_t *first_page; /* first page of K and V; the other pages follow */
} kvd_dense_columns;

/* Consecutive sequences that one launch of the attention kernel processes. */
typedef struct {
    /* Index of the first sequence in kvd_dense_columns, and number of sequences. */
    size_t first, n;
    /* Index in the batch of the first token of these sequences, and number of their tokens. */
    size_t row, n_tokens;
    size_t n_q8; /* rows of Q in the blocked layout, padding included */
    size_t max_pages;
    /*
     * 1 if the blocked layout of O has no padding rows between sequences, so that its rows are the
     * tokens of the batch.
     */
    int no_gaps;
} kvd_dense_run;

typedef struct {
    /* Arrays in pinned host memory, and their copy on the device. */
    kvd_dense_columns host, device;
    kvd_dense_run *run;
    size_t n_runs;
    size_t max_sequences, run_sequences, n_sequences;
    /*
     * [n_sequences + 1] Copy of the argument `offset` of the latest call of kvd_dense_lists_upload.
     */
    size_t *offset;
    int described;
    void *pinned, *array;
    cudaEvent_t copied;
} kvd_dense_lists;

size_t kvd_dense_lists_bytes(size_t max_sequences);

/*
 * Allocates arrays for up to max_sequences sequences that are not empty, on the host and on the
 * current device. One kernel launch will process up to run_sequences sequences. The caller must
 * call kvd_dense_lists_release after a failure too. Returns 0, or -1 with *err.
 */
int kvd_dense_lists_init(kvd_dense_lists *l, size_t max_sequences, size_t run_sequences,
                         kvd_err *err);
void kvd_dense_lists_release(kvd_dense_lists *l);

/*
 * Stores the sequences of a batch, and queues their copy to the device. Sequence s is tokens
 * offset[s] .. offset[s + 1] - 1. If `offset` equals that of the previous call, does nothing and
 * sets *changed to 0. Otherwise sets *changed to 1.
 *
 * All kernels that read the device arrays must run on the same stream, because this function waits
 * only for its previous copy, not for kernels on other streams.
 */
int kvd_dense_lists_upload(kvd_dense_lists *l, const size_t *offset, size_t n_sequences,
                           cudaStream_t stream, int *changed, kvd_err *err);

/*
 * Kernels that fill page tables and remove the padding between sequences. The functions launch on
 * the stream and return the kernel's error.
 */
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
