/*
 * Device lists that describe an iteration: decode steps first, then prompts or chunks. Element i is
 * for request i.
 */
#ifndef KVD_METHODS_CUDA_STEP_BATCH_H
#define KVD_METHODS_CUDA_STEP_BATCH_H

#include <stddef.h>
#include <stdint.h>

#include "common/cuda/memory.h"

typedef struct {
    /* [max_slices] Cached tokens, including new ones. */
    int32_t *kv_len;
    /* [max_slices] Token ids of decode steps, if there are no prompts. */
    uint32_t *step_id;
    uint32_t *step_at;
    /* [max_slices] Cache slot of each request. Padding has the slot after the last. */
    int32_t *slot;
    /* [max_slices] Tokens of each request with dropped ones, for layers with a window. */
    int32_t *seq_len;
    /* [1] Number of decode steps before the padding. */
    int32_t *live;
    /*
     * [max_slices] New tokens, and index of the first in the batch (prompts: among prompt tokens).
     */
    int32_t *q_len, *start;
    /* [max_slices] First row in the blocked layout of Q. */
    int32_t *q_start;
    /* [max_slices] Index of the last token in the batch, if logits are computed. */
    int32_t *last;
    uint32_t *id, *at; /* [max_tokens] */
} kvd_batch_lists;

typedef struct {
    size_t max_slices, max_tokens;
    kvd_batch_lists host, device;
    /* Constant device arrays [max_slices]: one[i] = 1, count[i] = i. */
    const int32_t *one, *count;
    size_t n_steps, n_slices, n_tokens;
    /* Number of rows of prompts' Q in blocked layout, and row length of page tables. */
    size_t n_q8, max_pages;
    /* 1 if blocked Q has one row per token, without gaps. */
    int no_gaps;
    /* Private: pinned and device memory of all lists. */
    void *pinned, *array;
    kvd_device_memory memory;
} kvd_step_batch;

/* Allocates the lists. *b must be zeroed. The caller must release *b, also after a failure. */
int kvd_step_batch_init(kvd_step_batch *b, size_t max_slices, size_t max_tokens, kvd_err *err);
void kvd_step_batch_release(kvd_step_batch *b);

/* Queue copies of lists to the device: those of decode steps, or all. */
int kvd_step_batch_upload_steps(kvd_step_batch *b, cudaStream_t stream, kvd_err *err);
int kvd_step_batch_upload(kvd_step_batch *b, cudaStream_t stream, kvd_err *err);

#endif
