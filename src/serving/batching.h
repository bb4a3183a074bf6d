/*
 * Continuous batching: decides which requests take part in the next iteration, and with how many
 * tokens. The engine that computes (engine/engine.h) and the simulator (simulate/simulator.h) both
 * take their iterations from here, so the simulator schedules exactly as the engine does.
 *
 * Scheduling is per iteration (Orca): after every iteration, requests that have all their tokens
 * leave, and waiting requests enter in the order of arrival while memory and batch allow. If
 * `chunk` is 0, prompts are not split and run before decode steps (the default of vLLM when the
 * papers were written): an iteration holds either prompts or steps. If `chunk` is set (Sarathi),
 * every iteration takes one step of all running requests and fills up to `chunk` tokens with pieces
 * of prompts.
 *
 * `admission` says how a request gets pages of 64 tokens:
 *
 * - KVD_ADMIT_WHOLE: pages for all its tokens, input + output, when it enters. No page is ever
 *   taken back.
 * - KVD_ADMIT_STORED, as in vLLM (Kwon et al. 2023): pages for its prompt when it enters, and a
 *   page more whenever a step needs one. Unless nothing runs, a hundredth of the pages must stay
 *   free when a request enters. If no page is free for a step, the running request that arrived
 *   last is preempted: it loses its pages and waits again, before all requests that arrived later.
 *   When it enters again, its input and the tokens that it has emitted are its prompt
 *   (recomputation). An iteration in which a request is preempted admits none.
 *
 * A request that cannot fit into an empty cache is refused at once, with its numbers.
 */
#ifndef KVD_SERVING_BATCHING_H
#define KVD_SERVING_BATCHING_H

#include "engine/limits.h"
#include "methods/iteration.h"
#include "serving/requests.h"

/*
 * Names of the admission rules in --admission, indexed by kvd_admission; the list ends with NULL.
 */
extern const char *const kvd_admission_name[KVD_ADMISSIONS + 1];

typedef struct kvd_batcher kvd_batcher;
/*
 * Creates a batcher for these requests, which the caller keeps valid until kvd_batcher_free. On
 * failure returns NULL and fills *err.
 */
kvd_batcher *kvd_batcher_new(const kvd_requests *requests, const kvd_batching_limits *limits,
                             kvd_err *err);
void kvd_batcher_free(kvd_batcher *b);

/*
 * Adds a request to those that wait. Requests must be added in the order of their arrival. Fails if
 * the request can never fit into the cache: "request 17: 100000 + 256 tokens take 1567 pages, there
 * are 1200".
 */
int kvd_batcher_arrive(kvd_batcher *b, uint32_t request, kvd_err *err);
/*
 * Returns the next iteration to run; its n_slices is 0 if no request waits or runs. The iteration
 * that the previous call returned is taken to be finished.
 */
kvd_iteration kvd_batcher_next(kvd_batcher *b);

/* A request that was preempted: it lost its cache pages and waits again. */
typedef struct {
    uint32_t request;
    /*
     * Slot of the cache that the request had. The engine must free it before the next iteration
     * runs.
     */
    uint32_t slot;
    /* Number of the request's tokens that the cache held. The model will process them again. */
    uint32_t tokens;
} kvd_preempted;
/*
 * Returns the requests that the latest call of kvd_batcher_next preempted, and stores their number
 * in *n.
 */
const kvd_preempted *kvd_batcher_preempted(const kvd_batcher *b, size_t *n);

/* Numbers of requests, tokens and cache pages in use, for routing and reports. */
typedef struct {
    size_t waiting, running;
    /* Number of tokens of waiting and running requests that the model must still process. */
    size_t tokens;
    size_t pages_used;
} kvd_batcher_load;
kvd_batcher_load kvd_batcher_ask(const kvd_batcher *b);

#endif
