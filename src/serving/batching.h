/* Continuous batching: selects the requests and tokens of the next iteration, in order of arrival.
 *
 * With chunk = 0, an iteration has whole prompts or decode steps; prompts run first. With chunk >
 * 0, it has a step of all running requests and parts of prompts up to `chunk` tokens (Sarathi).
 *
 * Admission takes pages of 64 tokens:
 *
 * - KVD_ADMIT_WHOLE: pages for all input and output tokens on entry; no preemption
 * - KVD_ADMIT_STORED (vLLM): pages for the prompt on entry, then page by page; without a free page,
 *   the running request that arrived last is preempted and later starts again */
#ifndef KVD_SERVING_BATCHING_H
#define KVD_SERVING_BATCHING_H

#include <stdbool.h>

#include "engine/limits.h"
#include "methods/iteration.h"
#include "serving/requests.h"

/* Values of --admission, ended by NULL. */
extern const char *const kvd_admission_name[KVD_ADMISSIONS + 1];

typedef struct kvd_batcher kvd_batcher;
/* Creates a batcher. `requests` must outlive it. */
kvd_batcher *kvd_batcher_new(const kvd_requests *requests, const kvd_batching_limits *limits,
                             kvd_err *err);
void kvd_batcher_free(kvd_batcher *b);

bool kvd_batching_fits(const kvd_batching_limits *limits, const kvd_request *request);

/* Adds a request, in order of arrival. Fails if it can never fit into the cache. */
int kvd_batcher_arrive(kvd_batcher *b, uint32_t request, kvd_err *err);
/* Returns the next iteration, empty if no request waits or runs. */
kvd_iteration kvd_batcher_next(kvd_batcher *b);

/* a request that lost its pages and waits again */
typedef struct {
    uint32_t request;
    /* index of the request's cache memory, which the engine must free before the next iteration */
    uint32_t slot;
    /* number of the request's tokens that were cached and must be computed again, because their
     * pages are lost */
    uint32_t tokens;
} kvd_preempted;
/* Returns the *n requests that the latest kvd_batcher_next preempted. */
const kvd_preempted *kvd_batcher_preempted(const kvd_batcher *b, size_t *n);

typedef struct {
    size_t waiting, running;
    /* number of unprocessed tokens of all waiting and running requests */
    size_t tokens;
    size_t pages_used;
} kvd_batcher_load;
kvd_batcher_load kvd_batcher_ask(const kvd_batcher *b);

#endif
