/*
 * Lists of the lengths and positions of a batch's sequences, on the device, which the attention
 * kernels read. If the lengths differ from those of the last batch, the lists are copied from
 * pinned host memory, once for all layers.
 */
#ifndef KVD_MODEL_PASS_CUDA_DENSE_LISTS_H
#define KVD_MODEL_PASS_CUDA_DENSE_LISTS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/*
 * Lengths and positions of the sequences of a batch: each array has one entry per sequence. Empty
 * sequences have no entry.
 */
typedef struct {
    /*
     * First token of the sequence, counted from the first token of its run (group of sequences of
     * one kernel launch).
     */
    int32_t *start;
    int32_t *len; /* number of tokens of the sequence */
    /*
     * First row of the sequence in the blocked layout of Q and O, in which sequences start at
     * multiples of 8 rows (kernels/layout.h).
     */
    int32_t *q_start;
    int32_t *first_page; /* first page of the sequence's K and V; its other pages follow */
} kvd_dense_columns;

/* A run: consecutive sequences of a batch that one launch of the attention kernel processes. */
typedef struct {
    /*
     * Index in the arrays of kvd_dense_columns of the run's first sequence, and number of its
     * sequences.
     */
    size_t first, n;
    /*
     * row: the run's first token, as an index in the batch. n_tokens: number of tokens of all
     * sequences of the run together.
     */
    size_t row, n_tokens;
    size_t n_q8;      /* number of rows of Q of this run in the blocked layout, padding included */
    size_t max_pages; /* number of pages of the longest sequence of this run */
    /*
     * 1 if the blocked layout of O has no padding between sequences, because all lengths except the
     * last are multiples of 8.
     */
    int no_gaps;
} kvd_dense_run;

typedef struct {
    /*
     * Arrays with the lengths and positions of a batch's sequences, in pinned host memory and, as a
     * copy, on the device.
     */
    kvd_dense_columns host, device;
    kvd_dense_run *run;
    size_t n_runs;
    /* The following members are private. */
    size_t max_sequences, run_sequences, n_sequences;
    /*
     * Array `offset` of the batch that was passed to the last kvd_dense_lists_upload: [n_sequences
     * + 1].
     */
    size_t *offset;
    int described; /* 1 if the arrays hold the lengths and positions of a batch */
    void *pinned, *array;
    cudaEvent_t copied;
} kvd_dense_lists;

/* Returns the bytes of device memory that kvd_dense_lists_init allocates. */
size_t kvd_dense_lists_bytes(size_t max_sequences);

/*
 * Allocates the arrays for the lengths and positions of up to max_sequences sequences, in host
 * memory and on the current device. Empty sequences do not count. One kernel launch will process
 * run_sequences sequences. The caller must call kvd_dense_lists_release after a failure too.
 * Returns 0, or -1 with *err.
 */
int kvd_dense_lists_init(kvd_dense_lists *l, size_t max_sequences, size_t run_sequences,
                         kvd_err *err);
void kvd_dense_lists_release(kvd_dense_lists *l);

/*
 * Stores the lengths and positions of the sequences of a batch in the host arrays, and queues their
 * copy to the device on the stream. Sequence s consists of tokens offset[s] .. offset[s + 1] - 1 of
 * the batch. If `offset` equals that of the previous call, does nothing and sets *changed to 0;
 * else sets *changed to 1.
 *
 * Waits until the copy of the previous call is complete, but not for kernels that still read the
 * device arrays. So all kernels that read them must run on the same stream.
 */
int kvd_dense_lists_upload(kvd_dense_lists *l, const size_t *offset, size_t n_sequences,
                           cudaStream_t stream, int *changed, kvd_err *err);

#endif
