/*
 * What the kernels want to know of an iteration, on the device: one pinned block that is filled on the host and copied. Steps come first, then
 * pieces of prompts, as in kvd_iteration; entry i of the lists is slice i.
 */
#ifndef KVD_SERVING_CUDA_BATCH_H
#define KVD_SERVING_CUDA_BATCH_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* The same members on the host and the device. */
typedef struct {
    int32_t *kv_len;   /* [max_slices]                                              */
    uint32_t *step_id; /* [max_slices] of an iteration of steps alone               */
    uint32_t *step_at; /* [max_slices] their positions, of all iterations' steps    */
    int32_t *slot;     /* [max_slices] of the request; of rows that fill up the one after the last */
    int32_t *
        live; /* [1] steps that are a request's: rows that fill up stand behind them, and nothing is attended to for them */
    int32_t *q_len,
        *start;        /* [max_slices] start: first token, of prompts counted from that of the first prompt */
    int32_t *q_start;  /* [max_slices] first row of blocked Q                       */
    int32_t *last;     /* [max_slices] rows whose logits are wanted                 */
    uint32_t *id, *at; /* [max_tokens] of all tokens                                */
} kvd_batch_lists;

typedef struct {
    size_t max_slices, max_tokens;
    kvd_batch_lists host, device;
    const int32_t *one, *count; /* device [max_slices]: 1 everywhere; 0, 1, 2 ..         */
    /* of the running iteration */
    size_t n_steps, n_slices, n_tokens;
    size_t n_q8, max_pages; /* rows of blocked Q of the prompts */
    int no_gaps;            /* its rows are the tokens' own     */
    /* private */
    void *pinned, *array;
} kvd_step_batch;

/* Zeroed before; release it whatever came back. */
int kvd_step_batch_init(kvd_step_batch *b, size_t max_slices, size_t max_tokens, kvd_err *err);
void kvd_step_batch_release(kvd_step_batch *b);
size_t kvd_step_batch_bytes(size_t max_slices, size_t max_tokens);

/* Queues the copy of the lists of steps alone (n of them), or of all lists. */
int kvd_step_batch_upload_steps(kvd_step_batch *b, cudaStream_t stream, kvd_err *err);
int kvd_step_batch_upload(kvd_step_batch *b, cudaStream_t stream, kvd_err *err);

#endif
