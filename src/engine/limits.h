/* Limits of a batch of requests. */
#ifndef KVD_ENGINE_LIMITS_H
#define KVD_ENGINE_LIMITS_H

#include <stddef.h>

/* Rule by which the scheduler gives pages of the KV cache to a request (serving/batching.h). */
typedef enum {
    /* A request gets pages for all its input and output tokens when it enters the batch. */
    KVD_ADMIT_WHOLE,
    /*
     * A request gets pages for the tokens stored so far. If pages run out, a request is preempted
     * and recomputed later.
     */
    KVD_ADMIT_STORED,
    KVD_ADMISSIONS
} kvd_admission;

typedef struct {
    /* Largest number of requests that run at the same time. */
    size_t max_batch;
    /*
     * Largest number of prompt tokens in an iteration if `chunk` is 0. A longer prompt runs alone.
     */
    size_t max_tokens;
    /*
     * Largest number of tokens in an iteration. Longer prompts are split into parts of this size.
     * 0: prompts are not split.
     */
    size_t chunk;
    /* Number of pages of 64 tokens in every layer. */
    size_t pages;
    /*
     * Number of pages in every layer with a sliding window (window_pages). A request that has n
     * pages in the other layers takes min(n, window_share) of these pages. Both fields are 0 if no
     * layer has a sliding window.
     */
    size_t window_pages, window_share;
    kvd_admission admission;
} kvd_batching_limits;

#endif
