/* Limits of a batch of requests. */
#ifndef KVD_ENGINE_LIMITS_H
#define KVD_ENGINE_LIMITS_H

#include <stddef.h>

/* Rule by which requests get cache pages. */
typedef enum {
    /* When a request is admitted, it gets pages for all its input and output tokens. */
    KVD_ADMIT_WHOLE,
    /* A request gets pages only for stored tokens, and may be preempted. */
    KVD_ADMIT_STORED,
    KVD_ADMISSIONS
} kvd_admission;

typedef struct {
    /* largest number of requests that run at once */
    size_t max_batch;
    /* largest number of prompt tokens in an iteration if `chunk` is 0 */
    size_t max_tokens;
    /* largest number of tokens in an iteration, beyond which prompts are split; 0: never */
    size_t chunk;
    /* number of 64-token pages in every layer */
    size_t pages;
    /* pages of layers with a window: all, and the most that one request keeps */
    size_t window_pages, window_share;
    kvd_admission admission;
} kvd_batching_limits;

#endif
