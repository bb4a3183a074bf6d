/*
 * Continuous batching: which requests do what in the next iteration. The engine that computes (engine.h) and
 * the simulator (simulator.h) take their iterations from here, so what is simulated is what is run.
 *
 * Iteration level (Orca): after every iteration requests that have all their tokens leave, and waiting ones
 * enter in the order of arrival while memory and batch allow. Without a chunk prompts go whole, and before
 * decoding (as vLLM's default of the papers' time): an iteration is either prompts or steps. With a chunk
 * (Sarathi) every iteration takes a step of all running requests and fills up to `chunk` tokens with pieces
 * of prompts.
 *
 * Memory is reserved whole, input + output tokens in pages of 64, when a request enters: nothing is ever
 * taken back. A request that cannot fit an empty machine is refused at once with its numbers.
 */
#ifndef KVD_SERVING_BATCHING_H
#define KVD_SERVING_BATCHING_H

#include "serving/requests.h"

typedef struct {
    size_t max_batch;  /* requests that run at once                          */
    size_t max_tokens; /* prompt tokens of an iteration without chunk; a longer prompt goes alone */
    size_t chunk;      /* tokens of an iteration; 0: whole prompts           */
    size_t pages;      /* of 64 tokens, in the cache of every layer          */
} kvd_batching_limits;

/* What one request does in an iteration: its tokens before .. before + n - 1 go through the model. */
typedef struct {
    uint32_t request;   /* index in the list                                         */
    uint32_t slot;      /* < max_batch, its own while it runs                        */
    uint32_t before, n; /* tokens already in the cache; new ones                     */
    uint32_t
        whole; /* its input + output: budgets of methods and longrope's table depend on it; 0: the engine's max_len */
    int emits; /* 1: a token comes out (the end of its prompt, or a step)   */
    int last;  /* 1: and it is its last one: the slot is free afterwards    */
} kvd_slice;

typedef struct {
    size_t n_slices,
        n_steps; /* slice[0 .. n_steps - 1] are steps (n = 1 behind the prompt), the others pieces of prompts */
    const kvd_slice *slice; /* valid until the next call */
    size_t n_tokens;        /* sum of n                                                               */
} kvd_iteration;

typedef struct kvd_batcher kvd_batcher;
/* requests are borrowed. */
kvd_batcher *kvd_batcher_new(const kvd_requests *requests, const kvd_batching_limits *limits, kvd_err *err);
void kvd_batcher_free(kvd_batcher *b);

/* Request i has arrived (in order). Fails when it can never fit: "request 17: 100000 + 256 tokens take
 * 1567 pages, there are 1200". */
int kvd_batcher_arrive(kvd_batcher *b, uint32_t request, kvd_err *err);
/* The next iteration; n_slices 0: nothing to do. The one before counts as done. */
kvd_iteration kvd_batcher_next(kvd_batcher *b);

/* Of the waiting and running requests, for routing and reports. */
typedef struct {
    size_t waiting, running;
    size_t tokens; /* that are still to go through the model */
    size_t pages_used;
} kvd_batcher_load;
kvd_batcher_load kvd_batcher_ask(const kvd_batcher *b);

#endif
