/*
 * Lists of the lengths and positions of a batch's sequences for the attention kernels, on the
 * device. If the lengths differ from those of the last batch, the lists are copied from pinned
 * memory, once for all layers.
 */
#ifndef KVD_MODEL_PASS_CUDA_DENSE_LISTS_H
#define KVD_MODEL_PASS_CUDA_DENSE_LISTS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/*
 * Lengths and positions of the sequences of a batch, one entry per sequence; empty sequences are
 * left out.
 */
typedef struct {
    int32_t *start;      /* first token, counted from the first token of the run */
    int32_t *len;        /* number of tokens */
    int32_t *q_start;    /* first row of blocked Q and O (kernels/layout.h) */
    int32_t *first_page; /* first page; the sequence's other pages follow it */
} kvd_dense_columns;

/* A run: consecutive sequences that one launch of the attention kernel processes. */
typedef struct {
    size_t first, n;      /* entries of the columns: first entry and number */
    size_t row, n_tokens; /* first row of the run in the batch, and its number of tokens */
    size_t n_q8;          /* rows of blocked Q */
    size_t max_pages;     /* most pages of a sequence */
    /*
     * 1 if the blocked layout of O has no padding between sequences: all lengths but the last are
     * multiples of 8
     */
    int no_gaps;
} kvd_dense_run;

typedef struct {
    kvd_dense_columns host, device; /* the columns in pinned host memory and on the device */
    kvd_dense_run *run;
    size_t n_runs;
    /* private members */
    size_t max_sequences, run_sequences, n_sequences;
    size_t *offset; /* [n_sequences + 1] offsets of the batch that the lists describe */
    int described;  /* 1 if the lists describe a batch */
    void *pinned, *array;
    cudaEvent_t copied;
} kvd_dense_lists;

/* Returns the bytes of device memory that kvd_dense_lists_init allocates. */
size_t kvd_dense_lists_bytes(size_t max_sequences);

/*
 * Allocates lists for batches of up to max_sequences sequences that are not empty, run_sequences of
 * them per run, on the current device. The caller must call kvd_dense_lists_release after a failure
 * too.
 */
int kvd_dense_lists_init(kvd_dense_lists *l, size_t max_sequences, size_t run_sequences,
                         kvd_err *err);
void kvd_dense_lists_release(kvd_dense_lists *l);

/*
 * Makes the lists describe offset [n_sequences + 1] (kvd_gpu_attention_in) and queues their copy on
 * the stream. *changed receives 1 if they described another batch. Waits for the copy of the
 * previous lists, but not for the kernels that read them: these must be on the same stream.
 */
int kvd_dense_lists_upload(kvd_dense_lists *l, const size_t *offset, size_t n_sequences,
                           cudaStream_t stream, int *changed, kvd_err *err);

#endif
