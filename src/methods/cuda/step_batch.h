/*
 * Device lists that describe an iteration to the kernels: decode steps first, then prompts or
 * chunks. Element i describes request i.
 */
#ifndef KVD_METHODS_CUDA_STEP_BATCH_H
#define KVD_METHODS_CUDA_STEP_BATCH_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

typedef struct {
    /* [max_slices] Cached tokens of each request, including new tokens. */
    int32_t *kv_len;
    /* [max_slices] Token ids of decode steps, if the iteration has no prompts. */
    uint32_t *step_id;
    /* [max_slices] Positions of the tokens of decode steps. */
    uint32_t *step_at;
    /* [max_slices] Cache slot of each request; padding has the slot after the last. */
    int32_t *slot;
    /*
     * [max_slices] Tokens of each request, including new and dropped ones. Layers with a sliding
     * window read seq_len in place of kv_len.
     */
    int32_t *seq_len;
    /* [1] Number of decode steps before the padding, which attention skips. */
    int32_t *live;
    /*
     * [max_slices] New tokens of each request, and index of its first token in the batch (for
     * prompts: among the tokens of prompts).
     */
    int32_t *q_len, *start;
    /* [max_slices] First row of each request in the blocked layout of Q. */
    int32_t *q_start;
    /* [max_slices] Index in the batch of each request's last token, if logits are computed. */
    int32_t *last;
    uint32_t *id, *at; /* [max_tokens] ids and positions of all tokens */
} kvd_batch_lists;

typedef struct {
    size_t max_slices, max_tokens;
    kvd_batch_lists host, device;
    /* Constant device arrays [max_slices]: one[i] = 1, count[i] = i. */
    const int32_t *one, *count;
    size_t n_steps, n_slices, n_tokens;
    /* Rows of the prompts' Q in blocked layout, and pages per row of the page table. */
    size_t n_q8, max_pages;
    /* 1 if Q in blocked layout has one row per token, without gaps. */
    int no_gaps;
    /* Private: memory of all lists, pinned host and device. */
    void *pinned, *array;
} kvd_step_batch;

/* `*b` must be zeroed before. The caller must release `*b`, also after a failure. */
int kvd_step_batch_init(kvd_step_batch *b, size_t max_slices, size_t max_tokens, kvd_err *err);
void kvd_step_batch_release(kvd_step_batch *b);
size_t kvd_step_batch_bytes(size_t max_slices, size_t max_tokens);

/* Queue copies to the device: only the lists of decode steps, or all lists. */
int kvd_step_batch_upload_steps(kvd_step_batch *b, cudaStream_t stream, kvd_err *err);
int kvd_step_batch_upload(kvd_step_batch *b, cudaStream_t stream, kvd_err *err);

#endif
