/*
 * Lists on the device that describe an iteration to the kernels. Decode steps come first, then
 * prompts or chunks of prompts, as in kvd_iteration. Element i of a list describes request i.
 */
#ifndef KVD_METHODS_CUDA_STEP_BATCH_H
#define KVD_METHODS_CUDA_STEP_BATCH_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

typedef struct {
    /* [max_slices] Number of cached tokens of the request, including new tokens. */
    int32_t *kv_len;
    /* [max_slices] Token ids of decode steps. Only used if the iteration has no prompts. */
    uint32_t *step_id;
    /* [max_slices] Positions of the tokens of decode steps. */
    uint32_t *step_at;
    /* [max_slices] Cache slot of each request. Padding has the slot after the last one. */
    int32_t *slot;
    /*
     * [max_slices] Number of tokens of the request, including new tokens and those that a method
     * dropped. Methods that drop tokens do not act on layers with a sliding window, so these layers
     * read seq_len in place of kv_len.
     */
    int32_t *seq_len;
    /*
     * [1] Number of decode steps that belong to requests. The steps after these are padding, and
     * attention skips the padding.
     */
    int32_t *live;
    /*
     * [max_slices] q_len: number of new tokens of each request. start: index of each request's
     * first token among the tokens of the batch or, for prompts, among the tokens of prompts.
     */
    int32_t *q_len, *start;
    /* [max_slices] First row of each request in the blocked layout of Q. */
    int32_t *q_start;
    /*
     * [max_slices] For each request whose logits are computed, the index of its last token in the
     * batch.
     */
    int32_t *last;
    uint32_t *id, *at; /* [max_tokens] ids and positions of all tokens */
} kvd_batch_lists;

typedef struct {
    size_t max_slices, max_tokens;
    kvd_batch_lists host, device;
    /*
     * Constant device arrays [max_slices] for kernel arguments: every element of `one` is 1, and
     * element i of `count` is i.
     */
    const int32_t *one, *count;
    size_t n_steps, n_slices, n_tokens;
    /*
     * n_q8: number of rows of the prompts' Q in blocked layout. max_pages: number of pages per row
     * of the page table.
     */
    size_t n_q8, max_pages;
    /* 1 if Q in blocked layout has one row per token, without gaps. */
    int no_gaps;
    /* Memory of all lists, on the host and on the device. Private. */
    void *pinned, *array;
} kvd_step_batch;

/*
 * Initialises `*b`, which must be zeroed before. The caller must release `*b`, also after a
 * failure.
 */
int kvd_step_batch_init(kvd_step_batch *b, size_t max_slices, size_t max_tokens, kvd_err *err);
void kvd_step_batch_release(kvd_step_batch *b);
size_t kvd_step_batch_bytes(size_t max_slices, size_t max_tokens);

/*
 * Queue copies of lists to the device. kvd_step_batch_upload_steps copies only the lists of decode
 * steps; kvd_step_batch_upload copies all lists.
 */
int kvd_step_batch_upload_steps(kvd_step_batch *b, cudaStream_t stream, kvd_err *err);
int kvd_step_batch_upload(kvd_step_batch *b, cudaStream_t stream, kvd_err *err);

#endif
