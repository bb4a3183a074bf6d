/*
 * Continuous batching: decides which requests take part in the next iteration, and with how many
 * tokens. The engine (engine/engine.h) and the simulator (simulate/simulator.h) both take their
 * iterations from here.
 *
 * Scheduling is per iteration (Orca). After every iteration, finished requests leave. Waiting
 * requests enter in the order of arrival, as long as the batch has a free slot and the cache enough
 * free pages.
 *
 * If `chunk` is 0, an iteration has either whole prompts or decode steps, and prompts run first (as
 * in early versions of vLLM). If `chunk` is set (Sarathi), every iteration takes one step of all
 * running requests and adds parts of prompts up to `chunk` tokens.
 *
 * `admission` says how a request gets pages of 64 tokens:
 *
 * - KVD_ADMIT_WHOLE: a request gets pages for all input and output tokens when it enters, and is
 *   never preempted.
 * - KVD_ADMIT_STORED, as in vLLM (Kwon et al. 2023): a request gets pages for its prompt when it
 *   enters, and one more page whenever a step needs it. Unless nothing runs, a hundredth of the
 *   pages must stay free when a request enters. If no page is free for a step, the running request
 *   that arrived last is preempted: it loses its pages and waits again, before all requests that
 *   arrived later. When it enters again, the tokens that it has emitted are part of its prompt
 *   (recomputation). An iteration in which a request is preempted admits none.
 */
#ifndef KVD_SERVING_BATCHING_H
#define KVD_SERVING_BATCHING_H

#include <stdbool.h>

#include "engine/limits.h"
#include "methods/iteration.h"
#include "serving/requests.h"

/* Names of the values of --admission, indexed by kvd_admission; the list ends with NULL. */
extern const char *const kvd_admission_name[KVD_ADMISSIONS + 1];

typedef struct kvd_batcher kvd_batcher;
/*
 * Creates a batcher. The caller keeps `requests` valid until kvd_batcher_free. On failure returns
 * NULL and fills *err.
 */
kvd_batcher *kvd_batcher_new(const kvd_requests *requests, const kvd_batching_limits *limits,
                             kvd_err *err);
void kvd_batcher_free(kvd_batcher *b);

/* Returns true if the request fits into an empty cache. */
bool kvd_batching_fits(const kvd_batching_limits *limits, const kvd_request *request);

/*
 * Tells the batcher that a request arrived. Requests must be added in the order of their arrival.
 * Fails if the request can never fit into the cache.
 */
int kvd_batcher_arrive(kvd_batcher *b, uint32_t request, kvd_err *err);
/*
 * Returns the next iteration to run. By calling it the caller also reports that the previous
 * iteration is finished. If no request waits or runs, n_slices of the result is 0.
 */
kvd_iteration kvd_batcher_next(kvd_batcher *b);

/* A request that lost its cache pages and waits again. */
typedef struct {
    uint32_t request;
    /* Slot that the request had. The engine must free the slot before the next iteration runs. */
    uint32_t slot;
    /* Number of the request's tokens that the cache held and the model will process again. */
    uint32_t tokens;
} kvd_preempted;
/* Returns the *n requests that the latest call of kvd_batcher_next preempted. */
const kvd_preempted *kvd_batcher_preempted(const kvd_batcher *b, size_t *n);

typedef struct {
    size_t waiting, running;
    /* Number of tokens that the model must still process for all waiting and running requests. */
    size_t tokens;
    size_t pages_used;
} kvd_batcher_load;
kvd_batcher_load kvd_batcher_ask(const kvd_batcher *b);

#endif
