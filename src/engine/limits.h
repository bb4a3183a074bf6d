/* Limits of a batch of requests. */
#ifndef KVD_ENGINE_LIMITS_H
#define KVD_ENGINE_LIMITS_H

#include <stddef.h>

/* Rule by which requests get cache pages. */
typedef enum {
    /* pages for all tokens, input and output, on entry */
    KVD_ADMIT_WHOLE,
    /* pages only for stored tokens; the request may be preempted */
    KVD_ADMIT_STORED,
    KVD_ADMISSIONS
} kvd_admission;

typedef struct {
    /* largest number of requests that run at once */
    size_t max_batch;
    /* most prompt tokens per iteration if `chunk` is 0 */
    size_t max_tokens;
    /* most tokens per iteration, beyond which prompts are split; 0: never */
    size_t chunk;
    /* number of 64-token pages in every layer */
    size_t pages;
    /* pages of layers with a window, and most of them per request */
    size_t window_pages, window_share;
    kvd_admission admission;
} kvd_batching_limits;

#endif
