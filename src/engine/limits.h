/* Limits of a batch of requests. */
#ifndef KVD_ENGINE_LIMITS_H
#define KVD_ENGINE_LIMITS_H

#include <stddef.h>

/* Rule by which the scheduler gives KV cache pages to a request (serving/batching.h). */
typedef enum {
    /* Pages for all input and output tokens on entry. */
    KVD_ADMIT_WHOLE,
    /* Pages for tokens stored so far; without free pages a request is preempted. */
    KVD_ADMIT_STORED,
    KVD_ADMISSIONS
} kvd_admission;

typedef struct {
    /* Largest number of requests running at once. */
    size_t max_batch;
    /* Most prompt tokens per iteration if chunk = 0; longer prompts run alone. */
    size_t max_tokens;
    /* Most tokens per iteration, into which longer prompts are split; 0: no splitting. */
    size_t chunk;
    /* Number of 64-token pages in every layer. */
    size_t pages;
    /* Pages per sliding-window layer, and most of them per request; 0 without windows. */
    size_t window_pages, window_share;
    kvd_admission admission;
} kvd_batching_limits;

#endif
