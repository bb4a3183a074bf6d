/* Limits of a batch of requests. */
#ifndef KVD_ENGINE_LIMITS_H
#define KVD_ENGINE_LIMITS_H

#include <stddef.h>

/* Rule by which requests get KV cache pages (serving/batching.h). */
typedef enum {
    /* Pages for all input and output tokens on entry. */
    KVD_ADMIT_WHOLE,
    /* Pages for tokens stored so far; a shortage preempts a request. */
    KVD_ADMIT_STORED,
    KVD_ADMISSIONS
} kvd_admission;

typedef struct {
    /* Largest number of requests running at once. */
    size_t max_batch;
    /* Most prompt tokens per iteration, unless one prompt is longer (chunk = 0). */
    size_t max_tokens;
    /* Most tokens per iteration, splitting prompts; 0: no splitting. */
    size_t chunk;
    /* Number of 64-token pages in every layer. */
    size_t pages;
    /* Pages per sliding-window layer, and most per request; 0: none. */
    size_t window_pages, window_share;
    kvd_admission admission;
} kvd_batching_limits;

#endif
