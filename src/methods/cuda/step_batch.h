/*
 * Lists on the device that describe an iteration to the kernels: one pinned block is filled on the
 * host and copied. Decode steps come first, then pieces of prompts, as in kvd_iteration; entry i of
 * each list describes slice i.
 */
#ifndef KVD_METHODS_CUDA_STEP_BATCH_H
#define KVD_METHODS_CUDA_STEP_BATCH_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* Addresses of the lists, either on the host or on the device. */
typedef struct {
    int32_t *kv_len;   /* [max_slices] number of keys of the request, including the new rows */
    uint32_t *step_id; /* [max_slices] token ids, in an iteration of decode steps alone */
    uint32_t *step_at; /* [max_slices] positions of the decode steps, in every iteration */
    /*
     * Slot of each slice's request, [max_slices]. Rows that pad the batch have the slot after the
     * last.
     */
    int32_t *slot;
    /*
     * Number of decode steps that belong to requests, [1]. Rows that pad the batch follow them, and
     * attention skips these.
     */
    int32_t *live;
    /*
     * [max_slices] each. q_len: number of new rows. start: first row; for prompts counted from the
     * first row of the first prompt.
     */
    int32_t *q_len, *start;
    int32_t *q_start;  /* [max_slices] first row of blocked Q */
    int32_t *last;     /* [max_slices] row of each slice whose logits are computed */
    uint32_t *id, *at; /* [max_tokens] ids and positions of all tokens */
} kvd_batch_lists;

typedef struct {
    size_t max_slices, max_tokens;
    kvd_batch_lists host, device;
    const int32_t *one, *count; /* device [max_slices]: the constant 1; the numbers 0, 1, 2 .. */
    /* Sizes of the running iteration. */
    size_t n_steps, n_slices, n_tokens;
    size_t n_q8, max_pages; /* n_q8: rows of blocked Q of the prompts */
    int no_gaps;            /* 1 if the rows of blocked Q equal the tokens' rows */
    /* private members */
    void *pinned, *array;
} kvd_step_batch;

/* Allocates the lists. *b must be zeroed before; release it after a failure too. */
int kvd_step_batch_init(kvd_step_batch *b, size_t max_slices, size_t max_tokens, kvd_err *err);
void kvd_step_batch_release(kvd_step_batch *b);
size_t kvd_step_batch_bytes(size_t max_slices, size_t max_tokens);

/* Queue the copy to the device of the lists of n_steps decode steps alone, or of all lists. */
int kvd_step_batch_upload_steps(kvd_step_batch *b, cudaStream_t stream, kvd_err *err);
int kvd_step_batch_upload(kvd_step_batch *b, cudaStream_t stream, kvd_err *err);

#endif
