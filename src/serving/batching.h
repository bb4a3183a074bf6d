/*
 * Continuous batching: selects the requests and tokens of the next iteration, for the engine and
 * the simulator.
 *
 * Scheduling is per iteration (Orca), in the order of arrival.
 *
 * chunk = 0: an iteration has whole prompts or decode steps; prompts run first (early vLLM).
 * chunk > 0: a step of all running requests, plus parts of prompts up to `chunk` tokens (Sarathi).
 *
 * Admission takes pages of 64 tokens:
 *
 * - KVD_ADMIT_WHOLE: pages for all input and output tokens on entry; no preemption.
 * - KVD_ADMIT_STORED (vLLM, Kwon et al. 2023): pages for the prompt on entry, then one page when a
 *   step needs it. On entry 1 % of the pages must stay free, unless nothing runs. If no page is
 *   free, the running request that arrived last is preempted. It waits again before later arrivals
 *   and recomputes its emitted tokens. An iteration that preempts admits no request.
 */
#ifndef KVD_SERVING_BATCHING_H
#define KVD_SERVING_BATCHING_H

#include <stdbool.h>

#include "engine/limits.h"
#include "methods/iteration.h"
#include "serving/requests.h"

/* Values of --admission, indexed by kvd_admission; the list ends with NULL. */
extern const char *const kvd_admission_name[KVD_ADMISSIONS + 1];

typedef struct kvd_batcher kvd_batcher;
/* Creates a batcher; `requests` must outlive it. On failure returns NULL and fills *err. */
kvd_batcher *kvd_batcher_new(const kvd_requests *requests, const kvd_batching_limits *limits,
                             kvd_err *err);
void kvd_batcher_free(kvd_batcher *b);

bool kvd_batching_fits(const kvd_batching_limits *limits, const kvd_request *request);

/*
 * Tells the batcher that a request has arrived. Requests must be passed in order of arrival. Fails
 * if the request can never fit into the cache.
 */
int kvd_batcher_arrive(kvd_batcher *b, uint32_t request, kvd_err *err);
/*
 * Returns the next iteration: its requests and their tokens. It is empty if no request waits or
 * runs.
 */
kvd_iteration kvd_batcher_next(kvd_batcher *b);

/* A request that lost its cache pages and waits again. */
typedef struct {
    uint32_t request;
    /*
     * Index of the request's cache memory (slot), which the engine must free before the next
     * iteration.
     */
    uint32_t slot;
    /* Number of cached tokens that the model must process again. */
    uint32_t tokens;
} kvd_preempted;
/* Returns the *n requests that the latest kvd_batcher_next preempted. */
const kvd_preempted *kvd_batcher_preempted(const kvd_batcher *b, size_t *n);

typedef struct {
    size_t waiting, running;
    /* Number of unprocessed tokens of all waiting and running requests. */
    size_t tokens;
    size_t pages_used;
} kvd_batcher_load;
kvd_batcher_load kvd_batcher_ask(const kvd_batcher *b);

#endif
