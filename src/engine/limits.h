/* Limits of a batch of requests. */
#ifndef KVD_ENGINE_LIMITS_H
#define KVD_ENGINE_LIMITS_H

#include <stddef.h>

/* Rule by which requests get KV cache pages (serving/batching.h). */
typedef enum {
    /* A request gets pages for all its tokens, input and output, when it enters the batch. */
    KVD_ADMIT_WHOLE,
    /* A request gets pages only for its stored tokens, and may be preempted. */
    KVD_ADMIT_STORED,
    KVD_ADMISSIONS
} kvd_admission;

typedef struct {
    /* Largest number of requests running at once. */
    size_t max_batch;
    /* Largest number of prompt tokens per iteration if `chunk` is 0. */
    size_t max_tokens;
    /* Largest number of tokens per iteration, beyond which prompts are split; 0 to split none. */
    size_t chunk;
    /* Number of 64-token pages in every layer. */
    size_t pages;
    /* Pages of layers with a sliding window, and the most such pages that a request may have. */
    size_t window_pages, window_share;
    kvd_admission admission;
} kvd_batching_limits;

#endif
