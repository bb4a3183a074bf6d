/* Limits of a batch of requests, such as numbers of requests, tokens and cache pages. */
#ifndef KVD_ENGINE_LIMITS_H
#define KVD_ENGINE_LIMITS_H

#include <stddef.h>

/* Rule by which a request gets pages of the KV cache. */
typedef enum {
    /* On admission, a request gets pages for all its input and output tokens. */
    KVD_ADMIT_WHOLE,
    /* A request gets pages only as its tokens are stored. If none is free, a request is preempted:
     * it loses its pages and is computed again later. */
    KVD_ADMIT_STORED,
    KVD_ADMISSIONS
} kvd_admission;

typedef struct {
    /* largest number of requests that run at once */
    size_t max_batch;
    /* Largest number of prompt tokens in an iteration, if prompts are not split (`chunk` is 0). */
    size_t max_tokens;
    /* Largest number of tokens in an iteration. Prompts that would exceed it are split over several
     * iterations. 0: prompts are never split. */
    size_t chunk;
    /* number of cache pages, of 64 tokens each, in each layer without a sliding window */
    size_t pages;
    /* number of cache pages in each layer with a sliding window, and the largest number per
     * request */
    size_t window_pages, window_share;
    kvd_admission admission;
} kvd_batching_limits;

#endif
