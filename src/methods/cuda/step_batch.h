/* Device lists that describe an iteration: decode steps first, then prompts or parts of prompts. */
#ifndef KVD_METHODS_CUDA_STEP_BATCH_H
#define KVD_METHODS_CUDA_STEP_BATCH_H

#include <stddef.h>
#include <stdint.h>

#include "common/cuda/memory.h"

typedef struct {
    /* [max_slices, the most requests in a batch] Number of cached tokens of each request, including
     * new ones. */
    int32_t *kv_len;
    /* [max_slices] Token id of each decode step. Used only in iterations without prompts. */
    uint32_t *step_id;
    uint32_t *step_at;
    /* [max_slices] Cache slot of each request. Requests that only pad the batch have a slot number
     * that no real request has. */
    int32_t *slot;
    /* [max_slices] Number of tokens of each request, including dropped tokens; used in layers with
     * a window. */
    int32_t *seq_len;
    /* [1] Number of decoding requests in the batch, without the requests that only pad it. */
    int32_t *live;
    /* [max_slices] q_len: number of new tokens of each request. start: index of a prompt's first
     * new token among the new tokens of all prompts; not used for decode steps. */
    int32_t *q_len, *start;
    /* [max_slices] Each request's first row in Q, where requests begin at multiples of 8 rows. */
    int32_t *q_start;
    /* [max_slices] Index in the batch of each request's last token, if its logits are computed. */
    int32_t *last;
    uint32_t *id, *at; /* [max_tokens] */
} kvd_batch_lists;

typedef struct {
    size_t max_slices, max_tokens;
    kvd_batch_lists host, device;
    /* [max_slices] Constant device arrays: one[i] = 1, count[i] = i. */
    const int32_t *one, *count;
    size_t n_steps, n_slices, n_tokens;
    /* n_q8: number of rows of Q of all prompts, padding included. max_pages: length of a row of the
     * page tables. */
    size_t n_q8, max_pages;
    /* 1 if prompts' Q has no padding between requests. */
    int no_gaps;
    /* Private: pinned and device memory of all arrays in `host` and `device`. */
    void *pinned, *array;
    kvd_device_memory memory;
} kvd_step_batch;

/* Allocates the arrays `host` and `device` of zeroed *b. Release *b even after a failure. */
int kvd_step_batch_init(kvd_step_batch *b, size_t max_slices, size_t max_tokens, kvd_err *err);
void kvd_step_batch_release(kvd_step_batch *b);

/* Starts copying the arrays of decode steps from b->host to b->device. */
int kvd_step_batch_upload_steps(kvd_step_batch *b, cudaStream_t stream, kvd_err *err);
/* Starts copying all arrays from b->host to b->device. */
int kvd_step_batch_upload(kvd_step_batch *b, cudaStream_t stream, kvd_err *err);

#endif
