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
    /* Number of cached tokens of each request, new ones included, [max_slices]. */
    int32_t *kv_len;
    /* Token ids of decode steps, [max_slices], if there are no prompts. */
    uint32_t *step_id;
    uint32_t *step_at;
    /* Cache slot of each request, [max_slices]. Padding has the slot after the last. */
    int32_t *slot;
    /* Tokens of each request, with dropped ones, for layers with a window, [max_slices]. */
    int32_t *seq_len;
    /* Number of decode steps before the padding, [1]. */
    int32_t *live;
    /*
     * Number of new tokens of each request, and index of its first new token in the batch (for
     * prompts: among the prompt tokens), [max_slices].
     */
    int32_t *q_len, *start;
    /* Each request's first row in Q, where requests begin at multiples of 8 rows, [max_slices]. */
    int32_t *q_start;
    /* Index in the batch of each request's last token, if its logits are computed, [max_slices]. */
    int32_t *last;
    uint32_t *id, *at; /* [max_tokens] */
} kvd_batch_lists;

typedef struct {
    size_t max_slices, max_tokens;
    kvd_batch_lists host, device;
    /* Constant device arrays [max_slices]: one[i] = 1, count[i] = i. */
    const int32_t *one, *count;
    size_t n_steps, n_slices, n_tokens;
    /* Number of rows of prompts' Q (requests rounded up to 8), and row length of page tables. */
    size_t n_q8, max_pages;
    /* 1 if prompts' Q has one row per token, without gaps. */
    int no_gaps;
    /* Private: pinned memory and device memory that hold all lists. */
    void *pinned, *array;
    kvd_device_memory memory;
} kvd_step_batch;

/* Allocates the lists. *b must be zeroed. The caller must release *b, also after a failure. */
int kvd_step_batch_init(kvd_step_batch *b, size_t max_slices, size_t max_tokens, kvd_err *err);
void kvd_step_batch_release(kvd_step_batch *b);

/* Queue the copies of the lists to the device: only those of decode steps, or all. */
int kvd_step_batch_upload_steps(kvd_step_batch *b, cudaStream_t stream, kvd_err *err);
int kvd_step_batch_upload(kvd_step_batch *b, cudaStream_t stream, kvd_err *err);

#endif
