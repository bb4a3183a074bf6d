/*
 * Limits of a batch of requests, for the engines and for the scheduler that fills their iterations.
 */
#ifndef KVD_ENGINE_LIMITS_H
#define KVD_ENGINE_LIMITS_H

#include <stddef.h>

/* Rule by which a request gets pages of the cache (serving/batching.h). */
typedef enum {
    KVD_ADMIT_WHOLE,  /* pages for all input and output tokens, when it enters */
    KVD_ADMIT_STORED, /* pages for the tokens that it stores; preemption by recomputation */
    KVD_ADMISSIONS
} kvd_admission;

typedef struct {
    /* Maximum number of requests that run at the same time. */
    size_t max_batch;
    /* Maximum number of prompt tokens in an iteration if chunk is 0. A longer prompt runs alone. */
    size_t max_tokens;
    /*
     * Maximum number of tokens in an iteration; longer prompts are split. 0 means prompts are not
     * split.
     */
    size_t chunk;
    /* Number of pages of 64 tokens that the KV cache has in every layer. */
    size_t pages;
    kvd_admission admission;
} kvd_batching_limits;

#endif
