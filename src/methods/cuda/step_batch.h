/*
 * Lists on the device that describe an iteration to the kernels: one pinned block is filled on the
 * host and copied. Decode steps come first, then prompts or chunks of prompts, as in kvd_iteration;
 * element i of each list describes the i-th request of the iteration.
 */
#ifndef KVD_METHODS_CUDA_STEP_BATCH_H
#define KVD_METHODS_CUDA_STEP_BATCH_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* Addresses of the lists, either on the host or on the device. */
typedef struct {
    /* Number of cached tokens of the request, including its new ones, [max_slices]. */
    int32_t *kv_len;
    /* Token ids, [max_slices]; set if the iteration consists of decode steps alone. */
    uint32_t *step_id;
    /* Positions of the tokens of decode steps, [max_slices]; set in every iteration. */
    uint32_t *step_at;
    /*
     * Cache slot of each request of the iteration, [max_slices]. Rows that pad the batch have the
     * slot after the last one.
     */
    int32_t *slot;
    /*
     * Number of decode steps that belong to requests, [1]. Rows that pad the batch follow these
     * steps; attention skips them.
     */
    int32_t *live;
    /*
     * Lists of [max_slices] elements. q_len: number of new tokens of each request. start: first row
     * of each request in the batch; for prompts counted from the first row of the first prompt.
     */
    int32_t *q_len, *start;
    /* First row of each request in the blocked layout of Q, [max_slices]. */
    int32_t *q_start;
    /* For each token whose logits are computed, its row in the batch, [max_slices]. */
    int32_t *last;
    uint32_t *id, *at; /* ids and positions of all tokens, [max_tokens] */
} kvd_batch_lists;

typedef struct {
    size_t max_slices, max_tokens;
    kvd_batch_lists host, device;
    /* Constant lists in device memory, [max_slices]: ones, and the numbers 0, 1, 2 ... */
    const int32_t *one, *count;
    /* Sizes of the running iteration. */
    size_t n_steps, n_slices, n_tokens;
    /* n_q8: number of rows of the prompts' Q in blocked layout. */
    size_t n_q8, max_pages;
    /* 1 if the rows of Q in blocked layout equal the rows of the tokens. */
    int no_gaps;
    /* The fields from here on are private. */
    void *pinned, *array;
} kvd_step_batch;

/* Allocates the lists. *b must be zeroed before; the caller releases it, also after a failure. */
int kvd_step_batch_init(kvd_step_batch *b, size_t max_slices, size_t max_tokens, kvd_err *err);
void kvd_step_batch_release(kvd_step_batch *b);
size_t kvd_step_batch_bytes(size_t max_slices, size_t max_tokens);

/*
 * Queue the copy of lists to the device. The first function copies the lists of n_steps decode
 * steps alone, the second all lists.
 */
int kvd_step_batch_upload_steps(kvd_step_batch *b, cudaStream_t stream, kvd_err *err);
int kvd_step_batch_upload(kvd_step_batch *b, cudaStream_t stream, kvd_err *err);

#endif
