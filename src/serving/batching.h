/* Continuous batching: selects the requests and tokens of the next iteration, in order of arrival.
 *
 * With chunk = 0, an iteration processes whole prompts or, if no prompt can be added, a decode step
 * of all running requests. With chunk > 0, it processes a decode step of all running requests and
 * parts of prompts, up to `chunk` tokens together (Sarathi).
 *
 * When a request is admitted, it gets cache pages of 64 tokens:
 *
 * - KVD_ADMIT_WHOLE: pages for all its input and output tokens; it is never preempted
 * - KVD_ADMIT_STORED (vLLM): pages for its prompt, and later one page at a time. If no page is
 *   free, the running request that arrived last is preempted and later starts again. */
#ifndef KVD_SERVING_BATCHING_H
#define KVD_SERVING_BATCHING_H

#include <stdbool.h>

#include "engine/limits.h"
#include "methods/iteration.h"
#include "serving/requests.h"

/* Names of the rules for admitting requests (values of --admission), ended by NULL. */
extern const char *const kvd_admission_name[KVD_ADMISSIONS + 1];

typedef struct kvd_batcher kvd_batcher;
/* Creates a batcher, which selects the requests of each iteration. `requests` must outlive it. */
kvd_batcher *kvd_batcher_new(const kvd_requests *requests, const kvd_batching_limits *limits,
                             kvd_err *err);
void kvd_batcher_free(kvd_batcher *b);

bool kvd_batching_fits(const kvd_batching_limits *limits, const kvd_request *request);

/* Adds a request to those that wait. Requests must be added in order of arrival. Fails if the
 * request can never fit into the cache. */
int kvd_batcher_arrive(kvd_batcher *b, uint32_t request, kvd_err *err);
/* Returns the requests and tokens of the next iteration, which is empty if no request waits or
 * runs. */
kvd_iteration kvd_batcher_next(kvd_batcher *b);

/* a preempted request: it lost its cache pages and waits again */
typedef struct {
    uint32_t request;
    /* number of the request's slot in the engine's cache; the engine must free this slot before the
     * next iteration */
    uint32_t slot;
    /* number of tokens whose K and V the preempted request lost and must compute again */
    uint32_t tokens;
} kvd_preempted;
/* Returns the *n requests that the latest call of kvd_batcher_next preempted. */
const kvd_preempted *kvd_batcher_preempted(const kvd_batcher *b, size_t *n);

typedef struct {
    size_t waiting, running;
    /* number of input and output tokens that waiting and running requests have still to process */
    size_t tokens;
    size_t pages_used;
} kvd_batcher_load;
kvd_batcher_load kvd_batcher_ask(const kvd_batcher *b);

#endif
